//! Rates of data.

use crate::quantity::{QuantityError, parse_rate};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use time::Duration;

/// Nanoseconds in a second, in which the arithmetic here is done.
const NANOS: u128 = 1_000_000_000;

/// A rate of data, in bits per second. As text it is a number with its unit: `40 Gb/s`, `2.5 Gb/s`, `615 Mb/s`;
/// [`quantity`](crate::quantity) lists other spellings that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(u64);

impl Rate {
    /// A rate of `n` bits per second.
    #[must_use]
    pub const fn from_bits_per_second(n: u64) -> Self {
        Self(n)
    }

    /// A rate of `n` megabits (10^6) per second, the unit of NVIDIA's rate parameters.
    #[must_use]
    pub const fn from_mbps(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// A rate of `n` gigabits (10^9) per second.
    #[must_use]
    pub const fn from_gbps(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// Bits per second.
    #[must_use]
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Bits per second, for calculations.
    #[must_use]
    pub const fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// Megabits per second.
    #[must_use]
    pub const fn as_mbps(self) -> f64 {
        self.as_f64() / 1e6
    }

    /// The time that `bytes` take, rounded up to a nanosecond. At a rate of zero, the longest possible time.
    #[must_use]
    pub const fn time_for(self, bytes: u64) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = (bytes as u128 * 8 * NANOS).div_ceil(self.0 as u128);
        if nanos > u64::MAX as u128 { Duration::MAX } else { Duration::from_nanos(nanos as u64) }
    }

    /// The bytes that fit wholly into `time`.
    #[must_use]
    pub const fn bytes_in(self, time: Duration) -> u64 {
        let nanos = time.as_nanos();
        let bytes = nanos.saturating_mul(self.0 as u128) / (8 * NANOS);
        if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 }
    }
}

/// The units in which rates are printed. Ports are named in Gb/s, also beyond 1000.
const UNITS: [(&str, u64); 4] = [("Gb/s", 1_000_000_000), ("Mb/s", 1_000_000), ("kb/s", 1000), ("b/s", 1)];

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The largest unit of which it is at least one.
        let (unit, size) = UNITS.iter().find(|(_, size)| self.0 >= *size).copied().unwrap_or(("b/s", 1));
        if let Some(digits) = f.precision() {
            return write!(f, "{:.digits$} {unit}", self.0 as f64 / size as f64);
        }
        // Exact, so that the text is read as the same rate.
        let (whole, part) = (self.0 / size, self.0 % size);
        if part == 0 {
            return write!(f, "{whole} {unit}");
        }
        let width = size.ilog10() as usize;
        let digits = format!("{part:0width$}");
        write!(f, "{whole}.{} {unit}", digits.trim_end_matches('0'))
    }
}

impl FromStr for Rate {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_rate(text).map(Self)
    }
}

impl TryFrom<String> for Rate {
    type Error = QuantityError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written_with_their_units() {
        for (text, bits) in [
            ("40 Gb/s", 40_000_000_000),
            ("2.5 Gb/s", 2_500_000_000),
            ("615 Mb/s", 615_000_000),
            ("7 b/s", 7),
        ] {
            let rate: Rate = text.parse().expect("a rate");
            assert_eq!(rate.bits_per_second(), bits);
            assert_eq!(rate.to_string(), text);
        }
        assert_eq!("1Tb/s".parse(), Ok(Rate::from_gbps(1000)));
        for bits in [0, 1, 1001, 1_000_001, 5_000_000_050, (1 << 53) + 1, u64::MAX] {
            let rate = Rate::from_bits_per_second(bits);
            assert_eq!(rate.to_string().parse(), Ok(rate), "{rate}");
        }
        assert_eq!(Rate::from_bits_per_second(5_000_000_050).to_string(), "5.00000005 Gb/s");
        for wrong in ["", "40", "Gb/s", "-1 Gb/s", "NaN b/s", "inf Gb/s", "1e30 Tb/s", "40 GB/s"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_round_up_and_bytes_round_down() {
        let rate = Rate::from_gbps(40);
        assert_eq!(rate.time_for(1000), Duration::from_nanos(200));
        assert_eq!(rate.time_for(1), Duration::from_nanos(1));
        assert_eq!(rate.bytes_in(Duration::from_nanos(200)), 1000);
        assert_eq!(rate.bytes_in(Duration::from_nanos(199)), 995);
        assert_eq!(Rate::default().time_for(1), Duration::MAX);
        assert_eq!(Rate::from_bits_per_second(1).time_for(u64::MAX), Duration::MAX);
        assert_eq!(Rate::from_gbps(u64::MAX).bytes_in(Duration::MAX), u64::MAX);
    }
}
