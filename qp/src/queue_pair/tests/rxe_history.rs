//! Regression tests for known bugs of software queue pairs: one for each that was found in Linux rxe (and in
//! rdma-core) between 2021 and 2026, named by its date and quoting the gist of its report.

use super::*;
use crate::wire::headers::DethFields;
use crate::wire::packet::WireError;

const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const FLUSHED: WcStatus = WcStatus::WrFlushErr;

/// The encoded bytes of a request, for tests that corrupt them.
fn bytes_of(packet: &Out) -> Vec<u8> {
    packet.to_bytes()
}

/// "Responder errors for operations without a receive work request sent no NAK."
#[test]
fn bug_of_2021_03_errors_without_a_receive_get_a_nak() {
    let mut bad_add = fetch_add(RQ, START, 1);
    bad_add.headers.atomic.rkey = 7;
    for (offender, code) in [
        (rdma(Opcode::RcWriteOnly, RQ, START, 7, 1, &[1]), 0x62),
        (rdma(Opcode::RcReadRequest, RQ, START, 7, 1, &[]), 0x62),
        (bad_add, 0x62),
        (fetch_add(RQ, START + 1, 1), 0x61),
        (rdma(Opcode::RcAtomicWrite, RQ, START, 7, 8, &[1; 8]), 0x62),
        (rdma(Opcode::RcFlush, RQ, START, KEY, 8, &[]), 0x61),
        (request(Opcode::RcWriteMiddle, RQ, &[1; MTU]), 0x61),
    ] {
        let mut b = Setup::default().rts();
        b.expect(&offender, &[nak(code, RQ, 0)]);
        assert_eq!(b.qp.state(), QpState::Err);
    }
}

/// "Local operations are replayed when a request is sent again."
#[test]
fn bug_of_2022_04_local_operations_are_not_replayed() {
    let mut b = Setup::default().rts();
    b.host.windows.push(Window { key: 50, bound_by: Some(OURS) });
    b.post(1, Operation::LocalInvalidate { key: 50 }, &[]);
    b.post(2, SEND, &[]);
    b.sent();
    b.sleep(TIMEOUT);
    assert_eq!(psns(&b.sent()), [SQ]);
    assert_eq!(b.notes(), [Note::Invalidated(50), Note::Sent(1, WcStatus::Success)]);
}

/// "The RNR timer is never honoured: the retransmit timer fires early."
#[test]
fn bug_of_2022_05_the_rnr_timer_is_honoured() {
    // 8.192 us against 655.36 ms.
    let mut b = Setup { timeout: 1, retry_cnt: 0, ..Setup::default() }.rts();
    b.post(1, SEND, &[]);
    b.sent();
    b.take(&refused(0x20, SQ));
    b.sleep(Duration::from_micros(655_360));
    assert_eq!(psns(&b.sent()), [SQ]);
    assert_eq!((b.notes(), b.qp.counters().local_ack_timeout_err), (vec![], 0));
}

/// "A fence waits for everything."
#[test]
fn bug_of_2022_05_a_fence_waits_for_reads_and_atomics_only() {
    let mut b = Setup::default().rts();
    b.post(1, WRITE, &[local(0, 8)]);
    b.post_with(2, SEND, &[], SendFlags::FENCE);
    assert_eq!(psns(&b.sent()), [SQ, SQ + 1]);
}

/// "When the acknowledgement of an atomic is lost, its replay carries wrong data."
#[test]
fn bug_of_2022_06_a_lost_atomic_answer_is_replayed_as_it_was() {
    let mut b = Setup::default().rts();
    b.host.bytes(KEY)[..8].copy_from_slice(&0x0102_0304_0506_0708u64.to_ne_bytes());
    b.expect(&fetch_add(RQ, START, 1), &[atomic_ack(RQ, 1, 0x0102_0304_0506_0708)]);
    b.expect(&fetch_add(RQ + 1, START, 1), &[atomic_ack(RQ + 1, 2, 0x0102_0304_0506_0709)]);
    b.expect(&fetch_add(RQ, START, 1), &[atomic_ack(RQ, 2, 0x0102_0304_0506_0708)]);
    assert_eq!(
        b.host.bytes(KEY)[..8],
        0x0102_0304_0506_070au64.to_ne_bytes(),
        "added twice, not three times"
    );
}

/// "A READ is answered with garbage if the copy fails in mid-message."
#[test]
fn bug_of_2022_10_a_read_whose_memory_goes_away_ends_with_a_nak() {
    let mut b = Setup::default().rts();
    b.host.bytes(KEY)[..4 * MTU].fill(5);
    b.take(&read(RQ, 0, 4 * MTU));
    let mut buf = [0; MTU + 20];
    let flow = Flow { src: IpAddr::from([1; 4]), dst: IpAddr::from([2; 4]), src_port: 1, dst_port: 2 };
    let mut train = Train::new(&mut buf, flow, 64);
    b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
    assert_eq!(train.packets(), 1);
    // The region is not revoked but shortened.
    b.host.bytes(KEY).truncate(2 * MTU);
    let mut second = answer(PEERS, Opcode::RcReadResponseMiddle, RQ + 1, ACK, 1, &[5; MTU]);
    second.headers.aeth = AethFields::default();
    assert_eq!(
        b.sent(),
        [second, nak(0x62, RQ + 2, 1)],
        "the available data, then a NAK in place of the rest"
    );
    assert_eq!(b.qp.state(), QpState::Err);
}

/// "The receive queue is not flushed in ERR", and, from June 2023, "no LAST_WQE_REACHED".
#[test]
fn bug_of_2022_10_the_receive_queue_is_flushed_in_err() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi] {
        let mut b = Setup::of(qp_type).rts();
        (1..=3).for_each(|id| b.post_recv(id, &[]));
        b.modify(&QpAttr::to_state(QpState::Err));
        assert_eq!(b.notes(), [1, 2, 3].map(|id| Note::Received(id, FLUSHED)));
        b.post_recv(4, &[]);
        assert_eq!(b.notes(), [Note::Received(4, FLUSHED)], "{qp_type}");
        let mut b = Setup { has_srq: true, ..Setup::of(qp_type) }.rts();
        b.modify(&QpAttr::to_state(QpState::Err));
        assert_eq!(b.notes(), [Note::Event(QpEvent::LastWqeReached)]);
    }
}

/// "A packet shorter than its headers is accepted; the check is off by eight bytes."
#[test]
fn bug_of_2023_05_runts_are_no_packets() {
    for opcode in Opcode::ALL {
        let packet = Out::new(Headers::new(*opcode, OURS, Psn::new(0)), &[]);
        let bytes = bytes_of(&packet);
        assert_eq!(bytes.len(), packet.headers.wire_len() + ICRC_LEN);
        assert!(Packet::parse(&bytes).is_ok(), "{opcode:?}");
        for len in 0..bytes.len() {
            let runt = Packet::parse(&bytes[..len]);
            assert!(matches!(runt, Err(WireError::TooShort { .. })), "{opcode:?} of {len} bytes: {runt:?}");
        }
    }
}

/// "AckReq is set in packets of UC and UD", which have no acknowledgements.
#[test]
fn bug_of_2024_06_unreliable_services_do_not_ask_for_acknowledgements() {
    let tuning = Tuning { ack_interval: 1, ..Setup::default().tuning };
    let mut b = Setup { tuning, ..Setup::of(QpType::Uc) }.rts();
    b.post(1, SEND, &[local(0, 3 * MTU)]);
    b.post(2, WRITE, &[local(0, 8)]);
    assert!(b.sent().iter().all(|p| !p.headers.ack_req));
    let mut b = Setup { tuning, ..Setup::of(QpType::Ud) }.rts();
    let path = std::sync::Arc::new(AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, 2)), 0));
    let wr = SendWr::new(1, SEND, local(0, 8)).to(Destination::Datagram { path, qpn: PEERS, qkey: QKEY });
    b.qp.post_send(wr, &mut b.host).unwrap();
    let sent = b.sent();
    assert_eq!((sent.len(), sent[0].headers.ack_req), (1, false));
    // A peer that asks anyway gets no acknowledgement.
    let mut b = Setup::of(QpType::Ud).rts();
    b.post_recv(1, &[local(0, 100)]);
    let mut asks = request(Opcode::UdSendOnly, 0, b"x");
    asks.headers.deth = DethFields { qkey: QKEY, src_qpn: PEERS };
    b.expect(&asks, &NONE);
}

/// "A pad count larger than the payload makes its length wrap."
#[test]
fn bug_of_2026_04_pad_does_not_exceed_the_payload() {
    for opcode in Opcode::ALL {
        for pad in 1..=3u8 {
            let mut bytes = bytes_of(&Out::new(Headers::new(*opcode, OURS, Psn::new(RQ)), &[]));
            bytes[1] |= pad << 4;
            let refused = Packet::parse(&bytes);
            assert!(
                matches!(refused, Err(WireError::PadExceedsPayload { .. })),
                "{opcode:?} {pad}: {refused:?}"
            );
        }
    }
}

/// "One packet with an unknown opcode crashes the kernel."
#[test]
fn bug_of_2026_04_unknown_opcodes_are_dropped() {
    let known: Vec<u8> = Opcode::ALL.iter().map(|opcode| *opcode as u8).collect();
    let mut bytes = bytes_of(&request(Opcode::RcSendOnly, RQ, &[0; 64]));
    for opcode in (0..=u8::MAX).filter(|byte| !known.contains(byte)) {
        bytes[0] = opcode;
        assert_eq!(Packet::parse(&bytes).err(), Some(WireError::UnknownOpcode(opcode)));
    }
}

/// "Address plus length wraps around 64 bits", in requests and in duplicates of them.
#[test]
fn bug_of_2026_05_ranges_do_not_wrap_around() {
    let top = u64::MAX - (4 * MTU as u64) + 1;
    for len in [1usize, 2, 4095, 1 << 20, 1 << 31] {
        for va in [u64::MAX, (u64::MAX - len as u64).saturating_add(2), top] {
            let write = if len <= MTU {
                rdma(Opcode::RcWriteOnly, RQ, va, KEY, len, &vec![1; len])
            } else {
                rdma(Opcode::RcWriteFirst, RQ, va, KEY, len, &[1; MTU])
            };
            for offender in [write, rdma(Opcode::RcReadRequest, RQ, va, KEY, len, &[])] {
                let mut b = Setup::default().rts();
                b.expect(&offender, &[nak(0x62, RQ, 0)]);
                assert!(b.host.bytes(KEY).iter().all(|b| *b == 0));
            }
        }
    }
    // A region at the very end of the address space is legal, including its last byte; the byte after it is not
    // byte 0.
    let mut b = Setup::default().rts();
    b.host.register(9, top, 4 * MTU - 1, all_rights());
    b.host.bytes(9).copy_from_slice(&pattern(4 * MTU - 1));
    let whole = |psn, va, len| rdma(Opcode::RcReadRequest, psn, va, 9, len, &[]);
    let data = pattern(4 * MTU - 1);
    b.expect(&whole(RQ, top, data.len()), &read_responses(PEERS, RQ, 1, &data));
    let (third, rest) = (top + 3 * MTU as u64, &data[3 * MTU..]);
    b.expect(&whole(RQ + 3, third, rest.len()), &read_responses(PEERS, RQ + 3, 1, rest));
    for beyond in [
        whole(RQ + 3, third, MTU),
        whole(RQ + 3, third, 1 << 31),
        whole(RQ + 3, third, u32::MAX as usize),
        whole(RQ + 3, third.wrapping_add(MTU as u64), 1),
        whole(RQ, 0, 1),
    ] {
        assert_eq!(b.feed(&beyond), Err(PacketDrop::StaleDuplicate), "{beyond:?}");
    }
    b.expect(&whole(RQ + 4, third, MTU), &[nak(0x62, RQ + 4, 1)]);
}

/// "max_dest_rd_atomic is changed while the resources of the responder are in use."
#[test]
fn bug_of_2026_07_the_depth_changes_while_answers_wait() {
    for depth in [0, 1, 2, 128] {
        let mut b = Setup::default().rts();
        b.host.bytes(KEY)[..4 * MTU].copy_from_slice(&pattern(4 * MTU));
        b.take(&read(RQ, 0, 4 * MTU));
        b.take(&fetch_add(RQ + 4, START + 4096, 1));
        let mut buf = [0; MTU + 20];
        let flow = Flow { src: IpAddr::from([1; 4]), dst: IpAddr::from([2; 4]), src_port: 1, dst_port: 2 };
        let mut train = Train::new(&mut buf, flow, 64);
        b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
        b.modify(&QpAttr::to_state(QpState::Sqd));
        b.modify(&QpAttr::default().max_dest_rd_atomic(depth));
        // Accepted requests are answered completely.
        let mut expected = read_responses(PEERS, RQ, 1, &pattern(4 * MTU)).split_off(1);
        expected.push(atomic_ack(RQ + 4, 2, 0));
        assert_eq!(b.sent(), expected, "{depth}");
        // Duplicates belong to the old depth: nothing is kept for them.
        assert_eq!(b.feed(&read(RQ, 0, 4 * MTU)), Err(PacketDrop::StaleDuplicate));
        assert_eq!(b.feed(&fetch_add(RQ + 4, START + 4096, 1)), Err(PacketDrop::StaleDuplicate));
        let next = fetch_add(RQ + 5, START + 4096, 1);
        let answer = if depth == 0 { nak(0x61, RQ + 5, 2) } else { atomic_ack(RQ + 5, 3, 1) };
        b.expect(&next, &[answer]);
    }
}

/// "A packet is executed again after the queue pair has moved to ERR", or for the first time.
#[test]
fn bug_of_2026_07_nothing_is_executed_in_err() {
    for (opcodes, qp_type) in [
        ([Opcode::RcSendFirst, Opcode::RcSendLast, Opcode::RcWriteOnly], QpType::Rc),
        ([Opcode::UcSendFirst, Opcode::UcSendLast, Opcode::UcWriteOnly], QpType::Uc),
    ] {
        let mut b = Setup::of(qp_type).rts();
        b.post_recv(1, &[local(0, 600)]);
        b.take(&request(opcodes[0], RQ, &[1; MTU]));
        b.modify(&QpAttr::to_state(QpState::Err));
        assert_eq!(b.notes(), [Note::Received(1, FLUSHED)]);
        let last = request(opcodes[1], RQ + 1, &[2]);
        let write = rdma(opcodes[2], RQ + 1, START, KEY, 1, &[3]);
        for packet in [request(opcodes[0], RQ, &[1; MTU]), last, write] {
            assert_eq!(b.feed(&packet), Err(PacketDrop::State));
        }
        assert_eq!((b.notes(), b.sent(), b.host.bytes(KEY)[0]), (vec![], NONE, 0));
        assert_eq!(b.host.behind(local(MTU as u64, 1)), [0]);
    }
}

/// "Lengths of inline data and sums of scatter/gather lengths wrap around 32 bits" (rdma-core, June 2026).
#[test]
fn bug_of_2026_06_sums_of_lengths_do_not_wrap_around() {
    let most = Sge { length: u32::MAX, ..local(0, 0) };
    assert_eq!(Gather::Many(vec![most; 8].into()).len(), 8 * u64::from(u32::MAX));
    for sges in [&[most, local(0, 1)][..], &[most; 2], &[most, local(0, 1), most]] {
        let mut b = Setup::default().rts();
        b.post(1, SEND, sges);
        assert_eq!((b.sent(), b.notes()), (NONE, vec![Note::Sent(1, WcStatus::LocLenErr)]));
    }
    // A receive of 8 GiB accepts a short message.
    let mut b = Setup::default().rts();
    b.post_recv(1, &[local(0, 10), most, most]);
    b.expect(&request(Opcode::RcSendOnly, RQ, &[7; 100]), &[ack(RQ, 1)]);
    assert_eq!(b.host.behind(local(0, 91)), [[7; 90].as_slice(), &[0]].concat());
    let too_much = SendWr::new(1, SEND, Gather::Inline(vec![0; 65].into()));
    let refused = b.qp.post_send(too_much, &mut b.host);
    assert_eq!(refused, Err(PostError::TooMuchInline { given: 65, max: 64 }));
}
