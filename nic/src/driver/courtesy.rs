//! Yielding the processor to others.
//!
//! Programs written for hardware poll endlessly. On a host with fewer processors than pollers, a waiting poller
//! occupies the processor that its peer needs to answer, for a whole time slice of some milliseconds. So a poller that
//! has found nothing for a while yields its processor. If no other thread is runnable, it gets the processor back
//! within a microsecond; among pollers of this kind, it gets it back soon.
//!
//! Next to a compute-bound program, a yield costs a time slice: the scheduler takes it as the end of the poller's turn.
//! A sleep does not: the scheduler credits a sleeping thread with its share, and runs it as soon as it wakes. So a
//! poller that lost a time slice to a yield naps for a while instead. Where naps take as long as time slices, because the
//! kernel has no precise timers, it soon yields again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Empty turns before the first offer of the processor: about as long as a ping-pong waits for its answer. Measured on
/// two processors: with 4, the half round trip of a ping-pong is 8 % longer than without offers, with 12, 1 to 4 %,
/// with 24, not at all; two paced senders and a receiver reach 89 % of the link rate with 4, 63 to 82 % with 12, 55 %
/// with 24, 39 % without offers.
const SHORTEST: u32 = 12;

/// Duration of a nap. Linux timers have 50 us of slack, which come on top. Paced senders compensate for it.
const NAP: Duration = Duration::from_micros(20);

/// Number of naps after the first yield that cost a time slice; it doubles after each further one, up to [`MOST_NAPS`]:
/// some 10 ms to half a second.
const NAPS: u32 = 128;
const MOST_NAPS: u32 = 4096;

/// If an offer takes longer, another thread kept the processor for as long as it could: time slices of Linux are 3 ms.
const TAKEN: Duration = Duration::from_millis(1);

/// Decides when to offer the processor. Several threads may corrupt the counts, which makes an offer more or less
/// likely.
#[derive(Debug)]
pub(super) struct Courtesy {
    /// Consecutive empty turns.
    idle: AtomicU32,
    /// Remaining naps before the next yield.
    naps: AtomicU32,
    /// Number of naps after the next yield, if it loses a time slice.
    next_naps: AtomicU32,
}

impl Courtesy {
    pub(super) fn new() -> Self {
        Self { idle: AtomicU32::new(0), naps: AtomicU32::new(0), next_naps: AtomicU32::new(NAPS) }
    }

    /// Called after each turn with whether anything happened in it. Offers the processor if nothing has happened for a
    /// while.
    pub(super) fn after_turn(&self, happened: bool) {
        if !self.is_due(happened) {
            return;
        }
        let before = Instant::now();
        if self.naps() {
            std::thread::sleep(NAP);
            self.learn_from_nap(before.elapsed());
        } else {
            std::thread::yield_now();
            self.learn(before.elapsed());
        }
    }

    fn is_due(&self, happened: bool) -> bool {
        let idle = if happened { 0 } else { self.idle.load(Ordering::Relaxed).saturating_add(1) };
        self.idle.store(idle, Ordering::Relaxed);
        idle > SHORTEST
    }

    /// Returns whether to nap this time instead of yielding.
    fn naps(&self) -> bool {
        let left = self.naps.load(Ordering::Relaxed);
        self.naps.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// Evaluates the duration of a yield.
    fn learn(&self, took: Duration) {
        let next = self.next_naps.load(Ordering::Relaxed);
        if took >= TAKEN {
            self.naps.store(next, Ordering::Relaxed);
            self.next_naps.store((next * 2).clamp(1, MOST_NAPS), Ordering::Relaxed);
        } else if next > NAPS {
            self.next_naps.store(next - 1, Ordering::Relaxed);
        }
    }

    /// Evaluates the duration of a nap: after one that took as long as a time slice, half as many follow.
    fn learn_from_nap(&self, took: Duration) {
        if took >= TAKEN {
            let halve = |naps: &AtomicU32| naps.store(naps.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            halve(&self.naps);
            halve(&self.next_naps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Empty turns until an offer is due.
    fn turns(courtesy: &Courtesy) -> u32 {
        assert!(!courtesy.is_due(true), "an offer after something happened");
        (1..10_000).find(|_| courtesy.is_due(false)).expect("an offer")
    }

    /// Naps until the next yield.
    fn naps(courtesy: &Courtesy) -> u32 {
        (0..10_000).find(|_| !courtesy.naps()).expect("a yield")
    }

    #[test]
    fn offers_begin_after_some_empty_turns_and_go_on_until_something_happens() {
        let courtesy = Courtesy::new();
        assert_eq!(turns(&courtesy), SHORTEST + 1);
        assert!(courtesy.is_due(false), "nothing happened since");
        assert_eq!(turns(&courtesy), SHORTEST + 1);
    }

    #[test]
    fn a_yield_that_costs_a_slice_is_followed_by_naps() {
        let courtesy = Courtesy::new();
        assert_eq!(naps(&courtesy), 0);
        courtesy.learn(TAKEN / 2);
        assert_eq!(naps(&courtesy), 0, "among pollers of its kind it yields");
        courtesy.learn(TAKEN);
        assert_eq!((naps(&courtesy), naps(&courtesy)), (NAPS, 0));
        courtesy.learn(3 * TAKEN);
        assert_eq!(naps(&courtesy), 2 * NAPS);
        (0..20).for_each(|_| courtesy.learn(TAKEN));
        assert_eq!(naps(&courtesy), MOST_NAPS);
        (0..MOST_NAPS).for_each(|_| courtesy.learn(Duration::from_micros(30)));
        courtesy.learn(TAKEN);
        assert_eq!(naps(&courtesy), NAPS, "yields that go well are believed again");
    }

    #[test]
    fn naps_that_take_a_slice_are_given_up() {
        let courtesy = Courtesy::new();
        courtesy.learn(TAKEN);
        let slept = (1..100).find(|_| {
            courtesy.learn_from_nap(TAKEN);
            !courtesy.naps()
        });
        assert!(slept.is_some_and(|naps| naps <= 8), "{slept:?}");
        courtesy.learn(TAKEN);
        assert_eq!(naps(&courtesy), 2, "a lost slice is tried against few naps");
        courtesy.learn_from_nap(TAKEN / 2);
        courtesy.learn(TAKEN);
        assert!(naps(&courtesy) > 2, "naps that go well are believed again");
    }
}
