//! DCQCN with the paper's preset at a queue, against its fluid model. Packets are 1 KB (8000 bits) as the model's, all of
//! which counts; the feedback takes 4 us; the variants are the preset's: CNPs at once, cuts with the old alpha,
//! increases after F steps. Nothing is fitted.
//!
//! The queue is expected above the fixed point: that one is where mean rates rest, but packets are marked one by one,
//! so rates and queue wander around it, and the queue cannot be less than empty.

use crate::bottleneck::{Seen, World};
use cc::dcqcn::fluid::FixedPoint;
use cc::dcqcn::{Options, Preset};
use cc::{Algorithm, Rate};
use time::Duration;

const PACKET: u32 = 1000;
const DELAY: Duration = Duration::from_micros(4);
const SETTLED: Duration = Duration::from_millis(60);

fn paper() -> Algorithm {
    Algorithm::Dcqcn(Options::new(Preset::Paper))
}

fn fixed_point(line: Rate, flows: u32) -> FixedPoint {
    Preset::Paper.settings(line).check_flows(line, PACKET, flows).expect("below pmax")
}

/// A world with `flows` flows that began together, and have settled.
fn settled(algorithm: &Algorithm, line: Rate, flows: u32, seed: u64) -> World {
    let mut world = World::new(algorithm, line, PACKET.into(), DELAY, seed);
    for _ in 0..flows {
        world.join();
    }
    world.run_until(SETTLED);
    world
}

/// What is seen in the 200 ms after flows have settled.
fn watch(algorithm: &Algorithm, line: Rate, flows: u32, seed: u64) -> Seen {
    settled(algorithm, line, flows, seed).watch_until(SETTLED + Duration::from_millis(200))
}

fn rests_at_the_fixed_point(flows: u32) {
    let line = Rate::from_gbps(40);
    let point = fixed_point(line, flows);
    for seed in 1..=5 {
        let seen = watch(&paper(), line, flows, seed);
        let (queue, alpha) = (seen.mean_queue / point.queue, seen.mean_alpha / point.alpha);
        let (jain, utilisation) = (seen.jain(), seen.utilisation);
        println!(
            "{flows} flows, seed {seed}: queue {:.1} KB = {queue:.3} q*, alpha {alpha:.3} alpha*, Jain {jain:.4}, \
             utilisation {utilisation:.4}",
            seen.mean_queue / 1e3
        );
        assert!((1.0..=1.35).contains(&queue), "{flows} flows, seed {seed}: queue {queue} q*");
        assert!((0.85..=1.15).contains(&alpha), "{flows} flows, seed {seed}: alpha {alpha} alpha*");
        assert!(jain > 0.99, "{flows} flows, seed {seed}: Jain {jain}");
        assert!(utilisation > 0.99, "{flows} flows, seed {seed}: utilisation {utilisation}");
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

/// In the model the fixed point depends only on the rate of each flow; so it does here, but for the noise of marks.
#[test]
fn where_flows_rest_depends_on_the_rate_of_each_alone() {
    let worlds = [(2, 20), (4, 40), (8, 80)].map(|(flows, gbps)| {
        (1..=3).map(|seed| watch(&paper(), Rate::from_gbps(gbps), flows, seed)).collect::<Vec<_>>()
    });
    for (name, what) in [
        ("queue", &(|s: &Seen| s.mean_queue) as &dyn Fn(&Seen) -> f64),
        ("alpha", &|s: &Seen| s.mean_alpha),
        ("marked", &|s: &Seen| s.marked),
    ] {
        let [a, b, c] = worlds.each_ref().map(|runs| runs.iter().map(what).sum::<f64>() / 3.0);
        println!("{name}: {a} with 2 flows at 20 Gb/s, {b} with 4 at 40, {c} with 8 at 80");
        assert!((b / a - 1.0).abs() < 0.1 && (c / b - 1.0).abs() < 0.1, "{name}: {a} {b} {c}");
    }
}

/// A flow begins at the rate of the port while others are at rest. When the authors' bound has passed (CoNEXT 2016, for
/// as many flows in all), it has its share within 10 %, in the mean of many runs: in a single one, flows wander by as
/// much.
#[test]
fn a_late_flow_gets_its_share_within_the_authors_bound() {
    let line = Rate::from_gbps(40);
    for (others, bound_us, runs) in [(1, 96_900, 10), (3, 63_600, 20), (9, 35_900, 80)] {
        let late = others as usize;
        let after = SETTLED + Duration::from_micros(bound_us);
        let window = Duration::from_millis(5);
        let share = line.bytes_in(window) as f64 / f64::from(others + 1);
        let (mut at_first, mut at_last) = (0.0, 0.0);
        for seed in 1..=runs {
            let mut world = settled(&paper(), line, others, seed);
            world.join();
            at_first += world.watch_until(SETTLED + window).delivered[late] as f64;
            world.run_until(after);
            at_last += world.watch_until(after + window).delivered[late] as f64;
        }
        let of_share = |sum: f64| sum / f64::from(runs as u32) / share;
        let (first, last) = (of_share(at_first), of_share(at_last));
        println!(
            "{others} + 1 flows: {first:.3} of the share in the first 5 ms, {last:.3} after {bound_us} us"
        );
        assert!((last - 1.0).abs() <= 0.1, "{others} + 1 flows: {last} of the share");
    }
}

/// What `check_flows` warns of happens: the queue swings around `kmax`, where everything is marked.
#[test]
fn more_flows_than_red_can_hold_swing_around_kmax() {
    let line = Rate::from_gbps(40);
    let saturation =
        Preset::Paper.settings(line).check_flows(line, PACKET, 20).expect_err("p* is above pmax");
    let seen = watch(&paper(), line, 20, 1);
    assert!(seen.marked > saturation.p, "{} of the packets are marked", seen.marked);
    assert!(seen.largest_queue > saturation.kmax as f64, "{} bytes", seen.largest_queue);
    let rested = watch(&paper(), line, 4, 1);
    assert!(rested.largest_queue < saturation.kmax as f64, "{} bytes", rested.largest_queue);
}

#[test]
fn without_control_the_queue_grows_without_bound() {
    let line = Rate::from_gbps(40);
    let seen = settled(&Algorithm::Off, line, 2, 1).watch_until(SETTLED + Duration::from_millis(10));
    // Twice the rate of the port comes in.
    let grown = line.bytes_in(SETTLED + Duration::from_millis(10)) as f64;
    assert!(seen.largest_queue > 0.99 * grown, "{} of {grown} bytes", seen.largest_queue);
}
