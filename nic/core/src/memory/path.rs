//! How each thread may access registered memory, as of its last look.

use crate::platform::{self, MemoryPath};
use std::cell::Cell;
use time::{Duration, Instant};

/// How long a thread may be unaware that the program replaced the handler or blocked the signals. A look takes three
/// system calls, below 1 us: 0.1 % of this.
const WINDOW: Duration = Duration::from_millis(1);

thread_local! {
    /// The path of this thread, once looked up.
    static PATH: Cell<Option<MemoryPath>> = const { Cell::new(None) };
    /// When `refresh` last looked.
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Makes faults recoverable, once in the life of the process. Children made by fork inherit that.
///
/// [`RegionTable`](super::RegionTable) calls this when a region is registered.
pub fn install() {
    if platform::get().guard_memory() {
        PATH.set(None);
    }
}

/// Looks whether faults are still recovered in this thread, at most once in a millisecond of the caller's clock.
///
/// The thread that drives an engine calls this once per turn. If the program replaces the handler and memory is unmapped
/// within the next millisecond, the signal reaches the program's handler.
pub fn refresh(now: Instant) {
    let due = LOOKED.get().is_none_or(|last| {
        // A clock that ran backwards belongs to another simulation.
        now < last || now.duration_since(last) >= WINDOW
    });
    if due {
        LOOKED.set(Some(now));
        PATH.set(Some(platform::get().memory_path()));
    }
}

/// The path for this thread, as of the last look.
pub(super) fn path() -> MemoryPath {
    PATH.get().unwrap_or_else(|| {
        let path = platform::get().memory_path();
        PATH.set(Some(path));
        path
    })
}

/// Runs `access` so that faults in it are recovered, although this thread blocks them.
pub(super) fn unblocked<T>(access: impl FnOnce() -> Result<T, super::Fault>) -> Result<T, super::Fault> {
    let (mut access, mut result) = (Some(access), None);
    platform::get().unblocked(&mut || result = access.take().map(|access| access()));
    match result {
        Some(result) => result,
        None => unreachable!("a platform runs every access"),
    }
}
