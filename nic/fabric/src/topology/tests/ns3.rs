//! Files of the ns-3 simulations.

use super::example;
use crate::topology::Config;
use crate::topology::Kind;
use crate::topology::ns3::{flows, parse_flows, parse_topology, topology};
use crate::topology::traffic::Start;
use cc::Rate;
use proptest::prelude::*;
use std::path::Path;
use time::Duration;

const LEAVES: &str = include_str!("../../../tests/data/two_leaves.txt");
const FLOWS: &str = include_str!("../../../tests/data/two_leaves_flows.txt");

fn edited(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

#[test]
fn nodes_keep_their_numbers_and_tiers_follow_from_the_cables() -> Result<(), Box<dyn std::error::Error>> {
    let config: Config = toml::from_str("kind = 'ns3'\nfile = 'two_leaves.txt'")?;
    let topology = config.build(&example(""))?;
    let nodes: Vec<_> = topology.nodes.iter().map(|node| (&*node.name, node.kind.tier())).collect();
    let expected = [("host0", 0), ("host1", 0), ("host2", 0), ("host3", 0), ("s4", 1), ("s5", 1), ("s6", 2)];
    assert_eq!(nodes, expected);
    assert_eq!(topology.cables_named("s4-s6")?.len(), 2);
    assert!(topology.cables[..3].iter().all(|cable| cable.delay == Duration::from_micros(1)));
    assert_eq!(topology.cables[0].rate, Rate::from_gbps(25));
    // One packet of 1,048 bytes in a hundred is lost.
    let lost = 1.0 - (1.0 - topology.cables[3].bit_errors).powf(8.0 * 1048.0);
    assert!((lost - 0.01).abs() < 1e-9, "{lost}");
    assert_eq!(topology.cables[0].bit_errors, 0.0);
    Ok(())
}

#[test]
fn switches_may_come_first() -> Result<(), Box<dyn std::error::Error>> {
    let topology = parse_topology("3 1 2\n0\n1 0 10Gbps 1us 0\n0 2 10Gbps 1us 0\n", Path::new("a.txt"))?;
    let names: Vec<_> = topology.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["host1", "host2", "s0"]);
    assert_eq!(topology.nodes[2].kind, Kind::Switch { tier: 1 });
    let traffic = parse_flows("1\n2 1 3 100 5 0.5\n", Path::new("flows.txt"), &topology)?;
    assert_eq!((traffic.flows[0].from, traffic.flows[0].to), (1, 0));
    Ok(())
}

#[test]
fn notes_at_the_end_are_not_read() -> Result<(), Box<dyn std::error::Error>> {
    let name = Path::new("a.txt");
    let topology = parse_topology(LEAVES, name)?;
    assert_eq!(
        parse_topology(&format!("{LEAVES}\n\nFirst line: nodes, switches, cables\n"), name)?,
        topology
    );
    let traffic = parse_flows(FLOWS, name, &topology)?;
    assert_eq!(parse_flows(&format!("{FLOWS}\nsource destination\n"), name, &topology)?, traffic);
    Ok(())
}

#[test]
fn flows_are_between_hosts_of_the_topology() -> Result<(), Box<dyn std::error::Error>> {
    let topology = topology(&example("two_leaves.txt"))?;
    let traffic = flows(&example("two_leaves_flows.txt"), &topology)?;
    let second = traffic.flows[1];
    assert_eq!((second.from, second.to, second.bytes), (3, 0, 1500));
    assert_eq!((second.priority, second.port), (Some(3), Some(100)));
    assert_eq!(second.start, Start::At(2_000_000_001_000));
    assert!(traffic.triggers.is_empty());
    for (from, to, says) in [
        ("0 3 3", "4 3 3", "f, line 2: expected the number of a host instead of `4`"),
        ("0 3 3", "3 3 3", "line 2: expected two different hosts"),
        ("20000", "many", "line 2: expected a number of bytes instead of `many`"),
        ("2.5", "-1", "line 4: expected the start in seconds instead of `-1`"),
        ("2.5", "99999999", "within 213 days"),
        ("2.5", "", "line 4: expected the start in seconds"),
        ("3\n", "4\n", "line 4: expected 4 flows"),
    ] {
        let error =
            parse_flows(&edited(FLOWS, from, to), Path::new("f"), &topology).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    Ok(())
}

#[test]
fn errors_name_the_file_and_the_line() {
    for (from, to, says) in [
        ("7 3 8", "7 3", "a.txt, line 1: expected the number of cables"),
        ("7 3 8", "7 8 8", "line 1: expected at most as many switches as nodes, 7"),
        ("7 3 8", "9999999999 3 8", "make it smaller"),
        ("7 3 8", "7 3 9", "line 10: expected 9 cables, as the first line says, instead of 8"),
        ("4 5 6", "4 5 5", "line 2: expected the number of another switch, below 7, instead of `5`"),
        ("4 5 6", "4 5 6 3", "line 2: expected 3 switches"),
        ("0 4 25Gbps", "0 7 25Gbps", "line 3: expected the number of a node, below 7"),
        ("0 4 25Gbps", "0 4 fast", "line 3: expected a rate instead of `fast`"),
        ("0 4 25Gbps", "0 4 0Gbps", "line 3: expected a rate of more than 0"),
        ("1us", "1", "line 3: expected a delay instead of `1`"),
        ("1us", "1min", "line 3: expected a delay of at most 1 s"),
        ("0.01", "1", "line 6: expected a share of lost packets from 0"),
        ("0 4 25Gbps", "4 4 25Gbps", "both ends of a cable are at `s4`"),
        ("0 4 25Gbps", "1 4 25Gbps", "the host `host0` has no cable"),
    ] {
        let error =
            parse_topology(&edited(LEAVES, from, to), Path::new("a.txt")).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    for lines in 0..LEAVES.lines().count() {
        let part: String = LEAVES.lines().take(lines).map(|line| format!("{line}\n")).collect();
        assert!(parse_topology(&part, Path::new("a.txt")).is_err(), "{lines} lines");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "([0-9]{1,3} ?){0,9}\n.{0,60}\n(.{0,30}\n){0,9}", at: usize) {
        let name = Path::new("a");
        let _ = parse_topology(&text, name);
        let cut: String = LEAVES.chars().take(at % LEAVES.len()).collect();
        let _ = parse_topology(&format!("{cut}{text}"), name);
        if let Ok(topology) = parse_topology(LEAVES, name) {
            let cut: String = FLOWS.chars().take(at % FLOWS.len()).collect();
            let _ = parse_flows(&format!("{cut}{text}"), name, &topology);
        }
    }
}
