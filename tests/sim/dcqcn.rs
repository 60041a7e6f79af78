//! DCQCN at a port, compared with its fluid model.
//!
//! The preset is `paper`: RED from 5 to 200 KB and 1 %, marks when packets leave the queue, CNPs at once and at
//! most every 50 us, cuts with the old alpha, alpha that decays when no CNP came for 55 us, a timer of 55 us and a
//! byte counter of 10 MB, additive increase after F = 5 steps, no hyper increase. The feedback delay is 4 us in
//! total: 2 us for packets to the queue, and 2 us for CNPs on the way back. The unit of bytes is the same
//! everywhere: see the top of these tests.
//!
//! The expected queue is above the fixed point. Mean rates settle at the fixed point, but packets are marked one by
//! one, so rates and queue fluctuate around it, and the queue cannot be less than empty. The queue and the
//! controllers alone, without devices, behave the same way (`cc/tests/simulation`).
//!
//! Flows that start together have settled after 60 ms: the authors' bounds for a flow that joins others are 36 ms
//! (10 flows in all) to 97 ms (2), and flows that start together only have to make up for differences between
//! marks. Means are taken over 100 ms. They vary between seeds by 5 % of q* with 2 flows, where the queue is
//! shortest, and by 2 to 3 % with more.

use crate::seeds;
use crate::series::mean;
use crate::world::{Seen, Setup, World, packet_bytes};
use rnic::cc::dcqcn::fluid::FixedPoint;
use rnic::cc::dcqcn::{Options, Preset};
use rnic::cc::{Algorithm, Rate};
use rnic::link::LinkConfig;
use std::time::Duration;

pub(crate) const SETTLE: Duration = Duration::from_millis(60);
const WATCH: Duration = Duration::from_millis(100);

/// A port with this rate, and a buffer that holds what arrives before the first cuts.
pub(crate) fn setup(line: Rate, seed: u64) -> Setup {
    Setup {
        link: LinkConfig { rate: Some(line), buffer: Some(64 << 20), ..LinkConfig::default() },
        algorithm: Algorithm::Dcqcn(Options::new(Preset::Paper)),
        there: Duration::from_micros(2),
        back: Duration::from_micros(2),
        seed,
        ..Setup::new(line)
    }
}

/// A world with `flows` flows that started together and have settled.
pub(crate) fn settled(setup: &Setup, flows: u32) -> World {
    let mut world = World::new(setup);
    world.join_all(flows);
    world.run_for(SETTLE);
    world
}

fn watch(setup: &Setup, flows: u32) -> Seen {
    let world = settled(setup, flows);
    let seen = world.watch_for(WATCH);
    assert_eq!(world.received("link_rx_dropped"), 0, "seed {}", setup.seed);
    assert!(world.received("np_cnp_sent") > 0 && world.sent("rp_cnp_ignored") == 0);
    seen
}

fn fixed_point(setup: &Setup, flows: u32) -> FixedPoint {
    let settings = Preset::Paper.settings(setup.line);
    settings.check_flows(setup.line, packet_bytes(setup.mtu), flows).expect("below pmax")
}

fn rests_at_the_fixed_point(flows: u32) {
    for seed in seeds(2) {
        let setup = setup(Rate::from_gbps(40), seed);
        let (seen, point) = (watch(&setup, flows), fixed_point(&setup, flows));
        let (queue, alpha) = (seen.queue.mean() / point.queue, seen.alpha.mean() / point.alpha);
        let (jain, rate) = (seen.jain(), seen.rate() / setup.line.as_f64());
        println!(
            "{flows} flows, seed {seed}: queue {:.1} KB +- {:.1} = {queue:.3} q*, alpha {:.4} = {alpha:.3} alpha*, \
             marked {:.3} p*, Jain {jain:.4}, rate {rate:.4}",
            seen.queue.mean() / 1e3,
            seen.queue.spread() / 1e3,
            seen.alpha.mean(),
            seen.marked() / point.p,
        );
        assert!((1.0..=1.35).contains(&queue), "{flows} flows, seed {seed}: queue {queue} q*");
        assert!((0.85..=1.15).contains(&alpha), "{flows} flows, seed {seed}: alpha {alpha} alpha*");
        assert!(jain > 0.99, "{flows} flows, seed {seed}: Jain {jain}");
        assert!(rate > 0.99, "{flows} flows, seed {seed}: {rate} of the port's rate");
    }
}

#[test]
fn two_flows_rest_at_the_fixed_point() {
    rests_at_the_fixed_point(2);
}

#[test]
fn four_flows_rest_at_the_fixed_point() {
    rests_at_the_fixed_point(4);
}

#[test]
fn eight_flows_rest_at_the_fixed_point() {
    rests_at_the_fixed_point(8);
}

#[test]
fn ten_flows_rest_at_the_fixed_point() {
    rests_at_the_fixed_point(10);
}

/// In the model, p*, q* and alpha* depend only on C/N. The same holds here, within the noise of marks: the means of
/// three seeds vary by 3 %.
#[test]
fn where_flows_rest_depends_on_the_rate_of_each_alone() {
    let runs = [(2, 40), (5, 100)].map(|(flows, gbps)| {
        let run = |seed| watch(&setup(Rate::from_gbps(gbps), seed), flows);
        seeds(3).into_iter().map(run).collect::<Vec<_>>()
    });
    for (name, of) in [
        ("queue", &(|s: &Seen| s.queue.mean()) as &dyn Fn(&Seen) -> f64),
        ("alpha", &|s: &Seen| s.alpha.mean()),
        ("marked", &Seen::marked),
    ] {
        let [few, many] = runs.each_ref().map(|runs| mean(runs, of));
        println!("{name}: {few} with 2 flows at 40 Gb/s, {many} with 5 at 100 Gb/s");
        assert!((many / few - 1.0).abs() < 0.1, "{name}: {few}, {many}");
    }
}

/// The same port, with a buffer that holds what eight flows send before they are cut, but not everything they have
/// to send.
#[test]
fn without_congestion_control_the_buffer_overflows_and_no_cnp_is_sent() {
    let run = |algorithm: Algorithm| {
        let setup = setup(Rate::from_gbps(40), 1);
        let link = LinkConfig { buffer: Some(3_000_000), ..setup.link.clone() };
        let mut world = World::new(&Setup { link, algorithm, ..setup });
        world.join_all(8);
        world.run_for(Duration::from_millis(5));
        let counters = ["link_rx_dropped", "link_rx_marked", "np_ecn_marked_roce_packets", "np_cnp_sent"];
        let [dropped, marked, arrived, told] = counters.map(|name| world.received(name));
        assert_eq!(marked, arrived);
        let [heard, repeated] = ["rp_cnp_handled", "retransmitted_pkts"].map(|name| world.sent(name));
        println!("{dropped} dropped, {repeated} repeated, {marked} marked, {told} CNPs sent, {heard} obeyed");
        [dropped, repeated, marked, told, heard]
    };
    let with = run(Algorithm::Dcqcn(Options::new(Preset::Paper)));
    assert_eq!(with[..2], [0, 0]);
    assert!(with[2..].iter().all(|count| *count > 0), "{with:?}");
    let without = run(Algorithm::Off);
    assert!(without[..2].iter().all(|count| *count > 0), "{without:?}");
    assert_eq!(without[2..], [0, 0, 0]);
}
