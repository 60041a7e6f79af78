//! What congestion control requires of a queue pair.

use super::*;

#[test]
fn a_slow_sender_asks_for_acknowledgements_in_time() {
    // 4.096 us x 2^14 is 67 ms; a quarter of that holds three packets of 5 ms, and less than one of 20 ms.
    let every_third = vec![2, 5, 8, 11, 14, 17, 19];
    for (packet_time, feedback, asked) in [
        (1, None, vec![15, 19]),
        (5, None, every_third.clone()),
        (20, None, (0..20).collect()),
        // The rate follows from the acknowledgements.
        (1, Some(3), every_third.clone()),
        (1, Some(0), (0..20).collect()),
        (5, Some(100), every_third),
    ] {
        let setup = Setup { timeout: 14, ..Setup::default() };
        let tuning = Tuning { ack_interval: 16, ..setup.tuning };
        let mut b = Setup { tuning, ..setup }.rts();
        b.qp.set_packet_time(Duration::from_millis(packet_time), feedback.map(Duration::from_millis));
        b.post(1, SEND, &[local(0, 20 * MTU)]);
        let sent = b.sent();
        let psns: Vec<_> = sent.iter().filter(|p| p.headers.ack_req).map(|p| p.psn() - SQ).collect();
        assert_eq!(psns, asked, "{packet_time} ms, at least one in {feedback:?} ms");
    }
}

#[test]
fn a_mark_is_returned_once_with_the_next_answer() {
    let mut b = Setup::default().rts();
    let marked = |mut out: Out| {
        out.headers.becn = true;
        out
    };
    b.qp.echo_congestion();
    assert!(!b.qp.wants_to_transmit(), "it waits for an answer");
    b.expect(&rdma(Opcode::RcWriteOnly, RQ, START, KEY, 1, b"x"), &[marked(ack(RQ, 1))]);
    b.expect(&rdma(Opcode::RcWriteOnly, RQ + 1, START, KEY, 1, b"x"), &[ack(RQ + 1, 2)]);
    b.qp.echo_congestion();
    let mut responses = read_responses(PEERS, RQ + 2, 3, &[0; 2 * MTU]);
    responses[0] = marked(responses[0].clone());
    b.expect(&read(RQ + 2, 100, 2 * MTU), &responses);
    // This service has no acknowledgements, so nothing is kept.
    let mut uc = Setup { qp_type: QpType::Uc, ..Setup::default() }.rts();
    uc.qp.echo_congestion();
    assert!(!uc.qp.wants_to_acknowledge());
}

#[test]
fn acknowledgements_need_no_budget_but_wait_behind_read_responses() {
    let mut b = Setup::default().rts();
    assert!(!b.qp.wants_to_acknowledge());
    b.take(&rdma(Opcode::RcWriteOnly, RQ, START, KEY, 1, b"x"));
    assert!(b.qp.wants_to_acknowledge());
    b.take(&read(RQ + 1, 0, MTU));
    b.take(&rdma(Opcode::RcWriteOnly, RQ + 2, START, KEY, 1, b"x"));
    let poll = |b: &mut Bench, mut budget| {
        let mut buf = [0; 4096];
        let mut train = Train::new(&mut buf, Bench::flow(), 64);
        b.qp.poll_transmit(b.now, &mut train, &mut budget, &mut b.host);
        train.packets()
    };
    assert_eq!(poll(&mut b, Budget::none()), 1);
    assert!(!b.qp.wants_to_acknowledge() && b.qp.wants_to_transmit());
    assert_eq!(poll(&mut b, Budget::none()), 0);
    assert_eq!(poll(&mut b, Budget::default()), 2, "the READ response, followed by the acknowledgement");
}

#[test]
fn a_train_is_bounded_in_bytes_but_for_its_first_packet() {
    // A packet is 256 bytes, BTH and ICRC; with the overhead it counts as 300.
    for (max, packets) in [(0, 1), (299, 1), (599, 1), (600, 2), (900, 3), (usize::MAX, 8)] {
        let mut b = Setup::default().rts();
        b.post(1, SEND, &[local(0, 8 * MTU)]);
        let mut buf = [0; 4096];
        let mut train = Train::new(&mut buf, Bench::flow(), 64);
        train.limit_bytes(max, 300 - (MTU + 16));
        assert!(b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host) || packets == 8);
        assert_eq!(train.packets(), packets, "{max} bytes");
    }
}

#[test]
fn the_payload_of_the_next_packet_is_known_before_it_is_built() {
    let mut b = Setup::default().rts();
    assert_eq!(b.qp.next_payload(), 0, "the budget is empty");
    b.post(1, SEND, &[local(0, 40)]);
    b.post(2, SEND, &[local(0, 3 * MTU)]);
    assert_eq!(b.qp.next_payload(), 40);
    // A larger packet does not join the train, whose segments are as long as its first packet.
    let mut buf = [0; 4096];
    let mut train = Train::new(&mut buf, Bench::flow(), 64);
    assert!(b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host));
    assert_eq!(train.packets(), 1);
    assert_eq!(b.qp.next_payload(), MTU as u32);
    assert_eq!(b.sent().len(), 3);
    b.take(&rdma(Opcode::RcWriteOnly, RQ, START, KEY, 1, b"x"));
    assert_eq!(b.qp.next_payload(), 0, "an acknowledgement");
    b.take(&read(RQ + 1, 0, 1));
    assert_eq!(b.qp.next_payload(), MTU as u32, "its responses are ignored");
}
