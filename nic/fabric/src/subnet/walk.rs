//! The way of a datagram: cable by cable, by the path in it or by LID.
//!
//! Datagrams take no time, and no room in the buffers of the fabric: management is answered while virtual time is held.

use super::Subnet;
use super::mad::{MOST_HOPS, Mad};
use super::node::{physical, state};
use crate::topology::NodeId;

/// A port of a node; or a node, and the port through which something has come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) node: NodeId,
    pub(super) port: u8,
}

/// The words of four bytes of a datagram on the wire: 256 bytes, and its headers from LRH to DETH and ICRC.
const MAD_WORDS: u64 = (256 + 8 + 12 + 8 + 4) / 4;

impl Subnet {
    /// A datagram crosses a cable. Subnet management passes links that are up; all else needs links that are active.
    fn cross(&mut self, from: Place, is_smp: bool) -> Option<Place> {
        let near = self.port(from)?;
        let (node, port) = near.peer?;
        let to = Place { node, port };
        let far = self.port(to)?;
        let is_up = |port: &super::node::Port| {
            super::node::info::PHYSICAL_STATE.get(&port.info) == physical::LINK_UP
                && port.state() >= state::INIT
        };
        let may_pass = is_up(near)
            && is_up(far)
            && (is_smp || near.state() == state::ACTIVE && far.state() >= state::ARMED);
        let near = &mut self.port_mut(from)?.counters.tally;
        if !may_pass {
            near.inactive += 1;
            return None;
        }
        near.xmit_words += MAD_WORDS;
        near.xmit_packets += 1;
        let far = &mut self.port_mut(to)?.counters.tally;
        far.rcv_words += MAD_WORDS;
        far.rcv_packets += 1;
        Some(to)
    }

    fn is_switch(&self, node: NodeId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.switch.is_some())
    }

    /// A request follows the path in it, and notes the way back. Only switches pass on. (IBTA volume 1, section 14.2.2.)
    pub(super) fn walk_out(&mut self, from: Place, mad: &mut Mad) -> Option<Place> {
        let hops = usize::from(mad.hop_count());
        if hops > MOST_HOPS {
            return None;
        }
        let mut at = from;
        for hop in 1..=hops {
            let port = mad.way_out(hop);
            if hop > 1 && !self.is_switch(at.node) || port == 0 {
                return None;
            }
            at = self.cross(Place { node: at.node, port }, true)?;
            mad.set_way_back(hop, at.port);
        }
        Some(at)
    }

    /// An answer goes back the way that its request noted.
    pub(super) fn walk_back(&mut self, from: Place, mad: &Mad) -> Option<Place> {
        let hops = usize::from(mad.hop_count());
        if hops > MOST_HOPS {
            return None;
        }
        let mut at = from;
        for hop in (1..=hops).rev() {
            let port = mad.way_back(hop);
            if hop < hops && !self.is_switch(at.node) || port == 0 {
                return None;
            }
            at = self.cross(Place { node: at.node, port }, true)?;
        }
        Some(at)
    }

    /// A datagram goes to a LID, by the forwarding tables.
    pub(super) fn walk_to(&mut self, from: Place, lid: u16, is_smp: bool) -> Option<Place> {
        let mut at = from;
        for hop in 0..=MOST_HOPS {
            let node = self.nodes.get(at.node)?;
            if node.ports.get(usize::from(node.own_port()))?.has_lid(lid) {
                return Some(at);
            }
            let port = match &node.switch {
                None if hop == 0 => 1,
                None => return None,
                Some(switch) => match switch.port_to(lid) {
                    Some(0) => return Some(at),
                    Some(port) if port <= node.port_count() => port,
                    _ => {
                        self.port_mut(at)?.counters.tally.no_route += 1;
                        return None;
                    }
                },
            };
            at = self.cross(Place { node: at.node, port }, is_smp)?;
        }
        None
    }
}
