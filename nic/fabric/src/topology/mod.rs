//! Which nodes there are, and the cables between them.

use cc::Rate;
use time::Duration;

/// A node's index in [`Topology::nodes`].
pub type NodeId = usize;

/// A signal takes 5 ns per metre of fibre or copper.
pub const NANOS_PER_METRE: u64 = 5;

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
}
