//! `rnic fabric`: switches and cables between NICs, in virtual time.
//!
//! A scenario is a file (`source`), which the command line may change (`set`). It runs with one seed or several, over the cores
//! of the machine (`jobs`, `seeds`). Results become text (`text`, `table`), JSON (`document`) and CSV (`csv`).

mod csv;
mod document;
mod error;
mod jobs;
#[cfg(feature = "plot")]
mod picture;
mod run;
mod seeds;
mod set;
mod show;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod text;

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
    /// List the scenarios that come with rnic.
    List,
    /// Print a scenario as a file, or write it to one, to be changed.
    Show(show::ShowArgs),
    /// Run a scenario, and hold its results against what it expects.
    Run(run::Args),
}

impl Command {
    fn run(&self, stop: &(dyn Fn() -> bool + Sync), out: &mut Output<'_>) -> Result<Status, Problem> {
        match self {
            Self::List => show::list(out),
            Self::Show(args) => show::show(args, out),
            Self::Run(args) => run::run(args, stop, out),
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
