//! Subnet management: the agents of all nodes of a topology, as a subnet manager sees them.
//!
//! A switch or a host answers subnet management packets about itself, and performance management about its ports. They reach it
//! by the path written in them, or by LID, once forwarding tables lead there. A subnet manager, such as OpenSM, so finds
//! the nodes, gives them LIDs, and writes tables, which [`Tables`] takes over for switches that forward by them.
//!
//! Everything here is sans-IO: [`Clients`] takes the datagrams of programs that speak the protocol of ibsim, and returns those
//! that are due. `rnic fabric serve` has the sockets.
//!
//! - `mad`: datagrams and their fields.
//! - `node`: what an agent knows.
//! - `build`: agents from a topology.
//! - `walk`: the way of a datagram.
//! - `smp`: the attributes of subnet management, and `performance` those of performance management.
//! - `congestion`: those of congestion control.
//! - `links`: cables that break and are mended, states of ports, and traps.
//! - `groups`: multicast groups that hosts join.
//! - `clients`: programs that take part; `requests`: what they send, and what waits for an answer; `refusals`: what they ask for
//!   in vain.
//! - `tables`: what a subnet manager has written, in a file.
//! - `served`: a fabric whose agents programs manage.

mod build;
mod clients;
mod congestion;
mod groups;
mod links;
mod mad;
mod node;
mod performance;
mod refusals;
mod requests;
mod served;
mod smp;
mod tables;
#[cfg(test)]
mod tests;
mod walk;

pub use build::SubnetError;
pub use clients::{CONTROL_LEN, Clients, Control, SLOTS};
pub use congestion::{CongestionLog, LoggedEvent, LoggedKind};
pub use mad::{MAD_LEN, Mad};
pub use performance::PortTraffic;
pub use refusals::{Refusals, RefusedKind};
pub use requests::REQUEST_LEN;
pub use served::Served;
pub use tables::{
    HostCongestion, HostTable, LinkState, PortTable, ServiceLevel, SwitchCongestion, SwitchTable, Tables,
    TablesError,
};

use crate::topology::NodeId;
use links::Trap;
use node::Node;
use std::collections::{BTreeMap, BTreeSet};
use time::Instant;
use walk::Place;

/// The agents of all nodes.
#[derive(Clone, Debug)]
pub struct Subnet {
    nodes: Vec<Node>,
    /// By name.
    numbers: BTreeMap<String, NodeId>,
    /// By cable: the ports at its ends.
    ends: Vec<[Place; 2]>,
    /// Cables that are cut.
    cut: BTreeSet<usize>,
    /// Traps that nobody has acknowledged yet.
    traps: Vec<Trap>,
    /// Hosts that are to be members of multicast groups.
    members: Vec<groups::Member>,
    /// Nodes that have told of a wrong key since the last repetition.
    told: BTreeSet<NodeId>,
    /// The transaction of the next trap.
    next_trap: u32,
    /// How often something has changed that switches forward by.
    version: u64,
    /// The time up to which the fabric has run.
    now: Instant,
}

impl Subnet {
    /// How often something has changed that switches forward by: tables, LIDs, and which links are active.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Whether all ports at cables that are whole are active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        let whole = self.ends.iter().enumerate().filter(|(cable, _)| !self.cut.contains(cable));
        whole
            .flat_map(|(_, ends)| ends)
            .all(|end| self.port(*end).is_some_and(|port| port.state() == node::state::ACTIVE))
    }

    /// The LID of a node, 0 if it has none yet.
    #[must_use]
    pub fn lid(&self, node: NodeId) -> u16 {
        let own = |node: &Node| node.ports.get(usize::from(node.own_port())).map_or(0, node::Port::lid);
        self.nodes.get(node).map_or(0, own)
    }

    /// The GUID of a node, as `rnic fabric topo --ibnet` prints it.
    #[must_use]
    pub fn guid(&self, node: NodeId) -> u64 {
        self.nodes.get(node).map_or(0, |node| node.guid)
    }

    fn port(&self, at: Place) -> Option<&node::Port> {
        self.nodes.get(at.node)?.ports.get(usize::from(at.port))
    }

    fn port_mut(&mut self, at: Place) -> Option<&mut node::Port> {
        self.nodes.get_mut(at.node)?.ports.get_mut(usize::from(at.port))
    }
}
