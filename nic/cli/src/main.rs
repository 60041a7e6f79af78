//! The `rnic` program.

mod daemon;
mod decode;
mod demo;
mod doctor;
mod fabric;
mod lab;
mod number;
mod perf;
#[cfg(feature = "plot")]
mod plot;
mod programs;
mod run;
mod setup;
mod show;
mod stop;
mod sysfs;
mod top;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::io::IsTerminal as _;
use std::process::ExitCode;

/// A RoCEv2 NIC in software, over UDP sockets.
///
/// Start with `rnic demo`, or run a verbs program with `rnic run -- PROGRAM`.
#[derive(Debug, Parser)]
#[command(name = "rnic", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Share addresses: many programs and containers, one NIC.
    Daemon(daemon::Args),
    /// Show the RoCEv2 packets of a capture file and check their ICRC.
    Decode(decode::Args),
    /// Show two NICs performing every operation, in a few seconds.
    Demo(demo::Args),
    /// Print the environment of `rnic run` for a shell: `eval "$(rnic env)"`.
    Env(run::EnvArgs),
    /// Check this host for problems and suggest remedies.
    Doctor(doctor::Args),
    /// Simulate switches and cables between NICs: scenarios, parameter sweeps, topologies.
    Fabric(fabric::Args),
    /// Hold the sockets of a daemon, which starts this by itself.
    #[command(hide = true)]
    Keeper(daemon::KeeperArgs),
    /// Do the labs of a course: predictions, experiments, a task, and a check.
    Lab(lab::Args),
    /// Measure bandwidth and latency between two rnic devices.
    Perf(perf::Args),
    /// Draw the traces of `rnic perf --trace` as SVG or PNG.
    #[cfg(feature = "plot")]
    Plot(plot::Args),
    /// Run a program that uses libibverbs on devices of rnic.
    Run(run::RunArgs),
    /// List devices, links, GIDs, attributes and counters of this host.
    Show(show::Args),
    /// Keep the devices of running programs as files, as the kernel has them in /sys.
    Sysfs(sysfs::Args),
    /// Watch the programs that run on rnic: rates, queue pairs, and what is wrong.
    Top(top::Args),
}

impl Command {
    fn run(self) -> Result<ExitCode, Box<dyn Error>> {
        match self {
            Self::Daemon(args) => daemon::run(&args),
            Self::Keeper(args) => daemon::keep(&args),
            Self::Decode(args) => decode::run(&args),
            Self::Demo(args) => Ok(demo::run(&args)),
            Self::Doctor(args) => Ok(doctor::run(&args)?),
            Self::Env(args) => run::env(&args),
            Self::Fabric(args) => fabric::run(&args),
            Self::Lab(args) => lab::run(&args),
            Self::Perf(args) => perf::run(&args),
            #[cfg(feature = "plot")]
            Self::Plot(args) => plot::run(&args),
            Self::Run(args) => Ok(run::run(&args)),
            Self::Show(args) => show::run(&args),
            Self::Top(args) => top::run(&args),
            Self::Sysfs(args) => sysfs::run(&args),
        }
    }
}

/// The exit code of a command that failed, and of clap for a wrong command line. 1 means that the command worked and found
/// a problem.
const FAILED: u8 = 2;

/// Logs to standard error, from `level` on. The variable RNIC_LOG sets another level, such as `debug`.
fn log_to_stderr(level: &str, is_json: bool) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("RNIC_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if is_json {
        // Whoever reads it wants the time.
        log.json().flatten_event(true).init();
    } else {
        log.with_ansi(std::io::stderr().is_terminal()).without_time().init();
    }
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // The daemon has nothing else to say.
    match &command {
        Command::Daemon(args) => log_to_stderr("info", args.logs_json()),
        _ => log_to_stderr("warn", false),
    }
    command.run().unwrap_or_else(|error| {
        eprintln!("rnic: {error}");
        ExitCode::from(FAILED)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Calls `each` with every subcommand and its full name.
    fn commands(command: &clap::Command, name: &str, each: &mut dyn FnMut(&str, &clap::Command)) {
        each(name, command);
        for sub in command.get_subcommands() {
            commands(sub, &format!("{name} {}", sub.get_name()), each);
        }
    }

    #[test]
    fn every_help_fits_a_terminal_of_80_columns() {
        let mut seen = 0;
        commands(&Cli::command(), "rnic", &mut |name, command| {
            let mut command = command.clone().term_width(80);
            for help in [command.render_help(), command.render_long_help()] {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= 80, "{name} --help: {line}");
                }
            }
            seen += 1;
        });
        assert!(seen > 10, "{seen}");
    }

    #[test]
    fn every_option_is_described() {
        commands(&Cli::command(), "rnic", &mut |name, command| {
            assert!(command.get_about().is_some(), "{name}");
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                assert!(arg.get_help().is_some(), "{name} {}", arg.get_id());
            }
        });
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
