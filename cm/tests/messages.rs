//! Every message in every state: what changes the connection, what is answered again, what is dropped.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cm::{
    CallError, CmTimeout, ConnectionState, DisconnectCause, DropReason, Event, FailCause, RejReason, Silence,
    Subject, Transmit,
};
use qp::Qpn;
use qp::wire::mad::cm::Attribute::{Apr, Drep, Dreq, Mra, Rej, Rep, Req, Rtu};
use qp::wire::mad::cm::{AprStatus, Attribute, Body, Lap};
use support::*;
use time::Duration;

/// The last datagram of this type that a host sent.
fn last(world: &World, host: usize, attribute: Attribute) -> Transmit {
    let mut sent = world.sent.iter().rev();
    let found = sent.find(|(from, t)| *from == host && parse(&t.mad).attribute() == attribute);
    found.unwrap_or_else(|| panic!("no {}", attribute.name())).1
}

/// Delivers a datagram of a host once more; returns what the other host answers.
fn again(world: &mut World, host: usize, attribute: Attribute) -> Vec<Attribute> {
    let transmit = last(world, host, attribute);
    let before = world.sent.len();
    world.deliver(gid(host), transmit.to.remote, &transmit.mad);
    world.transmit();
    let answers = world.sent[before..].iter().map(|(_, t)| parse(&t.mad).attribute()).collect();
    world.lose();
    answers
}

fn dropped(world: &World, host: usize, reason: DropReason) -> u64 {
    world.hosts[host].counters().dropped(reason)
}

#[test]
fn a_request_that_comes_again_gets_the_same_answer() {
    let mut world = World::new(1);
    let (_, b) = world.requested();
    // The program has not answered: the peer is asked to wait.
    assert_eq!(again(&mut world, A, Req), [Mra]);
    let sent = last(&world, B, Mra);
    let Body::Mra(mra) = parse(&sent.mad).body else { panic!() };
    assert_eq!((mra.service_timeout, mra.message), (CmTimeout::new(24), Subject::Req));
    world.accept(b, 0x22);
    world.settle();
    let rep = last(&world, B, Rep);
    assert_eq!(again(&mut world, A, Req), [Rep]);
    assert_eq!(last(&world, B, Rep), rep);
    world.take(A);
    assert_eq!(world.take(B), []);
    assert_eq!(world.hosts[B].counters().repeated, 2);
}

#[test]
fn a_rejection_is_repeated() {
    let mut world = World::new(2);
    let (a, b) = world.requested();
    let now = world.now;
    world.hosts[B].reject(now, b, RejReason::ConsumerDefined, b"info", b"no").unwrap();
    assert_eq!(world.hosts[B].accept(now, b, &accepting()), Err(CallError::UnknownConnection));
    world.settle();
    let Event::Rejected { connection, rejection } = world.one(A) else { panic!() };
    assert_eq!(
        (connection, rejection.reason, rejection.message),
        (a, RejReason::ConsumerDefined, Subject::Req)
    );
    assert_eq!((&rejection.info[..], &rejection.private_data[..2]), (&b"info"[..], &b"no"[..]));
    assert_eq!(rejection.private_data.len(), 148);
    assert_eq!(again(&mut world, A, Req), [Rej]);
    assert_eq!(world.hosts[B].state(b), ConnectionState::Refused);
    // Much later, the request is a new one.
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.hosts[B].state(b), ConnectionState::Closed);
    assert_eq!(again(&mut world, A, Req), []);
    assert_ne!(world.request(B).0, b);
}

fn accepting() -> cm::Accept<'static> {
    cm::Accept {
        qpn: Qpn::new(0x22),
        srq: false,
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        flow_control: false,
        ece: cm::Ece::default(),
        private_data: &[],
    }
}

#[test]
fn nobody_listens() {
    let mut world = World::with(3, |config| config.hold = Duration::ZERO);
    let now = world.now;
    world.hosts[A].connect(now, &connect(A, B, 0x11)).unwrap();
    world.settle();
    let Event::Rejected { rejection, .. } = world.one(A) else { panic!() };
    assert_eq!(rejection.to_string(), "Nobody listens for this service ID (reject reason 8)");
}

#[test]
fn a_request_waits_for_its_listener() {
    let mut world = World::new(4);
    let now = world.now;
    world.hosts[A].connect(now, &connect(A, B, 0x11)).unwrap();
    world.settle();
    assert_eq!((world.take(B), world.hosts[B].counters().held), (vec![], 1));
    assert_eq!(again(&mut world, A, Req), []);
    world.run_for(Duration::from_millis(900));
    world.listen();
    world.collect();
    world.request(B);
    // Without a listener it is rejected after a second.
    let mut world = World::new(4);
    world.hosts[A].connect(now, &connect(A, B, 0x11)).unwrap();
    world.run_for(Duration::from_millis(999));
    assert_eq!(world.take(A), []);
    world.run_for(Duration::from_millis(2));
    assert!(matches!(world.one(A), Event::Rejected { .. }));
}

#[test]
fn a_reply_that_comes_again() {
    let mut world = World::new(5);
    let (a, _) = world.replied();
    // The program has not answered.
    assert_eq!(again(&mut world, B, Rep), [Mra]);
    let now = world.now;
    world.hosts[A].establish(now, a, b"ready").unwrap();
    world.lose();
    let rtu = last(&world, A, Rtu);
    assert_eq!(again(&mut world, B, Rep), [Rtu]);
    assert_eq!(last(&world, A, Rtu), rtu);
    assert_eq!(world.take(A), []);
    // The RTU was lost twice. A timer sends the REP, and the RTU arrives.
    world.run_for(Duration::from_secs(5));
    let Event::Established { private_data, .. } = world.one(B) else { panic!() };
    assert_eq!((&private_data[..5], private_data.len()), (&b"ready"[..], 224));
    assert_eq!(again(&mut world, A, Rtu), []);
    assert_eq!(dropped(&world, B, DropReason::Duplicate), 1);
    // A late REQ means nothing any more.
    assert_eq!(again(&mut world, A, Req), []);
    assert_eq!(dropped(&world, B, DropReason::Duplicate), 2);
}

#[test]
fn a_reply_to_a_request_that_was_given_up() {
    let mut world = World::new(6);
    let (a, b) = world.requested();
    let now = world.now;
    world.hosts[A].destroy(now, a).unwrap();
    world.lose();
    world.accept(b, 0x22);
    world.settle();
    let Event::Rejected { rejection, connection } = world.one(B) else { panic!() };
    assert_eq!((connection, rejection.reason), (b, RejReason::InvalidCommId));
    assert_eq!(dropped(&world, A, DropReason::UnknownConnection), 1);
}

#[test]
fn a_request_that_is_destroyed_is_taken_back() {
    for accepted in [false, true] {
        let mut world = World::new(7);
        let (a, b) = world.requested();
        if accepted {
            world.accept(b, 0x22);
            world.lose();
        }
        let now = world.now;
        world.hosts[A].destroy(now, a).unwrap();
        world.settle();
        let Event::Rejected { rejection, connection } = world.one(B) else { panic!() };
        assert_eq!((connection, rejection.reason), (b, RejReason::Timeout));
        assert_eq!(rejection.info[..], 0x5054_00ff_fe77_0001u64.to_be_bytes());
        // A REQ that comes late does not begin it again.
        assert_eq!(world.hosts[B].state(b), ConnectionState::TimeWait);
        assert_eq!(again(&mut world, A, Req), [Rej]);
        assert!(world.take(B).is_empty());
    }
}

#[test]
fn the_active_side_may_reject_the_reply() {
    let mut world = World::new(8);
    let (a, b) = world.replied();
    let now = world.now;
    world.hosts[A].reject(now, a, RejReason::ConsumerDefined, &[], b"no").unwrap();
    world.settle();
    let Event::Rejected { rejection, .. } = world.one(B) else { panic!() };
    assert_eq!(rejection.message, Subject::Rep);
    assert_eq!(world.hosts[B].state(b), ConnectionState::TimeWait);
    assert_eq!(again(&mut world, B, Rep), [Rej]);
}

#[test]
fn a_reply_that_was_refused_after_all() {
    // The passive side gives up while the RTU is on its way.
    let mut world = World::new(9);
    let (a, b) = world.replied();
    let now = world.now;
    world.hosts[B].destroy(now, b).unwrap();
    world.lose();
    world.hosts[A].establish(now, a, &[]).unwrap();
    world.settle();
    // The REJ was lost. DREQ is repeated until it is answered.
    assert_eq!(world.one(A), Event::Disconnected { connection: a, cause: DisconnectCause::Peer });
    assert_eq!(world.hosts[B].state(b), ConnectionState::DreqSent);
    world.hosts[A].disconnect(now, a, &[]).unwrap();
    world.settle();
    assert_eq!((world.hosts[B].state(b), world.take(B)), (ConnectionState::TimeWait, vec![]));
}

#[test]
fn the_end_is_confirmed_again() {
    let mut world = World::new(10);
    let (a, b) = world.established();
    let now = world.now;
    world.hosts[A].disconnect(now, a, &[]).unwrap();
    world.settle();
    world.take(B);
    assert_eq!(again(&mut world, A, Dreq), []);
    world.hosts[B].disconnect(now, b, &[]).unwrap();
    world.lose();
    assert_eq!(world.hosts[B].state(b), ConnectionState::TimeWait);
    // The DREP was lost: in TIMEWAIT it is sent again, and also when nothing is known any more.
    assert_eq!(again(&mut world, A, Dreq), [Drep]);
    world.hosts[B].handle_timeout(now + Duration::from_secs(3));
    assert_eq!(world.hosts[B].state(b), ConnectionState::Closed);
    let dreq = last(&world, A, Dreq);
    world.deliver(gid(A), gid(B), &dreq.mad);
    world.settle();
    assert_eq!(world.one(A), Event::Disconnected { connection: a, cause: DisconnectCause::Answered });
}

#[test]
fn both_sides_close_at_once() {
    let mut world = World::new(11);
    let (a, b) = world.established();
    let now = world.now;
    world.hosts[A].disconnect(now, a, &[]).unwrap();
    world.hosts[B].disconnect(now, b, &[]).unwrap();
    world.settle();
    for (host, connection) in [(A, a), (B, b)] {
        assert_eq!(world.one(host), Event::Disconnected { connection, cause: DisconnectCause::Answered });
        assert_eq!(world.hosts[host].state(connection), ConnectionState::TimeWait);
    }
}

#[test]
fn the_end_may_come_before_the_beginning() {
    let mut world = World::new(12);
    let (a, b) = world.replied();
    let now = world.now;
    world.hosts[A].establish(now, a, &[]).unwrap();
    world.lose();
    world.hosts[A].disconnect(now, a, &[]).unwrap();
    world.settle();
    assert_eq!(world.one(B), Event::Disconnected { connection: b, cause: DisconnectCause::Peer });
}

#[test]
fn a_packet_is_as_good_as_an_rtu() {
    let mut world = World::new(13);
    let (a, b) = world.replied();
    let now = world.now;
    assert!(matches!(
        world.hosts[A].communication_established(now, a),
        Err(CallError::WrongState { state: ConnectionState::RepReceived, .. })
    ));
    world.hosts[A].establish(now, a, &[]).unwrap();
    world.transmit();
    world.hosts[B].communication_established(now, b).unwrap();
    assert_eq!(world.hosts[B].communication_established(now, b), Err(CallError::AlreadyEstablished));
    world.settle();
    let Event::Established { private_data, .. } = world.one(B) else { panic!() };
    assert!(private_data.is_empty());
    assert_eq!(dropped(&world, B, DropReason::Duplicate), 1, "the RTU");
}

#[test]
fn destroying_tells_the_peer_and_not_the_program() {
    let mut world = World::new(14);
    let (a, b) = world.established();
    let now = world.now;
    world.hosts[A].destroy(now, a).unwrap();
    assert_eq!(world.hosts[A].destroy(now, a), Err(CallError::UnknownConnection));
    world.lose();
    // The DREQ is repeated until it is answered.
    world.run_for(Duration::from_secs(7));
    assert_eq!(world.one(B), Event::Disconnected { connection: b, cause: DisconnectCause::Peer });
    world.hosts[B].destroy_all(now);
    world.run_for(Duration::from_secs(60));
    assert_eq!((world.take(A), world.take(B)), (vec![], vec![]));
    assert_eq!([A, B].map(|host| world.hosts[host].sizes()), [(0, 0, 0); 2]);
    // After the program is gone, a DREQ is confirmed without it.
    let (a, b) = world_pair(&mut world);
    let now = world.now;
    world.hosts[A].destroy(now, a).unwrap();
    world.hosts[B].destroy(now, b).unwrap();
    world.run_for(Duration::from_secs(60));
    assert_eq!([A, B].map(|host| world.hosts[host].sizes()), [(0, 0, 0); 2]);
}

/// Another connection between hosts of which one listens already.
fn world_pair(world: &mut World) -> (cm::ConnectionId, cm::ConnectionId) {
    let now = world.now;
    let a = world.hosts[A].connect(now, &connect(A, B, 0x31)).unwrap();
    world.settle();
    let (b, _) = world.request(B);
    world.accept(b, 0x32);
    world.settle();
    world.take(A);
    world.hosts[A].establish(now, a, &[]).unwrap();
    world.settle();
    world.take(B);
    (a, b)
}

#[test]
fn a_request_is_repeated_fifteen_times() {
    let mut world = World::new(15);
    world.faults.loss = 255;
    let now = world.now;
    let a = world.hosts[A].connect(now, &connect(A, B, 0x11)).unwrap();
    // Twice 1.07 s for the way, 4.29 s for the answer.
    let interval = CmTimeout::new(18).duration() * 2 + CmTimeout::new(20).duration();
    world.run_for(interval - Duration::from_millis(1));
    assert_eq!(world.hosts[A].take_silence(), None);
    world.run_for(Duration::from_millis(2));
    let silence = world.hosts[A].take_silence().unwrap();
    assert_eq!(silence, Silence { peer: gid(B), message: Req, left: 14 });
    let line = silence.to_string();
    assert!(line.ends_with(" has not answered the REQ, which is sent again, up to 15 times"), "{line}");
    assert_eq!(world.hosts[A].take_silence(), None, "it is told once");
    world.run_for(interval * 15 - Duration::from_millis(2));
    assert_eq!(world.take(A), []);
    world.run_for(Duration::from_millis(2));
    let cause = FailCause::Unreachable { message: Req };
    assert_eq!(world.one(A), Event::Failed { connection: a, cause });
    let expected: Vec<_> = [(A, Req); 16].into_iter().chain([(A, Rej)]).collect();
    assert_eq!(world.messages(), expected);
    assert_eq!(cause.to_string(), "The peer does not answer the REQ");
}

#[test]
fn an_mra_extends_a_wait_once() {
    let mut world = World::new(16);
    let (a, b) = world.requested();
    let now = world.now;
    world.hosts[B].wait(now, b, CmTimeout::new(22)).unwrap();
    world.settle();
    // The second one changes nothing until the REQ is repeated.
    assert_eq!(again(&mut world, B, Mra), []);
    assert_eq!(dropped(&world, A, DropReason::Duplicate), 1);
    let wait = CmTimeout::new(22).duration() + CmTimeout::new(19).duration();
    assert_eq!(world.hosts[A].poll_timeout(), Some(now + wait));
    world.run_for(wait + Duration::from_millis(1));
    assert_eq!(world.messages().iter().filter(|m| **m == (A, Req)).count(), 2);
    assert_eq!(world.hosts[A].state(a), ConnectionState::ReqSent);
    // The same for a REP.
    let mut world = World::new(16);
    let (a, b) = world.replied();
    world.hosts[A].wait(now, a, CmTimeout::new(23)).unwrap();
    world.settle();
    world.run_for(Duration::from_secs(30));
    assert_eq!(world.messages().iter().filter(|m| **m == (B, Rep)).count(), 1);
    assert_eq!(world.hosts[B].state(b), ConnectionState::RepSent);
    assert!(matches!(
        world.hosts[B].wait(now, b, CmTimeout::new(20)),
        Err(CallError::WrongState { call: "wait", state: ConnectionState::RepSent })
    ));
}

#[test]
fn a_reply_without_an_answer_is_taken_back() {
    let mut world = World::new(17);
    world.proven = true;
    let (a, b) = world.replied();
    let now = world.now;
    world.hosts[A].establish(now, a, &[]).unwrap();
    world.lose();
    world.faults.loss = 255;
    world.run_for(Duration::from_secs(200));
    let cause = FailCause::Unreachable { message: Rep };
    assert_eq!(world.one(B), Event::Failed { connection: b, cause });
    assert_eq!(world.messages().iter().filter(|m| **m == (B, Rep)).count(), 16);
    // The REJ was lost too; A hears of it when it says something.
    let mut heard = world;
    heard.faults.loss = 0;
    assert_eq!(heard.hosts[A].state(a), ConnectionState::Established);
    let now = heard.now;
    heard.hosts[A].disconnect(now, a, &[]).unwrap();
    heard.settle();
    assert_eq!(heard.one(A), Event::Disconnected { connection: a, cause: DisconnectCause::Answered });
}

#[test]
fn a_request_without_an_answer_of_the_program_expires() {
    let mut world = World::new(18);
    let (_, b) = world.requested();
    world.faults.loss = 255;
    world.run_for(Duration::from_secs(130));
    assert_eq!(world.take(B)[0], Event::Failed { connection: b, cause: FailCause::Expired });
    let now = world.now;
    assert_eq!(world.hosts[B].accept(now, b, &accepting()), Err(CallError::UnknownConnection));
}

#[test]
fn a_disconnect_without_an_answer() {
    let mut world = World::new(19);
    let (a, _) = world.established();
    let now = world.now;
    world.faults.loss = 255;
    world.hosts[A].disconnect(now, a, &[]).unwrap();
    world.run_for(Duration::from_secs(110));
    assert_eq!(
        world.take(A),
        [
            Event::Disconnected { connection: a, cause: DisconnectCause::Unanswered },
            Event::TimeWaitExit { connection: a }
        ]
    );
    assert_eq!(world.messages().iter().filter(|m| **m == (A, Dreq)).count(), 16);
}

#[test]
fn alternate_paths_are_refused() {
    let mut world = World::new(20);
    let (a, b) = world.established();
    let lap = |local: cm::CommId, remote: cm::CommId, qpn| Lap {
        local_comm_id: local,
        remote_comm_id: remote,
        remote_qpn: Qpn::new(qpn),
        ..Lap::default()
    };
    let (a, b) = (a.comm_id(), b.comm_id());
    for (lap, expected) in [
        (lap(a, b, 0x22), AprStatus::Unsupported),
        (lap(a, b, 0x23), AprStatus::InvalidQpn),
        (lap(b, b, 0x22), AprStatus::InvalidCommId),
        (lap(a, a, 0x22), AprStatus::InvalidCommId),
    ] {
        let message =
            qp::wire::mad::cm::Message { transaction_id: 9, attribute_modifier: 0, body: Body::Lap(lap) };
        world.deliver(gid(A), gid(B), &emit(&message));
        world.transmit();
        let answer = last(&world, B, Apr);
        let answer = parse(&answer.mad);
        let Body::Apr(apr) = answer.body else { panic!() };
        assert_eq!((apr.status, answer.transaction_id), (expected, 9));
        assert_eq!((apr.local_comm_id, apr.remote_comm_id), (lap.remote_comm_id, lap.local_comm_id));
    }
    world.settle();
    assert_eq!(dropped(&world, A, DropReason::WrongState), 4, "nobody asked for these");
    assert_eq!(world.hosts[A].counters().received(Apr), 4);
    assert_eq!(world.hosts[B].counters().sent(Apr), 4);
}

/// The REP was lost, and then the passive side changed its mind: its REJ is about a message that never arrived.
#[test]
fn a_reply_that_never_arrived_is_refused() {
    let mut world = World::new(21);
    let (a, b) = world.requested();
    world.accept(b, 0x22);
    world.lose();
    let now = world.now;
    world.hosts[B].destroy(now, b).unwrap();
    world.settle();
    let Event::Rejected { connection, rejection } = world.one(A) else { panic!() };
    assert_eq!((connection, rejection.message), (a, Subject::Other));
    assert_eq!(world.hosts[A].sizes(), (0, 0, 0));
}

/// A host may connect to itself.
#[test]
fn both_sides_are_one_endpoint() {
    let mut world = World::new(22);
    let now = world.now;
    world.hosts[A].listen(now, &listen()).unwrap();
    let active = world.hosts[A].connect(now, &connect(A, A, 0x11)).unwrap();
    world.settle();
    let (passive, _) = world.request(A);
    world.hosts[A].accept(now, passive, &accepting()).unwrap();
    world.settle();
    assert!(matches!(world.one(A), Event::ConnectResponse { connection, .. } if connection == active));
    world.hosts[A].establish(now, active, &[]).unwrap();
    world.settle();
    assert!(matches!(world.one(A), Event::Established { connection, .. } if connection == passive));
    world.hosts[A].disconnect(now, passive, &[]).unwrap();
    world.settle();
    assert_eq!(world.one(A), Event::Disconnected { connection: active, cause: DisconnectCause::Peer });
    world.hosts[A].disconnect(now, active, &[]).unwrap();
    world.settle();
    assert_eq!(world.one(A), Event::Disconnected { connection: passive, cause: DisconnectCause::Answered });
}
