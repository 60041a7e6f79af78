//! What came out of a run.

mod groups;
mod metrics;
mod ports;
mod series;

pub use groups::GroupReport;
pub use metrics::{Metric, Metrics};
pub use ports::{PortReport, SwitchReport};
pub use series::{Line, Sampler, Series};

use crate::network::{PortStats, Tally};
use crate::run::{FlowOutcome, Run, ideal};
use serde::Serialize;
use std::collections::BTreeMap;
use time::Duration;

/// A run, for files and programs. All times are in virtual time.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The scenario.
    pub scenario: String,
    /// The seed from which everything random follows.
    pub seed: u64,
    /// Whether the run ended by itself or at its limit, and was not interrupted.
    pub is_whole: bool,
    /// What was given: latencies of NICs, switches and cables, congestion control and so on. Everything else is a result.
    pub inputs: BTreeMap<String, String>,
    /// Virtual time at the end, in microseconds.
    pub time_us: f64,
    /// The flows.
    pub flows: Vec<FlowReport>,
    /// Groups of hosts that compute together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupReport>,
    /// Ports through which something passed, or at which something happened.
    pub ports: Vec<PortReport>,
    /// Switches.
    pub switches: Vec<SwitchReport>,
    /// What happened to all packets.
    pub packets: Tally,
    /// Numbers by name: those that a scenario can expect.
    pub metrics: Metrics,
    /// Samples over time, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

/// A flow.
#[derive(Clone, Debug, Serialize)]
pub struct FlowReport {
    /// Its name.
    pub name: String,
    /// The hosts.
    pub from: String,
    /// The host that receives.
    pub to: String,
    /// Its bytes, if it has an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Bytes of completed messages.
    pub completed: u64,
    /// What has become of it.
    pub outcome: FlowOutcome,
    /// The status of the work request that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// When it began, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_us: Option<f64>,
    /// From the first work request to the last completion, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fct_us: Option<f64>,
    /// That, divided by what it would take in an empty fabric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// Bytes that the receiver has accepted per time, in Gb/s, while it was measured.
    pub goodput_gbps: f64,
    /// Packets that were sent again.
    pub retransmitted: u64,
    /// Times that its timer expired.
    pub timeouts: u64,
}

/// Microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

impl Report {
    /// The report of a run as it is now.
    #[must_use]
    pub fn of(
        scenario: &str,
        seed: u64,
        mtu: u32,
        run: &mut Run,
        series: Option<Series>,
        is_whole: bool,
    ) -> Self {
        let now = run.elapsed();
        let states = run.flows().to_vec();
        let mut fabric = run.fabric().lock();
        let names: Vec<String> = fabric.topology().nodes.iter().map(|node| node.name.clone()).collect();
        let name = |node: usize| names.get(node).cloned().unwrap_or_default();
        let flows: Vec<FlowReport> = states
            .iter()
            .map(|state| {
                let end = state.finished.or(state.failed.map(|(at, _)| at)).unwrap_or(now);
                let (since, delivered) = state.measured();
                let lasted = since.map_or(Duration::ZERO, |since| end.saturating_sub(since));
                let took = state.completion_time();
                let least = ideal(&fabric, &state.flow, mtu).filter(|least| !least.is_zero());
                let slowdown = took.zip(least).map(|(took, least)| took.as_secs_f64() / least.as_secs_f64());
                let seconds = lasted.as_secs_f64();
                FlowReport {
                    name: state.flow.name.clone(),
                    from: name(state.flow.src),
                    to: name(state.flow.dst),
                    bytes: state.flow.bytes,
                    completed: state.completed,
                    outcome: state.outcome(),
                    status: state.failed.map(|(_, status)| status.name().to_owned()),
                    start_us: state.started.map(micros),
                    fct_us: took.map(micros),
                    slowdown,
                    goodput_gbps: if seconds > 0.0 { 8e-9 * delivered as f64 / seconds } else { 0.0 },
                    retransmitted: state.counters.iter().map(|of| of.retransmitted_pkts).sum(),
                    timeouts: state.counters.iter().map(|of| of.local_ack_timeout_err).sum(),
                }
            })
            .collect();
        let (mut ports, switches) = ports::report(&mut fabric, now);
        let packets = fabric.tally();
        let stuck = fabric.stuck();
        let port_names = fabric.topology().port_names();
        let stuck: Vec<String> = stuck
            .into_iter()
            .filter_map(|(node, port)| port_names.get(node).and_then(|names| names.get(port)).cloned())
            .collect();
        let inputs = ports::inputs(&fabric);
        let reductions = fabric.reductions();
        drop(fabric);
        let mut metrics = Metrics::of(&flows, &ports, &switches, &packets, &stuck, now);
        ports.retain(|port| port.stats != PortStats::default());
        let groups: Vec<GroupReport> = run.groups().iter().map(GroupReport::of).collect();
        metrics.of_groups(&groups);
        if let Some(stats) = &reductions {
            metrics.of_reductions(stats);
        }
        let time_us = micros(now);
        let scenario = scenario.to_owned();
        Self {
            scenario,
            seed,
            is_whole,
            inputs,
            time_us,
            flows,
            groups,
            ports,
            switches,
            packets,
            metrics,
            series,
        }
    }
}
