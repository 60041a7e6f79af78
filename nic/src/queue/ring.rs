//! A bounded ring with one producer and one consumer.
//!
//! The producer is the engine, which holds the port's lock; the consumer is whoever holds the completion queue's.
//! What the engine wrote to registered memory before it published an entry is visible to whoever took that entry:
//! entries are published with release order and taken with acquire order.

#![expect(unsafe_code, reason = "slots are shared between two threads and guarded by the two indices")]

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Keeps what two threads write on lines of their own: 128 bytes, because x86 fetches lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

struct Shared<T> {
    slots: Box<[UnsafeCell<T>]>,
    /// Entries ever taken.
    head: Apart<AtomicUsize>,
    /// Entries ever published.
    tail: Apart<AtomicUsize>,
}

// SAFETY: a slot is written by the producer only while it lies outside head..tail and read by the consumer only while
// it lies inside; the indices are moved with release order and read with acquire order by the other side.
unsafe impl<T: Send> Sync for Shared<T> {}

/// The writing end.
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
}

/// The reading end.
pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
}

/// A ring of at least `capacity` entries: the next power of two.
pub(crate) fn ring<T: Copy + Default + Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let size = capacity.max(1).next_power_of_two();
    let shared = Arc::new(Shared {
        slots: (0..size).map(|_| UnsafeCell::new(T::default())).collect(),
        head: Apart::default(),
        tail: Apart::default(),
    });
    (Producer { shared: Arc::clone(&shared) }, Consumer { shared })
}

impl<T> Shared<T> {
    fn slot(&self, index: usize) -> &UnsafeCell<T> {
        &self.slots[index & (self.slots.len() - 1)]
    }

    fn len(&self) -> usize {
        self.tail.0.load(Ordering::Acquire).wrapping_sub(self.head.0.load(Ordering::Acquire))
    }
}

impl<T: Copy> Producer<T> {
    /// Publishes an entry; false if there is no room for it.
    pub(crate) fn push(&mut self, value: T) -> bool {
        let tail = self.shared.tail.0.load(Ordering::Relaxed);
        let head = self.shared.head.0.load(Ordering::Acquire);
        if tail.wrapping_sub(head) >= self.shared.slots.len() {
            return false;
        }
        let slot = self.shared.slot(tail);
        // SAFETY: the slot lies outside head..tail, so the consumer does not touch it, and `&mut self` is the only
        // producer.
        unsafe { *slot.get() = value };
        self.shared.tail.0.store(tail.wrapping_add(1), Ordering::Release);
        true
    }

    /// Entries that are published and not taken.
    pub(crate) fn len(&self) -> usize {
        self.shared.len()
    }
}

impl<T: Copy> Consumer<T> {
    /// Takes the oldest entry.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let head = self.shared.head.0.load(Ordering::Relaxed);
        if self.shared.tail.0.load(Ordering::Acquire) == head {
            return None;
        }
        let slot = self.shared.slot(head);
        // SAFETY: the slot lies inside head..tail, so the producer does not touch it, and `&mut self` is the only
        // consumer. The acquire load above pairs with the release store that published it.
        let value = unsafe { *slot.get() };
        self.shared.head.0.store(head.wrapping_add(1), Ordering::Release);
        Some(value)
    }

    /// Whether there is nothing to take.
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_refuses_and_wraps() {
        let (mut tx, mut rx) = ring::<u32>(3);
        for round in 0..10u32 {
            for i in 0..4 {
                assert!(tx.push(round * 4 + i));
            }
            assert!(!tx.push(99), "4 slots, and one past");
            assert_eq!(tx.len(), 4);
            for i in 0..4 {
                assert_eq!(rx.pop(), Some(round * 4 + i));
            }
            assert_eq!(rx.pop(), None);
            assert!(rx.is_empty());
        }
    }

    #[test]
    fn two_threads_see_every_entry_in_order() {
        const N: u64 = 200_000;
        let (mut tx, mut rx) = ring::<u64>(64);
        let writer = std::thread::spawn(move || {
            for i in 0..N {
                while !tx.push(i) {
                    std::thread::yield_now();
                }
            }
        });
        for i in 0..N {
            let got = loop {
                if let Some(v) = rx.pop() {
                    break v;
                }
                std::thread::yield_now();
            };
            assert_eq!(got, i);
        }
        writer.join().expect("the writer does not panic");
    }
}
