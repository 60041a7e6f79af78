//! Numbers by name, which scenarios expect something of.

use super::{FlowReport, GroupReport, PortReport, Series, SwitchReport, micros};
use crate::network::{ReductionStats, Tally};
use crate::run::FlowOutcome;
use serde::Serialize;
use std::collections::BTreeMap;
use time::Duration;

/// A number.
pub type Metric = f64;

/// Numbers by name.
///
/// Those of all flows: `flows.finished`, `flows.failed`, `flows.running`; `fct.mean_us`, `fct.p50_us`, `fct.p99_us`,
/// `fct.max_us`, `fct.min_us`; `slowdown.mean`, `slowdown.p50`, `slowdown.p95`, `slowdown.p99`, `slowdown.max`, and the same of
/// the flows of up to 7,000 and 30,000 bytes: `slowdown.7kb.p95`, `slowdown.30kb.p99`; `goodput.total_gbps`,
/// `goodput.min_gbps`, `goodput.max_gbps`; `fairness.jain`; `retransmitted`; `timeouts`. A flow's goodput is that of the time for which it ran, and so
/// the total of flows that ran one after another is more than their cable carries. Those of flows of one name have it
/// in front: `victim.goodput_gbps`, `victim.fct_us`, `victim.slowdown`, means if several have the name.
///
/// Those of a group of hosts that compute together have its name in front, `all-reduce` and so on if it has no other:
/// `all-reduce.completion_us` (from the start to the last host), `.verified` (1 if it ended and every host has the right
/// result), `.bytes_per_host` and `.messages_per_host` (what a host has sent, on average, without headers), `.bus_gbps` (what
/// each host would have to send at least, per time), `.repeated` (blocks that were sent again, if switches add), `.fell_back` (1
/// if switches should have added, and hosts did). Those of switches that add: `reduction.blocks`, `.duplicates`, `.answers`,
/// `.stale`.
///
/// Those of packets: `drops.total`, `drops.headroom_full` and so on; `pauses.sent`, `pauses.hosts_us` (the time for which hosts
/// were paused, of all together), `pauses.ports` (how many ports were ever paused); `marked`; `storms`; `hops`; `inside`
/// (packets in the fabric at the end); `stuck` (ports that wait for one another in a circle).
///
/// Those of ports and switches: `port.leaf0>host1.queue_peak`, `.load`, `.drops`, `.paused_us`, `.marked`, `.stuck`;
/// `switch.leaf0.peak`, `.headroom_peak`. `time_us` is the length of the run. Samples: `sample.s0>host1.queue.mean`, `.deviation`,
/// `.min`, `.max`, and the same for `rate` and `paused`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Metrics(pub BTreeMap<String, Metric>);

impl Metrics {
    /// The metric of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Metric> {
        self.0.get(name).copied()
    }

    /// Adds the metrics of a variant, with its name in front of theirs.
    pub(crate) fn join(&mut self, variant: &str, other: &Self) {
        for (name, value) in &other.0 {
            let name = if variant.is_empty() { name.clone() } else { format!("{variant}.{name}") };
            self.set(name, *value);
        }
    }

    /// The mean of each metric, over those that have it.
    pub(crate) fn mean(runs: &[Self]) -> Self {
        let mut sums: BTreeMap<&String, (f64, f64)> = BTreeMap::new();
        for (name, value) in runs.iter().flat_map(|run| &run.0) {
            let (sum, count) = sums.entry(name).or_default();
            *sum += value;
            *count += 1.0;
        }
        Self(sums.into_iter().map(|(name, (sum, count))| (name.clone(), sum / count)).collect())
    }

    /// Mean, standard deviation and extremes of the samples from a time on: `sample.s0>host1.queue.mean` and so on.
    pub(crate) fn of_series(&mut self, series: Option<&Series>, from: Duration) {
        let Some(series) = series else { return };
        for line in &series.lines {
            let after = series.time_us.iter().zip(&line.values).filter(|(at, _)| **at >= micros(from));
            let values: Vec<f64> = after.map(|(_, value)| *value).collect();
            if values.is_empty() {
                continue;
            }
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / count;
            for (what, value) in [
                ("mean", mean),
                ("deviation", libm::sqrt(variance)),
                ("min", values.iter().copied().fold(f64::INFINITY, f64::min)),
                ("max", values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            ] {
                self.set(format!("sample.{}.{}.{what}", line.name, line.kind), value);
            }
        }
    }

    fn set(&mut self, name: impl Into<String>, value: Metric) {
        self.0.insert(name.into(), value);
    }

    pub(super) fn of(
        flows: &[FlowReport],
        ports: &[PortReport],
        switches: &[SwitchReport],
        packets: &Tally,
        stuck: &[String],
        now: Duration,
    ) -> Self {
        let mut metrics = Self::default();
        metrics.set("time_us", micros(now));
        metrics.of_flows(flows);
        metrics.of_names(flows);
        metrics.of_ports(ports);
        for switch in switches {
            metrics.set(format!("switch.{}.peak", switch.name), switch.peak as f64);
            metrics.set(format!("switch.{}.headroom_peak", switch.name), switch.headroom_peak as f64);
        }
        for why in crate::network::Drop::ALL {
            let count = packets.drops.get(&why).copied().unwrap_or(0);
            metrics.set(format!("drops.{}", why.name()), count as f64);
        }
        metrics.set("drops.total", packets.drops.values().sum::<u64>() as f64);
        metrics.set("inside", packets.inside as f64);
        metrics.set("hops", packets.hops as f64);
        metrics.set("stuck", stuck.len() as f64);
        for port in ports {
            let count = stuck.iter().filter(|name| **name == port.name).count();
            metrics.set(format!("port.{}.stuck", port.name), count as f64);
        }
        metrics
    }

    fn of_flows(&mut self, flows: &[FlowReport]) {
        let count = |outcome| flows.iter().filter(|flow| flow.outcome == outcome).count() as f64;
        self.set("flows.finished", count(FlowOutcome::Finished));
        self.set("flows.failed", count(FlowOutcome::Failed));
        self.set("flows.running", count(FlowOutcome::Running));
        self.distribution("fct", "_us", flows.iter().filter_map(|flow| flow.fct_us).collect());
        self.distribution("slowdown", "", flows.iter().filter_map(|flow| flow.slowdown).collect());
        for (limit, word) in [(7_000, "7kb"), (30_000, "30kb")] {
            let short = flows.iter().filter(|flow| flow.bytes.is_some_and(|bytes| bytes <= limit));
            self.distribution(
                &format!("slowdown.{word}"),
                "",
                short.filter_map(|flow| flow.slowdown).collect(),
            );
        }
        let goodputs: Vec<f64> = flows.iter().map(|flow| flow.goodput_gbps).collect();
        let (sum, squares) =
            goodputs.iter().fold((0.0, 0.0), |(sum, squares), of| (sum + of, squares + of * of));
        self.set("goodput.total_gbps", sum);
        if !goodputs.is_empty() {
            self.set("goodput.min_gbps", goodputs.iter().copied().fold(f64::INFINITY, f64::min));
        }
        self.set("goodput.max_gbps", goodputs.iter().copied().fold(0.0, f64::max));
        if squares > 0.0 {
            // Jain, Chiu and Hawe 1984: 1 if all are equal, 1/n if one has everything.
            self.set("fairness.jain", sum * sum / (goodputs.len() as f64 * squares));
        }
        self.set("retransmitted", flows.iter().map(|flow| flow.retransmitted).sum::<u64>() as f64);
        self.set("timeouts", flows.iter().map(|flow| flow.timeouts).sum::<u64>() as f64);
    }

    pub(super) fn of_reductions(&mut self, stats: &ReductionStats) {
        let ReductionStats { blocks, duplicates, answers, stale } = *stats;
        for (what, count) in
            [("blocks", blocks), ("duplicates", duplicates), ("answers", answers), ("stale", stale)]
        {
            self.set(format!("reduction.{what}"), count as f64);
        }
    }

    pub(super) fn of_groups(&mut self, groups: &[GroupReport]) {
        for group in groups {
            let name = &group.name;
            self.set(format!("{name}.verified"), f64::from(u8::from(group.verified)));
            self.set(format!("{name}.bytes_per_host"), group.bytes_per_host);
            self.set(format!("{name}.messages_per_host"), group.messages_per_host);
            self.set(format!("{name}.repeated"), group.repeated as f64);
            self.set(format!("{name}.fell_back"), f64::from(u8::from(group.fell_back.is_some())));
            self.0.extend(group.completion_us.map(|of| (format!("{name}.completion_us"), of)));
            self.0.extend(group.bus_gbps.map(|of| (format!("{name}.bus_gbps"), of)));
        }
    }

    /// Mean and quantiles; nothing if there are no values.
    fn distribution(&mut self, name: &str, unit: &str, mut values: Vec<f64>) {
        values.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (values.first().copied(), values.last().copied()) else { return };
        self.set(format!("{name}.mean{unit}"), values.iter().sum::<f64>() / values.len() as f64);
        self.set(format!("{name}.min{unit}"), least);
        self.set(format!("{name}.max{unit}"), most);
        for (quantile, word) in [(0.5, "p50"), (0.95, "p95"), (0.99, "p99")] {
            // The smallest value that is not exceeded by this share of all.
            let rank = (quantile * values.len() as f64).ceil() as usize;
            let value = values.get(rank.saturating_sub(1)).copied().unwrap_or(most);
            self.set(format!("{name}.{word}{unit}"), value);
        }
    }

    /// Means of the flows of each name.
    fn of_names(&mut self, flows: &[FlowReport]) {
        let mut names: BTreeMap<&str, Vec<&FlowReport>> = BTreeMap::new();
        flows.iter().for_each(|flow| names.entry(&flow.name).or_default().push(flow));
        for (name, flows) in names {
            let mean = |of: &dyn Fn(&FlowReport) -> Option<f64>| {
                let values: Vec<f64> = flows.iter().filter_map(|flow| of(flow)).collect();
                (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
            };
            self.0
                .extend(mean(&|flow| Some(flow.goodput_gbps)).map(|of| (format!("{name}.goodput_gbps"), of)));
            self.0.extend(mean(&|flow| flow.fct_us).map(|of| (format!("{name}.fct_us"), of)));
            self.0.extend(mean(&|flow| flow.slowdown).map(|of| (format!("{name}.slowdown"), of)));
        }
    }

    fn of_ports(&mut self, ports: &[PortReport]) {
        let (mut pauses, mut marked, mut storms, mut paused_ports, mut hosts_ns) = (0, 0, 0, 0, 0);
        for port in ports {
            let stats = &port.stats;
            let paused_ns: u64 = stats.paused_ns.iter().sum();
            pauses += stats.pauses_sent.iter().sum::<u64>();
            marked += stats.marked;
            storms += stats.storms;
            paused_ports += u64::from(paused_ns > 0);
            hosts_ns += if port.is_host { paused_ns } else { 0 };
            for (what, value) in [
                ("queue_peak", stats.queue_peak as f64),
                ("load", port.load),
                ("drops", stats.drops.values().sum::<u64>() as f64),
                ("paused_us", paused_ns as f64 / 1000.0),
                ("marked", stats.marked as f64),
            ] {
                self.set(format!("port.{}.{what}", port.name), value);
            }
        }
        self.set("pauses.sent", pauses as f64);
        self.set("pauses.ports", paused_ports as f64);
        self.set("pauses.hosts_us", hosts_ns as f64 / 1000.0);
        self.set("marked", marked as f64);
        self.set("storms", storms as f64);
    }
}
