//! Local operations and fences (IBTA 10.8.3.3, table 79).

use super::*;
use crate::memory::Bind;

const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const FENCE: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED);

fn success(id: u64) -> Note {
    Note::Sent(id, WcStatus::Success)
}

fn invalidate(key: u32) -> Operation {
    Operation::LocalInvalidate { key }
}

/// Binds the window whose current key is `window` under the next key.
fn bind(window: u32) -> Operation {
    Operation::BindWindow(Bind {
        window,
        key: window + 1,
        lkey: LOCAL,
        access: Access::REMOTE_READ,
        addr: LOCAL_START,
        len: 8,
    })
}

/// A queue pair in RTS, with a bound window under key 50 and an unbound one under key 60.
fn with_windows(setup: &Setup) -> Bench {
    let mut b = setup.rts();
    b.host.windows.push(Window { key: 50, bound_by: Some(OURS) });
    b.host.windows.push(Window { key: 60, bound_by: None });
    b
}

#[test]
fn local_operations_are_done_in_their_turn_without_a_packet() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut b = with_windows(&Setup::of(qp_type));
        b.post(1, bind(60), &[]);
        b.post_with(2, invalidate(50), &[], SendFlags::empty());
        b.post(3, invalidate(61), &[]);
        assert_eq!(b.sent(), NONE);
        let expected =
            [Note::Bound(61), success(1), Note::Invalidated(50), Note::Invalidated(61), success(3)];
        assert_eq!(b.notes(), expected, "the second is not signalled");
        let opcodes: Vec<_> = b.host.sends.iter().map(|wc| wc.opcode).collect();
        assert_eq!(opcodes, [WcOpcode::BindMw, WcOpcode::LocalInv]);
        assert_eq!((b.qp.next_psn(), b.qp.poll_timeout()), (Psn::new(SQ), None));
        assert_eq!(b.qp.sends_outstanding(), 0);
    }
}

/// A bind does not wait for earlier requests, but completes after them; later requests go out at once.
#[test]
fn a_bind_is_done_early_and_completes_in_order() {
    let mut b = with_windows(&Setup::default());
    b.post(1, SEND, &[]);
    b.post(2, bind(60), &[]);
    b.post(3, SEND, &[]);
    assert_eq!(psns(&b.sent()), [SQ, SQ + 1]);
    assert_eq!(b.notes(), [Note::Bound(61)]);
    b.take(&acked(SQ));
    assert_eq!(b.notes(), [success(1), success(2)]);
    b.take(&acked(SQ + 1));
    assert_eq!(b.notes(), [success(3)]);
}

/// Rule "LOCAL_INV waits for everything": requests in flight may still use the key.
#[test]
fn an_invalidation_waits_for_everything_before_it() {
    for (before, answer) in [
        (SEND, acked(SQ)),
        (WRITE, acked(SQ)),
        (READ, read_responses(OURS, SQ, 1, &[0; 8])[0].clone()),
        (ADD, atomic_answer(SQ, 1)),
    ] {
        let mut b = with_windows(&Setup::default());
        b.post(1, before, &[local(0, 8)]);
        b.post(2, bind(60), &[]);
        b.post(3, invalidate(50), &[]);
        b.post(4, SEND, &[]);
        assert_eq!(psns(&b.sent()), [SQ], "nothing passes an invalidation");
        assert_eq!(b.notes(), [Note::Bound(61)]);
        b.take(&answer);
        assert_eq!(psns(&b.sent()), [SQ + 1]);
        assert_eq!(b.notes(), [success(1), success(2), Note::Invalidated(50), success(3)]);
    }
}

/// The Linux rxe bug of April 2022 ("local operations replayed on retry"): a second bind fails, because the key has
/// changed, and so does a second invalidation.
#[test]
fn a_retransmission_passes_over_local_operations() {
    for lost in [SQ, SQ + 1] {
        let mut b = with_windows(&Setup::default());
        b.post(1, SEND, &[]);
        b.post(2, bind(60), &[]);
        b.post(3, WRITE, &[local(0, 8)]);
        b.post(4, bind(61), &[]);
        b.post(5, SEND, &[]);
        let sent = b.sent();
        assert_eq!(b.notes(), [Note::Bound(61), Note::Bound(62)]);
        b.take(&refused(0x60, lost));
        let again = (lost - SQ) as usize;
        assert_eq!(b.sent(), sent[again..]);
        b.sleep(TIMEOUT);
        assert_eq!(b.sent(), sent[again..]);
        b.take(&refused(0x20 | 1, lost));
        b.sleep(Duration::from_micros(10));
        assert_eq!(b.sent(), sent[again..]);
        b.take(&acked(SQ + 2));
        let expected: Vec<_> = (1..=5).map(success).collect();
        assert_eq!(b.host.sends.len(), 5);
        let notes: Vec<_> = std::mem::take(&mut b.host.sends).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(notes, [1, 2, 3, 4, 5]);
        assert!(b.notes().iter().all(|note| expected.contains(note)), "bound once each");
    }
}

/// A local operation after a READ that is repeated in parts.
#[test]
fn a_partial_retry_passes_over_local_operations_too() {
    let mut b = with_windows(&Setup::default());
    b.post(1, READ, &[local(0, 3 * MTU)]);
    b.post(2, bind(60), &[]);
    b.post(3, READ, &[local(0, 8)]);
    b.sent();
    let data = pattern(3 * MTU);
    b.take(&read_responses(OURS, SQ, 1, &data)[0]);
    b.sleep(TIMEOUT);
    assert_eq!(psns(&b.sent()), [SQ + 1, SQ + 3]);
    read_responses(OURS, SQ + 1, 1, &data[MTU..]).iter().for_each(|p| b.take(p));
    b.take(&read_responses(OURS, SQ + 3, 2, &[0; 8])[0]);
    assert_eq!(b.notes(), [Note::Bound(61), success(1), success(2), success(3)]);
}

/// The error is reported when its work request is the oldest, unless an earlier one fails first.
#[test]
fn a_local_operation_that_fails_ends_the_queue_pair_in_its_turn() {
    for (operation, status, vendor_err) in
        [(invalidate(7), WcStatus::LocQpOpErr, 1), (bind(7), WcStatus::MwBindErr, 32)]
    {
        let mut b = with_windows(&Setup::default());
        b.post(1, SEND, &[]);
        b.post_with(2, operation, &[], SendFlags::empty());
        b.post(3, SEND, &[]);
        assert_eq!(psns(&b.sent()), [SQ]);
        assert_eq!((b.notes(), b.qp.state(), b.qp.failure()), (vec![], QpState::Rts, None));
        b.take(&acked(SQ));
        b.sent();
        let expected = [success(1), Note::Sent(2, status), Note::Sent(3, WcStatus::WrFlushErr)];
        assert_eq!(b.notes(), expected);
        assert_eq!((b.host.sends[1].vendor_err, b.qp.state()), (vendor_err, QpState::Err));
        assert_eq!(b.qp.failure().map(|f| f.status), Some(status));
    }
}

/// With two failures, the one that ends the queue pair is reported, with its own cause.
#[test]
fn the_reason_is_that_of_the_work_request_that_failed_first() {
    let mut b = with_windows(&Setup::default());
    b.post(1, WRITE, &[]);
    b.post(2, bind(7), &[]);
    b.sent();
    b.take(&refused(0x62, SQ));
    assert_eq!(b.notes(), [Note::Sent(1, WcStatus::RemAccessErr), Note::Sent(2, WcStatus::WrFlushErr)]);
    assert_eq!(b.qp.failure().map(|f| f.status), Some(WcStatus::RemAccessErr));
    let mut b = Setup::default().rts();
    b.post(1, WRITE, &[]);
    b.post(2, SEND, &[Sge { addr: 0, length: 1, lkey: 7 }]);
    b.sent();
    b.take(&refused(0x63, SQ));
    assert_eq!((b.host.sends[0].vendor_err, b.host.sends[0].status), (70, WcStatus::RemOpErr));
    assert_eq!(b.qp.failure().map(|f| f.status), Some(WcStatus::RemOpErr));
}

#[test]
fn a_window_of_another_queue_pair_cannot_be_invalidated() {
    let mut b = with_windows(&Setup::default());
    b.host.windows[0].bound_by = Some(PEERS);
    b.post(1, invalidate(50), &[]);
    b.sent();
    assert_eq!(b.notes(), [Note::Sent(1, WcStatus::LocQpOpErr)]);
    assert_eq!(b.host.sends[0].vendor_err, 7);
    assert_eq!(b.host.windows[0].bound_by, Some(PEERS));
}

/// The Linux rxe bug of May 2022 ("fence waited for everything"), with local operations: a fenced bind waits for
/// earlier READs and atomics, and for nothing else.
#[test]
fn a_bind_with_a_fence_waits_for_reads_and_atomics_only() {
    for (before, waits) in [(READ, true), (ADD, true), (WRITE, false), (SEND, false)] {
        let mut b = with_windows(&Setup::default());
        b.post(1, before, &[local(0, 8)]);
        b.post_with(2, bind(60), &[], FENCE);
        b.sent();
        assert_eq!(b.notes(), if waits { vec![] } else { vec![Note::Bound(61)] });
        match before {
            READ => b.take(&read_responses(OURS, SQ, 1, &[0; 8])[0]),
            ADD => b.take(&atomic_answer(SQ, 1)),
            _ => continue,
        }
        b.sent();
        assert_eq!(b.notes(), [success(1), Note::Bound(61), success(2)]);
    }
}

/// A fence only waits for earlier READs; later ones and completed ones do not matter.
#[test]
fn a_fence_looks_back_only() {
    let mut b = Setup::default().rts();
    b.post(1, READ, &[local(0, 8)]);
    b.post_with(2, WRITE, &[local(0, 2 * MTU)], FENCE);
    b.post(3, READ, &[local(0, 8)]);
    assert_eq!(psns(&b.sent()), [SQ]);
    b.take(&read_responses(OURS, SQ, 1, &[0; 8])[0]);
    assert_eq!(psns(&b.sent()), [SQ + 1, SQ + 2, SQ + 3]);
    // Retransmitted although a READ is outstanding: the fence was passed once.
    b.take(&refused(0x60, SQ + 1));
    assert_eq!(psns(&b.sent()), [SQ + 1, SQ + 2, SQ + 3]);
    // A partly answered READ is not done.
    let mut b = Setup::default().rts();
    b.post(1, READ, &[local(0, 2 * MTU)]);
    b.post_with(2, SEND, &[], FENCE);
    b.sent();
    let responses = read_responses(OURS, SQ, 1, &[0; 2 * MTU]);
    b.take(&responses[0]);
    assert_eq!(b.sent(), NONE);
    b.take(&responses[1]);
    assert_eq!(psns(&b.sent()), [SQ + 2]);
}

const DRAINED: Note = Note::Event(QpEvent::SendQueueDrained);

/// 10.3.1.6: in SQD, a local operation that has not started waits; a completed one does not keep the queue from
/// draining.
#[test]
fn draining_with_local_operations() {
    let mut b = with_windows(&Setup::default());
    b.post(1, SEND, &[]);
    b.post(2, bind(60), &[]);
    b.post(3, invalidate(50), &[]);
    b.sent();
    b.notes();
    b.modify(&QpAttr::to_state(QpState::Sqd).en_sqd_async_notify(true));
    assert_eq!(b.notes(), []);
    b.take(&acked(SQ));
    assert_eq!(b.notes(), [success(1), success(2), DRAINED]);
    b.post(4, bind(61), &[]);
    assert_eq!((b.sent(), b.notes()), (NONE, vec![]));
    b.modify(&QpAttr::to_state(QpState::Rts));
    b.sent();
    assert_eq!(b.notes(), [Note::Invalidated(50), success(3), Note::Bound(62), success(4)]);
}

/// During an RNR wait, nothing in the send queue starts.
#[test]
fn local_operations_wait_for_a_receiver_that_is_not_ready() {
    let mut b = with_windows(&Setup::default());
    b.post(1, SEND, &[]);
    b.sent();
    b.take(&refused(0x20 | 1, SQ));
    b.post(2, bind(60), &[]);
    assert_eq!((b.sent(), b.notes()), (NONE, vec![]));
    b.sleep(Duration::from_micros(10));
    assert_eq!(psns(&b.sent()), [SQ]);
    b.take(&acked(SQ));
    assert_eq!(b.notes(), [Note::Bound(61), success(1), success(2)]);
}

/// Flushing local operations has no effect on memory.
#[test]
fn flushed_local_operations_are_not_executed() {
    let mut b = with_windows(&Setup::default());
    b.post(1, SEND, &[]);
    b.post(2, invalidate(50), &[]);
    b.sent();
    b.modify(&QpAttr::to_state(QpState::Err));
    b.post(3, bind(60), &[]);
    let flushed = |id| Note::Sent(id, WcStatus::WrFlushErr);
    assert_eq!(b.notes(), [1, 2, 3].map(flushed));
    assert_eq!((b.host.windows[0].bound_by, b.host.windows[1].key), (Some(OURS), 60));
}
