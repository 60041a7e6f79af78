//! What the requester sends, and how responses complete work requests.

use super::*;

fn headers(opcode: Opcode, psn: u32) -> Headers {
    Headers { ack_req: opcode.info().position.ends(), ..Headers::new(opcode, PEERS, Psn::new(psn)) }
}

fn success(id: u64) -> Note {
    Note::Sent(id, WcStatus::Success)
}

fn filled(setup: &Setup) -> Bench {
    let mut b = setup.rts();
    b.host.bytes(LOCAL).copy_from_slice(&pattern(REGION_LEN));
    b
}

#[test]
fn messages_are_cut_at_the_mtu() {
    use Opcode as O;
    for (len, opcodes) in [
        (0, &[O::RcSendOnly][..]),
        (1, &[O::RcSendOnly]),
        (MTU, &[O::RcSendOnly]),
        (MTU + 1, &[O::RcSendFirst, O::RcSendLast]),
        (3 * MTU, &[O::RcSendFirst, O::RcSendMiddle, O::RcSendLast]),
    ] {
        let mut b = filled(&Setup::default());
        b.post(1, SEND, &[local(5, len)]);
        let data = &pattern(REGION_LEN)[5..5 + len];
        let mut pieces: Vec<&[u8]> = data.chunks(MTU).collect();
        pieces.resize(opcodes.len(), &[]);
        let expected: Vec<_> = opcodes
            .iter()
            .zip(pieces)
            .enumerate()
            .map(|(i, (opcode, piece))| Out::new(headers(*opcode, SQ + i as u32), piece))
            .collect();
        assert_eq!(b.sent(), expected);
        assert_eq!(b.qp.counters().sent_bytes as usize, len);
        assert_eq!(b.qp.counters().rdma_sends, 1);
    }
}

#[test]
fn payloads_are_gathered_from_odd_pieces() {
    let mut b = filled(&Setup::default());
    let pieces = [local(3, 1), local(100, 0), local(77, 2 * MTU), local(9, 255)];
    b.post(1, SEND, &pieces);
    let sent: Vec<u8> = b.sent().into_iter().flat_map(|p| p.payload).collect();
    let expected: Vec<u8> = pieces.iter().flat_map(|p| b.host.behind(*p).to_vec()).collect();
    assert_eq!(sent, expected);
}

#[test]
fn inline_data_is_that_of_the_request() {
    let mut b = Setup::default().rts();
    let data = Gather::Inline(pattern(64).into());
    let wr = SendWr::new(1, WRITE, data);
    b.qp.post_send(wr, &mut b.host).unwrap();
    let mut expected = headers(Opcode::RcWriteOnly, SQ);
    expected.reth = RethFields { va: REMOTE.addr, rkey: REMOTE.rkey, length: 64 };
    assert_eq!(b.sent(), [Out::new(expected, &pattern(64))]);
}

#[test]
fn a_write_names_its_target_once() {
    let mut b = filled(&Setup::default());
    let operation = Operation::Write { remote: REMOTE, imm: Some(99) };
    b.post(1, operation, &[local(0, 2 * MTU + 1)]);
    let mut first = headers(Opcode::RcWriteFirst, SQ);
    first.reth = RethFields { va: REMOTE.addr, rkey: REMOTE.rkey, length: 2 * MTU as u32 + 1 };
    let mut last = headers(Opcode::RcWriteLastImm, SQ + 2);
    last.imm = 99;
    let data = pattern(2 * MTU + 1);
    let expected = [
        Out::new(first, &data[..MTU]),
        Out::new(headers(Opcode::RcWriteMiddle, SQ + 1), &data[MTU..2 * MTU]),
        Out::new(last, &data[2 * MTU..]),
    ];
    assert_eq!(b.sent(), expected);
}

/// A READ is one packet that takes as many PSNs as its response.
#[test]
fn reads_and_atomics() {
    let mut b = Setup::default().rts();
    b.post(1, READ, &[local(0, 1000)]);
    b.post(2, ADD, &[local(2000, 8)]);
    let swap = Operation::CompareSwap { remote: REMOTE, compare: 5, swap: 6 };
    b.post(3, swap, &[local(2008, 8)]);
    let mut read = headers(Opcode::RcReadRequest, SQ);
    read.reth = RethFields { va: REMOTE.addr, rkey: REMOTE.rkey, length: 1000 };
    let atomic = |opcode, psn, swap_add, compare| {
        let mut h = headers(opcode, psn);
        h.atomic = AtomicFields { va: REMOTE.addr, rkey: REMOTE.rkey, swap_add, compare };
        Out::new(h, &[])
    };
    let expected = [
        Out::new(read, &[]),
        atomic(Opcode::RcFetchAdd, SQ + 4, 1, 0),
        atomic(Opcode::RcCompareSwap, SQ + 5, 6, 5),
    ];
    assert_eq!(b.sent(), expected);
    read_responses(OURS, SQ, 1, &pattern(1000)).iter().for_each(|p| b.take(p));
    assert_eq!(b.host.behind(local(0, 1000)), pattern(1000));
    assert_eq!(b.notes(), [success(1)]);
    // Big-endian on the wire, host byte order in memory.
    b.take(&atomic_answer(SQ + 4, 0x0102_0304_0506_0708));
    b.take(&atomic_answer(SQ + 5, 7));
    assert_eq!(b.host.behind(local(2000, 8)), 0x0102_0304_0506_0708u64.to_ne_bytes());
    assert_eq!(b.notes(), [success(2), success(3)]);
    let kinds: Vec<_> = b.host.sends.iter().map(|c| (c.opcode, c.byte_len)).collect();
    assert_eq!(kinds, [(WcOpcode::RdmaRead, 1000), (WcOpcode::FetchAdd, 8), (WcOpcode::CompSwap, 8)]);
    assert_eq!(b.qp.poll_timeout(), None);
}

/// A READ reports the number of bytes it requested, including zero.
#[test]
fn a_read_of_nothing_completes_with_no_bytes() {
    let mut b = Setup::default().rts();
    b.post(1, READ, &[]);
    assert_eq!(b.sent()[0].headers.reth.length, 0);
    read_responses(OURS, SQ, 1, &[]).iter().for_each(|p| b.take(p));
    assert_eq!(b.notes(), [success(1)]);
    assert_eq!((b.host.sends[0].opcode, b.host.sends[0].byte_len), (WcOpcode::RdmaRead, 0));
}

/// The solicited bit is set on the last packet of a SEND and of a WRITE with immediate, nowhere else.
#[test]
fn solicited_bits() {
    let with_imm = Operation::Write { remote: REMOTE, imm: Some(1) };
    for (operation, carries) in [(SEND, true), (with_imm, true), (WRITE, false), (READ, false)] {
        let mut b = Setup::default().rts();
        b.post_with(1, operation, &[local(0, MTU + 1)], SendFlags::SOLICITED);
        let sent = b.sent();
        let last = sent.len() - 1;
        for (i, packet) in sent.iter().enumerate() {
            assert_eq!(packet.headers.solicited, carries && i == last, "{packet:?}");
        }
    }
}

/// 9.7.5.1.2: an acknowledgement answers everything sent before it.
#[test]
fn an_acknowledgement_retires_everything_up_to_its_psn() {
    let mut b = Setup::default().rts();
    for id in 1..=4 {
        let flags = if id == 2 { SendFlags::empty() } else { SendFlags::SIGNALED };
        b.post_with(id, SEND, &[local(0, MTU + 1)], flags);
    }
    b.sent();
    b.take(&acked(SQ + 4));
    assert_eq!(b.notes(), [success(1)], "the second is not signalled, the third is half done");
    assert_eq!(b.qp.unacked_psn(), Psn::new(SQ + 5));
    b.take(&acked(SQ + 7));
    assert_eq!(b.notes(), [success(3), success(4)]);
    assert_eq!(b.qp.sends_outstanding(), 0);
    assert_eq!(b.qp.poll_timeout(), None);
}

#[test]
fn sq_sig_all_signals_everything() {
    let mut b = Setup { sq_sig_all: true, ..Setup::default() }.rts();
    b.post_with(1, WRITE, &[], SendFlags::empty());
    b.sent();
    b.take(&acked(SQ));
    assert_eq!(b.notes(), [success(1)]);
}

/// 9.7.5.1.3: a response that matches no outstanding request is ignored.
#[test]
fn ghost_answers_are_ignored() {
    let mut b = Setup::default().rts();
    assert_eq!(b.feed(&acked(SQ)), Err(PacketDrop::Ghost), "nothing was sent");
    b.post(1, SEND, &[local(0, 2 * MTU)]);
    b.post(2, SEND, &[]);
    b.sent();
    b.take(&acked(SQ));
    for ghost in [acked(SQ), acked(SQ - 1), acked(SQ + 3), refused(0x62, SQ), refused(0x60, SQ + 3)] {
        assert_eq!(b.feed(&ghost), Err(PacketDrop::Ghost), "{ghost:?}");
    }
    for alien in [atomic_answer(SQ + 1, 3), read_responses(OURS, SQ + 1, 1, &[1; 4])[0].clone()] {
        assert_eq!(b.feed(&alien), Err(PacketDrop::Ghost), "{alien:?}");
    }
    assert_eq!(b.qp.counters().ghost_responses, 8);
    assert_eq!((b.qp.state(), b.notes()), (QpState::Rts, vec![]));
    assert_eq!(b.sent(), NONE);
    b.take(&acked(SQ + 2));
    assert_eq!(b.notes(), [success(1), success(2)]);
}

#[test]
fn reserved_syndromes_are_dropped() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[]);
    b.sent();
    for syndrome in [0x40, 0x65, 0x80] {
        assert_eq!(b.feed(&refused(syndrome, SQ)), Err(PacketDrop::ReservedSyndrome));
    }
    assert_eq!(b.qp.state(), QpState::Rts);
}

/// The peer's NAKs, the resulting statuses, and C9-220: the failed request completes with the error even if it is
/// not signalled, then all others are flushed in order.
#[test]
fn refusals_become_statuses() {
    for (code, status) in [
        (0x61, WcStatus::RemInvReqErr),
        (0x62, WcStatus::RemAccessErr),
        (0x63, WcStatus::RemOpErr),
        (0x64, WcStatus::RemInvReqErr),
    ] {
        let mut b = Setup::default().rts();
        b.post_recv(7, &[]);
        b.post_recv(8, &[]);
        for id in 1..=4 {
            b.post_with(id, WRITE, &[local(0, MTU + 1)], SendFlags::empty());
        }
        b.sent();
        // The first is answered implicitly, the second failed.
        b.take(&refused(code, SQ + 2));
        let flushed = WcStatus::WrFlushErr;
        let expected = [
            Note::Sent(2, status),
            Note::Sent(3, flushed),
            Note::Sent(4, flushed),
            Note::Received(7, flushed),
            Note::Received(8, flushed),
        ];
        assert_eq!(b.notes(), expected);
        assert_eq!((b.qp.state(), b.sent(), b.qp.poll_timeout()), (QpState::Err, NONE, None));
        assert_eq!(b.qp.failure().unwrap().psn, Psn::new(SQ + 2));
        assert_eq!(b.feed(&acked(SQ + 3)), Err(PacketDrop::State));
        let c = b.qp.counters();
        assert_eq!((c.req_cqe_error, c.req_cqe_flush_error, c.resp_cqe_flush_error), (1, 2, 2));
        let invalid = u64::from(status == WcStatus::RemInvReqErr);
        let forbidden = u64::from(status == WcStatus::RemAccessErr);
        assert_eq!((c.req_remote_invalid_request, c.req_remote_access_errors), (invalid, forbidden));
    }
}

/// A NAK for a READ, at its start and in its middle.
#[test]
fn a_refused_read() {
    for got in [0, 2] {
        let mut b = Setup::default().rts();
        b.post(1, READ, &[local(0, 4 * MTU)]);
        b.sent();
        let responses = read_responses(OURS, SQ, 1, &pattern(4 * MTU));
        responses[..got].iter().for_each(|p| b.take(p));
        b.take(&refused(0x62, SQ + got as u32));
        assert_eq!(b.notes(), [Note::Sent(1, WcStatus::RemAccessErr)]);
        assert_eq!(b.qp.counters().req_remote_access_errors, 1);
    }
}

/// 10.8.3.3: a fence waits for earlier READs and atomics, and for nothing else.
#[test]
fn a_fence_waits_for_reads_and_atomics_only() {
    for (before, waits) in [(READ, true), (ADD, true), (WRITE, false), (SEND, false)] {
        let mut b = Setup::default().rts();
        b.post(1, before, &[local(0, 8)]);
        b.post_with(2, SEND, &[], SendFlags::FENCE);
        b.post(3, SEND, &[]);
        assert_eq!(b.sent().len(), if waits { 1 } else { 3 });
        match before {
            READ => b.take(&read_responses(OURS, SQ, 1, &[0; 8])[0]),
            ADD => b.take(&atomic_answer(SQ, 1)),
            _ => continue,
        }
        assert_eq!(psns(&b.sent()), [SQ + 1, SQ + 2]);
    }
}

/// 9.7.4.1.5 on the requester's side: at most max_rd_atomic READs and atomics are outstanding; later requests wait
/// too.
#[test]
fn max_rd_atomic_is_obeyed() {
    let mut b = Setup { max_rd_atomic: 2, ..Setup::default() }.rts();
    b.post(1, READ, &[local(0, 2 * MTU)]);
    b.post(2, ADD, &[local(0, 8)]);
    b.post(3, READ, &[local(0, 8)]);
    b.post(4, SEND, &[]);
    assert_eq!(psns(&b.sent()), [SQ, SQ + 2]);
    let responses = read_responses(OURS, SQ, 1, &[1; 2 * MTU]);
    b.take(&responses[0]);
    assert_eq!(b.sent(), NONE, "half a READ counts as a READ");
    b.take(&responses[1]);
    assert_eq!(psns(&b.sent()), [SQ + 3, SQ + 4]);
    b.take(&atomic_answer(SQ + 2, 0));
    b.take(&read_responses(OURS, SQ + 3, 1, &[0; 8])[0]);
    b.take(&acked(SQ + 4));
    assert_eq!(b.notes(), [1, 2, 3, 4].map(success));
}

#[test]
fn without_initiator_depth_there_are_no_reads() {
    let mut b = Setup { max_rd_atomic: 0, ..Setup::default() }.rts();
    b.post(1, SEND, &[]);
    b.post_with(2, READ, &[local(0, 8)], SendFlags::empty());
    assert_eq!(psns(&b.sent()), [SQ]);
    b.take(&acked(SQ));
    assert_eq!(b.notes(), [success(1), Note::Sent(2, WcStatus::LocQpOpErr)]);
    assert_eq!(b.qp.failure().unwrap().status, WcStatus::LocQpOpErr);
}

#[test]
fn local_errors_wait_for_what_was_sent_before() {
    let bad_key = Sge { addr: LOCAL_START, length: 8, lkey: 7 };
    let huge = [Sge { addr: 0, length: u32::MAX, lkey: LOCAL }; 2];
    for (operation, sges, status) in [
        (SEND, &[bad_key][..], WcStatus::LocProtErr),
        (WRITE, &[local(0, 8), bad_key], WcStatus::LocProtErr),
        (SEND, &huge, WcStatus::LocLenErr),
        (ADD, &[local(0, 7)], WcStatus::LocLenErr),
    ] {
        let mut b = Setup::default().rts();
        b.post(1, WRITE, &[]);
        b.post_with(2, operation, sges, SendFlags::empty());
        b.post(3, SEND, &[]);
        assert_eq!(psns(&b.sent()), [SQ]);
        assert_eq!((b.qp.state(), b.notes()), (QpState::Rts, vec![]));
        b.take(&acked(SQ));
        let expected = [success(1), Note::Sent(2, status), Note::Sent(3, WcStatus::WrFlushErr)];
        assert_eq!(b.notes(), expected);
        assert_eq!(b.host.sends[1].opcode, operation.wc_opcode());
        assert_eq!(b.qp.failure().unwrap().status, status);
    }
}

/// The payload of a later packet cannot be read: the message sent so far stays incomplete.
#[test]
fn a_local_error_in_the_middle_of_a_message() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[local(REGION_LEN as u64 - MTU as u64, MTU), Sge { lkey: 7, ..local(0, 1) }]);
    assert_eq!(psns(&b.sent()), [SQ]);
    assert_eq!(b.notes(), [Note::Sent(1, WcStatus::LocProtErr)]);
    assert_eq!(b.host.sends[0].vendor_err, 1);
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn results_that_cannot_be_stored_are_a_protection_error() {
    for (operation, answer) in
        [(READ, read_responses(OURS, SQ, 1, &[0; 8])[0].clone()), (ADD, atomic_answer(SQ, 1))]
    {
        let mut b = Setup::default().rts();
        b.host.register(5, 0, 8, Access::empty());
        b.post(1, operation, &[Sge { addr: 0, length: 8, lkey: 5 }]);
        b.sent();
        b.take(&answer);
        assert_eq!(b.notes(), [Note::Sent(1, WcStatus::LocProtErr)]);
        assert_eq!((b.host.sends[0].vendor_err, b.qp.state()), (3, QpState::Err));
    }
}

/// Responses that no correct peer sends.
#[test]
fn malformed_read_responses_are_bad_responses() {
    let answer = |opcode, len: usize| vec![answer(OURS, opcode, SQ, ACK, 1, &vec![1; len])];
    for (what, responses) in [
        ("too short", answer(Opcode::RcReadResponseFirst, MTU - 4)),
        ("too long", answer(Opcode::RcReadResponseFirst, MTU + 4)),
        ("all in one packet", answer(Opcode::RcReadResponseOnly, MTU + 1)),
        ("no end", {
            let mut all = read_responses(OURS, SQ, 1, &[1; MTU + 1]);
            all[1].headers.opcode = Opcode::RcReadResponseMiddle;
            all
        }),
    ] {
        let mut b = Setup::default().rts();
        b.post(1, READ, &[local(0, MTU + 1)]);
        b.sent();
        responses.iter().for_each(|p| b.take(p));
        assert_eq!(b.notes(), [Note::Sent(1, WcStatus::BadRespErr)], "{what}");
        assert!(b.host.behind(local(MTU as u64, 1)).iter().all(|b| *b == 0), "{what}");
    }
}

/// Data arrives with an ACK or not at all.
#[test]
fn data_with_a_nak_is_a_bad_response() {
    let data = |opcode, psn, syndrome, len: usize| answer(OURS, opcode, psn, syndrome, 1, &vec![1; len]);
    for (operation, responses) in [
        (READ, vec![data(Opcode::RcReadResponseOnly, SQ, 0x62, 8)]),
        (ADD, vec![data(Opcode::RcAtomicAcknowledge, SQ, 0x60, 0)]),
    ] {
        let mut b = Setup::default().rts();
        b.post(1, operation, &[local(0, 8)]);
        b.sent();
        responses.iter().for_each(|p| b.take(p));
        assert_eq!(b.notes(), [Note::Sent(1, WcStatus::BadRespErr)]);
        assert_eq!(b.host.behind(local(0, 8)), [0; 8]);
    }
}

/// The largest READ with the smallest MTU takes half of all PSNs. It is split even without a configured limit,
/// because with half of the PSN space in flight, old and new PSNs are indistinguishable.
#[test]
fn the_largest_read_leaves_room_on_the_circle() {
    let mut b = Setup::default().rts();
    b.post(1, READ, &[Sge { addr: LOCAL_START, length: 1 << 31, lkey: LOCAL }]);
    let sent = b.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].psn(), sent[0].headers.reth.length), (SQ, 1 << 30));
    b.take(&read_responses(OURS, SQ, 1, &[1; 2 * MTU])[0]);
    let [next] = &b.sent()[..] else { panic!("one more piece") };
    assert_eq!((next.psn(), next.headers.reth.length), (SQ + (1 << 22), 1 << 30));
}

/// `budget` bounds the packets put in flight, including responses to READs. The requester asks for an
/// acknowledgement well before the budget runs out and again at its end, because only an answer brings new budget.
#[test]
fn the_budget_is_respected() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[local(0, 8 * MTU)]);
    b.post(2, READ, &[local(0, 5 * MTU)]);
    let mut budget = 3;
    let sent = b.poll(64, &mut budget);
    assert_eq!(sent.iter().map(|p| p.headers.ack_req).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(budget, 0);
    assert_eq!(b.poll(64, &mut budget), NONE);
    assert!(b.qp.wants_to_transmit());
    budget = 7;
    let sent = b.poll(2, &mut budget);
    assert_eq!(psns(&sent), [SQ + 3, SQ + 4, SQ + 5, SQ + 6, SQ + 7, SQ + 8]);
    let asked: Vec<_> = sent.iter().map(|p| p.headers.ack_req).collect();
    assert_eq!(asked, [false, false, false, true, true, true]);
    assert_eq!(sent[5].headers.reth.length as usize, 2 * MTU, "a READ as large as the budget");
    budget = 100;
    let sent = b.poll(64, &mut budget);
    assert_eq!(psns(&sent), [SQ + 10]);
    assert_eq!(sent[0].headers.reth.va, REMOTE.addr + 2 * MTU as u64);
    assert_eq!(budget, 97);
}

#[test]
fn answers_need_no_budget_for_requests() {
    let mut b = Setup::default().rts();
    b.take(&read(RQ, 0, 3 * MTU));
    assert_eq!(b.poll(64, &mut 0).len(), 3);
}

/// READ responses have a budget of their own, and answers queued after one wait with it. Acknowledgements need no
/// budget.
#[test]
fn the_budget_of_answers_is_respected() {
    let mut b = Setup::default().rts();
    let send = |b: &mut Bench, budget: &mut Budget| {
        let mut buf = [0; 8 * (MTU + 64)];
        let mut train = Train::new(&mut buf, Bench::flow(), 64);
        let more = b.qp.poll_transmit(b.now, &mut train, budget, &mut b.host);
        (train.packets(), more)
    };
    b.take(&read(RQ, 0, 3 * MTU));
    assert_eq!(send(&mut b, &mut Budget::none()), (0, true));
    let mut two = Budget { requests: 0, responses: 2 };
    assert_eq!(send(&mut b, &mut two), (2, true));
    assert_eq!(two, Budget::none());
    assert_eq!(send(&mut b, &mut Budget { requests: 0, responses: 5 }), (1, false));
    b.take(&rdma(Opcode::RcWriteOnly, RQ + 3, START, KEY, 0, &[]));
    assert_eq!(send(&mut b, &mut Budget::none()), (1, false), "an acknowledgement");
}

#[test]
fn an_acknowledgement_is_asked_for_now_and_then() {
    let tuning = Tuning { ack_interval: 4, ..Setup::default().tuning };
    let mut b = Setup { tuning, ..Setup::default() }.rts();
    b.post(1, SEND, &[local(0, 10 * MTU)]);
    let asked: Vec<_> = b.sent().iter().filter(|p| p.headers.ack_req).map(Out::psn).collect();
    assert_eq!(asked, [SQ + 3, SQ + 7, SQ + 9]);
}

#[test]
fn a_long_read_is_asked_for_in_pieces() {
    let tuning = Tuning { read_chunk: 2 * MTU as u32, ..Setup::default().tuning };
    let mut b = Setup { tuning, max_rd_atomic: 2, ..Setup::default() }.rts();
    let data = pattern(5 * MTU + 9);
    b.post(1, READ, &[local(0, data.len())]);
    let pieces = |sent: Vec<Out>| -> Vec<_> {
        sent.iter().map(|p| (p.psn() - SQ, p.headers.reth.va - REMOTE.addr, p.headers.reth.length)).collect()
    };
    let (mtu, m) = (MTU as u64, MTU as u32);
    assert_eq!(pieces(b.sent()), [(0, 0, 2 * m), (2, 2 * mtu, 2 * m)]);
    assert_eq!(b.qp.requester.reads_asked(), 2);
    let [first, second, third] = [0, 2, 4].map(|p| &data[p * MTU..data.len().min((p + 2) * MTU)]);
    read_responses(OURS, SQ, 1, first).iter().for_each(|p| b.take(p));
    assert_eq!(pieces(b.sent()), [(4, 4 * mtu, m + 9)]);
    read_responses(OURS, SQ + 2, 2, second).iter().for_each(|p| b.take(p));
    assert_eq!(b.notes(), []);
    read_responses(OURS, SQ + 4, 3, third).iter().for_each(|p| b.take(p));
    assert_eq!(b.notes(), [success(1)]);
    assert_eq!(b.qp.requester.reads_asked(), 0);
    assert_eq!(b.host.behind(local(0, data.len())), data);
    assert_eq!(b.host.sends[0].byte_len as usize, data.len());
}

/// An answered piece of a READ makes room for one more request; completing the READ makes room for no further one.
#[test]
fn pieces_of_a_read_count_once_each_against_max_rd_atomic() {
    let tuning = Tuning { read_chunk: 2 * MTU as u32, ..Setup::default().tuning };
    let mut b = Setup { tuning, max_rd_atomic: 2, ..Setup::default() }.rts();
    b.post(1, READ, &[local(0, 4 * MTU)]);
    (2..=4).for_each(|id| b.post(id, READ, &[local(0, 1)]));
    assert_eq!(psns(&b.sent()), [SQ, SQ + 2]);
    let piece = |psn, msn| read_responses(OURS, psn, msn, &[7; 2 * MTU]);
    piece(SQ, 1).iter().for_each(|p| b.take(p));
    assert_eq!(psns(&b.sent()), [SQ + 4]);
    piece(SQ + 2, 2).iter().for_each(|p| b.take(p));
    assert_eq!(psns(&b.sent()), [SQ + 5]);
    b.take(&read_responses(OURS, SQ + 4, 3, &[7])[0]);
    assert_eq!(psns(&b.sent()), [SQ + 6]);
}

#[test]
fn psns_wrap() {
    let mut b = Setup { sq_psn: 0xff_fffe, ..Setup::default() }.rts();
    b.post(1, SEND, &[local(0, 3 * MTU)]);
    b.post(2, READ, &[local(0, 2 * MTU)]);
    assert_eq!(psns(&b.sent()), [0xff_fffe, 0xff_ffff, 0, 1]);
    b.take(&acked(0));
    read_responses(OURS, 1, 1, &[4; 2 * MTU]).iter().for_each(|p| b.take(p));
    assert_eq!(b.notes(), [success(1), success(2)]);
    assert_eq!(b.qp.next_psn(), Psn::new(3));
}

/// An operation that returns data needs registered memory for it. Unsupported operations are refused at once.
#[test]
fn invalid_work_requests_are_refused_when_posted() {
    let mut b = Setup::default().rts();
    let remote = Remote { addr: REMOTE.addr, rkey: REMOTE.rkey };
    let inline = |operation| SendWr::new(1, operation, Gather::Inline(Box::new([0; 8])));
    for operation in [Operation::Read { remote }, Operation::FetchAdd { remote, add: 1 }] {
        let error = b.qp.post_send(inline(operation), &mut b.host).expect_err("no buffer for the result");
        assert!(matches!(error, PostError::InlineResult { .. }), "{error}");
    }
    let to_srq = SendWr::new(1, SEND, Gather::Empty).to(Destination::XrcSrq(7));
    let error = b.qp.post_send(to_srq, &mut b.host).expect_err("RC has no SRQ numbers");
    assert_eq!(
        error.to_string(),
        "a send on RC queue pairs needs no destination: the queue pair is connected to its peer"
    );
    b.qp.post_send(inline(SEND), &mut b.host).expect("an ordinary inline SEND");
}
