//! Lines that say why something failed, for programs that only see a number.
//!
//! A program in C learns of a failure by an errno or by the status of a completion. With `RNIC_EXPLAIN=1` it also gets
//! a line on standard error for each call that fails, for the first failure of each queue pair, and for lost datagrams
//! whose loss no completion can report. The reasons are values of types that Rust programs also get:
//! [`Error`](crate::Error), and [`Failure`](crate::Failure) from [`QueuePair::failure`](crate::QueuePair::failure).
//!
//! Lines of one kind are limited to [`BURST`] in [`WINDOW`]. Further lines are counted, and the count is printed.
//! Without the variable nothing is formatted or printed: a failure costs one additional load, and success nothing.
//!
//! # What a peer learns
//!
//! A NAK says no more than "remote access error", and that must stay so: a peer that could read the reason could try
//! keys until one fits. So the reason is never sent. The responder prints it on its own standard error, and stores it
//! in the run folder (`RNIC_RUN_DIR`), which belongs to one user of one host and is closed to all others. The requester
//! searches the run folder for a refusal of its own queue pair, by the addresses and numbers of both ends. So a process
//! learns the reason only if both processes run as the same user on the same host, where each may read the memory of
//! the other anyway, and both explain.

mod failed;
mod limit;
mod refusals;

use crate::driver::run_at_exit;
use failed::FailedLine;
use limit::{Limits, Verdict};
use refusals::Refusal;
use rnic_core::reasons::{self, Reason};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use time::Duration;

/// The limit of lines of one kind in a [`WINDOW`].
pub const BURST: u32 = 16;

/// The time after which the number of suppressed lines is printed, and others of their kind are printed again.
pub const WINDOW: Duration = Duration::from_secs(10);

static ON: AtomicBool = AtomicBool::new(false);

/// Prints what engines report.
struct Printer;

impl reasons::Sink for Printer {
    fn take(&self, reason: Reason<'_>) {
        match reason {
            Reason::Failed(failed) => say(failed.failure.status.name(), FailedLine::new(failed)),
            Reason::Refusing(line) => {
                if let Some(peer) = line.peer {
                    let reason = line.reason();
                    Refusal { responder: line.own.key(), requester: peer.key(), reason }.tell();
                }
                say("refused requests", line);
            }
            Reason::Stalled(line) => say("no receive at the peer", line),
            Reason::Dropped(line) => say("lost messages", line),
            Reason::Other(kind, line) => say(kind, line),
        }
    }
}

static STATE: Mutex<State> = Mutex::new(State { limits: Limits::new(), refusals: None });

struct State {
    limits: Limits,
    refusals: Option<refusals::Refusals>,
}

/// Whether failures are explained.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Explains failures from now on. Reasons of refusals are stored in `run_dir` for the peers whose requests were
/// refused.
pub fn turn_on(run_dir: Option<&Path>) {
    if let Some(mut state) = state()
        && state.refusals.is_none()
    {
        state.refusals = Some(refusals::Refusals::new(run_dir));
    }
    if !ON.swap(true, Ordering::Relaxed) {
        reasons::report_to(&Printer);
        run_at_exit(finish);
    }
}

/// Prints a line of a kind, unless the limit for that kind has been reached.
pub fn say(kind: &'static str, line: impl fmt::Display) {
    if !is_on() {
        return;
    }
    let verdict = state()
        .map_or(Verdict::Print { suppressed: 0 }, |mut state| state.limits.ask(kind, crate::clock::now()));
    if let Verdict::Print { suppressed } = verdict {
        if suppressed > 0 {
            print(&format!("rnic: {kind}: {suppressed} more suppressed\n"));
        }
        print(&format!("rnic: {line}\n"));
    }
}

/// The state kept between lines. `None` while another thread holds it, and in a child that was forked meanwhile: there
/// lines are printed without a limit.
fn state() -> Option<MutexGuard<'static, State>> {
    for _ in 0..1000 {
        match STATE.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// Reports the suppressed lines before the program ends.
fn finish() {
    let Some(mut state) = state() else { return };
    for (kind, suppressed) in state.limits.rest() {
        print(&format!("rnic: {kind}: {suppressed} more suppressed\n"));
    }
}

/// Writes a line with one call, so that lines of other threads and processes do not interleave with it. Takes no lock:
/// a child that was forked while another thread held the lock would wait forever.
fn print(line: &str) {
    // If standard error is closed, the failure cannot be reported.
    let _ = nix::unistd::write(std::io::stderr(), line.as_bytes());
}
