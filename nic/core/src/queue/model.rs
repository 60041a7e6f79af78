//! Every interleaving of the engine and a program at a completion queue, tried by loom.
//!
//! The ring and the wishes are compiled here a second time, from the same sources, with loom's atomics in place of the
//! standard library's.

use loom::sync::{Arc, Notify};
use loom::thread;
use ring::{Consumer, Producer};
use wishes::{Wish, Wishes};

#[expect(clippy::duplicate_mod, reason = "once with each kind of atomics")]
#[path = "ring.rs"]
mod ring;
#[expect(clippy::duplicate_mod, reason = "once with each kind of atomics")]
#[path = "wishes.rs"]
mod wishes;

mod primitives {
    #![expect(unsafe_code, reason = "the same promises as those of the real ones")]

    use std::collections::TryReserveError;
    use std::mem::MaybeUninit;

    pub(super) use loom::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};

    /// Room for one entry; loom checks whether two threads touch it at once.
    pub(super) struct Slot<T>(loom::cell::UnsafeCell<MaybeUninit<T>>);

    // SAFETY: as the real one, and loom checks it.
    unsafe impl<T: Send> Sync for Slot<T> {}

    impl<T: Copy> Slot<T> {
        /// # Safety
        /// No other thread touches the slot meanwhile.
        pub(super) unsafe fn write(&self, value: T) {
            // SAFETY: as the caller promises.
            self.0.with_mut(|slot| unsafe { *slot = MaybeUninit::new(value) });
        }

        /// # Safety
        /// The slot was written, and no thread writes it meanwhile.
        pub(super) unsafe fn read(&self) -> T {
            // SAFETY: as the caller promises.
            self.0.with(|slot| unsafe { (*slot).assume_init() })
        }
    }

    pub(super) fn slots<T>(count: usize) -> Result<Box<[Slot<T>]>, TryReserveError> {
        Ok((0..count).map(|_| Slot(loom::cell::UnsafeCell::new(MaybeUninit::uninit()))).collect())
    }
}

/// A completion queue with a channel.
struct Queue {
    wishes: Wishes,
    event: Notify,
}

impl Queue {
    /// The engine's handling of a completion, as in `CqProducer::push` and the delivery after it.
    fn complete(&self, ring: &mut Producer<u32>, completion: u32, wakes: bool) {
        assert!(ring.push(completion), "the queue is large enough");
        if !self.wishes.grant(wakes).is_empty() {
            self.event.notify();
        }
    }

    /// A program that sleeps on the channel, until it has `count` completions.
    fn collect(&self, ring: &mut Consumer<u32>, wish: Wish, count: u32) {
        let (mut one, mut expected) = ([0], 0);
        while expected < count {
            if ring.take(&mut one) == 1 {
                assert_eq!(one[0], expected);
                expected += 1;
                continue;
            }
            self.wishes.make(wish);
            if ring.len() == 0 {
                // If no event announces the next one, all threads sleep, which loom reports as a deadlock.
                self.event.wait();
            }
        }
    }

    /// A program that arms and sleeps without checking the queue; `CqShared::arm` checks it instead.
    fn sleep_at_once(&self, ring: &mut Consumer<u32>, wish: Wish, count: u32) {
        let (mut some, mut taken) = ([0; 4], 0);
        while taken < count {
            self.wishes.make(wish);
            if ring.len() > 0 && !self.wishes.withdraw(Wish::EVENT).is_empty() {
                self.event.notify();
            }
            self.event.wait();
            taken += u32::try_from(ring.take(&mut some)).expect("a few");
        }
    }
}

/// A program's way of getting a number of completions.
type Collect = fn(&Queue, &mut Consumer<u32>, Wish, u32);

/// The engine completes `completions`, each solicited or not, while the program waits for all of them.
fn meet(wish: Wish, completions: &'static [bool], collect: Collect) {
    loom::model(move || {
        let (mut producer, mut consumer) = ring::ring(4).expect("memory");
        let queue = Arc::new(Queue { wishes: Wishes::new(), event: Notify::new() });
        let engine = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                for (number, wakes) in (0..).zip(completions) {
                    queue.complete(&mut producer, number, *wakes);
                }
            })
        };
        let count = u32::try_from(completions.len()).expect("a few");
        collect(&queue, &mut consumer, wish, count);
        engine.join().expect("no panic");
    });
}

#[test]
fn whoever_armed_and_looked_once_more_is_woken() {
    meet(Wish::ANY, &[false, false], Queue::collect);
    meet(Wish::AWAITED, &[false, false], Queue::collect);
}

#[test]
fn whoever_armed_and_did_not_look_is_woken() {
    meet(Wish::ANY, &[false, false], Queue::sleep_at_once);
}

#[test]
fn whoever_waits_for_solicited_ones_is_woken_by_those() {
    meet(Wish::SOLICITED, &[false, true], Queue::collect);
}

#[test]
fn a_slot_is_never_written_while_it_is_read() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring::ring(1).expect("memory");
        let engine = thread::spawn(move || (0..3u32).filter(|n| producer.push(*n)).count());
        let (mut one, mut last, mut seen) = ([0], None, 0);
        for _ in 0..2 {
            if consumer.take(&mut one) == 1 {
                assert!(last.is_none_or(|last| one[0] > last), "in order");
                last = Some(one[0]);
                seen += 1;
            }
        }
        let pushed = engine.join().expect("no panic");
        assert_eq!(pushed, seen + consumer.len(), "nothing is lost, nothing comes twice");
    });
}

/// Two wishes of different kinds are granted separately.
#[test]
fn a_wish_that_is_made_while_another_is_granted_stands() {
    loom::model(|| {
        let wishes = Arc::new(Wishes::new());
        wishes.make(Wish::SOLICITED);
        let program = {
            let wishes = Arc::clone(&wishes);
            thread::spawn(move || wishes.make(Wish::ANY))
        };
        let first = wishes.grant(true);
        program.join().expect("no panic");
        let second = wishes.grant(false);
        assert!(first.contains(Wish::SOLICITED));
        assert_eq!(first | second, Wish::EVENT, "the wish for any is granted once");
        assert!((first & second).is_empty());
    });
}
