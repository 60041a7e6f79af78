//! Worlds whose devices are the hosts of a fabric: switches, cables of several rates, pauses, credits, marks, drops by
//! congestion, cables that damage packets or are cut.

use super::Check;
use super::coverage::Coverage;
use super::rng::{Rng, mix};
use rnic_core::sim::BEGINNING;
use rnic_fabric::network::{Change, Drop, Shared};
use rnic_fabric::scenario::Scenario;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// A fabric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FabricPlan {
    /// A scenario of `rnic fabric`, without load.
    pub scenario: String,
    /// Whether it may lose packets, or lets them overtake one another.
    pub lossy: bool,
    /// From when to when the cable of the first host is cut, in microseconds.
    pub cut: Option<[u64; 2]>,
    /// From when to when the second host pauses the class of all packets, in microseconds.
    pub storm: Option<[u64; 2]>,
}

/// The part of the worlds without emulated ports that have a fabric, in percent.
const SHARE: u64 = 30;

/// The longest way through a fabric without queues, in nanoseconds: six cables of 500 ns, and a packet of 4 KiB that is sent
/// whole at 1 Gb/s in six places.
pub(super) const LATENCY: u64 = 210_000;

/// Each has room for the most hosts of a world. No way of a lossless packet waits for itself: a ring may.
const SHAPES: &[&str] = &[
    "kind = \"star\"\nhosts = 6",
    "kind = \"dumbbell\"\nhosts_per_side = 3\nuplink = { rate = \"2 Gb/s\" }",
    "kind = \"leaf-spine\"\nleaves = 3\nspines = 2\nhosts_per_leaf = 2\nuplink = { rate = \"3 Gb/s\" }",
    "kind = \"fat-tree\"\nk = 4",
    "kind = \"rail\"\nservers = 3\nnics = 2\nspines = 2\nuplink = { rate = \"2 Gb/s\" }",
];

/// Switches that lose nothing. The second marks, for congestion control; the third is InfiniBand's model.
const LOSSLESS: &[&str] = &[
    "class = [{ lossless = true, alpha = 0.125 }]",
    "class = [{ lossless = true, alpha = 0.125 }]\nred = { kmin = 5000, kmax = 50000, pmax = 0.1 }",
    "model = \"infiniband\"",
    "class = [{ lossless = true, alpha = 0.25 }]\nforwarding = \"cut-through\"",
];

/// Switches that drop: by a full buffer, by a headroom that is too small, by their deadlines.
const LOSSY: &[&str] = &[
    "buffer = { shared = \"12 KB\" }",
    "buffer = { shared = \"30 KB\" }\nred = { kmin = 5000, kmax = 50000, pmax = 0.1 }",
    "class = [{ lossless = true, xoff = \"4 KB\", headroom_error = -10000 }]",
    "model = \"infiniband\"\nhead_of_queue = \"20 us\"\nlifetime = \"60 us\"",
    "",
];

/// Ways that a switch chooses from.
const BALANCES: &[&str] = &["ecmp", "spray", "drill", "flowlet", "adaptive"];

impl FabricPlan {
    /// The fabric of a seed, if it has one. Its random numbers are its own, so that the rest of the world stays what it was.
    pub(super) fn new(seed: u64, lossy: bool, cc: bool) -> Option<Self> {
        let mut rng = Rng::new(mix(seed ^ 0xfa_b21c));
        if !rng.percent(SHARE) {
            return None;
        }
        let shape = *rng.pick(SHAPES);
        let rate = *rng.pick(&["1 Gb/s", "5 Gb/s", "25 Gb/s"]);
        let errors = if lossy && rng.percent(20) { ", bit_errors = 1e-7" } else { "" };
        let (switch, balance) = match lossy {
            true => (*rng.pick(LOSSY), *rng.pick(BALANCES)),
            false => (*rng.pick(if cc { &LOSSLESS[1..2] } else { LOSSLESS }), "ecmp"),
        };
        let period = |rng: &mut Rng| {
            let at = rng.between(50, 2_000);
            (lossy && rng.percent(20)).then(|| [at, at + rng.between(1, 900)])
        };
        let (cut, storm) = (period(&mut rng), period(&mut rng));
        let scenario = format!(
            "name = \"world\"\nabout = \"a world\"\nuntil = \"1 s\"\n[topology]\n{shape}\n\
             link = {{ rate = \"{rate}\", delay = \"500 ns\"{errors} }}\n[switch]\n{switch}\n\
             balance = {{ mode = \"{balance}\" }}\n"
        );
        Some(Self { scenario, lossy, cut, storm })
    }

    /// Builds it.
    pub(super) fn build(&self, seed: u64) -> Check<Shared> {
        let text = |why: &dyn std::fmt::Display| format!("the fabric: {why}\n{}", self.scenario);
        let scenario = Scenario::read(&self.scenario).map_err(|why| text(&why))?;
        let mut fabric = scenario.fabric(Path::new("."), seed).map_err(|why| text(&why))?;
        for (nth, is_over) in [(0, false), (1, true)] {
            let at = |times: [u64; 2]| BEGINNING + Duration::from_micros(times[nth]);
            if let Some(times) = self.cut {
                fabric.plan(at(times), Change::Cable { cable: 0, is_up: is_over });
            }
            if let Some(times) = self.storm {
                fabric.plan(at(times), Change::Storm { host: 1, classes: u8::from(!is_over) });
            }
        }
        Ok(Shared::new(fabric))
    }

    /// Checks at any time that the fabric has kept its promises, and counts what it did.
    pub(super) fn check(&self, fabric: &Shared, cover: &mut Coverage) -> Check {
        let mut fabric = fabric.lock();
        fabric.check();
        let tally = fabric.tally();
        cover.add("fabric: packet delivered", tally.delivered);
        for (why, count) in &tally.drops {
            cover.add(format!("fabric: dropped, {}", why.name()), *count);
        }
        let ports: Vec<(usize, usize)> = {
            let of = fabric.topology().ports();
            of.iter()
                .enumerate()
                .flat_map(|(node, ports)| (0..ports.len()).map(move |port| (node, port)))
                .collect()
        };
        for (node, port) in ports {
            if let Some(stats) = fabric.port_stats(node, port) {
                cover.add("fabric: marked", stats.marked);
                cover.add("fabric: paused", stats.pauses_received.iter().sum());
                cover.add("fabric: waited for credit", stats.credit_waits);
            }
        }
        // A forger is at no host.
        let lost =
            tally.drops.iter().filter(|(why, _)| **why != Drop::NoHost).map(|(_, count)| count).sum::<u64>();
        if !self.lossy && lost > 0 {
            return Err(format!("the fabric lost {lost} packets, and must not lose any: {:?}", tally.drops));
        }
        Ok(())
    }
}
