//! Keys: 24 bits of scrambled index above 8 bits of tag.
//!
//! A key must lead to its slot at once, but a peer that holds one key must not be able to compute the next. So the
//! index goes through a keyed bijection. Guessing is then no better than chance: with one region, one in 2^32 per
//! try. The bijection is not a cipher and need not be: a peer that must not reach a region gets another protection
//! domain.
//!
//! The tag changes with each use of a slot. It sits in the low byte, the part of a key that the verbs let a
//! consumer change (`ibv_inc_rkey`).

use crate::platform;
/// The number of slots that keys can distinguish.
pub(super) const MAX_SLOTS: u32 = 1 << 24;

/// Half of the index: 12 bits.
const HALF: u32 = 0xfff;

/// The source of unpredictability of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeySource {
    /// The system's randomness.
    System,
    /// A seed, for repeatable runs: the same registrations yield the same keys.
    Seed([u8; 32]),
}

/// A secret permutation of the indices, a Feistel network of four rounds.
#[derive(Clone, Debug)]
pub(super) struct KeyMaker {
    rounds: [u64; 4],
}

impl KeyMaker {
    pub(super) fn new(source: KeySource) -> Self {
        let seed = match source {
            KeySource::System => platform::random_bytes(),
            KeySource::Seed(seed) => seed,
        };
        let mut rounds = [0; 4];
        for (round, bytes) in rounds.iter_mut().zip(seed.as_chunks::<8>().0) {
            *round = u64::from_le_bytes(*bytes);
        }
        Self { rounds }
    }

    /// The key of slot `index` (below [`MAX_SLOTS`]) with `tag`.
    pub(super) fn key(&self, index: u32, tag: u8) -> u32 {
        let (mut left, mut right) = (index >> 12 & HALF, index & HALF);
        for round in self.rounds {
            (left, right) = (right, left ^ mix(right, round));
        }
        (left << 12 | right) << 8 | u32::from(tag)
    }

    /// The slot of `key`, whatever its tag. Every key maps to one slot.
    pub(super) fn slot(&self, key: u32) -> u32 {
        let (mut left, mut right) = (key >> 20, key >> 8 & HALF);
        for round in self.rounds.into_iter().rev() {
            (left, right) = (right ^ mix(left, round), left);
        }
        left << 12 | right
    }

    /// The tag of a slot's first use.
    pub(super) fn first_tag(&self, index: u32) -> u8 {
        mix(index, self.rounds[0].rotate_left(32) ^ self.rounds[3]) as u8
    }
}

/// Twelve bits out of a multiplication by the secret: the top of the product depends on all bits below.
fn mix(half: u32, round: u64) -> u32 {
    let sum = u64::from(half).wrapping_add(round >> 32);
    let product = (sum ^ (sum << 31)).wrapping_mul(round | 1);
    (product >> 52) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_is_a_bijection() {
        let maker = KeyMaker::new(KeySource::Seed(*b"0123456789abcdef0123456789abcdef"));
        let mut seen = vec![false; MAX_SLOTS as usize];
        for index in 0..MAX_SLOTS {
            let key = maker.key(index, 0x5a);
            assert_eq!(maker.slot(key), index);
            assert!(!std::mem::replace(&mut seen[(key >> 8) as usize], true));
        }
    }

    #[test]
    fn neighbours_differ_by_no_constant() {
        let maker = KeyMaker::new(KeySource::Seed([7; 32]));
        let mut steps: Vec<u32> =
            (0..1000).map(|i| maker.key(i + 1, 0).wrapping_sub(maker.key(i, 0))).collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() > 990, "{} different steps of 1000", steps.len());
    }

    #[test]
    fn a_seed_decides_the_keys() {
        let maker = |seed| KeyMaker::new(KeySource::Seed([seed; 32])).key(1, 0);
        assert_eq!(maker(1), maker(1));
        assert_ne!(maker(1), maker(2));
        let system = || KeyMaker::new(KeySource::System).rounds;
        assert_ne!(system(), system());
    }
}
