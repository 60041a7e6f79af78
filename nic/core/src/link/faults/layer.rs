//! The layer that applies fault rules.

use super::facts::{Facts, Layout};
use super::hold::{Hold, Wait};
use super::rule::{Action, Budget, Corruption, Ecn, FaultRule, Match, RuleError};
use super::storm::Storms;
use super::track::{QpFlow, Tracker};
use super::words::Time;
use crate::link::{Direction, Fate, Frame};
use cc::Rate;
use cc::pfc::PauseFrame;
use qp::wire::packet::Packet;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;
use time::{Duration, Instant};

/// The maximum number of rules in a layer: every packet is checked against each of them.
const MAX_RULES: usize = 1000;

/// Near misses kept for a rule that never acted.
const NEAR_MISSES: usize = 3;

/// Byte 4 of the BTH (FECN, BECN, reserved bits) is not under the ICRC: a receiver would not notice.
const UNCOVERED_BYTE: usize = 4;

/// Why a rule cannot be added.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AddError {
    /// A value is invalid.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// A rule of this name already exists.
    #[error("there is a fault rule named '{0}' already")]
    NameTaken(String),
    /// The layer already has the maximum number of rules.
    #[error("a link takes {MAX_RULES} fault rules at most")]
    TooMany,
}

/// A packet that came close to a rule that never acted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NearMiss {
    /// The packet, in one line.
    pub packet: String,
    /// How many of the rule's conditions it met.
    pub met: usize,
    /// How many conditions the rule has.
    pub of: usize,
    /// The conditions that it did not meet, and its actual values.
    pub differences: Vec<String>,
}

/// A rule and its effect so far.
#[derive(Clone, PartialEq, Debug)]
pub struct RuleStatus<'a> {
    /// Its name.
    pub name: &'a str,
    /// The rule; `Display` gives its text.
    pub rule: &'a FaultRule,
    /// The number of packets on which it acted.
    pub hits: u64,
    /// Whether its budget is used up.
    pub is_spent: bool,
    /// The nearest packets, best first, if it never acted and diagnosis is on.
    pub near_misses: &'a [NearMiss],
}

/// Loses, copies, delays, reorders, damages and marks packets, by [`FaultRule`]s.
///
/// All of its effects follow from the seed, the rules, and the packets with their times. Its memory is bounded: 4096
/// streams of packets (the longest silent ones are forgotten), and 64 MiB of waiting packets; beyond that, packets
/// pass on time and [`FaultLayer::overflows`] counts them.
pub struct FaultLayer {
    seed: u64,
    rules: Vec<Installed>,
    /// Number of the next rule.
    next_rule: u64,
    diagnose: bool,
    tracker: Tracker,
    hold: Hold,
    storms: Storms,
    overflows: u64,
    /// The rules that act on the current packet; kept to reuse its allocation.
    acting: Vec<usize>,
}

impl FaultLayer {
    /// A layer without rules.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            rules: Vec::new(),
            next_rule: 1,
            diagnose: false,
            tracker: Tracker::default(),
            hold: Hold::default(),
            storms: Storms::default(),
            overflows: 0,
            acting: Vec::new(),
        }
    }

    /// Adds a rule and returns its name: its own, or `f1`, `f2` and so on. Its window starts now.
    ///
    /// # Errors
    /// If a value is invalid, the name is taken or there are too many rules.
    pub fn add(&mut self, now: Instant, rule: FaultRule) -> Result<Arc<str>, AddError> {
        rule.validate()?;
        if self.rules.len() >= MAX_RULES {
            return Err(AddError::TooMany);
        }
        let taken = |name: &str| self.rules.iter().any(|r| &*r.name == name);
        let name = match &rule.name {
            Some(name) if taken(name) => return Err(AddError::NameTaken(name.clone())),
            Some(name) => name.clone(),
            None => {
                // One of the first MAX_RULES + 1 names is free.
                let names = (1..=MAX_RULES + 1).map(|n| format!("f{n}"));
                names.into_iter().find(|name| !taken(name)).ok_or(AddError::TooMany)?
            }
        };
        let number = self.next_rule;
        self.next_rule += 1;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(number);
        let name: Arc<str> = name.into();
        self.rules.push(Installed {
            name: name.clone(),
            budget: rule.effective_budget(),
            rule,
            number,
            since: now,
            rng,
            met: 0,
            hits: 0,
            near: Vec::new(),
        });
        Ok(name)
    }

    /// Removes a rule. Packets that it holds still wait out their time.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.rules.len();
        self.rules.retain(|r| &*r.name != name);
        self.end_storms();
        self.rules.len() < before
    }

    /// Removes all rules.
    pub fn clear(&mut self) {
        self.rules.clear();
        self.end_storms();
    }

    /// Ends the storms of removed rules.
    fn end_storms(&mut self) {
        let rules = &self.rules;
        self.storms.retain(|number| rules.iter().any(|rule| rule.number == number));
    }

    /// Returns a pause to send to a peer, from a port of rate `rate`. Call it after packets arrived and after
    /// timeouts, until it returns `None`.
    pub fn poll_pause(&mut self, now: Instant, rate: Rate) -> Option<(IpAddr, PauseFrame)> {
        self.storms.poll(now, rate)
    }

    /// Sets whether to remember, for rules that never acted, the packets that came closest. This costs a comparison
    /// with each condition for every packet and such rule.
    pub const fn diagnose(&mut self, on: bool) {
        self.diagnose = on;
    }

    /// The rules and their effects so far, in order.
    pub fn rules(&self) -> impl Iterator<Item = RuleStatus<'_>> {
        self.rules.iter().map(|r| RuleStatus {
            name: &r.name,
            rule: &r.rule,
            hits: r.hits,
            is_spent: r.is_spent(),
            near_misses: &r.near,
        })
    }

    /// The number of packets on which a rule acted; `None` if no rule has this name.
    #[must_use]
    pub fn hits(&self, name: &str) -> Option<u64> {
        self.rules.iter().find(|r| &*r.name == name).map(|r| r.hits)
    }

    /// Packets that should have waited but did not fit.
    #[must_use]
    pub const fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Finds the rules that act on a frame, up to the first that drops it.
    fn choose(&mut self, now: Instant, frame: &Frame) -> (QpFlow, Layout) {
        let packet = Packet::parse(&frame.bytes).ok();
        let flow = QpFlow::of(frame, packet.as_ref());
        let sighting = packet.as_ref().and_then(|p| self.tracker.see(flow, p));
        let facts = Facts { frame, packet, flow, sighting };
        self.acting.clear();
        for (i, rule) in self.rules.iter_mut().enumerate() {
            if rule.acts_on(now, &facts, &self.hold) {
                self.acting.push(i);
                if rule.rule.action == Action::Drop {
                    break;
                }
            } else if self.diagnose && rule.hits == 0 {
                rule.remember(&facts);
            }
        }
        (flow, facts.layout())
    }

    /// Applies the chosen rules to a frame, except for waiting; returns how it waits and how often it is copied.
    fn apply(&mut self, now: Instant, frame: &mut Frame, layout: &Layout, flow: QpFlow) -> (Wait, u32) {
        let mut wait = Wait { flow, overtakers: None, delay: Duration::ZERO };
        let mut copies: u32 = 0;
        for &i in &self.acting {
            let Some(rule) = self.rules.get_mut(i) else { continue };
            let note = match rule.rule.action {
                Action::Drop => {
                    frame.fate = Fate::Dropped { by: rule.name.clone() };
                    "dropped".to_owned()
                }
                Action::Duplicate(n) => {
                    copies = copies.saturating_add(n);
                    if n == 1 { "1 copy follows".to_owned() } else { format!("{n} copies follow") }
                }
                Action::Delay { by, jitter } => {
                    let delay = vary(&mut rule.rng, by, jitter);
                    wait.delay += delay;
                    format!("delayed by {}", Time(delay))
                }
                Action::Reorder(n) => {
                    wait.overtakers = Some((rule.number, n));
                    format!("held until {n} overtake it")
                }
                Action::Corrupt(what) => match flip(&mut rule.rng, what, layout, &mut frame.bytes) {
                    Some(bit) => format!("bit {bit} flipped"),
                    None => continue,
                },
                Action::MarkCe => {
                    frame.ip.tos |= Ecn::Ce as u8;
                    "marked CE".to_owned()
                }
                Action::Pause(priorities) => {
                    let peer = match frame.direction {
                        Direction::Tx => frame.ip.dst,
                        Direction::Rx => frame.ip.src,
                    };
                    match rule.budget {
                        Budget::Times(_) => self.storms.pause_once(peer, priorities),
                        Budget::Always | Budget::Probability(_) => {
                            self.storms.begin(now, rule.number, peer, priorities, rule.ends());
                        }
                    }
                    format!("{peer} is told to pause")
                }
            };
            frame.notes.push(format!("fault {}: {note}", rule.name));
        }
        (wait, copies)
    }
}

impl FaultLayer {
    /// Returns whether packets of this direction must pass through the layer at all.
    #[must_use]
    pub fn applies_to(&self, direction: Direction) -> bool {
        // Packets that overtake a held packet must pass through to be counted.
        self.hold.is_holding() || self.rules.iter().any(|r| r.rule.place.allows(direction) && !r.is_spent())
    }

    /// Takes a packet and passes zero or more packets on through `out`, now or in a later call. A dropped packet is
    /// passed on as well, with [`Fate::Dropped`], for observers.
    pub fn handle(&mut self, now: Instant, mut frame: Frame, out: &mut dyn FnMut(Frame)) {
        let (flow, layout) = self.choose(now, &frame);
        let (wait, copies) = self.apply(now, &mut frame, &layout, flow);
        if frame.fate != Fate::Pending {
            out(frame);
            return;
        }
        let waits = wait.overtakers.is_some() || !wait.delay.is_zero();
        if waits && !self.hold.has_room(&wait, &frame, copies as usize + 1) {
            self.overflows += 1;
            frame.notes.push("fault: too much is waiting, not delayed".to_owned());
        } else if waits {
            let mut frames = Vec::with_capacity(copies as usize + 1);
            with_copies(frame, copies, &mut |f| frames.push(f));
            self.hold.put(now, wait, frames);
            return;
        }
        with_copies(frame, copies, out);
        self.hold.overtaken(now, flow, out);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.hold.poll_timeout(), self.storms.poll_timeout()].into_iter().flatten().min()
    }

    /// Releases packets that were held back, of either direction.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut dyn FnMut(Frame)) {
        self.hold.release(now, out);
    }
}

/// Passes on a frame, followed by its copies.
fn with_copies(frame: Frame, copies: u32, out: &mut dyn FnMut(Frame)) {
    let copy = (copies > 0).then(|| frame.clone());
    out(frame);
    let Some(mut copy) = copy else { return };
    copy.notes.push("a copy".to_owned());
    for _ in 1..copies {
        out(copy.clone());
    }
    out(copy);
}

/// A rule in force.
struct Installed {
    name: Arc<str>,
    rule: FaultRule,
    budget: Budget,
    number: u64,
    since: Instant,
    rng: ChaCha8Rng,
    /// Packets that met all conditions: what `nth` and `every` count.
    met: u64,
    hits: u64,
    near: Vec<NearMiss>,
}

impl Installed {
    const fn is_spent(&self) -> bool {
        matches!(self.budget, Budget::Times(n) if self.hits >= n)
    }

    /// Whether the rule's window is open.
    fn is_awake(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.since);
        let from = self.rule.from.unwrap_or_default();
        age >= from && self.rule.lasting.is_none_or(|lasting| age - from < lasting)
    }

    /// When its window closes; `None` for never.
    fn ends(&self) -> Option<Instant> {
        let time = self.rule.from.unwrap_or_default() + self.rule.lasting?;
        self.since.checked_add(time)
    }

    /// Whether the rule acts on a packet; counts it if so.
    fn acts_on(&mut self, now: Instant, facts: &Facts<'_>, hold: &Hold) -> bool {
        if self.is_spent()
            || !self.is_awake(now)
            || !facts.is_at(self.rule.place)
            || !self.rule.matches.iter().all(|m| facts.meets(*m))
            || !facts.suits(self.rule.action)
        {
            return false;
        }
        self.met += 1;
        let met = self.met;
        let counts = |m: &Match| match *m {
            Match::Nth(n) => met == n,
            Match::Every(n) => met.is_multiple_of(n),
            _ => true,
        };
        let acts = self.rule.matches.iter().all(counts)
            && !(matches!(self.rule.action, Action::Reorder(_)) && hold.holds(self.number, facts.flow))
            && match self.budget {
                Budget::Always | Budget::Times(_) => true,
                Budget::Probability(p) => unit(&mut self.rng) < p,
            };
        self.hits += u64::from(acts);
        acts
    }

    /// Remembers a packet that the rule did not act on, if it came closer than those remembered.
    fn remember(&mut self, facts: &Facts<'_>) {
        let (met, of) = facts.score(&self.rule);
        if self.near.len() >= NEAR_MISSES && self.near.last().is_some_and(|worst| met <= worst.met) {
            return;
        }
        let mut differences = facts.differences(&self.rule);
        if differences.is_empty() {
            differences.push("its time or number, or the draw".to_owned());
        }
        let packet = facts.packet.map_or_else(
            || format!("{} bytes that are no packet", facts.frame.bytes.len()),
            |p| p.to_string(),
        );
        let at = self.near.partition_point(|n| n.met >= met);
        self.near.insert(at, NearMiss { packet, met, of, differences });
        self.near.truncate(NEAR_MISSES);
    }
}

// The draws below use only the generator's words, so that they are the same with every version of `rand`.

/// A number from 0 up to but not including 1: the upper 53 bits, which an `f64` holds exactly.
fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A number below `n`, by the upper half of a product. The bias is below n / 2^64.
fn below(rng: &mut ChaCha8Rng, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}

/// A time from `by - jitter` to `by + jitter`, not below 0.
fn vary(rng: &mut ChaCha8Rng, by: Duration, jitter: Duration) -> Duration {
    if jitter.is_zero() {
        return by;
    }
    let width = u64::try_from(jitter.as_nanos()).unwrap_or(u64::MAX / 4).saturating_mul(2);
    let offset = Duration::from_nanos(below(rng, width.saturating_add(1)));
    (by + offset).saturating_sub(jitter)
}

/// Flips a bit and returns its number; `None` if the packet has no such bit.
fn flip(rng: &mut ChaCha8Rng, what: Corruption, layout: &Layout, bytes: &mut [u8]) -> Option<usize> {
    let bit = match what {
        Corruption::Bit(n) => n as usize,
        Corruption::Icrc => bit_in(rng, &layout.icrc),
        Corruption::Payload => bit_in(rng, &layout.payload),
        Corruption::Header => {
            // One byte less to choose from: bytes behind the uncovered one move up by one.
            let bit = bit_in(rng, &(layout.headers.start..layout.headers.end.saturating_sub(1)));
            if bit / 8 >= UNCOVERED_BYTE { bit + 8 } else { bit }
        }
    };
    *bytes.get_mut(bit / 8)? ^= 0x80 >> (bit % 8);
    Some(bit)
}

/// A bit of a range of bytes.
fn bit_in(rng: &mut ChaCha8Rng, bytes: &Range<usize>) -> usize {
    bytes.start * 8 + below(rng, bytes.len() as u64 * 8) as usize
}
