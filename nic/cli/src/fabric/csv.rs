//! Results as CSV (RFC 4180): one row per flow, port, sample and metric, each with its seed.

use super::error::Problem;
use super::jobs::Outcome;
use rnic_fabric::report::Report;
use std::collections::BTreeSet;
use std::path::Path;

/// Writes rows of a file.
#[derive(Debug, Default)]
pub(super) struct Rows(String);

impl Rows {
    /// A file with these headings.
    pub(super) fn new<T: AsRef<str>>(headings: impl IntoIterator<Item = T>) -> Self {
        let mut rows = Self::default();
        rows.add(headings);
        rows
    }

    /// Adds a row.
    pub(super) fn add<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        for (column, cell) in cells.into_iter().enumerate() {
            if column > 0 {
                self.0.push(',');
            }
            self.cell(cell.as_ref());
        }
        self.0.push('\n');
    }

    fn cell(&mut self, text: &str) {
        if text.contains(['"', ',', '\n', '\r']) {
            self.0.extend(["\"", &text.replace('"', "\"\""), "\""]);
        } else {
            self.0 += text;
        }
    }

    /// The text of the file.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// A number, or nothing.
fn maybe(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Writes `flows.csv`, `ports.csv`, `series.csv` and `metrics.csv` into a folder; for each variant, into one within.
pub(super) fn write(folder: &Path, outcomes: &[Outcome]) -> Result<(), Problem> {
    let names: BTreeSet<&str> =
        outcomes.iter().flat_map(|of| &of.variants).map(|(name, _)| name.as_str()).collect();
    for name in &names {
        let of_name = |outcome: &'_ Outcome| {
            outcome.variants.iter().find(|(of, _)| of == name).map(|(_, report)| report.clone())
        };
        let reports: Vec<Report> = outcomes.iter().filter_map(of_name).collect();
        write_reports(&folder.join(name), &reports.iter().collect::<Vec<_>>())?;
    }
    if names.is_empty() {
        write_reports(folder, &outcomes.iter().map(|outcome| &outcome.report).collect::<Vec<_>>())?;
    }
    Ok(())
}

fn write_reports(folder: &Path, reports: &[&Report]) -> Result<(), Problem> {
    std::fs::create_dir_all(folder).map_err(Problem::write(folder))?;
    for (name, text) in [
        ("flows.csv", flows(reports)),
        ("ports.csv", ports(reports)),
        ("series.csv", series(reports)),
        ("metrics.csv", metrics(reports)),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(Problem::write(&path))?;
    }
    Ok(())
}

fn flows(reports: &[&Report]) -> String {
    let mut rows = Rows::new([
        "seed",
        "name",
        "from",
        "to",
        "bytes",
        "completed",
        "outcome",
        "status",
        "start_us",
        "fct_us",
        "slowdown",
        "goodput_gbps",
        "retransmitted",
        "timeouts",
    ]);
    for report in reports {
        for flow in &report.flows {
            let outcome = serde_json::to_value(flow.outcome).ok();
            rows.add([
                report.seed.to_string(),
                flow.name.clone(),
                flow.from.clone(),
                flow.to.clone(),
                maybe(flow.bytes),
                flow.completed.to_string(),
                outcome.as_ref().and_then(|of| of.as_str()).unwrap_or_default().to_owned(),
                flow.status.clone().unwrap_or_default(),
                maybe(flow.start_us),
                maybe(flow.fct_us),
                maybe(flow.slowdown),
                flow.goodput_gbps.to_string(),
                flow.retransmitted.to_string(),
                flow.timeouts.to_string(),
            ]);
        }
    }
    rows.finish()
}

fn ports(reports: &[&Report]) -> String {
    let mut rows = Rows::new([
        "seed",
        "port",
        "load",
        "packets",
        "bytes",
        "queue_peak",
        "marked",
        "dropped",
        "pauses_sent",
        "pauses_received",
        "paused_us",
        "storms",
        "credit_waits",
    ]);
    for report in reports {
        for port in &report.ports {
            let stats = &port.stats;
            let numbers = [
                stats.packets,
                stats.bytes,
                stats.queue_peak,
                stats.marked,
                stats.drops.values().sum(),
                stats.pauses_sent.iter().sum(),
                stats.pauses_received.iter().sum(),
            ];
            let paused_us = stats.paused_ns.iter().sum::<u64>() as f64 / 1e3;
            let first = [report.seed.to_string(), port.name.clone(), port.load.to_string()];
            let last = [paused_us.to_string(), stats.storms.to_string(), stats.credit_waits.to_string()];
            rows.add(first.into_iter().chain(numbers.map(|number| number.to_string())).chain(last));
        }
    }
    rows.finish()
}

/// One row per value, because the lines of seeds differ.
fn series(reports: &[&Report]) -> String {
    let mut rows = Rows::new(["seed", "time_us", "kind", "name", "value"]);
    for report in reports {
        let Some(series) = &report.series else { continue };
        for line in &series.lines {
            for (time, value) in series.time_us.iter().zip(&line.values) {
                let [seed, time, value] = [report.seed.to_string(), time.to_string(), value.to_string()];
                rows.add([seed.as_str(), &time, line.kind, &line.name, &value]);
            }
        }
    }
    rows.finish()
}

fn metrics(reports: &[&Report]) -> String {
    let mut rows = Rows::new(["seed", "metric", "value"]);
    for report in reports {
        for (name, value) in &report.metrics.0 {
            rows.add([report.seed.to_string(), name.clone(), value.to_string()]);
        }
    }
    rows.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        let mut rows = Rows::new(["a", "b"]);
        rows.add(["x,y", "say \"no\""]);
        rows.add(["", ""]);
        assert_eq!(rows.finish(), "a,b\n\"x,y\",\"say \"\"no\"\"\"\n,\n");
    }
}
