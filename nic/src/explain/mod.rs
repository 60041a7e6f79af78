//! Lines that say why something failed, for programs that see a number only.
//!
//! A program in C learns of a failure by an errno or by the status of a completion. With `RNIC_EXPLAIN=1` it also gets a
//! line on standard error for each call that fails, for the first failure of each queue pair, and for datagrams that
//! are lost where no completion can say so. The reasons are values of types that Rust programs have as well:
//! [`Error`](crate::Error), and [`Failure`](crate::Failure) by [`QueuePair::failure`](crate::QueuePair::failure).
//!
//! Lines of one kind are limited to [`BURST`] in [`WINDOW`]; those beyond are counted, and the count is printed. Without
//! the variable nothing is formatted and nothing printed: a failure costs one load more, and success nothing.
//!
//! # What a peer learns
//!
//! A NAK says no more than "remote access error", and that must stay so: who could read the reason could try keys until
//! one fits. So the reason never travels. The responder prints it on its own standard error, and leaves it in the run
//! folder (`RNIC_RUN_DIR`), which belongs to one user of one host and is closed to all others. The requester looks there
//! for a refusal of its own queue pair: by the addresses and numbers of both ends. So a process learns the reason only if
//! both run as the same user on the same host, where each may read the memory of the other anyway, and both explain.

mod failed;
mod limit;
mod refusals;

pub(crate) use failed::{Dropped, End, Failed, PeerView, Refusing, Stalled};
pub(crate) use refusals::{Refusal, told_by};

use crate::port::run_at_exit;
use limit::{Limits, Verdict};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// How many lines of one kind there are in a [`WINDOW`].
pub const BURST: u32 = 16;

/// The time after which suppressed lines are counted out, and others of their kind are printed again.
pub const WINDOW: Duration = Duration::from_secs(10);

static ON: AtomicBool = AtomicBool::new(false);

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

/// Explains failures from now on; reasons of refusals are left in `run_dir` for those whose requests were refused.
pub fn turn_on(run_dir: Option<&Path>) {
    if let Some(mut state) = state()
        && state.refusals.is_none()
    {
        state.refusals = Some(refusals::Refusals::new(run_dir));
    }
    if !ON.swap(true, Ordering::Relaxed) {
        run_at_exit(finish);
    }
}

/// Prints a line of a kind, unless there were too many of it lately.
pub fn say(kind: &'static str, line: impl fmt::Display) {
    if !is_on() {
        return;
    }
    let verdict =
        state().map_or(Verdict::Print { suppressed: 0 }, |mut state| state.limits.ask(kind, Instant::now()));
    if let Verdict::Print { suppressed } = verdict {
        if suppressed > 0 {
            print(&format!("rnic: {kind}: {suppressed} more suppressed\n"));
        }
        print(&format!("rnic: {line}\n"));
    }
}

/// What is kept between lines; `None` while another thread has it, and in a child that was forked meanwhile: there
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

/// Says what was suppressed, before the program ends.
fn finish() {
    let Some(mut state) = state() else { return };
    for (kind, suppressed) in state.limits.rest() {
        print(&format!("rnic: {kind}: {suppressed} more suppressed\n"));
    }
}

/// Writes a line at once, so that it stays whole beside those of other threads and processes. No lock is taken: a child
/// that was forked while another thread held it would wait without end.
fn print(line: &str) {
    // Nobody is left to be told that standard error is closed.
    let _ = nix::unistd::write(std::io::stderr(), line.as_bytes());
}
