//! Global load balancing: each flowlet takes the port whose worse part is best, where the parts are the port itself and the
//! neighbour's ports behind it.
//!
//! Every interval a switch tells its neighbours the levels of its ports, by destination leaf. So a switch knows of the hop
//! after next, as old as the report is. Vendors document the messages and not the rule; the maximum of both levels is that
//! of CONGA.

use super::flowlets::Table;
use super::hash::Random;
use super::quality::Meter;
use super::{LeafQuality, Loads, Picos, Question, config};

/// State of a switch.
#[derive(Clone, Debug)]
pub(super) struct State {
    table: Table,
    meter: Meter,
    random: Random,
    interval: Picos,
    /// By destination leaf and port: the level that the neighbour has told.
    told: Vec<Vec<u8>>,
}

impl State {
    pub(super) fn new(config: &config::Glb, own: u64) -> Self {
        Self {
            table: Table::new(super::picos(config.gap), super::picos(config.ageing), own),
            meter: Meter::new(&config.quality),
            random: Random::new(own),
            interval: super::picos(config.interval).max(1),
            told: Vec::new(),
        }
    }

    pub(super) const fn interval(&self) -> Picos {
        self.interval
    }

    pub(super) fn choose(&mut self, question: &Question<'_>, loads: &dyn Loads) -> u16 {
        let (meter, random, now) = (&mut self.meter, &mut self.random, question.now);
        let told = usize::try_from(question.dst_leaf).ok().and_then(|leaf| self.told.get(leaf));
        let told = told.map_or(&[][..], Vec::as_slice);
        self.table.port(question, |_| {
            random.least(question.ports, |port| {
                let remote = told.get(usize::from(port)).copied().unwrap_or(0);
                remote.max(meter.worst(now, port, loads))
            })
        })
    }

    pub(super) fn report(
        &mut self,
        now: Picos,
        leaf: u32,
        ports: &[u16],
        loads: &dyn Loads,
    ) -> Option<LeafQuality> {
        // The switch will itself take the best of several ports.
        let level = ports.iter().map(|port| self.meter.worst(now, *port, loads)).min()?;
        Some(LeafQuality { leaf, level })
    }

    pub(super) fn on_report(&mut self, from_port: u16, report: &[LeafQuality]) {
        for LeafQuality { leaf, level } in report {
            let Ok(leaf) = usize::try_from(*leaf) else { continue };
            if self.told.len() <= leaf {
                self.told.resize(leaf + 1, Vec::new());
            }
            let (ports, port) = (&mut self.told[leaf], usize::from(from_port));
            if ports.len() <= port {
                ports.resize(port + 1, 0);
            }
            ports[port] = *level;
        }
    }
}
