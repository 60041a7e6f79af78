//! Deadlock: ports that wait for one another in a circle.

use super::port::bits;
use super::{Fabric, Role};
use std::collections::BTreeSet;

/// A queue: node, port, and number.
type Place = (usize, usize, usize);

impl Fabric {
    /// The ports, as node and number, with queues that can never send again, unless something drops packets: each may not send, because the account
    /// at the other end of its cable is full of packets that wait in queues of the same kind.
    ///
    /// A queue whose peer's account holds a packet that can move may be allowed to send later, so it is left out; then those
    /// that wait for it, and so on. What remains waits for itself.
    #[must_use]
    pub fn stuck(&self) -> Vec<(usize, usize)> {
        let mut stuck: BTreeSet<Place> = BTreeSet::new();
        for (node, of) in self.nodes.iter().enumerate() {
            for (number, port) in of.ports.iter().enumerate() {
                let may_not = |queue: usize| {
                    let is_paused =
                        port.pauses >> queue & 1 == 1 && !port.paused.may_send(self.now, queue as u8);
                    let is_forced = port.forced >> queue & 1 == 1;
                    let first = port.queues.first(queue);
                    let lacks = |credit: &[crate::switch::lanes::Sender; 16]| {
                        first.is_some_and(|(first, _)| !credit[queue].may_send(first.bytes))
                    };
                    is_paused && !is_forced || port.credit.as_ref().is_some_and(|of| lacks(of))
                };
                stuck.extend(
                    bits(port.queues.waiting())
                        .filter(|queue| may_not(*queue))
                        .map(|queue| (node, number, queue)),
                );
            }
        }
        loop {
            let before = stuck.len();
            let free: Vec<Place> =
                stuck.iter().copied().filter(|place| !self.waits_within(*place, &stuck)).collect();
            free.iter().for_each(|place| {
                stuck.remove(place);
            });
            if stuck.len() == before {
                return stuck.into_iter().map(|(node, port, _)| (node, port)).collect();
            }
        }
    }

    /// Whether everything that the peer of a queue holds of it waits in queues of this set.
    fn waits_within(&self, (node, port, queue): Place, set: &BTreeSet<Place>) -> bool {
        let (peer, far) = self.nodes[node].ports[port].peer;
        if let Role::Host(_) = self.nodes[peer].role {
            // A host that pauses for ever is a storm, and no circle.
            return false;
        }
        let mut holds = false;
        for (number, of) in self.nodes[peer].ports.iter().enumerate() {
            for other in bits(of.queues.waiting()) {
                let is_from = |packet: u32| {
                    let entry = self.packets.get(packet as usize).map(|packet| packet.entry);
                    entry == Some((far, queue as u8))
                };
                if of.queues.packets(other).any(is_from) {
                    holds = true;
                    if !set.contains(&(peer, number, other)) {
                        return false;
                    }
                }
            }
        }
        holds
    }
}
