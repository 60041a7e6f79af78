//! Tasks that await completions or events.

use super::completions::locked;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Waker;

/// The number of completions that a task may take from a queue in a row before the other tasks of its thread get a
/// turn. The same number as tokio's.
const STREAK: u32 = 128;

/// The tasks that await a completion of one queue, or an event. All are woken at once: it does not matter which of
/// them looks first, and a cancelled task does not keep the completion from the others.
#[derive(Default)]
pub struct Waiters {
    sleeping: Mutex<Vec<(u64, Waker)>>,
    places: AtomicU64,
    streak: AtomicU32,
}

impl Waiters {
    /// A place for one waiter.
    pub fn place(&self) -> u64 {
        self.places.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers the waker of this place for [`take`](Self::take).
    pub fn sleep(&self, place: u64, waker: &Waker) {
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
        // Dropping a waker may run any code, so it must not happen under the lock.
        drop(before);
        self.streak.store(0, Ordering::Relaxed);
    }

    /// Removes the waker of this place.
    pub fn leave(&self, place: u64) {
        let mut sleeping = locked(&self.sleeping);
        let gone = sleeping.iter().position(|(p, _)| *p == place).map(|at| sleeping.swap_remove(at));
        drop(sleeping);
        drop(gone);
    }

    /// Takes all wakers; the caller wakes them once no lock is held.
    pub fn take(&self, woken: &mut Vec<Waker>) {
        woken.extend(locked(&self.sleeping).drain(..).map(|(_, waker)| waker));
    }

    /// Whether other tasks should get a turn, after as many completions as one task should take in a row.
    pub fn is_greedy(&self) -> bool {
        let greedy = self.streak.fetch_add(1, Ordering::Relaxed) >= STREAK;
        if greedy {
            self.streak.store(0, Ordering::Relaxed);
        }
        greedy
    }
}
