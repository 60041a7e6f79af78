//! What a cable is like, as it is written in a file.

use super::{LinkError, MAX_DELAY, MAX_METRES, NANOS_PER_METRE, TopologyError};
use cc::Rate;
use cc::quantity::parse_duration;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use time::Duration;

/// The rate of a cable of which nothing is said: that of the networks that htsim, HPCC and ConWeave ship.
pub const DEFAULT_RATE: Rate = Rate::from_gbps(100);

/// The delay of a cable of which nothing is said, from the same networks. It stands for 200 m, or for less with a switch's
/// pipeline.
pub const DEFAULT_DELAY: Duration = Duration::from_micros(1);

/// The properties of a tier of cables, or of one. What is not said is as in the tier below, and at the hosts it is
/// [`DEFAULT_RATE`], [`DEFAULT_DELAY`] and no errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Link {
    /// The rate of both directions.
    pub rate: Option<Rate>,
    /// How long a signal takes from one end to the other.
    #[serde(deserialize_with = "time")]
    pub delay: Option<Duration>,
    /// The length in metres, instead of the delay.
    pub length: Option<f64>,
    /// The probability that a bit is wrong when it arrives.
    pub bit_errors: Option<f64>,
}

impl Link {
    /// A cable of this rate and delay, without errors.
    #[must_use]
    pub const fn new(rate: Rate, delay: Duration) -> Self {
        Self { rate: Some(rate), delay: Some(delay), length: None, bit_errors: None }
    }

    /// A cable of this rate and so many metres, without errors.
    #[must_use]
    pub const fn metres(rate: Rate, length: f64) -> Self {
        Self { rate: Some(rate), delay: None, length: Some(length), bit_errors: None }
    }

    /// What is written here over what it is without. `name` is the setting in errors.
    pub(super) fn over(&self, base: Wire, name: &str) -> Result<Wire, TopologyError> {
        self.try_over(base).map_err(|why| TopologyError::Cable { cable: name.to_owned(), why })
    }

    fn try_over(&self, base: Wire) -> Result<Wire, LinkError> {
        let delay = match (self.delay, self.length) {
            (Some(_), Some(_)) => return Err(LinkError::Both),
            (Some(delay), None) => delay,
            (None, Some(length)) => delay_of(length)?,
            (None, None) => base.delay,
        };
        let wire = Wire {
            rate: self.rate.unwrap_or(base.rate),
            delay,
            bit_errors: self.bit_errors.unwrap_or(base.bit_errors),
        };
        if wire.rate == Rate::default() {
            return Err(LinkError::NoRate);
        }
        if wire.delay > MAX_DELAY {
            return Err(LinkError::Delay);
        }
        if !(0.0..1.0).contains(&wire.bit_errors) {
            return Err(LinkError::BitErrors(wire.bit_errors));
        }
        Ok(wire)
    }
}

/// How long a signal takes for so many metres, to the nearest nanosecond.
fn delay_of(metres: f64) -> Result<Duration, LinkError> {
    if !(0.0..=MAX_METRES).contains(&metres) {
        return Err(LinkError::Length(metres));
    }
    // Not negative, and at most 200 ms.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in range by the check above"
    )]
    let nanos = (metres * NANOS_PER_METRE as f64).round() as u64;
    Ok(Duration::from_nanos(nanos))
}

/// A cable's properties, all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wire {
    pub(super) rate: Rate,
    pub(super) delay: Duration,
    pub(super) bit_errors: f64,
}

impl Default for Wire {
    fn default() -> Self {
        Self { rate: DEFAULT_RATE, delay: DEFAULT_DELAY, bit_errors: 0.0 }
    }
}

/// A time in a file: text with its unit, or the number 0.
#[derive(Deserialize)]
#[serde(untagged)]
enum Time {
    Text(String),
    Number(u64),
}

/// Reads a time from a file, such as `1 us`.
pub(super) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = match Time::deserialize(deserializer) {
        Ok(Time::Text(text)) => text,
        Ok(Time::Number(number)) => number.to_string(),
        Err(_) => return Err(D::Error::custom("write a time as text, such as \"1 us\"")),
    };
    let wrong = |why| D::Error::custom(format_args!("invalid time `{text}`: {why}"));
    parse_duration(text.trim()).map(Some).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_is_as_in_the_tier_below() -> Result<(), TopologyError> {
        let hosts = Link::new(Rate::from_gbps(25), Duration::from_nanos(50)).over(Wire::default(), "link")?;
        let up = Link { rate: Some(Rate::from_gbps(100)), ..Link::default() }.over(hosts, "uplink")?;
        assert_eq!((up.rate, up.delay), (Rate::from_gbps(100), Duration::from_nanos(50)));
        assert_eq!(Link::default().over(Wire::default(), "link")?, Wire::default());
        Ok(())
    }

    #[test]
    fn a_metre_takes_five_nanoseconds() -> Result<(), TopologyError> {
        for (metres, nanos) in [(0.0, 0), (1.0, 5), (0.5, 3), (30.0, 150), (2_000.0, 10_000)] {
            let wire = Link::metres(DEFAULT_RATE, metres).over(Wire::default(), "link")?;
            assert_eq!(wire.delay, Duration::from_nanos(nanos), "{metres} m");
        }
        Ok(())
    }

    #[test]
    fn impossible_cables_are_refused_with_what_to_write() {
        let ok = Link::new(DEFAULT_RATE, DEFAULT_DELAY);
        for (link, says) in [
            (Link { length: Some(1.0), ..ok }, "write one of them"),
            (Link { rate: Some(Rate::default()), ..ok }, "write a rate"),
            (Link { delay: Some(Duration::from_secs(2)), ..ok }, "write a shorter time"),
            (Link { bit_errors: Some(1.0), ..ok }, "write a number from 0"),
            (Link { bit_errors: Some(f64::NAN), ..ok }, "write a number from 0"),
            (Link::metres(DEFAULT_RATE, -1.0), "write 0 to"),
            (Link::metres(DEFAULT_RATE, f64::INFINITY), "write 0 to"),
        ] {
            let error = link.over(Wire::default(), "uplink").expect_err("refused").to_string();
            assert!(error.starts_with("`uplink`: ") && error.contains(says), "{error}");
        }
    }
}
