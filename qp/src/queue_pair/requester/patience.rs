//! How long a requester with adaptive timeouts waits for an acknowledgement.
//!
//! The attribute `timeout` says how long a requester waits (IBTA 9.7.6.1.3), and it has to be long enough for the worst of all
//! cases: one lost repetition then costs thousands of round trips. With adaptive timeouts the attribute is only the longest
//! wait. The wait follows from how long answers took, as TCP's does (RFC 6298, with its gains), measured on the very thing that
//! the timer bounds: from its start to the next progress. Each wait in vain doubles the next one. Nothing is learnt from packets
//! that were sent again, because their answer may be that to an earlier transmission (Karn).
//!
//! A wait that was shorter than the attribute and in vain costs no retry: so a silent peer is given up no earlier than without,
//! and whoever chose `timeout` and `retry_cnt` for an outage gets what was chosen.

use time::{Duration, Instant};

/// A wait exceeds the mean by at least this: four units of the attribute, 16 us. RFC 6298 uses the granularity of the clock
/// here; ours has none that matters, so the value is our choice.
const STEP: u64 = 4 * 4096;

/// What is known of the time that answers take, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Known {
    mean: u64,
    deviation: u64,
}

/// The state of the wait.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::queue_pair) struct Patience {
    known: Option<Known>,
    /// When the timer was started, unless for packets that were sent before.
    since: Option<Instant>,
    /// Waits in vain since the last measurement.
    in_vain: u32,
}

impl Patience {
    /// How long to wait now, `longest` at most.
    pub(super) fn wait(&self, longest: Duration) -> Duration {
        let Some(Known { mean, deviation }) = self.known else { return longest };
        self.doubled(longest, mean.saturating_add(STEP.max(deviation.saturating_mul(4))))
    }

    /// A wait in nanoseconds, doubled for each that was in vain.
    fn doubled(&self, longest: Duration, wait: u64) -> Duration {
        // What has more bits than that is longer than any attribute.
        let doubled = if self.in_vain < wait.leading_zeros() { wait << self.in_vain } else { u64::MAX };
        longest.min(Duration::from_nanos(doubled))
    }

    /// How long to wait if hardly anything is on its way that could show a loss: two round trips, as before a tail loss probe
    /// (RFC 8985, 7.2), or more if round trips vary much.
    pub(super) fn wait_for_few(&self, longest: Duration) -> Duration {
        let Some(Known { mean, deviation }) = self.known else { return longest };
        self.doubled(longest, mean.saturating_add(mean.max(STEP).max(deviation.saturating_mul(2))))
    }

    /// How long answers may be late that should have come before another: a round trip. RFC 8985 (6.2) takes a quarter of it at
    /// first; but here the other may answer the first transmission of a packet, and a receiver that just woke up the rest of the
    /// flight soon.
    pub(super) fn wait_for_late(&self, longest: Duration) -> Duration {
        let Some(Known { mean, .. }) = self.known else { return longest };
        longest.min(Duration::from_nanos(mean.max(STEP)))
    }

    /// The timer starts. `is_repetition`: for packets that were sent before.
    pub(super) fn start(&mut self, now: Instant, is_repetition: bool) {
        self.since = (!is_repetition).then_some(now);
    }

    /// The peer has answered something new.
    pub(super) fn learn(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.measure(now, since);
        }
    }

    /// The peer has answered what was sent at `since`, and only then.
    pub(in crate::queue_pair) fn measure(&mut self, now: Instant, since: Instant) {
        let took = u64::try_from(now.saturating_duration_since(since).as_nanos()).unwrap_or(u64::MAX);
        self.in_vain = 0;
        self.known = Some(match self.known {
            None => Known { mean: took, deviation: took / 2 },
            Some(Known { mean, deviation }) => Known {
                deviation: deviation - deviation / 4 + took.abs_diff(mean) / 4,
                mean: mean - mean / 8 + took / 8,
            },
        });
    }

    /// The wait was in vain.
    pub(super) fn lose(&mut self) {
        self.since = None;
        self.in_vain = self.in_vain.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_nanos(4096 << 14);

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn after(answers: &[u64]) -> Patience {
        let (mut patience, mut now) = (Patience::default(), Instant::EPOCH);
        for answer in answers {
            patience.start(now, false);
            now += us(*answer);
            patience.learn(now);
        }
        patience
    }

    #[test]
    fn the_wait_follows_from_the_answers() {
        assert_eq!(after(&[]).wait(LONGEST), LONGEST, "nothing is known yet");
        // RFC 6298, 2.2: the first answer, and twice as much again.
        assert_eq!(after(&[100]).wait(LONGEST), us(300));
        // Answers that never vary: what is left is the step.
        let steady = after(&[100; 60]).wait(LONGEST).as_nanos();
        assert!((116_000..116_500).contains(&steady), "{steady}");
        // 2.3: a late one moves the mean by an eighth, and the deviation by a quarter of the difference.
        let late = after(&[[100; 60].as_slice(), &[180]].concat()).wait(LONGEST).as_nanos();
        assert!((189_000..191_000).contains(&late), "{late}");
        assert_eq!(after(&[1_000_000]).wait(LONGEST), LONGEST, "never longer than the attribute");
    }

    #[test]
    fn with_selective_repeat_it_waits_for_a_probe_or_for_late_answers() {
        let patience = after(&[100; 60]);
        assert_eq!((patience.wait_for_few(LONGEST), patience.wait_for_late(LONGEST)), (us(200), us(100)));
        let near = after(&[2; 60]);
        let step = Duration::from_nanos(STEP);
        assert_eq!((near.wait_for_few(LONGEST), near.wait_for_late(LONGEST)), (us(2) + step, step));
        let new = after(&[]);
        assert_eq!((new.wait_for_few(LONGEST), new.wait_for_late(LONGEST)), (LONGEST, LONGEST));
    }

    #[test]
    fn waits_in_vain_double_until_something_new_is_measured() {
        let mut patience = after(&[100]);
        for wait in [300, 600, 1200, 2400] {
            assert_eq!(patience.wait(LONGEST), us(wait));
            patience.lose();
        }
        // Karn: the answer to a repetition says nothing.
        patience.start(Instant::EPOCH, true);
        patience.learn(Instant::EPOCH + us(1));
        assert_eq!(patience.wait(LONGEST), us(4800));
        patience.start(Instant::EPOCH, false);
        patience.learn(Instant::EPOCH + us(100));
        // The deviation has fallen by a quarter.
        assert_eq!(patience.wait(LONGEST), us(250));
        (0..200).for_each(|_| patience.lose());
        assert_eq!(patience.wait(LONGEST), LONGEST);
    }
}
