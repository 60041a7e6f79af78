//! Each packet takes another port, whatever its flow.

use super::hash::{Hasher, Random, pick};
use super::{Question, config};

/// State of a switch.
#[derive(Clone, Debug)]
pub(super) struct State {
    order: config::Order,
    by_hash_below: u32,
    hasher: Hasher,
    random: Random,
    /// By the first port of a set of ports: the rounds of the sets that begin with it. There are as many sets as there
    /// are directions to choose within, mostly one.
    rounds: Vec<Vec<Round>>,
}

/// Turns of a set of ports.
#[derive(Clone, Debug)]
struct Round {
    ports: Box<[u16]>,
    order: Box<[u16]>,
    at: usize,
}

impl State {
    pub(super) fn new(config: &config::Spray, own: u64) -> Self {
        Self {
            order: config.order,
            by_hash_below: config.by_hash_below,
            hasher: Hasher::new(own),
            random: Random::new(own),
            rounds: Vec::new(),
        }
    }

    pub(super) fn choose(&mut self, question: &Question<'_>) -> u16 {
        if question.bytes < self.by_hash_below {
            return pick(question.ports, self.hasher.of(question.flow));
        }
        match self.order {
            config::Order::Random => self.random.pick(question.ports),
            config::Order::RoundRobin => self.next_turn(question.ports),
        }
    }

    fn next_turn(&mut self, ports: &[u16]) -> u16 {
        let first = usize::from(ports.first().copied().unwrap_or_default());
        if self.rounds.len() <= first {
            self.rounds.resize(first + 1, Vec::new());
        }
        let sets = &mut self.rounds[first];
        let known = sets.iter().position(|round| *round.ports == *ports);
        let at = known.unwrap_or_else(|| {
            sets.push(Round { ports: ports.into(), order: ports.into(), at: 0 });
            sets.len() - 1
        });
        let round = &mut sets[at];
        if round.at == 0 {
            let count = round.order.len();
            self.random.shuffle(&mut round.order, count);
        }
        let port = round.order.get(round.at).copied().unwrap_or_default();
        round.at += 1;
        if round.at >= round.order.len() {
            round.at = 0;
        }
        port
    }
}
