//! Processes that share a core, at a port with congestion control.
//!
//! The receiver and two senders have one core of two; something else keeps the other one busy. At any time one of the three
//! does not run, for 0.1 to 2 ms, and some have to wait several times in a row. What the emulated port carries, and what it
//! marks, must not depend on that: it follows from when packets arrive, not from when somebody reads them.

use crate::seeds;
use crate::world::{Sender, Setup, World};
use rnic::Mtu;
use rnic::cc::dcqcn::{Options, Preset};
use rnic::cc::pacer::TRAIN_TIME;
use rnic::cc::{Algorithm, Rate};
use rnic::link::LinkConfig;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

const SENDERS: usize = 2;

/// Lots, drawn from a seed (SplitMix64).
pub(crate) struct Lots(u64);

impl Lots {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `n`.
    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Decides which program runs, and for how long.
struct Scheduler(Lots);

impl Scheduler {
    /// Lets a slice begin, and returns how long it is. One of the three does not run.
    fn slice(&mut self, world: &World) -> Duration {
        let slice = Duration::from_micros(100 + self.0.below(1900));
        match self.0.below(1 + SENDERS as u64) as usize {
            0 => world.preempt_receiver(slice),
            sender => world.preempt_sender(sender - 1, slice),
        }
        slice
    }

    fn run_for(&mut self, world: &World, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let slice = self.slice(world).min(left);
            world.run_for(slice);
            left -= slice;
        }
    }
}

fn gigabit(seed: u64) -> Setup {
    let line = Rate::from_gbps(1);
    Setup {
        link: LinkConfig { rate: Some(line), ..LinkConfig::default() },
        algorithm: Algorithm::Dcqcn(Options::new(Preset::Laptop)),
        mtu: Mtu::B4096,
        there: Duration::from_micros(10),
        back: Duration::from_micros(10),
        train_time: TRAIN_TIME,
        peer_window: None,
        seed,
        ..Setup::new(line)
    }
}

/// A world of two senders whose ports have the rate of the receiver's.
fn two_senders(setup: &Setup) -> World {
    let mut world = World::new(setup);
    for _ in 0..SENDERS {
        let link = LinkConfig { rate: Some(setup.line), ..LinkConfig::default() };
        world.join(&Sender { link, ..Sender::default() });
    }
    world
}

/// The part of the port that was used, Jain's index, and the longest queue, of `time` after the flows have settled.
fn measure(world: &World, mut run: impl FnMut(&World, Duration), time: Duration) -> (f64, f64, u64) {
    run(world, MS * 500);
    let bytes = || world.receiver.link_stats().expect("a link").dequeued_bytes;
    let delivered = || world.flows.iter().map(|flow| flow.delivered() as f64).collect::<Vec<_>>();
    let (before, at_first) = (bytes(), delivered());
    run(world, time);
    let used = (bytes() - before) as f64 * 8.0 / time.as_secs_f64() / 1e9;
    let got: Vec<_> = delivered().iter().zip(at_first).map(|(now, before)| now - before).collect();
    let (sum, squares) = (got.iter().sum::<f64>(), got.iter().map(|d| d * d).sum::<f64>());
    let queue = world.receiver.link_stats().expect("a link").queue_bytes_max;
    (used, sum * sum / (got.len() as f64 * squares), queue)
}

#[test]
fn two_senders_fill_a_gigabit_port_while_something_else_keeps_a_core_busy() {
    for seed in seeds(3) {
        let world = two_senders(&gigabit(seed));
        let mut scheduler = Scheduler(Lots::new(seed));
        let (used, jain, queue) =
            measure(&world, |world, time| scheduler.run_for(world, time), Duration::from_secs(2));
        let cnps = world.sent("rp_cnp_handled");
        println!("seed {seed}: {used:.3} of the port, Jain {jain:.4}, queue up to {queue}, {cnps} CNPs");
        assert!(used >= 0.85, "seed {seed}: {used} of the port");
        assert!(jain > 0.97, "seed {seed}: Jain {jain}");
        assert_eq!(world.received("link_rx_dropped"), 0, "seed {seed}");
    }
}
