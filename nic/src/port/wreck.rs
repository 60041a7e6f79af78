//! A port whose engine a panic left half changed.
//!
//! A panic is a bug of rnic. If it happens under the port's lock, the next holder of the lock finds an engine of which
//! nothing is known: to go on with it might send or store wrong data. So the port is given up: the device fails as if
//! its sockets had become unusable (DEVICE_FATAL, and all queue pairs in ERR, where their work requests are flushed), no
//! thread drives the engine any more, and what would need the engine is refused. Objects can still be destroyed, and
//! completions and events taken.
//!
//! Whoever catches the panic reports it ([`Port::fail_after_panic`]). If nobody does, or another thread is faster, the
//! next holder of the lock notices by itself.

use super::{Datapath, Port};
use crate::sync::PiGuard;
use std::sync::atomic::Ordering;

impl Port {
    /// Waits for the lock.
    pub(super) fn lock(&self) -> PiGuard<'_, Datapath> {
        self.checked(self.datapath.lock())
    }

    /// Takes the lock if it is free.
    pub(super) fn try_lock(&self) -> Option<PiGuard<'_, Datapath>> {
        self.datapath.try_lock().map(|datapath| self.checked(datapath))
    }

    fn checked<'a>(&self, mut datapath: PiGuard<'a, Datapath>) -> PiGuard<'a, Datapath> {
        if datapath.is_poisoned() {
            self.give_up(&mut datapath);
        }
        datapath
    }

    /// Returns whether the port was given up.
    pub(crate) fn is_wrecked(&self) -> bool {
        self.wrecked.load(Ordering::Relaxed)
    }

    /// Gives the port up after a panic that the caller has caught, in a call that concerns the port. The caller must
    /// not hold the lock. Nothing happens in a forked child, which has no part in the port.
    pub(crate) fn fail_after_panic(&self) {
        if self.is_ours() {
            let mut datapath = self.lock();
            self.give_up(&mut datapath);
            self.release(datapath);
        }
    }

    #[cold]
    fn give_up(&self, datapath: &mut Datapath) {
        if self.wrecked.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::error!(address = %self.address, "the device fails: a panic may have left it half changed");
        datapath.give_up();
        if let Some(background) = &self.background {
            background.give_up();
        }
    }
}

#[cfg(test)]
mod tests;
