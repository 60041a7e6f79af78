//! A port whose engine a panic left half changed.
//!
//! A panic is a bug of rnic. If it happens under the port's lock, the next holder of the lock finds an engine of which
//! nothing is known: to go on with it might send or store wrong data. So the port is given up: the device fails as if
//! its sockets had become unusable (DEVICE_FATAL, and all queue pairs in ERR, where their work requests are flushed), no
//! thread drives the engine any more, and what would need the engine is refused. Objects can still be destroyed, and
//! completions and events taken.
//!
//! Whoever catches the panic reports it ([`Port::fail_after_panic`](rnic_core::port::Port::fail_after_panic)). If nobody does, or
//! another thread is faster, the next holder of the lock notices by itself.

use super::SocketPort;
use super::sync::PiGuard;
use super::turns::Driven;
use std::sync::atomic::Ordering;
use time::Duration;

impl SocketPort {
    /// Waits for the lock.
    pub(super) fn lock(&self) -> PiGuard<'_, Driven> {
        self.checked(self.driven.lock())
    }

    /// Takes the lock if it is free.
    pub(super) fn try_lock(&self) -> Option<PiGuard<'_, Driven>> {
        self.driven.try_lock().map(|driven| self.checked(driven))
    }

    /// Waits for the lock for a limited time.
    pub(super) fn lock_within(&self, patience: Duration) -> Option<PiGuard<'_, Driven>> {
        self.driven.lock_within(patience).map(|driven| self.checked(driven))
    }

    fn checked<'a>(&self, mut driven: PiGuard<'a, Driven>) -> PiGuard<'a, Driven> {
        if driven.is_poisoned() {
            self.give_up(&mut driven);
        }
        driven
    }

    #[cold]
    pub(super) fn give_up(&self, driven: &mut Driven) {
        if driven.datapath.is_wrecked() {
            return;
        }
        tracing::error!(address = %self.address, "the device fails: a panic may have left it half changed");
        driven.datapath.give_up();
        // From here on a poll of an empty completion queue is refused: all completions are there.
        self.wrecked.store(true, Ordering::Release);
        self.background.give_up();
    }
}

#[cfg(test)]
mod tests;
