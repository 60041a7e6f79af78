//! The primitives of the ring and the wishes: the standard library's atomics, and slots of memory. The model in
//! `model.rs` replaces them by its own.

#![expect(unsafe_code, reason = "slots are shared between two threads, which agree on who may touch which")]

use std::cell::UnsafeCell;
use std::collections::TryReserveError;
use std::mem::MaybeUninit;

pub(super) use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};

/// Room for one entry.
pub(super) struct Slot<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: a slot is touched only through the two unsafe functions, whose callers promise that no other thread does so
// at the same time.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<T: Copy> Slot<T> {
    /// # Safety
    /// No other thread touches the slot meanwhile.
    pub(super) unsafe fn write(&self, value: T) {
        // SAFETY: as the caller promises.
        unsafe { *self.0.get() = MaybeUninit::new(value) };
    }

    /// # Safety
    /// The slot was written, and no thread writes it meanwhile.
    pub(super) unsafe fn read(&self) -> T {
        // SAFETY: as the caller promises.
        unsafe { (*self.0.get()).assume_init() }
    }
}

/// Slots that have not been written. The kernel provides the memory of a large queue as it fills, so a queue that stays
/// nearly empty costs little.
pub(super) fn slots<T>(count: usize) -> Result<Box<[Slot<T>]>, TryReserveError> {
    let mut slots = Vec::new();
    slots.try_reserve_exact(count)?;
    // SAFETY: there is room for that many, and a slot may hold anything.
    unsafe { slots.set_len(count) };
    Ok(slots.into_boxed_slice())
}
