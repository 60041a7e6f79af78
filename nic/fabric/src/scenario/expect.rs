//! What must come out of a scenario.

use crate::report::Metrics;
use serde::{Deserialize, Serialize};

/// A metric, and what it must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The name of the metric, or several with `+`, `-`, `*` and `/` between, from left to right.
    pub metric: String,
    /// It is at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// It is at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// It is this, within `tolerance`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is: Option<f64>,
    /// A share of `is`; the default is 0: exactly.
    #[serde(default)]
    pub tolerance: f64,
    /// Where the number comes from: a paper and its figure, a formula, a simulator.
    pub source: String,
}

/// The bounds of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// At least this.
    pub min: Option<f64>,
    /// At most this.
    pub max: Option<f64>,
}

/// Whether a metric is what it must be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The metric.
    pub metric: String,
    /// What came out. `None`: there is no such metric.
    pub value: Option<f64>,
    /// What it must be.
    pub bound: Bound,
    /// Where that comes from.
    pub source: String,
    /// Whether it is.
    pub passed: bool,
}

impl Expect {
    /// The bounds.
    #[must_use]
    pub fn bound(&self) -> Bound {
        let around = |sign: f64| self.is.map(|is| is + sign * self.tolerance * is.abs());
        Bound { min: self.min.or_else(|| around(-1.0)), max: self.max.or_else(|| around(1.0)) }
    }

    /// Looks at the metrics of a run.
    #[must_use]
    pub fn judge(&self, metrics: &Metrics) -> Verdict {
        let (value, bound) = (evaluate(&self.metric, metrics), self.bound());
        let is_within =
            |value: f64| bound.min.is_none_or(|min| value >= min) && bound.max.is_none_or(|max| value <= max);
        let is_bounded = bound.min.is_some() || bound.max.is_some();
        Verdict {
            metric: self.metric.clone(),
            value,
            bound,
            source: self.source.clone(),
            passed: is_bounded && value.is_some_and(is_within),
        }
    }
}

/// The value of metrics and numbers, with operators between that are set off by spaces, from left to right.
fn evaluate(text: &str, metrics: &Metrics) -> Option<f64> {
    let value = |word: &str| word.parse().ok().or_else(|| metrics.get(word));
    let mut words = text.split_whitespace();
    let mut result = value(words.next()?)?;
    while let Some(operator) = words.next() {
        let operand = value(words.next()?)?;
        match operator {
            "+" => result += operand,
            "-" => result -= operand,
            "*" => result *= operand,
            "/" => result /= operand,
            _ => return None,
        }
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        Metrics([("a".to_owned(), 6.0), ("b.x>y".to_owned(), 2.0)].into_iter().collect())
    }

    fn judge(text: &str) -> Verdict {
        let expect: Expect =
            toml::from_str(&format!("{text}\nsource = \"arithmetic\"")).expect("an expectation");
        expect.judge(&metrics())
    }

    #[test]
    fn values_are_held_against_their_bounds() {
        for (text, passed) in [
            ("metric = \"a\"\nmin = 6", true),
            ("metric = \"a\"\nmin = 6.1", false),
            ("metric = \"a\"\nmax = 5.9", false),
            ("metric = \"a\"\nis = 6", true),
            ("metric = \"a\"\nis = 5.8\ntolerance = 0.05", true),
            ("metric = \"a\"\nis = 5.8\ntolerance = 0.01", false),
            ("metric = \"a / b.x>y - 1\"\nis = 2", true),
            ("metric = \"12 / a\"\nis = 2", true),
            ("metric = \"c\"\nmin = 0", false),
            ("metric = \"a ? 2\"\nmin = 0", false),
            ("metric = \"a +\"\nmin = 0", false),
            ("metric = \"a\"", false),
        ] {
            assert_eq!(judge(text).passed, passed, "{text}: {:?}", judge(text));
        }
    }
}
