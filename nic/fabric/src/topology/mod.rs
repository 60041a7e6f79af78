//! Which nodes there are, and the cables between them.
//!
//! - [`builtin`]: the usual shapes, by their parameters.
//! - [`config`]: a topology in a file.
//! - [`htsim`] and [`ns3`]: topologies and traffic in the files of other simulators.
//! - [`emit`]: topologies for other programs.

pub mod builtin;
pub mod config;
pub mod emit;
pub mod htsim;
pub mod ns3;
pub mod traffic;

mod builder;
mod describe;
mod error;
mod flow;
mod lines;
mod link;
mod names;

pub use config::{Config, Imported, Shape};
pub use describe::{CablesDescription, Description, TierDescription};
pub use error::{LinkError, TopologyError};
pub use link::{DEFAULT_DELAY, DEFAULT_RATE, Link};

use cc::Rate;
use std::collections::{BTreeMap, BTreeSet};
use time::Duration;

/// A node's index in [`Topology::nodes`].
pub type NodeId = usize;

/// A signal takes 5 ns per metre of fibre or copper.
pub const NANOS_PER_METRE: u64 = 5;

/// The most hosts of a topology: those of a fat tree of switches with 64 ports.
pub const MAX_HOSTS: usize = 65_536;

/// The most switches: a fat tree of the most hosts has 5,120.
pub const MAX_SWITCHES: usize = 8_192;

/// The most cables: a fat tree of the most hosts has 196,608, and bundles have more.
pub const MAX_CABLES: usize = 1 << 20;

/// The most entries of the switches' tables together, at four bytes each: every switch has one for every leaf.
pub const MAX_WAYS: usize = 1 << 26;

/// The longest delay of a cable and the longest latency of a switch.
pub const MAX_DELAY: Duration = Duration::from_secs(1);

/// The longest cable in metres: the circumference of the earth.
pub const MAX_METRES: f64 = 40_075_017.0;

/// Nodes and cables.
///
/// Port `n` of a node is the end of the `n`-th cable that names it, in the order of [`cables`](Self::cables), counted from 0.
/// Hosts come first among the nodes, so that a host's number is its index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// Hosts, and then switches.
    pub nodes: Vec<Node>,
    /// The cables between them.
    pub cables: Vec<Cable>,
}

/// A host or a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name, such as `host17`, `leaf3`, `spine1`. No two nodes have the same.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The time that a packet spends in it beside waiting in queues: the pipeline of a switch. 0 for a host.
    pub latency: Duration,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A host with one NIC.
    Host,
    /// A switch, so many tiers above the hosts: 1 for a leaf.
    Switch {
        /// The tier.
        tier: u8,
    },
}

impl Kind {
    /// How many tiers above the hosts it is: 0 for a host.
    #[must_use]
    pub const fn tier(self) -> u8 {
        match self {
            Self::Host => 0,
            Self::Switch { tier } => tier,
        }
    }
}

/// A cable between two nodes. Both directions are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Cable {
    /// The nodes at its ends.
    pub ends: [NodeId; 2],
    /// The rate of both directions.
    pub rate: Rate,
    /// How long a signal takes from one end to the other.
    pub delay: Duration,
    /// The probability that a bit is wrong when it arrives.
    pub bit_errors: f64,
}

impl Topology {
    /// The number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.nodes.iter().filter(|node| node.kind == Kind::Host).count()
    }

    /// The tier of the highest switch: 0 without switches.
    #[must_use]
    pub fn tiers(&self) -> u8 {
        self.nodes.iter().map(|node| node.kind.tier()).max().unwrap_or_default()
    }

    /// The ports of every node: the cable and the node at its other end, in the order of port numbers.
    #[must_use]
    pub fn ports(&self) -> Vec<Vec<(usize, NodeId)>> {
        let mut ports = vec![Vec::new(); self.nodes.len()];
        for (number, Cable { ends: [a, b], .. }) in self.cables.iter().enumerate() {
            for (from, to) in [(*a, *b), (*b, *a)] {
                if let Some(of) = ports.get_mut(from) {
                    of.push((number, to));
                }
            }
        }
        ports
    }

    /// The node of this name.
    ///
    /// # Errors
    /// There is none; the error names a similar one.
    pub fn node(&self, name: &str) -> Result<NodeId, TopologyError> {
        let found = self.nodes.iter().position(|node| node.name == name);
        found.ok_or_else(|| no_node(name, self.nodes.iter().map(|node| &*node.name)))
    }

    /// The cables of this name: the names of the nodes at its ends with a `-` between them, in either order, such as
    /// `leaf0-spine1`. Of several cables between two nodes it means all; `leaf0-spine1.2` is the third of them.
    ///
    /// # Errors
    /// There is no such cable.
    pub fn cables_named(&self, name: &str) -> Result<Vec<usize>, TopologyError> {
        let none = || TopologyError::NoCable { name: name.to_owned() };
        let (a, rest) = name.split_once('-').ok_or_else(none)?;
        let (b, number) = match rest.split_once('.') {
            Some((b, number)) => (b, Some(number.parse::<usize>().map_err(|_| none())?)),
            None => (rest, None),
        };
        let (a, b) = (self.node(a.trim())?, self.node(b.trim())?);
        let between =
            self.cables.iter().enumerate().filter(|(_, cable)| [[a, b], [b, a]].contains(&cable.ends));
        let mut found: Vec<_> = between.map(|(index, _)| index).collect();
        if let Some(number) = number {
            found = found.get(number).copied().into_iter().collect();
        }
        if found.is_empty() { Err(none()) } else { Ok(found) }
    }

    /// The name of a cable, such as `leaf0-spine1`, with its number if there are several between the same nodes, such as
    /// `leaf0-spine1.2`. Empty if there is no such cable.
    #[must_use]
    pub fn cable_name(&self, index: usize) -> String {
        let Some(Cable { ends: [a, b], .. }) = self.cables.get(index) else { return String::new() };
        let (from, to) = (self.name(*a), self.name(*b));
        let same = |other: &&Cable| [[*a, *b], [*b, *a]].contains(&other.ends);
        if self.cables.iter().filter(same).count() < 2 {
            return format!("{from}-{to}");
        }
        format!("{from}-{to}.{}", self.cables.iter().take(index).filter(same).count())
    }

    /// The name of a node; empty if there is no such node.
    #[must_use]
    pub fn name(&self, node: NodeId) -> &str {
        self.nodes.get(node).map_or("", |node| &*node.name)
    }

    /// Checks what the rest of the fabric relies on: the limits, one name per node, hosts first and each with a cable, and
    /// cables between two nodes that there are.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), TopologyError> {
        let hosts = self.hosts();
        within_limits(hosts, self.nodes.len() - hosts, self.cables.len())?;
        if hosts == 0 {
            return Err(TopologyError::NoHosts);
        }
        let mut names = BTreeSet::new();
        if let Some(node) = self.nodes.iter().find(|node| !names.insert(&node.name)) {
            return Err(TopologyError::Twice { name: node.name.clone() });
        }
        for [a, b] in self.cables.iter().map(|cable| cable.ends) {
            if a == b {
                return Err(TopologyError::Loop { name: self.name(a).to_owned() });
            }
            if let Some(wrong) = [a, b].into_iter().find(|end| *end >= self.nodes.len()) {
                let hint = format!("the nodes are numbered 0 to {}", self.nodes.len() - 1);
                return Err(TopologyError::NoNode { name: wrong.to_string(), hint });
            }
        }
        for (node, ports) in self.nodes.iter().zip(self.ports()) {
            let name = || node.name.clone();
            if ports.is_empty() && node.kind == Kind::Host {
                return Err(TopologyError::Alone { name: name() });
            }
            if ports.len() > usize::from(u16::MAX) + 1 {
                return Err(TopologyError::Ports { name: name() });
            }
        }
        self.check_ways(hosts)
    }

    /// Whether the switches' tables fit into memory.
    fn check_ways(&self, hosts: usize) -> Result<(), TopologyError> {
        let mut leaves = BTreeMap::<NodeId, BTreeSet<NodeId>>::new();
        for [a, b] in self.cables.iter().map(|cable| cable.ends) {
            for (host, at) in [(a, b), (b, a)] {
                if host < hosts {
                    leaves.entry(host).or_default().insert(at);
                }
            }
        }
        let places: BTreeSet<_> = leaves.into_values().collect();
        let number = (self.nodes.len() - hosts + places.len()).saturating_mul(places.len());
        at_most("entries in the switches' tables", number, MAX_WAYS)
    }
}

/// The error for a name that no node has.
fn no_node<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> TopologyError {
    let hint = match cc::nearest(name, names) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => "write the name of a node".to_owned(),
    };
    TopologyError::NoNode { name: name.to_owned(), hint }
}

/// Refuses topologies that would not fit into memory.
fn within_limits(hosts: usize, switches: usize, cables: usize) -> Result<(), TopologyError> {
    at_most("hosts", hosts, MAX_HOSTS)?;
    at_most("switches", switches, MAX_SWITCHES)?;
    at_most("cables", cables, MAX_CABLES)
}

fn at_most(what: &'static str, number: usize, most: usize) -> Result<(), TopologyError> {
    if number > most { Err(TopologyError::TooMany { what, number, most }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
