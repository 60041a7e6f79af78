//! Ctrl-C: what was measured so far is still reported.

use super::Failure;
use nix::sys::signal::{SigSet, Signal};
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Exit code of a program that a second SIGINT ends: 128 + 2, as shells report it.
const INTERRUPTED: i32 = 130;

/// Whether the user wants to stop.
pub(super) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// From now on SIGINT and SIGTERM end the run in order; a second one ends the program at once.
pub(super) fn install() -> Result<(), Failure> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    // Threads inherit this, so that only the one below gets the signals.
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
