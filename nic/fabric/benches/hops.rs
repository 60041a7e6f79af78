//! How fast the fabric is: hops a second of one core, and memory of a host, from 16 hosts up.
//!
//! ```text
//! cargo bench -p rnic-fabric --bench hops [-- HOSTS ...]
//! ```
//!
//! Each row is a permutation on a leaf-spine fabric without oversubscription: every host writes 1 MiB to another one, with
//! messages of 64 KiB in packets of 4096 bytes, and ECMP spreads them. The number of hops follows from the seed; only the time
//! depends on the machine.

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
use rnic_fabric::topology::{Cable, Kind, Node, Topology};
use rnic_fabric::workload::{Common, Flow, Start};
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

fn run(hosts: usize) {
    let empty = resident();
    let topology = leaf_spine(hosts);
    let routes = Routes::shortest(&topology);
    let switch = SwitchConfig {
        class: vec![Class { lossless: true, alpha: 0.125, ..Class::default() }; 8],
        ..SwitchConfig::default()
    };
    let fabric =
        Fabric::new(topology, routes, HostConfig::default(), vec![switch], |_| 0, 1).expect("a fabric");
    let built = resident();
    let common = Common { message: 64 << 10, ..Common::default() };
    // An odd step reaches every host once.
    let step = (hosts / 2 + 1) | 1;
    let flow = |src: usize| Flow {
        name: format!("f{src}"),
        src,
        dst: (src + step) % hosts,
        bytes: Some(BYTES),
        start: Start::At(Duration::ZERO),
        common: common.clone(),
        label: src as u32,
    };
    let mut run =
        Run::new(fabric, &NicConfig::default(), (0..hosts).map(flow).collect(), 1).expect("devices");
    let ready = resident();
    let begin = Instant::now();
    run.run(Duration::from_secs(1), &mut |_| true).expect("verbs");
    let took = begin.elapsed().as_secs_f64();
    assert!(run.flows().iter().all(|flow| flow.outcome() == FlowOutcome::Finished), "a flow failed");
    let tally = run.fabric().lock().tally();
    let each = |bytes: u64| bytes as f64 / 1024.0 / hosts as f64;
    println!(
        "{hosts:>6} hosts: {:>6.3} M hops/s ({} hops, {} events, {took:.2} s); KiB a host: {:.1} switches, {:.1} devices, {:.1} running",
        tally.hops as f64 / took / 1e6,
        tally.hops,
        tally.events,
        each(built.saturating_sub(empty)),
        each(ready.saturating_sub(built)),
        each(resident().saturating_sub(ready)),
    );
}

fn main() {
    let wanted: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let sizes = if wanted.is_empty() { vec![16, 128, 1024] } else { wanted };
    sizes.into_iter().for_each(run);
}
