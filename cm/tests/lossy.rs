//! Programs that do anything, over a network that does anything: both sides are connected, or both are told.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cm::{Accept, ConnectionId, ConnectionState, Event, RejReason};
use qp::Qpn;
use std::collections::BTreeMap;
use support::*;
use time::{Duration, Instant};

/// What a program does later.
#[derive(Clone, Copy, Debug)]
enum Action {
    Connect,
    Answer,
    Refuse,
    Wait,
    Destroy,
    Establish,
    Packet,
    Disconnect,
}

/// What a program knows of a connection.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The queue pair of the active side, which names the connect.
    of: u32,
    responses: u32,
    established: u32,
    ends: u32,
    exits: u32,
    released: bool,
}

struct Programs {
    world: World,
    known: [BTreeMap<ConnectionId, Known>; 2],
    plan: BTreeMap<(Instant, u64), (usize, Option<ConnectionId>, Action)>,
    planned: u64,
    next_qpn: u32,
    /// Once healed, programs only end their connections.
    healed: bool,
    /// How often each connect was established at its passive side.
    passive: BTreeMap<u32, u32>,
}

impl Programs {
    fn later(&mut self, host: usize, connection: Option<ConnectionId>, action: Action, most: Duration) {
        let at = self.world.now + Duration::from_nanos(self.world.below(most.as_nanos() as u64 + 1));
        self.planned += 1;
        self.plan.insert((at, self.planned), (host, connection, action));
    }

    fn choose<const N: usize>(&mut self, of: [Action; N]) -> Action {
        of[self.world.below(N as u64) as usize]
    }

    fn run(&mut self, end: Instant) {
        loop {
            let next = self.world.next_at();
            let planned = self.plan.first_key_value().map(|(key, _)| key.0);
            match (next, planned) {
                (next, Some(at)) if next.is_none_or(|next| at <= next) && at <= end => {
                    let Some((_, (host, connection, action))) = self.plan.pop_first() else { return };
                    self.world.now = self.world.now.max(at);
                    self.act(host, connection, action);
                    self.world.collect();
                }
                (Some(next), _) if next <= end => {
                    self.world.step();
                }
                _ => break,
            }
            for host in [A, B] {
                for event in self.world.take(host) {
                    self.hear(host, event);
                }
            }
        }
        self.world.now = self.world.now.max(end);
    }

    fn act(&mut self, host: usize, connection: Option<ConnectionId>, action: Action) {
        let now = self.world.now;
        let Some(connection) = connection else {
            self.next_qpn += 1;
            let of = self.next_qpn;
            let to = 1 - host;
            let id = self.world.hosts[host].connect(now, &connect(host, to, of)).unwrap();
            let fresh = self.known[host].insert(id, Known { of, ..Known::default() });
            assert!(fresh.is_none_or(|known| known.ends > 0 || known.released), "an ID is used twice");
            if self.world.below(8) == 0 {
                self.later(host, Some(id), Action::Destroy, Duration::from_secs(10));
            }
            return;
        };
        // The peer sends only when it is established.
        let of = self.known[host][&connection].of;
        let peer = self.in_state(1 - host, ConnectionState::Established);
        if matches!(action, Action::Packet) && !peer.iter().any(|(_, other)| *other == of) {
            return;
        }
        let endpoint = &mut self.world.hosts[host];
        // Calls that come too late are refused, and change nothing.
        let done = match action {
            Action::Connect => Ok(()),
            Action::Answer => {
                let accept = Accept {
                    qpn: Qpn::new(of + 0x1000),
                    srq: false,
                    responder_resources: 1,
                    initiator_depth: 1,
                    rnr_retry_count: 7,
                    flow_control: false,
                    ece: cm::Ece::default(),
                    private_data: b"yes",
                };
                endpoint.accept(now, connection, &accept)
            }
            Action::Refuse => endpoint.reject(now, connection, RejReason::ConsumerDefined, &[], b"no"),
            Action::Wait => endpoint.wait(now, connection, cm::CmTimeout::new(20)),
            Action::Destroy => endpoint.destroy(now, connection),
            Action::Establish => endpoint.establish(now, connection, &[]),
            Action::Packet => endpoint.communication_established(now, connection),
            Action::Disconnect => endpoint.disconnect(now, connection, &[]),
        };
        if done.is_ok() && matches!(action, Action::Refuse | Action::Destroy) {
            self.known[host].get_mut(&connection).expect("a known one").released = true;
        }
    }

    fn hear(&mut self, host: usize, event: Event) {
        use Action::{Answer, Connect, Destroy, Disconnect, Establish, Packet, Refuse, Wait};
        let soon = Duration::from_secs(8);
        let known = |programs: &mut Self, connection: ConnectionId, count: fn(&mut Known)| {
            let known =
                programs.known[host].get_mut(&connection).expect("a connection that the program knows");
            assert!(!known.released, "{event:?} of a connection that was given back");
            count(known);
            assert!(known.established <= 1 && known.ends <= 1 && known.exits <= known.ends, "{known:?}");
            assert!(known.ends == 0 || known.exits == 1 || is_end(&event), "{event:?} after the end");
            known.of
        };
        match event {
            Event::ConnectRequest { connection, ref request } => {
                let of = request.remote_qpn.value();
                self.known[host].insert(connection, Known { of, ..Known::default() });
                let action = self.choose([Answer, Answer, Answer, Answer, Answer, Refuse, Wait, Destroy]);
                self.later(host, Some(connection), action, soon);
                if matches!(action, Wait) {
                    self.later(host, Some(connection), Answer, soon * 2);
                }
                if self.world.below(8) == 0 {
                    self.later(host, Some(connection), Packet, soon * 2);
                }
            }
            Event::ConnectResponse { connection, .. } => {
                known(self, connection, |known| known.responses += 1);
                let action = self.choose([Establish, Establish, Establish, Establish, Refuse, Wait, Destroy]);
                self.later(host, Some(connection), action, soon);
                if matches!(action, Wait) {
                    self.later(host, Some(connection), Establish, soon * 2);
                }
                let end = self.choose([Disconnect, Destroy, Connect, Connect]);
                self.later(host, Some(connection), end, soon * 6);
            }
            Event::Established { connection, .. } => {
                let of = known(self, connection, |known| known.established += 1);
                *self.passive.entry(of).or_default() += 1;
                let end = self.choose([Disconnect, Destroy, Connect, Connect]);
                self.later(host, Some(connection), end, soon * 4);
            }
            Event::Rejected { connection, .. } | Event::Failed { connection, .. } => {
                known(self, connection, |known| (known.ends, known.exits) = (known.ends + 1, 1));
            }
            Event::Disconnected { connection, .. } => {
                known(self, connection, |known| known.ends += 1);
                if self.world.hosts[host].state(connection) == ConnectionState::DreqReceived {
                    let action = self.choose([Disconnect, Destroy]);
                    let wait = if self.healed { Duration::ZERO } else { soon };
                    self.later(host, Some(connection), action, wait);
                }
            }
            Event::TimeWaitExit { connection } => {
                known(self, connection, |known| known.exits += 1);
            }
            Event::StaleSuspected { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    /// The connections in a state.
    fn in_state(&self, host: usize, state: ConnectionState) -> Vec<(ConnectionId, u32)> {
        let all = self.known[host].iter();
        all.filter(|(id, _)| self.world.hosts[host].state(**id) == state).map(|(id, k)| (*id, k.of)).collect()
    }
}

const fn is_end(event: &Event) -> bool {
    matches!(event, Event::Rejected { .. } | Event::Failed { .. } | Event::Disconnected { .. })
}

/// Runs programs with a seed; returns how many connections were established on both sides while there were faults,
/// and how many on one side only.
fn run(seed: u64, corrupt: u8) -> (usize, usize) {
    let mut world = World::new(seed);
    world.faults = Faults {
        loss: [0, 0, 30, 100][world.below(4) as usize],
        repeat: [0, 60][world.below(2) as usize],
        corrupt,
        // Packets live for a second at most.
        delay: Duration::from_millis([0, 10, 900][world.below(3) as usize]),
    };
    world.proven = world.below(2) == 0;
    let is_lossless = world.faults.loss == 0 && corrupt == 0;
    for host in [A, B] {
        let now = world.now;
        world.hosts[host].listen(now, &listen()).unwrap();
    }
    let mut programs = Programs {
        world,
        known: Default::default(),
        plan: BTreeMap::new(),
        planned: 0,
        next_qpn: 0x100,
        healed: false,
        passive: BTreeMap::new(),
    };
    for _ in 0..1 + programs.world.below(6) {
        let host = programs.world.below(2) as usize;
        programs.later(host, None, Action::Connect, Duration::from_secs(20));
    }
    let end = programs.world.now + Duration::from_secs(600);
    programs.run(end);

    let (mut both, mut one) = (0, 0);
    for host in [A, B] {
        let there = programs.in_state(1 - host, ConnectionState::Established);
        for (_, of) in programs.in_state(host, ConnectionState::Established) {
            if there.iter().any(|(_, other)| *other == of) { both += 1 } else { one += 1 }
        }
    }
    assert!(!is_lossless || one == 0, "seed {seed}: {one} connections are established on one side only");

    // The network heals, and the programs end what they have.
    programs.world.faults = Faults::NONE;
    programs.healed = true;
    for host in [A, B] {
        for (id, _) in programs.in_state(host, ConnectionState::Established) {
            programs.later(host, Some(id), Action::Disconnect, Duration::ZERO);
        }
    }
    let end = programs.world.now + Duration::from_secs(600);
    programs.run(end);
    for host in [A, B] {
        for (id, known) in &programs.known[host] {
            assert!(known.released || (known.ends, known.exits) == (1, 1), "seed {seed}: {id:?} {known:?}");
            assert!(known.released || known.responses <= 1, "seed {seed}: {id:?} {known:?}");
        }
        assert_eq!(programs.world.hosts[host].sizes(), (0, 0, 0), "seed {seed}");
        assert_eq!(programs.world.hosts[host].poll_timeout(), None, "seed {seed}");
    }
    assert!(
        corrupt > 0 || programs.passive.values().all(|count| *count == 1),
        "seed {seed}: established twice"
    );
    (both / 2, one)
}

#[test]
fn both_are_connected_or_both_are_told() {
    let seeds = if std::env::var_os("RNIC_LONG").is_some() { 100_000 } else { 3000 };
    let (mut both, mut one) = (0, 0);
    for seed in 0..seeds {
        let (of_both, of_one) = run(seed, 0);
        (both, one) = (both + of_both, one + of_one);
    }
    println!("{seeds} seeds: {both} connections established, {one} sides that had to find out");
    assert!(both as u64 > seeds / 4, "only {both} connections were established");
    // After heavy loss, a side may learn of the end only when it uses the connection.
    assert!(one * 50 < both, "{one} of {both} connections were established on one side only");
}

/// Messages with changed bytes may confuse a connection, but both sides get out of it, and nothing is left over.
#[test]
fn changed_messages_leave_nothing_behind() {
    let seeds = if std::env::var_os("RNIC_LONG").is_some() { 100_000 } else { 3000 };
    let both: usize = (0..seeds).map(|seed| run(seed, 60).0).sum();
    assert!(both as u64 > seeds / 8, "only {both} connections were established");
}
