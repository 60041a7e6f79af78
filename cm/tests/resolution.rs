//! Service ID resolution: both sides, duplicates, bounds, strangers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cm::{
    CallError, DropReason, Ece, Event, IpCm, Listen, QueryId, Reply, ResolutionId, Resolve, ServiceId,
    SidrStatus, Silence, UDP_QKEY,
};
use qp::wire::mad::cm::{Attribute, Body, CommId};
use qp::{QKey, QpType, Qpn};
use support::*;
use time::Duration;

const UDP: ServiceId = ServiceId::udp(7471);

fn resolve<'a>() -> Resolve<'a> {
    Resolve::new(UDP, path(A, B))
}

fn reply(status: SidrStatus) -> Reply<'static> {
    let ece = Ece { vendor_id: 0x12_3456, options: 7 };
    Reply { status, qpn: Qpn::new(0x44), qkey: UDP_QKEY, ece, private_data: b"here" }
}

/// Host A asks host B; the query has arrived.
fn asked(world: &mut World) -> (ResolutionId, QueryId) {
    let now = world.now;
    world.hosts[B].listen(now, &Listen { service_id: UDP, qp_type: QpType::Ud, ..listen() }).unwrap();
    let resolution = world.hosts[A].resolve(now, &Resolve { private_data: b"where?", ..resolve() }).unwrap();
    world.settle();
    let Event::ResolveRequest { query, request } = world.one(B) else { panic!() };
    assert_eq!((request.service_id, &request.private_data[..6]), (UDP, &b"where?"[..]));
    assert_eq!((request.private_data.len(), request.to.remote), (216, gid(A)));
    (resolution, query)
}

#[test]
fn a_service_is_resolved() {
    let mut world = World::new(1);
    let (resolution, query) = asked(&mut world);
    let now = world.now;
    let long = Reply { private_data: &[0; 137], ..reply(SidrStatus::Valid) };
    assert!(matches!(
        world.hosts[B].reply(now, query, &long),
        Err(CallError::PrivateDataTooLong { max: 136, .. })
    ));
    world.hosts[B].reply(now, query, &reply(SidrStatus::Valid)).unwrap();
    assert_eq!(world.hosts[B].reply(now, query, &reply(SidrStatus::Valid)), Err(CallError::UnknownQuery));
    world.settle();
    let Event::Resolved { resolution: of, resolved } = world.one(A) else { panic!() };
    assert_eq!((of, resolved.qpn, resolved.qkey), (resolution, Qpn::new(0x44), QKey(0x0123_4567)));
    assert_eq!(resolved.ece, Ece { vendor_id: 0x12_3456, options: 7 });
    assert_eq!((&resolved.private_data[..4], resolved.private_data.len()), (&b"here"[..], 136));
    assert_eq!(world.hosts[A].poll_timeout(), None);
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.hosts[B].poll_timeout(), None);
}

#[test]
fn a_query_may_be_refused() {
    let mut world = World::new(2);
    let (resolution, query) = asked(&mut world);
    let now = world.now;
    world.hosts[B].reply(now, query, &reply(SidrStatus::Rejected)).unwrap();
    world.settle();
    let Event::NotResolved { resolution: of, status, private_data } = world.one(A) else { panic!() };
    assert_eq!((of, status, &private_data[..4]), (resolution, Some(SidrStatus::Rejected), &b"here"[..]));
}

#[test]
fn nobody_offers_the_service() {
    for listens in [false, true] {
        let mut world = World::new(3);
        if listens {
            // For connections.
            let now = world.now;
            world.hosts[B].listen(now, &Listen { service_id: UDP, ..listen() }).unwrap();
        }
        let now = world.now;
        world.hosts[A].resolve(now, &resolve()).unwrap();
        world.settle();
        assert_eq!(world.hosts[B].counters().held, 1);
        assert_eq!(world.events[A].len(), 0);
        world.run_for(Duration::from_secs(2));
        assert!(matches!(world.one(A), Event::NotResolved { status: Some(SidrStatus::Unsupported), .. }));
        assert_eq!(world.hosts[B].poll_timeout(), None);
    }
}

/// A program that resolves the moment its peer is up must not depend on which of the two is faster.
#[test]
fn a_query_waits_for_a_listener_that_comes_a_little_late() {
    let mut world = World::new(3);
    let resolution = world.hosts[A].resolve(world.now, &resolve()).unwrap();
    world.run_for(Duration::from_millis(500));
    let now = world.now;
    // This one resolves nothing.
    world.hosts[B].listen(now, &Listen { service_id: UDP, ..listen() }).unwrap();
    world.collect();
    assert_eq!(world.events[B].len(), 0);
    world.hosts[B]
        .listen(now, &Listen { service_id: ServiceId::udp(7472), qp_type: QpType::Ud, ..listen() })
        .unwrap();
    world.collect();
    assert_eq!(world.events[B].len(), 0);
    let address = Some(gid(B));
    world.hosts[B]
        .listen(now, &Listen { service_id: UDP, qp_type: QpType::Ud, address, ..listen() })
        .unwrap();
    world.collect();
    let Event::ResolveRequest { query, .. } = world.one(B) else { panic!() };
    world.hosts[B].reply(now, query, &reply(SidrStatus::Valid)).unwrap();
    world.settle();
    let Event::Resolved { resolution: of, .. } = world.one(A) else { panic!() };
    assert_eq!(of, resolution);
    // It is not refused later on.
    world.run_for(Duration::from_secs(20));
    assert_eq!((world.events[A].len(), world.hosts[B].poll_timeout()), (0, None));
}

#[test]
fn addresses_are_those_of_the_packet() {
    for (src, reached) in [(A, true), (B, false)] {
        let mut world = World::new(4);
        let now = world.now;
        let listen = Listen { service_id: UDP, qp_type: QpType::Ud, with_addresses: true, ..listen() };
        world.hosts[B].listen(now, &listen).unwrap();
        let addresses = Some(IpCm { src_port: 1, src: gid(src).ip(), dst: gid(B).ip() });
        let too_long = Resolve { addresses, private_data: &[0; 181], ..resolve() };
        assert!(matches!(
            world.hosts[A].resolve(now, &too_long),
            Err(CallError::PrivateDataTooLong { len: 181, max: 180, .. })
        ));
        world.hosts[A].resolve(now, &Resolve { addresses, ..resolve() }).unwrap();
        world.settle();
        match &world.take(B)[..] {
            [Event::ResolveRequest { request, .. }] if reached => assert_eq!(request.private_data.len(), 180),
            [] if !reached => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn requests_and_answers_are_repeated() {
    let mut world = World::new(5);
    let (_, query) = asked(&mut world);
    // The program takes its time: a second request is the same query.
    world.run_for(Duration::from_secs(7));
    assert_eq!(world.take(B), []);
    assert_eq!(world.hosts[B].counters().dropped(DropReason::Duplicate), 1);
    let now = world.now;
    world.hosts[B].reply(now, query, &reply(SidrStatus::Valid)).unwrap();
    world.lose();
    world.run_for(Duration::from_secs(7));
    assert!(matches!(world.one(A), Event::Resolved { .. }));
    assert_eq!(world.take(B), []);
    assert_eq!(world.hosts[B].counters().repeated, 1);
}

#[test]
fn nobody_is_there() {
    let mut world = World::new(6);
    world.faults.loss = 255;
    let now = world.now;
    let resolution = world.hosts[A].resolve(now, &resolve()).unwrap();
    world.run_for(Duration::from_secs(200));
    let expected = Event::NotResolved { resolution, status: None, private_data: Box::default() };
    assert_eq!(world.one(A), expected);
    assert_eq!(world.sent.len(), 16);
    let silence = Silence { peer: gid(B), message: Attribute::SidrReq, left: 0 };
    assert_eq!(world.hosts[A].take_silence(), Some(silence));
    let given_up = world.hosts[A].resolve(world.now, &resolve()).unwrap();
    assert!(world.hosts[A].cancel(given_up) && !world.hosts[A].cancel(given_up));
    assert_eq!((world.hosts[A].poll_timeout(), world.hosts[A].poll_transmit(now)), (None, None));
}

#[test]
fn answers_of_strangers_are_dropped() {
    let mut world = World::new(7);
    let (_, query) = asked(&mut world);
    let now = world.now;
    world.hosts[B].reply(now, query, &reply(SidrStatus::Valid)).unwrap();
    world.lose();
    let good = world.sent.last().expect("the answer").1.mad;
    let message = parse(&good);
    let changed = |change: fn(&mut qp::wire::mad::cm::Message<'_>)| {
        let mut message = message;
        change(&mut message);
        emit(&message)
    };
    world.deliver(gid(7), gid(A), &good);
    let other_transaction = changed(|m| m.transaction_id ^= 1);
    let other_service = changed(|m| {
        if let Body::SidrRep(rep) = &mut m.body {
            rep.service_id = ServiceId(1);
        }
    });
    let other_request = changed(|m| {
        if let Body::SidrRep(rep) = &mut m.body {
            rep.request_id = CommId(rep.request_id.0 ^ 1);
        }
    });
    for bytes in [other_transaction, other_service, other_request] {
        world.deliver(gid(B), gid(A), &bytes);
    }
    assert_eq!(world.take(A), []);
    assert_eq!(world.hosts[A].counters().dropped(DropReason::NotThisConnection), 3);
    assert_eq!(world.hosts[A].counters().dropped(DropReason::UnknownConnection), 1);
    world.deliver(gid(B), gid(A), &good);
    assert!(matches!(world.one(A), Event::Resolved { .. }));
}

#[test]
fn queries_are_bounded() {
    let mut world = World::with(8, |config| {
        // Host A sends more at a time than host B takes.
        let is_a = config.ca_guid & 3 == 1;
        config.limits.queries_per_source = if is_a { 16 } else { 2 };
        (config.limits.queries, config.limits.resolutions) = (3, 4);
    });
    let (_, first) = asked(&mut world);
    let mut requests = Vec::new();
    for _ in 0..3 {
        let now = world.now;
        world.hosts[A].resolve(now, &resolve()).unwrap();
        requests.push(world.hosts[A].poll_transmit(now).unwrap().mad);
    }
    assert!(matches!(world.hosts[A].resolve(world.now, &resolve()), Err(CallError::Full { max: 4, .. })));
    for (request, from) in requests.iter().zip([A, A, 5]) {
        world.deliver(gid(from), gid(B), request);
    }
    assert_eq!((world.take(B).len(), world.hosts[B].counters().dropped(DropReason::SourceQuota)), (2, 1));
    world.deliver(gid(6), gid(B), &requests[0]);
    assert_eq!(world.hosts[B].counters().dropped(DropReason::QueriesFull), 1);
    // An answered query makes room.
    let now = world.now;
    world.hosts[B].reply(now, first, &reply(SidrStatus::Valid)).unwrap();
    world.deliver(gid(6), gid(B), &requests[0]);
    assert_eq!(world.take(B).len(), 1);
    assert_eq!(world.hosts[B].counters().received(Attribute::SidrReq), 6);
}

/// A program that asks for many services at once: the peer takes some at a time, and answers that are kept to be
/// repeated do not count.
#[test]
fn queries_in_a_burst_take_turns_and_none_is_lost_or_repeated() {
    let mut world = World::new(9);
    let now = world.now;
    world.hosts[B].listen(now, &Listen { service_id: UDP, qp_type: QpType::Ud, ..listen() }).unwrap();
    let most = world.hosts[A].config().limits.queries_per_source;
    for _ in 0..200 {
        world.hosts[A].resolve(now, &resolve()).unwrap();
    }
    world.settle();
    assert_eq!(world.sent.len(), most);
    let mut resolved = 0;
    while resolved < 200 {
        let queries = world.take(B);
        assert!(!queries.is_empty() && queries.len() <= most, "{resolved}: {queries:?}");
        for event in queries {
            let Event::ResolveRequest { query, .. } = event else { panic!("{event:?}") };
            world.hosts[B].reply(now, query, &reply(SidrStatus::Valid)).unwrap();
        }
        world.settle();
        resolved += world.take(A).into_iter().filter(|e| matches!(e, Event::Resolved { .. })).count();
    }
    assert_eq!((world.sent.len(), world.now), (400, now), "each once, without a timer");
    assert_eq!(world.hosts[B].counters().dropped(DropReason::SourceQuota), 0);
}

/// Those that wait are sent when those before them would be repeated, and fail with them.
#[test]
fn a_peer_that_answers_no_query_holds_up_none() {
    let mut world = World::with(10, |config| config.limits.queries_per_source = 2);
    world.faults.loss = 255;
    for _ in 0..5 {
        world.hosts[A].resolve(world.now, &resolve()).unwrap();
    }
    world.run_for(Duration::from_secs(200));
    let failed = world.take(A).into_iter().filter(|e| matches!(e, Event::NotResolved { status: None, .. }));
    let asked = world.messages().into_iter().filter(|message| *message == (A, Attribute::SidrReq)).count();
    assert_eq!((failed.count(), asked), (5, 2 * 16 + 3 * 15));
    assert_eq!(world.hosts[A].counters().retries, 2 * 15 + 3 * 14);
}
