//! The behaviour of a queue pair in each state (IBTA 10.3.1).

use super::*;

fn in_state(state: QpState) -> Bench {
    let setup = Setup::default();
    match state {
        QpState::Reset => setup.reset(),
        QpState::Init => setup.init(),
        QpState::Rtr => setup.rtr(),
        QpState::Rts => setup.rts(),
        QpState::Sqd | QpState::Err => {
            let mut b = setup.rts();
            b.modify(&QpAttr::to_state(state));
            b
        }
        QpState::Sqe => panic!("no RC queue pair enters SQE"),
    }
}

const RC_STATES: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

fn send_wr(wr_id: u64) -> SendWr {
    SendWr::new(wr_id, SEND, Gather::Empty).flags(SendFlags::SIGNALED)
}

/// C10-96 and 10.8.2: sends are accepted from RTS on, receives from INIT on; in ERR both are accepted and flushed
/// at once.
#[test]
fn posting_in_every_state() {
    for state in RC_STATES {
        let mut b = in_state(state);
        let send = b.qp.post_send(send_wr(1), &mut b.host);
        let recv = b.qp.post_recv(RecvWr { wr_id: 2, ..RecvWr::default() }, &mut b.host);
        let sends = matches!(state, QpState::Rts | QpState::Sqd | QpState::Err);
        assert_eq!(send.is_ok(), sends, "{state}");
        assert_eq!(recv.is_ok(), state != QpState::Reset, "{state}");
        if let Err(error) = send {
            let text = format!(
                "cannot post to the send queue in state {state}: the queue pair must be in RTS or later"
            );
            assert_eq!(error.to_string(), text);
        }
        let flushed = WcStatus::WrFlushErr;
        let expected = if state == QpState::Err {
            vec![Note::Sent(1, flushed), Note::Received(2, flushed)]
        } else {
            vec![]
        };
        assert_eq!(b.notes(), expected, "{state}");
        let sent = b.sent();
        assert_eq!(sent.len(), usize::from(state == QpState::Rts), "{state}");
    }
}

/// Requests are served from RTR on, responses accepted from RTS on; in other states packets are dropped.
#[test]
fn packets_in_every_state() {
    for state in RC_STATES {
        let mut b = in_state(state);
        let request = rdma(Opcode::RcWriteOnly, RQ, START, KEY, 0, &[]);
        let serves = matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        assert_eq!(b.feed(&request), if serves { Ok(()) } else { Err(PacketDrop::State) }, "{state}");
        assert_eq!(b.sent(), if serves { vec![ack(RQ, 1)] } else { NONE });
        let takes = matches!(state, QpState::Rts | QpState::Sqd);
        let reason = if takes { PacketDrop::Ghost } else { PacketDrop::State };
        assert_eq!(b.feed(&acked(SQ)), Err(reason), "{state}");
    }
}

/// 11.6.3.2: the first packet in RTR is reported, once.
#[test]
fn communication_established_is_reported_once() {
    let mut b = Setup::default().rtr();
    b.post_recv(1, &[]);
    b.take(&request(Opcode::RcSendOnly, RQ, b""));
    b.take(&rdma(Opcode::RcWriteOnly, RQ + 1, START, KEY, 0, &[]));
    let expected = [Note::Event(QpEvent::CommunicationEstablished), Note::Received(1, WcStatus::Success)];
    assert_eq!(b.notes(), expected);
    let mut b = Setup::default().rts();
    b.take(&rdma(Opcode::RcWriteOnly, RQ, START, KEY, 0, &[]));
    assert_eq!(b.notes(), []);
}

#[test]
fn reset_forgets_everything() {
    let mut b = Setup::default().rts();
    b.post_recv(1, &[]);
    b.post(2, READ, &[local(0, 8)]);
    b.sent();
    b.take(&fetch_add(RQ, START, 1));
    let counted = *b.qp.counters();
    b.modify(&QpAttr::to_state(QpState::Reset));
    assert_eq!(b.notes(), [], "work requests vanish without a completion (10.3.1.1)");
    assert_eq!((b.sent(), b.qp.poll_timeout()), (NONE, None));
    assert_eq!((b.qp.sends_outstanding(), b.qp.recvs_outstanding()), (0, 0));
    assert_eq!(*b.qp.counters(), counted);
    let attr = b.qp.query();
    assert_eq!((attr.qp_state, attr.dest_qp_num, attr.rq_psn), (Some(QpState::Reset), None, None));
    // It starts anew: PSNs, message numbers, saved results and the recorded failure are reset.
    let fresh = Setup::default().rts();
    b.modify(&QpAttr::to_init(1, 0, all_rights()));
    let peer = *fresh.qp.address_vector().unwrap();
    let rtr = QpAttr::to_rtr(peer, Mtu::B256, PEERS, Psn::new(RQ + 50));
    b.modify(&rtr.max_dest_rd_atomic(4).min_rnr_timer(1));
    assert_eq!(b.feed(&fetch_add(RQ, START, 1)), Err(PacketDrop::StaleDuplicate));
    b.notes();
    b.expect(&read(RQ + 50, 8, 1), &read_responses(PEERS, RQ + 50, 1, &[0]));
}

/// The program enters ERR: everything is flushed, nothing is sent any more, and no failure is recorded.
#[test]
fn a_program_can_enter_err() {
    let mut b = Setup::default().rts();
    b.post_recv(1, &[local(0, 600)]);
    b.post_recv(2, &[]);
    b.post(3, SEND, &[]);
    b.post(4, WRITE, &[]);
    b.sent();
    // The first receive is half filled, and READ responses are waiting.
    b.take(&request(Opcode::RcSendFirst, RQ, &[1; MTU]));
    b.modify(&QpAttr::to_state(QpState::Err));
    let flushed = WcStatus::WrFlushErr;
    let expected = [
        Note::Sent(3, flushed),
        Note::Sent(4, flushed),
        Note::Received(1, flushed),
        Note::Received(2, flushed),
    ];
    assert_eq!(b.notes(), expected);
    assert_eq!([0, 1].map(|i| b.host.sends[i].opcode), [WcOpcode::Send, WcOpcode::RdmaWrite]);
    assert_eq!((b.sent(), b.qp.poll_timeout(), b.qp.failure()), (NONE, None, None));
    b.modify(&QpAttr::to_state(QpState::Err));
    assert_eq!(b.notes(), []);
    let limits = Limits::default();
    assert!(b.qp.modify(&QpAttr::to_state(QpState::Init), &limits, &mut b.host).is_err());
    b.modify(&QpAttr::to_state(QpState::Reset));
    assert_eq!(b.qp.state(), QpState::Reset);
}

/// In ERR nothing is answered, except for the NAK that led there.
#[test]
fn a_queue_pair_that_failed_answers_nothing() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[]);
    b.sent();
    b.take(&read(RQ, 0, 8));
    b.take(&rdma(Opcode::RcWriteOnly, RQ + 1, START, KEY, 0, &[]));
    b.take(&refused(0x61, SQ));
    assert_eq!((b.sent(), b.qp.state()), (NONE, QpState::Err));
}

/// o11-5.2.5: with a shared receive queue, the end of its use is reported; its receives stay.
#[test]
fn last_wqe_reached() {
    let mut b = Setup { has_srq: true, ..Setup::default() }.rts();
    b.host.shared.push_back(RecvWr { wr_id: 1, ..RecvWr::default() });
    let refused = b.qp.post_recv(RecvWr::default(), &mut b.host);
    assert_eq!(refused, Err(PostError::UsesSharedReceiveQueue));
    b.modify(&QpAttr::to_state(QpState::Err));
    assert_eq!(b.notes(), [Note::Event(QpEvent::LastWqeReached)]);
    assert_eq!(b.host.shared.len(), 1);
}

fn drain(b: &mut Bench) {
    b.modify(&QpAttr::to_state(QpState::Sqd).en_sqd_async_notify(true));
}

const DRAINED: Note = Note::Event(QpEvent::SendQueueDrained);

/// 10.3.1.6: in SQD started messages are finished, including retransmissions; messages not started wait for RTS.
#[test]
fn sqd_finishes_what_was_started() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[local(0, 4 * MTU)]);
    b.post(2, SEND, &[]);
    assert_eq!(psns(&b.poll(64, &mut 2)), [SQ, SQ + 1]);
    drain(&mut b);
    assert_eq!(psns(&b.sent()), [SQ + 2, SQ + 3]);
    b.take(&refused(0x60, SQ + 1));
    assert_eq!(psns(&b.sent()), [SQ + 1, SQ + 2, SQ + 3]);
    assert_eq!(b.notes(), []);
    b.take(&acked(SQ + 3));
    assert_eq!(b.notes(), [Note::Sent(1, WcStatus::Success), DRAINED]);
    b.post(3, SEND, &[]);
    assert_eq!(b.sent(), NONE);
    b.modify(&QpAttr::to_state(QpState::Rts));
    assert_eq!(psns(&b.sent()), [SQ + 4, SQ + 5]);
    b.take(&acked(SQ + 5));
    assert_eq!(b.notes(), [2, 3].map(|id| Note::Sent(id, WcStatus::Success)));
}

#[test]
fn an_idle_send_queue_is_drained_at_once() {
    let mut b = Setup::default().rts();
    drain(&mut b);
    assert_eq!(b.notes(), [DRAINED]);
    let mut b = Setup::default().rts();
    b.modify(&QpAttr::to_state(QpState::Sqd));
    assert_eq!(b.notes(), [], "nobody asked");
}

/// Changing attributes while the queue drains does not cancel the requested notification.
#[test]
fn changing_attributes_in_sqd_keeps_the_notification() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[]);
    b.sent();
    drain(&mut b);
    b.modify(&QpAttr::to_state(QpState::Sqd).retry_cnt(7));
    assert_eq!(b.notes(), []);
    b.take(&acked(SQ));
    assert_eq!(b.notes(), [Note::Sent(1, WcStatus::Success), DRAINED]);
    b.modify(&QpAttr::to_state(QpState::Sqd).timeout(3));
    assert_eq!(b.notes(), [], "once");
}

#[test]
fn queues_are_bounded() {
    let mut b = Setup::default().rts();
    for id in 0..64 {
        b.post(id, SEND, &[]);
        b.post_recv(id, &[]);
    }
    let full = |queue| Err(PostError::QueueFull { queue, max: 64 });
    assert_eq!(b.qp.post_send(send_wr(64), &mut b.host), full("send"));
    assert_eq!(b.qp.post_recv(RecvWr::default(), &mut b.host), full("receive"));
    assert_eq!(b.sent().len(), 64);
    assert_eq!(b.qp.post_send(send_wr(64), &mut b.host), full("send"));
    b.take(&acked(SQ));
    assert_eq!(b.qp.post_send(send_wr(64), &mut b.host), Ok(()));
}

#[test]
fn work_requests_that_do_not_fit_are_refused() {
    let mut b = Setup::default().rts();
    let nine: Gather = (&[local(0, 1); 9][..]).into();
    let with = |data| SendWr { data, ..send_wr(1) };
    let too_many = Err(PostError::TooManySges { given: 9, max: 8 });
    assert_eq!(b.qp.post_send(with(nine.clone()), &mut b.host), too_many);
    assert_eq!(b.qp.post_recv(RecvWr { wr_id: 1, data: nine }, &mut b.host), too_many);
    let inline = with(Gather::Inline(vec![0; 65].into()));
    assert_eq!(b.qp.post_send(inline, &mut b.host), Err(PostError::TooMuchInline { given: 65, max: 64 }));
    assert_eq!(b.qp.sends_outstanding() + b.qp.recvs_outstanding(), 0);
    // The largest list that fits.
    let eight: Gather = (&[local(0, 1); 8][..]).into();
    for data in [Gather::Inline(vec![0; 64].into()), eight.clone()] {
        assert_eq!(b.qp.post_send(with(data), &mut b.host), Ok(()));
    }
    assert_eq!(b.qp.post_recv(RecvWr { wr_id: 1, data: eight }, &mut b.host), Ok(()));
}

/// A mix of operations, and every counter that is non-zero after it.
#[test]
fn counters_move_as_their_names_say() {
    let mut b = Setup { rnr_retry: 7, ..Setup::default() }.rts();
    b.post_recv(1, &[local(0, 300)]);
    b.post_recv(2, &[local(0, 3)]);
    // As responder: a WRITE, a READ, an atomic, a SEND, a duplicate, a gap, and finally an invalid key.
    b.take(&rdma(Opcode::RcWriteOnly, RQ, START, KEY, 5, b"bytes"));
    b.take(&read(RQ + 1, 0, 10));
    b.take(&fetch_add(RQ + 2, START, 1));
    b.take(&request(Opcode::RcSendOnly, RQ + 3, b"hello"));
    b.take(&request(Opcode::RcSendOnly, RQ + 3, b"hello"));
    b.take(&request(Opcode::RcSendOnly, RQ + 5, b""));
    // As requester: a SEND that gets an RNR NAK, one that is lost, and a READ whose response is lost.
    b.post(1, SEND, &[local(0, 20)]);
    b.post(2, SEND, &[]);
    b.post(3, READ, &[local(0, 8)]);
    b.post(4, SEND, &[]);
    b.sent();
    b.take(&refused(0x20 | 1, SQ));
    b.sleep(Duration::from_micros(10));
    b.sent();
    b.take(&refused(0x60, SQ + 1));
    b.sent();
    b.take(&acked(SQ + 3));
    b.sent();
    assert!(b.feed(&acked(SQ)).is_err());
    b.take(&rdma(Opcode::RcWriteOnlyImm, RQ + 4, START, 7, 1, b"x"));
    b.sent();
    let moved: Vec<_> = b.qp.counters().iter().filter(|(_, n)| *n > 0).collect();
    let expected = [
        // Answers: four, a NAK for the gap and one for the key. Requests: all four, twice, then three, then two.
        ("sent_pkts", 19),
        ("rcvd_pkts", 10),
        // 10 of the READ, and the 20 of the SEND, twice.
        ("sent_bytes", 50),
        ("rcvd_bytes", 16),
        ("duplicate_request", 1),
        ("out_of_seq_request", 1),
        ("rcvd_rnr_err", 1),
        ("rcvd_seq_err", 1),
        ("completer_retry_err", 2),
        ("ack_deferred", 1),
        ("rdma_sends", 3),
        ("rdma_recvs", 1),
        ("implied_nak_seq_err", 1),
        ("rx_write_requests", 1),
        ("rx_read_requests", 1),
        ("rx_atomic_requests", 1),
        ("resp_remote_access_errors", 1),
        ("resp_cqe_error", 1),
        ("req_cqe_flush_error", 2),
        ("retransmitted_pkts", 9),
        ("retransmitted_bytes", 20),
        ("ghost_responses", 1),
    ];
    assert_eq!(moved, expected);
}
