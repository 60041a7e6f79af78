//! `rnic fabric`: switches and cables between NICs, in virtual time.
//!
//! A scenario is a file (`source`), which the command line may change (`set`). It runs with one seed or several, over the cores
//! of the machine (`jobs`, `seeds`). Results become text (`text`, `table`), JSON (`document`), CSV (`csv`) and pictures
//! (`picture`). `compare` shows several runs side by side, and `sweep` runs grids of parameters, on several machines if need be.
//! `serve` is for programs that manage subnets.

mod compare;
mod csv;
mod document;
mod error;
mod jobs;
#[cfg(feature = "plot")]
mod picture;
mod run;
mod seeds;
mod serve;
mod set;
mod show;
mod source;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod topo;

use clap::Subcommand;
use error::{Problem, Status};
use std::error::Error;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Simulate switches and cables between NICs, in virtual time.
///
/// The hosts are rnic devices with their real engine. Start with `rnic fabric list`, and `rnic fabric run incast`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the scenarios and the presets of switches that come with rnic.
    List,
    /// Print a scenario as a file, or write it to one, to be changed; or print a preset of a switch.
    Show(show::ShowArgs),
    /// Run a scenario, and hold its results against what it expects.
    Run(run::Args),
    /// Run several scenarios, or one with several values of a key, and show their metrics side by side.
    Compare(compare::Args),
    /// Describe a scenario's topology: hosts, switches, cables, ways, and whether buffers can wait in a circle.
    Topo(topo::Args),
    /// Have a subnet manager, such as OpenSM, configure a scenario's fabric.
    Serve(serve::Args),
    /// Run a scenario with all combinations of parameters and seeds, over the cores of this machine.
    Sweep(sweep::Args),
    /// Make one table of the results of sweeps.
    Merge(sweep::MergeArgs),
}

impl Command {
    fn run(&self, stop: &(dyn Fn() -> bool + Sync), out: &mut Output<'_>) -> Result<Status, Problem> {
        match self {
            Self::List => show::list(out),
            Self::Show(args) => show::show(args, out),
            Self::Run(args) => run::run(args, stop, out),
            Self::Compare(args) => compare::run(args, stop, out),
            Self::Topo(args) => topo::run(args, out),
            Self::Serve(args) => serve::run(args, stop, out),
            Self::Sweep(args) => sweep::run(args, stop, out),
            Self::Merge(args) => sweep::merge(args, out),
        }
    }
}

/// Where text goes: standard output, or the memory of a test.
struct Output<'a>(&'a mut dyn Write);

impl Output<'_> {
    /// Prints. A reader that closed the pipe has seen enough.
    fn print(&mut self, text: &str) -> Result<(), Problem> {
        match self.0.write_all(text.as_bytes()).and_then(|()| self.0.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Problem::Print(error)),
            _ => Ok(()),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    crate::stop::install()?;
    let status = args.command.run(&crate::stop::requested, &mut Output(&mut std::io::stdout()))?;
    Ok(ExitCode::from(status.code()))
}
