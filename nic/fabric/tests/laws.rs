//! What holds in every fabric: no packet is lost without a reason, no buffer holds more than it has, and the same seed gives the
//! same bytes.

use proptest::prelude::*;
use rnic_fabric::scenario::{Scenario, builtin};
use std::path::Path;

/// A scenario of random parts. Every combination is valid.
fn scenario() -> impl Strategy<Value = String> {
    let topology = prop::sample::select(vec![
        "kind = \"star\"\nhosts = 6",
        "kind = \"dumbbell\"\nhosts_per_side = 3",
        "kind = \"leaf-spine\"\nleaves = 3\nspines = 2\nhosts_per_leaf = 2",
        "kind = \"fat-tree\"\nk = 4",
        "kind = \"ring\"\nswitches = 4\nhosts_per_switch = 2",
    ]);
    let switch = prop::sample::select(vec![
        "",
        "class = [{}, {}, {}, { lossless = true, alpha = 0.25 }]",
        "class = [{}, {}, {}, { lossless = true, xoff = \"20 KB\", headroom_error = -15000 }]\nforwarding = \"cut-through\"",
        "buffer = { shared = \"100 KB\" }\nred = { kmin = 5000, kmax = 50000, pmax = 0.1 }",
        "model = \"infiniband\"\nhead_of_queue = \"100 us\"\nlifetime = \"400 us\"",
    ]);
    let balance = prop::sample::select(vec![
        "ecmp", "letflow", "flowlet", "drill", "spray", "adaptive", "conga", "glb",
    ]);
    let pattern = prop::sample::select(vec![
        "pattern = \"permutation\"\nbytes = \"300 KB\"",
        "pattern = \"all-to-all\"\nbytes = \"50 KB\"",
        "pattern = \"incast\"\nto = \"host0\"\nbytes = \"200 KB\"",
        "pattern = \"poisson\"\nload = 0.5\nsizes = \"hadoop\"\ntime = \"300 us\"",
        "pattern = \"request-response\"\nserver = \"host1\"\nclients = 3\nrequest = \"200\"\nresponse = \"30 KB\"\ncount = 5",
    ]);
    let carried = prop::sample::select(vec![
        "operation = \"write\"",
        "operation = \"send\"",
        "operation = \"read\"",
        "operation = \"send\"\nservice = \"uc\"",
        "operation = \"send\"\nservice = \"ud\"\nmessage = 2000\ndepth = 32",
    ]);
    let control =
        prop::sample::select(vec!["off", "dcqcn:preset=paper", "timely", "swift", "nscc", "ibcc", "hpcc"]);
    let change = prop::sample::select(vec![
        "",
        "[[change]]\nwhat = \"storm\"\nhost = \"host1\"\nclasses = [3]\nat = \"20 us\"\nuntil = \"200 us\"",
    ]);
    (topology, switch, balance, pattern, carried, control, change).prop_map(
        |(topology, switch, balance, pattern, carried, control, change)| {
            format!(
                "name = \"random\"\nabout = \"random\"\nuntil = \"1500 us\"\n[topology]\n{topology}\n[switch]\n{switch}\n\
                 balance = {{ mode = \"{balance}\" }}\n[nic]\ncc = \"{control}\"\ntimeout = 5\n[[workload]]\n{pattern}\n{carried}\n\
                 priority = 3\nspread = \"20 us\"\n{change}\n"
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("RNIC_LONG").is_some() { 2_000 } else { 40 }))]

    /// A run ends with a check of all accounts.
    #[test]
    fn every_packet_is_accounted_for(text in scenario(), seed in 0_u64..1_000) {
        let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let report = scenario.run(Path::new("."), seed, &mut |_| true).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let packets = &report.packets;
        prop_assert_eq!(packets.entered, packets.delivered + packets.inside + packets.drops.values().sum::<u64>());
        prop_assert!(packets.hops >= packets.delivered);
        let again = scenario.run(Path::new("."), seed, &mut |_| true).expect("it ran before");
        let text_of = |report| serde_json::to_string(report).expect("a report");
        prop_assert_eq!(text_of(&report), text_of(&again), "the same seed twice");
    }
}

#[test]
fn another_seed_gives_another_run() {
    let text = builtin("permutation").expect("it comes with rnic").text;
    let scenario = Scenario::read(text).expect("it reads");
    let report = |seed| {
        let report = scenario.run(Path::new("."), seed, &mut |_| true).expect("it runs");
        serde_json::to_string(&report.flows).expect("flows")
    };
    assert_ne!(report(1), report(2));
}

#[test]
fn a_run_that_is_interrupted_reports_what_there_is() {
    let text = builtin("permutation").expect("it comes with rnic").text;
    let scenario = Scenario::read(text).expect("it reads");
    let mut asked = 0;
    let report = scenario.run(Path::new("."), 1, &mut |_| {
        asked += 1;
        asked < 3
    });
    let report = report.expect("it runs");
    assert!(!report.is_whole && report.packets.delivered > 0 && report.packets.inside > 0);
}

#[test]
fn loads_count_from_when_measuring_begins_and_idle_ports_have_none() {
    let text = r#"
        name = "load"
        about = "A test."
        until = "2 ms"
        measure_from = "1 ms"
        topology = { kind = "star", hosts = 3 }
        [[workload]]
        pattern = "flows"
        flow = [{ from = "host1", to = "host0", start = "1 ms" }]
    "#;
    let scenario = Scenario::read(text).expect("it reads");
    let report = scenario.run(Path::new("."), 1, &mut |_| true).expect("it runs");
    let of = |port: &str, what: &str| report.metrics.get(&format!("port.{port}.{what}"));
    assert!(of("s0>host0", "load").is_some_and(|load| (0.95..=1.0).contains(&load)), "not half of it");
    for what in ["load", "drops", "queue_peak", "paused_us", "marked", "stuck"] {
        assert_eq!(of("host2>s0", what), Some(0.0), "{what}");
    }
    assert!(report.ports.iter().all(|port| port.name != "host2>s0"), "nothing is to be said of it");
}

/// Whoever looks at a run must not change it.
#[test]
fn samples_do_not_change_a_run() {
    let text = |sample: &str| {
        format!(
            r#"
            name = "sampled"
            about = "A test."
            until = "500 us"
            topology = {{ kind = "leaf-spine", leaves = 2, spines = 2, hosts_per_leaf = 4 }}
            switch = {{ balance = {{ mode = "spray" }} }}
            [nic]
            mtu = 1024
            selective_repeat = true
            [[workload]]
            pattern = "permutation"
            bytes = "256 KiB"
            depth = 8
            {sample}
            "#
        )
    };
    let run = |sample: &str| {
        let scenario = Scenario::read(&text(sample)).unwrap_or_else(|error| panic!("{error}"));
        let report = scenario.run(Path::new("."), 3, &mut |_| true).expect("it runs");
        (serde_json::to_string(&report.flows).expect("flows"), report.packets)
    };
    let unseen = run("");
    assert!(unseen.1.delivered > 1000, "{:?}", unseen.1);
    for interval in ["1 us", "7 us"] {
        let sample = format!(
            "[sample]\ninterval = \"{interval}\"\nports = [\"leaf0>spine0\"]\nflows = [\"host0-host1\"]"
        );
        assert!(run(&sample) == unseen, "every {interval}");
    }
}
