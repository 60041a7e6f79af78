//! Unreliable connections (IBTA 9.8.2): nothing is retransmitted, and nothing is acknowledged.

use super::*;

const DONE: WcStatus = WcStatus::Success;
const LOST: Result<(), PacketDrop> = Err(PacketDrop::Unreliable);

fn uc() -> Setup {
    Setup::of(QpType::Uc)
}

/// In RTS, with two receives of 600 bytes.
fn with_receives() -> Bench {
    let mut b = uc().rts();
    b.post_recv(1, &[local(0, 600)]);
    b.post_recv(2, &[local(1000, 600)]);
    b
}

fn received(id: u64) -> Note {
    Note::Received(id, DONE)
}

fn only(psn: u32, data: &[u8]) -> Out {
    request(Opcode::UcSendOnly, psn, data)
}

/// A SEND of four packets, each filled with `fill`; the last is short.
fn four_packets(psn: u32, fill: u8) -> Vec<Out> {
    let parts = [
        (Opcode::UcSendFirst, MTU),
        (Opcode::UcSendMiddle, MTU),
        (Opcode::UcSendMiddle, MTU),
        (Opcode::UcSendLast, 5),
    ];
    (psn..).zip(parts).map(|(psn, (opcode, len))| request(opcode, psn, &vec![fill; len])).collect()
}

#[test]
fn a_message_is_delivered_and_nothing_is_answered() {
    let mut b = uc().rts();
    b.post_recv(1, &[local(0, 1000)]);
    // AckReq has no meaning here; old versions of Linux rxe set it anyway.
    for packet in four_packets(RQ, 7) {
        assert!(packet.headers.ack_req || packet.payload.len() == MTU);
        b.expect(&packet, &NONE);
    }
    let wc = b.host.recvs[0].0;
    assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (1, DONE, 3 * MTU + 5));
    assert_eq!((wc.opcode, wc.src_qpn, wc.flags), (WcOpcode::Recv, PEERS, WcFlags::empty()));
    assert!(b.host.behind(local(0, 3 * MTU + 5)).iter().all(|b| *b == 7));
    assert_eq!(b.host.behind(local(3 * MTU as u64 + 5, 10)), [0; 10]);
    assert_eq!((b.qp.counters().rdma_recvs, b.qp.counters().rcvd_pkts), (1, 4));
}

/// Rule "a PSN gap drops the message up to the next First/Only and reuses the WQE": for every packet of a message.
#[test]
fn a_gap_anywhere_drops_the_message_and_leaves_its_receive_to_the_next() {
    for lost in 0..4 {
        let mut b = uc().rts();
        b.post_recv(1, &[local(0, 1000)]);
        b.post_recv(2, &[local(2000, 1000)]);
        for (i, packet) in four_packets(RQ, 1).iter().enumerate() {
            let outcome = match i {
                i if i == lost => continue,
                i if i < lost => Ok(()),
                // Packets after the gap belong to an incomplete message.
                _ => LOST,
            };
            assert_eq!(b.feed(packet), outcome, "packet {i} without packet {lost}");
        }
        assert_eq!(b.notes(), [], "nothing completes without packet {lost}");
        for packet in four_packets(RQ + 4, 2) {
            b.take(&packet);
        }
        b.take(&only(RQ + 8, b"next"));
        assert_eq!(b.notes(), [received(1), received(2)], "the receive serves the next message");
        let [(first, _), (second, _)] = b.host.recvs[..] else { panic!() };
        assert_eq!((first.byte_len as usize, second.byte_len), (3 * MTU + 5, 4));
        assert!(b.host.behind(local(0, 3 * MTU + 5)).iter().all(|b| *b == 2), "the second message");
        assert_eq!((b.sent(), b.qp.state()), (NONE, QpState::Rts));
        // The loss of the last packet shows in the next message, the loss of any other packet at once.
        assert_eq!(b.qp.counters().out_of_seq_request, 1);
    }
}

/// The same for RDMA WRITE: data already written stays, the rest of the message is dropped.
#[test]
fn a_gap_in_a_write_drops_the_rest_of_it() {
    let parts = |psn: u32, fill: u8| {
        vec![
            rdma(Opcode::UcWriteFirst, psn, START, KEY, 2 * MTU + 1, &[fill; MTU]),
            request(Opcode::UcWriteMiddle, psn + 1, &[fill; MTU]),
            request(Opcode::UcWriteLastImm, psn + 2, &[fill]),
        ]
    };
    for lost in 0..3 {
        let mut b = with_receives();
        for (i, packet) in parts(RQ, 1).iter().enumerate() {
            if i != lost {
                assert_eq!(b.feed(packet).is_ok(), i < lost);
            }
        }
        assert_eq!(b.notes(), []);
        let written = b.host.bytes(KEY).iter().filter(|b| **b == 1).count();
        assert_eq!(written, lost * MTU);
        for packet in parts(RQ + 3, 2) {
            b.take(&packet);
        }
        assert_eq!(b.notes(), [received(1)]);
        assert_eq!(b.host.recvs[0].0.byte_len as usize, 2 * MTU + 1);
        assert!(b.host.bytes(KEY)[..2 * MTU + 1].iter().all(|b| *b == 2));
        assert_eq!(b.qp.state(), QpState::Rts);
    }
}

/// A First or an Only starts a message at any PSN; the message in progress is dropped.
#[test]
fn a_first_in_the_middle_of_a_message_begins_a_new_one() {
    let begun = &four_packets(RQ, 1)[..2];
    for new in [vec![only(RQ + 2, b"whole")], four_packets(RQ + 2, 9)] {
        let mut b = uc().rts();
        b.post_recv(1, &[local(0, 1000)]);
        begun.iter().chain(&new).for_each(|packet| b.take(packet));
        assert_eq!(b.notes(), [received(1)]);
        let len: usize = new.iter().map(|p| p.payload.len()).sum();
        assert_eq!(b.host.recvs[0].0.byte_len as usize, len);
        assert!(b.host.behind(local(0, len)).iter().eq(new.iter().flat_map(|p| &p.payload)));
    }
    // A SEND in a WRITE, and a WRITE in a SEND, whose receive goes to the next message.
    let mut b = with_receives();
    b.take(&rdma(Opcode::UcWriteFirst, RQ, START, KEY, 2 * MTU, &[1; MTU]));
    b.take(&only(RQ + 1, b"a"));
    b.take(&begun[0].clone().at(RQ + 2));
    b.take(&rdma(Opcode::UcWriteOnly, RQ + 3, START, KEY, 1, &[8]));
    b.take(&only(RQ + 4, b"b"));
    assert_eq!(b.notes(), [received(1), received(2)]);
    assert_eq!(b.host.bytes(KEY)[0], 8);
    assert_eq!(b.host.behind(local(1000, 1)), b"b");
}

impl Out {
    /// The same packet with a different PSN.
    fn at(mut self, psn: u32) -> Self {
        self.headers.psn = Psn::new(psn);
        self
    }
}

/// Packets of other messages, and repeated packets, never mix into one message.
#[test]
fn packets_that_continue_nothing_are_dropped() {
    let [first, middle, _, last] = &four_packets(RQ, 1)[..] else { panic!() };
    let write_middle = request(Opcode::UcWriteMiddle, RQ + 1, &[3; MTU]);
    let write_last = request(Opcode::UcWriteLast, RQ + 1, &[3]);
    for (what, before, offender) in [
        ("a Middle without a First", None, middle.clone().at(RQ)),
        ("a Last without a First", None, last.clone().at(RQ)),
        ("a WRITE Middle in a SEND", Some(first), write_middle),
        ("a WRITE Last in a SEND", Some(first), write_last),
        ("an old Middle", Some(first), middle.clone().at(RQ)),
        ("a Middle half the PSN space away", Some(first), middle.clone().at(RQ + 1 + (1 << 23))),
    ] {
        let mut b = with_receives();
        before.into_iter().for_each(|packet| b.take(packet));
        assert_eq!(b.feed(&offender), LOST, "{what}");
        // The message was dropped: its own next packet is dropped too.
        assert_eq!(b.feed(middle), LOST, "{what}");
        b.take(&only(RQ + 40, b"x"));
        assert_eq!((b.notes(), b.qp.state()), (vec![received(1)], QpState::Rts), "{what}");
        assert_eq!(b.host.recvs[0].0.byte_len, 1, "{what}");
    }
}

/// Rules for which RC sends a NAK (C9-92, C9-94, access flags, rkey): here the message is silently dropped, its
/// receive is kept, and the queue pair continues.
#[test]
fn packets_that_break_a_rule_are_silently_dropped() {
    let write = |va, key, len: usize, data: &[u8]| rdma(Opcode::UcWriteOnly, RQ, va, key, len, data);
    let imm = |key, len: usize| rdma(Opcode::UcWriteOnlyImm, RQ, START, key, len, &[1; 8]);
    let end = START + REGION_LEN as u64;
    for (rule, rights, offender) in [
        ("WRITE with an unknown rkey", all_rights(), write(START, 7, 8, &[1; 8])),
        ("WRITE with immediate and an unknown rkey", all_rights(), imm(7, 8)),
        ("WRITE without the region's right", all_rights(), write(PRIVATE_START, PRIVATE, 8, &[1; 8])),
        ("WRITE beyond the region", all_rights(), write(end - 7, KEY, 8, &[1; 8])),
        ("WRITE whose range wraps around", all_rights(), write(u64::MAX - 3, KEY, 8, &[1; 8])),
        ("WRITE not enabled on the queue pair", Access::LOCAL_WRITE, write(START, KEY, 8, &[1; 8])),
        ("WRITE shorter than its RETH", all_rights(), write(START, KEY, 9, &[1; 8])),
        ("WRITE longer than its RETH", all_rights(), write(START, KEY, 7, &[1; 8])),
        ("WRITE with immediate of another length", all_rights(), imm(KEY, 9)),
        (
            "WRITE of more than 2^31 bytes",
            all_rights(),
            rdma(Opcode::UcWriteFirst, RQ, START, KEY, (1 << 31) + 1, &[1; MTU]),
        ),
        ("First shorter than the MTU", all_rights(), request(Opcode::UcSendFirst, RQ, &[1; MTU - 4])),
        ("First with pad", all_rights(), request(Opcode::UcSendFirst, RQ, &[1; MTU - 1])),
        ("First longer than the MTU", all_rights(), request(Opcode::UcSendFirst, RQ, &[1; MTU + 4])),
        ("Only longer than the MTU", all_rights(), only(RQ, &[1; MTU + 1])),
    ] {
        let mut b = Setup { rights, ..uc() }.rts();
        b.post_recv(1, &[local(0, 600)]);
        assert_eq!(b.feed(&offender), LOST, "{rule}");
        assert_eq!((b.sent(), b.notes(), b.qp.state()), (NONE, vec![], QpState::Rts), "{rule}");
        assert!(b.host.bytes(KEY).iter().all(|b| *b == 0), "{rule}: memory was touched");
        b.take(&only(RQ + 1, b"x"));
        assert_eq!(b.notes(), [received(1)], "{rule}: its receive is not lost");
    }
}

/// C9-88 applies here too.
#[test]
fn a_write_of_no_bytes_checks_no_key() {
    let mut b = with_receives();
    b.take(&rdma(Opcode::UcWriteOnlyImm, RQ, u64::MAX, 0xbad, 0, &[]));
    assert_eq!(b.notes(), [received(1)]);
}

#[test]
fn a_send_longer_than_its_receive_is_dropped_and_leaves_it() {
    let mut b = uc().rts();
    b.post_recv(1, &[local(0, 300)]);
    let [first, middle, ..] = &four_packets(RQ, 1)[..] else { panic!() };
    b.take(first);
    assert_eq!(b.feed(middle), LOST);
    assert_eq!(b.qp.counters().resp_local_length_error, 1);
    assert_eq!(b.feed(&request(Opcode::UcSendLast, RQ + 2, &[1])), LOST, "the rest is dropped too");
    assert_eq!((b.notes(), b.qp.state()), (vec![], QpState::Rts));
    b.take(&only(RQ + 3, &[2; MTU]));
    assert_eq!(b.notes(), [received(1)]);
    assert_eq!(b.host.behind(local(300, 300)), [0; 300], "nothing after the buffer");
}

/// An invalid receive is an error of the local program: it completes with the error, and the queue pair fails.
#[test]
fn a_receive_that_cannot_be_written_ends_the_queue_pair() {
    for (sge, vendor_err) in [
        (Sge { addr: LOCAL_START, length: 8, lkey: 7 }, 1),
        (Sge { addr: LOCAL_START + REGION_LEN as u64 - 4, length: 8, lkey: LOCAL }, 4),
    ] {
        let mut b = uc().rts();
        b.post_recv(1, &[sge]);
        b.post_recv(2, &[local(0, 8)]);
        b.take(&only(RQ, &[1; 8]));
        let flushed = Note::Received(2, WcStatus::WrFlushErr);
        assert_eq!(b.notes(), [Note::Received(1, WcStatus::LocProtErr), flushed]);
        assert_eq!(b.host.recvs[0].0.vendor_err, vendor_err);
        assert_eq!((b.sent(), b.qp.state()), (NONE, QpState::Err));
        assert_eq!(b.qp.failure().map(|f| f.status), Some(WcStatus::LocProtErr));
        assert_eq!(b.feed(&only(RQ + 1, &[1])), Err(PacketDrop::State));
    }
}

#[test]
fn without_a_receive_the_message_is_dropped() {
    let mut b = uc().rts();
    let message = four_packets(RQ, 1);
    assert_eq!(b.feed(&message[0]), Err(PacketDrop::NoReceive));
    // A receive posted in the middle of a message serves the next one.
    b.post_recv(1, &[local(0, 1000)]);
    for packet in &message[1..] {
        assert_eq!(b.feed(packet), LOST);
    }
    assert_eq!((b.notes(), b.qp.counters().out_of_buffer), (vec![], 1));
    b.take(&only(RQ + 4, b"x"));
    assert_eq!(b.notes(), [received(1)]);
    // The receive for immediate data is taken at the end of the message.
    b.take(&rdma(Opcode::UcWriteFirst, RQ + 5, START, KEY, MTU + 1, &[1; MTU]));
    assert_eq!(b.feed(&request(Opcode::UcWriteLastImm, RQ + 6, &[1])), Err(PacketDrop::NoReceive));
    assert_eq!(b.feed(&rdma(Opcode::UcWriteOnlyImm, RQ + 7, START, KEY, 0, &[])), Err(PacketDrop::NoReceive));
    assert_eq!((b.sent(), b.qp.counters().send_rnr_err, b.qp.state()), (NONE, 0, QpState::Rts));
}

/// 9.7.5.1.1 for this service: PSNs are cyclic.
#[test]
fn psns_wrap_on_both_sides() {
    let mut b = Setup { rq_psn: 0xff_fffe, sq_psn: 0xff_fffe, ..uc() }.rts();
    b.post_recv(1, &[local(0, 1000)]);
    four_packets(0xff_fffe, 3).into_iter().for_each(|p| b.take(&p));
    assert_eq!(b.notes(), [received(1)]);
    assert_eq!(b.qp.counters().out_of_seq_request, 0);
    b.post(9, SEND, &[local(0, 3 * MTU)]);
    b.post(10, SEND, &[]);
    assert_eq!(psns(&b.sent()), [0xff_fffe, 0xff_ffff, 0, 1]);
    assert_eq!((b.qp.next_psn(), b.qp.unacked_psn()), (Psn::new(2), Psn::new(2)));
}

/// The Linux rxe bug of June 2024 ("AckReq set on UC/UD"): nothing answers it. A work request is done when its last
/// packet is sent (9.8.1.1), and no timer runs.
#[test]
fn unacknowledged_work_requests_complete_when_sent() {
    let tuning = Tuning { ack_interval: 2, ..Setup::default().tuning };
    let mut b = Setup { tuning, ..uc() }.rts();
    b.post(1, SEND, &[local(0, 4 * MTU)]);
    b.post_with(
        2,
        Operation::Write { remote: REMOTE, imm: Some(5) },
        &[local(0, MTU + 1)],
        SendFlags::empty(),
    );
    b.post(3, Operation::Send { imm: Some(6), invalidate: None }, &[]);
    let mut sent = b.poll(64, &mut 3);
    assert_eq!((sent.len(), b.notes()), (3, vec![]), "the first is not complete yet");
    // Without acknowledgements packets are never in flight, so the limit on packets in flight never stops a
    // message, however long.
    assert_eq!((b.qp.unacked_psn(), b.qp.next_psn()), (Psn::new(SQ + 3), Psn::new(SQ + 3)));
    sent.extend(b.sent());
    assert_eq!(b.notes(), [Note::Sent(1, DONE), Note::Sent(3, DONE)]);
    use Opcode as O;
    let opcodes: Vec<_> = sent.iter().map(|p| p.headers.opcode).collect();
    let middle = O::UcSendMiddle;
    let expected =
        [O::UcSendFirst, middle, middle, O::UcSendLast, O::UcWriteFirst, O::UcWriteLastImm, O::UcSendOnlyImm];
    assert_eq!(opcodes, expected);
    assert!(sent.iter().all(|p| !p.headers.ack_req), "{sent:?}");
    assert_eq!(psns(&sent), (SQ..SQ + 7).collect::<Vec<_>>());
    assert_eq!((sent[4].headers.reth.length as usize, sent[5].headers.imm), (MTU + 1, 5));
    assert_eq!((b.qp.poll_timeout(), b.qp.sends_outstanding()), (None, 0));
    assert_eq!(b.qp.unacked_psn(), b.qp.next_psn());
}

#[test]
fn reads_atomics_and_invalidation_are_not_for_unreliable_connections() {
    let mut b = uc().rts();
    let remote = REMOTE;
    for operation in [
        READ,
        ADD,
        Operation::CompareSwap { remote, compare: 0, swap: 0 },
        Operation::Send { imm: None, invalidate: Some(1) },
        Operation::AtomicWrite { remote },
        Operation::Flush { remote, len: 1, flush: crate::work::FlushKind::default() },
    ] {
        let wr = SendWr::new(1, operation, local(0, 8));
        let refused = PostError::Unsupported { operation: operation.name(), qp_type: QpType::Uc };
        assert_eq!(b.qp.post_send(wr, &mut b.host), Err(refused));
    }
    for opcode in [Opcode::RcSendOnly, Opcode::RcReadRequest, Opcode::RcAcknowledge, Opcode::UdSendOnly] {
        assert_eq!(b.feed(&request(opcode, RQ, &[])), Err(PacketDrop::Service));
    }
    assert_eq!((b.sent(), b.notes()), (NONE, vec![]));
}

#[test]
fn receives_may_come_from_a_shared_queue() {
    let mut b = Setup { has_srq: true, ..uc() }.rts();
    assert_eq!(b.feed(&only(RQ, b"x")), Err(PacketDrop::NoReceive));
    for id in [1, 2] {
        b.host.shared.push_back(RecvWr { wr_id: id, data: local(0, 300).into() });
    }
    b.host.shared_pd = Some(PD);
    let [first, ..] = &four_packets(RQ + 1, 1)[..] else { panic!() };
    b.take(first);
    b.take(&only(RQ + 9, b"y"));
    assert_eq!(b.notes(), [received(1)], "the one that the dropped message had consumed");
    assert_eq!((b.host.shared.len(), b.host.xrc_completions), (1, 0));
}

/// The receive left by a dropped message is flushed with the rest, first and once.
#[test]
fn the_receive_of_a_dropped_message_is_flushed() {
    for dropped in [false, true] {
        let mut b = with_receives();
        b.take(&four_packets(RQ, 1)[0]);
        if dropped {
            assert_eq!(b.feed(&request(Opcode::UcSendLast, RQ + 5, &[1])), LOST);
        }
        assert_eq!(b.qp.recvs_outstanding(), 1);
        b.modify(&QpAttr::to_state(QpState::Err));
        let flushed = |id| Note::Received(id, WcStatus::WrFlushErr);
        assert_eq!(b.notes(), [flushed(1), flushed(2)]);
    }
    // While a WRITE is in progress.
    let mut b = with_receives();
    b.take(&four_packets(RQ, 1)[0]);
    b.take(&rdma(Opcode::UcWriteFirst, RQ + 1, START, KEY, 2 * MTU, &[1; MTU]));
    b.modify(&QpAttr::to_state(QpState::Err));
    assert_eq!(b.notes().len(), 2);
}

/// 11.6.3.2: as for RC.
#[test]
fn communication_established_is_reported_once() {
    let mut b = uc().rtr();
    b.post_recv(1, &[]);
    b.take(&only(RQ, b""));
    b.take(&rdma(Opcode::UcWriteOnly, RQ + 1, START, KEY, 0, &[]));
    assert_eq!(b.notes(), [Note::Event(QpEvent::CommunicationEstablished), received(1)]);
}
