//! The situations that the seeds reached.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// How often each situation was reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    /// Counts an occurrence.
    pub(crate) fn hit(&mut self, what: impl Into<String>) {
        self.add(what, 1);
    }

    /// Counts `count` occurrences.
    pub(crate) fn add(&mut self, what: impl Into<String>, count: u64) {
        if count > 0 {
            *self.0.entry(what.into()).or_default() += count;
        }
    }

    /// Adds the coverage of another run.
    pub fn merge(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            self.add(what.clone(), *count);
        }
    }

    /// How often a situation was reached.
    #[must_use]
    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| writeln!(f, "{count:>10}  {what}"))
    }
}

/// In how many of a number of worlds each situation was reached.
///
/// As text it is a table, which is checked in: `tests/sim/worlds/coverage.txt`. Other runs are compared with it
/// ([`Reach::missing_from`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The number of worlds.
    pub worlds: u64,
    hits: BTreeMap<String, u64>,
}

/// The probability of a false alarm, for all situations together: once in a million runs.
const FALSE_ALARM: f64 = 1e-6;

impl Reach {
    /// Adds a world.
    pub fn add(&mut self, coverage: &Coverage) {
        self.worlds += 1;
        for what in coverage.0.keys() {
            *self.hits.entry(what.clone()).or_default() += 1;
        }
    }

    /// In how many worlds a situation was reached.
    #[must_use]
    pub fn get(&self, what: &str) -> u64 {
        self.hits.get(what).copied().unwrap_or(0)
    }

    /// The situations of a recorded table that were reached in too few of these worlds: the name, the number, and the
    /// floor.
    ///
    /// The floor is the least number that Fisher's exact test does not reject. If the worlds of both runs reach a
    /// situation with the same probability, whatever it is, and `all` of them together did, then the number among these
    /// has a hypergeometric distribution. A number is rejected if it, or a lower one, has less than the probability of
    /// a false alarm, shared among all situations of the table.
    #[must_use]
    pub fn missing_from(&self, recorded: &Self) -> Vec<(String, u64, u64)> {
        let share = FALSE_ALARM / recorded.hits.len().max(1) as f64;
        let rows = recorded.hits.iter().map(|(what, hits)| {
            let floor = floor(*hits, recorded.worlds, self.worlds, share);
            (what.clone(), self.get(what), floor)
        });
        rows.filter(|(_, hits, floor)| hits < floor).collect()
    }

    /// Situations that a recorded table does not have.
    #[must_use]
    pub fn new_since(&self, recorded: &Self) -> Vec<String> {
        self.hits.keys().filter(|what| !recorded.hits.contains_key(*what)).cloned().collect()
    }
}

/// The least number of `worlds` that is plausible if `hits` of `recorded` worlds reached the situation.
fn floor(hits: u64, recorded: u64, worlds: u64, share: f64) -> u64 {
    let implausible = |found: &u64| at_most(*found, worlds, hits + found, recorded + worlds) < share;
    (0..worlds).find(|found| !implausible(found)).unwrap_or(worlds)
}

/// The probability that at most `found` of `worlds` are among the `hits` of `all`: of the hypergeometric distribution.
fn at_most(found: u64, worlds: u64, hits: u64, all: u64) -> f64 {
    let lowest = (worlds + hits).saturating_sub(all);
    let whole = ln_choose(all, worlds);
    let one = |k| (ln_choose(hits, k) + ln_choose(all - hits, worlds - k) - whole).exp();
    (lowest..=found.min(hits)).map(one).sum()
}

/// The logarithm of a binomial coefficient.
fn ln_choose(n: u64, k: u64) -> f64 {
    (1..=k.min(n - k)).map(|i| ((n - k.min(n - k) + i) as f64 / i as f64).ln()).sum()
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>6}  worlds", self.worlds)?;
        self.hits.iter().try_for_each(|(what, hits)| writeln!(f, "{hits:>6}  {what}"))
    }
}

impl FromStr for Reach {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rows = text.lines().map(|line| {
            let (hits, what) = line.trim_start().split_once("  ").ok_or_else(|| format!("no row: {line}"))?;
            Ok((what.to_owned(), hits.parse::<u64>().map_err(|_| format!("no number: {line}"))?))
        });
        let worlds = rows.next().unwrap_or_else(|| Err("an empty table".to_owned()))?.1;
        Ok(Self { worlds, hits: rows.collect::<Result<_, String>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(worlds: u64, hits: u64) -> Reach {
        Reach { worlds, hits: [("x".to_owned(), hits)].into() }
    }

    /// The values are sums of products of binomial coefficients, as fractions.
    #[test]
    fn the_distribution_is_hypergeometric() {
        for ((found, worlds, hits, all), expected) in [
            ((0, 10, 5, 20), 0.016_253_869_969_040_25),
            ((2, 10, 5, 20), 0.5),
            ((3, 60, 400, 1060), 1.678_399_432_423e-9),
        ] {
            let got = at_most(found, worlds, hits, all);
            assert!((got - expected).abs() <= expected * 1e-9, "{got} {expected}");
        }
    }

    #[test]
    fn what_hardly_any_world_reaches_any_more_is_missing() {
        let recorded = reach(3000, 1500);
        assert_eq!(reach(300, 150).missing_from(&recorded), []);
        assert_eq!(reach(300, 112).missing_from(&recorded), [], "four standard deviations");
        assert_eq!(reach(300, 90).missing_from(&recorded).len(), 1, "seven");
        assert_eq!(reach(300, 0).missing_from(&reach(3000, 5)), [], "too rare to tell");
        assert_eq!(reach(300, 299).missing_from(&reach(3000, 3000)), []);
        assert_eq!(reach(300, 290).missing_from(&reach(3000, 3000)).len(), 1);
    }

    #[test]
    fn the_table_survives_as_text() {
        let mut reach = reach(10, 3);
        reach.hits.insert("RC SEND imm".to_owned(), 7);
        assert_eq!(reach.to_string().parse(), Ok(reach));
    }
}
