//! Complete worlds in virtual time, and an oracle that defines what may be observed in them.
//!
//! A seed generates a [`Plan`]: devices, the links between them or a fabric, faults, queue pairs of every type, and a script of
//! what their programs do: every operation, late receives, registration, windows, errors, recovery, destruction,
//! restarts. [`run`] plays it on [`rnic::sim::Net`], with the same engine that runs on sockets, and observes it
//! like a program that trusts nothing. It uses public types only, and shares no code with the engine:
//!
//! * every signalled work request completes once and in order, an unsignalled one only with an error; receives
//!   complete once and in order; after an error everything is flushed;
//! * on RC and XRC, messages arrive once, complete and in order; a completion implies that the operation took
//!   effect at the peer; a failed operation had no effect, or a prefix of its effect;
//! * no byte changes without permission; bytes being written have their old or their new value;
//! * each atomic takes effect once;
//! * UC and UD deliver complete messages that were sent, or nothing;
//! * every error has a cause; no work request outlives its retries, and none gives up earlier: the packets of each
//!   requester show when its timer ran out and what it was told, and each sign of loss has a loss of its own;
//! * a fabric accounts for every packet, and a lossless one loses none;
//! * forgers change nothing: no outcome, no partner, no message that is believed;
//! * time advances: no instant has an endless number of steps; queues stay within their bounds;
//! * everything can be destroyed at the end, because nothing uses it any more.
//!
//! The same plan always runs the same way ([`Outcome::hash`]). A failing plan can be [shrunk](shrink::shrink),
//! saved as JSON, and captured in pcapng files ([`Options::captures`]).

mod account;
mod arena;
mod conn;
mod coverage;
mod fabric;
mod finish;
mod forger;
mod host;
mod judge;
mod ledger;
mod plan;
mod post;
mod recv;
mod rng;
mod script;
pub mod shrink;
mod wire;
mod witness;
mod world;

pub use coverage::{Coverage, Reach};
pub use fabric::FabricPlan;
pub use plan::{Action, ConnPlan, HostPlan, Plan, Service, What};
pub use rng::Rng;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

/// The description of a violation, or nothing.
type Check<T = ()> = Result<T, String>;

/// What to record of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A trace, line by line.
    pub trace: bool,
    /// Captures: a pcapng file for each device, whose names start with this.
    pub captures: Option<PathBuf>,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The violation or the panic; `None` if there was neither.
    pub violation: Option<String>,
    /// Number of posted work requests.
    pub operations: u64,
    /// A hash of all observations and their times.
    pub hash: u64,
    /// Virtual time.
    pub elapsed: Duration,
    /// The situations that were reached.
    pub coverage: Coverage,
    /// The trace, if requested.
    pub trace: Vec<String>,
}

impl Outcome {
    /// Of a world that ended before anything could be observed.
    fn failed(violation: String) -> Self {
        Self {
            violation: Some(violation),
            operations: 0,
            hash: 0,
            elapsed: Duration::ZERO,
            coverage: Coverage::default(),
            trace: Vec::new(),
        }
    }
}

/// Plays a plan.
#[must_use]
pub fn run(plan: &Plan, options: &Options) -> Outcome {
    let played = catch_unwind(AssertUnwindSafe(|| world::World::play(plan, options)));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of an unknown kind");
        Outcome::failed(format!("panic: {text}"))
    })
}
