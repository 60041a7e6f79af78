//! Topologies in files.

use crate::topology::{Config, Kind, Topology};
use cc::Rate;
use proptest::prelude::*;
use std::path::Path;
use time::Duration;

/// The topology, or what is said about the file.
fn build(text: &str) -> Result<Topology, String> {
    let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
    config.build(Path::new(".")).map_err(|error| error.to_string())
}

#[test]
fn every_shape_can_be_written() -> Result<(), String> {
    for (text, hosts) in [
        ("kind = 'star'\nhosts = 3", 3),
        ("kind = 'direct'", 2),
        ("kind = 'direct'\nlink = { rate = '25 Gb/s', length = 2 }", 2),
        ("kind = 'dumbbell'\nhosts_per_side = 2\nuplink = { rate = '10 Gb/s' }", 4),
        ("kind = 'leaf-spine'\nleaves = 2\nspines = 2\nhosts_per_leaf = 4\nbundle = 2", 8),
        ("kind = 'fat-tree'\nk = 4\nlink = { delay = '50 ns' }\ncore = { length = 100 }", 16),
        ("kind = 'rail'\nservers = 2\nnics = 4\nspines = 1", 8),
        ("kind = 'ring'\nswitches = 5\nhosts_per_switch = 1", 5),
        ("kind = 'dragonfly'\np = 2\na = 4\nh = 2\nglobal = { delay = '2 us' }", 72),
    ] {
        assert_eq!(build(text)?.hosts(), hosts, "{text}");
    }
    Ok(())
}

const CUSTOM: &str = "
    kind = 'custom'
    latency = '300 ns'
    link = { rate = '40 Gb/s', length = 2.5 }

    [[node]]
    name = 'middle'
    kind = 'switch'
    tier = 2

    [[node]]
    name = 'a'

    [[node]]
    name = 'b'
    kind = 'host'

    [[cable]]
    ends = ['a', 'middle']

    [[cable]]
    ends = ['middle', 'b']
    rate = '10 Gb/s'
    delay = '1 us'
    bit_errors = 1e-9

    [[change]]
    cable = 'b-middle'
    rate = '1 Gb/s'
";

#[test]
fn nodes_and_cables_can_be_written_one_by_one() -> Result<(), String> {
    let topology = build(CUSTOM)?;
    let names: Vec<_> = topology.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["a", "b", "middle"], "hosts come first");
    assert_eq!(topology.nodes[2].kind, Kind::Switch { tier: 2 });
    assert_eq!(topology.nodes.iter().map(|n| n.latency.as_nanos()).collect::<Vec<_>>(), [0, 0, 300]);
    let [first, second] = &topology.cables[..] else { return Err("two cables".to_owned()) };
    assert_eq!(
        (first.ends, first.rate, first.delay),
        ([0, 2], Rate::from_gbps(40), Duration::from_nanos(13))
    );
    assert_eq!((second.ends, second.rate, second.bit_errors), ([2, 1], Rate::from_gbps(1), 1e-9));
    assert_eq!(second.delay, Duration::from_micros(1));
    Ok(())
}

#[test]
fn errors_say_what_to_write() {
    let custom = |more: &str| {
        format!(
            "kind = 'custom'\nnode = [{{ name = 'a' }}, {{ name = 'b' }}, {{ name = 's', kind = 'switch' }}]\n{more}"
        )
    };
    let star = |more: &str| format!("kind = 'star'\nhosts = 2\n{more}");
    for (text, says) in [
        ("hosts = 2".to_owned(), "kind"),
        ("kind = 'tree'".to_owned(), "unknown variant `tree`"),
        (star("spines = 2"), "unknown field `spines`"),
        (star("link = { speed = 1 }"), "unknown field `speed`"),
        (star("link = { rate = '5 GB/s' }"), "write `40 Gb/s`"),
        (star("link = { delay = 5 }"), "write `5 us`"),
        (star("link = { delay = '5 us', length = 2 }"), "write one of them"),
        (star("latency = '1 min'"), "write a shorter time"),
        (star("latency = []"), "write a time as text"),
        (star("change = [{ cable = 'host0-s1' }]"), "did you mean `s0`?"),
        (star("change = [{ cable = 'host0-host1' }]"), "there is no cable `host0-host1`"),
        (star("change = [{ cable = 'host0-s0.1' }]"), "there is no cable `host0-s0.1`"),
        (star("change = [{ cable = 'host0' }]"), "there is no cable `host0`"),
        (star("change = [{ cable = 'host0-s0', rate = '0 Gb/s' }]"), "`host0-s0`: its rate is 0"),
        (star("change = [{ cable = 'host0-s0', speed = 1 }]"), "unknown field `speed`"),
        (custom(""), "the host `a` has no cable"),
        (custom("cable = [{ ends = ['a', 'a'] }]"), "both ends of a cable are at `a`"),
        (custom("cable = [{ ends = ['a', 'c'] }]"), "no node has the name `c`"),
        ("kind = 'custom'".to_owned(), "no hosts"),
        ("kind = 'custom'\nnode = [{ name = 'a-b' }]".to_owned(), "use letters, digits"),
        (
            "kind = 'custom'\nnode = [{ name = 'a' }, { name = 'a' }]".to_owned(),
            "two nodes have the name `a`",
        ),
        ("kind = 'custom'\nnode = [{ name = 'a', kind = 'switch', tier = 0 }]".to_owned(), "`tier` is 0"),
    ] {
        let error = build(&text).expect_err(says);
        assert!(error.contains(says), "{text}\n{error}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in ".{0,200}", key in "[a-z_]{1,8}", number: i64) {
        let _ = build(&text);
        let _ = build(&format!("{CUSTOM}\n{text}"));
        let _ = build(&format!("kind = 'fat-tree'\nk = {number}\n{key} = {number}"));
        let _ = build(&format!("kind = 'dragonfly'\np = 1\na = {number}\nh = 3\n"));
    }
}
