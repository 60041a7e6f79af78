//! The hash of a flow selects the port: all packets of a flow take the same way.

use super::hash::{Hasher, pick};
use super::{Loads, Question, config};

/// State of a switch: its hash.
#[derive(Clone, Debug)]
pub(super) struct State {
    hasher: Hasher,
    qp: bool,
}

impl State {
    /// `own` differs from switch to switch, `common` does not.
    pub(super) fn new(config: &config::Ecmp, own: u64, common: u64) -> Self {
        let seed = match config.seed {
            config::Seed::PerSwitch => own,
            config::Seed::Same => common,
        };
        Self { hasher: Hasher::new(seed), qp: config.qp }
    }

    pub(super) fn choose(&self, question: &Question<'_>) -> u16 {
        let qp = if self.qp { u64::from(question.qp) } else { 0 };
        // A queue pair's number has 24 bits. At the upper end, they meet the best mixed bits of the product.
        pick(question.ports, self.hasher.of(question.flow ^ (qp << 40)))
    }
}

/// State of a switch that gives some ports more flows than others.
#[derive(Clone, Debug)]
pub(super) struct WeightedState {
    hasher: Hasher,
    weights: Vec<u32>,
}

impl WeightedState {
    pub(super) fn new(config: &config::Weighted, own: u64) -> Self {
        Self { hasher: Hasher::new(own), weights: config.weights.clone() }
    }

    pub(super) fn choose(&self, question: &Question<'_>, loads: &dyn Loads) -> u16 {
        let hash = self.hasher.of(question.flow);
        let weight = |port| self.weight(port, loads);
        let total: u128 = question.ports.iter().map(|port| weight(*port)).sum();
        let mut left = (u128::from(hash) * total) >> 64;
        for port in question.ports {
            match left.checked_sub(weight(*port)) {
                Some(rest) => left = rest,
                None => return *port,
            }
        }
        // All weights are 0.
        pick(question.ports, hash)
    }

    fn weight(&self, port: u16, loads: &dyn Loads) -> u128 {
        if self.weights.is_empty() {
            return loads.rate(port).into();
        }
        self.weights.get(usize::from(port)).copied().unwrap_or(1).into()
    }
}
