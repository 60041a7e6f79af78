//! Points in time for code that reads no clock.
//!
//! The transport, congestion control and the engine take the time as an argument. So they run on a real clock, in the
//! virtual time of a simulation, and on targets without a clock, such as wasm. [`Instant`] is what they take: a time
//! since some epoch, which its caller chooses. Drivers choose the epoch of the kernel's monotonic clock, and
//! simulations their beginning.

#![forbid(unsafe_code)]

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
pub use std::time::Duration;

/// Picoseconds in a nanosecond.
const PICOS: u128 = 1000;

/// A point in time, in picoseconds since the epoch of whoever counts it.
///
/// A byte takes 10 ps at 800 Gb/s, so nanoseconds are too coarse for the times of single packets. Durations are in
/// nanoseconds, as everywhere else: the difference of two instants is rounded down.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u128);

impl Instant {
    /// The epoch.
    pub const EPOCH: Self = Self(0);

    /// The point at this time after the epoch.
    #[must_use]
    pub const fn at(since_epoch: Duration) -> Self {
        Self(picos(since_epoch))
    }

    /// The time since the epoch, rounded down to nanoseconds.
    #[must_use]
    pub const fn since_epoch(self) -> Duration {
        duration(self.0)
    }

    /// The point this many picoseconds later.
    #[must_use]
    pub const fn plus_picos(self, picos: u128) -> Self {
        Self(self.0.saturating_add(picos))
    }

    /// The picoseconds since `earlier`; 0 if that is later.
    #[must_use]
    pub const fn picos_since(self, earlier: Self) -> u128 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time since `earlier`, rounded down to nanoseconds; zero if that is later.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        duration(self.picos_since(earlier))
    }

    /// As [`saturating_duration_since`](Self::saturating_duration_since).
    #[must_use]
    pub const fn duration_since(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// The time since `earlier`, or `None` if that is later.
    #[must_use]
    pub const fn checked_duration_since(self, earlier: Self) -> Option<Duration> {
        if self.0 < earlier.0 { None } else { Some(self.saturating_duration_since(earlier)) }
    }

    /// The point at this time later. There is always one: the longest duration is a small part of what an instant
    /// holds.
    #[must_use]
    pub const fn checked_add(self, time: Duration) -> Option<Self> {
        match self.0.checked_add(picos(time)) {
            Some(at) => Some(Self(at)),
            None => None,
        }
    }

    /// The point at this time earlier, or `None` if that is before the epoch.
    #[must_use]
    pub const fn checked_sub(self, time: Duration) -> Option<Self> {
        match self.0.checked_sub(picos(time)) {
            Some(at) => Some(Self(at)),
            None => None,
        }
    }
}

const fn picos(time: Duration) -> u128 {
    time.as_nanos() * PICOS
}

/// As a duration, rounded down, and [`Duration::MAX`] at most.
const fn duration(picos: u128) -> Duration {
    // Half a year and less: a division of 64 bits is a multiplication, one of 128 bits takes 20 ns.
    if picos <= u64::MAX as u128 {
        return Duration::from_nanos(picos as u64 / PICOS as u64);
    }
    let nanos = picos / PICOS;
    if nanos <= u64::MAX as u128 {
        return Duration::from_nanos(nanos as u64);
    }
    let seconds = nanos / 1_000_000_000;
    if seconds > u64::MAX as u128 {
        return Duration::MAX;
    }
    Duration::new(seconds as u64, (nanos % 1_000_000_000) as u32)
}

/// Shows the time since the epoch.
impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.since_epoch().fmt(f)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        self.plus_picos(picos(time))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

/// Stops at the epoch.
impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(picos(time)))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, time: Duration) {
        *self = *self - time;
    }
}

/// As [`Instant::saturating_duration_since`].
impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_at_800_gbps_counts() {
        let start = Instant::at(Duration::from_secs(1));
        let end = start.plus_picos(10);
        assert!(end > start && end.picos_since(start) == 10);
        assert_eq!((end - start, start.picos_since(end)), (Duration::ZERO, 0));
        assert_eq!(start.plus_picos(999_999) - start, Duration::from_nanos(999));
    }

    #[test]
    fn times_that_are_out_of_range_saturate() {
        let one = Duration::from_secs(1);
        assert_eq!(Instant::EPOCH - one, Instant::EPOCH);
        assert_eq!(Instant::EPOCH.checked_sub(one), None);
        assert_eq!(Instant::at(one).checked_sub(one), Some(Instant::EPOCH));
        let far = Instant::at(Duration::MAX);
        assert_eq!(far.since_epoch(), Duration::MAX);
        assert_eq!((far + Duration::MAX).since_epoch(), Duration::MAX);
        assert!(far + one > far && far.checked_add(one) == Some(far + one));
        assert_eq!(Instant(u128::MAX).checked_add(one), None);
        assert_eq!(Instant::EPOCH.checked_duration_since(far), None);
    }

    #[test]
    fn sums_and_differences_of_durations_are_exact() {
        let (start, time) = (Instant::at(Duration::new(7, 123)), Duration::new(3, 999_999_999));
        let mut at = start + time;
        assert_eq!((at - start, at.since_epoch()), (time, Duration::new(11, 122)));
        at -= time;
        at += Duration::from_nanos(1);
        assert_eq!(at.duration_since(start), Duration::from_nanos(1));
        assert_eq!(format!("{at:?}"), "7.000000124s");
    }
}
