//! What the responder executes, refuses and answers (IBTA 9.7.4, 9.7.5).

use super::*;

const LOC_PROT_ERR: Note = Note::Received(1, WcStatus::LocProtErr);
const OK: Note = Note::Received(1, WcStatus::Success);
const ACCESS_ERROR: Note = Note::Event(QpEvent::AccessError);
const REQUEST_ERROR: Note = Note::Event(QpEvent::RequestError);
/// NAK codes as on the wire.
const SEQUENCE: u8 = 0x60;
const INVALID: u8 = 0x61;
const ACCESS: u8 = 0x62;
const OPERATIONAL: u8 = 0x63;

#[test]
fn a_send_fills_the_receive_and_is_acknowledged() {
    let mut b = Setup::default().rts();
    b.post_recv(1, &[local(0, 300)]);
    b.expect(&request(Opcode::RcSendOnly, RQ, b"hello"), &[ack(RQ, 1)]);
    assert_eq!(b.host.behind(local(0, 6)), b"hello\0");
    let (wc, solicited) = b.host.recvs[0];
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::Success, WcOpcode::Recv));
    assert_eq!((wc.byte_len, wc.qpn, wc.src_qpn, wc.imm()), (5, OURS, PEERS, None));
    assert!(!solicited);
    assert_eq!(b.qp.counters().rdma_recvs, 1);
}

#[test]
fn a_long_send_is_scattered_and_acknowledged_once() {
    let mut b = Setup::default().rts();
    // Boundaries of the elements fall inside packets; one element is empty.
    let pieces = [local(0, 1), local(100, 300), local(500, 0), local(600, 7), local(1000, 1000)];
    b.post_recv(1, &pieces);
    let data = pattern(3 * MTU + 5);
    b.expect(&request(Opcode::RcSendFirst, RQ, &data[..MTU]), &NONE);
    b.expect(&request(Opcode::RcSendMiddle, RQ + 1, &data[MTU..2 * MTU]), &NONE);
    b.expect(&request(Opcode::RcSendMiddle, RQ + 2, &data[2 * MTU..3 * MTU]), &NONE);
    b.expect(&request(Opcode::RcSendLast, RQ + 3, &data[3 * MTU..]), &[ack(RQ + 3, 1)]);
    let stored: Vec<u8> = pieces.iter().flat_map(|p| b.host.behind(*p).to_vec()).collect();
    assert_eq!(stored[..data.len()], data);
    assert!(stored[data.len()..].iter().all(|b| *b == 0), "bytes after the message");
    assert_eq!(b.host.recvs[0].0.byte_len as usize, data.len());
}

#[test]
fn immediate_data_and_solicited_reach_the_completion() {
    let mut b = Setup::default().rts();
    (1..=3).for_each(|id| b.post_recv(id, &[local(0, 300)]));
    let mut with_imm = request(Opcode::RcSendOnlyImm, RQ, b"x");
    with_imm.headers.imm = 0x0102_0304;
    with_imm.headers.solicited = true;
    b.take(&with_imm);
    b.take(&request(Opcode::RcSendOnly, RQ + 1, b""));
    let mut write = rdma(Opcode::RcWriteOnlyImm, RQ + 2, START, KEY, 4, b"data");
    write.headers.imm = 5;
    b.take(&write);
    let [(a, sol), (c, _), (d, _)] = b.host.recvs[..] else { panic!() };
    assert_eq!((a.imm(), sol, a.byte_len), (Some(0x0102_0304), true, 1));
    assert_eq!((c.flags, c.byte_len), (WcFlags::empty(), 0));
    assert_eq!((d.imm(), d.opcode, d.byte_len), (Some(5), WcOpcode::RecvRdmaWithImm, 4));
    assert_eq!(&b.host.bytes(KEY)[..4], b"data");
    // Three unsent ACKs are coalesced into one.
    assert_eq!(b.sent(), [ack(RQ + 2, 3)]);
    assert_eq!(b.qp.counters().ack_deferred, 2);
}

#[test]
fn a_send_with_invalidate_revokes_the_key_before_it_completes() {
    let mut b = Setup::default().rts();
    b.host.windows.push(Window { key: 77, bound_by: Some(OURS) });
    b.post_recv(1, &[local(0, 300)]);
    b.post_recv(2, &[local(0, 300)]);
    let with_inv = |psn| {
        let mut send = request(Opcode::RcSendOnlyInv, psn, b"x");
        send.headers.ieth = 77;
        send
    };
    b.expect(&with_inv(RQ), &[ack(RQ, 1)]);
    assert_eq!(b.notes(), [Note::Invalidated(77), Note::Received(1, WcStatus::Success)]);
    let wc = b.host.recvs[0].0;
    assert_eq!((wc.flags, wc.imm_or_rkey), (WcFlags::WITH_INV, 77));
    // A duplicate invalidates nothing: the key may be in use again.
    b.expect(&with_inv(RQ), &[ack(RQ, 1)]);
    assert_eq!(b.notes(), []);
    // A key that cannot be invalidated ends the connection.
    b.expect(&with_inv(RQ + 1), &[nak(ACCESS, RQ + 1, 1)]);
    assert_eq!(b.host.recvs[1].0.status, WcStatus::LocAccessErr);
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn a_write_changes_just_its_range() {
    let mut b = Setup::default().rts();
    let data = pattern(2 * MTU + 3);
    b.expect(&rdma(Opcode::RcWriteFirst, RQ, START + 10, KEY, data.len(), &data[..MTU]), &NONE);
    b.expect(&request(Opcode::RcWriteMiddle, RQ + 1, &data[MTU..2 * MTU]), &NONE);
    b.expect(&request(Opcode::RcWriteLast, RQ + 2, &data[2 * MTU..]), &[ack(RQ + 2, 1)]);
    let bytes = b.host.bytes(KEY);
    assert_eq!(bytes[10..10 + data.len()], data);
    assert!(bytes[..10].iter().chain(&bytes[10 + data.len()..]).all(|b| *b == 0));
    assert_eq!(b.notes(), [], "a WRITE completes nothing at the target");
    assert_eq!(b.qp.counters().rx_write_requests, 1);
}

#[test]
fn a_long_write_with_immediate_reports_its_whole_length() {
    let mut b = Setup::default().rts();
    b.post_recv(1, &[]);
    let data = pattern(MTU + 1);
    b.take(&rdma(Opcode::RcWriteFirst, RQ, START, KEY, data.len(), &data[..MTU]));
    b.expect(&request(Opcode::RcWriteLastImm, RQ + 1, &data[MTU..]), &[ack(RQ + 1, 1)]);
    let (wc, _) = b.host.recvs[0];
    assert_eq!((wc.byte_len as usize, wc.opcode), (data.len(), WcOpcode::RecvRdmaWithImm));
}

#[test]
fn reads_of_all_sizes() {
    for len in [0, 1, 3, MTU - 1, MTU, MTU + 1, 3 * MTU, 3 * MTU + 2] {
        let mut b = Setup::default().rts();
        let data = pattern(REGION_LEN);
        b.host.bytes(KEY).copy_from_slice(&data);
        let packets = len.div_ceil(MTU).max(1) as u32;
        b.expect(&read(RQ, 9, len), &read_responses(PEERS, RQ, 1, &data[9..9 + len]));
        // The next request has the PSN after the responses, and READs count as messages (C9-148).
        b.post_recv(1, &[]);
        b.expect(&request(Opcode::RcSendOnly, RQ + packets, b""), &[ack(RQ + packets, 2)]);
    }
}

#[test]
fn atomics_return_the_old_value() {
    let mut b = Setup::default().rts();
    b.host.bytes(KEY)[8..16].copy_from_slice(&40u64.to_ne_bytes());
    b.expect(&fetch_add(RQ, START + 8, 2), &[atomic_ack(RQ, 1, 40)]);
    let swap = |psn, compare, swap_add| {
        let mut out = request(Opcode::RcCompareSwap, psn, &[]);
        out.headers.atomic = AtomicFields { va: START + 8, rkey: KEY, swap_add, compare };
        out
    };
    b.expect(&swap(RQ + 1, 41, 7), &[atomic_ack(RQ + 1, 2, 42)]);
    b.expect(&swap(RQ + 2, 42, 9), &[atomic_ack(RQ + 2, 3, 42)]);
    assert_eq!(b.host.bytes(KEY)[8..16], 9u64.to_ne_bytes());
    assert_eq!(b.qp.counters().rx_atomic_requests, 3);
}

/// C9-88: an access of no bytes succeeds with any key and address.
#[test]
fn zero_length_requests_check_no_key() {
    let mut b = Setup::default().rts();
    b.expect(&rdma(Opcode::RcWriteOnly, RQ, u64::MAX, 0xbad, 0, &[]), &[ack(RQ, 1)]);
    let answer = read_responses(PEERS, RQ + 1, 2, &[]);
    b.expect(&rdma(Opcode::RcReadRequest, RQ + 1, u64::MAX, 0xbad, 0, &[]), &answer);
}

/// 9.7.5.1.5: without AckReq no acknowledgement is due, and READ responses keep their order among acknowledgements.
#[test]
fn answers_keep_the_order_of_the_requests() {
    let mut b = Setup::default().rts();
    (1..=3).for_each(|id| b.post_recv(id, &[]));
    let mut quiet = request(Opcode::RcSendOnly, RQ, b"");
    quiet.headers.ack_req = false;
    b.expect(&quiet, &NONE);
    b.take(&request(Opcode::RcSendOnly, RQ + 1, b""));
    b.take(&read(RQ + 2, 0, MTU + 1));
    // At a different address: a READ may see the effect of later requests (10.8.3.3 leaves that to fences).
    b.take(&fetch_add(RQ + 4, START + 4096, 1));
    b.take(&request(Opcode::RcSendOnly, RQ + 5, b""));
    let mut expected = vec![ack(RQ + 1, 2)];
    expected.extend(read_responses(PEERS, RQ + 2, 3, &[0; MTU + 1]));
    expected.extend([atomic_ack(RQ + 4, 4, 0), ack(RQ + 5, 5)]);
    assert_eq!(b.sent(), expected);
}

/// 9.7.5.1.1: the order of PSNs is cyclic.
#[test]
fn psns_of_requests_wrap() {
    let mut b = Setup { rq_psn: 0xff_ffff, ..Setup::default() }.rts();
    b.expect(&read(0xff_ffff, 0, 2 * MTU), &read_responses(PEERS, 0xff_ffff, 1, &[0; 2 * MTU]));
    b.expect(&rdma(Opcode::RcWriteOnly, 1, START, KEY, 0, &[]), &[ack(1, 2)]);
    // Up to half of the PSN space behind is old, the rest is ahead.
    let old = Psn::new(2).minus(1 << 23).value();
    b.expect(&rdma(Opcode::RcWriteOnly, old, START, KEY, 0, &[]), &[ack(1, 2)]);
    b.expect(&rdma(Opcode::RcWriteOnly, old - 1, START, KEY, 0, &[]), &[nak(SEQUENCE, 2, 2)]);
}

/// 9.7.5.2.8: one NAK with the expected PSN, then none until that PSN arrives.
#[test]
fn a_gap_is_reported_once() {
    let mut b = Setup::default().rts();
    let write = |psn| rdma(Opcode::RcWriteOnly, psn, START, KEY, 0, &[]);
    b.take(&write(RQ));
    b.take(&write(RQ + 2));
    assert_eq!(b.sent(), [ack(RQ, 1), nak(SEQUENCE, RQ + 1, 1)]);
    assert_eq!(b.feed(&write(RQ + 3)), Err(PacketDrop::OutOfSequence));
    // A duplicate does not permit another NAK.
    b.expect(&write(RQ), &[ack(RQ, 1)]);
    assert_eq!(b.feed(&write(RQ + 2)), Err(PacketDrop::OutOfSequence));
    assert_eq!(b.sent(), NONE);
    b.expect(&write(RQ + 1), &[ack(RQ + 1, 2)]);
    // The next gap gets a NAK of its own.
    b.expect(&write(RQ + 9), &[nak(SEQUENCE, RQ + 2, 2)]);
    assert_eq!(b.qp.counters().out_of_seq_request, 4);
    assert_eq!(b.notes(), []);
    assert_eq!(b.qp.state(), QpState::Rts);
}

/// 9.7.5.2.8: without a receive the peer gets an RNR NAK, with the PSN of the request and the timer of the QP.
#[test]
fn receiver_not_ready() {
    for shared in [false, true] {
        let mut b = Setup { has_srq: shared, min_rnr_timer: 20, ..Setup::default() }.rts();
        let hello = request(Opcode::RcSendOnly, RQ, b"hello");
        b.expect(&hello, &[nak(0x20 | 20, RQ, 0)]);
        assert_eq!(b.feed(&request(Opcode::RcSendOnly, RQ + 1, b"")), Err(PacketDrop::OutOfSequence));
        b.expect(&hello, &[nak(0x20 | 20, RQ, 0)]);
        if shared {
            b.host.shared.push_back(RecvWr { wr_id: 1, data: local(0, 5).into() });
        } else {
            b.post_recv(1, &[local(0, 5)]);
        }
        b.expect(&hello, &[ack(RQ, 1)]);
        assert_eq!(b.notes(), [OK]);
        assert_eq!((b.qp.counters().out_of_buffer, b.qp.counters().send_rnr_err), (2, 2));
    }
}

/// A WRITE that finds no receive for its immediate data continues where it was, or starts over, once a receive is
/// posted.
#[test]
fn receiver_not_ready_for_an_immediate() {
    let mut b = Setup::default().rts();
    let rnr = |psn, msn| nak(0x20 | 12, psn, msn);
    let only = rdma(Opcode::RcWriteOnlyImm, RQ, START, KEY, 1, b"a");
    b.expect(&only, &[rnr(RQ, 0)]);
    assert_eq!(b.host.bytes(KEY)[0], 0, "nothing is written before the message is known to complete");
    b.post_recv(1, &[]);
    b.expect(&only, &[ack(RQ, 1)]);
    b.expect(&rdma(Opcode::RcWriteFirst, RQ + 1, START, KEY, MTU + 1, &pattern(MTU)), &NONE);
    let last = request(Opcode::RcWriteLastImm, RQ + 2, b"z");
    b.expect(&last, &[rnr(RQ + 2, 1)]);
    b.post_recv(2, &[]);
    b.expect(&last, &[ack(RQ + 2, 2)]);
    assert_eq!(b.host.recvs.len(), 2);
    assert_eq!(b.host.bytes(KEY)[MTU], b'z');
}

/// A request that must be refused: the requests before it, the offender, its NAK, and what the program is notified
/// of.
struct Refused {
    rule: &'static str,
    rights: Access,
    before: Vec<Out>,
    offender: Out,
    nak: Out,
    notes: Vec<Note>,
}

impl Refused {
    fn new(rule: &'static str, offender: Out, code: u8, note: Note) -> Self {
        let nak = nak(code, offender.psn(), 0);
        Self { rule, rights: all_rights(), before: vec![], offender, nak, notes: vec![note] }
    }

    fn after(mut self, packet: Out) -> Self {
        self.before.push(packet);
        self
    }

    fn without(mut self, right: Access) -> Self {
        self.rights -= right;
        self
    }

    /// One receive of 300 bytes is posted, and a second one that shows the flush.
    fn check(mut self) {
        let mut b = Setup { rights: self.rights, max_dest_rd_atomic: 1, ..Setup::default() }.rts();
        b.post_recv(1, &[local(0, 300)]);
        b.post_recv(2, &[local(0, 300)]);
        b.post_with(9, SEND, &[], SendFlags::empty());
        for packet in &self.before {
            b.take(packet);
        }
        b.take(&self.offender);
        // C9-220: then both queues are flushed, each in order.
        self.notes.push(Note::Sent(9, WcStatus::WrFlushErr));
        let taken = matches!(self.notes[0], Note::Received(..));
        let rest = if taken { 2..=2 } else { 1..=2 };
        self.notes.extend(rest.map(|id| Note::Received(id, WcStatus::WrFlushErr)));
        assert_eq!(b.notes(), self.notes, "{}", self.rule);
        assert_eq!(b.qp.state(), QpState::Err, "{}", self.rule);
        assert!(b.qp.failure().is_some(), "{}", self.rule);
        // The NAK is sent although the queue pair is in ERR; nothing else is sent, and nothing is received.
        assert_eq!(b.sent().last(), Some(&self.nak), "{}", self.rule);
        assert_eq!(b.feed(&self.offender), Err(PacketDrop::State));
        assert_eq!(b.sent(), NONE);
        let changed = b.host.bytes(PRIVATE).iter().any(|b| *b != 0);
        assert!(!changed, "{}: memory was touched", self.rule);
    }
}

fn first(psn: u32) -> Out {
    request(Opcode::RcSendFirst, psn, &[1; MTU])
}

fn write_first(length: usize) -> Out {
    rdma(Opcode::RcWriteFirst, RQ, START, KEY, length, &[1; MTU])
}

#[test]
fn opcodes_out_of_sequence_are_invalid_requests() {
    let taken = Note::Received(1, WcStatus::RemInvReqErr);
    let middle = |psn| request(Opcode::RcSendMiddle, psn, &[1; MTU]);
    let last = |psn| request(Opcode::RcSendLast, psn, &[1]);
    let write_last = |psn| request(Opcode::RcWriteLast, psn, &[1]);
    let only = |psn| request(Opcode::RcSendOnly, psn, &[1]);
    for case in [
        Refused::new("Middle without First", middle(RQ), INVALID, REQUEST_ERROR),
        Refused::new("Last without First", last(RQ), INVALID, REQUEST_ERROR),
        Refused::new("WRITE Last without First", write_last(RQ), INVALID, REQUEST_ERROR),
        Refused::new("First in a SEND", first(RQ + 1), INVALID, taken).after(first(RQ)),
        Refused::new("Only in a SEND", only(RQ + 1), INVALID, taken).after(first(RQ)),
        Refused::new("READ in a SEND", read(RQ + 1, 0, 1), INVALID, taken).after(first(RQ)),
        Refused::new("WRITE Last in a SEND", write_last(RQ + 1), INVALID, taken).after(first(RQ)),
        Refused::new("SEND in a WRITE", last(RQ + 1), INVALID, REQUEST_ERROR).after(write_first(300)),
        Refused::new("Only in a WRITE", only(RQ + 1), INVALID, REQUEST_ERROR).after(write_first(300)),
        Refused::new("atomic in a WRITE", fetch_add(RQ + 1, START, 1), INVALID, REQUEST_ERROR)
            .after(write_first(300)),
        Refused::new(
            "ATOMIC_WRITE of four bytes",
            rdma(Opcode::RcAtomicWrite, RQ, START, KEY, 4, &[0; 4]),
            INVALID,
            REQUEST_ERROR,
        ),
        Refused::new(
            "FLUSH with a reserved placement type",
            rdma(Opcode::RcFlush, RQ, START, KEY, 8, &[]),
            INVALID,
            REQUEST_ERROR,
        ),
    ] {
        case.check();
    }
}

#[test]
fn wrong_lengths_are_invalid_requests() {
    let taken = Note::Received(1, WcStatus::RemInvReqErr);
    let send = |opcode, psn, len: usize| request(opcode, psn, &vec![1; len]);
    let write = |opcode, length, len: usize| rdma(opcode, RQ, START, KEY, length, &vec![1; len]);
    let cont = |opcode, len: usize| request(opcode, RQ + 1, &vec![1; len]);
    for case in [
        Refused::new("First shorter than the MTU", send(Opcode::RcSendFirst, RQ, MTU - 4), INVALID, taken),
        Refused::new("First with pad", send(Opcode::RcSendFirst, RQ, MTU - 1), INVALID, taken),
        Refused::new("First longer than the MTU", send(Opcode::RcSendFirst, RQ, MTU + 4), INVALID, taken),
        Refused::new("Only longer than the MTU", send(Opcode::RcSendOnly, RQ, MTU + 1), INVALID, taken),
        Refused::new("short Middle", send(Opcode::RcSendMiddle, RQ + 1, 4), INVALID, taken).after(first(RQ)),
        Refused::new("empty Last", send(Opcode::RcSendLast, RQ + 1, 0), INVALID, taken).after(first(RQ)),
        Refused::new("long Last", send(Opcode::RcSendLast, RQ + 1, MTU + 1), INVALID, taken).after(first(RQ)),
        Refused::new("short WRITE First", write(Opcode::RcWriteFirst, 300, 8), INVALID, REQUEST_ERROR),
        Refused::new("WRITE Only too short", write(Opcode::RcWriteOnly, 9, 8), INVALID, REQUEST_ERROR),
        Refused::new("WRITE Only too long", write(Opcode::RcWriteOnly, 7, 8), INVALID, REQUEST_ERROR),
        Refused::new(
            "First is the whole message",
            write(Opcode::RcWriteFirst, MTU, MTU),
            INVALID,
            REQUEST_ERROR,
        ),
        Refused::new("Last too short", cont(Opcode::RcWriteLast, 3), INVALID, REQUEST_ERROR)
            .after(write_first(MTU + 4)),
        Refused::new("Last too long", cont(Opcode::RcWriteLast, 5), INVALID, REQUEST_ERROR)
            .after(write_first(MTU + 4)),
        Refused::new("Middle beyond the length", cont(Opcode::RcWriteMiddle, MTU), INVALID, REQUEST_ERROR)
            .after(write_first(MTU + 4)),
        Refused::new(
            "WRITE with immediate too short: its receive reports the error",
            rdma(Opcode::RcWriteOnlyImm, RQ, START, KEY, 9, &[1; 8]),
            INVALID,
            taken,
        ),
    ] {
        case.check();
    }
}

/// C9-94: messages are at most 2^31 bytes long.
#[test]
fn messages_beyond_the_limit_are_invalid_requests() {
    let huge = (1 << 31) + 1;
    let write = rdma(Opcode::RcWriteFirst, RQ, START, KEY, huge, &[1; MTU]);
    Refused::new("WRITE of 2^31 + 1", write, INVALID, REQUEST_ERROR).check();
    let read_it = rdma(Opcode::RcReadRequest, RQ, START, KEY, huge, &[]);
    Refused::new("READ of 2^31 + 1", read_it, INVALID, REQUEST_ERROR).check();
    // A length of 2^31 is valid: the request fails the range check instead.
    let write = rdma(Opcode::RcWriteFirst, RQ, START, KEY, 1 << 31, &[1; MTU]);
    Refused::new("WRITE of 2^31", write, ACCESS, ACCESS_ERROR).check();
}

#[test]
fn operations_that_the_queue_pair_does_not_allow_are_invalid_requests() {
    let write = rdma(Opcode::RcWriteOnly, RQ, START, KEY, 1, &[1]);
    Refused::new("WRITE", write, INVALID, REQUEST_ERROR).without(Access::REMOTE_WRITE).check();
    // Even with a length of 0.
    Refused::new("READ", read(RQ, 0, 0), INVALID, REQUEST_ERROR).without(Access::REMOTE_READ).check();
    let add = fetch_add(RQ, START, 1);
    Refused::new("atomic", add, INVALID, REQUEST_ERROR).without(Access::REMOTE_ATOMIC).check();
}

#[test]
fn memory_that_the_peer_may_not_use_is_an_access_error() {
    let write = |va, key, len: usize| rdma(Opcode::RcWriteOnly, RQ, va, key, len, &vec![1; len]);
    let read = |va, key, len| rdma(Opcode::RcReadRequest, RQ, va, key, len, &[]);
    let add = |va, key| {
        let mut out = fetch_add(RQ, va, 1);
        out.headers.atomic.rkey = key;
        out
    };
    let end = START + REGION_LEN as u64;
    for case in [
        Refused::new("WRITE, unknown key", write(START, 7, 1), ACCESS, ACCESS_ERROR),
        Refused::new("WRITE, no right", write(PRIVATE_START, PRIVATE, 1), ACCESS, ACCESS_ERROR),
        Refused::new("WRITE, below", write(START - 1, KEY, 2), ACCESS, ACCESS_ERROR),
        Refused::new("WRITE, beyond", write(end - 1, KEY, 2), ACCESS, ACCESS_ERROR),
        Refused::new("WRITE, range wraps around", write(u64::MAX, KEY, 2), ACCESS, ACCESS_ERROR),
        Refused::new("READ, unknown key", read(START, 7, 1), ACCESS, ACCESS_ERROR),
        Refused::new("READ, no right", read(PRIVATE_START, PRIVATE, 1), ACCESS, ACCESS_ERROR),
        Refused::new("READ, beyond", read(end - 1, KEY, 2), ACCESS, ACCESS_ERROR),
        Refused::new("atomic, unknown key", add(START, 7), ACCESS, ACCESS_ERROR),
        Refused::new("atomic, no right", add(PRIVATE_START, PRIVATE), ACCESS, ACCESS_ERROR),
        Refused::new("atomic, beyond", add(end, KEY), ACCESS, ACCESS_ERROR),
        Refused::new("misaligned atomic", add(START + 4, KEY), INVALID, REQUEST_ERROR),
        Refused::new(
            "WRITE beyond the end, detected at its start",
            rdma(Opcode::RcWriteFirst, RQ, end - MTU as u64, KEY, MTU + 1, &[1; MTU]),
            ACCESS,
            ACCESS_ERROR,
        ),
    ] {
        case.check();
    }
}

/// C9-222.1.1: a receive that the request had consumed reports the error; without one there is an event.
#[test]
fn an_access_error_with_a_receive_completes_it() {
    let write = rdma(Opcode::RcWriteOnlyImm, RQ, START, 7, 1, &[1]);
    Refused::new("WRITE with immediate", write, ACCESS, Note::Received(1, WcStatus::LocAccessErr)).check();
}

#[test]
fn a_send_that_does_not_fit_its_receive() {
    let too_long = Note::Received(1, WcStatus::LocLenErr);
    Refused::new("second packet", request(Opcode::RcSendLast, RQ + 1, &[1; 45]), INVALID, too_long)
        .after(first(RQ))
        .check();
    let mut b = Setup::default().rts();
    b.post_recv(1, &[local(0, 10)]);
    b.expect(&request(Opcode::RcSendOnly, RQ, &[7; 11]), &[nak(INVALID, RQ, 0)]);
    assert_eq!(b.notes()[0], too_long);
    assert_eq!(b.host.behind(local(0, 11)), [0; 11]);
    assert_eq!(b.qp.counters().resp_local_length_error, 1);
}

#[test]
fn a_receive_buffer_that_cannot_be_written_is_an_operational_error() {
    for (sge, code) in [
        (Sge { addr: LOCAL_START, length: 8, lkey: 7 }, 1),
        (Sge { addr: LOCAL_START + REGION_LEN as u64, length: 8, lkey: LOCAL }, 4),
    ] {
        let mut b = Setup::default().rts();
        b.post_recv(1, &[sge]);
        b.expect(&request(Opcode::RcSendOnly, RQ, &[7; 8]), &[nak(OPERATIONAL, RQ, 0)]);
        assert_eq!(b.notes(), [LOC_PROT_ERR]);
        assert_eq!(b.host.recvs[0].0.vendor_err, code);
        assert_eq!(b.qp.state(), QpState::Err);
    }
}

/// 9.7.4.1.5: the peer has more READs and atomics outstanding than the responder permits. Answered requests are not
/// outstanding.
#[test]
fn more_reads_than_max_dest_rd_atomic_are_an_invalid_request() {
    Refused::new("a second READ", read(RQ + 2, 0, 1), INVALID, REQUEST_ERROR)
        .after(read(RQ, 0, 2 * MTU))
        .with_msn(1)
        .check();
    Refused::new("an atomic", fetch_add(RQ + 1, START, 1), INVALID, REQUEST_ERROR)
        .after(read(RQ, 0, 1))
        .with_msn(1)
        .check();
    let mut b = Setup { max_dest_rd_atomic: 1, ..Setup::default() }.rts();
    for psn in RQ..RQ + 5 {
        b.expect(&read(psn, 0, 1), &read_responses(PEERS, psn, 1 + psn - RQ, &[0]));
    }
    let mut b = Setup { max_dest_rd_atomic: 0, ..Setup::default() }.rts();
    b.expect(&read(RQ, 0, 1), &[nak(INVALID, RQ, 0)]);
}

impl Refused {
    fn with_msn(mut self, msn: u32) -> Self {
        self.nak.headers.aeth.msn = msn;
        self
    }
}

/// 9.7.4.1.5: the key is looked up for every packet; revoking it in the middle of a READ ends the READ.
#[test]
fn a_region_that_is_revoked_in_the_middle_of_a_read() {
    let mut b = Setup::default().rts();
    b.take(&read(RQ, 0, 4 * MTU));
    let mut small = [0; 2 * (MTU + 20)];
    let flow = Flow { src: IpAddr::from([1; 4]), dst: IpAddr::from([2; 4]), src_port: 1, dst_port: 2 };
    let mut train = Train::new(&mut small, flow, 64);
    assert!(b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host));
    assert_eq!(train.packets(), 2);
    b.host.deregister(KEY);
    assert_eq!(b.sent(), [nak(ACCESS, RQ + 2, 1)]);
    assert_eq!(b.notes(), [ACCESS_ERROR]);
    assert_eq!(b.qp.state(), QpState::Err);
    assert!(b.qp.failure().unwrap().to_string().contains("0x00001000 names no memory region"));
}

/// The region of a WRITE is revoked between its packets.
#[test]
fn a_region_that_is_revoked_in_the_middle_of_a_write() {
    let mut b = Setup::default().rts();
    b.take(&write_first(MTU + 1));
    b.host.deregister(KEY);
    b.expect(&request(Opcode::RcWriteLast, RQ + 1, &[1]), &[nak(ACCESS, RQ + 1, 0)]);
    assert_eq!(b.notes(), [ACCESS_ERROR]);
}

/// C9-148: the message number counts completed messages; refused ones do not count.
#[test]
fn message_sequence_numbers() {
    let mut b = Setup::default().rts();
    b.post_recv(1, &[local(0, 600)]);
    let mut ask = first(RQ);
    ask.headers.ack_req = true;
    b.expect(&ask, &[ack(RQ, 0)]);
    b.expect(&request(Opcode::RcSendLast, RQ + 1, &[1]), &[ack(RQ + 1, 1)]);
    b.expect(&request(Opcode::RcSendOnly, RQ + 2, &[1]), &[nak(0x20 | 12, RQ + 2, 1)]);
}

#[test]
fn packets_of_other_services_are_dropped() {
    let mut b = Setup::default().rts();
    for opcode in [
        Opcode::UcSendOnly,
        Opcode::UdSendOnly,
        Opcode::Cnp,
        Opcode::XrcSendOnly,
        Opcode::RnicFlowControl,
        Opcode::RnicPause,
        Opcode::RnicTelemetry,
    ] {
        let packet = Out::new(Headers::new(opcode, OURS, Psn::new(RQ)), &[]);
        assert_eq!(b.feed(&packet), Err(PacketDrop::Service));
    }
    assert_eq!(b.qp.counters().rcvd_pkts, 0);
}

/// The reserved bits and MigReq of a request have no effect (C9-6).
#[test]
fn either_mig_req_is_accepted_and_ours_is_a_choice() {
    for mig_req in [false, true] {
        let tuning = Tuning { mig_req, ..Setup::default().tuning };
        let mut b = Setup { tuning, ..Setup::default() }.rts();
        let mut write = rdma(Opcode::RcWriteOnly, RQ, START, KEY, 0, &[]);
        write.headers.mig_req = !mig_req;
        let mut answer = ack(RQ, 1);
        answer.headers.mig_req = mig_req;
        b.expect(&write, &[answer]);
        b.post(1, SEND, &[]);
        assert!(b.sent().iter().all(|p| p.headers.mig_req == mig_req));
    }
}
