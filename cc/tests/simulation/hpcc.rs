//! HPCC at the queue of one port, against what follows from its rules: the queue is next to empty, and the port is used to the
//! target.

use crate::bottleneck::World;
use cc::{Algorithm, Rate, hpcc};
use time::Duration;

const LINE: Rate = Rate::from_gbps(100);

/// On the wire, with a payload of 1000 bytes.
const PACKET: u64 = 1082;

const RTT: Duration = Duration::from_micros(13);

fn world(flows: usize) -> (World, hpcc::Config) {
    let config = hpcc::Config::default();
    let mut world = World::new(&Algorithm::Hpcc(config.clone()), LINE, PACKET, RTT, 1);
    (0..flows).for_each(|_| world.join());
    (world, config)
}

/// In the steady state `R = R eta / U + R_AI` for each flow, so `U = eta + n R_AI / B` up to small terms.
#[test]
fn the_port_is_used_to_the_target_and_its_queue_is_next_to_empty() {
    for flows in [1, 2, 4, 16] {
        let (mut world, config) = world(flows);
        world.run_until(Duration::from_millis(3));
        let seen = world.watch_until(Duration::from_millis(6));
        let wanted = config.eta + flows as f64 * config.increase(LINE) / LINE.as_f64();
        let (used, queue) = (seen.utilisation / wanted, seen.mean_queue / config.bdp(LINE));
        println!(
            "{flows} flows: {:.4} used, {used:.4} of the formula, queue {queue:.4} BDP on average, {:.4} at most, Jain {:.4}",
            seen.utilisation,
            seen.largest_queue / config.bdp(LINE),
            seen.jain()
        );
        assert!((0.98..1.02).contains(&used), "{flows} flows: {} used", seen.utilisation);
        assert!(queue < 0.1, "{flows} flows: {queue} BDP");
        // With so small an increase shares hardly change: the next test is about fairness.
        assert!(seen.jain() > 0.8, "{flows} flows: {}", seen.jain());
    }
}

/// Flows that come later take their part from those that are there, if the increase is large enough. That of the simulator, 0.04 % of the
/// rate in a round-trip time, is not here: all is periodic, so the packets of one flow always find another one behind them
/// and those of another flow never do, and one packet in the queue is 0.7 % of the product.
#[test]
fn flows_that_join_later_get_their_part() {
    let config = hpcc::Config { rate_ai: 400, ..hpcc::Config::default() };
    let mut world = World::new(&Algorithm::Hpcc(config.clone()), LINE, PACKET, RTT, 1);
    for ms in 0..3 {
        world.run_until(Duration::from_millis(ms));
        world.join();
    }
    let early = world.watch_until(Duration::from_micros(2200)).jain();
    world.run_until(Duration::from_millis(8));
    let seen = world.watch_until(Duration::from_millis(12));
    let used = seen.utilisation / (config.eta + 3.0 * config.increase(LINE) / LINE.as_f64());
    println!("Jain {early:.4} at first, then {:.4}, {used:.4} of the formula", seen.jain());
    assert!(seen.jain() > 0.95 && seen.jain() > early, "{early}, then {}", seen.jain());
    assert!((0.98..1.02).contains(&used), "{}", seen.utilisation);
}

/// All begin at the rate of the port with a window of one bandwidth-delay product: that is what the queue can hold. The port needs
/// as many round-trip times for it as there are flows. Meanwhile they send a part of what they may: a few round-trip times more.
#[test]
fn an_incast_fills_one_product_for_each_flow_and_drains_as_fast_as_the_port_can() {
    const FLOWS: u32 = 16;
    let (mut world, config) = world(FLOWS as usize);
    let bdp = config.bdp(LINE);
    let first = world.watch_until(RTT * FLOWS);
    let peak = first.largest_queue / bdp;
    world.run_until(RTT * (FLOWS + 8));
    let after = world.watch_until(RTT * (FLOWS + 30));
    let (queue, used) = (after.largest_queue / bdp, after.utilisation);
    println!(
        "peak {peak:.2} BDP, {:.4} used; then at most {queue:.3} BDP, {used:.3} used",
        first.utilisation
    );
    assert!(peak > f64::from(FLOWS) / 2.0, "it is an incast: {peak}");
    assert!(peak <= f64::from(FLOWS), "{peak} BDP");
    assert!(first.utilisation > 0.99, "it drains at the rate of the port: {}", first.utilisation);
    assert!(queue < 0.3, "{queue} BDP");
    assert!(used > 0.9, "{used}");
}

/// The same port without what it says: nobody slows down, and the windows stay in the queue.
#[test]
fn without_telemetry_the_windows_wait_in_the_queue() {
    let (mut world, config) = world(4);
    world.mute();
    world.run_until(Duration::from_millis(3));
    let queue = world.watch_until(Duration::from_millis(4)).mean_queue / config.bdp(LINE);
    assert!((2.9..3.1).contains(&queue), "one window is on its way, three wait: {queue}");
}
