//! `rnic fabric compare`.

use super::error::{Problem, Status};
use super::jobs::{self, Job, Manner, Outcome};
use super::set::{Changes, Vary, grid, plain};
use super::source::Source;
use super::table::{Table, number};
use super::{Output, seeds};
use rnic::cc;
use rnic_fabric::scenario::Scenario;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Run several scenarios, or one with several values of a key, and show their metrics side by side.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each metric is followed by its ratio to that of the first run. With several seeds, metrics are \
                        means over the seeds.\n\n\
                        Examples:\n  rnic fabric compare incast --vary nic.cc=off,dcqcn,timely\n  \
                        rnic fabric compare incast own.toml --metric fct.p99_us,drops.total\n\n\
                        Exit code: 0 if everything ran, 2 if something cannot run, 130 after Ctrl-C. Expectations are \
                        not checked: a scenario expects them of its own parameters."
)]
pub(super) struct Args {
    /// Names of scenarios of `rnic fabric list`, or files.
    #[arg(value_name = "NAME|FILE", required = true)]
    scenarios: Vec<String>,
    /// Run with each of these values, such as switch.balance.mode=ecmp,spray. Repeated: with all combinations.
    #[arg(long, value_name = "KEY=A,B,...", value_parser = Vary::parse)]
    vary: Vec<Vary>,
    #[command(flatten)]
    seeds: seeds::Choice,
    #[command(flatten)]
    changes: Changes,
    /// Show these metrics. [default: those of all flows and packets that differ or are not 0]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    metric: Vec<String>,
    /// Show the metrics of ports, switches and names of flows, too.
    #[arg(long, short, conflicts_with = "metric")]
    all: bool,
    /// Draw the samples of all runs with shared axes, as SVG or PNG.
    #[cfg(feature = "plot")]
    #[arg(long, value_name = "FILE")]
    plot: Option<std::path::PathBuf>,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

/// A scenario with its parameters, and its runs.
struct Column {
    name: String,
    outcomes: Vec<Outcome>,
}

impl Column {
    /// Its name, and its first run.
    #[cfg(feature = "plot")]
    fn first(&self) -> Option<(&str, &rnic_fabric::report::Report)> {
        Some((&self.name, &self.outcomes.first()?.report))
    }

    /// The mean of a metric over the runs that have it.
    fn get(&self, metric: &str) -> Option<f64> {
        let values: Vec<f64> =
            self.outcomes.iter().filter_map(|outcome| outcome.report.metrics.get(metric)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }
}

/// Runs everything, and prints the table.
pub(super) fn run(
    args: &Args,
    stop: &(dyn Fn() -> bool + Sync),
    out: &mut Output<'_>,
) -> Result<Status, Problem> {
    #[cfg(feature = "plot")]
    super::picture::check(args.plot.as_deref())?;
    let (jobs, names) = plan(args)?;
    let manner = Manner { threads: None, shows: !args.quiet, stop };
    let mut results = jobs::run(&jobs, &manner, &|_, outcome| outcome)?.into_iter();
    let (mut columns, mut is_whole) = (Vec::new(), true);
    for (name, count) in names {
        let outcomes: Vec<Outcome> = results.by_ref().take(count).flatten().collect();
        is_whole &= outcomes.len() == count && outcomes.iter().all(|outcome| outcome.report.is_whole);
        columns.push(Column { name, outcomes });
    }
    let metrics = metrics(args, &columns)?;
    let text = table(&columns, &metrics).to_string();
    out.print(if is_whole { "" } else { "Interrupted: the numbers are those of what ran.\n" })?;
    out.print(&text)?;
    #[cfg(feature = "plot")]
    if let Some(path) = &args.plot {
        let runs: Vec<_> = columns.iter().filter_map(Column::first).collect();
        out.print(&super::picture::draw(&args.scenarios.join(", "), &runs, path)?)?;
    }
    Ok(if is_whole { Status::Passed } else { Status::Interrupted })
}

/// The name of each column, and the number of its runs.
type Names = Vec<(String, usize)>;

/// All runs, and the names of the columns.
fn plan(args: &Args) -> Result<(Vec<Job>, Names), Problem> {
    let (mut jobs, mut columns) = (Vec::new(), Vec::new());
    for scenario in &args.scenarios {
        let source = Source::find(scenario)?;
        for point in grid(&args.vary) {
            let all: Vec<_> = args.changes.assignments().into_iter().chain(point.iter().cloned()).collect();
            let whole = source.with_all(&all)?;
            let seeds = args.seeds.of(&whole);
            // A key with one value tells no columns apart.
            let varied = point.iter().zip(&args.vary).filter(|(_, vary)| vary.values.len() > 1);
            let mut words: Vec<String> = varied.map(|(of, _)| plain(&of.value)).collect();
            if args.scenarios.len() > 1 || words.is_empty() {
                words.insert(0, source.name.clone());
            }
            // Each variant is a column of its own.
            let variants = match whole.variants.is_empty() {
                true => vec![(words.join(" "), whole)],
                false if args.scenarios.len() > 1 || !point.is_empty() => {
                    let named = |(name, of): (String, Scenario)| (format!("{} {name}", words.join(" ")), of);
                    whole.variants.into_iter().map(named).collect()
                }
                false => whole.variants,
            };
            for (name, scenario) in variants {
                let scenario = Arc::new(scenario);
                columns.push((name.clone(), seeds.len()));
                jobs.extend(seeds.iter().map(|seed| Job {
                    name: format!("{name}, seed {seed}"),
                    scenario: Arc::clone(&scenario),
                    base: source.base.clone(),
                    seed: *seed,
                }));
            }
        }
    }
    if columns.len() < 2 {
        let why = "there is one run only: name another scenario, or the values of a key with --vary KEY=A,B";
        return Err(Problem::Option { option: "compare", why: why.to_owned() });
    }
    Ok((jobs, columns))
}

/// The names of the metrics that are shown.
fn metrics(args: &Args, columns: &[Column]) -> Result<Vec<String>, Problem> {
    let of = |column: &Column| {
        let names = column.outcomes.iter().flat_map(|outcome| outcome.report.metrics.0.keys().cloned());
        names.collect::<BTreeSet<String>>()
    };
    let all: BTreeSet<String> = columns.iter().flat_map(of).collect();
    if let Some(unknown) = args.metric.iter().find(|name| !all.contains(*name)) {
        let names: Vec<&str> = all.iter().map(String::as_str).collect();
        let near = cc::nearest(unknown, names.iter().copied());
        let advice =
            near.map_or("--all shows all of them".to_owned(), |near| format!("did you mean `{near}`?"));
        return Err(Problem::Option { option: "--metric", why: format!("no run has `{unknown}`: {advice}") });
    }
    if !args.metric.is_empty() {
        return Ok(args.metric.clone());
    }
    let is_shown = |name: &String| {
        let values: Vec<f64> = columns.iter().filter_map(|column| column.get(name)).collect();
        let is_common = columns.iter().filter(|column| !column.outcomes.is_empty()).count() == values.len();
        args.all || is_common && is_general(name) && values.iter().any(|value| *value != 0.0)
    };
    Ok(all.into_iter().filter(is_shown).collect())
}

/// Whether a metric is about all flows and packets, and not about some port or some flow.
fn is_general(name: &str) -> bool {
    const KINDS: [&str; 7] = ["flows", "fct", "slowdown", "goodput", "fairness", "drops", "pauses"];
    name.split_once('.').is_none_or(|(kind, _)| KINDS.contains(&kind))
}

/// Values and their ratios to those of the first run: one row per metric and one column per run, or, if there are more runs than
/// metrics, the other way round, so that the table stays narrow.
fn table(columns: &[Column], metrics: &[String]) -> Table {
    if columns.len() > metrics.len() { by_run(columns, metrics) } else { by_metric(columns, metrics) }
}

fn by_metric(columns: &[Column], metrics: &[String]) -> Table {
    let ratios = columns.iter().skip(1).flat_map(|column| [column.name.as_str(), "ratio"]);
    let first = columns.first().map(|column| column.name.as_str());
    let mut table = Table::new(1, ["metric"].into_iter().chain(first).chain(ratios));
    for metric in metrics {
        let values: Vec<Option<f64>> = columns.iter().map(|column| column.get(metric)).collect();
        let mut cells = vec![metric.clone()];
        for (index, value) in values.iter().enumerate() {
            cells.push(super::table::maybe(*value));
            if index > 0 {
                cells.push(ratio(values.first().copied().flatten(), *value));
            }
        }
        table.row(cells);
    }
    table
}

fn by_run(columns: &[Column], metrics: &[String]) -> Table {
    let headings = metrics.iter().flat_map(|metric| [metric.as_str(), "ratio"]);
    let mut table = Table::new(1, ["run"].into_iter().chain(headings));
    for (index, column) in columns.iter().enumerate() {
        let mut cells = vec![column.name.clone()];
        for metric in metrics {
            let value = column.get(metric);
            let first = columns.first().and_then(|column| column.get(metric));
            cells.push(super::table::maybe(value));
            cells.push(if index > 0 { ratio(first, value) } else { String::new() });
        }
        table.row(cells);
    }
    table
}

/// How many times the first value the other is.
fn ratio(first: Option<f64>, other: Option<f64>) -> String {
    match first.zip(other) {
        Some((first, other)) if first != 0.0 => format!("x{}", number(other / first)),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_first() {
        assert_eq!(ratio(Some(2.0), Some(3.0)), "x1.5");
        assert_eq!(ratio(Some(0.0), Some(3.0)), "-");
        assert_eq!(ratio(None, Some(3.0)), "-");
    }

    #[test]
    fn metrics_of_ports_are_not_general() {
        assert!(is_general("fct.p99_us") && is_general("marked") && is_general("drops.total"));
        assert!(
            !is_general("port.a>b.load") && !is_general("victim.fct_us") && !is_general("switch.s0.peak")
        );
    }
}
