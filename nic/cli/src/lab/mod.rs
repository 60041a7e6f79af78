//! `rnic lab`: labs for courses.
//!
//! The labs and their judge are `rnic_lab`'s, which opens no file and starts no process. Here are the folder of a student
//! (`folder`), the experiments in it (`run`, `progress`), the pictures (`picture`), and the labs whose task is a program (`program`), the
//! pages of a course (`site`), and a server of those (`serve`).

/// Prints, like `print!`. A reader that closed the pipe has seen enough.
macro_rules! out {
    ($($text:tt)*) => {{
        // Nothing else can be wrong with standard output that anybody could be told of.
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!($($text)*));
    }};
}

/// Prints a line, like `println!`.
macro_rules! outln {
    () => { out!("\n") };
    ($($text:tt)*) => {{
        out!("{}\n", format_args!($($text)*));
    }};
}

mod check;
mod folder;
#[cfg(feature = "plot")]
mod picture;
mod program;
mod progress;
mod run;
mod serve;
mod show;
mod site;

use clap::Subcommand;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Do the labs of a course: predictions, experiments, a task, and a check.
///
/// Start with `rnic lab list` and `rnic lab start go-back-n`. Everything but the first lab runs in virtual time, with the same
/// numbers on every machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the labs.
    List,
    /// Print the sheet of a lab, or the instructor's page.
    Show(show::ShowArgs),
    /// Make a folder with the sheet, the experiments and the file of answers.
    Start(show::StartArgs),
    /// Run the experiments in a lab's folder.
    #[command(
        after_help = "Exit code: 0 if everything ran, 1 if the student's program does not build or failed, 2 if something could not run."
    )]
    Run(run::Args),
    /// Judge the answers in a lab's folder.
    #[command(
        after_help = "Exit code: 0 if the lab is done, 1 if something is missing or wrong, 2 if it could not be judged."
    )]
    Check(check::Args),
    /// Draw the experiments in a lab's folder.
    #[cfg(feature = "plot")]
    Plot(picture::Args),
    /// Write all labs as pages for a course: HTML files that need no server.
    Site(site::Args),
    /// Show those pages, and the page with NICs in it, to browsers of this machine.
    Serve(serve::Args),
}

/// The folder of a lab.
#[derive(Debug, clap::Args)]
struct Place {
    /// The folder that `rnic lab start` made. [default: this one]
    #[arg(value_name = "FOLDER", default_value = ".", hide_default_value = true)]
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    match &args.command {
        Command::List => show::list(),
        Command::Show(args) => show::show(args),
        Command::Start(args) => show::start(args),
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::run(args),
        #[cfg(feature = "plot")]
        Command::Plot(args) => picture::run(args),
        Command::Site(args) => site::run(args),
        Command::Serve(args) => serve::run(args),
    }
}
