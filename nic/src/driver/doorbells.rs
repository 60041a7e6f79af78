//! Doorbells: which queue pairs have work requests in their inboxes.
//!
//! A queue pair is listed when the first request comes into its empty inbox. Then the bell is rung, which the holder of
//! the engine hears: before it releases the lock, or in its next turn.

use super::handover::Bell;
use qp::Qpn;
use rnic_core::port::Datapath;
use rnic_core::queue::locked;
use std::sync::Mutex;

/// The doorbells of a port.
pub(super) struct Doorbells {
    /// Tells that the list is not empty.
    pub(super) bell: Bell,
    rung: Mutex<Vec<Qpn>>,
}

impl Doorbells {
    pub(super) fn new() -> Self {
        Self { bell: Bell::new(), rung: Mutex::default() }
    }

    /// Lists a queue pair. The caller rings the bell afterwards.
    pub(super) fn list(&self, qpn: Qpn) {
        locked(&self.rung).push(qpn);
    }

    /// Takes in the contents of the inboxes of all queue pairs that are listed; returns whether there were any.
    pub(super) fn answer(&self, datapath: &mut Datapath) -> bool {
        let mut rung = std::mem::take(&mut *locked(&self.rung));
        let found = !rung.is_empty();
        rung.drain(..).for_each(|qpn| datapath.ring(qpn));
        let mut next = locked(&self.rung);
        if next.capacity() == 0 {
            // The memory serves again.
            *next = rung;
        }
        found
    }

    /// Does the same if the bell was rung.
    #[inline]
    pub(super) fn answer_bell(&self, datapath: &mut Datapath) {
        if self.bell.take() {
            self.answer(datapath);
        }
    }

    /// Loses the list.
    #[cfg(test)]
    pub(super) fn forget(&self) {
        locked(&self.rung).clear();
    }
}
