//! The fabric at work: packets from port to port, pauses, credits, marks and drops.
//!
//! Every node has ports, and every port sends into a cable when its line is free. A packet comes to a node as an event of the
//! agenda; a host hands it to its device, and a switch puts it in front of another port, if its buffer takes it. A port that
//! has to wait for its line looks again when that is free, one that is paused when the pause ends, and one without credit
//! when it gets some. So an idle port costs nothing, and a packet costs one event for each cable, two where it waits.
//!
//! What happens at one instant happens in the order in which it was put into the agenda, never in that of memory or of
//! threads.

mod control;
mod flow;
mod forwarding;
mod hop;
mod port;
mod reduction;
mod setup;
mod stuck;
mod tap;
mod traffic;

pub use forwarding::Forwarding;
pub use port::PortStats;
pub use reduction::{ReductionConfig, ReductionError, ReductionStats};
pub use setup::{HostConfig, SetupError};

use crate::balance::{Balancer, LeafQuality, Tag};
use crate::routing::Routes;
use crate::subnet::LoggedEvent;
use crate::switch::buffer::Buffer;
use crate::switch::{Full, SwitchConfig};
use crate::topology::{NodeId, Topology};
use port::Port;
use rnic_core::sim::{Agenda, Network, Packet, Reached, Room, Target};
use serde::Serialize;
use slab::Slab;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use time::{Duration, Instant};

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Drop {
    /// A lossy class: the shared buffer, or the part of it that its port may have, was full.
    SharedFull,
    /// A lossy class: its queue was full.
    QueueFull,
    /// A lossless class: its headroom was full.
    HeadroomFull,
    /// A lane for which it had no credit.
    NoCredit,
    /// Its time to live was used up.
    TimeToLive,
    /// No port leads to its destination.
    NoRoute,
    /// No host has its destination address.
    NoHost,
    /// Bits of it were wrong.
    Damaged,
    /// Its cable was cut.
    CableCut,
    /// The watchdog of PFC drops what a storm holds up.
    Storm,
    /// It was the first of its queue, without credit, for too long (HOQLife).
    HeadOfQueue,
    /// It was in a switch for too long (LifeTimeValue).
    Lifetime,
    /// Its service level has no lane.
    NoLane,
    /// A switch that adds up blocks had no slot for its block.
    NoSlot,
}

impl Drop {
    /// All reasons.
    pub const ALL: [Self; 14] = [
        Self::SharedFull,
        Self::QueueFull,
        Self::HeadroomFull,
        Self::NoCredit,
        Self::TimeToLive,
        Self::NoRoute,
        Self::NoHost,
        Self::Damaged,
        Self::CableCut,
        Self::Storm,
        Self::HeadOfQueue,
        Self::Lifetime,
        Self::NoLane,
        Self::NoSlot,
    ];

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SharedFull => "shared_full",
            Self::QueueFull => "queue_full",
            Self::HeadroomFull => "headroom_full",
            Self::NoCredit => "no_credit",
            Self::TimeToLive => "time_to_live",
            Self::NoRoute => "no_route",
            Self::NoHost => "no_host",
            Self::Damaged => "damaged",
            Self::CableCut => "cable_cut",
            Self::Storm => "storm",
            Self::HeadOfQueue => "head_of_queue",
            Self::Lifetime => "lifetime",
            Self::NoLane => "no_lane",
            Self::NoSlot => "no_slot",
        }
    }
}

impl From<Full> for Drop {
    fn from(full: Full) -> Self {
        match full {
            Full::Shared => Self::SharedFull,
            Full::Egress => Self::QueueFull,
            Full::Headroom => Self::HeadroomFull,
        }
    }
}

/// A packet in the fabric.
#[derive(Debug)]
struct Travelling {
    packet: Packet,
    to: Target,
    /// The hosts at both ends.
    src: usize,
    dst: usize,
    flow: u64,
    /// The destination queue pair.
    qp: u32,
    bytes: u32,
    /// Where it came into the node at which it is, and the class or lane in which.
    entry: (u16, u8),
    /// When all of it is at this node.
    tail: Instant,
    is_damaged: bool,
    tag: Tag,
}

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A packet comes to a node through a port. `cuts`: how often the cable had been cut when the packet left.
    Arrive { node: u32, port: u16, packet: u32, cuts: u32 },
    /// A port may be able to send.
    Look { node: u32, port: u16 },
    /// A pause frame for classes comes to a port; the pause ends with `quanta` 0.
    Pause { node: u32, port: u16, classes: u8, quanta: u16 },
    /// A port that has asked for a pause asks again, unless it does not need it any more.
    Repeat { node: u32, port: u16, class: u8 },
    /// Credit for a lane comes to a port.
    Credit { node: u32, port: u16, lane: u8, limit: u64 },
    /// The watchdogs of a node look.
    Watch { node: u32 },
    /// A switch tells its neighbours how good its ways are.
    Tell { node: u32 },
    /// What a neighbour told comes to a switch.
    Report { node: u32, port: u16, report: u32 },
    /// A change that was planned, by its number.
    Planned(u32),
}

/// A change at a time.
#[derive(Clone, Debug)]
pub enum Change {
    /// A cable is cut, or repaired, by its number in the topology. Routes follow after the fabric's reaction time.
    Cable {
        /// The number of the cable.
        cable: usize,
        /// Whether it is whole from now on.
        is_up: bool,
    },
    /// The switches use other routes from now on.
    Routes(Arc<Routes>),
    /// The switches and hosts use what a subnet manager has written from now on.
    Tables(Arc<Forwarding>),
    /// A host begins to pause classes, however empty its buffer is, or stops doing so.
    Storm {
        /// The host.
        host: usize,
        /// The classes, one bit each.
        classes: u8,
    },
}

/// What a switch has beside its ports.
#[derive(Debug)]
struct Switch {
    /// The number of its settings.
    config: usize,
    buffer: Option<Buffer>,
    balancer: Balancer,
    classes: [u8; 64],
    /// The packets that it has marked last, by LID.
    marks: VecDeque<LoggedEvent>,
    /// What it adds up, if a group has joined.
    reducer: Option<Box<reduction::Reducer>>,
}

/// What a host has beside its port.
#[derive(Debug, Default)]
struct Host {
    /// The port of the simulation that is there now.
    site: usize,
    /// Queues of which the NIC has enough.
    full: u16,
    /// Classes that it pauses in a storm.
    storm: u8,
}

#[derive(Debug)]
enum Role {
    Host(Host),
    Switch(Box<Switch>),
}

#[derive(Debug)]
struct Node {
    ports: Vec<Port>,
    role: Role,
    /// Whether its watchdogs are in the agenda.
    is_watched: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What happened to all packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Packets that hosts sent.
    pub entered: u64,
    /// Packets that reached a host.
    pub delivered: u64,
    /// Packets that were dropped, by reason.
    pub drops: BTreeMap<Drop, u64>,
    /// Packets that switches added to sums.
    #[serde(skip_serializing_if = "is_zero")]
    pub absorbed: u64,
    /// Packets in the fabric.
    pub inside: u64,
    /// How often a packet left a port: hosts and switches.
    pub hops: u64,
    /// Events that were handled.
    pub events: u64,
}

/// Hosts, switches, cables, and what is between them.
#[derive(Debug)]
pub struct Fabric {
    topology: Topology,
    nodes: Vec<Node>,
    configs: Vec<SwitchConfig>,
    host: HostConfig,
    routes: Arc<Routes>,
    /// By host: the node at the other end of its cable.
    leaves: Vec<u32>,
    /// By node: its ports that belong to the tree along which packets to groups go.
    tree: Vec<Vec<u16>>,
    /// The same for the groups of which a subnet manager has written tables.
    trees: BTreeMap<IpAddr, Arc<[Vec<u16>]>>,
    /// By host: how a manager has it react to congestion.
    reactions: Vec<Option<Arc<cc::ibcc::Reaction>>>,
    packets: Slab<Travelling>,
    /// Reports on their way between switches.
    reports: Slab<Arc<[LeafQuality]>>,
    agenda: Agenda<Event>,
    planned: Vec<Change>,
    now: Instant,
    /// When measuring began.
    measured_from: Duration,
    reached: Vec<(Target, Reached)>,
    /// Random numbers for damaged packets.
    lots: rand_chacha::ChaCha8Rng,
    tally: Tally,
    taps: tap::Taps,
    /// By port of the simulation: the node of its host.
    sites: Vec<NodeId>,
    /// The hosts that ports have taken, by address.
    homes: HashMap<IpAddr, NodeId>,
}

impl Fabric {
    /// Handles what is next.
    fn handle(&mut self, event: Event) {
        self.tally.events += 1;
        match event {
            Event::Arrive { node, port, packet, cuts } => {
                self.handle_arrival(node as usize, port, packet, cuts);
            }
            Event::Look { node, port } => {
                let (node, port) = (node as usize, usize::from(port));
                let looks = &mut self.nodes[node].ports[port].looks;
                if *looks == Some(self.now) {
                    *looks = None;
                    self.serve(node, port);
                }
            }
            Event::Pause { node, port, classes, quanta } => {
                self.take_pause(node as usize, usize::from(port), classes, quanta);
            }
            Event::Repeat { node, port, class } => self.repeat_pause(node as usize, usize::from(port), class),
            Event::Credit { node, port, lane, limit } => {
                let (node, port) = (node as usize, usize::from(port));
                if let Some(credit) = &mut self.nodes[node].ports[port].credit {
                    credit[usize::from(lane)].grant(limit);
                }
                self.serve(node, port);
            }
            Event::Watch { node } => self.watch(node as usize),
            Event::Tell { node } => self.report(node as usize),
            Event::Report { node, port, report } => self.take_report(node as usize, port, report),
            Event::Planned(number) => self.change(number as usize),
        }
    }

    /// Plans a change.
    pub fn plan(&mut self, at: Instant, change: Change) {
        let number = u32::try_from(self.planned.len()).unwrap_or(u32::MAX);
        self.planned.push(change);
        self.agenda.set(at, Event::Planned(number));
    }

    /// The nodes and cables.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What happened to all packets.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally { inside: self.packets.len() as u64, ..self.tally.clone() }
    }

    /// What a port has sent until `now`, which is not before the last event: of a packet on the wire, the part that has left. Bytes.
    #[must_use]
    pub fn sent(&self, now: Instant, node: NodeId, port: usize) -> f64 {
        let Some(port) = self.nodes.get(node).and_then(|node| node.ports.get(port)) else { return 0.0 };
        let rest = port.line.free().picos_since(now) as f64 * port.rate.as_f64() / 8e12;
        (port.stats.bytes as f64 - rest).max(0.0)
    }

    /// For how long a port was paused until `now`, which is not before the last event, in nanoseconds.
    pub fn paused_ns(&mut self, now: Instant, node: NodeId, port: usize, class: usize) -> u64 {
        let port = self.nodes.get_mut(node).and_then(|node| node.ports.get_mut(port));
        port.and_then(|port| port.stats(now).paused_ns.get(class).copied()).unwrap_or(0)
    }

    /// What a port has counted.
    pub fn port_stats(&mut self, node: NodeId, port: usize) -> Option<PortStats> {
        let now = self.now;
        Some(self.nodes.get_mut(node)?.ports.get_mut(port)?.stats(now))
    }

    /// The loads of ports are measured from this time on.
    pub fn begin_measuring(&mut self, now: Duration) {
        self.measured_from = now;
        for port in self.nodes.iter_mut().flat_map(|node| &mut node.ports) {
            port.sent_before = port.stats.bytes;
        }
    }

    /// When measuring began, since the beginning of the simulation, and what the port had sent until then.
    #[must_use]
    pub fn measured(&self, node: NodeId, port: usize) -> (Duration, u64) {
        let port = self.nodes.get(node).and_then(|node| node.ports.get(port));
        (self.measured_from, port.map_or(0, |port| port.sent_before))
    }

    /// The rate of a port, and how it marks packets.
    #[must_use]
    pub fn port_config(&self, node: NodeId, port: usize) -> Option<(cc::Rate, Option<&cc::dcqcn::Red>)> {
        let port = self.nodes.get(node)?.ports.get(port)?;
        Some((port.rate, port.marking.as_ref().map(cc::dcqcn::CongestionPoint::red)))
    }

    /// The settings of the switches, each once.
    #[must_use]
    pub fn switches(&self) -> &[SwitchConfig] {
        &self.configs
    }

    /// Bytes that wait at a port, in one class or lane.
    #[must_use]
    pub fn queued(&self, node: NodeId, port: usize, class: usize) -> u64 {
        let port = self.nodes.get(node).and_then(|node| node.ports.get(port));
        port.map_or(0, |port| port.queues.bytes_of(class))
    }

    /// Bytes that wait at a port.
    #[must_use]
    pub fn queued_at(&self, node: NodeId, port: usize) -> u64 {
        let port = self.nodes.get(node).and_then(|node| node.ports.get(port));
        port.map_or(0, |port| port.queues.bytes())
    }

    /// Bytes that a switch holds, and the most that it ever held, altogether and in headroom. 0 for hosts.
    #[must_use]
    pub fn held(&self, node: NodeId) -> (u64, u64, u64) {
        match self.nodes.get(node).map(|node| &node.role) {
            Some(Role::Switch(switch)) => switch.buffer.as_ref().map_or((0, 0, 0), |buffer| {
                let (peak, headroom) = buffer.peaks();
                (buffer.held(), peak, headroom)
            }),
            _ => (0, 0, 0),
        }
    }

    /// The settings of the NICs.
    #[must_use]
    pub const fn host(&self) -> &HostConfig {
        &self.host
    }

    /// The cables of one of the shortest ways between two hosts: the rate of each, and what a packet needs from its
    /// beginning to the next one beside waiting and sending. `None` if there is no way.
    #[must_use]
    pub fn way(&self, from: usize, to: usize) -> Option<Vec<(cc::Rate, Duration)>> {
        let mut way = Vec::new();
        let mut node = from;
        while node != to {
            let port = if node == from { 0 } else { usize::from(*self.routes.ports(node, to).first()?) };
            let port = self.nodes.get(node)?.ports.get(port)?;
            node = port.peer.0;
            way.push((port.rate, port.delay + port.latency));
            // Fixed routes may go round in circles.
            if way.len() > self.nodes.len() {
                return None;
            }
        }
        Some(way)
    }

    /// Checks that no packet was lost without a reason or counted twice, and that no buffer holds more than it has.
    ///
    /// # Panics
    /// That is not so: a bug.
    pub fn check(&self) {
        let dropped: u64 = self.tally.drops.values().sum();
        let inside = self.packets.len() as u64;
        assert_eq!(
            self.tally.entered,
            self.tally.delivered + dropped + self.tally.absorbed + inside,
            "every packet is delivered, dropped with a reason, part of a sum, or in the fabric"
        );
        let waiting: usize =
            self.nodes.iter().flat_map(|node| &node.ports).map(|port| port.queues.len()).sum();
        assert!(waiting as u64 <= inside);
        for node in &self.nodes {
            if let Role::Switch(switch) = &node.role
                && let Some(buffer) = &switch.buffer
            {
                buffer.check();
            }
        }
    }

    /// Drops a packet at a port.
    fn drop_packet(&mut self, node: NodeId, port: usize, packet: u32, why: Drop) {
        self.packets.remove(packet as usize);
        *self.tally.drops.entry(why).or_default() += 1;
        self.taps.drop(packet, why);
        // A device beyond the last host sends from nowhere.
        if let Some(port) = self.nodes.get_mut(node).and_then(|node| node.ports.get_mut(port)) {
            port.drop(why);
        }
    }
}

/// A fabric that a simulation and its observer share.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<Fabric>>);

impl Shared {
    /// Shares a fabric.
    #[must_use]
    pub fn new(fabric: Fabric) -> Self {
        Self(Arc::new(Mutex::new(fabric)))
    }

    /// The fabric. No packet moves while it is borrowed.
    pub fn lock(&self) -> MutexGuard<'_, Fabric> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network for Shared {
    fn attach(&mut self, address: IpAddr) {
        self.lock().attach(address);
    }

    fn room(&self, site: usize) -> Option<Room> {
        self.lock().room(site)
    }

    fn send(&mut self, now: Instant, from: Option<usize>, to: Target, packet: Packet) {
        self.lock().send(now, from, to, packet);
    }

    fn next(&mut self) -> Option<Instant> {
        self.lock().next()
    }

    fn run(&mut self, until: Instant, reached: &mut Vec<(Target, Reached)>) -> Option<Instant> {
        self.lock().run(until, reached)
    }
}
