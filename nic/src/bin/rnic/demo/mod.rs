//! `rnic demo`: two NICs in two processes, and everything that they can do.
//!
//! The program starts itself once more as the server. The two talk JSON lines over the server's standard input and
//! output ([`messages`]): addresses, who posts what, whether bytes arrived. Everything else goes over UDP.

mod capture;
mod client;
mod congestion;
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
mod trouble;

use client::Client;
use page::Page;
use std::path::PathBuf;
use std::process::ExitCode;

/// Two NICs in two processes on this host: every operation once, errors, a lost packet, and how fast it is. With --link or
/// --cc, what links do against loss instead.
///
/// Ends with 0 if every byte arrived and everything else was as it should be, and with 1 and a line that says what
/// was not.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measure for a moment only.
    #[arg(long)]
    quick: bool,
    /// The file to capture the packets into.
    #[arg(long, value_name = "FILE", default_value = "rnic-demo.pcapng")]
    capture: PathBuf,
    /// What the data and the fault rules' randomness follow from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Show what a link does against loss: `ib-credits`, or `ethernet` with congestion control. More words as for `rnic
    /// perf`, such as `ethernet:rate=2Gb/s`.
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// Show this congestion control at work: `dcqcn`, with the preset `laptop` unless another is named.
    #[arg(long, value_name = "CC")]
    cc: Option<String>,
    /// What the names of the traces begin with, which congestion control leaves for `rnic plot`.
    #[arg(long, value_name = "STEM", default_value = "rnic-demo")]
    traces: PathBuf,
    /// Be the server of a demo.
    #[arg(long, hide = true)]
    server: bool,
    /// The server's seed: one that differs makes every comparison fail, which is how tests see that it can.
    #[arg(long, hide = true)]
    server_seed: Option<u64>,
    /// A fault rule that is in force all the time, for tests.
    #[arg(long, hide = true)]
    fault: Vec<String>,
}

/// What went wrong, in one line.
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

/// Fails with this text unless `holds`.
fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Failure(what())) }
}

/// This program, as it was called.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "rnic".to_owned())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    if args.server {
        return server::run(args.seed);
    }
    let page = Page::to_stdout();
    let mut where_it_was = "the start";
    match tell(args, &page, &mut where_it_was) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(what)) => {
            page.flush();
            eprintln!("rnic demo: FAILED in {where_it_was}: {what}");
            ExitCode::FAILURE
        }
    }
}

/// The whole demo. `part` follows where it is.
fn tell(args: &Args, page: &Page, part: &mut &'static str) -> Outcome {
    if let Some(story) = link::Story::of(args)? {
        return story.tell(args, page, part);
    }
    page.title("rnic demo: two RoCEv2 NICs in two processes, in software, on this host");
    let mut client = Client::start(args, page)?;
    *part = "'Every operation'";
    let mut main = operations::introduce(&mut client)?;
    operations::all(&mut client, &mut main)?;
    services::all(&mut client)?;
    *part = "'Refused and not ready'";
    trouble::refused(&mut client)?;
    trouble::not_ready(&mut client, &mut main)?;
    *part = "'Lost packets'";
    trouble::lost_packet(&mut client)?;
    trouble::lost_acknowledgement(&mut client)?;
    *part = "'The capture'";
    capture::finish(&mut client, &args.capture)?;
    *part = "'How fast'";
    speed::measure(&mut client, args.quick)?;
    page.title("\nEverything was as it should be.");
    page.line(&format!(
        "Next: `{0} doctor` looks at this host, `{0} show` at what devices it has.",
        program()
    ));
    page.flush();
    Ok(())
}
