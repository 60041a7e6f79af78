//! The usual shapes have the sizes of their formulas.

use crate::topology::builtin::{Direct, Dragonfly, Dumbbell, FatTree, LeafSpine, Rail, Ring, Star};
use crate::topology::{Kind, Link, MAX_HOSTS, Topology, TopologyError};
use cc::Rate;
use time::Duration;

fn switches(topology: &Topology, tier: u8) -> usize {
    topology.nodes.iter().filter(|node| node.kind == Kind::Switch { tier }).count()
}

/// Hosts, switches and cables.
fn size(topology: &Topology) -> (usize, usize, usize) {
    (topology.hosts(), topology.nodes.len() - topology.hosts(), topology.cables.len())
}

#[test]
fn small_shapes_are_as_drawn() -> Result<(), TopologyError> {
    assert_eq!(size(&Star::new(5).build()?), (5, 1, 5));
    assert_eq!(size(&Direct::default().build()?), (2, 0, 1));
    assert_eq!(size(&Dumbbell::new(3).build()?), (6, 2, 7));
    assert_eq!(size(&Ring::new(4, 2).build()?), (8, 4, 12));
    let ring = Ring::new(4, 1).build()?;
    for name in ["s0-s1", "s1-s2", "s2-s3", "s3-s0", "host2-s2"] {
        assert_eq!(ring.cables_named(name)?.len(), 1, "{name}");
    }
    Ok(())
}

#[test]
fn fat_trees_have_the_sizes_of_the_formulas() -> Result<(), TopologyError> {
    for k in [2, 4, 8, 16] {
        let tree = FatTree::new(k).build()?;
        assert_eq!(size(&tree), (k * k * k / 4, 5 * k * k / 4, 3 * k * k * k / 4), "k {k}");
        assert_eq!(
            (1..=3).map(|tier| switches(&tree, tier)).collect::<Vec<_>>(),
            [k * k / 2, k * k / 2, k * k / 4]
        );
        // Every switch has k ports.
        let ports = tree.ports();
        assert!(ports[tree.hosts()..].iter().all(|ports| ports.len() == k), "k {k}");
    }
    Ok(())
}

#[test]
fn leaves_and_spines_with_bundles() -> Result<(), TopologyError> {
    let shape = LeafSpine {
        bundle: 2,
        link: Link::metres(Rate::from_gbps(100), 3.0),
        uplink: Link { rate: Some(Rate::from_gbps(400)), ..Link::default() },
        ..LeafSpine::new(4, 2, 32)
    };
    let topology = shape.build()?;
    assert_eq!(size(&topology), (128, 6, 128 + 16));
    assert_eq!(shape.oversubscription(), 2.0);
    assert_eq!(LeafSpine::new(32, 8, 32).oversubscription(), 4.0);
    let bundle = topology.cables_named("leaf0-spine1")?;
    assert_eq!(bundle.len(), 2);
    assert_eq!(topology.cables_named("spine1-leaf0.1")?, bundle[1..]);
    assert_eq!(topology.cable_name(bundle[1]), "leaf0-spine1.1");
    assert_eq!(topology.cable_name(0), "host0-leaf0");
    let cable = &topology.cables[bundle[0]];
    assert_eq!((cable.rate, cable.delay), (Rate::from_gbps(400), Duration::from_nanos(15)));
    Ok(())
}

#[test]
fn a_rail_joins_the_same_nic_of_all_servers() -> Result<(), TopologyError> {
    let topology = Rail::new(4, 8, 2).build()?;
    assert_eq!(size(&topology), (32, 10, 32 + 16));
    for server in 0..4 {
        topology.cables_named(&format!("host{}-leaf5", server * 8 + 5))?;
    }
    Ok(())
}

#[test]
fn dragonflies_connect_every_two_groups_once() -> Result<(), TopologyError> {
    for (p, a, h) in [(1, 1, 1), (1, 2, 1), (2, 4, 2), (1, 3, 2), (4, 8, 4)] {
        let topology = Dragonfly::new(p, a, h).build()?;
        let groups = a * h + 1;
        let cables = a * p * groups + groups * a * (a - 1) / 2 + groups * (groups - 1) / 2;
        assert_eq!(size(&topology), (a * p * groups, a * groups, cables));
        let hosts = topology.hosts();
        let ports = topology.ports();
        assert!(ports[hosts..].iter().all(|ports| ports.len() == p + a - 1 + h), "{p} {a} {h}");
        let group = |node| (node - hosts) / a;
        let mut pairs: Vec<_> = topology.cables[hosts..].iter().map(|c| c.ends.map(group)).collect();
        pairs.retain(|[one, other]| one != other);
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), groups * (groups - 1) / 2);
    }
    Ok(())
}

#[test]
fn impossible_parameters_are_refused_with_what_to_write() {
    for (topology, says) in [
        (Star::new(0).build(), "`hosts` is 0; write 1 or more"),
        (Star::new(MAX_HOSTS + 1).build(), "make it smaller"),
        (Dumbbell::new(usize::MAX).build(), "make it smaller"),
        (FatTree::new(0).build(), "`k` is 0; write 1 or more"),
        (FatTree::new(5).build(), "write 6"),
        (FatTree::new(66).build(), "make it smaller"),
        (FatTree::new(usize::MAX - 1).build(), "make it smaller"),
        (Ring::new(2, 1).build(), "write 3 or more"),
        (Ring::new(5, 0).build(), "`hosts_per_switch` is 0"),
        (LeafSpine::new(2, 0, 1).build(), "`spines` is 0"),
        (LeafSpine { bundle: usize::MAX, ..LeafSpine::new(2, 2, 2) }.build(), "cables, and at most"),
        (Rail::new(1, 0, 1).build(), "`nics` is 0"),
        (Dragonfly::new(1, usize::MAX, usize::MAX).build(), "make it smaller"),
        (Dragonfly::new(1, 0, 1).build(), "`a` is 0"),
    ] {
        let error = topology.expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn the_largest_star_and_the_largest_fat_tree_can_be_built() -> Result<(), TopologyError> {
    assert_eq!(Star::new(MAX_HOSTS).build()?.hosts(), MAX_HOSTS);
    assert_eq!(FatTree::new(64).build()?.hosts(), MAX_HOSTS);
    Ok(())
}
