//! Runs simulated worlds: a range of seeds, a single one again, or a shorter plan that fails in the same way.
//!
//! ```text
//! rnic-worlds --seeds 1..10000 --jobs 2      each seed once
//! rnic-worlds --minutes 30                   fresh seeds for 30 minutes
//! rnic-worlds --seed 17 --trace              one, line by line
//! rnic-worlds --seed 17 --pcap out/world     one, with a pcapng file for each device
//! rnic-worlds --seed 17 --shrink short.json  shortens one that fails
//! rnic-worlds --plan short.json --trace      a plan from a file
//! rnic-worlds --seeds 40001..43001 --record tests/sim/worlds/coverage.txt
//!                                            how many worlds reach each situation: what the tests expect
//! ```

use clap::Parser;
use rnic_tests::worlds::shrink::shrink;
use rnic_tests::worlds::{Coverage, Options, Outcome, Plan, Reach, run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Parser)]
struct Args {
    /// Range of seeds, excluding the last: 1..10000.
    #[arg(long, value_parser = seeds)]
    seeds: Option<(u64, u64)>,
    /// A single seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Run fresh seeds for this many minutes.
    #[arg(long)]
    minutes: Option<f64>,
    /// Run a plan from a file.
    #[arg(long)]
    plan: Option<PathBuf>,
    /// Number of worlds to run in parallel.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Shorten the failing plan, and write it to this file.
    #[arg(long)]
    shrink: Option<PathBuf>,
    /// Write pcapng files whose names start with this.
    #[arg(long)]
    pcap: Option<PathBuf>,
    /// Print every step.
    #[arg(long)]
    trace: bool,
    /// Continue after a violation.
    #[arg(long)]
    keep_going: bool,
    /// Run each world twice, and compare.
    #[arg(long)]
    twice: bool,
    /// Write in how many worlds each situation was reached to this file.
    #[arg(long)]
    record: Option<PathBuf>,
    /// Print the coverage.
    #[arg(long)]
    coverage: bool,
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once("..").ok_or("FIRST..LAST is wanted")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text} is no number"));
    Ok((number(first)?, number(last)?))
}

/// The totals of all worlds.
#[derive(Default)]
struct Total {
    worlds: u64,
    operations: u64,
    violations: Vec<(u64, String)>,
    coverage: Coverage,
    reach: Reach,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Panics are reported with their seed.
    if args.seed.is_none() && args.plan.is_none() {
        std::panic::set_hook(Box::new(|_| {}));
    }
    match (&args.plan, args.seed) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path).expect("the file of the plan");
            single(&args, &serde_json::from_str(&text).expect("a plan"))
        }
        (None, Some(seed)) => single(&args, &Plan::new(seed)),
        (None, None) => many(&args),
    }
}

fn single(args: &Args, plan: &Plan) -> ExitCode {
    let shrunk;
    let mut plan = plan;
    if let Some(path) = &args.shrink {
        shrunk = shrink(plan, |left| eprintln!("{left} actions"));
        let text = serde_json::to_string_pretty(&shrunk).expect("a plan is data");
        std::fs::write(path, text).expect("the file for the plan");
        plan = &shrunk;
    }
    let options = Options { trace: args.trace || args.shrink.is_some(), captures: args.pcap.clone() };
    let outcome = run(plan, &options);
    for line in &outcome.trace {
        println!("{line}");
    }
    if args.coverage {
        print!("{}", outcome.coverage);
    }
    println!(
        "seed {}: {} operations in {:?}, hash {:016x}",
        plan.seed, outcome.operations, outcome.elapsed, outcome.hash
    );
    if args.twice && run(plan, &Options::default()).hash != outcome.hash {
        println!("VIOLATION: a second run was different");
        return ExitCode::FAILURE;
    }
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("VIOLATION {violation}");
            ExitCode::FAILURE
        }
    }
}

fn play(seed: u64, twice: bool) -> Outcome {
    let plan = Plan::new(seed);
    let mut outcome = run(&plan, &Options::default());
    if twice && outcome.violation.is_none() && run(&plan, &Options::default()).hash != outcome.hash {
        outcome.violation = Some("a second run was different".to_owned());
    }
    outcome
}

/// A world takes some 50 ms. Of one that takes this long the seed is told, because it may not end.
const LONG: Duration = Duration::from_secs(20);

/// The worlds that are being played, and since when.
#[derive(Default)]
struct Playing(Mutex<BTreeMap<u64, Instant>>);

impl Playing {
    fn play(&self, seed: u64, twice: bool) -> Outcome {
        self.0.lock().expect("nobody panics with it").insert(seed, Instant::now());
        let outcome = play(seed, twice);
        self.0.lock().expect("nobody panics with it").remove(&seed);
        outcome
    }

    /// Tells of worlds that take long, once of each, until `ends` has lost its sender.
    fn watch(&self, ends: &mpsc::Receiver<()>) {
        let mut told = BTreeSet::new();
        while ends.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
            for (seed, since) in &*self.0.lock().expect("nobody panics with it") {
                if since.elapsed() >= LONG && told.insert(*seed) {
                    eprintln!("seed {seed} has not ended after {LONG:?}");
                }
            }
        }
    }
}

fn many(args: &Args) -> ExitCode {
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64 * 1000);
    let (first, last) = match args.minutes {
        Some(_) => (fresh, u64::MAX),
        None => args.seeds.unwrap_or((1, 1001)),
    };
    let deadline = args.minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let begin = Instant::now();
    let next = AtomicU64::new(first);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Total::default());
    let playing = Playing::default();
    let (end, ends) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watched = &playing;
        scope.spawn(move || watched.watch(&ends));
        for _ in 0..args.jobs.max(1) {
            let end = end.clone();
            let (next, stop, total, playing) = (&next, &stop, &total, &playing);
            scope.spawn(move || {
                // The last thread that drops it ends the watch.
                let _end = end;
                while !stop.load(Ordering::Relaxed) && deadline.is_none_or(|end| Instant::now() < end) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last {
                        break;
                    }
                    let outcome = playing.play(seed, args.twice);
                    let mut total = total.lock().expect("nobody panics with it");
                    total.worlds += 1;
                    total.operations += outcome.operations;
                    total.coverage.merge(&outcome.coverage);
                    total.reach.add(&outcome.coverage);
                    if let Some(violation) = outcome.violation {
                        println!("seed {seed}: VIOLATION {violation}");
                        total.violations.push((seed, violation));
                        if !args.keep_going {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        drop(end);
    });
    let total = total.into_inner().expect("nobody panics with it");
    let seconds = begin.elapsed().as_secs_f64();
    if args.coverage {
        print!("{}", total.coverage);
    }
    if let Some(path) = &args.record {
        std::fs::write(path, total.reach.to_string()).expect("the file for the table");
    }
    println!(
        "seeds from {first}: {} worlds, {} operations ({} each), {:.1} worlds a second, {} violations",
        total.worlds,
        total.operations,
        total.operations / total.worlds.max(1),
        total.worlds as f64 / seconds,
        total.violations.len()
    );
    if total.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
