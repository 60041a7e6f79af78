//! Randomness from a seed.

/// A sequence of numbers determined by its seed: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), small enough for one
/// per queue and good enough for random choices.
#[derive(Clone, Debug)]
pub(crate) struct Lots(u64);

impl Lots {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns true with probability `p`.
    pub(crate) fn happens(&mut self, p: f64) -> bool {
        // 53 bits: as many as the fraction of an f64 holds.
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        unit < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the algorithm's reference implementation for the seed 1234567.
    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        let mut lots = Lots::new(1_234_567);
        assert_eq!(lots.next(), 6_457_827_717_110_365_317);
        assert_eq!(lots.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn lots_are_drawn_with_the_probability_asked_for() {
        let mut lots = Lots::new(1);
        let hits = (0..1_000_000).filter(|_| lots.happens(0.01)).count();
        assert!((9_700..10_300).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| lots.happens(1.0)));
        assert!(!(0..1000).any(|_| lots.happens(0.0)));
    }
}
