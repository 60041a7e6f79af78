//! What the tests of several modes need, and the laws of all modes.

mod conga;
mod conweave;
mod ecmp;
mod entropy;
mod flowlets;
mod glb;
mod laws;
mod packets;

use super::{Balancer, Loads, Picos, Question};
use std::collections::BTreeSet;

/// A microsecond.
pub(super) const US: Picos = 1_000_000;

/// Ports as a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Ports {
    pub(super) queued: Vec<u64>,
    pub(super) sent: Vec<u64>,
    pub(super) rates: Vec<u64>,
    pub(super) blocked: BTreeSet<(u16, u8)>,
}

impl Ports {
    /// Ports with these queues. They have sent nothing, at 100 Gb/s.
    pub(super) fn queues(queued: &[u64]) -> Self {
        let queued = queued.to_vec();
        let (sent, rates) = (vec![0; queued.len()], vec![100_000_000_000; queued.len()]);
        Self { queued, sent, rates, blocked: BTreeSet::new() }
    }

    /// Ports where nothing waits.
    pub(super) fn idle(count: u16) -> Self {
        Self::queues(&vec![0; count.into()])
    }
}

impl Loads for Ports {
    fn queued(&self, port: u16) -> u64 {
        self.queued[usize::from(port)]
    }

    fn sent(&self, port: u16) -> u64 {
        self.sent[usize::from(port)]
    }

    fn rate(&self, port: u16) -> u64 {
        self.rates[usize::from(port)]
    }

    fn blocked(&self, port: u16, class: u8) -> bool {
        self.blocked.contains(&(port, class))
    }
}

/// A full packet of a flow.
pub(super) fn packet(now: Picos, flow: u64, ports: &[u16]) -> Question<'_> {
    Question { now, flow, qp: 0, dst: 0, src_leaf: 1, dst_leaf: 2, bytes: 4150, class: 0, ports }
}

/// The ports from 0 on.
pub(super) fn ports(count: u16) -> Vec<u16> {
    (0..count).collect()
}

/// Hashes that look random, from a generator that the code under test does not use: xorshift64* of Vigna.
pub(super) struct Flows(u64);

impl Flows {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1)
    }
}

impl Iterator for Flows {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        Some(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }
}

/// The statistic of Pearson's test that all counts come from the same distribution.
pub(super) fn chi_square(counts: &[u32]) -> f64 {
    let total: u32 = counts.iter().sum();
    let expected = f64::from(total) / counts.len() as f64;
    counts.iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum()
}

/// The ports that a balancer answers to packets of a flow at these times.
pub(super) fn answers(balancer: &mut Balancer, loads: &Ports, questions: &[Question<'_>]) -> Vec<u16> {
    questions.iter().map(|question| balancer.choose(question, loads)).collect()
}
