//! Every way arrives, and the numbers of ways are those of the formulas.

use super::*;
use crate::topology::Topology;
use crate::topology::builtin::{Direct, Dragonfly, Dumbbell, FatTree, LeafSpine, Rail, Ring, Star};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Follows all ways between all hosts. Every way must arrive, over at most so many cables.
fn check_all(topology: &Topology, routes: &Routes, most: usize) {
    let ports = topology.ports();
    for to in 0..topology.hosts() {
        let mut known = vec![None; topology.nodes.len()];
        for from in 0..topology.hosts() {
            let paths = match known[from] {
                // It has been reached on the way from another host, which it must not be.
                Some(_) if from != to => panic!("{from} is on a way to {to}"),
                _ => routes.paths_from(&ports, from, to, &mut known),
            };
            assert!(paths.complete && paths.count > 0 && paths.longest <= most, "{from} to {to}: {paths:?}");
        }
    }
}

#[test]
fn every_way_arrives_in_every_shape() -> Result {
    for (topology, most) in [
        (Star::new(5).build()?, 2),
        (Direct::default().build()?, 1),
        (Dumbbell::new(3).build()?, 3),
        (LeafSpine { bundle: 2, ..LeafSpine::new(4, 3, 5) }.build()?, 4),
        (FatTree::new(2).build()?, 6),
        (FatTree::new(4).build()?, 6),
        (FatTree::new(8).build()?, 6),
        (Rail::new(4, 4, 2).build()?, 4),
        (Ring::new(5, 2).build()?, 4),
        (Ring::new(8, 1).build()?, 6),
        // From a router to that with the global cable, to the other group, and to the destination's router.
        (Dragonfly::new(2, 4, 2).build()?, 5),
    ] {
        check_all(&topology, &Routes::shortest(&topology), most);
        // The order of up and down can take a longer way, but always a way, from any root.
        for root in topology.hosts()..topology.nodes.len() {
            check_all(&topology, &Routes::up_down(&topology, &[root]), topology.nodes.len());
        }
    }
    Ok(())
}

#[test]
fn fat_trees_have_as_many_ways_as_the_formulas_say() -> Result {
    for k in [4, 8, 16] {
        let topology = FatTree::new(k).build()?;
        let routes = Routes::shortest(&topology);
        let (half, hosts) = (k / 2, topology.hosts());
        let ways = |from, to| {
            let paths = routes.paths(&topology, from, to);
            assert!(paths.complete && paths.shortest == paths.longest, "{paths:?}");
            (paths.longest, paths.count as usize)
        };
        assert_eq!(ways(0, 1), (2, 1), "at one edge switch");
        assert_eq!(ways(0, half), (4, half), "in one pod");
        assert_eq!(ways(0, hosts - 1), (6, half * half), "between pods");
    }
    Ok(())
}

#[test]
fn tables_are_small_for_a_thousand_hosts() -> Result {
    let topology = FatTree::new(16).build()?;
    let routes = Routes::shortest(&topology);
    check_all(&topology, &routes, 6);
    // 320 switches and 128 kinds of hosts, for 128 edge switches, 4 bytes each.
    assert_eq!(routes.table.len(), (320 + 128) * 128);
    assert!(routes.bytes() < 300 << 10, "{} bytes", routes.bytes());
    Ok(())
}

#[test]
fn ports_lead_to_the_host_and_not_to_itself() -> Result {
    let topology = LeafSpine::new(2, 2, 2).build()?;
    let routes = Routes::shortest(&topology);
    let [leaf0, spine0] = [topology.node("leaf0")?, topology.node("spine0")?];
    assert_eq!(routes.ports(leaf0, 1), [1], "its own host");
    assert_eq!(routes.ports(leaf0, 2), [2, 3], "both spines");
    assert_eq!(routes.ports(spine0, 2), [1], "the second leaf");
    assert_eq!(routes.ports(0, 2), [0]);
    assert_eq!(routes.ports(0, 1), [0]);
    assert!(routes.ports(0, 0).is_empty());
    assert!(routes.ports(0, 99).is_empty() && routes.ports(99, 0).is_empty());
    Ok(())
}

#[test]
fn hosts_with_several_cables_take_those_that_are_nearest() -> Result {
    let text = "
        kind = 'custom'
        node = [{ name = 'a' }, { name = 'b' }, { name = 'c' }, { name = 's', kind = 'switch' }, { name = 't', kind = 'switch' }]
        cable = [{ ends = ['a', 's'] }, { ends = ['a', 't'] }, { ends = ['b', 's'] }, { ends = ['b', 't'] }, { ends = ['c', 't'] }]
    ";
    let config: crate::topology::Config = toml::from_str(text)?;
    let topology = config.build(std::path::Path::new("."))?;
    let routes = Routes::shortest(&topology);
    assert_eq!(routes.ports(0, 1), [0, 1], "through both switches");
    assert_eq!(routes.ports(0, 2), [1], "only t has c");
    let s = topology.node("s")?;
    assert!(routes.ports(s, 2).is_empty(), "hosts pass nothing on");
    Ok(())
}

#[test]
fn rings_are_cyclic_and_up_down_is_not() -> Result {
    // In a ring of 3 every way is one cable long, so no packet waits between switches. In a ring of 4, both ways to the switch
    // opposite are used, which closes the circle.
    for (switches, cyclic) in [(3, false), (4, true), (5, true), (8, true)] {
        let topology = Ring::new(switches, 1).build()?;
        let dependencies = Routes::shortest(&topology).dependencies(&topology);
        assert_eq!(dependencies.cycle().is_some(), cyclic, "{switches}: {dependencies}");
        for root in topology.hosts()..topology.nodes.len() {
            let dependencies = Routes::up_down(&topology, &[root]).dependencies(&topology);
            assert_eq!(dependencies.cycle(), None, "{switches}");
        }
    }
    let topology = Ring::new(5, 1).build()?;
    let dependencies = Routes::shortest(&topology).dependencies(&topology);
    assert_eq!(dependencies.describe_cycle(&topology).as_deref(), Some("s0 > s1 > s2 > s3 > s4 > s0"));
    // 5 hosts send, and 10 directions lie between switches. Only the latter wait: a way has at most two of them.
    assert_eq!(dependencies.to_string(), "15 channels, 20 dependencies, a cycle of 5");
    Ok(())
}

#[test]
fn trees_are_acyclic() -> Result {
    for topology in [
        Star::new(4).build()?,
        Direct::default().build()?,
        LeafSpine::new(4, 4, 2).build()?,
        FatTree::new(4).build()?,
        Rail::new(2, 4, 2).build()?,
    ] {
        assert_eq!(Routes::shortest(&topology).dependencies(&topology).cycle(), None);
    }
    let dragonfly = Dragonfly::new(2, 4, 2).build()?;
    let cycle = Routes::shortest(&dragonfly).dependencies(&dragonfly).describe_cycle(&dragonfly);
    assert!(cycle.is_some(), "it needs two virtual lanes");
    Ok(())
}

#[test]
fn failed_cables_are_avoided_until_they_are_repaired() -> Result {
    let topology = LeafSpine::new(3, 2, 2).build()?;
    let config: Config = toml::from_str("failed = ['leaf0-spine0']")?;
    let mut routes = Routes::new(&topology, &config)?;
    check_all(&topology, &routes, 4);
    let [leaf0, leaf1, spine0] = [topology.node("leaf0")?, topology.node("leaf1")?, topology.node("spine0")?];
    assert_eq!(routes.ports(leaf0, 2), [3]);
    assert_eq!(routes.ports(leaf1, 0), [3], "the other side knows it too");
    // What is on its way when the cable fails still has a way.
    assert!(!routes.ports(spine0, 0).is_empty());
    let [cable] = topology.cables_named("leaf0-spine0")?[..] else { panic!("one cable") };
    routes.up(&topology, cable);
    assert_eq!(routes.ports(leaf0, 2), [2, 3]);
    routes.down(&topology, cable);
    assert_eq!((routes.ports(leaf0, 2), routes.failed().len()), (&[3][..], 1));
    // A host without its cable cannot be reached, and reaches nobody.
    routes.down(&topology, 0);
    assert!(routes.ports(leaf0, 0).is_empty() && routes.ports(leaf1, 0).is_empty());
    assert!(routes.ports(0, 3).is_empty() && !routes.ports(1, 3).is_empty());
    assert!(!routes.paths(&topology, 1, 0).complete);
    Ok(())
}

#[test]
fn fixed_entries_can_make_a_loop() -> Result {
    let topology = Ring::new(4, 1).build()?;
    let config: Config = toml::from_str(
        "fixed = [
            { switch = 's0', host = 'host2', to = 's1' },
            { switch = 's1', host = 'host2', port = 1 },
        ]",
    )?;
    let routes = Routes::new(&topology, &config)?;
    let [s0, s1] = [topology.node("s0")?, topology.node("s1")?];
    // s1's ports are its host, then s0, then s2.
    assert_eq!((routes.ports(s0, 2), routes.ports(s1, 2)), (&[1][..], &[1][..]));
    assert!(!routes.paths(&topology, 0, 2).complete);
    assert!(routes.paths(&topology, 0, 3).complete, "other hosts have their ways");
    let cycle = routes.dependencies(&topology).cycle().map(<[_]>::len);
    assert_eq!(cycle, Some(2));
    Ok(())
}

#[test]
fn errors_name_what_there_is_not() -> Result {
    let topology = LeafSpine::new(2, 1, 1).build()?;
    for (text, says) in [
        ("ways = 'up-down'\nroots = ['spin0']", "did you mean `spine0`?"),
        ("ways = 'up-down'\nroots = ['host0']", "hosts pass nothing on"),
        ("failed = ['leaf0-leaf1']", "there is no cable `leaf0-leaf1`"),
        ("fixed = [{ switch = 'host0', host = 'host1', port = 0 }]", "`host0` is a host"),
        ("fixed = [{ switch = 'leaf0', host = 'leaf1', port = 0 }]", "`leaf1` is a switch"),
        ("fixed = [{ switch = 'leaf0', host = 'host1', port = 2 }]", "it has ports 0 to 1"),
        (
            "fixed = [{ switch = 'leaf0', host = 'host1', to = 'leaf1' }]",
            "no cable leads from `leaf0` to `leaf1`",
        ),
        ("fixed = [{ switch = 'leaf0', host = 'host1' }]", "write one of them"),
    ] {
        let config: Config = toml::from_str(text)?;
        let error = Routes::new(&topology, &config).err().ok_or(says)?.to_string();
        assert!(error.contains(says), "{error}");
    }
    let config: Config = toml::from_str("ways = 'up-down'")?;
    check_all(&topology, &Routes::new(&topology, &config)?, 4);
    Ok(())
}

#[test]
fn up_and_down_of_a_fat_tree_are_its_shortest_ways() -> Result {
    let topology = FatTree::new(4).build()?;
    let config: Config = toml::from_str("ways = 'up-down'")?;
    let (routes, shortest) = (Routes::new(&topology, &config)?, Routes::shortest(&topology));
    for node in 0..topology.nodes.len() {
        for host in 0..topology.hosts() {
            assert_eq!(routes.ports(node, host), shortest.ports(node, host), "{node} to {host}");
        }
    }
    Ok(())
}
