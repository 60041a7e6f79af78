//! In-network reduction: results, bytes, losses, copies, and what happens where switches do not add.

use rnic_fabric::report::Report;
use rnic_fabric::run::Run;
use rnic_fabric::scenario::Scenario;
use std::path::Path;
use time::Duration;

const STAR: &str = "topology = { kind = \"star\", hosts = 8 }";
const LEAVES: &str = "topology = { kind = \"leaf-spine\", leaves = 3, spines = 2, hosts_per_leaf = 3 }";

fn scenario(topology: &str, slots: u32, operation: &str) -> Scenario {
    let text = format!(
        r#"
        name = "reduction"
        about = "A test."
        until = "1 s"
        {topology}
        switch = {{ class = [{{}}, {{}}, {{}}, {{ lossless = true, alpha = 0.125 }}], reduction = {{ slots = {slots} }} }}
        [[workload]]
        pattern = "collective"
        collective = "all-reduce"
        algorithm = "in-network"
        name = "it"
        {operation}
        "#
    );
    Scenario::read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn run(scenario: &Scenario) -> Report {
    let report = scenario.run(Path::new("."), 1, &mut |_| true).expect("it runs");
    assert_eq!(report.metrics.get("it.verified"), Some(1.0));
    report
}

fn metric(report: &Report, name: &str) -> f64 {
    report.metrics.get(name).unwrap_or_else(|| panic!("there is no {name}"))
}

#[test]
fn a_switch_that_adds_takes_each_vector_once() {
    let bytes = 1_000_000.0;
    let report = run(&scenario(STAR, 64, "bytes = 1000000"));
    let ratio = metric(&report, "it.bytes_per_host") / (2.0 * 7.0 / 8.0 * bytes);
    assert!((0.99..1.01).contains(&(ratio / (8.0 / 14.0))), "{ratio}: a ring's share is N/(2(N-1))");
    // 510 numbers in each packet.
    assert_eq!(metric(&report, "reduction.blocks"), (125_000_f64 / 510.0).ceil());
    for name in ["it.fell_back", "it.repeated", "reduction.duplicates", "reduction.stale", "drops.total"] {
        assert_eq!(metric(&report, name), 0.0, "{name}");
    }
    // Packets of 4,186 bytes on the wire, two cables of 1 us, and the last packet once more.
    let least = (125_000_f64 / 510.0) * 4186.0 / 12_500.0 + 2.0;
    let took = metric(&report, "it.completion_us");
    println!("{took:.2} us of {least:.2}; bytes {ratio:.4} of a ring's");
    assert!((1.0..1.03).contains(&(took / least)), "{took} of {least}");
}

#[test]
fn switches_below_others_add_for_them() {
    for (hosts, element) in [(9, "u64"), (9, "u32"), (4, "u64"), (2, "u32")] {
        let operation =
            format!("bytes = 40008\nhosts = {hosts}\nelement = \"{element}\"\nplacement = \"random\"");
        let report = run(&scenario(LEAVES, 64, &operation));
        assert_eq!((metric(&report, "it.fell_back"), metric(&report, "it.repeated")), (0.0, 0.0));
        // One block of u32 has 1,020 numbers.
        assert_eq!(metric(&report, "reduction.blocks"), 10.0, "{operation}");
    }
}

#[test]
fn nothing_that_is_lost_or_copied_changes_a_sum() {
    for topology in [STAR, LEAVES] {
        let scenario = scenario(topology, 16, "bytes = 400000\nwindow = 8");
        for faults in [
            &["tx p=0.05 drop"][..],
            &["rx p=0.05 drop"],
            &["tx p=0.1 dup"],
            &[
                "tx p=0.05 drop",
                "rx p=0.05 drop",
                "tx p=0.1 dup 2",
                "tx p=0.05 delay 20us",
                "rx p=0.05 corrupt payload",
            ],
        ] {
            let mut run: Run = scenario.prepare(Path::new("."), 3).expect("it fits together");
            for host in 0..8 {
                let device = run.device(host).expect("a host");
                faults.iter().for_each(|fault| drop(device.add_fault(fault).expect("a rule")));
            }
            assert!(run.run(Duration::from_secs(1), &mut |_| true).expect("it runs"));
            let (groups, stats) = (run.groups(), run.fabric().lock().reductions().expect("switches add"));
            println!("{faults:?}: {} again, {stats:?}, {:?}", groups[0].repeated, groups[0].finished);
            assert!(groups[0].verified && groups[0].fell_back.is_none(), "{faults:?}");
            assert_eq!(stats.blocks, 50_000_u64.div_ceil(510), "each is complete once: {faults:?}");
            let loses = faults.iter().any(|fault| fault.contains("drop"));
            assert_eq!(groups[0].repeated > 0, loses, "{faults:?}");
            assert!(stats.duplicates > 0, "{faults:?}");
            assert_eq!(
                stats.answers > 0,
                faults.iter().any(|fault| fault.contains("rx")) || stats.answers > 0
            );
            run.fabric().lock().check();
        }
    }
}

#[test]
fn groups_share_the_slots_of_a_switch() {
    let second = "bytes = 40000\n[[workload]]\npattern = \"collective\"\ncollective = \"all-reduce\"\n\
                  algorithm = \"in-network\"\nname = \"other\"\nbytes = 80000";
    let report = run(&scenario(STAR, 128, second));
    assert_eq!((metric(&report, "other.verified"), metric(&report, "other.fell_back")), (1.0, 0.0));
    assert_eq!(metric(&report, "reduction.blocks"), 10.0 + 20.0);
    // One less is not enough for both.
    let report = run(&scenario(STAR, 127, second));
    assert_eq!((metric(&report, "it.fell_back"), metric(&report, "other.fell_back")), (0.0, 1.0));
    assert_eq!(metric(&report, "other.verified"), 1.0, "the hosts did it");
    assert_eq!(metric(&report, "reduction.blocks"), 10.0);
}

#[test]
fn hosts_add_where_a_switch_does_not() {
    let mut without = scenario(LEAVES, 64, "bytes = 40000");
    let spine = without.switch.clone();
    without.switches.insert("leaf1".into(), rnic_fabric::switch::SwitchConfig { reduction: None, ..spine });
    let report = run(&without);
    assert_eq!(metric(&report, "it.fell_back"), 1.0);
    assert!(report.metrics.get("reduction.blocks").is_none(), "no switch has anything");
    let why = report.groups[0].fell_back.clone().expect("it says why");
    assert!(why.contains("leaf1"), "{why}");
}

/// A host without which no block is complete: every other one sends its blocks again, and gives up with an error that says so.
#[test]
fn a_host_that_is_gone_ends_the_operation() {
    let mut run = scenario(STAR, 64, "bytes = 400000").prepare(Path::new("."), 1).expect("it fits together");
    run.device(3).expect("a host").add_fault("tx p=1 drop").expect("a rule");
    let error = run.run(Duration::from_secs(1), &mut |_| true).expect_err("it cannot end").to_string();
    assert!(error.contains("it: a block was sent 65 times, and had no result"), "{error}");
}
