//! Spraying by the sender: each packet has another entropy value, which switches hash.
//!
//! The value is carried in the UDP source port, or a part of it, and its acknowledgement echoes it. So a sender learns which
//! values lead over congested ways, without knowing the ways. The schemes and their numbers are those of uet-htsim.

use super::hash::Random;
use super::{ConfigError, Picos, picos};
use crate::words;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use time::Duration;

/// How a sender chooses entropy values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "scheme", rename_all = "kebab-case")]
pub enum EntropyConfig {
    /// Each value once in a turn, whatever happens to packets.
    Oblivious(Values),
    /// As `oblivious`, but values of packets that were marked or lost are skipped for some turns.
    Bitmap(Values),
    /// Values of packets that arrived unmarked are used again (Bonato et al.: REPS, 2024).
    Reps(Reps),
    /// As `reps`; when no value is left to use again, as `bitmap`. This is what uet-htsim does by default.
    Mixed(Values),
}

impl Default for EntropyConfig {
    fn default() -> Self {
        Self::Mixed(Values::default())
    }
}

impl EntropyConfig {
    /// Whether all settings make sense.
    ///
    /// # Errors
    /// Names the first one that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let (Self::Oblivious(Values { values })
        | Self::Bitmap(Values { values })
        | Self::Mixed(Values { values })
        | Self::Reps(Reps { values, .. })) = self;
        if values.is_power_of_two() { Ok(()) } else { Err(ConfigError::NotPowerOfTwo { setting: "values" }) }
    }
}

/// Settings of the schemes that have no others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Values {
    /// How many values there are: a power of two. 64, as in uet-htsim.
    pub values: u16,
}

impl Default for Values {
    fn default() -> Self {
        Self { values: 64 }
    }
}

/// Settings of `reps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reps {
    /// How many values there are: a power of two. 64, as in uet-htsim.
    pub values: u16,
    /// After a timeout, only values that are known to work are used for this time. 10 ms, as in uet-htsim.
    #[serde(with = "words::duration")]
    pub freeze: Duration,
}

impl Default for Reps {
    fn default() -> Self {
        Self { values: 64, freeze: Duration::from_millis(10) }
    }
}

/// The entropy values of a connection.
#[derive(Clone, Debug)]
pub struct Entropy(Scheme);

#[derive(Clone, Debug)]
enum Scheme {
    Oblivious(Turns),
    Bitmap(Bitmap),
    Reps(Recycled),
    Mixed(Bitmap, VecDeque<u16>),
}

/// Values that the mixed scheme keeps for reuse. uet-htsim has no bound; more than a window of packets cannot come at once,
/// and these are the packets of 4 KiB in 16 MB.
const KEPT: usize = 4096;

impl Entropy {
    /// The values of a connection. A number of values that [`EntropyConfig::check`] refuses is rounded up.
    #[must_use]
    pub fn new(config: &EntropyConfig, seed: u64) -> Self {
        Self(match config {
            EntropyConfig::Oblivious(values) => Scheme::Oblivious(Turns::new(values.values, seed)),
            EntropyConfig::Bitmap(values) => Scheme::Bitmap(Bitmap::new(values.values, seed)),
            EntropyConfig::Reps(reps) => Scheme::Reps(Recycled::new(reps, seed)),
            EntropyConfig::Mixed(values) => Scheme::Mixed(Bitmap::new(values.values, seed), VecDeque::new()),
        })
    }

    /// The value of the next packet.
    #[expect(clippy::should_implement_trait, reason = "there is no end to the values")]
    pub fn next(&mut self) -> u16 {
        match &mut self.0 {
            Scheme::Oblivious(turns) => turns.next(),
            Scheme::Bitmap(bitmap) => bitmap.next(),
            Scheme::Reps(recycled) => recycled.next(),
            Scheme::Mixed(bitmap, kept) => kept.pop_front().unwrap_or_else(|| bitmap.next()),
        }
    }

    /// A packet with this value was acknowledged. `marked` says whether it met congestion.
    pub fn on_ack(&mut self, now: Picos, value: u16, marked: bool) {
        match &mut self.0 {
            Scheme::Oblivious(_) => {}
            Scheme::Bitmap(bitmap) => bitmap.punish(value, u8::from(marked)),
            Scheme::Reps(recycled) => recycled.on_ack(now, value, marked),
            Scheme::Mixed(bitmap, kept) => {
                bitmap.punish(value, u8::from(marked));
                if !marked && kept.len() < KEPT {
                    kept.push_back(value);
                }
            }
        }
    }

    /// A packet with this value was trimmed or refused.
    pub fn on_nack(&mut self, now: Picos, value: u16) {
        match &mut self.0 {
            Scheme::Oblivious(_) => {}
            Scheme::Bitmap(bitmap) | Scheme::Mixed(bitmap, _) => bitmap.punish(value, OF_NACK),
            Scheme::Reps(recycled) => recycled.thaw(now),
        }
    }

    /// Nothing has come back for a packet with this value.
    pub fn on_timeout(&mut self, now: Picos, value: u16) {
        match &mut self.0 {
            Scheme::Oblivious(_) => {}
            Scheme::Bitmap(bitmap) | Scheme::Mixed(bitmap, _) => bitmap.punish(value, HIGHEST),
            Scheme::Reps(recycled) => recycled.on_timeout(now),
        }
    }
}

/// Each value once in a turn, in the order of an index with some bits inverted. Which ones is drawn anew for each turn.
#[derive(Clone, Debug)]
struct Turns {
    random: Random,
    /// The bits that the connection does not change, so that connections differ.
    upper: u16,
    mask: u16,
    index: u16,
    inverted: u16,
}

impl Turns {
    fn new(values: u16, seed: u64) -> Self {
        let mask = mask(values);
        let mut random = Random::new(seed);
        let (upper, inverted) = (random.bits() & !mask, random.bits() & mask);
        Self { random, upper, mask, index: 0, inverted }
    }

    /// The value of this step, without the upper bits.
    const fn now(&self) -> u16 {
        self.index ^ self.inverted
    }

    fn step(&mut self) {
        self.index = self.index.wrapping_add(1) & self.mask;
        if self.index == 0 {
            self.inverted = self.random.bits() & self.mask;
        }
    }

    fn next(&mut self) -> u16 {
        let value = self.upper | self.now();
        self.step();
        value
    }
}

/// The mask of so many values, of which there is a power of two.
fn mask(values: u16) -> u16 {
    values.max(1).checked_next_power_of_two().map_or(u16::MAX, |n| n - 1)
}

/// What a negative acknowledgement adds to a value's score. A mark adds 1.
const OF_NACK: u8 = 4;
/// The highest score, which a timeout gives.
const HIGHEST: u8 = 15;

/// Turns in which values with a score are skipped.
#[derive(Clone, Debug)]
struct Bitmap {
    turns: Turns,
    /// By the lower bits of a value.
    scores: Vec<u8>,
}

impl Bitmap {
    fn new(values: u16, seed: u64) -> Self {
        Self { turns: Turns::new(values, seed), scores: vec![0; usize::from(mask(values)) + 1] }
    }

    fn punish(&mut self, value: u16, by: u8) {
        if let Some(score) = self.scores.get_mut(usize::from(value & self.turns.mask)) {
            *score = score.saturating_add(by).min(HIGHEST);
        }
    }

    /// Each packet that would have taken a value with a score lowers the first such score by one. If all values have one,
    /// the value after a whole turn is taken.
    fn next(&mut self) -> u16 {
        for skipped in 0..=self.turns.mask {
            match self.scores.get_mut(usize::from(self.turns.now())) {
                Some(score) if *score > 0 => *score -= u8::from(skipped == 0),
                _ => break,
            }
            self.turns.step();
        }
        self.turns.next()
    }
}

/// Values that are kept: the size of the ring of REPS.
const RING: usize = 8;
/// Random values after a freeze, before known ones are used again.
const EXPLORED: u8 = 16;

/// REPS: a ring of values that worked.
#[derive(Clone, Debug)]
struct Recycled {
    random: Random,
    mask: u16,
    freeze: Picos,
    /// Values in the order in which they came, the newest last. Those that were used stay for a freeze.
    ring: VecDeque<u16>,
    /// How many of the newest values were not used yet.
    fresh: usize,
    /// The end of a freeze, and the place of the next value in it.
    frozen: Option<(Picos, usize)>,
    explore: u8,
}

impl Recycled {
    fn new(config: &Reps, seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            mask: mask(config.values),
            freeze: picos(config.freeze),
            ring: VecDeque::with_capacity(RING),
            fresh: 0,
            frozen: None,
            explore: 0,
        }
    }

    fn next(&mut self) -> u16 {
        if self.explore > 0 {
            self.explore -= 1;
        } else if let Some((_, at)) = &mut self.frozen {
            // Round and round over what is known to work.
            let value = self.ring.get(*at % self.ring.len().max(1)).copied();
            *at += 1;
            if let Some(value) = value {
                return value;
            }
        } else if self.fresh > 0 {
            let value = self.ring.get(self.ring.len().saturating_sub(self.fresh)).copied();
            self.fresh -= 1;
            if let Some(value) = value {
                return value;
            }
        }
        self.random.bits() & self.mask
    }

    fn on_ack(&mut self, now: Picos, value: u16, marked: bool) {
        self.thaw(now);
        if marked {
            return;
        }
        if self.ring.len() == RING {
            self.ring.pop_front();
        }
        self.ring.push_back(value);
        self.fresh = (self.fresh + 1).min(RING);
    }

    /// Something is broken: nothing new is tried for a while. Ways that are being explored already may time out.
    fn on_timeout(&mut self, now: Picos) {
        if self.frozen.is_none() && self.explore == 0 {
            self.frozen = Some((now.saturating_add(self.freeze), 0));
        }
        self.thaw(now);
    }

    fn thaw(&mut self, now: Picos) {
        if self.frozen.is_some_and(|(until, _)| now > until) {
            self.frozen = None;
            self.ring.clear();
            self.fresh = 0;
            self.explore = EXPLORED;
        }
    }
}
