//! Seeds on the command line.

use crate::number::whole;
use rnic_fabric::scenario::Scenario;

/// The most seeds of one command.
const MOST: u64 = 100_000;

/// Some seeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seeds(pub(super) Vec<u64>);

impl Seeds {
    /// Reads `1..5`, which includes both, or `1,2,7`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut seeds = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                None => seeds.push(whole(part.trim())?),
                Some((first, last)) => {
                    let (first, last): (u64, u64) = (whole(first.trim())?, whole(last.trim())?);
                    if last < first {
                        return Err(format!("{first} is greater than {last}: write the smaller one first"));
                    }
                    if last - first >= MOST {
                        return Err(format!("write at most {MOST} seeds"));
                    }
                    seeds.extend(first..=last);
                }
            }
        }
        Ok(Self(seeds))
    }
}

/// The seeds of a command.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Choice {
    /// The seed from which everything random follows. [default: the scenario's first]
    #[arg(long, value_name = "N", value_parser = whole::<u64>, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run with each of these seeds: 1..5 are five, 1,7,9 are three.
    #[arg(long, value_name = "SEEDS", value_parser = Seeds::parse)]
    seeds: Option<Seeds>,
}

impl Choice {
    /// The seeds with which a scenario runs.
    pub(super) fn of(&self, scenario: &Scenario) -> Vec<u64> {
        match (&self.seeds, self.seed) {
            (Some(seeds), _) => seeds.0.clone(),
            (None, Some(seed)) => vec![seed],
            (None, None) => vec![scenario.seeds.first().copied().unwrap_or(1)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_lists() {
        assert_eq!(Seeds::parse("1..5"), Ok(Seeds(vec![1, 2, 3, 4, 5])));
        assert_eq!(Seeds::parse("7"), Ok(Seeds(vec![7])));
        assert_eq!(Seeds::parse("1,7..8, 9"), Ok(Seeds(vec![1, 7, 8, 9])));
        for wrong in ["", "x", "5..1", "1..", "1,,2", "0..1000000000", "-1"] {
            assert!(Seeds::parse(wrong).is_err(), "{wrong}");
        }
    }
}
