//! The speed of rnic between two processes, compared with what else this machine can do:
//! `cargo bench -p rnic-tests --bench transfer -- --help`.
//!
//! Every round measures each row in all columns, one right after the other: plain UDP (`raw`), the packets of a reliable
//! connection without a NIC around them (`bare`), TCP (`tcp`), and rnic (`verbs`). The speed of a shared machine varies,
//! so only the ratio of neighbouring measurements counts. The client runs on one processor and the server on another.

mod bare;
mod peer;
mod raw;
mod rows;
mod table;
mod tcp;
mod verbs;

use clap::Parser;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use peer::Peer;
use rows::{Bench, Kind, Measured, ROWS, Row};
use std::error::Error;
use std::fs::File;
use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;
use table::{BARE, COLUMNS, Document, Figure, RAW, RNIC, Spread, Summary, TCP};
use tcp::Tcp;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The load (proc(5), loadavg) from which other programs disturb a run.
const BUSY: f64 = 1.0;

/// Compare the speed of rnic with plain UDP, a bare reliable connection and TCP.
#[derive(Debug, Parser)]
#[command(name = "transfer")]
struct Args {
    /// Number of rounds. Eleven make the median tolerate a few disturbed ones
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only rows whose name contains this, in any case
    #[arg(long, default_value = "", value_name = "SUBSTRING")]
    rows: String,
    /// Do not measure TCP
    #[arg(long)]
    no_tcp: bool,
    /// Duration of one measurement in milliseconds
    #[arg(long, default_value_t = 150, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=10_000))]
    slice: u64,
    /// Write the figures of all rounds to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let outcome = if std::env::args().nth(1).as_deref() == Some(peer::PEER) {
        peer::serve()
    } else {
        compare(&Args::parse())
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Pins this thread and those that it starts to the `nth` of its processors, if it has two. Otherwise the scheduler places
/// both sides on the same one in some of the slices, which makes those measurements meaningless.
fn pin(nth: usize) {
    static ALL: OnceLock<Vec<usize>> = OnceLock::new();
    let this = Pid::from_raw(0);
    // As the program was started.
    let all = ALL.get_or_init(|| {
        let allowed = sched_getaffinity(this).unwrap_or_default();
        (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect()
    });
    if all.len() < 2 {
        return;
    }
    let mut one = CpuSet::new();
    if one.set(all[nth]).is_ok() && sched_setaffinity(this, &one).is_err() {
        eprintln!("transfer: cannot be pinned to a processor; figures will vary more");
    }
}

/// The content of a message.
fn pattern(size: usize) -> Vec<u8> {
    // A prime, so that no packet size is a multiple of the period. No byte is 0, that of untouched memory.
    (0..size).map(|at| (at % 251 + 1) as u8).collect()
}

/// Checks a message that arrived.
fn check(found: &[u8], size: usize, by: &str) -> Outcome<()> {
    if found == pattern(size) { Ok(()) } else { Err(format!("{by} left wrong data for {size} bytes").into()) }
}

/// The results of a row, by column and round.
struct Results {
    row: Row,
    columns: [Vec<Measured>; COLUMNS.len()],
    /// The rounds of each TCP program.
    tcp: Vec<Vec<Measured>>,
}

impl Results {
    fn new(row: Row) -> Self {
        Self { row, columns: Default::default(), tcp: vec![Vec::new(); row.tcp.len()] }
    }

    /// Measures all columns once.
    fn play(&mut self, bench: &mut Bench) -> Outcome<()> {
        let work = self.row.work;
        let raw = bench.raw(&work)?;
        let bare = bench.bare(&work)?;
        let verbs = bench.verbs(&work)?;
        for (column, measured) in [(RAW, raw), (BARE, bare), (RNIC, verbs)] {
            self.columns[column].push(measured);
        }
        let Some(tcp) = &bench.tcp else { return Ok(()) };
        for (test, rounds) in self.row.tcp.iter().zip(&mut self.tcp) {
            match tcp.measure(*test, work.trips) {
                Ok(Some(measured)) => rounds.push(measured),
                Ok(None) => {}
                Err(error) => {
                    eprintln!("transfer: {error}");
                    rounds.push(vec![f64::NAN; 1 + usize::from(work.trips)]);
                }
            }
        }
        Ok(())
    }

    /// The place of the TCP program with the best median.
    fn best_tcp(&self) -> Option<usize> {
        let median = |rounds: &Vec<Measured>| {
            let first: Vec<f64> = rounds.iter().map(|measured| measured[0]).collect();
            Spread::of(&first).map(|spread| spread.median())
        };
        let known = self.tcp.iter().enumerate().filter_map(|(at, rounds)| Some((at, median(rounds)?)));
        let is_time = matches!(self.row.kind, Kind::Trip | Kind::HalfTrip);
        let best = known.max_by(|(_, a), (_, b)| if is_time { b.total_cmp(a) } else { a.total_cmp(b) });
        best.map(|(at, _)| at)
    }

    fn figures(mut self) -> Vec<Figure> {
        let mut tcp_peer = String::new();
        if let Some(best) = self.best_tcp() {
            tcp_peer = self.row.tcp[best].name();
            self.columns[TCP] = self.tcp.swap_remove(best);
        }
        let names = self.row.names();
        let figure = |(at, (name, unit)): (usize, (String, &'static str))| {
            let of_round = |measured: &Measured| self.row.figures(measured)[at];
            let columns = self.columns.each_ref().map(|rounds| rounds.iter().map(of_round).collect());
            Figure { name, unit, tcp_peer: tcp_peer.clone(), columns }
        };
        names.into_iter().enumerate().map(figure).collect()
    }
}

fn compare(args: &Args) -> Outcome<()> {
    let wanted = args.rows.to_lowercase();
    let rows: Vec<_> = ROWS.into_iter().filter(|row| row.name.to_lowercase().contains(&wanted)).collect();
    if rows.is_empty() {
        return Err(format!("--rows: no row contains {wanted:?}").into());
    }
    warn_if_busy();
    let slice = Duration::from_millis(args.slice);
    // Before this process is pinned, which the peer would inherit; before it starts threads, which should.
    let peer = Peer::start()?;
    let tcp = if args.no_tcp { None } else { Some(Tcp::start(slice)?) };
    pin(0);
    let mut bench = Bench { device: rnic::open()?, socket: raw::bind()?, peer, tcp, slice };
    // Page tables, caches, the processor's clock, the programs' rates.
    for row in &rows {
        Results::new(*row).play(&mut bench)?;
    }
    let mut results: Vec<_> = rows.into_iter().map(Results::new).collect();
    for round in 1..=args.rounds {
        if stderr().is_terminal() {
            eprint!("\rround {round} of {} ", args.rounds);
        }
        for result in &mut results {
            result.play(&mut bench)?;
        }
    }
    if stderr().is_terminal() {
        eprintln!();
    }
    let figures: Vec<_> = results.into_iter().flat_map(Results::figures).collect();
    table::print(&format!("{} rounds of {} ms", args.rounds, args.slice), &figures);
    notes(&bench);
    if let Some(path) = &args.json {
        let document = Document {
            rounds: args.rounds as usize,
            slice_ms: args.slice,
            column_names: COLUMNS,
            tcp_congestion_control: bench.tcp.as_ref().map_or("", |tcp| &tcp.congestion_control),
            figures: &figures,
            summary: figures.iter().map(Summary::of).collect(),
        };
        serde_json::to_writer_pretty(File::create(path)?, &document)?;
    }
    Ok(())
}

/// Says so if other programs occupy the processors: a row may then measure the scheduler.
fn warn_if_busy() {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split_whitespace().next().and_then(|load| load.parse::<f64>().ok());
    if let Some(load) = load.filter(|load| *load > BUSY) {
        eprintln!("transfer: the machine is busy (load {load}): see CONTRIBUTING.md, Speed");
    }
}

/// What a reader of the table should know.
fn notes(bench: &Bench) {
    if let Some(tcp) = &bench.tcp {
        println!(
            "TCP: congestion control {}, the best of the programs that a row has.",
            tcp.congestion_control
        );
        for program in &tcp.missing {
            println!("TCP: {program} is not installed (Debian: iperf3, ucx-utils); its rows lack it.");
        }
    }
    let is_loss = |name: &str| {
        matches!(name, "retransmitted_pkts" | "socket_rx_overrun") || name.starts_with("dropped_")
    };
    let counters = bench.device.counters();
    let lost: Vec<_> = counters.iter().filter(|(name, value)| is_loss(name) && *value > 0).collect();
    if !lost.is_empty() {
        println!("rnic lost packets, as seen from the client: {lost:?}");
    }
}
