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
        let wait = mean.saturating_add(STEP.max(deviation.saturating_mul(4)));
        // Doubling: what has more bits than that is longer than any attribute.
        let doubled = if self.in_vain < wait.leading_zeros() { wait << self.in_vain } else { u64::MAX };
        longest.min(Duration::from_nanos(doubled))
    }

    /// How long to wait now with selective repeat: loss shows in what arrives later, so the timer is for the case that nothing
    /// does. With few packets in flight that is likely, otherwise not (IRN: RTO_low with up to 3 packets, SIGCOMM 2018, where
    /// RTO_high is 320 us and RTO_low 100 us).
    pub(super) fn wait_with(&self, longest: Duration, in_flight: usize) -> Duration {
        const FEW: usize = 3;
        let wait = self.wait(longest);
        if in_flight <= FEW { wait } else { longest.min(wait * 16 / 5) }
    }

    /// The timer starts. `is_repetition`: for packets that were sent before.
    pub(super) fn start(&mut self, now: Instant, is_repetition: bool) {
        self.since = (!is_repetition).then_some(now);
    }

    /// The peer has answered something new.
    pub(super) fn learn(&mut self, now: Instant) {
        let Some(since) = self.since.take() else { return };
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
