//! FLUSH and ATOMIC_WRITE (IBTA annex A19), which an empty READ response answers.

use super::*;
use crate::wire::headers::FethFields;
use crate::work::FlushKind;

const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const INVALID: u8 = 0x61;
const ACCESS: u8 = 0x62;
const GLOBAL: FlushKind = FlushKind { global: true, persistent: false, whole_region: false };

fn success(id: u64) -> Note {
    Note::Sent(id, WcStatus::Success)
}

fn flushable() -> Access {
    all_rights() | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT
}

/// In RTS, with the flush rights on the queue pair and on the target region.
fn target() -> Bench {
    let mut b = Setup { rights: flushable(), ..Setup::default() }.rts();
    b.host.regions[0].access = flushable();
    b
}

fn flush(psn: u32, placement: u8, selectivity: u8, va: u64, rkey: u32, length: usize) -> Out {
    let mut out = rdma(Opcode::RcFlush, psn, va, rkey, length, &[]);
    out.headers.feth = FethFields { placement, selectivity };
    out
}

fn atomic_write(psn: u32, va: u64, data: &[u8]) -> Out {
    rdma(Opcode::RcAtomicWrite, psn, va, KEY, data.len(), data)
}

/// The empty READ response.
fn placed(dest: Qpn, psn: u32, msn: u32) -> Out {
    answer(dest, Opcode::RcReadResponseOnly, psn, ACK, msn, &[])
}

#[test]
fn a_flush_is_answered_by_an_empty_read_response() {
    let mut b = target();
    b.expect(&flush(RQ, 1, 0, START, KEY, 100), &[placed(PEERS, RQ, 1)]);
    b.expect(&flush(RQ + 1, 2, 0, START, KEY, 100), &[placed(PEERS, RQ + 1, 2)]);
    b.expect(&flush(RQ + 2, 3, 0, START, KEY, 0), &[placed(PEERS, RQ + 2, 3)]);
    // The whole region: address and length are ignored.
    b.expect(&flush(RQ + 3, 1, 1, 0, KEY, 1 << 40), &[placed(PEERS, RQ + 3, 4)]);
    assert_eq!((b.notes(), b.qp.counters().rx_flush_requests), (vec![], 4));
    assert_eq!(b.host.flushes.take(), 4);
}

/// All values of the two FETH fields: 16 placement types, 4 selectivity levels.
#[test]
fn reserved_bits_of_the_feth_are_invalid_requests() {
    for placement in 0..16 {
        for selectivity in 0..4 {
            let mut b = target();
            b.take(&flush(RQ, placement, selectivity, START, KEY, 8));
            let expected = if (1..=3).contains(&placement) && selectivity < 2 {
                (placed(PEERS, RQ, 1), QpState::Rts, vec![])
            } else {
                (nak(INVALID, RQ, 0), QpState::Err, vec![Note::Event(QpEvent::RequestError)])
            };
            assert_eq!((b.sent()[0].clone(), b.qp.state(), b.notes()), expected, "{placement} {selectivity}");
        }
    }
}

#[test]
fn a_flush_needs_the_rights_of_its_placement_type() {
    for (on_qp, on_region, placement, code) in [
        (Access::FLUSH_PERSISTENT, flushable(), 1, INVALID),
        (Access::FLUSH_GLOBAL, flushable(), 2, INVALID),
        (Access::FLUSH_GLOBAL, flushable(), 3, INVALID),
        (flushable(), Access::FLUSH_PERSISTENT, 1, ACCESS),
        (flushable(), Access::FLUSH_GLOBAL, 2, ACCESS),
        (flushable(), Access::FLUSH_GLOBAL, 3, ACCESS),
    ] {
        for selectivity in [0, 1] {
            let mut b = Setup { rights: on_qp, ..Setup::default() }.rts();
            b.host.regions[0].access = on_region;
            b.expect(&flush(RQ, placement, selectivity, START, KEY, 8), &[nak(code, RQ, 0)]);
            assert_eq!((b.qp.state(), b.host.flushes.take()), (QpState::Err, 0));
        }
    }
}

#[test]
fn a_flush_outside_of_registered_memory_is_refused() {
    let end = START + REGION_LEN as u64;
    for offender in [
        flush(RQ, 1, 0, START, 7, 8),
        flush(RQ, 1, 1, START, 7, 8),
        flush(RQ, 1, 0, end - 4, KEY, 8),
        flush(RQ, 1, 0, u64::MAX - 3, KEY, 8),
    ] {
        let mut b = target();
        b.expect(&offender, &[nak(ACCESS, RQ, 0)]);
        assert_eq!(b.notes(), [Note::Event(QpEvent::AccessError)]);
    }
}

#[test]
fn an_atomic_write_stores_eight_bytes() {
    let mut b = target();
    let data = [1, 2, 3, 4, 5, 6, 7, 8];
    b.expect(&atomic_write(RQ, START + 8, &data), &[placed(PEERS, RQ, 1)]);
    assert_eq!(
        b.host.bytes(KEY)[..24],
        [[0; 8], data, [0; 8]].concat(),
        "stored as received, regardless of host byte order"
    );
    assert_eq!((b.notes(), b.qp.counters().rx_write_requests), (vec![], 1));
}

#[test]
fn an_atomic_write_that_breaks_a_rule_stores_nothing() {
    let right = |va, key| rdma(Opcode::RcAtomicWrite, RQ, va, key, 8, &[1; 8]);
    let lengths = |reth, payload: usize| rdma(Opcode::RcAtomicWrite, RQ, START, KEY, reth, &vec![1; payload]);
    let end = START + REGION_LEN as u64;
    for (rule, rights, offender, code) in [
        ("four bytes", all_rights(), lengths(4, 4), INVALID),
        ("no bytes", all_rights(), lengths(0, 0), INVALID),
        ("sixteen bytes", all_rights(), lengths(16, 16), INVALID),
        ("RETH length too large", all_rights(), lengths(16, 8), INVALID),
        ("RETH length too small", all_rights(), lengths(8, 7), INVALID),
        ("misaligned", all_rights(), right(START + 4, KEY), INVALID),
        ("not enabled on the queue pair", Access::REMOTE_ATOMIC, right(START, KEY), INVALID),
        ("unknown key", all_rights(), right(START, 7), ACCESS),
        ("region lacks the right", all_rights(), right(PRIVATE_START, PRIVATE), ACCESS),
        ("beyond the region", all_rights(), right(end, KEY), ACCESS),
        ("address range wraps around", all_rights(), right(u64::MAX - 7, KEY), ACCESS),
    ] {
        let mut b = Setup { rights, ..Setup::default() }.rts();
        b.expect(&offender, &[nak(code, RQ, 0)]);
        assert_eq!(b.qp.state(), QpState::Err, "{rule}");
        for key in [KEY, PRIVATE] {
            assert!(b.host.bytes(key).iter().all(|b| *b == 0), "{rule}");
        }
    }
    // It needs the WRITE rights of the region and of the queue pair, not the right to atomics.
    let mut b = Setup { rights: Access::REMOTE_WRITE, ..Setup::default() }.rts();
    b.host.regions[0].access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    b.expect(&right(START, KEY), &[placed(PEERS, RQ, 1)]);
}

/// oA19-14: a duplicate is answered but not stored again, which could undo later writes. The effect of a FLUSH
/// persists.
#[test]
fn duplicates_are_answered_and_not_executed() {
    let mut b = target();
    b.expect(&atomic_write(RQ, START, &[1; 8]), &[placed(PEERS, RQ, 1)]);
    b.expect(&flush(RQ + 1, 1, 0, START, KEY, 8), &[placed(PEERS, RQ + 1, 2)]);
    b.expect(&atomic_write(RQ + 2, START, &[2; 8]), &[placed(PEERS, RQ + 2, 3)]);
    b.expect(&atomic_write(RQ, START, &[1; 8]), &[placed(PEERS, RQ, 3)]);
    b.expect(&flush(RQ + 1, 1, 0, START, KEY, 8), &[placed(PEERS, RQ + 1, 3)]);
    assert_eq!(b.host.bytes(KEY)[..8], [2; 8]);
    assert_eq!(b.qp.counters().duplicate_request, 2);
    // Two duplicates before the answer is sent produce one answer.
    b.take(&atomic_write(RQ, START, &[1; 8]));
    b.take(&atomic_write(RQ, START, &[1; 8]));
    assert_eq!(psns(&b.sent()), [RQ]);
    // A duplicate that would be refused as a new request, and one whose answer is no longer kept.
    b.host.deregister(KEY);
    b.expect(&atomic_write(RQ + 2, START, &[2; 8]), &[placed(PEERS, RQ + 2, 3)]);
    assert_eq!(b.feed(&fetch_add(RQ + 2, START, 1)), Err(PacketDrop::StaleDuplicate));
    assert_eq!(b.feed(&flush(RQ - 1, 1, 0, START, KEY, 8)), Err(PacketDrop::StaleDuplicate));
    assert_eq!((b.sent(), b.qp.state()), (NONE, QpState::Rts));
}

/// Each gets a response of its own, so they count towards the outstanding READs and atomics.
#[test]
fn they_count_against_max_dest_rd_atomic() {
    let mut b = Setup { max_dest_rd_atomic: 2, rights: flushable(), ..Setup::default() }.rts();
    b.host.regions[0].access = flushable();
    b.take(&atomic_write(RQ, START, &[1; 8]));
    b.take(&flush(RQ + 1, 1, 0, START, KEY, 8));
    b.take(&atomic_write(RQ + 2, START, &[2; 8]));
    assert_eq!(b.sent(), [placed(PEERS, RQ, 1), placed(PEERS, RQ + 1, 2), nak(INVALID, RQ + 2, 2)]);
    assert_eq!(b.host.bytes(KEY)[..8], [1; 8]);
}

/// A FLUSH follows earlier writes, and its answer follows those of earlier READs.
#[test]
fn answers_keep_the_order_of_the_requests() {
    let mut b = target();
    b.take(&rdma(Opcode::RcWriteOnly, RQ, START, KEY, 1, &[7]));
    b.take(&read(RQ + 1, 0, MTU + 1));
    b.take(&flush(RQ + 3, 1, 0, START, KEY, 1));
    b.take(&atomic_write(RQ + 4, START + 4096, &[1; 8]));
    assert_eq!(psns(&b.sent()), [RQ, RQ + 1, RQ + 2, RQ + 3, RQ + 4]);
}

#[test]
fn requests_carry_the_operands_of_the_work_request() {
    let mut b = Setup::default().rts();
    b.host.bytes(LOCAL)[..8].copy_from_slice(b"8 bytes.");
    let kinds = [
        (GLOBAL, 1, 0),
        (FlushKind { persistent: true, ..FlushKind::default() }, 2, 0),
        (FlushKind { global: true, persistent: true, whole_region: true }, 3, 1),
    ];
    for (id, (flush, ..)) in (0..).zip(kinds) {
        b.post(id, Operation::Flush { remote: REMOTE, len: 1 << 31, flush }, &[local(0, 9)]);
    }
    b.post(3, Operation::AtomicWrite { remote: REMOTE }, &[local(0, 3), local(3, 5)]);
    let sent = b.sent();
    for (i, (_, placement, selectivity)) in kinds.into_iter().enumerate() {
        let mut headers = Headers::new(Opcode::RcFlush, PEERS, Psn::new(SQ + i as u32));
        headers.feth = FethFields { placement, selectivity };
        headers.reth = RethFields { va: REMOTE.addr, rkey: REMOTE.rkey, length: 1 << 31 };
        headers.ack_req = true;
        assert_eq!(sent[i], Out::new(headers, &[]), "no payload, regardless of the buffers given");
    }
    let mut headers = Headers::new(Opcode::RcAtomicWrite, PEERS, Psn::new(SQ + 3));
    headers.reth = RethFields { va: REMOTE.addr, rkey: REMOTE.rkey, length: 8 };
    headers.ack_req = true;
    assert_eq!(sent[3..], [Out::new(headers, b"8 bytes.")]);
    // Inline data works too.
    let wr = SendWr::new(4, Operation::AtomicWrite { remote: REMOTE }, Gather::Inline(Box::new([3; 8])));
    (0..4).for_each(|i| b.take(&placed(OURS, SQ + i, i + 1)));
    b.qp.post_send(wr, &mut b.host).unwrap();
    assert_eq!(b.sent()[0].payload, [3; 8]);
    let done: Vec<_> = b.host.sends.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
    let flush = WcOpcode::Flush;
    assert_eq!(done, [(0, flush, 0), (1, flush, 0), (2, flush, 0), (3, WcOpcode::AtomicWrite, 0)]);
}

/// A response also answers earlier requests; one that skips an unanswered FLUSH shows that its response was lost.
#[test]
fn lost_answers_are_asked_for_again() {
    for operation in [
        Operation::AtomicWrite { remote: REMOTE },
        Operation::Flush { remote: REMOTE, len: 8, flush: GLOBAL },
    ] {
        let mut b = Setup::default().rts();
        b.post(1, WRITE, &[]);
        b.post(2, operation, &[local(0, 8)]);
        b.post(3, WRITE, &[]);
        let sent = b.sent();
        b.take(&acked(SQ + 2));
        assert_eq!((b.notes(), b.qp.counters().implied_nak_seq_err), (vec![success(1)], 1));
        assert_eq!(b.sent(), sent[1..]);
        b.sleep(TIMEOUT);
        assert_eq!(b.sent(), sent[1..]);
        b.take(&placed(OURS, SQ + 1, 2));
        b.take(&acked(SQ + 2));
        assert_eq!(b.notes(), [success(2), success(3)]);
        assert_eq!(b.feed(&placed(OURS, SQ + 1, 2)), Err(PacketDrop::Ghost));
        // A duplicate of the response does not answer the next request.
        b.post(4, operation, &[local(0, 8)]);
        assert_eq!(psns(&b.sent()), [SQ + 3]);
        assert_eq!(b.feed(&placed(OURS, SQ + 1, 2)), Err(PacketDrop::Ghost));
        assert_eq!((b.notes(), b.qp.counters().ghost_responses), (vec![], 2));
    }
}

/// Responses that no correct peer sends.
#[test]
fn other_answers_are_bad_responses() {
    let answers = [
        ("data", answer(OURS, Opcode::RcReadResponseOnly, SQ, ACK, 1, &[1; 8])),
        ("a First", answer(OURS, Opcode::RcReadResponseFirst, SQ, ACK, 1, &[1; MTU])),
        ("a Middle", answer(OURS, Opcode::RcReadResponseMiddle, SQ, ACK, 1, &[1; MTU])),
        ("a Last", answer(OURS, Opcode::RcReadResponseLast, SQ, ACK, 1, &[1])),
        ("a NAK syndrome", answer(OURS, Opcode::RcReadResponseOnly, SQ, 0x62, 1, &[])),
    ];
    for (what, response) in answers {
        let mut b = Setup::default().rts();
        b.post(1, Operation::AtomicWrite { remote: REMOTE }, &[local(0, 8)]);
        b.sent();
        b.take(&response);
        assert_eq!(b.notes(), [Note::Sent(1, WcStatus::BadRespErr)], "{what}");
    }
    // An atomic response, and an ACK, which shows that the data was lost.
    let mut b = Setup::default().rts();
    b.post(1, Operation::AtomicWrite { remote: REMOTE }, &[local(0, 8)]);
    let sent = b.sent();
    assert_eq!(b.feed(&atomic_answer(SQ, 1)), Err(PacketDrop::Ghost));
    b.take(&acked(SQ));
    assert_eq!((b.sent(), b.notes()), (sent, vec![]));
}

#[test]
fn refusals_become_statuses() {
    for (code, status) in [(INVALID, WcStatus::RemInvReqErr), (ACCESS, WcStatus::RemAccessErr)] {
        let mut b = Setup::default().rts();
        b.post_with(1, Operation::Flush { remote: REMOTE, len: 8, flush: GLOBAL }, &[], SendFlags::empty());
        b.sent();
        b.take(&refused(code, SQ));
        assert_eq!(b.notes(), [Note::Sent(1, status)]);
    }
}

/// max_rd_atomic limits them, and a fence waits for them.
#[test]
fn depth_and_fence() {
    let flush = Operation::Flush { remote: REMOTE, len: 8, flush: GLOBAL };
    let write = Operation::AtomicWrite { remote: REMOTE };
    let mut b = Setup { max_rd_atomic: 2, ..Setup::default() }.rts();
    b.post(1, flush, &[]);
    b.post(2, write, &[local(0, 8)]);
    b.post(3, flush, &[]);
    assert_eq!(psns(&b.sent()), [SQ, SQ + 1]);
    b.take(&placed(OURS, SQ, 1));
    assert_eq!(psns(&b.sent()), [SQ + 2]);
    b.post_with(4, SEND, &[], SendFlags::FENCE);
    b.take(&placed(OURS, SQ + 1, 2));
    assert_eq!(b.sent(), NONE);
    b.take(&placed(OURS, SQ + 2, 3));
    assert_eq!(psns(&b.sent()), [SQ + 3]);
    assert_eq!(b.notes(), [1, 2, 3].map(success));
    // Without initiator depth they cannot be sent; nor can an ATOMIC_WRITE whose length is not eight bytes.
    for (depth, operation, len, status) in [
        (0, flush, 0, WcStatus::LocQpOpErr),
        (0, write, 8, WcStatus::LocQpOpErr),
        (1, write, 7, WcStatus::LocLenErr),
        (1, write, 9, WcStatus::LocLenErr),
    ] {
        let mut b = Setup { max_rd_atomic: depth, ..Setup::default() }.rts();
        b.post(1, operation, &[local(0, len)]);
        assert_eq!((b.sent(), b.notes()), (NONE, vec![Note::Sent(1, status)]));
    }
}
