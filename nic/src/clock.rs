//! The clock of drivers.

use nix::time::{ClockId, clock_gettime};
use time::{Duration, Instant};

/// The present, by the kernel's monotonic clock, which starts at boot.
///
/// # Panics
///
/// Panics if the clock cannot be read, which Linux excludes: with a wrong time, timers would misfire silently.
pub(crate) fn now() -> Instant {
    match clock_gettime(ClockId::CLOCK_MONOTONIC) {
        Ok(now) => Instant::at(Duration::from(now)),
        Err(error) => panic!("the monotonic clock cannot be read: {error}"),
    }
}
