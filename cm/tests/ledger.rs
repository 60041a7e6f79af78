//! What those who share the address of an endpoint are told, and what they do with it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cm::{CallError, CommId, Connected, DisconnectCause, Entry, Event, Recipient};
use qp::Qpn;
use qp::wire::mad::cm::Attribute;
use support::*;

fn entries(world: &mut World, host: usize) -> Vec<Entry> {
    std::iter::from_fn(|| world.hosts[host].poll_ledger()).collect()
}

#[test]
fn the_ledger_says_who_listens_and_what_is_connected() {
    let mut world = World::new(1);
    world.hosts[A].open_ledger();
    world.hosts[B].open_ledger();
    let (a, b) = world.established();
    let connected = |local: cm::ConnectionId, remote: cm::ConnectionId, local_qpn, remote_qpn, to| {
        Entry::Connected(Connected {
            local: local.comm_id(),
            remote: remote.comm_id(),
            local_qpn: Qpn::new(local_qpn),
            remote_qpn: Qpn::new(remote_qpn),
            to,
        })
    };
    let (to_b, to_a) = (path(A, B).to, path(B, A).to);
    assert_eq!(entries(&mut world, A), [connected(a, b, 0x11, 0x22, to_b)]);
    assert_eq!(entries(&mut world, B), [Entry::Listens(SERVICE), connected(b, a, 0x22, 0x11, to_a)]);
    // A reader that begins later learns the same.
    world.hosts[B].open_ledger();
    assert_eq!(entries(&mut world, B), [Entry::Listens(SERVICE), connected(b, a, 0x22, 0x11, to_a)]);

    let now = world.now;
    world.hosts[A].disconnect(now, a, &[]).unwrap();
    world.settle();
    assert_eq!(entries(&mut world, A), [Entry::Ended(a)]);
    assert_eq!(entries(&mut world, B), [Entry::Ended(b)]);
    world.hosts[B].close(now);
    assert_eq!(entries(&mut world, B), [Entry::Silent(SERVICE)]);
    assert!(!world.hosts[B].has_entries());
}

#[test]
fn connections_of_an_endpoint_that_is_gone_are_closed_by_another() {
    let mut world = World::new(1);
    world.hosts[A].open_ledger();
    let (a, b) = world.established();
    let [Entry::Connected(connected)] = entries(&mut world, A)[..] else { panic!("one connection") };
    // The process of A ends without a word. Its host goes on with another endpoint.
    world.hosts[A] = World::new(2).hosts.swap_remove(A);
    let now = world.now;
    let adopted = world.hosts[A].adopt(now, &connected).unwrap();
    assert_eq!(adopted, a);
    assert_eq!(world.hosts[A].adopt(now, &connected), Err(CallError::AddressInUse), "once");
    world.hosts[A].destroy(now, adopted).unwrap();
    world.settle();
    assert_eq!(world.one(B), Event::Disconnected { connection: b, cause: DisconnectCause::Peer });
    world.hosts[B].disconnect(now, b, &[]).unwrap();
    world.settle();
    assert_eq!(world.messages()[3..], [(A, Attribute::Dreq), (B, Attribute::Drep)]);
}

#[test]
fn ids_of_a_slot_lead_back_to_it() {
    for (slot, seed) in [0, 7, 0xff].into_iter().flat_map(|slot| (0..10).map(move |seed| (slot, seed))) {
        let mut world = World::with(seed, |config| config.slot = Some(slot));
        let (a, b) = world.established();
        for id in [a, b] {
            assert_eq!(id.comm_id().0 >> 24, u32::from(slot), "{id:?}");
        }
        world.hosts[A].close(world.now);
        world.settle();
        // Each message names its recipient; the first one by the service.
        for (_, transmit) in &world.sent {
            match Recipient::of(&transmit.mad).unwrap() {
                Recipient::Service(service) => assert_eq!(service, SERVICE),
                Recipient::Holder(CommId(id)) => assert_eq!(id >> 24, u32::from(slot)),
                Recipient::Anyone => panic!("{transmit:?}"),
            }
        }
    }
    assert_eq!(Recipient::of(&[0; 256]), None);
}
