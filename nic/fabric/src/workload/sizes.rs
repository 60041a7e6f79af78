//! Distributions of flow sizes.

use rand_chacha::rand_core::Rng;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A distribution that has a name in the literature.
///
/// The tables are cumulative: so many per cent of the flows have at most so many bytes, with straight lines between. They are
/// those that the simulators of HPCC and ConWeave ship.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Sizes {
    /// Web search: Alizadeh et al., DCTCP, SIGCOMM 2010.
    WebSearch,
    /// Hadoop at Facebook: Roy et al., SIGCOMM 2015.
    Hadoop,
    /// Block storage at Alibaba: Li et al., HPCC, SIGCOMM 2019.
    Storage,
}

/// No such distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownSizes(String);

impl Sizes {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::WebSearch, Self::Hadoop, Self::Storage];

    /// The name in scenario files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WebSearch => "web-search",
            Self::Hadoop => "hadoop",
            Self::Storage => "storage",
        }
    }

    /// Bytes, and the per cent of flows that have at most as many.
    const fn table(self) -> &'static [(f64, f64)] {
        match self {
            Self::WebSearch => &[
                (0.0, 0.0),
                (10_000.0, 15.0),
                (20_000.0, 20.0),
                (30_000.0, 30.0),
                (50_000.0, 40.0),
                (80_000.0, 53.0),
                (200_000.0, 60.0),
                (1_000_000.0, 70.0),
                (2_000_000.0, 80.0),
                (5_000_000.0, 90.0),
                (10_000_000.0, 97.0),
                (30_000_000.0, 100.0),
            ],
            Self::Hadoop => &[
                (0.0, 0.0),
                (100.0, 1.0),
                (200.0, 2.0),
                (300.0, 5.0),
                (350.0, 15.0),
                (400.0, 20.0),
                (500.0, 30.0),
                (600.0, 40.0),
                (700.0, 50.0),
                (1_000.0, 60.0),
                (2_000.0, 67.0),
                (7_000.0, 70.0),
                (30_000.0, 72.0),
                (50_000.0, 82.0),
                (80_000.0, 87.0),
                (120_000.0, 90.0),
                (300_000.0, 95.0),
                (1_000_000.0, 97.5),
                (2_000_000.0, 99.0),
                (10_000_000.0, 100.0),
            ],
            Self::Storage => &[
                (0.0, 0.0),
                (4_000.0, 22.93),
                (8_000.0, 69.21),
                (16_000.0, 80.61),
                (32_000.0, 90.47),
                (64_000.0, 93.53),
                (128_000.0, 96.77),
                (256_000.0, 97.53),
                (2_000_000.0, 100.0),
            ],
        }
    }

    /// The mean number of bytes.
    #[must_use]
    pub fn mean(self) -> f64 {
        self.table()
            .windows(2)
            .map(|pair| (pair[0].0 + pair[1].0) / 2.0 * (pair[1].1 - pair[0].1) / 100.0)
            .sum()
    }

    /// Draws a size: at least one byte.
    pub fn draw(self, lots: &mut impl Rng) -> u64 {
        // 53 bits: as many as the fraction of an f64 holds.
        let unit = (lots.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        (self.at(100.0 * unit) as u64).max(1)
    }

    /// The bytes that so many per cent of the flows do not exceed.
    fn at(self, percent: f64) -> f64 {
        let table = self.table();
        for pair in table.windows(2) {
            let ((low, from), (high, to)) = (pair[0], pair[1]);
            if percent <= to && to > from {
                return low + (high - low) * (percent - from).max(0.0) / (to - from);
            }
        }
        table.last().map_or(1.0, |last| last.0)
    }
}

impl FromStr for Sizes {
    type Err = UnknownSizes;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.map(Self::name);
        let found = Self::ALL.into_iter().find(|sizes| sizes.name() == text);
        found.ok_or_else(|| UnknownSizes(cc::unknown(text, &known)))
    }
}

impl TryFrom<String> for Sizes {
    type Error = UnknownSizes;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Sizes> for String {
    fn from(sizes: Sizes) -> Self {
        sizes.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    #[test]
    fn tables_rise_to_a_hundred_per_cent() {
        for sizes in Sizes::ALL {
            let table = sizes.table();
            assert!(table.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1), "{sizes:?}");
            assert_eq!(
                (table.first().map(|first| first.1), table.last().map(|last| last.1)),
                (Some(0.0), Some(100.0))
            );
            assert_eq!(sizes.name().parse(), Ok(sizes));
        }
        assert!("websearch".parse::<Sizes>().is_err_and(|error| error.to_string().contains("web-search")));
    }

    #[test]
    fn sizes_are_drawn_as_the_table_says() {
        let mut lots = ChaCha8Rng::seed_from_u64(1);
        for sizes in Sizes::ALL {
            let mut drawn: Vec<u64> = (0..40_000).map(|_| sizes.draw(&mut lots)).collect();
            let mean = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64;
            assert!((mean / sizes.mean() - 1.0).abs() < 0.05, "{sizes:?}: {mean} of {}", sizes.mean());
            drawn.sort_unstable();
            for (bytes, percent) in sizes.table() {
                let below = drawn.partition_point(|size| *size as f64 <= *bytes) as f64 / 400.0;
                assert!((below - percent).abs() < 1.0, "{sizes:?}: {below} % of {percent} up to {bytes}");
            }
        }
    }
}
