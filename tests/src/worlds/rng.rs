//! A seeded random number generator.

/// SplitMix64 (Steele, Lea and Flood 2014): small, fast, and the same on every platform.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// One step of SplitMix64's output function.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Rng {
    /// A generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5851_f42d_4c95_7f2d))
    }

    /// The next 64 bits.
    pub const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.word() % bound }
    }

    /// A number from `low` to `high`, inclusive.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// The same for sizes.
    pub const fn size(&mut self, low: usize, high: usize) -> usize {
        self.between(low as u64, high as u64) as usize
    }

    /// True with a probability of `percent` / 100.
    pub const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A random element.
    ///
    /// # Panics
    ///
    /// Panics if the slice is empty.
    pub const fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A random element, by weight.
    ///
    /// # Panics
    ///
    /// Panics if the slice is empty.
    pub fn weighted<'a, T>(&mut self, from: &'a [(u32, T)]) -> &'a T {
        let total: u64 = from.iter().map(|(weight, _)| u64::from(*weight)).sum();
        let mut left = self.below(total);
        for (weight, one) in from {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return one,
            }
        }
        &from[0].1
    }
}

/// The payload of message `id`: any two messages differ, and so do any two positions in one.
pub(crate) fn pattern(id: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let mut word = mix(id ^ 0x6a09_e667_f3bc_c908);
    while bytes.len() < len {
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bytes.extend_from_slice(&mix(word).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
