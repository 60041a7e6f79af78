//! Reasons of failures, in more detail than a status, and the numbers that completions carry for them.

use super::*;
use crate::queue_pair::{FailureContext, Silence, VendorError};

const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);
const SEQUENCE: u8 = 0x60;

/// Sends one message and repeats it until the queue pair gives up; `answer` is what the peer says to each.
fn give_up(answer: Option<&Out>) -> Bench {
    let mut b = Setup { retry_cnt: 2, ..Setup::default() }.rts();
    b.post(1, SEND, &[]);
    for _ in 0..3 {
        b.sent();
        if let Some(answer) = answer {
            assert!(b.feed(answer).is_err(), "it answers nothing that was sent");
        }
        b.sleep(TIMEOUT);
    }
    assert_eq!(b.qp.state(), QpState::Err);
    b
}

#[test]
fn what_was_heard_of_a_peer_that_does_not_answer_is_part_of_the_reason() {
    let expected = Psn::new(SQ - 100);
    let acknowledged = Psn::new(SQ + 1000);
    for (answer, silence, vendor_error) in [
        (None, Silence::Never, VendorError::NeverAnswered),
        (Some(refused(SEQUENCE, SQ - 100)), Silence::ExpectsPsn { expected }, VendorError::WrongPsn),
        (Some(acked(SQ + 1000)), Silence::Acknowledges { acknowledged }, VendorError::WrongPsn),
    ] {
        let b = give_up(answer.as_ref());
        let failure = b.qp.failure().expect("it failed");
        assert_eq!(failure.context, FailureContext::AwaitingResponse(silence));
        assert_eq!((failure.wr_id, failure.operation), (Some(1), Some("SEND")));
        assert_eq!(b.host.sends[0].vendor_err, vendor_error.code());
    }
}

#[test]
fn a_peer_that_answered_once_has_stopped() {
    let mut b = Setup { retry_cnt: 0, ..Setup::default() }.rts();
    b.post(1, SEND, &[]);
    b.sent();
    b.take(&acked(SQ));
    b.post(2, SEND, &[]);
    b.sent();
    b.sleep(TIMEOUT);
    assert_eq!(b.host.sends[1].vendor_err, VendorError::StoppedAnswering.code());
}

#[test]
fn a_wait_for_a_receive_is_measured_from_its_beginning() {
    let mut b = Setup { rnr_retry: 1, ..Setup::default() }.rts();
    b.post(1, SEND, &[]);
    b.sent();
    assert_eq!(b.qp.lacks_receive_since(), None);
    // "Not ready", with the code of 0.64 ms.
    b.take(&refused(0x2c, SQ));
    let since = b.qp.lacks_receive_since().expect("it waits");
    b.sleep(Duration::from_micros(640));
    b.sent();
    b.take(&refused(0x2c, SQ));
    let failure = b.qp.failure().expect("it gave up");
    assert_eq!(failure.context, FailureContext::AwaitingReceive(b.now - since));
    assert_eq!(b.host.sends[0].vendor_err, VendorError::NoReceiveAtPeer.code());
    assert!(failure.to_string().contains("no receive posted at the peer for 0.6 ms"), "{failure}");
}

#[test]
fn requests_that_are_not_signalled_are_counted_while_they_are_outstanding() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[]);
    b.post_with(2, SEND, &[], SendFlags::empty());
    b.post_with(3, SEND, &[], SendFlags::empty());
    assert_eq!((b.qp.unsignalled(), b.qp.sends_outstanding()), (2, 3));
    b.sent();
    b.take(&acked(SQ + 1));
    assert_eq!((b.qp.unsignalled(), b.qp.sends_outstanding()), (1, 1));
}
