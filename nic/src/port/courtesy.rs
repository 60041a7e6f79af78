//! Room for others on the processor.
//!
//! Programs written for hardware poll without end. On a host with fewer processors than pollers, one that waits holds the processor
//! that its peer needs to answer, for a whole time slice of some milliseconds. So a poller that has found nothing for
//! a while offers its processor to others. Alone it gets it back within a microsecond, and among pollers of this kind soon. Beside a
//! program that computes it loses a slice each time: then it becomes rarer with its offers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Empty turns before the first offer: about as long as a ping-pong waits for its answer. Measured on two processors: with 4, the
/// half round trip of a ping-pong is 8 % longer than without offers, with 12, 1 to 4 %, with 24, not at all; two senders, paced, and
/// a receiver reach 89 % of the link's rate with 4, 63 to 82 % with 12, 55 % with 24, 39 % without offers.
const SHORTEST: u32 = 12;

/// Empty turns before an offer to those who give nothing back: about 40 us.
const LONGEST: u32 = 64;

/// An offer that took longer went to somebody who kept the processor for as long as it could: time slices of Linux are
/// 3 ms.
const TAKEN: Duration = Duration::from_millis(1);

/// Offers that went well before they are made sooner again.
const PROBATION: u32 = 64;

/// When to offer the processor. Several threads may spoil the counts, which costs an offer more or less.
#[derive(Debug)]
pub(super) struct Courtesy {
    /// Turns in a row in which nothing happened.
    idle: AtomicU32,
    /// So many of them make an offer.
    patience: AtomicU32,
    /// Offers in a row that went well.
    good: AtomicU32,
}

impl Courtesy {
    pub(super) fn new() -> Self {
        Self { idle: AtomicU32::new(0), patience: AtomicU32::new(SHORTEST), good: AtomicU32::new(0) }
    }

    /// After a turn: whether anything happened in it. Gives the processor to others if nothing has for a while.
    pub(super) fn after_turn(&self, happened: bool) {
        if self.is_due(happened) {
            let before = Instant::now();
            std::thread::yield_now();
            self.learn(before.elapsed());
        }
    }

    fn is_due(&self, happened: bool) -> bool {
        let idle = if happened { 0 } else { self.idle.load(Ordering::Relaxed).saturating_add(1) };
        self.idle.store(idle, Ordering::Relaxed);
        idle > self.patience.load(Ordering::Relaxed)
    }

    /// Takes in how long an offer took.
    fn learn(&self, took: Duration) {
        let patience = self.patience.load(Ordering::Relaxed);
        let good = if took >= TAKEN { 0 } else { self.good.load(Ordering::Relaxed) + 1 };
        if good == 0 {
            self.patience.store((patience * 2).min(LONGEST), Ordering::Relaxed);
            // The next offer is as far away as if something had happened.
            self.idle.store(0, Ordering::Relaxed);
        } else if good >= PROBATION {
            self.patience.store((patience / 2).max(SHORTEST), Ordering::Relaxed);
        }
        self.good.store(if good >= PROBATION { 0 } else { good }, Ordering::Relaxed);
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

    #[test]
    fn offers_begin_after_some_empty_turns_and_go_on_until_something_happens() {
        let courtesy = Courtesy::new();
        assert_eq!(turns(&courtesy), SHORTEST + 1);
        assert!(courtesy.is_due(false), "nothing happened since");
        assert_eq!(turns(&courtesy), SHORTEST + 1);
    }

    #[test]
    fn who_loses_its_slice_offers_less_often_and_recovers() {
        let courtesy = Courtesy::new();
        courtesy.learn(TAKEN);
        assert_eq!(turns(&courtesy), 2 * SHORTEST + 1);
        (0..20).for_each(|_| courtesy.learn(3 * TAKEN));
        assert_eq!(turns(&courtesy), LONGEST + 1);
        (0..PROBATION - 1).for_each(|_| courtesy.learn(Duration::from_micros(30)));
        assert_eq!(turns(&courtesy), LONGEST + 1, "not yet");
        courtesy.learn(Duration::from_micros(30));
        assert_eq!(turns(&courtesy), LONGEST / 2 + 1);
        (0..20 * PROBATION).for_each(|_| courtesy.learn(Duration::ZERO));
        assert_eq!(turns(&courtesy), SHORTEST + 1);
    }
}
