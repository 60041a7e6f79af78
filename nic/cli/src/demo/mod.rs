//! `rnic demo`: two NICs in two processes perform every operation.
//!
//! The program starts itself a second time as the server. The two exchange JSON over the server's standard input and
//! output ([`messages`]): addresses, work to post, comparisons. Everything else goes over UDP.

mod capture;
mod client;
mod congestion;
mod connections;
mod credits;
mod flows;
mod inbox;
mod link;
mod messages;
mod operations;
mod page;
mod server;
mod services;
mod speed;
mod story;
mod trouble;

use crate::FAILED;
use client::Client;
use page::Page;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show two NICs in two processes performing every operation.
///
/// The demo shows the packets of each operation, error handling, the recovery of lost packets, and a short measurement.
/// With --link or --cc it shows link credits or congestion control instead: in virtual time first, and then on this host. All
/// data is verified.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rnic demo
  rnic demo --link ib-credits
  rnic demo --link ethernet --cc dcqcn

Exit code: 0 if all data arrived and every check passed, 1 if a check failed, 2 if \
the options are not valid.")]
pub(crate) struct Args {
    /// Keep the measurements short.
    #[arg(long)]
    quick: bool,
    /// Write all packets to this pcapng file.
    #[arg(long, value_name = "FILE", default_value = "rnic-demo.pcapng")]
    capture: PathBuf,
    /// Seed the data and the randomness of fault rules.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Show a lossless or congested link instead: `ib-credits`, or `ethernet` with congestion control. Takes the settings
    /// of `rnic perf --link`, such as `ethernet:rate=2Gb/s`.
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// Show congestion control instead: `dcqcn`, with the preset `laptop` unless you name another.
    #[arg(long, value_name = "CC")]
    cc: Option<String>,
    /// Begin the file names of the traces for `rnic plot` with this (congestion control only).
    #[arg(long, value_name = "STEM", default_value = "rnic-demo")]
    traces: PathBuf,
    /// Run as the server of a demo.
    #[arg(long, hide = true)]
    server: bool,
    /// The seed of the server. With another than the client's every comparison fails, which tests rely on.
    #[arg(long, hide = true)]
    server_seed: Option<u64>,
    /// A fault rule that is active throughout, for tests.
    #[arg(long, hide = true)]
    fault: Vec<String>,
}

/// An error, in one line.
#[derive(Debug)]
struct Failure(String);

type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl From<rnic::Error> for Failure {
    fn from(error: rnic::Error) -> Self {
        Self(error.to_string())
    }
}

/// Fails with the text of `what` unless `holds`.
fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Failure(what())) }
}

/// The name by which this program was called.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "rnic".to_owned())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    if args.server {
        return server::run(args.seed);
    }
    let story = match link::Story::of(args) {
        Ok(story) => story,
        Err(Failure(what)) => {
            eprintln!("rnic: {what}");
            return ExitCode::from(FAILED);
        }
    };
    let page = Page::to_stdout();
    let mut part = "the start";
    match tell(args, story.as_ref(), &page, &mut part) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(what)) => {
            page.flush();
            eprintln!("rnic demo: FAILED in {part}: {what}");
            ExitCode::FAILURE
        }
    }
}

/// The whole demo. `part` names the current part, for errors.
fn tell(args: &Args, story: Option<&link::Story>, page: &Page, part: &mut &'static str) -> Outcome {
    if let Some(story) = story {
        return story.tell(args, page, part);
    }
    page.title("rnic demo: two RoCEv2 NICs in software, in two processes on this host");
    let mut client = Client::start(args, page)?;
    *part = "'Every operation'";
    let mut main = operations::introduce(&mut client)?;
    operations::all(&mut client, &mut main)?;
    services::all(&mut client)?;
    connections::made(&mut client)?;
    *part = "'Refused and not ready'";
    trouble::refused(&mut client)?;
    connections::refused(&mut client)?;
    trouble::not_ready(&mut client, &mut main)?;
    *part = "'Lost packets'";
    trouble::lost_packet(&mut client)?;
    trouble::lost_acknowledgement(&mut client)?;
    *part = "'The capture'";
    capture::finish(&mut client, &args.capture)?;
    *part = "'Performance'";
    speed::measure(&mut client, args.quick)?;
    page.title("\nAll checks passed.");
    page.line(&format!("Next: `{} doctor` examines this host,", program()));
    page.line(&format!("      `{} show` lists its devices.", program()));
    page.flush();
    Ok(())
}
