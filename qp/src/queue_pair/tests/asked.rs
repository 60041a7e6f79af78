//! What the engine queries before it lets a queue pair send.

use super::*;
use crate::ids::PKey;
use std::sync::Arc;

/// Sends one train of at most `max` packets; returns the number of packets.
fn one_train(b: &mut Bench, max: u32) -> u32 {
    let mut buf = [0; 65_536];
    let mut train = Train::new(&mut buf, Bench::flow(), max);
    b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
    train.packets()
}

#[test]
fn accessors_return_the_queue_pair_and_its_peer() {
    let mut b = Setup::default().init();
    assert_eq!((b.qp.qpn(), b.qp.dest_qpn(), b.qp.pkey()), (OURS, Qpn::default(), PKey::DEFAULT));
    b.modify(&Setup::default().to_rtr());
    assert_eq!(b.qp.dest_qpn(), PEERS);
    b.modify(&Setup::default().to_rts());
    let pkey = PKey(0x8123);
    b.qp.set_pkey(pkey);
    assert_eq!(b.qp.pkey(), pkey);
    b.post(1, SEND, &[]);
    b.post(2, SEND, &[]);
    assert_eq!(b.qp.sends_outstanding(), 2);
    assert!(b.sent().iter().all(|out| out.headers.pkey == pkey));
    b.take(&acked(SQ));
    assert_eq!(b.qp.sends_outstanding(), 1);
}

/// Packets after the last one that asked for an acknowledgement are in flight, and nothing will acknowledge them.
#[test]
fn it_owes_an_acknowledgement_request_in_the_middle_of_a_message() {
    let mut b = Setup::default().rts();
    assert_eq!(b.qp.since_ack_request(), 0, "nothing is in flight");
    b.post(1, SEND, &[local(0, 3 * MTU)]);
    assert_eq!(b.qp.since_ack_request(), 0, "nothing has been sent yet");
    one_train(&mut b, 1);
    assert!(b.qp.since_ack_request() > 0);
    one_train(&mut b, 2);
    assert_eq!(b.qp.since_ack_request(), 0, "the last packet asked");
    b.take(&acked(SQ + 2));
    assert_eq!(b.qp.since_ack_request(), 0);
    // A peer may acknowledge without being asked.
    b.post(2, SEND, &[local(0, 3 * MTU)]);
    one_train(&mut b, 2);
    b.take(&acked(SQ + 4));
    assert_eq!(b.qp.since_ack_request(), 0, "everything that was sent is answered");
}

#[test]
fn answers_and_requests_are_told_apart() {
    let mut b = Setup::default().rts();
    let asked = |b: &Bench| {
        (
            b.qp.wants_to_transmit(),
            b.qp.wants_to_answer(),
            b.qp.wants_to_acknowledge(),
            b.qp.only_acknowledges(),
        )
    };
    assert_eq!(asked(&b), (false, false, false, true));
    b.post(1, SEND, &[]);
    assert_eq!(asked(&b), (true, false, false, false));
    b.take(&rdma(Opcode::RcWriteOnly, RQ, START, KEY, 1, b"x"));
    assert_eq!(asked(&b), (true, true, true, false));
    assert_eq!(b.sent().len(), 2);
    b.take(&rdma(Opcode::RcWriteOnly, RQ + 1, START, KEY, 1, b"x"));
    assert_eq!(asked(&b), (true, true, true, true));
    b.sent();
    b.take(&read(RQ + 2, 0, 1));
    assert_eq!(asked(&b), (true, true, false, false));
    b.sent();
    assert_eq!(asked(&b), (false, false, false, true));
}

/// A bind or an invalidation sends nothing itself, and the next packet may have the maximum length.
#[test]
fn behind_a_local_operation_anything_may_follow() {
    let mut b = Setup::default().rts();
    b.host.windows.push(Window { key: 50, bound_by: Some(OURS) });
    b.post(1, Operation::LocalInvalidate { key: 50 }, &[]);
    b.post(2, SEND, &[local(0, MTU)]);
    assert_eq!(b.qp.next_payload(), MTU as u32);
    assert_eq!(b.sent().len(), 1);
    assert_eq!(b.qp.next_payload(), 0);
}

/// Several queue pairs may share a train; each counts only its own packets.
#[test]
fn packets_of_a_train_that_others_began_are_not_counted() {
    let path = Arc::new(AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, 3)), 0));
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let mut b = Setup::of(qp_type).rts();
        let mut buf = [0; 65_536];
        let mut train = Train::new(&mut buf, Bench::flow(), 64);
        for sent in 1..=3 {
            let mut wr = SendWr::new(sent, SEND, local(0, 40));
            if qp_type == QpType::Ud {
                wr = wr.to(Destination::Datagram { path: Arc::clone(&path), qpn: PEERS, qkey: QKEY });
            }
            b.qp.post_send(wr, &mut b.host).unwrap();
            b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
            assert_eq!((u64::from(train.packets()), b.qp.counters().sent_pkts), (sent, sent), "{qp_type:?}");
        }
    }
}
