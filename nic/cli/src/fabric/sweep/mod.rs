//! `rnic fabric sweep` and `rnic fabric merge`.

mod point;
mod table;

use super::Output;
use super::error::{Problem, Status};
use super::jobs::{self, Job, Manner, Outcome};
use super::seeds::Seeds;
use super::set::{Assignment, Changes, Vary, grid};
use super::source::Source;
use point::{Point, Row, fingerprint};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use table::Points;

/// The most points of a sweep.
const MOST: usize = 100_000;

/// The table that a sweep leaves in its folder.
const TABLE: &str = "table.csv";

/// Run a scenario with all combinations of parameters and seeds, over the cores of this machine.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each combination leaves a file in DIR when it is done. After an interruption the same command goes \
                        on with those that are missing. At the end there is a table of all, as text and in DIR/table.csv.\n\n\
                        Several machines share a sweep with --part, such as --part 3/20 for the third of twenty; \
                        `rnic fabric merge` then makes the table.\n\n\
                        Example:\n  rnic fabric sweep incast --vary nic.cc=off,dcqcn --seeds 1..5 -o results\n\n\
                        Exit code: 0 if everything ran, whether or not its expectations are met, 2 if something \
                        cannot run, 130 after Ctrl-C."
)]
pub(super) struct Args {
    /// The name of a scenario of `rnic fabric list`, or a file.
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    /// Run with each of these values, such as switch.balance.mode=ecmp,spray. Repeated: with all combinations.
    #[arg(long, value_name = "KEY=A,B,...", value_parser = Vary::parse)]
    vary: Vec<Vary>,
    /// Run each combination with each of these seeds: 1..5 are five. [default: those of the scenario]
    #[arg(long, value_name = "SEEDS", value_parser = Seeds::parse)]
    seeds: Option<Seeds>,
    #[command(flatten)]
    changes: Changes,
    /// The folder of the results.
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Run so many at once. [default: one per core]
    #[arg(long, short, value_name = "N", value_parser = crate::number::whole::<usize>)]
    jobs: Option<usize>,
    /// Run only the I-th of N equal parts, from 1/N to N/N.
    #[arg(long, value_name = "I/N", value_parser = Part::parse)]
    part: Option<Part>,
    /// Show these metrics in the text. [default: completion times, goodput, drops, pauses and marks]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    metric: Vec<String>,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

/// Make one table of the results of sweeps.
#[derive(Debug, clap::Args)]
pub(super) struct MergeArgs {
    /// Folders of `rnic fabric sweep`.
    #[arg(value_name = "DIR", required = true)]
    folders: Vec<PathBuf>,
    /// Write all metrics of all points to this file, as CSV.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show these metrics. [default: completion times, goodput, drops, pauses and marks]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    metric: Vec<String>,
}

/// One of several equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// From 1 on.
    number: usize,
    of: usize,
}

impl Part {
    fn parse(text: &str) -> Result<Self, String> {
        const ADVICE: &str = "write I/N with I from 1 to N, such as 3/20";
        let (number, of) = text.split_once('/').ok_or(ADVICE)?;
        let part = Self { number: crate::number::whole(number)?, of: crate::number::whole(of)? };
        if (1..=part.of).contains(&part.number) { Ok(part) } else { Err(ADVICE.to_owned()) }
    }

    /// Whether a point belongs to it. Neighbours go to different parts, because they often take equally long.
    const fn has(self, number: usize) -> bool {
        number % self.of == self.number - 1
    }
}

/// Runs what is missing, and makes the table.
pub(super) fn run(
    args: &Args,
    stop: &(dyn Fn() -> bool + Sync),
    out: &mut Output<'_>,
) -> Result<Status, Problem> {
    let source = Source::find(&args.scenario)?;
    let common = args.changes.assignments();
    std::fs::create_dir_all(&args.output).map_err(Problem::write(&args.output))?;

    let (mut rows, mut missing, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
    for point in plan(args, &source)? {
        let job = job(&source, &common, &point)?;
        let print = print_of(&source, &common, &job);
        match done(&args.output, &point, &print)? {
            Some(row) => rows.push(row),
            None => {
                jobs.push(job);
                missing.push((point, print));
            }
        }
    }
    let found = rows.len();
    if found > 0 {
        out.print(&format!("{found} of {} points are done already\n", found + missing.len()))?;
    }
    let manner = Manner { threads: args.jobs, shows: !args.quiet, stop };
    let results = jobs::run(&jobs, &manner, &|number, outcome| {
        let (point, print) = &missing[number];
        // The others go on: they do not depend on this one.
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(problem) => return Ok(Err(problem)),
        };
        if outcome.report.is_whole {
            point::write(&args.output, point, print, &outcome)?;
        }
        Ok(Ok(kept(point, print, &outcome)))
    })?;
    let (mut failed, mut left) = (Vec::new(), 0);
    for result in results {
        match result {
            Some(Ok(Some(row))) => rows.push(row),
            Some(Err(problem)) => failed.push(problem),
            Some(Ok(None)) | None => left += 1,
        }
    }
    report(args, rows, left, out)?;
    match failed.first() {
        Some(first) => Err(Problem::Points { count: failed.len(), first: first.to_string() }),
        None if left > 0 => Ok(Status::Interrupted),
        None => Ok(Status::Passed),
    }
}

/// What tells the point of another sweep: the version, the text of the scenario, what is changed in all points, and the files
/// that it names. One that cannot be read is an error when the point runs.
fn print_of(source: &Source, common: &[Assignment], job: &Job) -> String {
    let words = common.iter().map(ToString::to_string);
    let files =
        job.scenario.files().into_iter().map(|file| std::fs::read(job.base.join(file)).unwrap_or_default());
    let texts = [env!("CARGO_PKG_VERSION").to_owned(), source.text.clone()].into_iter().chain(words);
    let all = texts.map(String::into_bytes).chain(files);
    format!("{:016x}", fingerprint(all))
}

/// The row of a point that ran to its end.
fn kept(point: &Point, print: &str, outcome: &Outcome) -> Option<Row> {
    outcome.report.is_whole.then(|| Row::of(point, print, outcome))
}

/// All points of this part.
fn plan(args: &Args, source: &Source) -> Result<Vec<Point>, Problem> {
    let seeds = match &args.seeds {
        Some(seeds) => seeds.0.clone(),
        None => source.with(&args.changes)?.seeds,
    };
    let count = args.vary.iter().fold(seeds.len(), |count, vary| count.saturating_mul(vary.values.len()));
    if count == 0 || count > MOST {
        let why = format!("{count} points: write values and seeds for 1 to {MOST}");
        return Err(Problem::Option { option: "sweep", why });
    }
    let all = grid(&args.vary).into_iter().flat_map(|assignments| {
        let with = move |seed: &u64| (assignments.clone(), *seed);
        seeds.iter().map(with)
    });
    let points = all.enumerate().map(|(number, (assignments, seed))| Point { number, assignments, seed });
    Ok(points.filter(|point| args.part.is_none_or(|part| part.has(point.number))).collect())
}

/// What is known of a point from an earlier run.
fn done(folder: &Path, point: &Point, print: &str) -> Result<Option<Row>, Problem> {
    let path = folder.join(point.file());
    let row = Row::read(&path)?;
    if row.as_ref().is_some_and(|row| row.fingerprint != print) {
        let why = "it is of another scenario, other --set options, other files or another version; choose another folder"
            .to_owned();
        return Err(Problem::Scenario { place: path.display().to_string(), why });
    }
    // The grid may have grown since.
    Ok(row.map(|row| Row { number: point.number, ..row }))
}

/// The run of a point, without samples, which would be most of its file.
fn job(source: &Source, common: &[Assignment], point: &Point) -> Result<Job, Problem> {
    let mut scenario = source.with_all(&[common, &point.assignments].concat())?;
    scenario.sample.interval = None;
    Ok(Job { name: point.title(), scenario: Arc::new(scenario), base: source.base.clone(), seed: point.seed })
}

/// Prints the table, and writes it.
fn report(args: &Args, rows: Vec<Row>, left: usize, out: &mut Output<'_>) -> Result<(), Problem> {
    if left > 0 {
        out.print(&format!("Interrupted: {left} points are left; the same command goes on with them\n"))?;
    }
    let points = Points::new(rows);
    let metrics = points.metrics(&args.metric)?;
    out.print(&points.text(&metrics).to_string())?;
    let folder = args.output.display();
    if args.part.is_some_and(|part| part.of > 1) {
        // Others may write into the same folder.
        return out.print(&format!("When all parts are done: rnic fabric merge {folder}\n"));
    }
    let path = args.output.join(TABLE);
    std::fs::write(&path, points.csv()).map_err(Problem::write(&path))?;
    out.print(&format!("All metrics of all points: {}\n", path.display()))
}

/// Makes one table of several folders.
pub(super) fn merge(args: &MergeArgs, out: &mut Output<'_>) -> Result<Status, Problem> {
    let mut rows = Vec::new();
    for folder in &args.folders {
        let read = |why| Problem::Read { path: folder.clone(), why };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(read)? {
            paths.push(entry.map_err(read)?.path());
        }
        paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
        // The order of a folder is that of its file system.
        paths.sort();
        for path in paths {
            rows.extend(Row::read(&path)?);
        }
    }
    if rows.is_empty() {
        let why = "there are no results of `rnic fabric sweep` in these folders".to_owned();
        return Err(Problem::Option { option: "merge", why });
    }
    let points = Points::new(rows);
    let metrics = points.metrics(&args.metric)?;
    out.print(&points.text(&metrics).to_string())?;
    if let Some(path) = &args.output {
        std::fs::write(path, points.csv()).map_err(Problem::write(path))?;
        out.print(&format!("All metrics of all points: {}\n", path.display()))?;
    }
    Ok(Status::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_all_points_and_have_none_in_common() {
        let parts: Vec<Part> =
            (1..=3).map(|number| Part::parse(&format!("{number}/3")).expect("a part")).collect();
        for number in 0..100 {
            assert_eq!(parts.iter().filter(|part| part.has(number)).count(), 1, "{number}");
        }
        for wrong in ["", "1", "0/3", "4/3", "1/0", "0/0", "a/b", "-1/2"] {
            assert!(Part::parse(wrong).is_err(), "{wrong}");
        }
    }
}
