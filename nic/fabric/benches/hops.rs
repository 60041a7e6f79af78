//! How fast the fabric is: hops a second of one core, and memory of a host.
//!
//! ```text
//! cargo bench -p rnic-fabric --bench hops [-- [permutation] [incast] [idle] HOSTS ...]
//! ```
//!
//! - `permutation`: a leaf-spine fabric without oversubscription; every host writes 1 MiB to another one, and ECMP spreads that.
//! - `incast`: htsim's fat tree of three tiers, all hosts but one write 1 MiB each to that one. Of 16, 128, 1,024 or 8,192 hosts.
//! - `idle`: the leaf-spine fabric, with devices that do nothing.
//!
//! Messages have 64 KiB, in packets of 4096 bytes. A hop is a packet that enters a switch or a NIC, acknowledgements and pauses
//! included. Their number follows from the seed; only the time depends on the machine.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark prints, and stops where something fails"
)]

use cc::Rate;
use rnic_fabric::network::{Fabric, HostConfig};
use rnic_fabric::routing::Routes;
use rnic_fabric::run::{FlowOutcome, NicConfig, Run};
use rnic_fabric::switch::{Class, SwitchConfig};
use rnic_fabric::topology::{Cable, Config, Kind, Node, Topology};
use rnic_fabric::workload::{Common, Flow, Start};
use std::path::Path;
use std::time::Instant;
use time::Duration;

/// Bytes of each flow.
const BYTES: u64 = 1 << 20;

/// Half of the ports of each leaf lead up.
fn leaf_spine(hosts: usize) -> Topology {
    let per_leaf = (1 << hosts.ilog2().div_ceil(2)).min(hosts);
    let leaves = hosts.div_ceil(per_leaf);
    let node = |name: String, kind| Node { name, kind, latency: Duration::ZERO };
    let mut nodes: Vec<_> = (0..hosts).map(|n| node(format!("h{n}"), Kind::Host)).collect();
    nodes.extend((0..leaves).map(|n| node(format!("l{n}"), Kind::Switch { tier: 1 })));
    nodes.extend((0..per_leaf).map(|n| node(format!("s{n}"), Kind::Switch { tier: 2 })));
    let cable = |a, b| Cable {
        ends: [a, b],
        rate: Rate::from_gbps(100),
        delay: Duration::from_micros(1),
        bit_errors: 0.0,
    };
    let mut cables: Vec<_> = (0..hosts).map(|host| cable(host, hosts + host / per_leaf)).collect();
    for leaf in 0..leaves {
        cables.extend((0..per_leaf).map(|spine| cable(hosts + leaf, hosts + leaves + spine)));
    }
    Topology { nodes, cables }
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Permutation,
    Incast,
    Idle,
}

impl Pattern {
    const ALL: [(&str, Self); 3] =
        [("permutation", Self::Permutation), ("incast", Self::Incast), ("idle", Self::Idle)];

    /// A fat tree of k ports a switch has k^3/4 hosts.
    fn topology(self, hosts: usize) -> Option<Topology> {
        if self != Self::Incast {
            return Some(leaf_spine(hosts));
        }
        let k = (4..=64_usize).step_by(2).find(|k| k.pow(3) / 4 == hosts)?;
        let text = format!("kind = \"fat-tree\"\nk = {k}\nlink = {{ rate = \"100Gbps\", delay = \"1us\" }}");
        let config: Config = toml::from_str(&text).expect("a topology");
        Some(config.build(Path::new(".")).expect("a fat tree"))
    }

    /// Source and destination of each flow.
    fn flows(self, hosts: usize) -> Vec<(usize, usize)> {
        // An odd step reaches every host once.
        let step = (hosts / 2 + 1) | 1;
        match self {
            Self::Permutation => (0..hosts).map(|src| (src, (src + step) % hosts)).collect(),
            Self::Incast => (1..hosts).map(|src| (src, 0)).collect(),
            Self::Idle => Vec::new(),
        }
    }
}

fn run(name: &str, pattern: Pattern, hosts: usize) {
    let Some(topology) = pattern.topology(hosts) else {
        println!("{name:>12} {hosts:>6} hosts: no fat tree has so many");
        return;
    };
    let empty = resident();
    let routes = Routes::shortest(&topology);
    let switch = SwitchConfig {
        class: vec![Class { lossless: true, alpha: 0.125, ..Class::default() }; 8],
        ..SwitchConfig::default()
    };
    let fabric =
        Fabric::new(topology, routes, HostConfig::default(), vec![switch], |_| 0, 1).expect("a fabric");
    let built = resident();
    let common = Common { message: 64 << 10, ..Common::default() };
    let flow = |(src, dst): (usize, usize)| Flow {
        name: format!("f{src}"),
        src,
        dst,
        bytes: Some(BYTES),
        start: Start::At(Duration::ZERO),
        common: common.clone(),
        label: src as u32,
    };
    // At an incast of thousands, a queue pair waits for longer than 7 retries of the default take.
    let nic = NicConfig { timeout: 18, ..NicConfig::default() };
    let mut run =
        Run::new(fabric, &nic, pattern.flows(hosts).into_iter().map(flow).collect(), 1).expect("devices");
    let ready = resident();
    let begin = Instant::now();
    run.run(Duration::from_secs(10), &mut |_| true).expect("verbs");
    let took = begin.elapsed().as_secs_f64();
    assert!(run.flows().iter().all(|flow| flow.outcome() == FlowOutcome::Finished), "a flow failed");
    let tally = run.fabric().lock().tally();
    let each = |bytes: u64| bytes as f64 / 1024.0 / hosts as f64;
    println!(
        "{name:>12} {hosts:>6} hosts: {:>6.3} M hops/s ({} hops, {} events, {took:.2} s); KiB a host: {:.1} switches, {:.1} devices, {:.1} running",
        tally.hops as f64 / took / 1e6,
        tally.hops,
        tally.events,
        each(built.saturating_sub(empty)),
        each(ready.saturating_sub(built)),
        each(resident().saturating_sub(ready)),
    );
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let sizes: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![16, 128, 1024] } else { sizes };
    let is_named = |name: &str| words.iter().any(|word| word == name);
    let any = Pattern::ALL.iter().any(|(name, _)| is_named(name));
    for (name, pattern) in Pattern::ALL.into_iter().filter(|(name, _)| !any || is_named(name)) {
        sizes.iter().for_each(|hosts| run(name, pattern, *hosts));
    }
}
