//! The effect of a failed send on an unreliable queue pair: SQE, in which the receive queue continues (IBTA
//! 10.3.1.7). Also how send queues without acknowledgements drain.

use super::*;
use crate::wire::headers::DethFields;
use std::sync::Arc;

const FLUSHED: WcStatus = WcStatus::WrFlushErr;
const UNRELIABLE: [QpType; 2] = [QpType::Uc, QpType::Ud];
/// An element in no region.
const BAD: Sge = Sge { addr: 0, length: 8, lkey: 7 };

fn sent(id: u64, status: WcStatus) -> Note {
    Note::Sent(id, status)
}

fn in_rts(qp_type: QpType) -> Bench {
    Setup::of(qp_type).rts()
}

impl Bench {
    /// Posts a SEND, with an address if the type needs one.
    fn send(&mut self, wr_id: u64, sges: &[Sge], flags: SendFlags) {
        let to = if self.qp.config().qp_type.is_connected() {
            Destination::Connected
        } else {
            let path = AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, 2)), 0);
            Destination::Datagram { path: Arc::new(path), qpn: PEERS, qkey: QKEY }
        };
        let wr = SendWr::new(wr_id, SEND, sges).flags(flags).to(to);
        self.qp.post_send(wr, &mut self.host).unwrap();
    }

    /// Feeds a message from the peer, which a receive of its own must accept.
    fn receives_still(&mut self, psn: u32) {
        self.post_recv(99, &[local(0, 100)]);
        let opcode = match self.qp.config().qp_type {
            QpType::Uc => Opcode::UcSendOnly,
            _ => Opcode::UdSendOnly,
        };
        let mut message = request(opcode, psn, b"on");
        if opcode == Opcode::UdSendOnly {
            message.headers.deth = DethFields { qkey: QKEY, src_qpn: PEERS };
        }
        self.take(&message);
        assert_eq!(self.notes(), [Note::Received(99, WcStatus::Success)]);
    }
}

/// The failed request completes with its error even though it is not signalled, later requests are flushed in
/// order, and the receive queue is not affected.
#[test]
fn a_failed_send_leads_to_sqe() {
    for qp_type in UNRELIABLE {
        let mut b = in_rts(qp_type);
        b.post_recv(7, &[local(0, 100)]);
        b.send(1, &[local(0, 8)], SendFlags::SIGNALED);
        b.send(2, &[BAD], SendFlags::empty());
        b.send(3, &[], SendFlags::empty());
        b.send(4, &[], SendFlags::SIGNALED);
        assert_eq!(b.sent().len(), 1);
        let expected =
            [sent(1, WcStatus::Success), sent(2, WcStatus::LocProtErr), sent(3, FLUSHED), sent(4, FLUSHED)];
        assert_eq!(b.notes(), expected, "{qp_type}");
        assert_eq!((b.qp.state(), b.host.sends[1].vendor_err), (QpState::Sqe, 1));
        assert_eq!(b.qp.recvs_outstanding(), 1);
        assert_eq!((b.qp.counters().req_cqe_error, b.qp.counters().req_cqe_flush_error), (1, 2));
        // C10-96: posts are accepted and flushed at once.
        b.send(5, &[], SendFlags::empty());
        assert_eq!(b.notes(), [sent(5, FLUSHED)]);
        assert_eq!((b.sent(), b.qp.poll_timeout(), b.qp.wants_to_transmit()), (NONE, None, false));
        // The receive posted before serves the next message.
        let mut message = request(Opcode::UcSendOnly, RQ, b"x");
        if qp_type == QpType::Ud {
            message = request(Opcode::UdSendOnly, RQ, b"x");
            message.headers.deth = DethFields { qkey: QKEY, src_qpn: PEERS };
        }
        b.take(&message);
        assert_eq!(b.notes(), [Note::Received(7, WcStatus::Success)]);
        b.receives_still(RQ + 1);
    }
}

#[test]
fn sqe_is_left_for_rts_and_sends_work_again() {
    for qp_type in UNRELIABLE {
        let mut b = in_rts(qp_type);
        b.send(1, &[], SendFlags::empty());
        b.send(2, &[BAD], SendFlags::empty());
        assert_eq!(psns(&b.sent()), [SQ]);
        b.notes();
        b.modify(&QpAttr::to_state(QpState::Rts).cur_qp_state(QpState::Sqe));
        assert_eq!(b.qp.failure(), None, "a handled failure is no longer reported");
        b.send(3, &[local(0, 8)], SendFlags::SIGNALED);
        assert_eq!(psns(&b.sent()), [SQ + 1], "{qp_type}: no PSN is skipped");
        assert_eq!(b.notes(), [sent(3, WcStatus::Success)]);
        b.receives_still(RQ);
        // A second failure is recorded anew.
        b.send(4, &[Sge { addr: LOCAL_START - 1, length: 2, lkey: LOCAL }], SendFlags::empty());
        b.sent();
        assert_eq!((b.qp.state(), b.host.sends.last().map(|wc| wc.vendor_err)), (QpState::Sqe, Some(4)));
        b.modify(&QpAttr::to_state(QpState::Err));
        assert_eq!(b.notes(), [sent(4, WcStatus::LocProtErr)]);
    }
}

#[test]
fn a_failure_in_the_middle_of_a_message_leaves_nothing_in_flight() {
    let mut b = in_rts(QpType::Uc);
    b.post(1, SEND, &[local(0, 2 * MTU), BAD]);
    b.post(2, SEND, &[]);
    assert_eq!(psns(&b.sent()), [SQ, SQ + 1]);
    assert_eq!(b.notes(), [sent(1, WcStatus::LocProtErr), sent(2, FLUSHED)]);
    assert_eq!(b.qp.failure().map(|f| f.psn), Some(Psn::new(SQ + 2)));
    assert_eq!((b.qp.unacked_psn(), b.qp.next_psn()), (Psn::new(SQ + 2), Psn::new(SQ + 2)));
    b.modify(&QpAttr::to_state(QpState::Rts));
    b.post(3, SEND, &[local(0, MTU + 1)]);
    let again = b.sent();
    assert_eq!(psns(&again), [SQ + 2, SQ + 3]);
    assert_eq!(again[0].headers.opcode, Opcode::UcSendFirst);
    assert_eq!(b.qp.next_psn(), Psn::new(SQ + 4));
}

/// Work requests that can never be sent, and local operations that fail.
#[test]
fn other_ways_to_sqe() {
    let huge = [Sge { addr: 0, length: u32::MAX, lkey: LOCAL }; 2];
    let window = crate::memory::Bind {
        window: 5,
        key: 6,
        lkey: LOCAL,
        access: Access::REMOTE_READ,
        addr: LOCAL_START,
        len: 8,
    };
    for (operation, sges, status) in [
        (SEND, &huge[..], WcStatus::LocLenErr),
        (WRITE, &huge, WcStatus::LocLenErr),
        (Operation::LocalInvalidate { key: 5 }, &[], WcStatus::LocQpOpErr),
        (Operation::BindWindow(window), &[], WcStatus::MwBindErr),
    ] {
        let mut b = in_rts(QpType::Uc);
        b.post_with(1, operation, sges, SendFlags::empty());
        b.post_with(2, SEND, &[], SendFlags::empty());
        assert_eq!(b.sent(), NONE);
        assert_eq!(b.notes(), [sent(1, status), sent(2, FLUSHED)]);
        assert_eq!(b.qp.state(), QpState::Sqe);
        b.receives_still(RQ);
    }
}

/// A reliable queue pair has no SQE state: its failure ends it.
#[test]
fn a_reliable_queue_pair_goes_to_err_instead() {
    for qp_type in [QpType::Rc, QpType::XrcSend] {
        let mut b = in_rts(qp_type);
        let to = if qp_type == QpType::XrcSend { Destination::XrcSrq(1) } else { Destination::Connected };
        let wr = SendWr::new(1, SEND, BAD).to(to);
        b.qp.post_send(wr, &mut b.host).unwrap();
        b.sent();
        assert_eq!((b.notes(), b.qp.state()), (vec![sent(1, WcStatus::LocProtErr)], QpState::Err));
    }
}

#[test]
fn sqe_to_err_flushes_the_receives() {
    let mut b = in_rts(QpType::Uc);
    b.post_recv(7, &[]);
    b.post(1, SEND, &[BAD]);
    b.sent();
    b.notes();
    b.modify(&QpAttr::to_state(QpState::Err));
    assert_eq!(b.notes(), [Note::Received(7, FLUSHED)]);
    assert_eq!(b.qp.failure().map(|f| f.status), Some(WcStatus::LocProtErr));
}

const DRAINED: Note = Note::Event(QpEvent::SendQueueDrained);

fn drain(b: &mut Bench) {
    b.modify(&QpAttr::to_state(QpState::Sqd).en_sqd_async_notify(true));
}

/// Rule "started WQEs finish; SQ_DRAINED if notification was asked for", for messages that complete when sent.
#[test]
fn sqd_of_an_unreliable_connection_finishes_its_message() {
    let mut b = in_rts(QpType::Uc);
    b.post(1, SEND, &[local(0, 3 * MTU)]);
    b.post(2, SEND, &[]);
    assert_eq!(psns(&b.poll(64, &mut 1)), [SQ]);
    drain(&mut b);
    assert_eq!(b.notes(), []);
    assert_eq!(psns(&b.poll(64, &mut 1)), [SQ + 1]);
    assert_eq!(b.notes(), [], "part of it is not sent yet");
    assert_eq!(psns(&b.sent()), [SQ + 2]);
    assert_eq!(b.notes(), [sent(1, WcStatus::Success), DRAINED]);
    b.post(3, SEND, &[]);
    assert_eq!(b.sent(), NONE);
    b.modify(&QpAttr::to_state(QpState::Rts));
    assert_eq!(psns(&b.sent()), [SQ + 3, SQ + 4]);
    assert_eq!(b.notes(), [2, 3].map(|id| sent(id, WcStatus::Success)));
}

/// A datagram is either completely sent or not started.
#[test]
fn a_queue_of_datagrams_is_drained_at_once() {
    let mut b = in_rts(QpType::Ud);
    (1..=3).for_each(|id| b.send(id, &[], SendFlags::empty()));
    assert_eq!(b.poll(64, &mut 1).len(), 1);
    drain(&mut b);
    assert_eq!((b.notes(), b.sent()), (vec![DRAINED], NONE));
    assert!(!b.qp.wants_to_transmit());
    b.modify(&QpAttr::to_state(QpState::Rts));
    assert_eq!(b.sent().len(), 2);
}

/// A failure while the queue drains also leads to SQE, and the drained event is not reported.
#[test]
fn a_failure_in_sqd() {
    let mut b = in_rts(QpType::Uc);
    b.post(1, SEND, &[local(0, MTU), BAD]);
    b.poll(64, &mut 1);
    drain(&mut b);
    b.sent();
    assert_eq!((b.notes(), b.qp.state()), (vec![sent(1, WcStatus::LocProtErr)], QpState::Sqe));
}
