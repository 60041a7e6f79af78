//! Ctrl-C ends a measurement; results so far are still reported.

use super::Failure;
use nix::sys::signal::{SigSet, Signal};
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The exit code after a second SIGINT: 128 + 2, as in shells.
const INTERRUPTED: i32 = 130;

/// Whether the user has interrupted the program.
pub(super) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Handles SIGINT and SIGTERM: the first ends the run in order, the second ends the program at once.
pub(super) fn install() -> Result<(), Failure> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    // Threads inherit the mask, so that only the one below receives the signals.
    signals.thread_block().map_err(|error| format!("cannot block signals: {error}"))?;
    let watch = move || {
        if signals.wait().is_ok() {
            REQUESTED.store(true, Ordering::Relaxed);
        }
        if signals.wait().is_ok() {
            std::process::exit(INTERRUPTED);
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(watch)
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    Ok(())
}
