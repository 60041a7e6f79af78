//! Files of htsim.

use super::example;
use crate::topology::htsim::{parse_topology, parse_traffic, topology, traffic};
use crate::topology::traffic::{Start, TrafficFlow, Trigger, TriggerKind};
use crate::topology::{Config, Topology};
use cc::Rate;
use proptest::prelude::*;
use std::path::Path;
use time::Duration;

const PODS: &str = include_str!("../../../tests/data/pods.topo");
const LEAVES: &str = include_str!("../../../tests/data/leaves.topo");
const CHAIN: &str = include_str!("../../../tests/data/chain.cm");

/// Reads the text with one part replaced, which must be there.
fn edited(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

fn read(text: &str) -> Result<Topology, String> {
    parse_topology(text, Path::new("a.topo")).map_err(|error| error.to_string())
}

#[test]
fn three_tiers_with_bundles_and_latencies() -> Result<(), Box<dyn std::error::Error>> {
    let topology = topology(&example("pods.topo"))?;
    let names: Vec<_> = topology.nodes[8..].iter().map(|node| &*node.name).collect();
    assert_eq!(names.join(" "), "edge0 edge1 edge2 edge3 agg0 agg1 agg2 agg3 core0 core1 core2 core3");
    let latencies: Vec<_> = topology.nodes.iter().map(|node| node.latency.as_nanos()).collect();
    assert_eq!(
        (&latencies[..8], &latencies[8..12], latencies[12], latencies[16]),
        (&[0; 8][..], &[300; 4][..], 400, 0)
    );
    // 8 to hosts, 8 in the pods, and 4 from each of 4 switches to the core.
    assert_eq!(topology.cables.len(), 8 + 8 + 16);
    let cable =
        |name: &str| topology.cables_named(name).map(|found| (found.len(), &topology.cables[found[0]]));
    for (name, number, gbps, nanos) in [
        ("host5-edge2", 1, 200, 500),
        ("edge2-agg3", 1, 200, 700),
        ("agg0-core0", 2, 100, 900),
        ("agg0-core2", 2, 100, 900),
        ("agg3-core1", 2, 100, 900),
    ] {
        let (found, cable) = cable(name)?;
        assert_eq!(
            (found, cable.rate, cable.delay),
            (number, Rate::from_gbps(gbps), Duration::from_nanos(nanos)),
            "{name}"
        );
    }
    assert!(topology.cables_named("agg0-core1").is_err());
    Ok(())
}

#[test]
fn two_tiers_are_leaves_and_spines() -> Result<(), Box<dyn std::error::Error>> {
    let config: Config = toml::from_str("kind = 'htsim'\nfile = 'leaves.topo'\nlatency = '250 ns'")?;
    let topology = config.build(&example(""))?;
    assert_eq!((topology.hosts(), topology.nodes.len(), topology.cables.len()), (24, 30, 32));
    assert_eq!(topology.nodes[29].name, "spine1");
    assert_eq!(topology.nodes[29].latency, Duration::from_nanos(250), "the setting is above the file");
    Ok(())
}

#[test]
fn errors_name_the_file_and_the_line() {
    for (text, from, to, says) in [
        (PODS, "Nodes 8", "Nodes eight", "a.topo, line 2: expected the number of hosts instead of `eight`"),
        (PODS, "Nodes 8", "Nodes", "line 2: expected the number of hosts"),
        (PODS, "Nodes 8", "Nodes 8 9", "line 2: expected the end of the line instead of `9`"),
        (PODS, "Nodes 8", "", "line 25: expected a line `Nodes`"),
        (PODS, "Nodes 8", "Nodes 0", "line 2: expected the number of hosts instead of 0"),
        (PODS, "Nodes 8", "Nodes 99999999", "at most 65536 are possible"),
        (PODS, "Tiers 3", "Tiers 4", "`Tiers` of 2 or 3"),
        (PODS, "Podsize 4", "Podsize 3", "line 6: expected `Podsize` that divides `Nodes`"),
        (PODS, "Tier 0", "Tier 3", "line 6: expected the number of a tier, 0 to 2"),
        (PODS, "Tier 1", "Tier 0", "line 13: expected each tier once"),
        (PODS, "Radix_Up 4", "", "line 13: expected `Radix_Up` in the block"),
        (
            PODS,
            "Radix_Up 4",
            "Radix_Up 3",
            "line 13: expected `Radix_Up` that is a multiple of the `Bundle` of the next tier, 2",
        ),
        (
            PODS,
            "radix_down 4",
            "radix_down 2",
            "line 21: expected `Radix_Down 4`, for 2 switches below with `Bundle 2`",
        ),
        (PODS, "Bundle 1", "Bumble 1", "line 19: expected `Downlink_speed_Gbps`"),
        (LEAVES, "Podsize 24", "Podsize 12", "line 5: expected `Podsize` equal to `Nodes`"),
        (LEAVES, "Oversubscribed 3", "", "line 5: expected `Oversubscribed 3`"),
        (LEAVES, "Radix_Down 6", "Radix_Down 6\nBundle 2", "line 5: expected a tier 0 without `Bundle`"),
    ] {
        let error = read(&edited(text, from, to)).expect_err(says);
        assert!(error.contains(says), "{error}");
    }
    let error = topology(Path::new("/nowhere.topo")).expect_err("no file").to_string();
    assert!(error.starts_with("cannot read /nowhere.topo: "), "{error}");
}

#[test]
fn a_file_that_ends_early_is_refused() {
    for text in [PODS, LEAVES] {
        // The last line but one of both is needed; the end of the last may only lack a bundle.
        let needed = text.trim_end().lines().count() - 1;
        for lines in 0..needed {
            let part: String = text.lines().take(lines).map(|line| format!("{line}\n")).collect();
            assert!(read(&part).is_err(), "{lines} lines");
        }
    }
    for lines in 0..CHAIN.trim_end().lines().count() {
        let part: String = CHAIN.lines().take(lines).map(|line| format!("{line}\n")).collect();
        assert!(parse_traffic(&part, Path::new("a.cm")).is_err(), "{lines} lines");
    }
}

#[test]
fn flows_start_at_times_or_after_others() -> Result<(), Box<dyn std::error::Error>> {
    let traffic = traffic(&example("chain.cm"))?;
    assert_eq!((traffic.hosts, traffic.flows.len()), (8, 4));
    let third = TrafficFlow {
        from: 2,
        to: 3,
        bytes: 1_000_000,
        start: Start::Trigger(2),
        id: Some(3),
        send_done: Some(3),
        receive_done: Some(3),
        priority: Some(5),
        port: None,
    };
    assert_eq!((traffic.flows[0].start, traffic.flows[2]), (Start::At(0), third));
    assert_eq!(
        traffic.triggers,
        [
            Trigger { id: 1, kind: TriggerKind::OneShot },
            Trigger { id: 2, kind: TriggerKind::MultiShot },
            Trigger { id: 3, kind: TriggerKind::Barrier { count: 2 } },
        ]
    );
    let text = edited(CHAIN, "start 0", "start 1500.0");
    assert_eq!(parse_traffic(&text, Path::new("a.cm"))?.flows[0].start, Start::At(1_500));
    Ok(())
}

#[test]
fn errors_of_traffic_name_the_line() {
    for (from, to, says) in [
        ("0->1", "0->0", "a.cm, line 5: expected two different hosts below `Nodes`, 8"),
        ("0->1", "0->8", "line 5: expected two different hosts"),
        ("0->1", "0-1", "line 5: expected `Nodes`"),
        ("start 0", "start soon", "line 5: expected a time in picoseconds instead of `soon`"),
        ("start 0", "start 0 trigger 1", "line 5: expected either `start` or `trigger`"),
        ("start 0 ", "", "line 5: expected `start` with a time"),
        (" size 1\n", "\n", "line 8: expected `size` with a number of bytes"),
        ("prio 5", "class 5", "instead of `class`"),
        ("Connections 4", "Connections 5", "as many flows as `Connections` says (5) instead of 4"),
        ("Triggers 3", "", "as many triggers as `Triggers` says instead of 3"),
        ("trigger id 2", "trigger id 4", "expected a line `trigger id 2`"),
        ("trigger id 2", "trigger id 1", "`trigger id 1` is there twice"),
        ("oneshot", "often", "line 10: expected `id`, `oneshot`"),
        ("oneshot", "", "line 10: expected `oneshot`, `multishot` or `barrier`"),
        (" count 2", "", "line 12: expected `count`"),
        ("trigger id 1 oneshot", "failure switch_type TOR", "line 10: expected no failures"),
    ] {
        let error = parse_traffic(&edited(CHAIN, from, to), Path::new("a.cm")).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "([A-Za-z_]{1,12} [0-9]{1,20}\n|.{0,40}\n){0,20}", at: usize, number: u64) {
        let name = Path::new("a");
        let _ = (parse_topology(&text, name), parse_traffic(&text, name));
        for whole in [PODS, LEAVES, CHAIN] {
            let lines: Vec<_> = whole.lines().collect();
            let at = at % lines.len();
            // One line replaced by something else, and one number by another.
            let other = format!("{}\n{text}\n{}", lines[..at].join("\n"), lines[at + 1..].join("\n"));
            let _ = (parse_topology(&other, name), parse_traffic(&other, name));
            let key = lines[at].split(' ').next().unwrap_or_default();
            let other = format!("{}\n{key} {number}\n{}", lines[..at].join("\n"), lines[at + 1..].join("\n"));
            let _ = (parse_topology(&other, name), parse_traffic(&other, name));
        }
    }
}
