//! The NIC in front of the wire, where the driver of the port knows one: in a simulated network.
//!
//! A NIC takes packets of each priority until it has enough to keep its wire busy, and takes no more while the priority is
//! paused or has no credit on the link. On sockets the kernel does that, and says nothing.

use super::Gate;
use crate::engine::{Departure, Engine};
use crate::sim::Room;

/// What the NIC takes.
#[derive(Debug, Default)]
pub(in crate::engine) struct Wire {
    /// `None` if it takes everything.
    room: Option<Room>,
}

/// The priority of packets with this TOS byte: the upper three bits of their DSCP.
const fn priority_of(tos: u8) -> u8 {
    tos >> 5
}

impl Wire {
    /// The bytes of packets with this TOS that the NIC takes now.
    pub(super) fn room_for(&self, tos: u8) -> Option<u32> {
        self.room.as_ref()?.get(usize::from(priority_of(tos))).copied()
    }

    /// The gate at which packets with this TOS wait.
    pub(super) const fn gate(tos: u8) -> Gate {
        Gate::Wire(priority_of(tos))
    }
}

impl Engine {
    /// Tells what the NIC takes of each priority from now on.
    pub(crate) fn set_room(&mut self, room: &Room) {
        let old = self.wire.room.replace(*room);
        for (priority, now) in (0u8..).zip(room) {
            let was_full = old.is_some_and(|old| old.get(usize::from(priority)) == Some(&0));
            if was_full && *now > 0 {
                self.places.open(Gate::Wire(priority));
            }
        }
    }

    /// Records what the NIC has taken. A packet that is larger than the room goes too: it was the last.
    pub(in crate::engine) fn book_wire(&mut self, departure: &Departure) {
        let priority = usize::from(priority_of(departure.ip.tos));
        if let Some(room) = self.wire.room.as_mut().and_then(|room| room.get_mut(priority)) {
            *room = room.saturating_sub(u32::try_from(departure.wire_bytes()).unwrap_or(u32::MAX));
        }
    }
}
