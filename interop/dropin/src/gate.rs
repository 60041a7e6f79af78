//! A lock that is held from one call of a program to the next.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;

/// The number of spins on a held lock before the thread yields the processor.
const SPINS: u32 = 128;

/// Serializes threads that read completions, or build work requests, over several calls.
#[derive(Default)]
pub(crate) struct Gate(AtomicBool);

impl Gate {
    pub(crate) fn enter(&self) {
        let mut looks = 0;
        while self.0.swap(true, Ordering::Acquire) {
            while self.0.load(Ordering::Relaxed) {
                looks += 1;
                if looks < SPINS { spin_loop() } else { yield_now() }
            }
        }
    }

    pub(crate) fn leave(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// For a thread inside: leaves when the result is dropped, even by a panic.
    pub(crate) fn leaving(&self) -> Leaving<'_> {
        Leaving(self)
    }
}

/// Leaves a gate when it is dropped.
pub(crate) struct Leaving<'a>(&'a Gate);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
