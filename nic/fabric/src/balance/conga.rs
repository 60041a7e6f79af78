//! CONGA (Alizadeh et al., SIGCOMM 2014): leaves measure the ways to each other, and each flowlet takes the least congested.
//!
//! Every switch estimates the load of its ports. A packet collects the highest estimate on its way. The destination leaf
//! keeps it by source leaf and way, and tells it to the source leaf in the tag of some packet of the opposite direction. A
//! way is the port of the source leaf; switches above the leaves spread flows by hash, as in the paper.

use super::flowlets::Table;
use super::hash::{Hasher, Random, pick};
use super::{Feedback, Loads, Picos, Question, Tag, config};

/// State of a switch.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// The number of this switch.
    leaf: u32,
    estimators: Estimators,
    table: Table,
    hasher: Hasher,
    random: Random,
    ageing: Picos,
    /// By destination leaf and port of this leaf: the congestion that the destination leaf reported.
    to_leaf: Vec<Vec<Told>>,
    /// By source leaf: the congestion seen on its ways to this leaf, which it is to be told.
    from_leaf: Vec<Observed>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    at: Picos,
    congestion: u8,
}

/// Congestion of the ways from a leaf.
#[derive(Clone, Debug, Default)]
struct Observed {
    ways: Vec<Seen>,
    /// The way after the one that was told last.
    next: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// When a packet came this way; `None` if none has.
    at: Option<Picos>,
    congestion: u8,
    /// Whether it has changed since it was told.
    changed: bool,
}

impl State {
    pub(super) fn new(config: &config::Conga, leaf: u32, own: u64) -> Self {
        let ageing = super::picos(config.ageing);
        Self {
            leaf,
            estimators: Estimators::new(config),
            table: Table::new(super::picos(config.flowlet), ageing, own),
            hasher: Hasher::new(own),
            random: Random::new(own),
            ageing,
            to_leaf: Vec::new(),
            from_leaf: Vec::new(),
        }
    }

    pub(super) fn choose(&mut self, question: &Question<'_>, loads: &dyn Loads) -> u16 {
        let Question { now, flow, ports, .. } = *question;
        if question.src_leaf != self.leaf {
            return pick(ports, self.hasher.of(flow));
        }
        let (estimators, ageing) = (&mut self.estimators, self.ageing);
        let told = row(&mut self.to_leaf, question.dst_leaf);
        let random = &mut self.random;
        self.table.port(question, |_| {
            random.least(ports, |port| {
                // Nothing known counts as no congestion, so that each way is tried.
                let told = told.get(usize::from(port)).copied().unwrap_or_default();
                let remote = if now.saturating_sub(told.at) > ageing { 0 } else { told.congestion };
                remote.max(estimators.level(now, port, loads.rate(port)))
            })
        })
    }

    pub(super) fn on_forward(&mut self, now: Picos, port: u16, bytes: u32, loads: &dyn Loads, tag: &mut Tag) {
        self.estimators.add(now, port, bytes);
        let level = self.estimators.level(now, port, loads.rate(port));
        if tag.src_leaf == self.leaf {
            tag.way = port;
            tag.congestion = level;
            tag.feedback = row(&mut self.from_leaf, tag.dst_leaf).tell(now, self.ageing);
        } else {
            tag.congestion = tag.congestion.max(level);
        }
    }

    pub(super) fn on_delivered(&mut self, now: Picos, tag: &Tag) {
        if let Some(Feedback { way, congestion }) = tag.feedback {
            *row(row(&mut self.to_leaf, tag.src_leaf), way) = Told { at: now, congestion };
        }
        let seen = row(&mut row(&mut self.from_leaf, tag.src_leaf).ways, tag.way);
        let changed = seen.changed || seen.at.is_none() || seen.congestion != tag.congestion;
        *seen = Seen { at: Some(now), congestion: tag.congestion, changed };
    }
}

impl Observed {
    /// The next way to tell: in turns, but those first that have changed (section 3.3 of the paper).
    fn tell(&mut self, now: Picos, ageing: Picos) -> Option<Feedback> {
        let count = self.ways.len();
        let fresh = |seen: &Seen| seen.at.is_some_and(|at| now.saturating_sub(at) <= ageing);
        let turns = || (0..count).map(|n| (self.next + n) % count.max(1));
        let found = turns().find(|way| self.ways.get(*way).is_some_and(|seen| fresh(seen) && seen.changed));
        let way = found.or_else(|| turns().find(|way| self.ways.get(*way).is_some_and(fresh)))?;
        self.next = way + 1;
        let seen = self.ways.get_mut(way)?;
        seen.changed = false;
        Some(Feedback { way: u16::try_from(way).ok()?, congestion: seen.congestion })
    }
}

/// The place of a number, which the vector grows to.
fn row<T: Clone + Default>(rows: &mut Vec<T>, number: impl Into<u32>) -> &mut T {
    let number = usize::try_from(number.into()).unwrap_or(0);
    if rows.len() <= number {
        rows.resize(number + 1, T::default());
    }
    &mut rows[number]
}

/// Estimates of what ports send: the discounting rate estimators of the paper's section 3.2.
///
/// Each sent byte counts, and after each period what was counted shrinks by the factor 1-alpha. So a port that sends at a
/// rate R settles at R * period / alpha.
#[derive(Clone, Debug)]
struct Estimators {
    period: Picos,
    alpha: f64,
    levels: f64,
    /// By port: bytes that count, and the number of the period up to which they have shrunk.
    ports: Vec<(f64, u64)>,
}

impl Estimators {
    fn new(config: &config::Conga) -> Self {
        Self {
            period: super::picos(config.period).max(1),
            alpha: config.alpha.clamp(0.0, 1.0),
            levels: f64::from(1_u16 << config.bits.min(8)),
            ports: Vec::new(),
        }
    }

    fn add(&mut self, now: Picos, port: u16, bytes: u32) {
        self.at(now, port).0 += f64::from(bytes);
    }

    /// The utilisation of a port in levels, the highest of which means the whole rate.
    fn level(&mut self, now: Picos, port: u16, rate: u64) -> u8 {
        let bits = self.at(now, port).0 * 8.0;
        let possible = rate as f64 * (self.period as f64 / 1e12);
        // The conversion saturates, and makes 0 of what is not a number.
        (bits * self.alpha / possible * self.levels).clamp(0.0, self.levels - 1.0) as u8
    }

    /// The estimate of a port now.
    fn at(&mut self, now: Picos, port: u16) -> &mut (f64, u64) {
        let (factor, period) = (1.0 - self.alpha, now / self.period);
        let estimate = row(&mut self.ports, port);
        estimate.0 *= power(factor, period.saturating_sub(estimate.1));
        estimate.1 = period;
        estimate
    }
}

/// `base` to the power of `n`, by multiplications only: the result is the same on each machine.
fn power(mut base: f64, mut n: u64) -> f64 {
    let mut result = 1.0;
    while n > 0 {
        if n % 2 == 1 {
            result *= base;
        }
        base *= base;
        n /= 2;
    }
    result
}
