//! The fabric of the page, without a page.

use super::FabricBench;
use serde_json::Value;

/// What flows deliver from 2 ms to 4 ms, in Gb/s, and all that was told.
fn after(setup: &str) -> (Vec<(String, f64)>, super::FabricTold) {
    let mut bench = FabricBench::new(setup).unwrap_or_else(|why| panic!("{why}: {setup}"));
    bench.run(4000.0).expect("it runs");
    let told = bench.tell();
    let [half, whole] = [399, 799].map(|number: usize| &told.samples[number].flows);
    let rates = whole.iter().zip(half).map(|(whole, half)| (whole - half) as f64 * 8.0 / 2e6);
    (bench.parts().flows.iter().cloned().zip(rates).collect(), told)
}

/// Gb/s of a flow.
fn gbps(flows: &[(String, f64)], name: &str) -> f64 {
    flows.iter().find(|(flow, _)| flow == name).expect("a flow").1
}

fn drops(told: &super::FabricTold) -> u64 {
    told.tally.drops.values().sum()
}

/// As in the scenario `victim-flow`: it gets what a flow of the incast gets, though its own way is free.
#[test]
fn pauses_hold_up_the_victim_and_lose_nothing() {
    let (flows, told) = after("{}");
    let (victim, sender) = (gbps(&flows, "victim"), gbps(&flows, "sender1"));
    assert!(victim < 10.0 && sender < 10.0, "{flows:?}");
    assert!(drops(&told) == 0 && told.pauses > 0 && told.marked == 0, "{told:?}");
    assert!(told.samples.iter().any(|sample| sample.ports.iter().any(|port| port.2 > 0)), "pauses are shown");
    // The cable to the receiver is busy: three flows share it.
    assert!((20.0..25.0).contains(&(3.0 * sender)), "{flows:?}");
}

#[test]
fn drops_set_the_victim_free() {
    let (flows, told) = after("{\"pfc\": false, \"buffer\": 200}");
    assert!(gbps(&flows, "victim") > 15.0, "{flows:?}");
    assert!(drops(&told) > 0 && told.pauses == 0, "{told:?}");
    let shown: u64 = told.samples.iter().flat_map(|sample| &sample.ports).map(|port| port.4).sum();
    assert_eq!(shown, drops(&told), "all drops are shown");
}

#[test]
fn congestion_control_sets_the_victim_free_and_loses_nothing() {
    let (flows, told) = after("{\"ecn\": true, \"cc\": \"dcqcn:preset=paper\"}");
    assert!(gbps(&flows, "victim") > 15.0, "{flows:?}");
    assert!(told.marked > 0 && drops(&told) == 0, "{told:?}");
}

#[test]
fn a_buffer_and_thresholds_do_what_they_say() {
    let peak = |setup: &str| {
        let (_, told) = after(setup);
        told.samples.iter().flat_map(|sample| &sample.ports).map(|port| port.0).max().unwrap_or(0)
    };
    let incast = |rest: &str| peak(&format!("{{\"scene\": \"incast\", \"pfc\": false, {rest}}}"));
    let (small, large) = (incast("\"buffer\": 100"), incast("\"buffer\": 2000"));
    assert!(small < 100_000 && large > 500_000, "{small} {large}");
    let marked = |kmin: u64| {
        after(&format!("{{\"ecn\": true, \"cc\": \"dcqcn:preset=paper\", \"kmin\": {kmin}, \"kmax\": 400}}"))
            .1
            .marked
    };
    assert!(marked(5) > marked(300), "marks begin earlier");
}

/// Queues of NICs were once fuller after the page had been told something in between.
#[test]
fn it_makes_no_difference_how_time_passes() {
    for setup in ["{}", "{\"seed\": 4, \"senders\": 5, \"ecn\": true, \"cc\": \"dcqcn:preset=paper\"}"] {
        let whole = FabricBench::log(setup, 700.0).expect("a log");
        assert_eq!(whole, FabricBench::log(setup, 700.0).expect("a log"));
        let mut bench = FabricBench::new(setup).expect("a bench");
        let mut samples = Vec::new();
        for _ in 0..20 {
            bench.step().expect("it steps");
            samples.extend(bench.tell().samples);
        }
        for at in 1..=97 {
            bench.run(f64::from(at) * 7.21).expect("it runs");
            samples.extend(bench.tell().samples);
        }
        bench.run(700.0).expect("it runs");
        let mut told = bench.tell();
        samples.append(&mut told.samples);
        let lines: Vec<&str> = whole.lines().collect();
        for (sample, line) in samples.iter().zip(&lines[1..]) {
            assert_eq!(serde_json::to_string(sample).expect("JSON"), *line);
        }
        assert_eq!(samples.len(), 140, "one for every 5 us");
        assert_eq!(&serde_json::to_string(&told).expect("JSON"), lines.last().expect("a summary"));
    }
}

#[test]
fn the_seed_decides() {
    let log = |seed: u32| FabricBench::log(&format!("{{\"seed\": {seed}}}"), 100.0).expect("a log");
    assert_ne!(log(4), log(5));
}

#[test]
fn a_step_delivers_a_packet() {
    let mut bench = FabricBench::new("{}").expect("a bench");
    let mut before = 0;
    for _ in 0..10 {
        bench.step().expect("it steps");
        let now = bench.tell().tally.delivered;
        assert!((1..=3).contains(&(now - before)), "{before} {now}");
        before = now;
    }
}

#[test]
fn the_parts_are_those_of_the_scene() {
    let parts =
        |setup: &str| serde_json::to_value(FabricBench::new(setup).expect("a bench").parts()).expect("JSON");
    let victim = parts("{\"senders\": 2}");
    assert_eq!(victim["ports"].as_array().map(Vec::len), Some(6), "{victim}");
    for port in ["victim>left", "sender2>left", "left>right", "right>receiver", "right>idle"] {
        assert!(
            victim["ports"].as_array().is_some_and(|ports| ports.contains(&Value::from(port))),
            "{port}: {victim}"
        );
    }
    let incast = parts("{\"scene\": \"incast\", \"senders\": 8}");
    assert_eq!(
        (incast["ports"].as_array().map(Vec::len), &incast["switches"]),
        (Some(9), &serde_json::json!(["switch"]))
    );
}

#[test]
fn mistakes_are_told() {
    for wrong in [
        "",
        "7",
        "{\"senders\": 0}",
        "{\"senders\": 9}",
        "{\"buffer\": 1}",
        "{\"kmin\": 9, \"kmax\": 3}",
        "{\"pmax\": -1}",
        "{\"pmax\": 1e400}",
        "{\"cc\": \"reno\"}",
        "{\"cc\": \"off\\\"\\nname = 1\"}",
        "{\"speed\": 1}",
    ] {
        assert!(FabricBench::new(wrong).is_err(), "{wrong}");
    }
    let mut bench = FabricBench::new("{}").expect("a bench");
    for until in [f64::NAN, f64::INFINITY, -5.0] {
        bench.run(until).expect("it runs as far as it can");
    }
    assert!(bench.tell().ended);
}

/// Flows that fail end the run, and not the time.
#[test]
fn time_passes_when_nothing_is_left_to_do() {
    let mut bench = FabricBench::new("{\"pfc\": false, \"buffer\": 20, \"senders\": 8}").expect("a bench");
    bench.run(20_000.0).expect("it runs");
    let told = bench.tell();
    assert!(told.now >= 20_000.0 && told.samples.len() == 4000, "{} {}", told.now, told.samples.len());
}
