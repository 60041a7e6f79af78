//! Whole worlds in virtual time, and an oracle that says what may be observed in them.
//!
//! A seed makes a [`Plan`]: devices, the links between them, faults, queue pairs of every type, and a script of what their
//! programs do: every operation, receives that come late, registration, windows, errors, recovery, destruction, restarts.
//! [`run`] plays it on [`rnic::sim::Net`], with the engine that runs on sockets, and watches it like a program that trusts
//! nobody. It uses public types only, and shares no code with the engine:
//!
//! * every signalled work request completes once and in order, an unsignalled one only with an error; receives complete
//!   once and in order; after an error everything is flushed;
//! * over RC and XRC messages arrive once, whole and in order; a completion says that what it stands for has happened at the
//!   peer; what fails has happened not at all or is a beginning of what was asked for;
//! * no byte changes that nobody granted; bytes that somebody is writing are old or new;
//! * each atomic takes effect once;
//! * UC and UD deliver what was sent, whole, or not at all;
//! * an error has a reason; no work request outlives its retries, and none gives up before;
//! * time moves: no instant has steps without end; queues keep within their bounds;
//! * what was made can be destroyed in the end, because nobody uses it any more.
//!
//! The same plan runs the same way every time ([`Outcome::hash`]). One that fails can be [shrunk](shrink::shrink), written down
//! as JSON, and written to pcapng files ([`Options::captures`]).

mod arena;
mod conn;
mod coverage;
mod finish;
mod host;
mod judge;
mod ledger;
mod plan;
mod post;
mod recv;
mod rng;
mod script;
pub mod shrink;
mod world;

pub use coverage::Coverage;
pub use plan::{Action, ConnPlan, HostPlan, Plan, Service, What};
pub use rng::Rng;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

/// What was found wrong, in words, or nothing.
type Check<T = ()> = Result<T, String>;

/// What to keep of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What happened, line by line.
    pub trace: bool,
    /// Where captures go: a pcapng file for each device, with this stem.
    pub captures: Option<PathBuf>,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the oracle objects to, or what panicked; `None` if all is well.
    pub violation: Option<String>,
    /// Work requests that were posted.
    pub operations: u64,
    /// A number that follows from all that was observed, and when.
    pub hash: u64,
    /// Virtual time.
    pub elapsed: Duration,
    /// What was reached.
    pub coverage: Coverage,
    /// What happened, if that was asked for.
    pub trace: Vec<String>,
}

/// Plays a plan.
#[must_use]
pub fn run(plan: &Plan, options: &Options) -> Outcome {
    let played = catch_unwind(AssertUnwindSafe(|| world::World::play(plan, options)));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of an unknown kind");
        Outcome {
            violation: Some(format!("panic: {text}")),
            operations: 0,
            hash: 0,
            elapsed: Duration::ZERO,
            coverage: Coverage::default(),
            trace: Vec::new(),
        }
    })
}
