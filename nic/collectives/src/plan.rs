//! What is computed, how, and on which numbers. For everyone who starts an operation.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// What all ranks compute together. Sums are of integers and wrap around, so they are exact in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Every rank gets the sum of the vectors of all.
    AllReduce,
    /// Every rank gets the parts of all: rank r begins with part r of the vector.
    AllGather,
    /// Rank r gets part r of the sum. The rest of its vector is undefined afterwards.
    ReduceScatter,
    /// Rank r gets part r of the vectors of all, one behind the other, behind its own vector.
    AllToAll,
}

/// How it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Parts go round in a ring.
    Ring,
    /// Two binary trees, each with half of the vector: sums go up, and the result comes down. Every rank is an inner node of
    /// one of them at most (Sanders, Speck and Träff 2009).
    Tree,
    /// Partners at doubled distances exchange everything.
    RecursiveDoubling,
    /// A reduce-scatter of halved parts at doubled distances, and an all-gather in the opposite order (Rabenseifner 2004).
    HalvingDoubling,
    /// In each step everyone sends to another rank, and receives from another.
    Pairwise,
    /// The switches add: see [`InNetwork`](crate::InNetwork). It has no schedule.
    InNetwork,
}

/// The numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Element {
    /// Little-endian, 4 bytes.
    U32,
    /// Little-endian, 8 bytes.
    #[default]
    U64,
}

/// An operation, the same at all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What is computed.
    pub collective: Collective,
    /// How.
    pub algorithm: Algorithm,
    /// The numbers.
    pub element: Element,
    /// How many of them a vector has.
    pub count: usize,
}

/// Why a plan cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The algorithm computes something else.
    #[error("{algorithm} does not compute {collective}: write {advice}")]
    NoAlgorithm {
        /// What was asked for.
        collective: Collective,
        /// By which algorithm.
        algorithm: Algorithm,
        /// What to write instead.
        advice: &'static str,
    },
    /// A rank that does not exist.
    #[error("there is no rank {rank}: {ranks} ranks are counted from 0")]
    NoRank {
        /// The rank.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
    /// A word that is no algorithm or operation.
    #[error("{word} is not known: write {advice}")]
    Unknown {
        /// The word.
        word: String,
        /// What to write instead.
        advice: String,
    },
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::AllReduce, Self::AllGather, Self::ReduceScatter, Self::AllToAll];

    /// Its name in files and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
        }
    }

    /// The bytes that each rank has to send at least, as a share of the vector: without help in the network. The bandwidth
    /// of the bus is this share of the vector per time, as NCCL's tests report it.
    #[must_use]
    pub fn bus_share(self, ranks: usize) -> f64 {
        let others = ranks.saturating_sub(1) as f64 / ranks.max(1) as f64;
        if self == Self::AllReduce { 2.0 * others } else { others }
    }
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Ring,
        Self::Tree,
        Self::RecursiveDoubling,
        Self::HalvingDoubling,
        Self::Pairwise,
        Self::InNetwork,
    ];

    /// Its name in files and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::HalvingDoubling => "halving-doubling",
            Self::Pairwise => "pairwise",
            Self::InNetwork => "in-network",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The one of `all` that has this name.
fn named<T: Copy>(word: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, PlanError> {
    all.iter().copied().find(|one| name(*one) == word).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
        PlanError::Unknown { word: word.to_owned(), advice: names.join(", ") }
    })
}

impl FromStr for Collective {
    type Err = PlanError;

    fn from_str(word: &str) -> Result<Self, PlanError> {
        named(word, &Self::ALL, Self::name)
    }
}

impl FromStr for Algorithm {
    type Err = PlanError;

    fn from_str(word: &str) -> Result<Self, PlanError> {
        named(word, &Self::ALL, Self::name)
    }
}

impl Element {
    /// The bytes of a number.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }

    /// Adds the numbers of `more` to those of `sums`.
    pub fn add(self, sums: &mut [u8], more: &[u8]) {
        match self {
            Self::U32 => add_each(sums, more, |a, b| {
                u32::from_le_bytes(a).wrapping_add(u32::from_le_bytes(b)).to_le_bytes()
            }),
            Self::U64 => add_each(sums, more, |a, b| {
                u64::from_le_bytes(a).wrapping_add(u64::from_le_bytes(b)).to_le_bytes()
            }),
        }
    }
}

fn add_each<const N: usize>(sums: &mut [u8], more: &[u8], add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (sum, more) in sums.as_chunks_mut::<N>().0.iter_mut().zip(more.as_chunks::<N>().0) {
        *sum = add(*sum, *more);
    }
}

impl Plan {
    /// The bytes of the vector, from which parts are cut.
    #[must_use]
    pub const fn vector(&self) -> usize {
        self.count * self.element.size()
    }

    /// The bytes of one of `parts` parts of the vector. All have the same number of elements, or one more.
    #[must_use]
    pub fn part(&self, number: usize, parts: usize) -> Range<usize> {
        // A product of a length and a rank fits into 128 bits.
        let at = |number: usize| (self.count as u128 * number as u128 / parts as u128) as usize;
        let size = self.element.size();
        at(number) * size..at(number + 1) * size
    }

    /// The bytes that a rank needs for its data: those of the vector, and in an all-to-all as many as it receives behind them.
    #[must_use]
    pub fn bytes(&self, rank: usize, ranks: usize) -> usize {
        match self.collective {
            Collective::AllToAll => self.vector() + ranks * self.part(rank, ranks).len(),
            _ => self.vector(),
        }
    }
}
