//! Many requests to one peer: it is sent as many at a time as it has room for.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cm::{Attribute, ConnectionId, ConnectionState, DropReason, Event, FailCause};
use support::*;
use time::Duration;

/// Host A asks for this many connections at once.
fn ask(world: &mut World, count: u32) -> Vec<ConnectionId> {
    let now = world.now;
    (0..count).map(|n| world.hosts[A].connect(now, &connect(A, B, 0x100 + n)).unwrap()).collect()
}

/// How many REQs were sent.
fn requests(world: &World) -> usize {
    world.messages().into_iter().filter(|message| *message == (A, Attribute::Req)).count()
}

#[test]
fn requests_in_a_burst_take_turns_and_none_is_lost_or_repeated() {
    let mut world = World::new(1);
    world.listen();
    let most = world.hosts[A].config().limits.requests_per_peer;
    let asked = ask(&mut world, 3000);
    world.settle();
    assert_eq!(requests(&world), most);
    let begin = world.now;
    let mut accepted = 0;
    while accepted < asked.len() {
        for event in world.take(B) {
            if let Event::ConnectRequest { connection, .. } = event {
                accepted += 1;
                world.accept(connection, 0x10_0000 + accepted as u32);
            }
        }
        world.settle();
        for event in world.take(A) {
            let Event::ConnectResponse { connection, .. } = event else { panic!("{event:?}") };
            let now = world.now;
            world.hosts[A].establish(now, connection, &[]).unwrap();
        }
        world.settle();
    }
    assert_eq!((requests(&world), world.now), (3000, begin), "each once, without a timer");
    for id in asked {
        assert_eq!(world.hosts[A].state(id), ConnectionState::Established);
    }
    let dropped: u64 = DropReason::ALL.iter().map(|reason| world.hosts[B].counters().dropped(*reason)).sum();
    assert_eq!((dropped, world.hosts[A].counters().retries), (0, 0));
}

/// A peer that accepts one request after the other, with time in between: those behind wait longer than a REQ waits
/// for its answer, and are not sent for that.
#[test]
fn a_request_waits_for_its_turn_while_others_are_answered() {
    let mut world = World::with(2, |config| config.limits.requests_per_peer = 1);
    world.listen();
    ask(&mut world, 4);
    for number in 1..=4 {
        world.settle();
        let (connection, _) = world.request(B);
        world.run_for(Duration::from_secs(5));
        assert_eq!((requests(&world), world.hosts[A].counters().retries), (number, 0));
        world.accept(connection, 0x10_0000 + number as u32);
        world.settle();
        let Event::ConnectResponse { connection, .. } = world.one(A) else { panic!("no answer") };
        let now = world.now;
        world.hosts[A].establish(now, connection, &[]).unwrap();
        world.settle();
        world.events[B].retain(|event| matches!(event, Event::ConnectRequest { .. }));
    }
}

/// At the peer it takes a place until the RTU.
#[test]
fn a_request_has_its_turn_when_the_one_before_it_is_confirmed() {
    let mut world = World::with(5, |config| config.limits.requests_per_peer = 1);
    world.listen();
    ask(&mut world, 2);
    world.settle();
    let (connection, _) = world.request(B);
    world.accept(connection, 0x10_0000);
    world.settle();
    let Event::ConnectResponse { connection, .. } = world.one(A) else { panic!("no answer") };
    assert_eq!(requests(&world), 1);
    let now = world.now;
    world.hosts[A].establish(now, connection, &[]).unwrap();
    world.settle();
    assert_eq!(requests(&world), 2);
}

/// The last ones fail when the first ones do, and have been sent by then.
#[test]
fn a_peer_that_answers_none_holds_up_none() {
    let mut world = World::with(3, |config| config.limits.requests_per_peer = 2);
    world.faults.loss = 255;
    let asked = ask(&mut world, 5);
    while world.events[A].is_empty() {
        world.lose();
        assert!(world.step());
    }
    // Each was sent again each time; those that waited, once less.
    assert_eq!(requests(&world), 2 * 16 + 3 * 15);
    assert_eq!(world.hosts[A].counters().retries, 2 * 15 + 3 * 14);
    world.run_for(Duration::ZERO);
    let failed = world.take(A).into_iter().filter(|event| {
        matches!(event, Event::Failed { cause: FailCause::Unreachable { message: Attribute::Req }, .. })
    });
    assert_eq!(failed.count(), asked.len());
}

#[test]
fn one_that_is_given_up_before_its_turn_is_not_sent() {
    let mut world = World::with(4, |config| config.limits.requests_per_peer = 1);
    let asked = ask(&mut world, 3);
    let now = world.now;
    world.hosts[A].destroy(now, asked[1]).unwrap();
    world.lose();
    assert_eq!(world.messages(), [(A, Attribute::Req)]);
    // The first one, given up, makes room for the last.
    world.hosts[A].destroy(now, asked[0]).unwrap();
    world.lose();
    assert_eq!(world.messages()[1..], [(A, Attribute::Req), (A, Attribute::Rej)]);
    assert_eq!(world.hosts[A].sizes().0, 1);
}
