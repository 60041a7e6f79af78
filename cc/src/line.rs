//! When a line is free again.

use crate::rate::Rate;
use time::Instant;

/// Picoseconds in a second.
const SECOND: u128 = 1_000_000_000_000;

/// The limit of a transmission time, in picoseconds: a packet on a line of one bit per second takes a day.
const FAR: u128 = u32::MAX as u128 * SECOND;

/// The time at which a line of some rate has carried what it was given.
///
/// It is kept to the fraction of a picosecond, in units of a picosecond divided by the rate: in these units all
/// transmission times are whole numbers. So nothing is ever rounded away, and a million packets end when a single
/// packet of a million times the length would. At 800 Gb/s and all lower rates in use, a byte takes whole picoseconds.
#[derive(Clone, Debug)]
pub struct LineClock {
    /// Bits per second; not 0.
    rate: u64,
    /// The picoseconds that a byte takes, if they are a whole number: then there is never a rest.
    byte: Option<u64>,
    free: Instant,
    rest: u128,
}

impl LineClock {
    /// A line that is free at `now`.
    #[must_use]
    pub fn new(rate: Rate, now: Instant) -> Self {
        let rate = rate.bits_per_second().max(1);
        let byte = 8 * SECOND / u128::from(rate);
        let is_whole = byte * u128::from(rate) == 8 * SECOND;
        Self { rate, byte: u64::try_from(byte).ok().filter(|_| is_whole), free: now, rest: 0 }
    }

    /// Records that the line was idle until `at`. Instants before it is free change nothing.
    pub fn begin(&mut self, at: Instant) {
        if at > self.free {
            (self.free, self.rest) = (at, 0);
        }
    }

    /// The line carries `bytes`; returns when it has.
    pub fn carry(&mut self, bytes: u64) -> Instant {
        if let Some(byte) = self.byte {
            self.free = self.free.plus_picos((u128::from(byte) * u128::from(bytes)).min(FAR));
            return self.free;
        }
        let rate = u128::from(self.rate);
        let total = u128::from(bytes) * 8 * SECOND + self.rest;
        self.rest = total % rate;
        self.free = self.free.plus_picos((total / rate).min(FAR));
        self.free()
    }

    /// When the line is free: the first picosecond at which all of it was carried.
    #[must_use]
    pub fn free(&self) -> Instant {
        if self.rest == 0 { self.free } else { self.free.plus_picos(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Duration;

    #[test]
    fn a_line_is_free_when_its_rate_says_to_the_fraction() {
        let start = Instant::EPOCH;
        for (rate, bytes, picos) in [
            (Rate::from_gbps(10), 1250, 1_000_000),
            (Rate::from_gbps(40), 1, 200),
            (Rate::from_gbps(800), 1, 10),
            // 2666 and two thirds, rounded up.
            (Rate::from_gbps(3), 1, 2667),
            (Rate::from_bits_per_second(1), 1, 8 * SECOND),
        ] {
            let end = LineClock::new(rate, start).carry(bytes);
            assert_eq!(end.picos_since(start), picos, "{rate} {bytes}");
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
            let bits = u128::from(rate.bits_per_second());
            let picos = (u128::from(bytes) * 8 * SECOND).div_ceil(bits);
            assert_eq!(clock.free().picos_since(start), picos, "{rate}");
        }
    }

    #[test]
    fn every_departure_at_800_gbps_is_exact() {
        let start = Instant::at(Duration::from_secs(86_400));
        let mut clock = LineClock::new(Rate::from_gbps(800), start);
        let mut bytes = 0;
        for n in 0..100_000 {
            let packet = 85 + 2 * (n * 7919 % 2069);
            bytes += packet;
            assert_eq!(clock.carry(packet).picos_since(start), 10 * u128::from(bytes), "packet {n}");
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
