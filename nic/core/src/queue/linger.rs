//! When a thread that waits for an event drives the port before it sleeps.
//!
//! To sleep and be woken costs 12 to 30 us on each side, most of it in the kernel: more than the trip of a message. A
//! thread that will not wait for long is served sooner if it drives the port itself, as one that polls does. How long it
//! will wait is guessed from its latest waits. A wrong guess costs [`LINGER`] of processor time, once.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use time::{Duration, Instant};

/// How long a thread drives the port before it sleeps: as long as the background thread spins after activity, which it does
/// not do meanwhile.
pub(crate) const LINGER: Duration = Duration::from_micros(50);

/// A wait this short would have ended within [`LINGER`] if the thread had not slept: two wake-ups lengthen it, the
/// background thread's and its own.
const SOON: Duration = Duration::from_micros(100);

/// How many events a program may take without waiting before it counts as one that waits elsewhere, in `epoll_wait` for
/// example. One that waits here finds some events there already, if its peer is fast.
const PATIENCE: u8 = 8;

/// Nobody waits. Instants are more than 0.
const NOBODY: u64 = 0;

/// What a channel knows about the waits of its program. Several threads that wait on one channel may confuse it; that makes a
/// guess worse, and does no other harm.
#[derive(Debug, Default)]
pub(crate) struct Linger {
    /// Since when a thread waits, in nanoseconds, or [`NOBODY`].
    since: AtomicU64,
    /// How many more events may be taken without a wait before lingering stops being worth it; 0 if it is not.
    patience: AtomicU8,
}

impl Linger {
    /// Whether the next wait is probably short.
    pub(crate) fn is_worth_it(&self) -> bool {
        self.patience.load(Ordering::Relaxed) > 0
    }

    /// The program waits for an event.
    pub(crate) fn waits(&self, now: Instant) {
        if self.since.load(Ordering::Relaxed) == NOBODY {
            self.since.store(nanos(now), Ordering::Relaxed);
        }
    }

    /// The program takes an event. `now` is only asked for if it has waited.
    pub(crate) fn takes(&self, now: impl FnOnce() -> Instant) {
        let since = self.since.load(Ordering::Relaxed);
        let patience = if since == NOBODY {
            self.patience.load(Ordering::Relaxed).saturating_sub(1)
        } else {
            self.since.store(NOBODY, Ordering::Relaxed);
            let waited = Duration::from_nanos(nanos(now()).saturating_sub(since));
            if waited <= SOON { PATIENCE } else { 0 }
        };
        self.patience.store(patience, Ordering::Relaxed);
    }
}

fn nanos(at: Instant) -> u64 {
    u64::try_from(at.since_epoch().as_nanos()).unwrap_or(u64::MAX).max(NOBODY + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::at(Duration::from_millis(1));

    /// Waits for `wait`, from `at` on.
    fn wait(linger: &Linger, at: Instant, wait: Duration) -> bool {
        linger.waits(at);
        linger.takes(|| at + wait);
        linger.is_worth_it()
    }

    #[test]
    fn a_short_wait_makes_the_next_one_worth_driving_and_a_long_one_ends_that() {
        let linger = Linger::default();
        assert!(!linger.is_worth_it(), "nothing is known yet");
        assert!(wait(&linger, START, SOON));
        assert!(!wait(&linger, START, SOON + Duration::from_nanos(1)));
    }

    #[test]
    fn a_wait_begins_once() {
        let linger = Linger::default();
        linger.waits(START);
        linger.waits(START + SOON);
        linger.takes(|| START + SOON + SOON);
        assert!(!linger.is_worth_it(), "it waited twice as long: the second call came from the same wait");
    }

    #[test]
    fn a_program_that_takes_events_without_waiting_here_waits_elsewhere() {
        let linger = Linger::default();
        assert!(wait(&linger, START, SOON));
        let taken = (1..=u32::from(PATIENCE) + 1).find(|_| {
            linger.takes(|| unreachable!("nobody waited"));
            !linger.is_worth_it()
        });
        assert_eq!(taken, Some(u32::from(PATIENCE)));
        linger.takes(|| unreachable!("nobody waited"));
        assert!(!linger.is_worth_it());
    }
}
