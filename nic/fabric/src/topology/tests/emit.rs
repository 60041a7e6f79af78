//! Topologies for people and other programs.

use crate::topology::builtin::{Direct, Dragonfly, FatTree, LeafSpine, Ring, Star};
use crate::topology::emit::{dot, ibnetdiscover};
use crate::topology::{Link, TopologyError};
use cc::Rate;
use time::Duration;

#[test]
fn ibsim_can_read_it() -> Result<(), TopologyError> {
    let link = Link::new(Rate::from_gbps(400), Duration::from_nanos(15));
    let text = ibnetdiscover(&LeafSpine { bundle: 2, link, ..LeafSpine::new(2, 1, 1) }.build()?);
    let leaf = "switchguid=0x0200000000000300
Switch\t3 \"leaf0\"\t\t# \"leaf0\" base port 0 lid 3 lmc 0
[1]\t\"host0\"[1](200000000000101)\t\t# \"host0\" lid 1 4xNDR
[2]\t\"spine0\"[1]\t\t# \"spine0\" lid 5 4xNDR
[3]\t\"spine0\"[2]\t\t# \"spine0\" lid 5 4xNDR

";
    assert!(text.contains(leaf), "{text}");
    let host = "caguid=0x0200000000000200
Ca\t1 \"host1\"\t\t# \"host1\"
[1](200000000000201)\t\"leaf1\"[1]\t\t# lid 2 lmc 0 \"leaf1\" lid 4 4xNDR

";
    assert!(text.contains(host), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with('[')).count(), 2 * 6, "both ends of each cable");
    Ok(())
}

#[test]
fn every_rate_has_a_port() -> Result<(), TopologyError> {
    for (mbps, port) in [
        (1, "1xSDR"),
        (2_500, "1xSDR"),
        (10_000, "4xSDR"),
        (25_000, "1xEDR"),
        (40_000, "4xQDR"),
        (56_250, "4xFDR"),
        (100_000, "4xEDR"),
        (150_000, "4xEDR"),
        (200_000, "4xHDR"),
        (400_000, "4xNDR"),
        (800_000, "8xNDR"),
        (9_000_000, "12xNDR"),
    ] {
        let text = ibnetdiscover(&Direct { link: Link::new(Rate::from_mbps(mbps), Duration::ZERO) }.build()?);
        assert_eq!(text.matches(&format!(" {port}\n")).count(), 2, "{mbps}: {text}");
    }
    Ok(())
}

#[test]
fn graphviz_can_draw_it() -> Result<(), TopologyError> {
    let text =
        dot(&Star { link: Link { bit_errors: Some(1e-9), ..Link::default() }, ..Star::new(2) }.build()?);
    let expected = r#"graph fabric {
  rankdir = BT;
  node [shape = box];
  { rank = same; node [shape = ellipse]; "host0"; "host1"; }
  { rank = same; node [shape = box]; "s0"; }
  "host0" -- "s0" [label = "100 Gb/s, 1µs, 1e-9"];
  "host1" -- "s0" [label = "100 Gb/s, 1µs, 1e-9"];
}
"#;
    assert_eq!(text, expected);
    Ok(())
}

#[test]
fn a_description_sums_it_up() -> Result<(), TopologyError> {
    let mut topology = LeafSpine { bundle: 2, ..LeafSpine::new(4, 2, 8) }.build()?;
    topology.nodes[32].latency = Duration::from_nanos(400);
    let expected = "32 hosts, 6 switches, 48 cables
tier 1: 4 switches of 12 ports, latency 400ns, oversubscription 2.00
tier 2: 2 switches of 8 ports
hosts to tier 1: 32 cables, 100 Gb/s, 1µs
tier 1 to tier 2: 16 cables, 100 Gb/s, 1µs
2 cables between 22.6 % of all pairs of hosts
4 cables between 77.4 % of all pairs of hosts
between halves: 800 Gb/s, 50.0 % of what the hosts can send";
    assert_eq!(topology.describe().to_string(), expected);
    Ok(())
}

#[test]
fn lengths_and_bisections_are_those_of_the_formulas() -> Result<(), TopologyError> {
    let rate = Rate::from_gbps(100).bits_per_second();
    for k in [4_u64, 8, 16] {
        let about = FatTree::new(k as usize).build()?.describe();
        let hosts = k * k * k / 4;
        assert_eq!((about.bisection, about.half), (rate * hosts / 2, rate * hosts / 2), "k {k}");
        let (edge, pod) = (k / 2, k * k / 4);
        let expected = [(2, hosts * (edge - 1)), (4, hosts * (pod - edge)), (6, hosts * (hosts - pod))];
        assert_eq!(about.lengths.into_iter().collect::<Vec<_>>(), expected, "k {k}");
        assert_eq!(about.unreachable, 0);
    }
    // Two cables of a ring lie between its halves.
    assert_eq!(Ring::new(6, 4).build()?.describe().bisection, 2 * rate);
    let about = Direct::default().build()?.describe();
    assert_eq!((about.bisection, about.lengths.into_iter().collect::<Vec<_>>()), (rate, vec![(1, 2)]));
    let about = Dragonfly::new(2, 4, 2).build()?.describe();
    assert_eq!(about.lengths.keys().copied().collect::<Vec<_>>(), [2, 3, 4, 5]);
    assert_eq!(about.lengths.values().sum::<u64>(), 72 * 71);
    Ok(())
}
