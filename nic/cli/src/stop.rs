//! Ctrl-C ends a measurement; results so far are still reported.

use nix::sys::signal::{SigSet, Signal};
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The exit code after SIGINT: 128 + 2, as in shells.
pub(crate) const INTERRUPTED: u8 = 130;

/// Whether the user has interrupted the program.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Handles SIGINT and SIGTERM: the first ends the run in order, the second ends the program at once.
pub(crate) fn install() -> Result<(), Box<dyn Error>> {
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
            std::process::exit(INTERRUPTED.into());
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(watch)
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    Ok(())
}
