//! Each packet or flowlet takes the best port of this switch.

use super::flowlets::Table;
use super::hash::{Hasher, Random, pick};
use super::quality::Meter;
use super::{Loads, Question, config};

/// State of a switch.
#[derive(Clone, Debug)]
pub(super) struct State {
    compare: config::Compare,
    two_choices: bool,
    by_hash_below: u32,
    hasher: Hasher,
    meter: Meter,
    random: Random,
    /// Flowlets, unless each packet is on its own.
    table: Option<Table>,
}

/// How bad a port is. It may be blocked, and has one level or two.
type Badness = (bool, u8, u8);

impl State {
    pub(super) fn new(config: &config::Adaptive, own: u64) -> Self {
        let gap = super::picos(config.gap);
        let by_flowlet = config.unit == config::Unit::Flowlet;
        Self {
            compare: config.compare,
            two_choices: config.two_choices,
            by_hash_below: config.by_hash_below,
            hasher: Hasher::new(own),
            meter: Meter::new(&config.quality),
            random: Random::new(own),
            // A flow that is known stays where it is as long as that is as good: it is never forgotten.
            table: by_flowlet.then(|| Table::new(gap, u64::MAX, own)),
        }
    }

    pub(super) fn choose(&mut self, question: &Question<'_>, loads: &dyn Loads) -> u16 {
        if question.bytes < self.by_hash_below {
            return pick(question.ports, self.hasher.of(question.flow));
        }
        // Taken out for a while, because its closure uses the rest.
        let Some(mut table) = self.table.take() else { return self.best(question, loads) };
        let port = table.port(question, |before| match before {
            None => self.best(question, loads),
            Some(before) => self.better(before, question, loads),
        });
        self.table = Some(table);
        port
    }

    /// The best port, or the better one of two that are random.
    fn best(&mut self, question: &Question<'_>, loads: &dyn Loads) -> u16 {
        let two;
        let mut ports = question.ports;
        if self.two_choices {
            two = [self.random.pick(ports), self.random.pick(ports)];
            ports = &two;
        }
        let (meter, compare) = (&mut self.meter, self.compare);
        self.random.least(ports, |port| badness(meter, compare, port, question, loads))
    }

    /// A port that is better than the one before. Half of the flows stay, so that not all leave at the same time.
    fn better(&mut self, before: u16, question: &Question<'_>, loads: &dyn Loads) -> u16 {
        if self.random.below(2) == 0 {
            return before;
        }
        let best = self.best(question, loads);
        let mut of = |port| badness(&mut self.meter, self.compare, port, question, loads);
        if of(best) < of(before) { best } else { before }
    }
}

fn badness(
    meter: &mut Meter,
    compare: config::Compare,
    port: u16,
    question: &Question<'_>,
    loads: &dyn Loads,
) -> Badness {
    match compare {
        config::Compare::Queue => (false, meter.queue(port, loads), 0),
        config::Compare::Utilisation => (false, meter.utilisation(question.now, port, loads), 0),
        config::Compare::PauseFirst => (
            loads.blocked(port, question.class),
            meter.queue(port, loads),
            meter.utilisation(question.now, port, loads),
        ),
    }
}
