//! When a line is free again.

use cc::Rate;
use time::{Duration, Instant};

/// The limit up to which instants are tracked: a packet on a line of one bit per second takes a day.
const FAR: Duration = Duration::from_secs(u32::MAX as u64);

/// The time at which a line of some rate has carried what it was given.
///
/// It is kept to the fraction of a nanosecond, in units of a nanosecond divided by the rate: in these units all
/// transmission times are whole numbers. So nothing is ever rounded away, and a million packets end when a single
/// packet of a million times the length would.
#[derive(Clone, Debug)]
pub(crate) struct LineClock {
    /// Bits per second; not 0.
    rate: u64,
    free: Instant,
    rest: u128,
}

impl LineClock {
    /// A line that is free at `now`.
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self { rate: rate.bits_per_second().max(1), free: now, rest: 0 }
    }

    /// Records that the line was idle until `at`. Instants before it is free change nothing.
    pub(crate) fn begin(&mut self, at: Instant) {
        if at > self.free {
            (self.free, self.rest) = (at, 0);
        }
    }

    /// The line carries `bytes`; returns when it has.
    pub(crate) fn carry(&mut self, bytes: u64) -> Instant {
        let rate = u128::from(self.rate);
        let total = u128::from(bytes) * 8_000_000_000 + self.rest;
        self.rest = total % rate;
        let nanos = u64::try_from(total / rate).unwrap_or(u64::MAX);
        let time = Duration::from_nanos(nanos).min(FAR);
        self.free = self.free.checked_add(time).unwrap_or(self.free);
        self.free()
    }

    /// When the line is free: the first nanosecond at which all of it was carried.
    pub(crate) fn free(&self) -> Instant {
        if self.rest == 0 { self.free } else { self.free + Duration::from_nanos(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_free_when_its_rate_says_to_the_fraction() {
        let start = Instant::EPOCH;
        for (rate, bytes, nanos) in [
            (Rate::from_gbps(10), 1250, 1000),
            (Rate::from_gbps(40), 1, 1),
            // 0.2 ns, rounded up.
            (Rate::from_gbps(3), 1000, 2667),
            (Rate::from_bits_per_second(1), 1, 8_000_000_000),
        ] {
            let end = LineClock::new(rate, start).carry(bytes);
            assert_eq!(end - start, Duration::from_nanos(nanos), "{rate} {bytes}");
        }
    }

    #[test]
    fn fractions_add_up_over_a_million_packets() {
        let start = Instant::EPOCH;
        // 700 Mb/s and 3 Gb/s: neither divides the times of these packets.
        for rate in [Rate::from_mbps(700), Rate::from_gbps(3), Rate::from_mbps(99_999)] {
            let mut clock = LineClock::new(rate, start);
            let mut bytes = 0u64;
            for n in 0..1_000_000u64 {
                let packet = 84 + n * 7919 % 4139;
                bytes += packet;
                clock.carry(packet);
            }
            assert_eq!(clock.free() - start, rate.time_for(bytes), "{rate}");
        }
    }

    #[test]
    fn an_idle_line_begins_when_it_is_asked_to() {
        let start = Instant::EPOCH;
        let mut clock = LineClock::new(Rate::from_gbps(8), start);
        clock.begin(start + Duration::from_nanos(500));
        assert_eq!(clock.carry(1000) - start, Duration::from_nanos(1500));
        clock.begin(start + Duration::from_nanos(700));
        assert_eq!(clock.carry(1000) - start, Duration::from_nanos(2500), "it was not idle");
        // Unreachable times do no harm.
        let mut slow = LineClock::new(Rate::from_bits_per_second(1), start);
        for _ in 0..100 {
            slow.carry(u64::MAX);
        }
        assert!(slow.free() > start);
    }
}
