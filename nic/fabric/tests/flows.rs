//! Flows across fabrics, from their first work request to their last completion.

use cc::Rate;
use rnic_core::sim::{DeviceSetup, Net};
use rnic_core::{ConnectOptions, Device, RcEnd, WcStatus};
use rnic_fabric::network::{Change, Drop, Fabric, HostConfig, Shared};
use rnic_fabric::routing::Routes;
use rnic_fabric::run::{FlowOutcome, NicConfig, Run, ideal};
use rnic_fabric::switch::{Class, Forwarding, Model, SwitchConfig};
use rnic_fabric::topology::{Cable, Kind, Node, Topology};
use rnic_fabric::workload::{Common, Flow, Operation, Service, Start};
use std::net::IpAddr;
use time::Duration;

/// Hosts at one switch, by cables of 100 Gb/s and 1 us.
fn star(hosts: usize) -> Topology {
    let mut nodes: Vec<Node> = (0..hosts)
        .map(|n| Node { name: format!("host{n}"), kind: Kind::Host, latency: Duration::ZERO })
        .collect();
    nodes.push(Node { name: "s0".into(), kind: Kind::Switch { tier: 1 }, latency: Duration::ZERO });
    let cable = |host| Cable {
        ends: [host, hosts],
        rate: Rate::from_gbps(100),
        delay: Duration::from_micros(1),
        bit_errors: 0.0,
    };
    Topology { nodes, cables: (0..hosts).map(cable).collect() }
}

fn fabric(topology: Topology, switch: SwitchConfig, seed: u64) -> Fabric {
    let routes = Routes::shortest(&topology);
    Fabric::new(topology, routes, HostConfig::default(), vec![switch], |_| 0, seed).expect("it fits together")
}

/// A switch whose classes are all lossless, with the headroom that its cables require.
fn lossless() -> SwitchConfig {
    let class = Class { lossless: true, alpha: 0.125, ..Class::default() };
    SwitchConfig { class: vec![class; 8], ..SwitchConfig::default() }
}

fn flow(src: usize, dst: usize, bytes: u64, common: &Common) -> Flow {
    Flow {
        name: format!("{src}>{dst}"),
        src,
        dst,
        bytes: Some(bytes),
        start: Start::At(Duration::ZERO),
        common: common.clone(),
        label: 1,
    }
}

#[test]
fn a_flow_alone_takes_what_its_bytes_and_cables_take() {
    for (operation, service) in [
        (Operation::Write, Service::Rc),
        (Operation::Send, Service::Rc),
        (Operation::Read, Service::Rc),
        (Operation::Write, Service::Uc),
        (Operation::Send, Service::Uc),
        (Operation::Send, Service::Ud),
    ] {
        let message = if service == Service::Ud { 4096 } else { 1 << 20 };
        let common = Common { operation, service, message, depth: 16, ..Common::default() };
        let flow = flow(0, 1, 2_000_000, &common);
        let fabric = fabric(star(2), lossless(), 1);
        let least = ideal(&fabric, &flow, 4096).expect("there is a way");
        let mut run = Run::new(fabric, &NicConfig::default(), vec![flow], 1).expect("it fits together");
        assert!(run.run(Duration::from_millis(10), &mut |_| true).expect("it runs"));
        run.fabric().lock().check();
        let state = &run.flows()[0];
        assert_eq!(state.outcome(), FlowOutcome::Finished, "{operation:?} {service:?}");
        assert_eq!(state.completed, 2_000_000);
        let took = state.completion_time().expect("it finished");
        let ratio = took.as_secs_f64() / least.as_secs_f64();
        assert!((0.98..1.03).contains(&ratio), "{operation:?} {service:?}: {took:?} of {least:?}");
    }
}

#[test]
fn a_lossless_incast_loses_nothing_and_keeps_its_bottleneck_busy() {
    let common = Common::default();
    let flows: Vec<Flow> = (1..16).map(|src| flow(src, 0, 2_000_000, &common)).collect();
    let fabric = fabric(star(16), lossless(), 1);
    let mut run = Run::new(fabric, &NicConfig::default(), flows, 1).expect("it fits together");
    assert!(run.run(Duration::from_millis(20), &mut |_| true).expect("it runs"));
    run.fabric().lock().check();
    let last = run.flows().iter().map(|flow| flow.finished.expect("it finished")).max().expect("flows");
    // 15 flows of 2 MB in packets of 4096 bytes and 82 of headers share 100 Gb/s: 2,448 us, and a round trip.
    let floor = Duration::from_nanos(15 * 489 * 4178 * 80 / 1000);
    let ratio = last.as_secs_f64() / floor.as_secs_f64();
    assert!((1.0..1.03).contains(&ratio), "{last:?} of {floor:?}");
    let tally = run.fabric().lock().tally();
    assert_eq!((tally.drops.len(), tally.inside), (0, 0), "{tally:?}");
    let stats = run.fabric().lock().port_stats(1, 0).expect("the NIC of host 1");
    assert!(stats.pauses_received[3] > 0 && stats.paused_ns[3] > 0, "{stats:?}");
    assert_eq!(stats.pauses_received.iter().sum::<u64>(), stats.pauses_received[3], "of this class only");
    assert!(
        stats.queue_peak < HostConfig::default().queue + 4220,
        "a NIC takes what its queue holds: {stats:?}"
    );
    let stalls = run.device(1).map(|device| device.counters().port.wire_stalls);
    assert!(stalls.is_some_and(|stalls| stalls > 0), "and its queue pairs wait: {stalls:?}");
}

#[test]
fn a_packet_is_not_cut_through_before_it_has_arrived() {
    // From 100 Gb/s to 400 Gb/s: the second wire could be faster than the packet.
    let mut topology = star(2);
    topology.cables[1].rate = Rate::from_gbps(400);
    let common = Common { operation: Operation::Send, service: Service::Uc, ..Common::default() };
    let flow = flow(0, 1, 4096, &common);
    let switch = SwitchConfig { forwarding: Forwarding::CutThrough, ..lossless() };
    let mut run =
        Run::new(fabric(topology, switch, 1), &NicConfig::default(), vec![flow], 1).expect("it fits");
    assert!(run.run(Duration::from_millis(1), &mut |_| true).expect("it runs"));
    let took = run.flows()[0].completion_time().expect("it finished");
    // Both cables, and 4178 bytes at 100 Gb/s; a switch that stores and forwards takes 83 ns more.
    let least = Duration::from_nanos(2_000 + 334);
    assert!(took >= least && took < least + Duration::from_nanos(20), "{took:?} of {least:?}");
}

/// What is dropped when a host sends to one that pauses from the beginning, for many distances in time between the flows, with
/// this error of the headroom. Packets of another class go back to the sender, so that the pause waits for them.
fn dropped_with(headroom_error: i64) -> u64 {
    let class = Class { lossless: true, xoff: Some(30_000), headroom_error, ..Class::default() };
    let switch = SwitchConfig { class: vec![class; 8], ..SwitchConfig::default() };
    let mut dropped = 0;
    for step in 0..200 {
        let common = Common { depth: 16, ..Common::default() };
        let other = Common { priority: 4, ..common };
        let mut flows = vec![flow(1, 0, 1_000_000, &common), flow(2, 1, 1_000_000, &other)];
        for (flow, at) in flows.iter_mut().zip([2_000 + 13 * step, 7 * step]) {
            flow.start = Start::At(Duration::from_nanos(at));
        }
        let mut run =
            Run::new(fabric(star(3), switch.clone(), 1), &NicConfig::default(), flows, 1).expect("it fits");
        run.plan([(Duration::ZERO, Change::Storm { host: 0, classes: 1 << 3 })]);
        assert!(run.run(Duration::from_micros(100), &mut |_| true).expect("it runs"));
        let fabric = run.fabric().lock();
        fabric.check();
        dropped += fabric.tally().drops.values().sum::<u64>();
    }
    dropped
}

#[test]
fn the_headroom_of_the_law_is_enough_and_a_packet_less_is_not() {
    assert_eq!(dropped_with(0), 0);
    assert!(dropped_with(-4220) > 0);
}

#[test]
fn credit_is_whole_again_after_a_repair() {
    // What is on a cable that is cut is lost, with the credit that it took. Sixty times as much is more than a lane has.
    let common = Common { priority: 0, depth: 16, ..Common::default() };
    let switch = SwitchConfig { model: Model::Infiniband, ..SwitchConfig::default() };
    let nic = NicConfig { timeout: 5, ..NicConfig::default() };
    let flows = vec![flow(1, 0, 300_000_000, &common)];
    let mut run = Run::new(fabric(star(2), switch, 1), &nic, flows, 1).expect("it fits");
    let cut = |at: u64, is_up| (Duration::from_micros(at), Change::Cable { cable: 0, is_up });
    run.plan((0..60).flat_map(|n| [cut(100 + 800 * n, false), cut(110 + 800 * n, true)]));
    assert!(run.run(Duration::from_millis(300), &mut |_| true).expect("it runs"));
    let tally = run.fabric().lock().tally();
    assert!(tally.drops.contains_key(&Drop::CableCut), "{tally:?}");
    assert_eq!(run.flows()[0].outcome(), FlowOutcome::Finished, "{tally:?}");
}

#[test]
fn a_lane_that_waits_too_long_is_emptied_while_another_one_sends() {
    // Lane 0 leads to a slow host, lane 1 to a fast one; both cross the cable between the switches.
    let node = |name: &str, kind| Node { name: name.into(), kind, latency: Duration::ZERO };
    let hosts = ["a", "b", "slow", "fast"].map(|name| node(name, Kind::Host));
    let nodes = hosts.into_iter().chain(["s0", "s1"].map(|name| node(name, Kind::Switch { tier: 1 })));
    let cable = |ends, gbps| Cable {
        ends,
        rate: Rate::from_gbps(gbps),
        delay: Duration::from_micros(1),
        bit_errors: 0.0,
    };
    let cables = vec![
        cable([0, 4], 100),
        cable([1, 4], 100),
        cable([2, 5], 1),
        cable([3, 5], 100),
        cable([4, 5], 100),
    ];
    let mut switch = SwitchConfig {
        model: Model::Infiniband,
        head_of_queue: Some(Duration::from_micros(25)),
        ..SwitchConfig::default()
    };
    switch.vl.sl2vl[1] = 1;
    let topology = Topology { nodes: nodes.collect(), cables };
    let host = HostConfig { lanes: [0, 1, 0, 0, 0, 0, 0, 0], ..HostConfig::default() };
    let routes = Routes::shortest(&topology);
    let fabric = Fabric::new(topology, routes, host, vec![switch], |_| 0, 1).expect("it fits");
    // Unreliable, so that nothing waits for what is lost.
    let on =
        |priority| Common { priority, operation: Operation::Send, service: Service::Uc, ..Common::default() };
    let endless = |src, dst, common| Flow { bytes: None, ..flow(src, dst, 0, &common) };
    let flows = vec![endless(0, 2, on(0)), endless(1, 3, on(1))];
    let mut run = Run::new(fabric, &NicConfig::default(), flows, 1).expect("it fits");
    assert!(run.run(Duration::from_millis(1), &mut |_| true).expect("it runs"));
    // The port of the first switch towards the second: its third one.
    let mut fabric = run.fabric().lock();
    let stats = fabric.port_stats(4, 2).expect("a port");
    assert!(stats.packets > 2_500, "lane 1 is busy all the time: {stats:?}");
    // One packet in each 25 us, and those that arrive to an empty queue meanwhile.
    let dropped = stats.drops.get(&Drop::HeadOfQueue).copied().unwrap_or(0);
    assert!((20..=45).contains(&dropped), "{stats:?}");
}

/// A device that is restarted is where the one before it was. A fabric has no place for more devices than it has hosts.
#[test]
fn a_device_that_takes_the_address_of_another_is_at_its_host() -> rnic_core::Result<()> {
    let shared = Shared::new(fabric(star(2), lossless(), 1));
    let net = Net::joined_by(Box::new(shared.clone()), 1);
    let (a, old) = (net.device(), net.device());
    let write = |to: &Device| -> rnic_core::Result<WcStatus> {
        let options = ConnectOptions { timeout: 8, ..ConnectOptions::default() };
        let (left, right) = RcEnd::pair_with(&a, to, &options)?;
        let (source, target) = (left.register(b"hello")?, right.register_remote(5)?);
        left.qp.write(1, source.all(), target.remote(0))?;
        Ok(left.wait()?.status)
    };
    assert_eq!(write(&old)?, WcStatus::Success);
    let IpAddr::V4(address) = old.address() else { panic!("they have IPv4 addresses") };
    let new = net.device_with(&DeviceSetup { address: Some(address), ..DeviceSetup::default() })?;
    drop(old);
    assert_eq!(write(&new)?, WcStatus::Success);
    let delivered = shared.lock().tally().delivered;
    assert!(delivered >= 4, "they went through the fabric: {delivered}");
    let third = net.device();
    assert_eq!(write(&third)?, WcStatus::RetryExcErr);
    let lost = |shared: &Shared| shared.lock().tally().drops[&Drop::NoHost];
    let before = lost(&shared);
    assert!(before > 0);
    // Nor can it send.
    let (left, right) =
        RcEnd::pair_with(&third, &a, &ConnectOptions { timeout: 8, ..ConnectOptions::default() })?;
    let (source, target) = (left.register(b"hello")?, right.register_remote(5)?);
    left.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::RetryExcErr);
    assert!(lost(&shared) > before);
    shared.lock().check();
    Ok(())
}
