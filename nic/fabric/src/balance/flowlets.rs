//! A flow may take another way once none of its packets is on the old one: after a gap between two packets.

use super::hash::{Hasher, Random, below, mix, pick};
use super::quality::Meter;
use super::{Loads, Picos, Question, config};

/// Entries of a switch's table, each of 24 bytes. A switch of CONGA's paper has 64 K of them (section 3.4), and simulators
/// have no limit. These are enough for the flows that pass a switch within some gaps; 300 switches take 30 MB.
const ENTRIES: usize = 4096;

/// Entries in which a flow may be.
const WAYS: usize = 4;

/// The ports of flows that are under way.
///
/// A flow that finds its entries taken by others takes the port of its hash, until one of those has a gap.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// The flow, the time of its last packet, and its port plus 1; that is 0 where an entry is free. Zeroed memory of this
    /// size costs nothing before it is used.
    entries: Vec<[u64; 3]>,
    gap: Picos,
    ageing: Picos,
    hasher: Hasher,
}

/// What a table knows of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It is under way through this port.
    Port(u16),
    /// It had a gap, or has not been seen. Its entry, and the port of its last packet.
    Gap(usize, Option<u16>),
    /// There is no entry for it.
    Full,
}

impl Table {
    pub(super) fn new(gap: Picos, ageing: Picos, own: u64) -> Self {
        Self { entries: vec![[0; 3]; ENTRIES], gap, ageing: ageing.max(gap), hasher: Hasher::new(own) }
    }

    /// The port of a packet. If its flow begins or had a gap, `choose` selects one; it is told the port of the packet
    /// before.
    pub(super) fn port(&mut self, question: &Question<'_>, choose: impl FnOnce(Option<u16>) -> u16) -> u16 {
        let Question { now, flow, ports, .. } = *question;
        let hash = self.hasher.of(flow);
        // Mixed once more: flows that differ in few bits must not meet in one set, whatever the factor of the hash is.
        let base = below(mix(hash), ENTRIES / WAYS) * WAYS;
        let (at, before) = match self.find(base, question) {
            Found::Port(port) => return port,
            Found::Gap(at, before) => (at, before),
            Found::Full => return pick(ports, hash),
        };
        let port = choose(before);
        self.entries[at] = [flow, now, u64::from(port) + 1];
        port
    }

    fn find(&mut self, base: usize, question: &Question<'_>) -> Found {
        let Question { now, flow, ports, .. } = *question;
        let ways = &mut self.entries[base..base + WAYS];
        if let Some(way) = ways.iter().position(|entry| entry[2] != 0 && entry[0] == flow) {
            let [_, last, port] = ways[way];
            let idle = now.saturating_sub(last);
            // A port may have left the route, as its cable broke.
            let port = u16::try_from(port - 1).ok().filter(|port| ports.contains(port));
            return match port {
                Some(port) if idle <= self.gap => {
                    ways[way][1] = now;
                    Found::Port(port)
                }
                port => Found::Gap(base + way, port.filter(|_| idle <= self.ageing)),
            };
        }
        // The entry that was not used for longest; free ones have the time 0.
        let oldest = ways.iter().enumerate().min_by_key(|(_, entry)| (entry[2] != 0, entry[1]));
        match oldest {
            Some((way, [_, last, port])) if *port == 0 || now.saturating_sub(*last) > self.gap => {
                Found::Gap(base + way, None)
            }
            _ => Found::Full,
        }
    }
}

/// LetFlow: after a gap, a random port.
#[derive(Clone, Debug)]
pub(super) struct LetflowState {
    table: Table,
    random: Random,
}

impl LetflowState {
    pub(super) fn new(config: &config::Letflow, own: u64) -> Self {
        let table = Table::new(super::picos(config.timeout), super::picos(config.ageing), own);
        Self { table, random: Random::new(own) }
    }

    pub(super) fn choose(&mut self, question: &Question<'_>) -> u16 {
        self.table.port(question, |_| self.random.pick(question.ports))
    }
}

/// Dynamic load balancing: after a gap, the best port of this switch.
#[derive(Clone, Debug)]
pub(super) struct DlbState {
    table: Table,
    meter: Meter,
    random: Random,
}

impl DlbState {
    pub(super) fn new(config: &config::Flowlet, own: u64) -> Self {
        Self {
            table: Table::new(super::picos(config.gap), super::picos(config.ageing), own),
            meter: Meter::new(&config.quality),
            random: Random::new(own),
        }
    }

    pub(super) fn choose(&mut self, question: &Question<'_>, loads: &dyn Loads) -> u16 {
        let (meter, random) = (&mut self.meter, &mut self.random);
        self.table.port(question, |_| {
            random.least(question.ports, |port| {
                (meter.queue(port, loads), meter.utilisation(question.now, port, loads))
            })
        })
    }
}
