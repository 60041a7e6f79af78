//! Each packet takes the shortest of a few queues: some random ones, and those that were the shortest before.

use super::hash::Random;
use super::{Loads, Question, config};

/// No port.
const NONE: u16 = u16::MAX;

/// State of a switch.
#[derive(Clone, Debug)]
pub(super) struct State {
    samples: usize,
    memory: usize,
    random: Random,
    /// By destination host, its `memory` best ports of last time; [`NONE`] in places that are free.
    remembered: Vec<u16>,
    /// Working space, so that a packet allocates nothing.
    ports: Vec<u16>,
    /// The ports that the last packet compared, with the bytes that waited there; the best first.
    compared: Vec<(u64, u16)>,
}

impl State {
    pub(super) fn new(config: &config::Drill, own: u64) -> Self {
        // One sample at least, for there must be an answer.
        let samples = config.samples.max(u8::from(config.memory == 0));
        Self {
            samples: samples.into(),
            memory: config.memory.into(),
            random: Random::new(own),
            remembered: Vec::new(),
            ports: Vec::new(),
            compared: Vec::new(),
        }
    }

    pub(super) fn choose(&mut self, question: &Question<'_>, loads: &dyn Loads) -> u16 {
        self.ports.clear();
        self.ports.extend(question.ports);
        self.random.shuffle(&mut self.ports, self.samples);
        let start = question.dst.saturating_mul(self.memory);
        let end = start.saturating_add(self.memory);
        if self.remembered.len() < end {
            self.remembered.resize(end, NONE);
        }
        let remembered = &mut self.remembered[start..end];
        // Remembered ports come first, and the order of sorting is stable: so they win over samples that are as good. A
        // route may have lost some of them since then. Without valid ones, there must be a sample.
        let valid = remembered.iter().filter(|port| question.ports.contains(port));
        self.compared.clear();
        for port in valid.chain(self.ports.iter().take(self.samples)) {
            if !self.compared.iter().any(|(_, known)| known == port) {
                self.compared.push((loads.queued(*port), *port));
            }
        }
        if self.compared.is_empty() {
            self.compared.push((0, self.random.pick(question.ports)));
        }
        self.compared.sort_by_key(|(queued, _)| *queued);
        remembered.fill(NONE);
        for (place, (_, port)) in remembered.iter_mut().zip(&self.compared) {
            *place = *port;
        }
        self.compared.first().map_or(0, |(_, port)| *port)
    }

    /// The ports that the last packet compared.
    #[cfg(test)]
    pub(super) fn compared(&self) -> impl Iterator<Item = u16> {
        self.compared.iter().map(|(_, port)| *port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::tests::{Ports, packet, ports};
    use proptest::prelude::*;

    proptest! {
        /// Against a search of the shortest queue among what was compared: two ports at random, and the last answer.
        #[test]
        fn the_shortest_queue_of_the_samples_is_taken(
            seed: u64,
            steps in prop::collection::vec(prop::collection::vec(0_u64..20, 8), 1..30),
        ) {
            let ports = ports(8);
            let mut state = State::new(&config::Drill::default(), seed);
            let mut last = None;
            for queues in steps {
                let port = state.choose(&packet(0, 1, &ports), &Ports::queues(&queues));
                let compared: Vec<u16> = state.compared().collect();
                prop_assert!((2..=3).contains(&compared.len()));
                prop_assert!(last.is_none_or(|last| compared.contains(&last)));
                let shortest = compared.iter().map(|port| queues[usize::from(*port)]).min();
                prop_assert_eq!(Some(queues[usize::from(port)]), shortest);
                last = Some(port);
            }
        }
    }
}
