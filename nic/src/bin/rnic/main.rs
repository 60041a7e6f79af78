//! The `rnic` program.

mod decode;
mod demo;
mod doctor;
mod perf;
#[cfg(feature = "plot")]
mod plot;
mod run;
mod setup;
mod show;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;

/// A RoCEv2 NIC in software.
#[derive(Debug, Parser)]
#[command(name = "rnic", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the RoCEv2 packets of a capture file and check their ICRC.
    Decode(decode::Args),
    /// See two NICs do everything they can, in a few seconds.
    Demo(demo::Args),
    /// Print what `rnic run` sets in the environment, for a shell: `eval "$(rnic env)"`.
    Env(run::EnvArgs),
    /// Say what on this host would get in the way, and what to do about it.
    Doctor(doctor::Args),
    /// Measure bandwidth and latency between two rnic devices.
    Perf(perf::Args),
    /// Draw what `rnic perf --trace` recorded.
    #[cfg(feature = "plot")]
    Plot(plot::Args),
    /// Run a program that was written for verbs on devices of rnic.
    Run(run::RunArgs),
    /// List what devices this host has: links, GIDs, attributes, counters.
    Show(show::Args),
}

impl Command {
    fn run(self) -> Result<ExitCode, Box<dyn Error>> {
        match self {
            Self::Decode(args) => decode::run(&args),
            Self::Demo(args) => Ok(demo::run(&args)),
            Self::Doctor(args) => Ok(doctor::run(&args)?),
            Self::Env(args) => run::env(&args),
            Self::Perf(args) => perf::run(&args),
            #[cfg(feature = "plot")]
            Self::Plot(args) => plot::run(&args),
            Self::Run(args) => Ok(run::run(&args)),
            Self::Show(args) => show::run(&args),
        }
    }
}

/// Exit code for "the command could not do its work", as clap has it for wrong command lines: 1 is left to commands
/// that did their work and found something.
const FAILED: u8 = 2;

/// Warnings go to stderr: what the kernel refused, once each. RNIC_LOG sets another level, as in `RNIC_LOG=debug`.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("RNIC_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
}

fn main() -> ExitCode {
    log_to_stderr();
    Cli::parse().command.run().unwrap_or_else(|error| {
        eprintln!("rnic: {error}");
        ExitCode::from(FAILED)
    })
}
