//! Datagrams of strangers: none of them changes a connection, takes memory without bound, or keeps others out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cm::{
    ConnectionId, ConnectionState, DisconnectCause, DropReason, Event, Limits, RejReason, ServiceId, Source,
    StalePolicy,
};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{
    Attribute, Body, CmTimeout, CommId, Drep, Dreq, Message, Mra, Path, Rej, Rep, Req, Rtu, Subject,
};
use qp::{Gid, Mtu, Qpn};
use std::net::Ipv4Addr;
use support::*;
use time::Duration;

fn stranger(number: u32) -> Gid {
    Gid::from(Ipv4Addr::from(0x0b00_0000 + number))
}

/// A REQ of a host with this address to host B.
fn req(from: Gid, comm: u32, qpn: u32) -> [u8; MAD_LEN] {
    let timeout = CmTimeout::new(20);
    let body = Body::Req(Req {
        local_comm_id: CommId(comm),
        service_id: SERVICE,
        local_ca_guid: 7,
        local_qpn: Qpn::new(qpn),
        remote_cm_response_timeout: timeout,
        local_cm_response_timeout: timeout,
        path_mtu: Mtu::B1024.into(),
        max_cm_retries: 15,
        primary: Path {
            local_gid: from,
            remote_gid: gid(B),
            local_ack_timeout: CmTimeout::new(19),
            ..Path::default()
        },
        ..Req::default()
    });
    emit(&Message { transaction_id: u64::from(comm), attribute_modifier: 0, body })
}

fn dropped(world: &World, host: usize, reason: DropReason) -> u64 {
    world.hosts[host].counters().dropped(reason)
}

#[test]
fn a_request_that_names_another_address_is_dropped() {
    let mut world = World::new(1);
    world.listen();
    // A victim's address in the path, the attacker's own on the packet.
    world.deliver(stranger(1), gid(B), &req(stranger(2), 1, 0x100));
    world.transmit();
    assert_eq!((world.sent.len(), world.take(B), world.hosts[B].sizes()), (0, vec![], (0, 0, 0)));
    assert_eq!(dropped(&world, B, DropReason::ForgedAddress), 1);
    // Queue pairs that nobody connects.
    for qpn in [0, 1, 0xff_ffff] {
        world.deliver(stranger(1), gid(B), &req(stranger(1), 1, qpn));
    }
    assert_eq!(dropped(&world, B, DropReason::Malformed), 3);
    world.deliver(stranger(1), gid(B), &req(stranger(1), 1, 2));
    world.request(B);
}

/// All messages that could end or establish a connection with these IDs.
fn messages(local_comm_id: CommId, remote_comm_id: CommId, qpn: u32) -> Vec<Body<'static>> {
    let reason = RejReason::ConsumerDefined;
    let rej = |message, reason| Rej { local_comm_id, remote_comm_id, message, reason, ..Rej::default() };
    vec![
        Body::Rej(rej(Subject::Req, reason)),
        Body::Rej(rej(Subject::Rep, reason)),
        Body::Rej(rej(Subject::Other, RejReason::StaleConnection)),
        Body::Rej(rej(Subject::Other, RejReason::Timeout)),
        Body::Rep(Rep { local_comm_id, remote_comm_id, local_qpn: Qpn::new(qpn), ..Rep::default() }),
        Body::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
        Body::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn: Qpn::new(qpn), ..Dreq::default() }),
        Body::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
        Body::Mra(Mra { local_comm_id, remote_comm_id, service_timeout: CmTimeout::MAX, ..Mra::default() }),
    ]
}

/// A world in which host A or B waits in a state, and the connection there.
fn in_state(state: ConnectionState) -> (World, usize, ConnectionId) {
    let mut world = World::new(2);
    let (host, id) = match state {
        ConnectionState::ReqSent => (A, world.requested().0),
        ConnectionState::ReqReceived => (B, world.requested().1),
        ConnectionState::RepReceived => (A, world.replied().0),
        ConnectionState::RepSent => (B, world.replied().1),
        ConnectionState::Established => (A, world.established().0),
        ConnectionState::DreqSent => {
            let (a, _) = world.established();
            let now = world.now;
            world.hosts[A].disconnect(now, a, &[]).unwrap();
            (A, a)
        }
        other => panic!("{other}"),
    };
    world.lose();
    world.take(A);
    world.take(B);
    assert_eq!(world.hosts[host].state(id), state);
    (world, host, id)
}

#[test]
fn no_stranger_changes_a_connection() {
    use ConnectionState::{DreqSent, Established, RepReceived, RepSent, ReqReceived, ReqSent};
    let mut tried = 0;
    for state in [ReqSent, ReqReceived, RepReceived, RepSent, Established, DreqSent] {
        let (mut world, host, id) = in_state(state);
        let peer = gid(1 - host);
        let deadline = world.hosts[host].poll_timeout();
        // The peer's ID and this side's transaction, as somebody who sees all of the network knows them.
        let (own, _) = match host {
            A => (id.comm_id(), 0),
            _ => (id.comm_id(), 1),
        };
        let other = world.sent.iter().rev().find_map(|(from, t)| match parse(&t.mad).body {
            Body::Req(m) if *from != host => Some(m.local_comm_id),
            Body::Rep(m) if *from != host => Some(m.local_comm_id),
            _ => None,
        });
        let other = other.unwrap_or(CommId(77));
        let transaction = parse(&world.sent[0].1.mad).transaction_id;
        let qpn = if host == A { 0x11 } else { 0x22 };
        // From another address with everything right; from the right address with something wrong.
        let wrong = |id: CommId| CommId(id.0 ^ 1);
        let mut forged: Vec<(Gid, u64, Body<'_>)> = Vec::new();
        forged.extend(messages(other, own, qpn).into_iter().map(|m| (stranger(1), transaction, m)));
        forged.extend(messages(other, wrong(own), qpn).into_iter().map(|m| (peer, transaction, m)));
        if state == ReqSent {
            // Which peer's ID is right is not known yet; the transaction is.
            forged.extend(messages(other, own, qpn).into_iter().map(|m| (peer, !transaction, m)));
        } else {
            forged.extend(messages(wrong(other), own, qpn).into_iter().map(|m| (peer, transaction, m)));
        }
        for (from, transaction_id, body) in forged {
            let bytes = emit(&Message { transaction_id, attribute_modifier: 0, body });
            world.deliver(from, gid(host), &bytes);
            tried += 1;
            assert_eq!(world.hosts[host].state(id), state, "{body:?} from {from:?}");
            assert_eq!(world.take(host), [], "{body:?} from {from:?}");
            assert_eq!(world.hosts[host].poll_timeout(), deadline, "{body:?} from {from:?}");
        }
    }
    assert_eq!(tried, 6 * 27);
}

/// A peer that names the wrong queue pair closes nothing.
#[test]
fn a_dreq_names_the_queue_pair() {
    let (mut world, _, a) = in_state(ConnectionState::Established);
    let of_b = world.sent.iter().find_map(|(_, t)| match parse(&t.mad).body {
        Body::Rep(rep) => Some(rep.local_comm_id),
        _ => None,
    });
    for (qpn, expected) in [(0x12, ConnectionState::Established), (0x11, ConnectionState::DreqReceived)] {
        let dreq = Dreq {
            local_comm_id: of_b.unwrap(),
            remote_comm_id: a.comm_id(),
            remote_qpn: Qpn::new(qpn),
            ..Dreq::default()
        };
        let bytes = emit(&Message { transaction_id: 1, attribute_modifier: 0, body: Body::Dreq(dreq) });
        world.deliver(gid(B), gid(A), &bytes);
        assert_eq!(world.hosts[A].state(a), expected);
    }
}

#[test]
fn a_forged_request_ends_no_connection() {
    for policy in [StalePolicy::Confirm, StalePolicy::Believe] {
        let mut world = World::with(3, |config| config.stale = policy);
        let (_, b) = world.established();
        // Somebody who forges A's address knows its queue pair.
        for comm in 1..4 {
            world.deliver(gid(A), gid(B), &req(gid(A), comm, 0x11));
        }
        let expected = Event::StaleSuspected { connection: b, remote: gid(A), remote_qpn: Qpn::new(0x11) };
        world.transmit();
        let rejected = world.sent.iter().filter(|(_, t)| match parse(&t.mad).body {
            Body::Rej(rej) => rej.reason == RejReason::StaleConnection,
            _ => false,
        });
        assert_eq!((rejected.count(), world.hosts[B].counters().stale), (3, 3));
        if policy == StalePolicy::Confirm {
            assert_eq!(world.one(B), expected);
            assert_eq!(world.hosts[B].state(b), ConnectionState::Established);
            // The driver has asked the peer.
            let now = world.now;
            world.hosts[B].confirm_stale(now, b).unwrap();
        }
        assert_eq!(world.hosts[B].state(b), ConnectionState::DreqSent);
        let now = world.now;
        world.hosts[A].destroy_all(now);
        world.run_for(Duration::from_secs(5));
        let ends = world.take(B);
        assert_eq!(ends[0], Event::Disconnected { connection: b, cause: DisconnectCause::Answered });
        // In TIMEWAIT the queue pair cannot be used yet; then it can.
        world.deliver(gid(A), gid(B), &req(gid(A), 9, 0x11));
        world.request(B);
    }
}

/// Found by fuzzing: a connection that the peer has closed already is not suspected, and not closed once more.
#[test]
fn a_connection_that_is_ending_is_not_suspected() {
    for policy in [StalePolicy::Confirm, StalePolicy::Believe] {
        let mut world = World::with(3, |config| config.stale = policy);
        let (a, b) = world.established();
        let now = world.now;
        world.hosts[A].disconnect(now, a, &[]).unwrap();
        world.settle();
        assert_eq!(world.one(B), Event::Disconnected { connection: b, cause: DisconnectCause::Peer });
        world.deliver(gid(A), gid(B), &req(gid(A), 1, 0x11));
        assert_eq!((world.take(B), world.hosts[B].state(b)), (vec![], ConnectionState::DreqReceived));
    }
}

/// A peer whose REP names the queue pair of an old connection has lost that one: it has just answered itself.
#[test]
fn a_reply_may_show_that_a_connection_is_stale() {
    let mut world = World::new(4);
    let (a, b) = world.established();
    let now = world.now;
    let new = world.hosts[A].connect(now, &connect(A, B, 0x13)).unwrap();
    world.settle();
    let (second, _) = world.request(B);
    world.accept(second, 0x22);
    world.settle();
    let Event::Rejected { connection, rejection } = world.take(A).remove(0) else { panic!() };
    assert_eq!((connection, rejection.reason), (new, RejReason::StaleConnection));
    assert_eq!(world.hosts[A].state(a), ConnectionState::DreqSent);
    let events = world.take(B);
    assert!(
        matches!(&events[..], [Event::Disconnected { connection: old, .. }, Event::Rejected { connection, .. }]
        if *old == b && *connection == second),
        "{events:?}"
    );
}

/// A million requests with forged addresses: the tables stay within their bounds, an established connection goes on,
/// and a source that is proven gets in.
#[test]
fn a_flood_of_requests() {
    const FLOOD: u32 = 1_000_000;
    let mut world = World::new(5);
    let (a, b) = world.established();
    let Limits { half_open, half_open_proven, .. } = world.hosts[B].config().limits;
    let most = half_open - half_open_proven;
    let (mut connected, mut requests) = (0, 0);
    for number in 0..FLOOD {
        world.now += Duration::from_micros(5);
        let from = stranger(number);
        let source = Source { remote: from, local: gid(B), proven: false };
        let now = world.now;
        world.hosts[B].handle_mad(now, &source, &req(from, number, 0x100));
        // The program takes its time.
        if number % 1000 == 0 {
            assert!(world.hosts[B].sizes().0 <= most + 2, "{:?}", world.hosts[B].sizes());
            while let Some(event) = world.hosts[B].poll_event() {
                requests += usize::from(matches!(event, Event::ConnectRequest { .. }));
                if let Event::ConnectRequest { connection, request } = event
                    && request.path.to.remote == gid(A)
                {
                    world.accept(connection, 0x4000 + number);
                }
            }
            world.hosts[B].handle_timeout(now);
        }
        // A has a connection, so it is proven.
        if number % 100_000 == 500 {
            let qpn = 0x200 + number / 100_000;
            world.hosts[A].connect(now, &connect(A, B, qpn)).unwrap();
        }
        if number % 1000 == 501 {
            world.hosts[A].handle_timeout(now);
            for event in std::iter::from_fn(|| world.hosts[A].poll_event()).collect::<Vec<_>>() {
                let Event::ConnectResponse { connection, .. } = event else { panic!("{event:?}") };
                world.hosts[A].establish(now, connection, &[]).unwrap();
                connected += 1;
            }
        }
        for host in [A, B] {
            while let Some(transmit) = world.hosts[host].poll_transmit(now) {
                let source = Source { remote: gid(host), local: transmit.to.remote, proven: false };
                if let Some(to) = [A, B].into_iter().find(|host| gid(*host) == transmit.to.remote) {
                    world.hosts[to].handle_mad(now, &source, &transmit.mad);
                }
            }
        }
    }
    assert_eq!(connected, 10, "A's connections were established at once");
    // A program that answers nobody holds as many as its backlog; each may stay for the time of grace.
    assert!((1024..=1024 * 6).contains(&requests), "{requests}");
    let counters = world.hosts[B].counters();
    let turned_away = counters.dropped(DropReason::HalfOpenFull) + counters.dropped(DropReason::BacklogFull);
    assert!(turned_away > 900_000, "{counters:?}");
    assert_eq!(world.hosts[B].state(b), ConnectionState::Established);
    let now = world.now;
    world.hosts[A].disconnect(now, a, &[]).unwrap();
    world.settle();
    assert!(world.take(B).contains(&Event::Disconnected { connection: b, cause: DisconnectCause::Peer }));
}

/// The same at a program that accepts everybody: what is sent to addresses that say nothing is bounded.
#[test]
fn a_flood_of_requests_at_a_willing_program() {
    let mut world = World::new(6);
    world.listen();
    let limits = world.hosts[B].config().limits;
    let (mut received, mut accepted) = (0u64, 0);
    for number in 0..200_000u32 {
        world.now += Duration::from_micros(500);
        let (now, from) = (world.now, stranger(number));
        let source = Source { remote: from, local: gid(B), proven: false };
        world.hosts[B].handle_mad(now, &source, &req(from, number, 0x100));
        received += 1;
        world.collect();
        for event in world.take(B) {
            match event {
                Event::ConnectRequest { connection, .. } => {
                    world.accept(connection, 0x22);
                    accepted += 1;
                }
                Event::Failed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        world.hosts[B].handle_timeout(now);
        while world.hosts[B].poll_transmit(now).is_some() {}
        assert!(world.hosts[B].sizes().0 <= limits.half_open);
    }
    let counters = world.hosts[B].counters();
    assert!(accepted > 100_000 && counters.evicted > 100_000, "{accepted}, {counters:?}");
    let sent = counters.sent(Attribute::Rep) + counters.sent(Attribute::Rej);
    assert!(sent <= received * (1 + u64::from(limits.unproven_retries)), "{sent} answers");
}

#[test]
fn one_source_does_not_keep_others_out() {
    let mut world = World::with(7, |config| config.limits.half_open_per_source = 10);
    world.listen();
    for number in 0..100 {
        world.deliver(stranger(1), gid(B), &req(stranger(1), number, 0x100 + number));
    }
    assert_eq!((world.take(B).len(), dropped(&world, B, DropReason::SourceQuota)), (10, 90));
    world.deliver(stranger(2), gid(B), &req(stranger(2), 1, 0x100));
    world.request(B);
}

#[test]
fn unproven_sources_do_not_fill_a_backlog_for_proven_ones() {
    let mut world = World::new(8);
    let now = world.now;
    world.hosts[B].listen(now, &cm::Listen { backlog: 2, ..listen() }).unwrap();
    for number in 0..3 {
        world.deliver(stranger(number), gid(B), &req(stranger(number), number, 0x100));
    }
    assert_eq!((world.take(B).len(), dropped(&world, B, DropReason::BacklogFull)), (2, 1));
    world.proven = true;
    for number in 3..6 {
        world.deliver(stranger(number), gid(B), &req(stranger(number), number, 0x100));
    }
    assert_eq!((world.take(B).len(), dropped(&world, B, DropReason::BacklogFull)), (2, 2));
}

/// Requests for nobody, and ends of connections that never were.
#[test]
fn answers_without_a_connection_are_bounded() {
    let mut world = World::new(9);
    let limits = world.hosts[B].config().limits;
    for number in 0..1000 {
        world.deliver(stranger(number % 100), gid(B), &req(stranger(number % 100), number, 0x100));
    }
    assert_eq!(world.hosts[B].counters().held, limits.held as u64);
    assert_eq!(dropped(&world, B, DropReason::AnswersFull), 1000 - 64 - 64);
    world.transmit();
    assert_eq!(world.sent.len(), limits.answers);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.sent.len(), limits.answers + limits.held);
    assert!(world.sent.iter().all(|(_, t)| parse(&t.mad).attribute() == Attribute::Rej));
    for body in messages(CommId(1), CommId(2), 3) {
        for _ in 0..20 {
            let bytes = emit(&Message { transaction_id: 1, attribute_modifier: 0, body });
            world.deliver(stranger(1), gid(B), &bytes);
        }
    }
    let before = world.sent.len();
    world.transmit();
    // REP and DREQ are answered.
    assert_eq!(world.sent.len() - before, limits.answers_per_source);
    assert_eq!(dropped(&world, B, DropReason::UnknownConnection), 7 * 20 + limits.answers_per_source as u64);
    assert_eq!((world.hosts[B].sizes(), world.hosts[B].poll_timeout()), ((0, 0, 0), None));
}

#[test]
fn what_is_not_connection_management_is_counted() {
    let mut world = World::new(10);
    let good = req(gid(A), 1, 0x100);
    for (at, byte) in [(0, 2), (1, 3), (2, 1), (3, 0x83), (17, 0x44)] {
        let mut bad = good;
        bad[at] = byte;
        world.deliver(gid(A), gid(B), &bad);
    }
    world.deliver(gid(A), gid(B), &good[..255]);
    world.deliver(gid(A), gid(B), &[]);
    assert_eq!(dropped(&world, B, DropReason::Malformed), 7);
}

#[test]
fn events_and_connections_are_bounded() {
    let mut world = World::with(11, |config| (config.limits.events, config.limits.connections) = (3, 5));
    world.listen();
    let offer = |world: &mut World, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let source = Source { remote: stranger(number), local: gid(B), proven: false };
            let now = world.now;
            world.hosts[B].handle_mad(now, &source, &req(stranger(number), number, 0x100));
        }
    };
    offer(&mut world, 0..4);
    assert_eq!(dropped(&world, B, DropReason::EventsFull), 1);
    world.collect();
    offer(&mut world, 4..7);
    assert_eq!((dropped(&world, B, DropReason::ConnectionsFull), world.hosts[B].sizes().0), (1, 5));
    let now = world.now;
    assert!(matches!(
        world.hosts[B].connect(now, &connect(B, A, 0x11)),
        Err(cm::CallError::Full { max: 5, .. })
    ));
}

#[test]
fn time_wait_is_bounded() {
    let mut world = World::with(12, |config| config.limits.time_wait = 2);
    world.listen();
    for number in 0..3 {
        let now = world.now;
        let a = world.hosts[A].connect(now, &connect(A, B, 0x11 + number)).unwrap();
        world.settle();
        let (b, _) = world.request(B);
        world.accept(b, 0x51 + number);
        world.settle();
        world.hosts[A].establish(now, a, &[]).unwrap();
        world.settle();
        world.hosts[A].disconnect(now, a, &[]).unwrap();
        world.settle();
        world.hosts[B].disconnect(now, b, &[]).unwrap();
        world.settle();
        world.take(A);
        let exits = world.take(B).into_iter().filter(|e| matches!(e, Event::TimeWaitExit { .. })).count();
        assert_eq!(
            (exits, world.hosts[B].sizes().2),
            if number == 2 { (1, 2) } else { (0, number as usize + 1) }
        );
    }
    assert_eq!(world.hosts[B].counters().time_wait_overflow, 1);
}

/// What an observer of one connection learns does not tell what the next one will be.
#[test]
fn numbers_are_unpredictable() {
    let mut seen = Vec::new();
    let mut world = World::with(13, |config| config.limits.requests_per_peer = 1000);
    let now = world.now;
    for number in 0..1000 {
        let id = world.hosts[A].connect(now, &connect(A, B, 0x100 + number)).unwrap();
        let transmit = world.hosts[A].poll_transmit(now).unwrap();
        let message = parse(&transmit.mad);
        let Body::Req(req) = message.body else { panic!() };
        assert_eq!(req.local_comm_id, id.comm_id());
        seen.push([u64::from(id.comm_id().0), message.transaction_id, u64::from(req.starting_psn.value())]);
    }
    for (which, bits) in [(0, 32), (1, 64), (2, 24)] {
        // Each bit is set in about half of them, and so is the difference of neighbours.
        for bit in 0..bits {
            let of = |n: u64| n >> bit & 1;
            let ones: u64 = seen.iter().map(|n| of(n[which])).sum();
            let flips: u64 = seen.windows(2).map(|n| of(n[0][which] ^ n[1][which])).sum();
            assert!(
                (400..600).contains(&ones) && (400..600).contains(&flips),
                "{which}, {bit}: {ones}, {flips}"
            );
        }
    }
    let other = World::new(14).hosts[A].connect(now, &connect(A, B, 0x100)).unwrap();
    assert_ne!(u64::from(other.comm_id().0), seen[0][0]);
    assert_ne!(SERVICE, ServiceId(0));
}
