//! A bounded ring with one producer and one consumer.
//!
//! The producer is the engine, which holds the port's lock; the consumer is the holder of the completion queue's lock.
//! Registered memory that the engine wrote before it published an entry is visible to the thread that takes that entry:
//! entries are published with release order and taken with acquire order.

#![expect(unsafe_code, reason = "slots are shared between two threads and guarded by the two indices")]

use super::primitives::{AtomicUsize, Ordering, Slot, slots};
use std::collections::TryReserveError;
use std::sync::Arc;

/// Puts fields that two threads write on separate cache lines: 128 bytes, because x86 fetches lines in pairs.
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

struct Shared<T> {
    /// The slots, a power of two in number. Those in head..tail belong to the consumer, the others to the producer;
    /// each side moves its index with release order, and the other side reads it with acquire order.
    slots: Box<[Slot<T>]>,
    /// The number of entries ever taken.
    head: Apart<AtomicUsize>,
    /// The number of entries ever published.
    tail: Apart<AtomicUsize>,
}

/// The writing end.
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    capacity: usize,
    tail: usize,
    /// The consumer's index as last seen. Most pushes need not read the other thread's index.
    head: usize,
}

/// The reading end.
pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    /// The producer's index as last seen.
    tail: usize,
}

/// A ring of `capacity` entries.
pub(crate) fn ring<T: Copy>(capacity: usize) -> Result<(Producer<T>, Consumer<T>), TryReserveError> {
    let shared = Arc::new(Shared {
        slots: slots(capacity.max(1).next_power_of_two())?,
        head: Apart(AtomicUsize::new(0)),
        tail: Apart(AtomicUsize::new(0)),
    });
    let producer = Producer { shared: Arc::clone(&shared), capacity, tail: 0, head: 0 };
    Ok((producer, Consumer { shared, head: 0, tail: 0 }))
}

impl<T> Shared<T> {
    fn slot(&self, index: usize) -> &Slot<T> {
        &self.slots[index & (self.slots.len() - 1)]
    }
}

impl<T: Copy> Producer<T> {
    /// Publishes an entry; false if the ring is full.
    pub(crate) fn push(&mut self, value: T) -> bool {
        if self.tail.wrapping_sub(self.head) >= self.capacity {
            self.head = self.shared.head.0.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) >= self.capacity {
                return false;
            }
        }
        // SAFETY: the slot lies outside head..tail, so the consumer does not touch it, and `&mut self` is the only
        // producer. The acquire load that showed this pairs with the release store after the slot was last taken.
        unsafe { self.shared.slot(self.tail).write(value) };
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.0.store(self.tail, Ordering::Release);
        true
    }
}

impl<T: Copy> Consumer<T> {
    /// Takes the oldest entries, as many as the ring holds and `out` has room for; returns the number taken.
    pub(crate) fn take(&mut self, out: &mut [T]) -> usize {
        let mut ready = self.tail.wrapping_sub(self.head);
        if ready < out.len() {
            ready = self.len();
        }
        let count = ready.min(out.len());
        if count == 0 {
            return 0;
        }
        for (index, place) in out.iter_mut().take(count).enumerate() {
            let index = self.head.wrapping_add(index);
            // SAFETY: the slot lies inside head..tail, so the producer does not touch it, and `&mut self` is the
            // only consumer. The acquire load of the tail pairs with the release store that published it.
            *place = unsafe { self.shared.slot(index).read() };
        }
        self.head = self.head.wrapping_add(count);
        self.shared.head.0.store(self.head, Ordering::Release);
        count
    }

    /// The number of entries to take.
    pub(crate) fn len(&mut self) -> usize {
        self.tail = self.shared.tail.0.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.head)
    }
}
