//! Congestion control by the tables of a subnet manager: hosts slow down as it has written.

use rnic_fabric::scenario::Scenario;
use rnic_fabric::subnet::{HostCongestion, LinkState, ServiceLevel, Subnet, SwitchCongestion, Tables};
use std::path::{Path, PathBuf};

/// Two hosts send to a third. Each of them alone would take 165 us, and both together 330.
const SCENARIO: &str = r#"
name = "managed"
about = "Two hosts send to a third, with the tables of a subnet manager."
until = "20 ms"

[topology]
kind = "star"
hosts = 3
link = { rate = "100 Gb/s", delay = "1 us" }

[switch]
model = "infiniband"

[nic]
cc = "CC"

[[workload]]
name = "load"
pattern = "incast"
to = "host0"
bytes = "2 MB"
depth = 1
priority = 3

[subnet]
tables = "TABLES"
"#;

/// The tables of a subnet in which every link is active, and host i has the LID i + 1. Switches mark as soon as anything waits.
fn tables(scenario: &Scenario) -> Tables {
    let topology = scenario.topology(Path::new(".")).expect("a topology");
    let mut tables = Subnet::new(&topology).expect("it fits").tables();
    for (lid, host) in (1..).zip(tables.hosts.values_mut()) {
        (host.lid, host.port.state) = (lid, LinkState::Active);
    }
    for switch in tables.switches.values_mut() {
        switch.lft = vec![255, 1, 2, 3];
        switch.port.values_mut().for_each(|port| port.state = LinkState::Active);
        switch.congestion = Some(SwitchCongestion { threshold: 15, packet_size: 0, marking_rate: 0 });
    }
    tables
}

/// The same reaction at all hosts, for one service level.
fn reaction(cct: &str, level: &str, timer: u16) -> HostCongestion {
    let of = ServiceLevel { ccti_timer: timer, ccti_increase: 1, ..ServiceLevel::default() };
    HostCongestion { by_level: false, cct: cct.to_owned(), sl: [(level.to_owned(), of)].into() }
}

/// How long the slower flow takes, in microseconds.
fn run(name: &str, cc: &str, congestion: Option<HostCongestion>) -> f64 {
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("managed-{name}.json"));
    let text = SCENARIO.replace("CC", cc).replace("TABLES", path.to_str().expect("text"));
    let scenario = Scenario::read(&text).expect("a scenario");
    let mut tables = tables(&scenario);
    tables.hosts.values_mut().for_each(|host| host.congestion.clone_from(&congestion));
    std::fs::write(&path, serde_json::to_string(&tables).expect("text")).expect("a file");
    let outcome = scenario.run_all(Path::new("."), 1, &mut |_| true).expect("it runs");
    outcome.metrics.get("fct.max_us").unwrap_or_else(|| panic!("{:?}", outcome.metrics))
}

/// The first BECN brings a flow to the second entry of the table, and the timer keeps it there for 67 ms: after a packet it pauses
/// for the time of nine.
#[test]
fn hosts_send_at_the_rate_of_the_table() {
    for cc in ["ibcc", "off"] {
        let free = run(&format!("free-{cc}"), cc, Some(reaction("0:0", "3", u16::MAX)));
        assert!((330.0..400.0).contains(&free), "{free} us: an empty table slows nothing down");
        let slow = run(&format!("slow-{cc}"), cc, Some(reaction("0:0,0:9", "3", u16::MAX)));
        assert!((1_500.0..1_700.0).contains(&slow), "{slow} us of 1,650 at a tenth of the rate");
        let shifted = run(&format!("shifted-{cc}"), cc, Some(reaction("0:0,1:18", "3", u16::MAX)));
        assert_eq!(shifted, slow, "half of eighteen is nine");
    }
}

/// With a short timer a flow soon sends at the full rate again. What is written for another service level has no meaning.
#[test]
fn the_timer_and_the_level_are_those_that_were_written() {
    let table = "0:0,0:9";
    let slow = run("long", "off", Some(reaction(table, "3", u16::MAX)));
    let quick = run("quick", "off", Some(reaction(table, "3", 5)));
    assert!(quick < slow / 2.0, "{quick} of {slow} us");
    let other = run("other", "off", Some(reaction(table, "4", u16::MAX)));
    assert!(other < 400.0, "{other} us");
}

/// Without anything written, hosts do as the scenario says; and an algorithm that InfiniBand does not have stays.
#[test]
fn other_hosts_do_as_the_scenario_says() {
    let written = || Some(reaction("0:0,0:9", "3", u16::MAX));
    assert!(run("none", "off", None) < 400.0);
    assert!(run("own", "ibcc:cct_step=9,ccti_timer=65535,ccti_limit=1", None) > 1_500.0);
    assert_eq!(run("dcqcn", "dcqcn:preset=paper", written()), run("dcqcn-none", "dcqcn:preset=paper", None));
}
