//! Tasks that await completions or events.

use super::completions::locked;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Waker;

/// Completions in a row that a task may take from a queue without a break: after that the others of its thread get a
/// turn. The same number as tokio's.
const STREAK: u32 = 128;

/// The tasks that await a completion of one queue, or an event. All are woken at once: which of them looks first does not matter, and
/// one that is gone by then keeps nothing from the others.
#[derive(Default)]
pub(crate) struct Waiters {
    sleeping: Mutex<Vec<(u64, Waker)>>,
    places: AtomicU64,
    streak: AtomicU32,
}

impl Waiters {
    /// A place for one waiter.
    pub(crate) fn place(&self) -> u64 {
        self.places.fetch_add(1, Ordering::Relaxed)
    }

    /// Has the waiter in this place woken by [`take`](Self::take).
    pub(crate) fn sleep(&self, place: u64, waker: &Waker) {
        let waker = waker.clone();
        let mut sleeping = locked(&self.sleeping);
        let before = match sleeping.iter_mut().find(|(p, _)| *p == place) {
            Some((_, before)) => Some(std::mem::replace(before, waker)),
            None => {
                sleeping.push((place, waker));
                None
            }
        };
        drop(sleeping);
        // Whatever the end of a waker sets off must not meet the lock.
        drop(before);
        self.streak.store(0, Ordering::Relaxed);
    }

    /// The waiter in this place waits no more.
    pub(crate) fn leave(&self, place: u64) {
        let mut sleeping = locked(&self.sleeping);
        let gone = sleeping.iter().position(|(p, _)| *p == place).map(|at| sleeping.swap_remove(at));
        drop(sleeping);
        drop(gone);
    }

    /// Everybody who sleeps: to be woken once no lock is held.
    pub(crate) fn take(&self, woken: &mut Vec<Waker>) {
        woken.extend(locked(&self.sleeping).drain(..).map(|(_, waker)| waker));
    }

    /// Whether it is time for others, after as many completions as one task should take in a row.
    pub(crate) fn is_greedy(&self) -> bool {
        let greedy = self.streak.fetch_add(1, Ordering::Relaxed) >= STREAK;
        if greedy {
            self.streak.store(0, Ordering::Relaxed);
        }
        greedy
    }
}
