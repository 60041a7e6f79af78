//! Groups of hosts that compute together.

use super::micros;
use crate::run::GroupState;
use serde::Serialize;

/// A group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupReport {
    /// Its name.
    pub name: String,
    /// What was computed.
    pub collective: String,
    /// How.
    pub algorithm: String,
    /// How many hosts took part.
    pub hosts: usize,
    /// The bytes of the vector.
    pub bytes: usize,
    /// From the start until the last host was done, in microseconds. `None`: it is not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_us: Option<f64>,
    /// Whether it is done, and every host has the right result.
    pub verified: bool,
    /// What a host has sent on average, without headers and repetitions.
    pub bytes_per_host: f64,
    /// In so many messages.
    pub messages_per_host: f64,
    /// Blocks that hosts sent again, if switches add.
    pub repeated: u64,
    /// Why hosts added, if switches should have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
    /// What a host has to send at least, per time, in Gb/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_gbps: Option<f64>,
}

impl GroupReport {
    pub(super) fn of(state: &GroupState) -> Self {
        let (plan, hosts) = (&state.group.plan, state.group.hosts.len());
        let took = state.started.zip(state.finished).map(|(start, end)| end.saturating_sub(start));
        let needed = 8.0 * plan.vector() as f64 * plan.collective.bus_share(hosts);
        let seconds = took.map(|took| took.as_secs_f64()).filter(|seconds| *seconds > 0.0);
        let mean = |total: u64| total as f64 / hosts.max(1) as f64;
        Self {
            name: state.group.name.clone(),
            collective: plan.collective.to_string(),
            algorithm: plan.algorithm.to_string(),
            hosts,
            bytes: plan.vector(),
            completion_us: took.map(micros),
            verified: state.verified,
            bytes_per_host: mean(state.sent.iter().map(|sent| sent.bytes).sum()),
            messages_per_host: mean(state.sent.iter().map(|sent| sent.messages).sum()),
            repeated: state.repeated,
            fell_back: state.fell_back.clone(),
            bus_gbps: seconds.map(|seconds| 1e-9 * needed / seconds),
        }
    }
}
