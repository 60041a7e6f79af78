//! Links: cables that break and are mended, the states of the ports at their ends, and the traps that tell of them.

use super::Subnet;
use super::mad::{AGENT, DATA, MAD_LEN, Mad, SMP_DATA_LEN, class, method};
use super::node::{info, physical, state, switch_info};
use super::smp::attribute;
use super::walk::Place;
use crate::topology::NodeId;

/// How often a trap is sent that nobody acknowledges: our choice, so that nothing goes on for ever.
const ATTEMPTS: u8 = 10;

/// The most traps that wait to be acknowledged. A node has at most one of each kind.
const MOST_TRAPS: usize = 1024;

/// A port of a switch has changed its state.
const LINK_STATE_CHANGE: u16 = 128;

/// The capabilities of a port have changed.
const CAPABILITY_CHANGE: u16 = 144;

/// A request has named a wrong management key.
const BAD_KEY: u16 = 256;

/// The most ports of a way back in a notice.
const WAY_BACK: usize = 30;

/// The capability of a port at which a subnet manager is (PortInfo.CapabilityMask, bit 1).
const IS_SM: u64 = 1 << 1;

/// The trap about a new subnet manager is held back for this many intervals between repetitions. OpenSM first discovers the subnet.
/// A master that heard of it at once would hand over in the middle of that, and OpenSM ignores a handover until it stands by
/// (osm_sm_state_mgr.c: it sweeps again, and then stands by all the same). Both would then stand by for a minute.
const PATIENCE: u8 = 2;

/// A trap that nobody has acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Trap {
    node: NodeId,
    number: u16,
    transaction: u32,
    notice: [u8; SMP_DATA_LEN],
    attempts: u8,
    /// Repetitions until it is sent for the first time.
    waits: u8,
    is_due: bool,
}

impl Subnet {
    /// A cable is cut, or mended. The ports at its ends go down; mended, they come up uninitialized, and wait for the subnet
    /// manager. Switches tell it.
    pub fn set_cable(&mut self, cable: usize, is_whole: bool) {
        let Some(ends) = self.ends.get(cable).copied() else { return };
        let has_changed = if is_whole { self.cut.remove(&cable) } else { self.cut.insert(cable) };
        if !has_changed {
            return;
        }
        let disabled = ends.iter().any(|end| self.is_disabled(*end));
        let (to, wire) = match (is_whole, disabled) {
            (true, false) => (state::INIT, physical::LINK_UP),
            _ => (state::DOWN, physical::POLLING),
        };
        ends.iter().for_each(|end| self.set_link(*end, to, wire));
        ends.iter().for_each(|end| self.tell(end.node));
    }

    /// Whether a cable is whole, and the ports at both ends of it carry data.
    #[must_use]
    pub fn carries(&self, cable: usize) -> bool {
        let is_active = |end: &Place| self.port(*end).is_some_and(|port| port.state() == state::ACTIVE);
        self.ends.get(cable).is_some_and(|ends| ends.iter().all(is_active))
    }

    fn is_disabled(&self, at: Place) -> bool {
        self.port(at).is_some_and(|port| info::PHYSICAL_STATE.get(&port.info) == physical::DISABLED)
    }

    /// A link goes down or comes up at one of its ends.
    fn set_link(&mut self, at: Place, to: u64, wire: u64) {
        let was_disabled = self.is_disabled(at);
        let Some(port) = self.port_mut(at) else { return };
        if to == state::DOWN && port.state() != state::DOWN {
            port.counters.tally.link_downed += 1;
        }
        let wire = if was_disabled { physical::DISABLED } else { wire };
        port.set_state(to, wire);
        self.version += 1;
    }

    /// A subnet manager has a link begin anew at this port: both ends are uninitialized, if the link can be up. The other end
    /// tells of it: the one that was told to does not (IBTA volume 1, section 14.2.5.4, PortStateChange).
    pub(super) fn restart(&mut self, at: Place, wire: u64) {
        let Some((cable, peer)) = self.port(at).and_then(|port| Some((port.cable?, port.peer?))) else {
            return;
        };
        let far = Place { node: peer.0, port: peer.1 };
        if let Some(port) = self.port_mut(at).filter(|_| wire != 0) {
            info::PHYSICAL_STATE.set(&mut port.info, wire);
        }
        let is_up = !self.cut.contains(&cable) && !self.is_disabled(at) && !self.is_disabled(far);
        // It goes down in between.
        for end in [at, far] {
            self.set_link(end, state::DOWN, physical::POLLING);
        }
        if is_up {
            for end in [at, far] {
                self.set_link(end, state::INIT, physical::LINK_UP);
            }
        }
        self.tell(far.node);
    }

    /// The switch notes that the state of one of its ports has changed, and sends a trap.
    fn tell(&mut self, node: NodeId) {
        let Some(of) = self.nodes.get_mut(node) else { return };
        let Some(switch) = &mut of.switch else { return };
        switch_info::STATE_CHANGE.set(&mut switch.info, 1);
        let mut notice = self.notice(node, LINK_STATE_CHANGE, 1);
        notice[10..12].copy_from_slice(&self.lid(node).to_be_bytes());
        self.send_trap(node, LINK_STATE_CHANGE, 0, notice);
    }

    /// A subnet manager begins or stops at a port.
    pub(super) fn set_manager(&mut self, node: NodeId, is_there: bool) {
        let Some(own) = self.nodes.get(node).map(super::node::Node::own_port) else { return };
        let Some(port) = self.port_mut(Place { node, port: own }) else { return };
        let old = info::CAPABILITIES.get(&port.info);
        let new = if is_there { old | IS_SM } else { old & !IS_SM };
        if new == old {
            return;
        }
        info::CAPABILITIES.set(&mut port.info, new);
        let mut notice = self.notice(node, CAPABILITY_CHANGE, 4);
        notice[12..14].copy_from_slice(&self.lid(node).to_be_bytes());
        notice[16..20].copy_from_slice(&(new as u32).to_be_bytes());
        self.send_trap(node, CAPABILITY_CHANGE, if is_there { PATIENCE } else { 0 }, notice);
    }

    /// A node reports a request with a wrong key, which came from this LID. It does so at most once between two repetitions, so that
    /// somebody who guesses keys cannot cause a flood of traps. (The data of the notice: IBTA volume 1, section 14.2.5.1.)
    pub(super) fn tell_of_key(&mut self, node: NodeId, from: u16, request: &Mad) {
        if !self.told.insert(node) {
            return;
        }
        let mut notice = self.notice(node, BAD_KEY, 2);
        notice[12..14].copy_from_slice(&from.to_be_bytes());
        notice[16] = request.method();
        notice[18..20].copy_from_slice(&request.attribute().to_be_bytes());
        notice[20..24].copy_from_slice(&request.modifier().to_be_bytes());
        notice[24..32].copy_from_slice(&request.key().to_be_bytes());
        if request.is_by_path() {
            notice[14..16].copy_from_slice(&request.path_lids()[0].to_be_bytes());
            let hops = usize::from(request.hop_count());
            // It came by a path, which has been cut, and its hops.
            notice[33] = 0x80 | if hops > WAY_BACK { 0x40 } else { 0 } | hops.min(WAY_BACK) as u8;
            for (hop, port) in (1..=hops).zip(&mut notice[34..]) {
                *port = request.way_back(hop);
            }
        }
        self.send_trap(node, BAD_KEY, 0, notice);
    }

    /// The beginning of a notice (IBTA volume 1, section 13.4.8.2): generic, its kind, who produces it, its number, and the LID
    /// of the issuer.
    fn notice(&self, node: NodeId, number: u16, kind: u8) -> [u8; SMP_DATA_LEN] {
        let mut notice = [0; SMP_DATA_LEN];
        notice[0] = 0x80 | kind;
        // A channel adapter is 1, and a switch 2.
        notice[3] = 1 + u8::from(self.nodes.get(node).is_some_and(|node| node.switch.is_some()));
        notice[4..6].copy_from_slice(&number.to_be_bytes());
        notice[6..8].copy_from_slice(&self.lid(node).to_be_bytes());
        notice
    }

    /// Sends a trap to the subnet manager, if the node knows one: at once, or after `waits` intervals between repetitions.
    fn send_trap(&mut self, node: NodeId, number: u16, waits: u8, notice: [u8; SMP_DATA_LEN]) {
        self.traps.retain(|trap| (trap.node, trap.number) != (node, number));
        if self.lid(node) == 0 || self.traps.len() >= MOST_TRAPS {
            return;
        }
        let transaction = self.next_trap;
        self.next_trap = self.next_trap.wrapping_add(1).max(1);
        let is_due = waits == 0;
        self.traps.push(Trap { node, number, transaction, notice, attempts: 0, waits, is_due });
    }

    /// Has traps that nobody has acknowledged sent again.
    pub(super) fn repeat_traps(&mut self) {
        self.told.clear();
        for trap in &mut self.traps {
            trap.waits = trap.waits.saturating_sub(1);
            trap.is_due = trap.waits == 0;
        }
    }

    /// A trap that is due: where it begins, the LID of the subnet manager, and the datagram.
    pub(super) fn poll_trap(&mut self) -> Option<(Place, u16, Mad)> {
        let index = self.traps.iter().position(|trap| trap.is_due)?;
        let trap = self.traps.get_mut(index)?;
        trap.is_due = false;
        trap.attempts += 1;
        let trap = trap.clone();
        if trap.attempts >= ATTEMPTS {
            self.traps.remove(index);
        }
        let own = self.nodes.get(trap.node)?.own_port();
        let at = Place { node: trap.node, port: own };
        let manager = info::SM_LID.get(&self.port(at)?.info) as u16;
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[1, class::SUBNET_BY_LID, 1, method::TRAP]);
        bytes[16..18].copy_from_slice(&attribute::NOTICE.to_be_bytes());
        bytes[DATA..DATA + SMP_DATA_LEN].copy_from_slice(&trap.notice);
        let mut mad = Mad(bytes);
        mad.set_transaction(trap.transaction.into());
        mad.set_slot(AGENT);
        Some((at, manager, mad))
    }

    /// The subnet manager has heard of a trap.
    pub(super) fn repress(&mut self, mad: &Mad) {
        // The upper half of the transaction belongs to those who pass it on.
        let transaction = mad.transaction() as u32;
        self.traps.retain(|trap| trap.transaction != transaction);
    }
}
