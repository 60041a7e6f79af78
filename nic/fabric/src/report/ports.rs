//! Ports and switches in a report.

use crate::network::{Fabric, PortStats};
use crate::switch::{Model, SwitchConfig};
use serde::Serialize;
use std::collections::BTreeMap;
use time::Duration;

/// A port, and the direction of the cable that it sends into.
#[derive(Clone, Debug, Serialize)]
pub struct PortReport {
    /// Both ends, such as `leaf3>spine1`.
    pub name: String,
    /// Whether it is a host's.
    #[serde(skip)]
    pub is_host: bool,
    /// The share of the time in which it sent, since measuring began.
    pub load: f64,
    /// What it has counted.
    #[serde(flatten)]
    pub stats: PortStats,
}

/// A switch.
#[derive(Clone, Debug, Serialize)]
pub struct SwitchReport {
    /// Its name.
    pub name: String,
    /// Bytes in its buffer at the end.
    pub held: u64,
    /// The most bytes in its buffer.
    pub peak: u64,
    /// The most bytes in its headroom.
    pub headroom_peak: u64,
}

/// All ports, and all switches.
pub(super) fn report(fabric: &mut Fabric, now: Duration) -> (Vec<PortReport>, Vec<SwitchReport>) {
    let topology = fabric.topology().clone();
    let (names, hosts) = (topology.port_names(), topology.hosts());
    let (mut ports, mut switches) = (Vec::new(), Vec::new());
    for (node, of) in topology.ports().iter().enumerate() {
        for (port, (cable, _)) in of.iter().enumerate() {
            let Some(stats) = fabric.port_stats(node, port) else { continue };
            let (since, before) = fabric.measured(node, port);
            let could = topology.cables[*cable].rate.as_f64() * now.saturating_sub(since).as_secs_f64() / 8.0;
            let load = if could > 0.0 { (stats.bytes - before) as f64 / could } else { 0.0 };
            let name = names.get(node).and_then(|names| names.get(port)).cloned().unwrap_or_default();
            ports.push(PortReport { name, is_host: node < hosts, load, stats });
        }
        if node >= hosts {
            let (held, peak, headroom_peak) = fabric.held(node);
            switches.push(SwitchReport {
                name: topology.nodes[node].name.clone(),
                held,
                peak,
                headroom_peak,
            });
        }
    }
    (ports, switches)
}

/// The latencies that were given, each with the number of its kind if they differ, and the buffer of the switches if all have the
/// same.
pub(super) fn inputs(fabric: &Fabric) -> BTreeMap<String, String> {
    let mut inputs = BTreeMap::new();
    let host = fabric.host();
    inputs.insert("latency of NIC, sending".to_owned(), nanos(host.tx_latency));
    inputs.insert("latency of NIC, receiving".to_owned(), nanos(host.rx_latency));
    let topology = fabric.topology();
    let span = |what: &str,
                times: &mut dyn Iterator<Item = Duration>,
                inputs: &mut BTreeMap<String, String>| {
        let times: Vec<Duration> = times.collect();
        if let (Some(least), Some(most)) = (times.iter().min(), times.iter().max()) {
            let text =
                if least == most { nanos(*least) } else { format!("{} to {}", nanos(*least), nanos(*most)) };
            inputs.insert(format!("latency of {what}"), text);
        }
    };
    span("cable", &mut topology.cables.iter().map(|cable| cable.delay), &mut inputs);
    span("switch", &mut topology.nodes.iter().skip(topology.hosts()).map(|node| node.latency), &mut inputs);
    let buffer = |switch: &SwitchConfig| match switch.model {
        Model::Ethernet => decimal(switch.buffer.shared),
        Model::Infiniband => format!("{} for a lane", decimal(switch.buffer.lane)),
    };
    if let Some((first, others)) = fabric.switches().split_first()
        && others.iter().all(|other| buffer(other) == buffer(first))
    {
        inputs.insert("buffer of a switch".to_owned(), buffer(first));
    }
    inputs
}

/// Bytes in the largest unit of which there is one at least.
fn decimal(bytes: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "KB")];
    match units.into_iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{} {unit}", (bytes as f64 / size as f64 * 100.0).round() / 100.0),
        None => format!("{bytes} bytes"),
    }
}

fn nanos(time: Duration) -> String {
    format!("{} ns", time.as_nanos())
}
