//! Puts topologies together, node by node and cable by cable.

use super::link::Wire;
use super::{Cable, Kind, Node, NodeId, Topology, TopologyError, within_limits};
use std::ops::Range;
use time::Duration;

/// A topology that grows.
#[derive(Debug, Default)]
pub(super) struct Builder(Topology);

impl Builder {
    /// Begins a topology of so many nodes and cables, if that is not too many.
    pub(super) fn new(hosts: usize, switches: usize, cables: usize) -> Result<Self, TopologyError> {
        within_limits(hosts, switches, cables)?;
        let topology =
            Topology { nodes: Vec::with_capacity(hosts + switches), cables: Vec::with_capacity(cables) };
        Ok(Self(topology))
    }

    /// Adds hosts: `host0` and so on. They come before all switches.
    pub(super) fn hosts(&mut self, number: usize) -> Range<NodeId> {
        self.nodes("host", Kind::Host, number)
    }

    /// Adds switches of a tier: `leaf0` and so on.
    pub(super) fn switches(&mut self, prefix: &str, tier: u8, number: usize) -> Range<NodeId> {
        self.nodes(prefix, Kind::Switch { tier }, number)
    }

    fn nodes(&mut self, prefix: &str, kind: Kind, number: usize) -> Range<NodeId> {
        let first = self.0.nodes.len();
        let node = |n| Node { name: format!("{prefix}{n}"), kind, latency: Duration::ZERO };
        self.0.nodes.extend((0..number).map(node));
        first..first + number
    }

    /// Adds a node.
    pub(super) fn node(&mut self, node: Node) -> NodeId {
        self.0.nodes.push(node);
        self.0.nodes.len() - 1
    }

    /// Adds a cable.
    pub(super) fn cable(&mut self, a: NodeId, b: NodeId, wire: Wire) {
        let Wire { rate, delay, bit_errors } = wire;
        self.0.cables.push(Cable { ends: [a, b], rate, delay, bit_errors });
    }

    /// Connects every host to a switch: as many to the first as to any other, in order.
    pub(super) fn spread(&mut self, hosts: Range<NodeId>, switches: Range<NodeId>, wire: Wire) {
        let each = hosts.len().checked_div(switches.len()).unwrap_or_default().max(1);
        for (number, host) in hosts.enumerate() {
            self.cable(host, switches.start + number / each, wire);
        }
    }

    /// Connects every switch of one tier to each of the next, by so many cables.
    pub(super) fn mesh(&mut self, lower: Range<NodeId>, upper: Range<NodeId>, bundle: usize, wire: Wire) {
        for low in lower {
            for high in upper.clone() {
                for _ in 0..bundle {
                    self.cable(low, high, wire);
                }
            }
        }
    }

    /// The topology, if it is valid.
    pub(super) fn finish(self) -> Result<Topology, TopologyError> {
        self.0.check()?;
        Ok(self.0)
    }
}

/// The product, or the largest number if that is larger than all numbers.
pub(super) fn product(factors: &[usize]) -> usize {
    factors.iter().fold(1, |product: usize, factor| product.saturating_mul(*factor))
}

/// The sum, or the largest number if that is larger than all numbers.
pub(super) fn sum(parts: &[usize]) -> usize {
    parts.iter().fold(0, |sum: usize, part| sum.saturating_add(*part))
}

/// Refuses parameters that are 0.
pub(super) fn all_positive(parameters: &[(&'static str, usize)]) -> Result<(), TopologyError> {
    match parameters.iter().find(|(_, value)| *value == 0) {
        Some((name, _)) => Err(TopologyError::Zero { name }),
        None => Ok(()),
    }
}
