//! Traffic classes: the effect of `--sl` and `--tclass` at a port with priorities or virtual lanes.

use crate::rig::{Folder, Server, complaint, json};
use serde_json::Value;
use std::process::Stdio;

/// A counter of one side in the first result.
fn counter(document: &Value, side: &str, name: &str) -> u64 {
    document["results"][0][side][name].as_u64().unwrap()
}

/// Tries up to three times. Two processes share the processors with whatever else runs: one that stands still for long
/// enough reacts to a pause too late, or leaves the port to the other. A wrong rule fails every time.
fn holds(attempt: impl Fn() -> Result<(), String>) {
    let failures: Vec<String> = (0..3).map_while(|_| attempt().err()).collect();
    assert!(failures.len() < 3, "{failures:#?}");
}

/// The condition, or why it does not hold.
fn ensure(condition: bool, why: impl ToString) -> Result<(), String> {
    if condition { Ok(()) } else { Err(why.to_string()) }
}

#[test]
fn a_priority_with_pfc_loses_nothing_where_another_one_does() {
    // The WRITEs of one queue pair overflow this buffer.
    let server = Server::start(&["--link", "ethernet:rate=50Mb/s,pfc=3,buffer=64KB"]);
    let args =
        ["--size", "4096", "-n", "600", "--mtu", "1024", "--json", "--link", "ethernet:rate=1Gb/s,pfc=3"];
    let run = |class: &[&str]| json(&server.client(&[&args[..], class].concat()));
    let of = |document: &Value, name| counter(document, "server_counters", name);
    let lossy = run(&["--sl", "0"]);
    assert!(of(&lossy, "link_rx_dropped") > 0, "{lossy}");
    assert_eq!(of(&lossy, "link_tx_pause"), 0, "{lossy}");
    assert_eq!(lossy["delivery"], "lost");
    // DSCP 26 has the same priority.
    for class in [["--sl", "3"], ["--tclass", "0x68"]] {
        holds(|| {
            let lossless = run(&class);
            let pauses = of(&lossless, "link_tx_pause") > 0;
            ensure(
                pauses && of(&lossless, "link_rx_dropped") == 0 && lossless["delivery"] != "lost",
                lossless,
            )
        });
    }
}

#[test]
fn classes_share_a_port_by_their_bandwidth() {
    let link = "ethernet:rate=40Mb/s,pfc=0,1,tsa=ets,ets,tc_bw=80,20,buffer=1MB";
    let server = Server::start(&["--link", link]);
    let start = |sl: &str| {
        let link = ["--link", "ethernet:rate=1Gb/s,pfc=0,1"];
        let args = ["--sl", sl, "--size", "4096", "--mtu", "1024", "--duration", "2s", "--json"];
        let args = [&args[..], &link].concat();
        server.command(&args).stdout(Stdio::piped()).spawn().unwrap()
    };
    holds(|| {
        let [large, small] = ["0", "1"].map(start).map(|client| {
            let document = json(&client.wait_with_output().unwrap());
            document["results"][0]["bw_average_mib_per_s"].as_f64().unwrap()
        });
        // 80 to 20, minus the time that each has alone while the other starts or ends.
        ensure(large > 2.0 * small && small > 0.0, format_args!("{large} and {small} MiB/s"))
    });
}

#[test]
fn a_service_level_uses_its_virtual_lane() {
    // Service level 1 uses lane 1; 3 has no lane, so its packets are dropped.
    let link = "ib-credits:rate=40Mb/s,vls=2,sl2vl=0,1,0,15,buffer=1MB";
    let folder = Folder::new("perf-lanes");
    let trace = folder.path("client.trace");
    let server = Server::start(&["--link", link]);
    let args = ["--size", "4096", "--mtu", "1024", "--link", "ib-credits:vls=2,sl2vl=0,1,0,15"];
    json(&server.client(&[&args[..], &["--sl", "1", "-n", "300", "--trace", &trace, "--json"]].concat()));
    let trace = rnic::trace::Trace::open(&trace).unwrap();
    let lanes = &trace.samples.last().unwrap().lanes;
    let stalls = |vl: u8| lanes.iter().filter(|lane| lane.vl == vl).map(|lane| lane.stalls).sum::<u64>();
    assert!(stalls(1) > 0, "{lanes:?}");
    assert_eq!(stalls(0), 0, "{lanes:?}");
    let output = server.client(&[&args[..], &["--sl", "3", "-n", "1", "--json"]].concat());
    assert!(complaint(&output).contains("RETRY_EXC_ERR"));
}
