//! Building a fabric from its settings.

use super::port::Port;
use super::tap::Taps;
use super::{Event, Fabric, Host, Node, Role, Switch, Tally};
use crate::balance::{self, Balancer};
use crate::routing::Routes;
use crate::switch::buffer::Buffer;
use crate::switch::lanes::{LANES, Receiver, Sender};
use crate::switch::queues::{LARGEST_PACKET, Selection};
use crate::switch::{Forwarding, Model, SwitchConfig};
use crate::topology::{Kind, NodeId, Topology};
use crate::words;
use cc::dcqcn::CongestionPoint;
use cc::pfc::Watchdog;
use cc::{ets, vl};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rnic_core::sim::{Agenda, BEGINNING};
use serde::{Deserialize, Serialize};
use slab::Slab;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use time::Duration;

/// The NICs of the hosts, all alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// Bytes of each priority that a NIC takes from its engine before it has to wait for the wire: enough that the wire
    /// never waits for the engine.
    #[serde(with = "words::size")]
    pub queue: u64,
    /// From the NIC to the wire, beside waiting and sending.
    #[serde(with = "words::duration")]
    pub tx_latency: Duration,
    /// From the wire to the NIC.
    #[serde(with = "words::duration")]
    pub rx_latency: Duration,
    /// The virtual lane of each priority, with InfiniBand's model.
    pub lanes: [u8; 8],
    /// Bytes of the buffer of each lane, with InfiniBand's model.
    #[serde(with = "words::size")]
    pub lane: u64,
}

impl Default for HostConfig {
    /// Room for four packets of 4 KiB; no latency.
    fn default() -> Self {
        Self {
            queue: 16_384,
            tx_latency: Duration::ZERO,
            rx_latency: Duration::ZERO,
            lanes: [0; 8],
            lane: 65_536,
        }
    }
}

impl HostConfig {
    /// The queue of a priority at a NIC's port.
    pub(super) fn queue_of(&self, port: &Port, priority: usize) -> usize {
        match (&port.credit, &port.sl2vl) {
            (None, _) => priority,
            (Some(_), None) => usize::from(self.lanes[priority]),
            // A host has one table.
            (Some(_), Some(lanes)) => lanes.first().map_or(15, |of| usize::from(of[priority])),
        }
    }
}

/// Why a fabric cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SetupError {
    /// A host has no cable, or several.
    #[error("{host} has {cables} cables: a host has one NIC, with one")]
    Cables {
        /// The host.
        host: String,
        /// Its cables.
        cables: usize,
    },
    /// The weights of the classes are wrong.
    #[error("the classes of {switch} cannot share a wire: {why}")]
    Ets {
        /// The switch.
        switch: String,
        /// What is wrong.
        why: ets::ConfigError,
    },
    /// The arbitration of the lanes is wrong.
    #[error("the lanes of {switch} cannot share a wire: {why}")]
    Vl {
        /// The switch.
        switch: String,
        /// What is wrong.
        why: vl::ConfigError,
    },
    /// The load balancing is wrong.
    #[error("the load balancing of {switch}: {why}")]
    Balance {
        /// The switch.
        switch: String,
        /// What is wrong.
        why: balance::ConfigError,
    },
    /// Switches of both models in one fabric.
    #[error("{0} has another model than the other switches: a fabric is Ethernet or InfiniBand")]
    Mixed(String),
    /// A priority of the hosts has no lane.
    #[error("priority {0} of the hosts is on lane {1}: data lanes are 0 to 14")]
    Lane(usize, u8),
    /// The queue of the NICs is too short.
    #[error("a NIC's queue of {0} bytes would leave the wire idle: two packets, {1} bytes, at least")]
    Queue(u64, u64),
    /// A buffer of a lane is smaller than a packet.
    #[error("a lane of {0} bytes does not hold a packet: {1} bytes at least")]
    LaneSize(u64, u64),
}

/// The least buffer of a lane: a packet of 4096 bytes with its headers, in whole blocks.
const SMALLEST_LANE: u64 = 66 * 64;

impl Fabric {
    /// A fabric of this topology, with one kind of host, and for each switch the settings that `config_of` chooses among
    /// `configs` by the number of its node. Everything random follows from `seed`.
    ///
    /// # Errors
    /// The settings do not fit together.
    pub fn new(
        topology: Topology,
        routes: Routes,
        host: HostConfig,
        configs: Vec<SwitchConfig>,
        config_of: impl Fn(NodeId) -> usize,
        seed: u64,
    ) -> Result<Self, SetupError> {
        if let Some((priority, lane)) = host.lanes.iter().enumerate().find(|(_, lane)| **lane > 14) {
            return Err(SetupError::Lane(priority, *lane));
        }
        let least = 2 * u64::from(LARGEST_PACKET);
        if host.queue < least {
            return Err(SetupError::Queue(host.queue, least));
        }
        let is_infiniband = configs.first().is_some_and(|config| config.model == Model::Infiniband);
        let neighbours = topology.ports();
        let leaf = |ports: &Vec<(usize, NodeId)>| ports.first().map_or(0, |(_, peer)| *peer as u32);
        let mut fabric = Self {
            leaves: neighbours.iter().take(topology.hosts()).map(leaf).collect(),
            tree: tree(&topology),
            trees: BTreeMap::new(),
            reactions: Vec::new(),
            nodes: Vec::new(),
            routes: Arc::new(routes),
            host,
            configs,
            packets: Slab::new(),
            reports: Slab::new(),
            agenda: Agenda::default(),
            planned: Vec::new(),
            now: BEGINNING,
            measured_from: Duration::ZERO,
            reached: Vec::new(),
            lots: ChaCha8Rng::seed_from_u64(seed),
            tally: Tally::default(),
            taps: Taps::default(),
            sites: Vec::new(),
            homes: HashMap::new(),
            topology,
        };
        for node in 0..fabric.topology.nodes.len() {
            let node = fabric.node(node, &config_of, seed)?;
            fabric.nodes.push(node);
        }
        if is_infiniband {
            fabric.grant()?;
        }
        for (number, node) in fabric.nodes.iter().enumerate() {
            if let Role::Switch(switch) = &node.role
                && switch.balancer.report_interval().is_some()
            {
                fabric.agenda.set(BEGINNING, Event::Tell { node: number as u32 });
            }
        }
        Ok(fabric)
    }

    /// A node with its ports.
    fn node(
        &self,
        number: NodeId,
        config_of: &impl Fn(NodeId) -> usize,
        seed: u64,
    ) -> Result<Node, SetupError> {
        let of = &self.topology.nodes[number];
        let neighbours = self.topology.ports();
        let ends = &neighbours[number];
        let is_infiniband = self.configs.first().is_some_and(|config| config.model == Model::Infiniband);
        let config = match of.kind {
            Kind::Host if ends.len() != 1 => {
                return Err(SetupError::Cables { host: of.name.clone(), cables: ends.len() });
            }
            Kind::Host => None,
            Kind::Switch { .. } => Some(config_of(number).min(self.configs.len().saturating_sub(1))),
        };
        let settings = config.and_then(|config| self.configs.get(config));
        if let Some(Err(why)) = settings.map(|settings| settings.balance.check()) {
            return Err(SetupError::Balance { switch: of.name.clone(), why });
        }
        if settings.is_some_and(|settings| (settings.model == Model::Infiniband) != is_infiniband) {
            return Err(SetupError::Mixed(of.name.clone()));
        }
        let selection = match settings {
            Some(settings) if is_infiniband => Selection::lanes(&settings.vl)
                .map_err(|why| SetupError::Vl { switch: of.name.clone(), why })?,
            Some(settings) => Selection::classes(&settings.ets)
                .map_err(|why| SetupError::Ets { switch: of.name.clone(), why })?,
            None => Selection::Strict,
        };
        let mut ports = Vec::new();
        for (number, (cable, peer)) in ends.iter().enumerate() {
            // Two nodes may have several cables in common: the number of the cable tells.
            let far = neighbours[*peer].iter().position(|(other, _)| other == cable).unwrap_or(0);
            let mut port =
                Port::new(&self.topology.cables[*cable], (*peer, far as u16), selection.clone(), BEGINNING);
            let own = seed ^ (*cable as u64) << 20 ^ number as u64;
            port.marking = settings.and_then(|of| of.red.clone()).map(|red| CongestionPoint::new(red, own));
            let watch = settings.and_then(|of| of.watchdog);
            port.watchdogs = watch.map(|watch| Box::new([Watchdog::new(watch.config()); _]));
            port.expires = settings.is_some_and(|of| of.head_of_queue.is_some() || of.lifetime.is_some());
            (port.latency, port.is_cut_through) = self.beyond(*peer, config_of);
            if of.kind == Kind::Host {
                port.latency += self.host.tx_latency;
            }
            ports.push(port);
        }
        let role = match (config, settings) {
            (Some(config), Some(settings)) => {
                let classes = settings.classes();
                let headroom = |port: &Port| classes.map(|class| class.headroom_at(port.rate, port.delay));
                let buffer = || Buffer::new(&settings.buffer, classes, ports.iter().map(headroom).collect());
                let switch = Switch {
                    config,
                    buffer: (!is_infiniband).then(buffer),
                    balancer: Balancer::new(&settings.balance, number as u32, seed),
                    classes: settings.classes_of_dscps(),
                    marks: VecDeque::new(),
                    reducer: None,
                };
                Role::Switch(Box::new(switch))
            }
            _ => Role::Host(Host::default()),
        };
        Ok(Node { ports, role, is_watched: false })
    }

    /// The time that a packet spends in a node beside waiting and sending, and whether the node cuts packets through.
    fn beyond(&self, node: NodeId, config_of: &impl Fn(NodeId) -> usize) -> (Duration, bool) {
        let of = &self.topology.nodes[node];
        if of.kind == Kind::Host {
            return (of.latency + self.host.rx_latency, false);
        }
        let number = config_of(node).min(self.configs.len().saturating_sub(1));
        let config = self.configs.get(number);
        (of.latency, config.is_some_and(|config| config.forwarding == Forwarding::CutThrough))
    }

    /// Gives every port credit for the buffers at the other end.
    fn grant(&mut self) -> Result<(), SetupError> {
        for node in 0..self.nodes.len() {
            let bytes = match &self.nodes[node].role {
                Role::Host(_) => self.host.lane,
                Role::Switch(switch) => self.configs[switch.config].buffer.lane,
            };
            if bytes < SMALLEST_LANE {
                return Err(SetupError::LaneSize(bytes, SMALLEST_LANE));
            }
            let (lane, first) = Receiver::new(bytes);
            for port in 0..self.nodes[node].ports.len() {
                let at = &mut self.nodes[node].ports[port];
                at.lanes = Some(Box::new([lane; LANES]));
                let (peer, far) = at.peer;
                let credit = &mut self.nodes[peer].ports[usize::from(far)].credit;
                let credit = credit.get_or_insert_with(|| Box::new([Sender::default(); LANES]));
                credit.iter_mut().for_each(|lane| lane.grant(first));
            }
        }
        Ok(())
    }
}

/// The root of a tree: of its nodes the first of the highest ones.
pub(super) fn root(topology: &Topology, is_in: impl Fn(NodeId) -> bool) -> Option<NodeId> {
    let tier = |node: &NodeId| match topology.nodes[*node].kind {
        Kind::Host => 0,
        Kind::Switch { tier } => tier,
    };
    (0..topology.nodes.len()).rev().filter(|node| is_in(*node)).max_by_key(tier)
}

/// For each node the ports that belong to a tree of shortest ways from the highest switch: along it packets to a group reach
/// every host once.
fn tree(topology: &Topology) -> Vec<Vec<u16>> {
    let neighbours = topology.ports();
    let mut tree = vec![Vec::new(); topology.nodes.len()];
    let root = root(topology, |_| true);
    let mut seen = vec![false; topology.nodes.len()];
    let mut front: Vec<NodeId> = root.into_iter().collect();
    front.iter().for_each(|node| seen[*node] = true);
    while !front.is_empty() {
        let mut next = Vec::new();
        for node in front {
            for (port, (cable, peer)) in neighbours[node].iter().enumerate() {
                if !std::mem::replace(&mut seen[*peer], true) {
                    let far = neighbours[*peer].iter().position(|(other, _)| other == cable).unwrap_or(0);
                    tree[node].push(port as u16);
                    tree[*peer].push(far as u16);
                    next.push(*peer);
                }
            }
        }
        front = next;
    }
    tree
}
