//! The engine: everything behind one port, without I/O of its own (sans-IO).
//!
//! It holds the queue pairs, the registered memory and the completion queues of a port. The holder of its lock drives
//! it: the socket driver in real time, the simulator in virtual time, both through the same calls:
//!
//! ```text
//! receive(now, batch)     post_*(..)       handle_timeout(now)      take something in, never send
//! poll_transmit(now, ..)  poll_timeout()   poll_event()             give something out, never wait
//! ```
//!
//! A turn has this order: take in all packets that arrived, handle expired timers, then transmit until
//! [`Engine::poll_transmit`] returns `None`. Acknowledgements become due once a burst is taken in, and so are sent once
//! for the whole burst.

mod connections;
mod counters;
mod drains;
mod events;
mod explain;
mod host;
mod life;
mod memory;
mod modify;
mod multicast;
mod numbers;
mod partner;
mod path;
mod peers;
mod pkeys;
mod rate;
mod receive;
mod resources;
mod schedule;
mod snapshot;
mod srq;

pub(crate) use connections::Terms;
pub use connections::{EventSink, Router};
pub use counters::{DropReason, PortCounters, PriorityPauses};
pub use events::{AsyncEvent, EventSource, MAX_EVENTS};
pub use life::PortState;
pub use modify::ModifyQpError;
pub use partner::{CreditSetup, PartnerSetup};
pub use path::Departure;
pub use pkeys::{MAX_PKEYS, PKeyTable, PKeyTableError};
pub use qp::wire::IpHeader;
pub use rate::{CongestionEvent, CongestionLog, FlowState, RateConfig};
pub use resources::ResourceError;
pub(crate) use resources::{CQ_USERS, MAX_AH, QpRequest, completion_room, device_attr};
pub use snapshot::QpSnapshot;

pub(crate) use events::EventNews;
pub(crate) use host::{CqId, QpLinks};
pub(crate) use multicast::Membership;
pub use partner::has_sign;
pub(crate) use partner::signed_port;
pub(crate) use receive::{Arrival, Batch};
pub(crate) use srq::{SrqId, XrcPart, XrcdId};

use crate::memory::{KeySource, RegionTable};
use crate::platform;
use crate::queue::{CqShared, QpShared, Work};
use cc::{Paces, Policy};
use connections::Connections;
use drains::Drains;
use host::{PortObjects, Taken};
use life::Life;
use multicast::Groups;
use numbers::Numbers;
use partner::Partners;
use path::Path;
use peers::{Flights, Peers};
use qp::attr::Limits;
use qp::counters::QpCounters;
use qp::queue_pair::PostError;
use qp::wire::IdentSolver;
use qp::wire::mad::hello::Features;
use qp::{Mtu, Psn, QpState, Qpn, QueuePair};
use rate::{Flow, Notifier, Rates};
use schedule::{Alarm, Gate, Place, Places, Timers, Turn, Wire};
use srq::SrqTable;
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use time::{Duration, Instant};

/// Requests that follow a train of unacknowledged packets within this time wait to leave together, until
/// [`TRAIN_REQUESTS`] of them wait or the next turn comes. It is about the time in which a program posts that many. It
/// raises the rate from 0.6 to 1.3 million datagrams a second, and from 12 to 30 Gb/s with 4 KiB each.
const TRAIN_GAP: Duration = Duration::from_micros(20);

/// This many requests justify a system call of their own: a full train of packets of 4 KiB.
const TRAIN_REQUESTS: usize = 15;

/// Number of queue pairs whose table index is remembered.
const FOUND: usize = 64;

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The address of the port: its GID, and the source of its packets.
    pub address: IpAddr,
    /// UDP source ports that the driver can send from. More than one spreads flows over equal-cost paths.
    pub source_ports: Vec<u16>,
    /// Largest path MTU that the interface carries.
    pub active_mtu: Mtu,
    /// Top byte of the queue pair numbers.
    pub slot: u8,
    /// The port's part of an address that other processes use too; `None` if nobody else does.
    pub share: Option<Share>,
    /// Seed of keys and queue pair numbers in a simulation; `None` makes them unpredictable.
    pub seed: Option<u64>,
    /// Bytes of socket buffer that may be in flight to one peer; `None` for a share of `host_buffer` to a peer on the same
    /// host, and for the size of a stock buffer to others.
    pub peer_window: Option<u32>,
    /// Bytes of the socket buffer that the host grants to a port that is the only queue on the way to it; `None` if another
    /// queue is in front, or its size is unknown.
    pub host_buffer: Option<u32>,
    /// The shortest acknowledgement timeout of its queue pairs, as a value of the attribute `timeout`; 0 for any.
    pub least_timeout: u8,
    /// Pace of unacknowledged packets to one receiver.
    pub paces: Paces,
    /// The partitions of the port.
    pub pkeys: PKeyTable,
    /// What the port offers to rnic peers.
    pub partner: PartnerSetup,
    /// How the port paces its sending.
    pub rate: RateConfig,
}

/// A part of a shared address: one slot. Queue pair 1 belongs to whoever shares the address out, who passes on what is
/// for this port; communication IDs begin with the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The scrambling of the slot's queue pair numbers, which all users of the slot have in common, one after the other.
    pub rounds: [u8; 4],
    /// Where this user begins among the 65,536 numbers. If each begins some way after the last, a late packet for a queue
    /// pair of an earlier user finds none.
    pub first: u16,
}

/// An entry of the queue pair table.
struct QpEntry {
    qp: QueuePair,
    shared: Arc<QpShared>,
    links: QpLinks,
    /// The path to the peer that it is connected to.
    path: Option<Path>,
    flights: Flights,
    taken: Taken,
    /// When it last sent unacknowledged packets.
    last_sent: Option<Instant>,
    /// Where the last datagram went.
    last_to: Option<IpAddr>,
    /// When it last accepted a congestion notification of a foreign peer.
    foreign_cnp: Option<Instant>,
    /// Its timer.
    alarm: Alarm,
    /// Sender's state of congestion control, once it has sent.
    flow: Option<Box<Flow>>,
    /// Receiver's state of congestion control, once a packet arrived that met congestion.
    notifier: Notifier,
    /// Telemetry that is to be returned to the peer.
    returns: rate::Returns,
    /// The failures that were explained to its program.
    explained: explain::Explained,
}

/// The engine behind one port.
pub struct Engine {
    config: EngineConfig,
    limits: Limits,
    numbers: Numbers,
    qps: Vec<Option<Box<QpEntry>>>,
    /// Where queue pairs were found last, by the low bits of their numbers: the way from a number to an index is long.
    found: [Cell<u16>; FOUND],
    live: usize,
    host: PortObjects,
    life: Life,
    peers: Peers,
    partners: Partners,
    drains: Drains,
    rates: Rates,
    wire: Wire,
    groups: Groups,
    /// What was in the inbox of a queue pair and is being taken in. After a panic some may be left, which are flushed.
    collected: (usize, VecDeque<Work>),
    /// The queue pair that took the last packet of the batch that is being received, until it is settled.
    unsettled: Option<usize>,
    /// Messages that have ended since the driver last asked.
    messages: u32,
    /// QP1, if there is one.
    gsi: Option<usize>,
    /// What is behind it otherwise.
    connections: Connections,
    /// Where every queue pair is, and its timers.
    places: Places,
    /// Queue pairs for which checks are due since the last one.
    #[cfg(debug_assertions)]
    unchecked: usize,
    timers: Timers,
    solver: IdentSolver,
    counters: PortCounters,
    /// Counters of destroyed queue pairs.
    departed: QpCounters,
    pds: resources::Domains,
}

impl QpEntry {
    /// Tells posting threads whether what they post is behind something that comes to an end without them: packets in
    /// flight, or requests that wait at a gate or for their departure time.
    fn tell_busy(&self, place: Place) {
        let is_in_flight = self.qp.next_psn() != self.qp.unacked_psn();
        self.shared.set_busy(is_in_flight || matches!(place, Place::Waits(_) | Place::Paced(_)));
    }
}

impl Engine {
    /// Creates an engine without queue pairs.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        let keys = config.seed.map_or(KeySource::System, |seed| KeySource::Seed(expand(seed)));
        let regions = RegionTable::new(resources::MAX_MR, keys);
        // Numbers count up in a simulation; elsewhere each kind of object has its own scrambling.
        let numbers = || Numbers::new(config.slot, config.seed.is_none().then(platform::random_bytes));
        let qp_numbers = config.share.map_or_else(numbers, |share| Numbers::shared(config.slot, share));
        // In a simulation the seed also distinguishes the devices, whose instances must differ.
        let secret = config.seed.map(|seed| [seed, seed.rotate_left(17), !seed]);
        Self {
            limits: Limits {
                path_mtu: config.active_mtu,
                pkeys: config.pkeys.entries(),
                ..Limits::default()
            },
            numbers: qp_numbers,
            qps: Vec::new(),
            found: [const { Cell::new(0) }; FOUND],
            live: 0,
            host: PortObjects::new(regions, SrqTable::new(numbers())),
            life: Life::default(),
            peers: Peers::new(config.address, config.peer_window, config.host_buffer),
            partners: Partners::new(
                PartnerSetup { features: features(&config), ..config.partner.clone() },
                secret.unwrap_or_else(|| [(); 3].map(|()| platform::random())),
                config.slot,
                config.address,
                &config.source_ports,
            ),
            drains: Drains::new(config.paces, config.address),
            rates: Rates::new(&config.rate),
            wire: Wire::default(),
            groups: Groups::default(),
            collected: (0, VecDeque::new()),
            unsettled: None,
            messages: 0,
            gsi: None,
            connections: Connections::default(),
            places: Places::new(),
            #[cfg(debug_assertions)]
            unchecked: 0,
            timers: Timers::default(),
            solver: IdentSolver::new(),
            counters: PortCounters::default(),
            departed: QpCounters::default(),
            pds: resources::Domains::default(),
            config,
        }
    }

    /// The configuration of the engine.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Counters of the port.
    #[must_use]
    pub fn port_counters(&self) -> PortCounters {
        let mut counters = self.counters.clone();
        counters.async_events_lost = self.host.events.lost();
        if let Some(endpoint) = self.endpoint() {
            counters.cm.clone_from(endpoint.counters());
        }
        counters
    }

    /// Sum of the counters of all queue pairs, existing and destroyed.
    #[must_use]
    pub fn qp_counters(&self) -> QpCounters {
        let mut sum = self.departed;
        for entry in self.qps.iter().flatten() {
            sum.add(entry.qp.counters());
        }
        sum
    }

    /// The queue pair with this number.
    #[must_use]
    pub fn qp(&self, qpn: Qpn) -> Option<&QueuePair> {
        let index = self.index(qpn)?;
        self.qps[index].as_ref().map(|e| &e.qp)
    }

    /// All queue pairs.
    pub fn qps(&self) -> impl Iterator<Item = &QueuePair> {
        self.qps.iter().flatten().map(|e| &e.qp)
    }

    /// Returns whether the latest request posted to a queue pair should leave immediately. With acknowledgements, it
    /// should if nothing is in flight to the peer. Without, it should if nothing left just before `now`, or if enough
    /// requests for a train wait.
    pub fn is_urgent(&self, qpn: Qpn, now: impl FnOnce() -> Instant) -> bool {
        let Some(index) = self.index(qpn) else { return false };
        let Some(entry) = self.qps[index].as_ref() else { return false };
        let worth_a_train = |last_sent| {
            !matches!(self.places.of(Turn::Own(index)), Place::Waits(Gate::Drain(_)))
                && (entry.qp.sends_outstanding() >= TRAIN_REQUESTS
                    || now().saturating_duration_since(last_sent) >= TRAIN_GAP)
        };
        // Without acknowledgements, the PSNs are always equal; with acknowledgements, there is no such time.
        entry.qp.next_psn() == entry.qp.unacked_psn() && entry.last_sent.is_none_or(worth_a_train)
    }

    /// Removes and returns the next asynchronous event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.host.events.pop()
    }

    /// Returns whether no asynchronous event is pending.
    #[must_use]
    pub fn has_no_events(&self) -> bool {
        self.host.events.is_empty()
    }

    /// The change that the readable event descriptor has to reflect.
    pub(crate) fn take_event_news(&mut self) -> Option<EventNews> {
        self.host.events.take_news()
    }

    /// Completion queues whose completion channel is to be notified, each once per event.
    pub(crate) fn take_notifications(&mut self) -> std::vec::Drain<'_, Arc<CqShared>> {
        self.host.notify.drain(..)
    }

    pub(crate) fn has_notifications(&self) -> bool {
        !self.host.notify.is_empty()
    }

    /// Posts work requests that have places reserved in the queue pair's shared part, up to the first that is refused.
    ///
    /// # Errors
    /// The number of requests posted before the refused one, and the reason for the refusal. The places of the refused
    /// one and of all behind it are released.
    pub fn post_list(
        &mut self,
        qpn: Qpn,
        works: impl Iterator<Item = Work>,
    ) -> Result<(), (usize, PostError)> {
        let Some(index) = self.index(qpn) else { return Ok(()) };
        self.collect(index);
        let mut works = works.enumerate();
        let result =
            works.try_for_each(|(before, work)| self.accept(index, work).map_err(|error| (before, error)));
        if result.is_err() {
            works.for_each(|(_, work)| self.give_up(index, &work));
        }
        if result.is_err() || !self.is_in_line(index) {
            self.settle(index);
        }
        result
    }

    /// Whether a queue pair comes up in order anyway: then one more request changes nothing that would have to be settled.
    fn is_in_line(&self, index: usize) -> bool {
        let Some(entry) = self.qps[index].as_ref() else { return false };
        self.places.of(Turn::Own(index)) == Place::Ready
            && [entry.qp.state(), entry.shared.state()] == [QpState::Rts; 2]
    }

    /// Releases the place of a work request that is not posted.
    fn give_up(&self, index: usize, work: &Work) {
        let Some(entry) = self.qps[index].as_ref() else { return };
        entry.shared.finish(work.queue(), 1);
    }

    /// Takes the work requests that program threads left in the inbox of a queue pair.
    pub(crate) fn ring(&mut self, qpn: Qpn) {
        if let Some(index) = self.index(qpn) {
            self.collect(index);
            self.settle(index);
        }
    }

    fn collect(&mut self, index: usize) {
        loop {
            if self.collected.1.is_empty() {
                let Some(entry) = self.qps[index].as_ref() else { return };
                self.collected.0 = index;
                entry.shared.collect_all(&mut self.collected.1);
            }
            let Some(work) = self.collected.1.pop_front() else { return };
            // The program was told that the request is queued; a queue pair that was reset since then discards it.
            let _ = self.accept(self.collected.0, work);
        }
    }

    fn accept(&mut self, index: usize, work: Work) -> Result<(), PostError> {
        let Some(entry) = self.qps[index].as_mut() else { return Ok(()) };
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.taken);
        let queue = work.queue();
        let result = match work {
            // A place in the queue is taken only for a request that was checked.
            Work::Send(wr) => entry.qp.post_checked_send(wr, &mut host),
            Work::Recv(wr) => entry.qp.post_recv(wr, &mut host),
        };
        match result {
            Ok(()) => entry.taken.add(queue),
            Err(_) => entry.shared.finish(queue, 1),
        }
        result
    }

    /// An initial PSN for a new queue pair: unpredictable, except in a simulation (RFC 6528 explains why for TCP).
    pub(crate) fn first_psn(&self) -> Psn {
        match self.config.seed {
            Some(_) => Psn::new(0),
            None => Psn::new(platform::random() as u32),
        }
    }

    /// The objects that a queue pair was created with.
    fn links(&self, qpn: Qpn) -> Option<QpLinks> {
        Some(self.qps.get(self.index(qpn)?)?.as_ref()?.links)
    }

    fn index(&self, qpn: Qpn) -> Option<usize> {
        if qpn == Qpn::GSI {
            return self.gsi;
        }
        let found = &self.found[qpn.value() as usize % FOUND];
        let index = usize::from(found.get());
        if let Some(Some(entry)) = self.qps.get(index)
            && entry.qp.qpn() == qpn
        {
            return Some(index);
        }
        let index = self.numbers.index(qpn.value())?;
        // QP1 has a place in the table, but not the corresponding number.
        self.qps.get(index)?.as_ref().filter(|_| self.gsi != Some(index))?;
        found.set(u16::try_from(index).unwrap_or(0));
        Some(index)
    }
}

/// The features that a port supports.
fn features(config: &EngineConfig) -> Features {
    let mut features = config.partner.features;
    let policy = config.rate.policy.as_ref();
    // A port whose policy has packets marked reacts to the marks.
    features.set(Features::CNP, policy.is_some_and(|policy| policy.red().is_some()));
    features.set(Features::TELEMETRY, policy.is_some_and(Policy::uses_telemetry));
    features
}

/// Expands a seed to the length that key tables need.
fn expand(seed: u64) -> [u8; 32] {
    let mut long = [0; 32];
    long[..8].copy_from_slice(&seed.to_le_bytes());
    long
}

#[cfg(test)]
mod datagram_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_stay_different_when_they_are_expanded() {
        assert_ne!(expand(1), expand(1 << 56));
        assert_ne!(expand(1), expand(0));
    }

    /// 64,000 idle queue pairs must fit an ordinary process: the aim is 1.5 KiB each.
    #[test]
    fn an_idle_queue_pair_is_small() {
        let entry = size_of::<QpEntry>();
        let shared = size_of::<QpShared>();
        assert!(entry + shared <= 1536, "{entry} + {shared} bytes");
    }
}
