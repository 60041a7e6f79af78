//! Results as text.

use super::error::Status;
use super::jobs::Outcome;
use super::table::{Table, digits, maybe, number, wrapped};
use rnic_fabric::report::{FlowReport, PortReport, Report};
use rnic_fabric::run::FlowOutcome;
use rnic_fabric::scenario::{Bound, Scenario, Verdict};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The width of text.
const WIDTH: usize = 100;

/// How many ports are shown.
const PORTS: usize = 8;

/// The sizes of flows that are told apart: up to so many bytes.
const BINS: [(u64, &str); 4] = [
    (10_000, "up to 10 KB"),
    (100_000, "up to 100 KB"),
    (1_000_000, "up to 1 MB"),
    (10_000_000, "up to 10 MB"),
];

/// What the scenario shows, and what was given.
pub(super) fn head(scenario: &Scenario, report: &Report) -> String {
    let mut text = format!("{}\n\n{}\n\n", scenario.name, wrapped(&scenario.about, WIDTH, "  "));
    text += "Inputs (given, not measured)\n";
    let mut table = Table::plain(2);
    for (what, value) in &report.inputs {
        table.row([what, value]);
    }
    text + &table.to_string()
}

/// The numbers of one run.
pub(super) fn results(report: &Report) -> String {
    let time = number(report.time_us);
    let mut text = match report.is_whole {
        true => format!("Results with seed {}, after {time} us of virtual time\n", report.seed),
        false => format!("Interrupted: results with seed {} until {time} us of virtual time\n", report.seed),
    };
    let sizes = sizes(&report.flows);
    if !sizes.is_empty() {
        let _ = writeln!(text, "{sizes}");
    }
    text += &summary(report).to_string();
    let ports = busiest(&report.ports);
    if !ports.is_empty() {
        let _ = write!(text, "\nThe busiest ports\n{ports}");
    }
    text
}

/// A quantile of sorted values: the smallest that is not exceeded by this share of all.
pub(super) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The flows by size: completion times and slowdowns.
fn sizes(flows: &[FlowReport]) -> Table {
    let mut bins: BTreeMap<usize, Vec<&FlowReport>> = BTreeMap::new();
    for flow in flows {
        let bin =
            flow.bytes.map_or(BINS.len() + 1, |bytes| BINS.iter().take_while(|bin| bytes > bin.0).count());
        bins.entry(bin).or_default().push(flow);
    }
    let headings =
        ["flows", "number", "done", "FCT mean us", "p50", "p99", "max", "slowdown mean", "p99", "Gb/s each"];
    let mut table = Table::new(1, headings);
    for (bin, flows) in bins {
        let name = match BINS.get(bin) {
            Some((_, name)) => name,
            None if bin == BINS.len() => "larger",
            None => "without end",
        };
        let sorted = |of: &dyn Fn(&FlowReport) -> Option<f64>| {
            let mut values: Vec<f64> = flows.iter().filter_map(|flow| of(flow)).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (times, slowdowns) = (sorted(&|flow| flow.fct_us), sorted(&|flow| flow.slowdown));
        let done = flows.iter().filter(|flow| flow.outcome == FlowOutcome::Finished).count();
        table.row([
            name.to_owned(),
            flows.len().to_string(),
            done.to_string(),
            maybe(mean(&times)),
            maybe(quantile(&times, 0.5)),
            maybe(quantile(&times, 0.99)),
            maybe(times.last().copied()),
            maybe(mean(&slowdowns)),
            maybe(quantile(&slowdowns, 0.99)),
            maybe(mean(&sorted(&|flow| Some(flow.goodput_gbps)))),
        ]);
    }
    table
}

/// What happened to all flows and packets.
fn summary(report: &Report) -> Table {
    let metric = |name: &str| report.metrics.get(name).unwrap_or(0.0);
    let mut table = Table::plain(2);
    if !report.flows.is_empty() {
        let [total, least, most] = ["total", "min", "max"].map(|of| metric(&format!("goodput.{of}_gbps")));
        let fairness = maybe(report.metrics.get("fairness.jain"));
        let text = format!(
            "{} Gb/s in total, {} to {} for each flow; fairness (Jain) {fairness}",
            number(total),
            number(least),
            number(most),
        );
        table.row(["goodput", &text]);
    }
    if metric("flows.failed") > 0.0 {
        table.row(["failed".to_owned(), format!("{} flows: {}", metric("flows.failed"), failures(report))]);
    }
    table.row(["drops", &drops(report)]);
    let pauses = match metric("pauses.sent") {
        0.0 => "none".to_owned(),
        sent => format!(
            "{} sent; {} ports were paused, the hosts among them for {} us altogether",
            number(sent),
            number(metric("pauses.ports")),
            number(metric("pauses.hosts_us")),
        ),
    };
    table.row(["pauses", &pauses]);
    let count = |what: f64, one: &str, many: &str| {
        format!("{} {}", number(what), if what == 1.0 { one } else { many })
    };
    table.row(["marks", &count(metric("marked"), "packet", "packets")]);
    let repeated = format!(
        "{}, {}",
        count(metric("retransmitted"), "packet", "packets"),
        count(metric("timeouts"), "timeout", "timeouts")
    );
    table.row(["sent again", &repeated]);
    if metric("storms") > 0.0 {
        table.row(["storms", &count(metric("storms"), "found by a watchdog", "found by watchdogs")]);
    }
    if metric("stuck") > 0.0 {
        table.row([
            "deadlock".to_owned(),
            format!("{} ports wait for one another in a circle", metric("stuck")),
        ]);
    }
    table
}

/// How flows failed, and how many.
fn failures(report: &Report) -> String {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for status in report.flows.iter().filter_map(|flow| flow.status.as_deref()) {
        *kinds.entry(status).or_default() += 1;
    }
    kinds.iter().map(|(status, count)| format!("{status} {count}")).collect::<Vec<_>>().join(", ")
}

/// How many packets were dropped, by cause.
fn drops(report: &Report) -> String {
    let causes: Vec<String> =
        report.packets.drops.iter().map(|(why, count)| format!("{} {count}", why.name())).collect();
    match causes.len() {
        0 => "none".to_owned(),
        _ => format!("{}: {}", report.packets.drops.values().sum::<u64>(), causes.join(", ")),
    }
}

/// The ports that sent most of the time.
fn busiest(ports: &[PortReport]) -> Table {
    let mut ports: Vec<&PortReport> = ports.iter().collect();
    // The sort is stable: equal ports stay in the order of the topology.
    ports.sort_by(|a, b| b.load.total_cmp(&a.load));
    let mut table = Table::new(1, ["port", "load %", "queue peak KB", "paused us", "marked", "dropped"]);
    for port in ports.iter().take(PORTS) {
        table.row([
            port.name.clone(),
            number(100.0 * port.load),
            number(port.stats.queue_peak as f64 / 1e3),
            number(port.stats.paused_ns.iter().sum::<u64>() as f64 / 1e3),
            number(port.stats.marked as f64),
            number(port.stats.drops.values().sum::<u64>() as f64),
        ]);
    }
    if ports.len() > PORTS {
        table.row([format!("and {} more", ports.len() - PORTS)]);
    }
    table
}

/// Says what values a bound allows.
pub(super) fn bound(bound: &Bound) -> String {
    let number = |value: f64| digits(value, 6);
    match (bound.min, bound.max) {
        (Some(min), Some(max)) if min == max => format!("is {}", number(min)),
        (Some(min), Some(max)) => format!("{} to {}", number(min), number(max)),
        (Some(min), None) => format!("at least {}", number(min)),
        (None, Some(max)) => format!("at most {}", number(max)),
        (None, None) => "has no bound: add min, max or is".to_owned(),
    }
}

/// The expectations, held against one run.
pub(super) fn verdicts(verdicts: &[Verdict], only_failures: bool) -> String {
    let shown = |verdict: &&Verdict| !(only_failures && verdict.passed);
    let mut text = String::new();
    for verdict in verdicts.iter().filter(shown) {
        let value = verdict.value.map_or_else(|| "there is no such metric".to_owned(), |of| digits(of, 6));
        expectation(&mut text, verdict, verdict.passed, &value, "");
    }
    titled(text)
}

/// Adds an expectation to a text, and what came out. `note` comes behind the bound.
fn expectation(text: &mut String, of: &Verdict, passed: bool, value: &str, note: &str) {
    let (word, expected) = (if passed { "pass" } else { "FAIL" }, bound(&of.bound));
    let _ =
        writeln!(text, "  {word}  {}: {value}, expected: {expected}{note}\n        {}", of.metric, of.source);
}

/// Expectations under their title, if there are any.
fn titled(expectations: String) -> String {
    if expectations.is_empty() { expectations } else { format!("Expectations\n{expectations}") }
}

/// One row for each seed and variant, with the numbers of most interest.
pub(super) fn seeds(outcomes: &[Outcome]) -> Table {
    const COLUMNS: [(&str, &str); 8] = [
        ("done", "flows.finished"),
        ("FCT p50 us", "fct.p50_us"),
        ("p99", "fct.p99_us"),
        ("max", "fct.max_us"),
        ("slowdown p99", "slowdown.p99"),
        ("Gb/s", "goodput.total_gbps"),
        ("dropped", "drops.total"),
        ("marked", "marked"),
    ];
    let mut table =
        Table::new(0, ["seed"].into_iter().chain(COLUMNS.map(|(heading, _)| heading)).chain([""]));
    for outcome in outcomes {
        let cells = |report: &Report| COLUMNS.map(|(_, metric)| maybe(report.metrics.get(metric)));
        let word = match outcome.status() {
            Status::Passed => "pass",
            Status::Failed => "FAIL",
            Status::Interrupted => "interrupted",
        };
        let seed = outcome.report.seed.to_string();
        for (name, report) in &outcome.variants {
            table.row([format!("{seed} {name}")].into_iter().chain(cells(report)).chain([word.to_owned()]));
        }
        if outcome.variants.is_empty() {
            table.row([seed].into_iter().chain(cells(&outcome.report)).chain([word.to_owned()]));
        }
    }
    table
}

/// The expectations over several seeds: the range of values, and the seeds that failed.
pub(super) fn ranges(outcomes: &[Outcome], only_failures: bool) -> String {
    let mut text = String::new();
    let count = outcomes.first().map_or(0, |outcome| outcome.verdicts.len());
    for index in 0..count {
        let all: Vec<(u64, &Verdict)> = outcomes
            .iter()
            .filter_map(|outcome| Some((outcome.report.seed, outcome.verdicts.get(index)?)))
            .collect();
        let Some((_, first)) = all.first() else { continue };
        let failed: Vec<String> =
            all.iter().filter(|(_, verdict)| !verdict.passed).map(|(seed, _)| seed.to_string()).collect();
        if only_failures && failed.is_empty() {
            continue;
        }
        let values: Vec<f64> = all.iter().filter_map(|(_, verdict)| verdict.value).collect();
        let least = values.iter().copied().reduce(f64::min);
        let most = values.iter().copied().reduce(f64::max);
        let range = match least.zip(most) {
            None => "there is no such metric".to_owned(),
            Some((least, most)) if least == most => digits(least, 6),
            Some((least, most)) => format!("{} to {}", digits(least, 6), digits(most, 6)),
        };
        let note = if failed.is_empty() { String::new() } else { format!(" (seeds {})", failed.join(", ")) };
        expectation(&mut text, first, failed.is_empty(), &range, &note);
    }
    titled(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_words() {
        for (min, max, text) in [
            (Some(1.0), Some(1.0), "is 1"),
            (Some(1.5), Some(2000.0), "1.5 to 2,000"),
            (Some(0.25), None, "at least 0.25"),
            (None, Some(3.0), "at most 3"),
            (None, None, "has no bound: add min, max or is"),
        ] {
            assert_eq!(bound(&Bound { min, max }), text);
        }
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&values, 0.5), Some(2.0));
        assert_eq!(quantile(&values, 0.99), Some(4.0));
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
