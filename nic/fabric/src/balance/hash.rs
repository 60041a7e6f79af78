//! Hashes of flows, and random numbers.

/// The increment of splitmix64: 2^64 divided by the golden ratio, made odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads the bits of `x`: the last step of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014).
pub(super) const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A hash of flows: one multiplication per packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hasher {
    offset: u64,
    factor: u64,
}

impl Hasher {
    pub(super) const fn new(seed: u64) -> Self {
        let offset = mix(seed.wrapping_add(GOLDEN));
        Self { offset, factor: mix(offset.wrapping_add(GOLDEN)) | 1 }
    }

    /// Both halves of the product, so that each bit of the flow has a part in each bit of the hash. Factor and offset
    /// depend on the seed, so that hashes with different seeds are independent.
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a product")]
    pub(super) const fn of(self, flow: u64) -> u64 {
        let product = ((flow ^ self.offset) as u128) * (self.factor as u128);
        (product >> 64) as u64 ^ product as u64
    }
}

/// Selects an element of `items` by a hash. An empty slice gives the default.
pub(super) fn pick<T: Copy + Default>(items: &[T], hash: u64) -> T {
    items.get(below(hash, items.len())).copied().unwrap_or_default()
}

/// A hash as a number less than `n`, or 0 if `n` is 0.
pub(super) fn below(hash: u64, n: usize) -> usize {
    usize::try_from((u128::from(hash) * n as u128) >> 64).unwrap_or(0)
}

/// Random numbers that the seed determines: splitmix64. It needs one multiplication more than a hash, where a stream
/// cipher would dominate the time of a hop.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// 16 random bits.
    pub(super) const fn bits(&mut self) -> u16 {
        (self.next() >> 48) as u16
    }

    /// A random number less than `n`, or 0 if `n` is 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        below(self.next(), n)
    }

    /// A random element, or the default if there is none.
    pub(super) fn pick<T: Copy + Default>(&mut self, items: &[T]) -> T {
        pick(items, self.next())
    }

    /// Puts `count` random elements in random order to the beginning.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T], count: usize) {
        for at in 0..count.min(items.len()) {
            let from = at + self.below(items.len() - at);
            items.swap(at, from);
        }
    }

    /// The port with the least key: a random one, if several have it.
    pub(super) fn least<K: Ord>(&mut self, ports: &[u16], mut key: impl FnMut(u16) -> K) -> u16 {
        let mut ports = ports.iter().copied();
        let Some(mut best) = ports.next() else { return 0 };
        let (mut least, mut equals) = (key(best), 1);
        for port in ports {
            let this = key(port);
            if this < least {
                (best, least, equals) = (port, this, 1);
            } else if this == least {
                equals += 1;
                // The n-th of n equal ones replaces its predecessor once in n times: so each is as likely as any other.
                if self.below(equals) == 0 {
                    best = port;
                }
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the generator for the seed 1234567, as the public implementations print them.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let numbers: Vec<_> = (0..5).map(|_| random.next()).collect();
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn equal_ports_are_equally_likely() {
        let mut random = Random::new(7);
        let mut counts = [0_u32; 4];
        for _ in 0..30_000 {
            counts[usize::from(random.least(&[0, 1, 2, 3], |port| port == 1))] += 1;
        }
        assert_eq!(counts[1], 0);
        // 10,000 each, with a standard deviation of 82.
        assert!([counts[0], counts[2], counts[3]].iter().all(|n| n.abs_diff(10_000) < 400), "{counts:?}");
    }

    #[test]
    fn nothing_to_choose_from_is_no_panic() {
        assert_eq!(Random::new(1).least(&[], u64::from), 0);
        assert_eq!(pick::<u16>(&[], 5), 0);
    }
}
