//! The situations that the seeds reached.

use std::collections::BTreeMap;
use std::fmt;

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

    /// Situations reached less often than required: the name, how often it was reached, and how often it should be.
    pub fn below<'a>(&self, floors: &[(&'a str, u64)]) -> Vec<(&'a str, u64, u64)> {
        let reached = floors.iter().map(|(what, floor)| (*what, self.get(what), *floor));
        reached.filter(|(_, count, floor)| count < floor).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| writeln!(f, "{count:>10}  {what}"))
    }
}
