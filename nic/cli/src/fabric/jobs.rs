//! Runs of scenarios, over the cores of this machine.

use super::error::{Problem, Status};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use rnic_fabric::report::Report;
use rnic_fabric::scenario::{Scenario, Verdict};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// What it is called in errors.
    pub(super) name: String,
    /// The scenario.
    pub(super) scenario: Arc<Scenario>,
    /// The folder from which it names files.
    pub(super) base: PathBuf,
    /// The seed.
    pub(super) seed: u64,
}

/// What came out.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// The numbers; those of the first variant, if there are several, with the metrics of all.
    pub(super) report: Report,
    /// The reports of the variants, each with its name, if there are several.
    pub(super) variants: Vec<(String, Report)>,
    /// The expectations, held against them.
    pub(super) verdicts: Vec<Verdict>,
}

impl Outcome {
    /// How it ended.
    pub(super) fn status(&self) -> Status {
        Status::of(&self.report, self.verdicts.iter().all(|verdict| verdict.passed))
    }
}

/// How jobs run.
pub(super) struct Manner<'a> {
    /// How many run at once. `None`: one per core.
    pub(super) threads: Option<usize>,
    /// Whether progress is shown, if there is a terminal.
    pub(super) shows: bool,
    /// Whether to stop now.
    pub(super) stop: &'a (dyn Fn() -> bool + Sync),
}

/// Parts of a job that the bar tells apart.
const PARTS: f64 = 1000.0;

/// Runs all jobs, and hands each result to `take`. Returns what it makes of them, in the order of the jobs; `None` for those
/// that had not begun when the user interrupted. An error of `take` ends the others, too.
pub(super) fn run<T: Send>(
    jobs: &[Job],
    manner: &Manner<'_>,
    take: &(dyn Fn(usize, Result<Outcome, Problem>) -> Result<T, Problem> + Sync),
) -> Result<Vec<Option<T>>, Problem> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = manner.threads.unwrap_or(cores).clamp(1, jobs.len().max(1));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let (progress, has_failed) = (Progress::new(jobs, manner.shows), AtomicBool::new(false));
    let stops = || (manner.stop)() || has_failed.load(Ordering::Relaxed);
    let one = |(number, job): (usize, &Job)| {
        if stops() {
            return Ok(None);
        }
        let mut goes_on = |share: f64| {
            progress.show(number, share);
            !stops()
        };
        let outcome = job.run(&mut goes_on);
        progress.show(number, 1.0);
        let taken = take(number, outcome).map(Some);
        has_failed.fetch_or(taken.is_err(), Ordering::Relaxed);
        taken
    };
    // Runs are long: each is a piece of its own.
    let results: Vec<_> = pool.install(|| jobs.par_iter().with_max_len(1).enumerate().map(one).collect());
    drop(progress);
    results.into_iter().collect()
}

impl Job {
    fn run(&self, goes_on: &mut dyn FnMut(f64) -> bool) -> Result<Outcome, Problem> {
        let all = self.scenario.run_all(&self.base, self.seed, goes_on);
        let all = all.map_err(|error| Problem::scenario(&*self.name, &error))?;
        let (is_whole, mut reports) = (all.is_whole(), all.reports);
        let Some((name, first)) = reports.first() else { return Err(Problem::Nothing(self.name.clone())) };
        let report = Report { metrics: all.metrics, is_whole, ..first.clone() };
        if name.is_empty() {
            reports.clear();
        }
        Ok(Outcome { report, variants: reports, verdicts: all.verdicts })
    }
}

/// A bar on standard error, which shows itself only on a terminal.
struct Progress {
    bar: ProgressBar,
    /// By job: how much of its time has passed.
    done: Vec<AtomicU64>,
}

impl Progress {
    fn new(jobs: &[Job], is_shown: bool) -> Self {
        let length = jobs.len() as u64 * PARTS as u64;
        let bar = if is_shown { ProgressBar::new(length) } else { ProgressBar::hidden() };
        // If the style cannot be parsed, the default style is used.
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {percent} %, {elapsed}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(match jobs {
            [job] => job.name.clone(),
            _ => format!("{} runs", jobs.len()),
        });
        Self { bar, done: jobs.iter().map(|_| AtomicU64::new(0)).collect() }
    }

    /// Shows that a share of a job is done. The rest of the time may be left out, if all flows end early.
    fn show(&self, job: usize, share: f64) {
        let parts = (share.clamp(0.0, 1.0) * PARTS) as u64;
        if let Some(done) = self.done.get(job) {
            let before = done.swap(parts, Ordering::Relaxed);
            self.bar.inc(parts.saturating_sub(before));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
