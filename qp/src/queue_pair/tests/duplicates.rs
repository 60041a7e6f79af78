//! Duplicate requests: answered again, never executed again and never refused (C9-105).

use super::*;
use crate::memory::{AtomicOp, Domain, Memory};

#[test]
fn a_duplicate_send_or_write_is_acknowledged_with_the_latest_psn() {
    let mut b = Setup::default().rts();
    b.post_recv(1, &[local(0, 300)]);
    b.post_recv(2, &[local(0, 300)]);
    let send = request(Opcode::RcSendOnly, RQ, b"a");
    let write = rdma(Opcode::RcWriteOnly, RQ + 1, START, KEY, 1, b"b");
    b.expect(&send, &[ack(RQ, 1)]);
    b.expect(&write, &[ack(RQ + 1, 2)]);
    b.host.bytes(KEY)[0] = b'c';
    b.host.bytes(LOCAL)[0] = b'c';
    b.expect(&send, &[ack(RQ + 1, 2)]);
    b.expect(&write, &[ack(RQ + 1, 2)]);
    assert_eq!((b.host.bytes(KEY)[0], b.host.bytes(LOCAL)[0]), (b'c', b'c'));
    assert_eq!(b.host.recvs.len(), 1);
    assert_eq!(b.qp.recvs_outstanding(), 1);
    assert_eq!(b.qp.counters().duplicate_request, 2);
    // Even a duplicate that would be refused as a new request.
    b.expect(&rdma(Opcode::RcWriteOnly, RQ, START, 7, 999, b"b"), &[ack(RQ + 1, 2)]);
    assert_eq!(b.qp.state(), QpState::Rts);
}

/// In the middle of a message, the latest PSN is that of the last accepted packet.
#[test]
fn a_duplicate_within_a_message() {
    let mut b = Setup::default().rts();
    let first = rdma(Opcode::RcWriteFirst, RQ, START, KEY, 2 * MTU, &[1; MTU]);
    b.expect(&first, &NONE);
    b.expect(&first, &[ack(RQ, 0)]);
    b.expect(&request(Opcode::RcWriteLast, RQ + 1, &[2; MTU]), &[ack(RQ + 1, 1)]);
}

/// A duplicate READ may request any part of the original and nothing else; the memory is read again.
#[test]
fn a_duplicate_read_within_the_original_is_answered() {
    let mut b = Setup::default().rts();
    b.host.bytes(KEY)[..1000].copy_from_slice(&pattern(1000));
    b.expect(&read(RQ, 0, 1000), &read_responses(PEERS, RQ, 1, &pattern(1000)));
    let changed = vec![9; 1000];
    b.host.bytes(KEY)[..1000].copy_from_slice(&changed);
    b.expect(&read(RQ, 0, 1000), &read_responses(PEERS, RQ, 1, &changed));
    let rest = 1000 - 2 * MTU;
    b.expect(&read(RQ + 2, 2 * MTU as u64, rest), &read_responses(PEERS, RQ + 2, 1, &changed[..rest]));
    b.expect(&read(RQ + 1, MTU as u64, MTU), &read_responses(PEERS, RQ + 1, 1, &changed[..MTU]));
    let mtu = MTU as u64;
    for outside in [
        read(RQ + 1, 0, 1),                                       // another address
        read(RQ + 1, mtu, 1000 - MTU + 1),                        // beyond the end
        read(RQ - 1, 0, 1),                                       // before the first
        rdma(Opcode::RcReadRequest, RQ, START, LOCAL, 1000, &[]), // another key
        fetch_add(RQ, START, 1),                                  // another operation
    ] {
        assert_eq!(b.feed(&outside), Err(PacketDrop::StaleDuplicate), "{outside:?}");
    }
    assert_eq!(b.sent(), NONE);
    b.expect(&read(RQ + 4, 0, 1), &read_responses(PEERS, RQ + 4, 2, &[9]));
}

/// A READ of no bytes at the end of the original is not a part of it either: another request had that PSN.
#[test]
fn a_duplicate_read_just_behind_the_original() {
    let mut b = Setup::default().rts();
    b.take(&read(RQ, 0, MTU));
    b.take(&rdma(Opcode::RcWriteOnly, RQ + 1, START, KEY, 1, b"b"));
    b.sent();
    assert_eq!(b.feed(&read(RQ + 1, MTU as u64, 0)), Err(PacketDrop::StaleDuplicate));
}

/// A duplicate arrives while the answer is still being sent: the part already sent is repeated once; the rest is
/// sent as planned.
#[test]
fn a_duplicate_of_a_read_that_is_being_answered() {
    let mut b = Setup::default().rts();
    b.take(&read(RQ, 0, 4 * MTU));
    // Nothing has been sent yet, so everything is still queued.
    b.take(&read(RQ + 1, MTU as u64, 3 * MTU));
    let mut small = [0; 2 * (MTU + 20)];
    let flow = Flow { src: IpAddr::from([1; 4]), dst: IpAddr::from([2; 4]), src_port: 1, dst_port: 2 };
    let mut train = Train::new(&mut small, flow, 64);
    b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
    assert_eq!(train.packets(), 2);
    b.take(&read(RQ + 1, MTU as u64, 3 * MTU));
    assert_eq!(psns(&b.sent()), [RQ + 1, RQ + 2, RQ + 3]);
}

#[test]
fn a_duplicate_atomic_returns_the_saved_result() {
    let mut b = Setup { max_dest_rd_atomic: 2, ..Setup::default() }.rts();
    for i in 0..3u32 {
        b.expect(&fetch_add(RQ + i, START, 10), &[atomic_ack(RQ + i, i + 1, u64::from(i) * 10)]);
    }
    b.expect(&fetch_add(RQ + 1, START, 10), &[atomic_ack(RQ + 1, 3, 10)]);
    b.expect(&fetch_add(RQ + 2, START, 10), &[atomic_ack(RQ + 2, 3, 20)]);
    assert_eq!(b.host.bytes(KEY)[..8], 30u64.to_ne_bytes());
    // Two results are kept; older ones are forgotten.
    assert_eq!(b.feed(&fetch_add(RQ, START, 10)), Err(PacketDrop::StaleDuplicate));
    assert_eq!(b.sent(), NONE);
    // Two duplicates before the answer is sent produce one answer.
    b.take(&fetch_add(RQ + 2, START, 10));
    b.take(&fetch_add(RQ + 2, START, 10));
    assert_eq!(psns(&b.sent()), [RQ + 2]);
}

/// An answer was late rather than lost: the peer repeats the request, receives the answer and continues, so both
/// requests arrive together. The duplicate does not count as one more outstanding READ.
#[test]
fn duplicates_do_not_count_as_outstanding() {
    let mut b = Setup { max_dest_rd_atomic: 1, ..Setup::default() }.rts();
    b.expect(&read(RQ, 0, 1), &read_responses(PEERS, RQ, 1, &[0]));
    b.take(&read(RQ, 0, 1));
    b.take(&fetch_add(RQ + 1, START, 1));
    assert_eq!(psns(&b.sent()), [RQ, RQ + 1]);
    b.take(&fetch_add(RQ + 1, START, 1));
    b.take(&read(RQ + 2, 0, 1));
    assert_eq!(psns(&b.sent()), [RQ + 1, RQ + 2]);
    assert_eq!(b.qp.state(), QpState::Rts);
}

/// A duplicate arrives after the region of a completed READ was revoked, which is not the peer's fault.
#[test]
fn a_duplicate_read_of_a_revoked_region_is_dropped() {
    let mut b = Setup::default().rts();
    b.expect(&read(RQ, 0, 1), &read_responses(PEERS, RQ, 1, &[0]));
    b.host.deregister(KEY);
    b.expect(&read(RQ, 0, 1), &NONE);
    assert_eq!((b.notes(), b.qp.state()), (vec![], QpState::Rts));
    b.post_recv(1, &[]);
    b.expect(&request(Opcode::RcSendOnly, RQ + 1, b""), &[ack(RQ + 1, 2)]);
}

/// However many duplicates arrive before answers can be sent, the number of waiting answers is bounded by what the
/// peer may expect.
#[test]
fn answers_to_duplicates_are_bounded() {
    let mut b = Setup { max_dest_rd_atomic: 2, ..Setup::default() }.rts();
    let len = 50 * MTU;
    b.take(&read(RQ, 0, len));
    b.sent();
    let one = |i: u32| read(RQ + i, u64::from(i) * MTU as u64, MTU);
    let taken = (0..50).rev().filter(|i| b.feed(&one(*i)).is_ok()).count();
    assert_eq!(taken, 2);
    assert_eq!(psns(&b.sent()), [RQ + 48, RQ + 49]);
}

/// A duplicate request for a small part of a READ in progress does not truncate the answer.
#[test]
fn a_partial_duplicate_does_not_cut_an_answer_short() {
    let mut b = Setup::default().rts();
    b.host.bytes(KEY)[..4 * MTU].copy_from_slice(&pattern(4 * MTU));
    b.take(&read(RQ, 0, 4 * MTU));
    let mut small = [0; 3 * (MTU + 20)];
    let flow = Flow { src: IpAddr::from([1; 4]), dst: IpAddr::from([2; 4]), src_port: 1, dst_port: 2 };
    let mut train = Train::new(&mut small, flow, 64);
    b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
    b.take(&read(RQ + 1, MTU as u64, MTU));
    assert_eq!(b.sent(), read_responses(PEERS, RQ + 1, 1, &pattern(4 * MTU)[MTU..]));
}

/// Answers to duplicates are sent before newer answers: in the opposite order, the peer would assume a loss.
#[test]
fn answers_to_duplicates_come_in_psn_order() {
    let mut b = Setup::default().rts();
    b.expect(&read(RQ, 0, 1), &read_responses(PEERS, RQ, 1, &[0]));
    b.take(&rdma(Opcode::RcWriteOnly, RQ + 1, START, KEY, 0, &[]));
    b.take(&read(RQ, 0, 1));
    assert_eq!(psns(&b.sent()), [RQ, RQ + 1]);
}

/// Changing max_dest_rd_atomic discards the kept answers.
#[test]
fn a_new_depth_forgets_what_was_kept() {
    let mut b = Setup::default().rts();
    b.take(&read(RQ, 0, 1));
    b.take(&fetch_add(RQ + 1, START, 1));
    b.sent();
    b.modify(&QpAttr::to_state(QpState::Sqd));
    b.modify(&QpAttr::to_state(QpState::Sqd).max_dest_rd_atomic(2));
    assert_eq!(b.feed(&read(RQ, 0, 1)), Err(PacketDrop::StaleDuplicate));
    assert_eq!(b.feed(&fetch_add(RQ + 1, START, 1)), Err(PacketDrop::StaleDuplicate));
    b.expect(&read(RQ + 2, 0, 1), &read_responses(PEERS, RQ + 2, 3, &[1]));
}

/// Checks the oracle itself, in the one place where no other test would notice an error.
#[test]
fn the_test_host_checks_rights() {
    let mut host = TestHost::default();
    host.register(1, 0x1000, 16, Access::REMOTE_READ);
    let ours = Domain { pd: PD, qpn: OURS };
    assert!(host.check(ours, 1, 0x1000, 16, Access::REMOTE_READ).is_ok());
    assert!(host.check(ours, 1, 0x1000, 17, Access::REMOTE_READ).is_err());
    assert!(host.check(ours, 1, 0x1000, 1, Access::REMOTE_WRITE).is_err());
    assert!(host.check(Domain { pd: PdId(2), ..ours }, 1, 0x1000, 1, Access::REMOTE_READ).is_err());
    assert!(host.atomic(ours, 1, 0x1000, AtomicOp::FetchAdd { add: 1 }).is_err());
}
