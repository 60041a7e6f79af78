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

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Empty turns before the first offer of the processor: about as long as a ping-pong waits for its answer. Measured on
/// two processors: with 4, the half round trip of a ping-pong is 8 % longer than without offers, with 12, 1 to 4 %,
/// with 24, not at all; two paced senders and a receiver reach 89 % of the link rate with 4, 63 to 82 % with 12, 55 %
/// with 24, 39 % without offers.
const SHORTEST: u32 = 12;

/// Duration of a nap. Linux timers have 50 us of slack, which come on top. Paced senders compensate for it.
const NAP: Duration = Duration::from_micros(20);

/// How long a spell of naps lasts after the first yield that cost a time slice: some hundred naps. It doubles after each
/// further one, up to [`LONGEST_SPELL`]. It is a time and not a number of naps, because a poller that is answered at once
/// does not nap: a number would last until long after the other program has gone, and delay answers on a quiet machine.
const FIRST_SPELL: Duration = Duration::from_millis(10);
const LONGEST_SPELL: Duration = Duration::from_millis(320);

/// A yield that goes well makes the next spell of naps this much shorter: about as long as a nap with its slack.
const FORGIVEN: Duration = Duration::from_micros(80);

/// If an offer takes longer, another thread kept the processor for as long as it could: time slices of Linux are 3 ms.
const TAKEN: Duration = Duration::from_millis(1);

/// Decides when to offer the processor. Several threads may corrupt its state, which makes an offer more or less
/// likely.
#[derive(Debug)]
pub(super) struct Courtesy {
    /// Consecutive empty turns.
    idle: AtomicU32,
    began: Instant,
    /// Until when to nap instead of yielding, in nanoseconds since `began`.
    naps_until: AtomicU64,
    /// How long to nap after the next yield that loses a time slice, in nanoseconds.
    next_spell: AtomicU64,
}

impl Courtesy {
    pub(super) fn new() -> Self {
        Self {
            idle: AtomicU32::new(0),
            began: Instant::now(),
            naps_until: AtomicU64::new(0),
            next_spell: AtomicU64::new(nanos(FIRST_SPELL)),
        }
    }

    /// Called after each turn with whether anything happened in it. Offers the processor if nothing has happened for a
    /// while.
    pub(super) fn after_turn(&self, happened: bool) {
        if !self.is_due(happened) {
            return;
        }
        let before = self.began.elapsed();
        if self.naps(before) {
            std::thread::sleep(NAP);
            let now = self.began.elapsed();
            self.learn_from_nap(now, now.saturating_sub(before));
        } else {
            std::thread::yield_now();
            let now = self.began.elapsed();
            self.learn(now, now.saturating_sub(before));
        }
    }

    fn is_due(&self, happened: bool) -> bool {
        let idle = if happened { 0 } else { self.idle.load(Ordering::Relaxed).saturating_add(1) };
        self.idle.store(idle, Ordering::Relaxed);
        idle > SHORTEST
    }

    /// Returns whether to nap instead of yielding. `now`, here and below: since `began`.
    fn naps(&self, now: Duration) -> bool {
        nanos(now) < self.naps_until.load(Ordering::Relaxed)
    }

    /// Evaluates the duration of a yield.
    fn learn(&self, now: Duration, took: Duration) {
        let next = self.next_spell.load(Ordering::Relaxed);
        if took >= TAKEN {
            self.naps_until.store(nanos(now).saturating_add(next), Ordering::Relaxed);
            self.next_spell.store((next * 2).clamp(nanos(FORGIVEN), nanos(LONGEST_SPELL)), Ordering::Relaxed);
        } else if next > nanos(FIRST_SPELL) {
            self.next_spell.store(next - nanos(FORGIVEN), Ordering::Relaxed);
        }
    }

    /// Evaluates the duration of a nap: one that took as long as a time slice halves the time that remains.
    fn learn_from_nap(&self, now: Duration, took: Duration) {
        if took >= TAKEN {
            let now = nanos(now);
            let left = self.naps_until.load(Ordering::Relaxed).saturating_sub(now);
            self.naps_until.store(now.saturating_add(left / 2), Ordering::Relaxed);
            self.next_spell.store(self.next_spell.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Empty turns until an offer is due.
    fn turns(courtesy: &Courtesy) -> u32 {
        assert!(!courtesy.is_due(true), "an offer after something happened");
        (1..10_000).find(|_| courtesy.is_due(false)).expect("an offer")
    }

    /// How much longer than until `now` it naps, to [`FORGIVEN`].
    fn naps(courtesy: &Courtesy, now: Duration) -> Duration {
        (0..10_000).map(|steps| FORGIVEN * steps).find(|&later| !courtesy.naps(now + later)).expect("a yield")
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
        let now = Duration::from_secs(1);
        assert_eq!(naps(&courtesy, now), Duration::ZERO);
        courtesy.learn(now, TAKEN / 2);
        assert_eq!(naps(&courtesy, now), Duration::ZERO, "among pollers of its kind it yields");
        courtesy.learn(now, TAKEN);
        assert_eq!(naps(&courtesy, now), FIRST_SPELL);
        courtesy.learn(now, 3 * TAKEN);
        assert_eq!(naps(&courtesy, now), 2 * FIRST_SPELL);
        (0..20).for_each(|_| courtesy.learn(now, TAKEN));
        assert_eq!(naps(&courtesy, now), LONGEST_SPELL);
        (0..LONGEST_SPELL.as_micros() / FORGIVEN.as_micros()).for_each(|_| courtesy.learn(now, TAKEN / 30));
        courtesy.learn(now, TAKEN);
        assert_eq!(naps(&courtesy, now), FIRST_SPELL, "yields that go well are believed again");
    }

    #[test]
    fn a_lost_slice_is_forgotten_even_if_nobody_waited_since() {
        let courtesy = Courtesy::new();
        let now = Duration::from_secs(1);
        courtesy.learn(now, TAKEN);
        assert!(courtesy.naps(now + FIRST_SPELL / 2));
        assert!(!courtesy.naps(now + FIRST_SPELL), "the program that took it may have gone");
    }

    #[test]
    fn naps_that_take_a_slice_are_given_up() {
        let courtesy = Courtesy::new();
        let now = Duration::from_secs(1);
        courtesy.learn(now, TAKEN);
        let slept = (1..100).find(|_| {
            courtesy.learn_from_nap(now, TAKEN);
            naps(&courtesy, now) <= FORGIVEN
        });
        assert!(slept.is_some_and(|naps| naps <= 8), "{slept:?}");
        courtesy.learn(now, TAKEN);
        assert_eq!(naps(&courtesy, now), FORGIVEN * 2, "a lost slice is tried against few naps");
        courtesy.learn_from_nap(now, TAKEN / 2);
        courtesy.learn(now, TAKEN);
        assert!(naps(&courtesy, now) > FORGIVEN, "naps that go well are believed again");
    }
}
