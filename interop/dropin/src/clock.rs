//! Clocks that completions are stamped with.

use std::time::Duration;

/// The clock of the device: the kernel's monotonic one.
pub(crate) fn monotonic() -> Duration {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(Duration::ZERO, Into::into)
}
