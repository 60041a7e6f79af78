//! `rnic perf`: bandwidth and latency of RDMA WRITE, READ, SEND and atomics between two of these NICs.
//!
//! Definitions, options and tables are those of perftest (`ib_write_bw` and its siblings), so that results can be
//! compared. A client chooses the measurement; a server serves many clients. They negotiate over a TCP connection
//! (`control`), prepare their queue pairs (`endpoint`) and stream (`stream`) or play ping-pong (`pingpong`). `delivery`
//! distinguishes lost packets from late answers.

mod client;
mod control;
mod delivery;
mod endpoint;
mod params;
mod pingpong;
mod progress;
mod report;
mod server;
mod service;
mod stream;
mod trace;

use clap::Subcommand;
use rnic::Device;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// An error, in one line.
type Failure = Box<dyn std::error::Error>;

/// Counters by name.
type Counters = BTreeMap<String, u64>;

/// Measure bandwidth and latency between two rnic devices.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    side: Side,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// Wait for clients.
    Server(server::Args),
    /// Measure the path to a server.
    Client(client::Args),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    crate::stop::install()?;
    match &args.side {
        Side::Server(args) => server::run(args),
        Side::Client(args) => client::run(args),
    }
}

/// All counters of a device.
fn counters(device: &Device) -> Counters {
    device.counters().iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The difference of two samples of counters.
fn difference(before: &Counters, mut now: Counters) -> Counters {
    for (name, value) in &mut now {
        *value = value.saturating_sub(before.get(name).copied().unwrap_or(0));
    }
    now
}
