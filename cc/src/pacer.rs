//! Pacing: when a flow may send next so that it keeps to its rate.

use crate::rate::Rate;
use time::{Duration, Instant};

/// How long a train may take at the rate of its flow. A longer one would sit in the queue of the port at the port's
/// rate, and the flow would not be paced at all; a shorter one costs more system calls. 20 us are one train of 64 KB at
/// 26 Gb/s. Our choice.
pub const TRAIN_TIME: Duration = Duration::from_micros(20);

/// The most bytes that a flow of rate `rate` sends in one burst: what fits into [`TRAIN_TIME`], but at least one
/// packet of `mtu` bytes.
#[must_use]
pub const fn train_bytes(rate: Rate, mtu: u32) -> u64 {
    let fits = rate.bytes_in(TRAIN_TIME);
    if fits > mtu as u64 { fits } else { mtu as u64 }
}

/// The pace of one flow: a debt of bytes that its rate pays off. The flow may send when it owes nothing; an idle flow
/// saves up at most `burst` bytes.
///
/// The debt is in data, not time, so a new rate takes effect at once. It is counted in bits divided by the picoseconds of
/// a second: what one bit per second pays in a picosecond. In these units everything is a whole number, and nothing is
/// ever rounded away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    rate: Rate,
    /// Owed at `since`; negative if saved.
    debt: i128,
    since: Instant,
    burst: i128,
}

/// A byte, in the units of a debt.
const BYTE: i128 = 8_000_000_000_000;

impl Pacer {
    /// A flow that may send at once, at the rate `rate`, and may save up `burst` bytes.
    #[must_use]
    pub const fn new(now: Instant, rate: Rate, burst: u32) -> Self {
        Self { rate, debt: 0, since: now, burst: burst as i128 * BYTE }
    }

    /// Changes the rate.
    #[inline]
    pub fn set_rate(&mut self, now: Instant, rate: Rate) {
        if rate != self.rate {
            self.pay(now);
            self.rate = rate;
        }
    }

    /// Records that the flow has sent `bytes`.
    #[inline]
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.pay(now);
        self.debt = self.debt.saturating_add(i128::from(bytes) * BYTE);
    }

    /// The earliest time at which the flow may send, rounded up to a picosecond; in the past if it may now. `None` at a
    /// rate of zero.
    #[inline]
    #[must_use]
    pub fn next_send(&self) -> Option<Instant> {
        let debt = self.debt.max(0).unsigned_abs();
        if debt == 0 {
            return Some(self.since);
        }
        let rate = u128::from(self.rate.bits_per_second());
        (rate > 0).then(|| self.since.plus_picos(debt.div_ceil(rate)))
    }

    /// Whether the flow may send at `now`.
    #[inline]
    #[must_use]
    pub fn may_send(&self, now: Instant) -> bool {
        now >= self.since && self.debt <= self.paid(now)
    }

    #[inline]
    fn pay(&mut self, now: Instant) {
        self.debt = self.debt.saturating_sub(self.paid(now)).max(-self.burst);
        self.since = self.since.max(now);
    }

    /// What the rate pays until `now`.
    #[inline]
    fn paid(&self, now: Instant) -> i128 {
        let bits = u128::from(self.rate.bits_per_second());
        i128::try_from(now.picos_since(self.since).saturating_mul(bits)).unwrap_or(i128::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn trains_take_20_us_and_hold_a_packet_at_least() {
        assert_eq!(train_bytes(Rate::from_gbps(40), 4096), 100_000);
        assert_eq!(train_bytes(Rate::from_gbps(1), 1024), 2500);
        assert_eq!(train_bytes(Rate::from_gbps(1), 4096), 4096);
        assert_eq!(train_bytes(Rate::default(), 4096), 4096);
    }

    #[test]
    fn packets_keep_their_distance() {
        let start = Instant::EPOCH;
        let mut pacer = Pacer::new(start, Rate::from_gbps(8), 0);
        let mut now = start;
        for n in 0..1000 {
            assert_eq!(pacer.next_send(), Some(now));
            assert!(pacer.may_send(now) && (n == 0 || !pacer.may_send(now - Duration::from_nanos(1))));
            pacer.on_sent(now, 1000);
            now += Duration::from_micros(1);
        }
    }

    #[test]
    fn odd_packets_at_800_gbps_leave_without_drift() {
        let start = Instant::EPOCH;
        let mut pacer = Pacer::new(start, Rate::from_gbps(800), 0);
        let mut sent = 0;
        for n in 0..100_000 {
            let due = start.plus_picos(10 * u128::from(sent));
            assert_eq!(pacer.next_send(), Some(due), "packet {n}");
            let bytes = 85 + 2 * (n * 7919 % 2069);
            pacer.on_sent(due, bytes);
            sent += bytes;
            assert!(!pacer.may_send(start.plus_picos(10 * u128::from(sent) - 1)), "packet {n}");
        }
    }

    #[test]
    fn times_that_no_picosecond_meets_are_rounded_up_and_do_not_add_up() {
        let start = Instant::EPOCH;
        // A byte takes 2666 and two thirds.
        let mut pacer = Pacer::new(start, Rate::from_gbps(3), 1);
        let mut now = start;
        for n in 1..=3000_u128 {
            pacer.on_sent(now, 1);
            now = pacer.next_send().expect("at some time");
            assert_eq!(now.picos_since(start), (n * 8000).div_ceil(3));
        }
    }

    #[test]
    fn a_new_rate_takes_effect_at_once() {
        let start = Instant::EPOCH;
        let mut pacer = Pacer::new(start, Rate::from_mbps(8), 0);
        pacer.on_sent(start, 1000);
        assert_eq!(pacer.next_send(), Some(start + Duration::from_millis(1)));
        // Half of the time is over: the other half is ten times as short.
        pacer.set_rate(start + Duration::from_micros(500), Rate::from_mbps(80));
        assert_eq!(pacer.next_send(), Some(start + Duration::from_micros(550)));
        pacer.set_rate(start + Duration::from_micros(500), Rate::default());
        assert_eq!(pacer.next_send(), None);
        pacer.set_rate(start + Duration::from_secs(1), Rate::from_mbps(8));
        assert_eq!(pacer.next_send(), Some(start + Duration::from_secs(1) + Duration::from_micros(500)));
    }

    #[test]
    fn an_idle_flow_saves_up_a_burst_and_no_more() {
        let start = Instant::EPOCH;
        let mut pacer = Pacer::new(start, Rate::from_gbps(8), 3000);
        let now = start + Duration::from_secs(1);
        let mut sent = 0;
        while pacer.may_send(now) {
            pacer.on_sent(now, 1000);
            sent += 1;
        }
        assert_eq!(sent, 4, "three saved, and one on credit");
        assert_eq!(pacer.next_send(), Some(now + Duration::from_micros(1)));
    }

    proptest! {
        /// Whenever a flow asks, and however its rate changes, it sends no more than the rate, the burst and one train.
        #[test]
        fn no_more_is_sent_than_rate_and_burst_allow(
            steps in prop::collection::vec((0..50_000u64, 1..65_536u64, prop::option::of(1..100_000u64)), 1..200),
            burst in 0..100_000u32,
        ) {
            let start = Instant::EPOCH;
            let mut now = start;
            let mut rate = Rate::from_gbps(10);
            let mut pacer = Pacer::new(start, rate, burst);
            let (mut sent, mut allowed) = (0, f64::from(burst));
            for (nanos, bytes, new) in steps {
                now += Duration::from_nanos(nanos);
                allowed += rate.as_f64() / 8e9 * nanos as f64;
                if let Some(mbps) = new {
                    rate = Rate::from_mbps(mbps);
                    pacer.set_rate(now, rate);
                }
                if pacer.may_send(now) {
                    prop_assert!(sent as f64 <= allowed + 100.0, "{sent} of {allowed}");
                    pacer.on_sent(now, bytes);
                    sent += bytes;
                }
            }
        }
    }
}
