//! Other algorithms than DCQCN at the same queue, against what is published of them.

use crate::bottleneck::World;
use cc::timely::{self, Timely};
use cc::{Algorithm, Controller, Rate, dctcp, ibcc, nscc, swift};
use std::sync::Arc;
use time::Duration;

const LINE: Rate = Rate::from_gbps(10);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The round-trip time is all queueing, as in the authors' model: the feedback takes next to no time.
fn timely_world(config: &timely::Config, start_mbps: &[u32]) -> World {
    let algorithm = Algorithm::Timely(config.clone());
    let mut world = World::new(&algorithm, LINE, 1000, Duration::from_nanos(100), 1);
    for mbps in start_mbps {
        let config = timely::Config { start_rate: *mbps, ..config.clone() };
        world.join_with(Controller::Timely(Timely::new(Arc::new(config), LINE)));
    }
    world
}

#[test]
fn patched_timely_rests_at_the_published_queue() {
    for flows in [2, 4, 10] {
        let config = timely::Config::default();
        let mut world = timely_world(&config, &vec![10_000 / flows; flows as usize]);
        world.run_until(ms(300));
        let seen = world.watch_until(ms(400));
        let queue = seen.mean_queue / config.resting_queue(LINE, flows);
        println!("{flows} flows: {:.1} KB = {queue:.3} of the formula", seen.mean_queue / 1e3);
        assert!((0.97..1.03).contains(&queue), "{flows} flows: {queue} of the formula");
        assert!(seen.jain() > 0.999 && seen.utilisation > 0.999, "{flows} flows");
    }
}

/// The authors' example: two flows that start at 7 and 3 Gb/s.
#[test]
fn flows_of_the_original_timely_stay_unequal_and_those_of_the_patched_one_do_not() {
    for (config, fair) in [(timely::Config::original(), false), (timely::Config::default(), true)] {
        let mut world = timely_world(&config, &[7000, 3000]);
        world.run_until(ms(1000));
        let jain = world.watch_until(ms(1200)).jain();
        println!("{}: Jain {jain:.4}", config.variant);
        assert_eq!(jain > 0.99, fair, "{}: Jain {jain}", config.variant);
        assert!(fair || jain < 0.9, "{}: Jain {jain}", config.variant);
    }
}

/// With the round-trip time that the HPCC authors have, 13 us, and the threshold of 30 KB for 10 Gb/s.
#[test]
fn dctcp_keeps_the_queue_near_its_threshold() {
    let threshold = dctcp::Config::red(LINE).kmin as f64;
    for flows in [2, 4] {
        let algorithm = Algorithm::Dctcp(dctcp::Config::default());
        let mut world = World::new(&algorithm, LINE, 1000, Duration::from_micros(13), 1);
        for _ in 0..flows {
            world.join();
        }
        world.run_until(ms(100));
        let seen = world.watch_until(ms(300));
        let queue = seen.mean_queue / threshold;
        println!("{flows} flows: {queue:.2} of the threshold, alpha {:.2}", seen.mean_alpha);
        assert!((0.5..1.5).contains(&queue), "{flows} flows: {queue} of the threshold");
        assert!(seen.largest_queue < 3.0 * threshold, "{flows} flows: {} bytes", seen.largest_queue);
        assert!(seen.jain() > 0.99 && seen.utilisation > 0.95, "{flows} flows");
    }
}

/// Swift's promise: the delay stays at the target, whatever the number of flows, and they share.
#[test]
fn swift_keeps_the_delay_at_its_target_and_shares() {
    /// Of the base target, and without a queue.
    const RTT: f64 = 10e-6;
    let line = Rate::from_gbps(100);
    for flows in [1, 4, 16, 64] {
        let config = swift::Config { base_target: 20, ..swift::Config::default() };
        let algorithm = Algorithm::Swift(config.clone());
        let mut world = World::new(&algorithm, line, 4178, Duration::from_micros(12), 1);
        (0..flows).for_each(|_| world.join());
        world.run_until(ms(20));
        let seen = world.watch_until(ms(40));
        let cwnd = config.resting_window(line, flows, RTT);
        let delay = 12e-6 + seen.mean_queue * 8.0 / line.as_f64();
        let part = delay / config.target(cwnd, RTT);
        println!("{flows} flows: {:.1} us, {part:.2} of the target, Jain {:.3}", delay * 1e6, seen.jain());
        // Each adds a packet in a round-trip time before it hears of the delay: half of that is there on average.
        let added = f64::from(flows) * f64::from(config.mss) * 8.0 / line.as_f64() / config.target(cwnd, RTT);
        assert!((0.9..1.05 + added / 2.0).contains(&part), "{flows} flows: {part} of the target");
        assert!(seen.jain() > 0.95 && seen.utilisation > 0.98, "{flows} flows: {}", seen.jain());
    }
}

/// NSCC's promise: the port is busy, the queueing delay is at most about the target, and flows share.
#[test]
fn nscc_keeps_the_queue_below_its_target_and_shares() {
    let line = Rate::from_gbps(100);
    for flows in [1, 4, 16] {
        let config = nscc::Config::default();
        let algorithm = Algorithm::Nscc(config.clone());
        let mut world = World::new(&algorithm, line, 4178, Duration::from_micros(12), 1);
        (0..flows).for_each(|_| world.join());
        world.run_until(ms(20));
        let seen = world.watch_until(ms(40));
        let part = seen.mean_queue / config.bdp(line);
        println!(
            "{flows} flows: {part:.2} of the target, Jain {:.3}, {:.3} used",
            seen.jain(),
            seen.utilisation
        );
        assert!(part < 1.2, "{flows} flows: {part} of the target");
        assert!(seen.jain() > 0.95 && seen.utilisation > 0.98, "{flows} flows: {}", seen.jain());
    }
}

/// With entry i of the table i times a packet, N flows rest near index N - 1: each has a part in N.
#[test]
fn the_index_of_infiniband_rests_at_the_number_of_the_others() {
    for flows in [4, 8, 16] {
        let algorithm = Algorithm::Ibcc(ibcc::Config::default());
        let mut world = World::new(&algorithm, LINE, 2178, Duration::from_micros(5), 1);
        (0..flows).for_each(|_| world.join());
        world.run_until(ms(50));
        let seen = world.watch_until(ms(150));
        let part = seen.mean_queue / ibcc::Config::default().threshold as f64;
        println!(
            "{flows} flows: {part:.2} of the threshold, Jain {:.3}, {:.3} used",
            seen.jain(),
            seen.utilisation
        );
        assert!(seen.jain() > 0.9 && seen.utilisation > 0.9, "{flows} flows");
        assert!(seen.largest_queue < 4.0 * 65_536.0, "{flows} flows: {} bytes", seen.largest_queue);
    }
}
