//! `rnic fabric run`.

use super::error::{Problem, Status};
use super::jobs::{self, Job, Manner, Outcome};
use super::set::Changes;
use super::source::Source;
use super::{Output, csv, document, seeds, text};
use rnic_fabric::scenario::{PortCapture, Scenario};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Run a scenario, and hold its results against what it expects.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The hosts are rnic devices with their real engine; time is virtual. The same scenario with the \
                        same seed gives the same numbers on every machine.\n\n\
                        Exit code: 0 if all expectations are met, 1 if one is not, 2 if the scenario cannot run, 130 \
                        after Ctrl-C. An interrupted run still reports its results up to then."
)]
pub(super) struct Args {
    /// The name of a scenario of `rnic fabric list`, or a file.
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    #[command(flatten)]
    seeds: seeds::Choice,
    #[command(flatten)]
    changes: Changes,
    /// Write everything as JSON to this file; `-` is standard output, without the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write flows.csv, ports.csv, series.csv and metrics.csv into this folder.
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Capture a port into a pcapng file, with virtual times: what it sends and what it receives. PORT is a name such as
    /// leaf1>spine2, as in ports.csv. Of a scenario with variants, each has a file of its own. May be repeated.
    #[arg(long, value_name = "PORT=FILE", value_parser = port_capture)]
    capture: Vec<PortCapture>,
    /// Draw the samples, and how flow completion times are distributed, as SVG or PNG. Of several seeds, the first.
    #[cfg(feature = "plot")]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Show no progress, and print nothing but expectations that are not met.
    #[arg(long, short)]
    quiet: bool,
}

/// Reads `PORT=FILE`.
fn port_capture(text: &str) -> Result<PortCapture, String> {
    match text.split_once('=') {
        Some((port, path)) if !port.is_empty() && !path.is_empty() => {
            Ok(PortCapture { port: port.to_owned(), path: path.into() })
        }
        _ => Err("write PORT=FILE, such as \"leaf1>spine2=up.pcapng\"".to_owned()),
    }
}

/// Runs the scenario, and reports.
pub(super) fn run(
    args: &Args,
    stop: &(dyn Fn() -> bool + Sync),
    out: &mut Output<'_>,
) -> Result<Status, Problem> {
    #[cfg(feature = "plot")]
    super::picture::check(args.plot.as_deref())?;
    let source = Source::find(&args.scenario)?;
    let mut scenario = source.with(&args.changes)?;
    let seeds = args.seeds.of(&scenario);
    if !args.capture.is_empty() && seeds.len() > 1 {
        let why = "captures are of one run: choose it with --seed".to_owned();
        return Err(Problem::Option { option: "--capture", why });
    }
    scenario.capture(&args.capture);
    let scenario = Arc::new(scenario);
    let job = |seed: u64| {
        let name = format!("{}, seed {seed}", scenario.name);
        Job { name, scenario: Arc::clone(&scenario), base: source.base.clone(), seed }
    };
    let jobs: Vec<Job> = seeds.iter().map(|seed| job(*seed)).collect();
    let manner = Manner { threads: None, shows: !args.quiet, stop };
    let results = jobs::run(&jobs, &manner, &|_, outcome| outcome)?;
    let begun = results.len();
    let outcomes: Vec<Outcome> = results.into_iter().flatten().collect();
    let is_cut = outcomes.len() < begun || outcomes.iter().any(|outcome| !outcome.report.is_whole);
    let first = if is_cut { Status::Interrupted } else { Status::Passed };
    let status = outcomes.iter().map(Outcome::status).fold(first, Status::and);

    let is_document = write(args, &scenario, &outcomes, is_cut, out)?;
    if !is_document {
        out.print(&report(&scenario, &outcomes, begun, args.quiet))?;
    }
    #[cfg(feature = "plot")]
    if let (Some(path), Some(first)) = (&args.plot, outcomes.first()) {
        let variants = first.variants.iter().map(|(name, report)| (name.as_str(), report));
        let mut runs: Vec<_> = variants.collect();
        if runs.is_empty() {
            runs.push(("", &first.report));
        }
        let drawn = super::picture::draw(&scenario.name, &runs, path)?;
        out.print(if is_document || args.quiet { "" } else { &drawn })?;
    }
    Ok(status)
}

/// Writes the files that were asked for. Returns whether JSON went to standard output.
fn write(
    args: &Args,
    scenario: &Scenario,
    outcomes: &[Outcome],
    is_cut: bool,
    out: &mut Output<'_>,
) -> Result<bool, Problem> {
    if let Some(folder) = &args.csv {
        csv::write(folder, outcomes)?;
    }
    let Some(path) = &args.json else { return Ok(false) };
    let text = document::write(scenario, &args.changes.assignments(), outcomes, is_cut)?;
    if path == Path::new("-") {
        out.print(&text)?;
        return Ok(true);
    }
    std::fs::write(path, text).map_err(Problem::write(path))?;
    Ok(false)
}

/// All that is printed. `planned`: how many seeds there were to be.
fn report(scenario: &Scenario, outcomes: &[Outcome], planned: usize, is_quiet: bool) -> String {
    let mut parts = Vec::new();
    match outcomes {
        [] => parts.push("Interrupted before anything ran.\n".to_owned()),
        [outcome] if planned == 1 => {
            if !is_quiet {
                parts.push(text::head(scenario, &outcome.report));
                for (name, report) in &outcome.variants {
                    parts.push(format!("{name}\n{}", text::results(report)));
                }
                if outcome.variants.is_empty() {
                    parts.push(text::results(&outcome.report));
                }
            }
            parts.push(text::verdicts(&outcome.verdicts, is_quiet));
        }
        [first, ..] => {
            if !is_quiet {
                let results = format!("Results by seed\n{}", text::seeds(outcomes));
                parts.extend([text::head(scenario, &first.report), results]);
            }
            if outcomes.len() < planned {
                parts.push(format!(
                    "Interrupted: {} of {planned} seeds did not run.\n",
                    planned - outcomes.len()
                ));
            }
            parts.push(text::ranges(outcomes, is_quiet));
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}
