//! Sizes, rates and durations as people write them.
//!
//! A quantity is a decimal number and a unit, with or without a space between them. Letter case matters only where it
//! changes the meaning: in a rate, `b` counts bits, and `B`, which would count bytes, is refused.
//!
//! | | spellings |
//! |---|---|
//! | size | `4096`, `64k`, `64K`, `64 KiB` (1024 bytes each), `1 MB`, `1mb` (10^6 bytes), `1 MiB`, `1M` (2^20 bytes) |
//! | rate | `5 Gb/s`, `5Gbps`, `5gbit`, `5 Gbit/s`, `5G`, `2500 Mb/s` (always powers of ten) |
//! | duration | `10 us`, `10µs`, `1.5 ms`, `200ms`, `2s`, `2 sec`, `1 min` |

use time::Duration;

/// The text is not a quantity of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It does not start with a decimal number.
    #[error("write a number and a unit, such as {}", kind.examples())]
    Number {
        /// The expected kind.
        kind: Quantity,
    },
    /// The number has no unit, and the kind has no default.
    #[error("the unit is missing; write {}", kind.with_unit(number))]
    NoUnit {
        /// The expected kind.
        kind: Quantity,
        /// The number.
        number: String,
    },
    /// The unit is not one of the kind.
    #[error("unknown unit `{unit}`; {} units are {}", kind.name(), kind.units())]
    Unit {
        /// The expected kind.
        kind: Quantity,
        /// The unit.
        unit: String,
    },
    /// A rate in bytes.
    #[error("rates count bits; {}", in_bits(number))]
    Bytes {
        /// The number and the multiplier, as in `5G`.
        number: String,
    },
    /// It does not fit into 64 bits of the smallest unit.
    #[error("the {} is too large", kind.name())]
    TooLarge {
        /// The expected kind.
        kind: Quantity,
    },
}

/// A kind of quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// A number of bytes.
    Size,
    /// A number of bits per second.
    Rate,
    /// A time, in nanoseconds.
    Duration,
}

impl Quantity {
    const fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Rate => "rate",
            Self::Duration => "time",
        }
    }

    const fn examples(self) -> &'static str {
        match self {
            Self::Size => "`4096`, `64 KiB` or `1 MB`",
            Self::Rate => "`5 Gb/s` or `500 Mb/s`",
            Self::Duration => "`10 us` or `1.5 ms`",
        }
    }

    const fn units(self) -> &'static str {
        match self {
            Self::Size => "B, KB, MB, GB, KiB, MiB and GiB",
            Self::Rate => "b/s, kb/s, Mb/s, Gb/s and Tb/s",
            Self::Duration => "ns, us, ms, s and min",
        }
    }

    fn with_unit(self, number: &str) -> String {
        match self {
            Self::Size => format!("`{number} KiB` or `{number} MB`"),
            Self::Rate => format!("`{number} Gb/s` or `{number} Mb/s`"),
            Self::Duration => format!("`{number} us`, `{number} ms` or `{number} s`"),
        }
    }

    /// How many of the smallest unit `unit` is.
    fn factor(self, unit: &str) -> Option<u64> {
        let unit = unit.to_lowercase();
        match self {
            Self::Size => size_factor(&unit),
            Self::Rate => {
                let suffixes = ["bits/s", "bit/s", "b/s", "bps", "bits", "bit"];
                let prefix = suffixes.iter().find_map(|suffix| unit.strip_suffix(suffix)).unwrap_or(&unit);
                decimal(prefix).filter(|_| !unit.is_empty())
            }
            Self::Duration => Some(match unit.as_str() {
                "ns" | "nsec" => 1,
                // U+00B5 in lower case is itself; U+03BC is the Greek letter that looks the same.
                "us" | "usec" | "\u{b5}s" | "\u{3bc}s" => 1_000,
                "ms" | "msec" => 1_000_000,
                "s" | "sec" | "second" | "seconds" => 1_000_000_000,
                "min" | "minute" | "minutes" => 60_000_000_000,
                _ => return None,
            }),
        }
    }
}

/// A power of ten.
fn decimal(prefix: &str) -> Option<u64> {
    Some(match prefix {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        _ => return None,
    })
}

/// The multiplier of a size in lower case: a power of ten before `b`, a power of two with an `i` or alone.
fn size_factor(unit: &str) -> Option<u64> {
    Some(match unit {
        "byte" | "bytes" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1 << 40,
        _ => decimal(unit.strip_suffix('b')?)?,
    })
}

fn in_bits(number: &str) -> String {
    let digits = number.trim_end_matches(|c: char| c.is_alphabetic());
    let prefix = number[digits.len()..].to_uppercase();
    match digits.trim().parse::<f64>() {
        Ok(bytes) => format!("write `{} {prefix}b/s`", bytes * 8.0),
        Err(_) => "write `Gb/s` or `Mb/s`".to_owned(),
    }
}

/// Reads a quantity in its smallest unit, rounded to the nearest. `bare` is the unit of a number without one.
fn read(text: &str, kind: Quantity, bare: Option<u64>) -> Result<u64, QuantityError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let unit = rest.trim_start();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(QuantityError::Number { kind });
    }
    let factor = if unit.is_empty() {
        let none = || QuantityError::NoUnit { kind, number: number.to_owned() };
        // Zero is zero in every unit.
        let is_zero = number.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        bare.or(is_zero.then_some(1)).ok_or_else(none)?
    } else if kind == Quantity::Rate && is_in_bytes(unit) {
        let prefix = unit.trim_end_matches(|c: char| c != 'B').trim_end_matches('B');
        return Err(QuantityError::Bytes { number: format!("{number}{prefix}") });
    } else {
        kind.factor(unit).ok_or_else(|| QuantityError::Unit { kind, unit: unit.to_owned() })?
    };
    scaled(whole, fraction, factor).ok_or(QuantityError::TooLarge { kind })
}

/// Whether the unit of a rate counts bytes: `GB/s`, `MBps`.
fn is_in_bytes(unit: &str) -> bool {
    ["B", "B/s", "Bps"].iter().any(|suffix| unit.ends_with(suffix))
}

/// `whole.fraction` times `factor`, rounded to the nearest whole number.
fn scaled(whole: &str, fraction: &str, factor: u64) -> Option<u64> {
    let factor = u128::from(factor);
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Further digits are less than half of the smallest unit of the largest factor.
    let digits = &fraction[..fraction.len().min(18)];
    let part: u128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let scale = 10u128.pow(u32::try_from(digits.len()).ok()?);
    let part = (part * factor + scale / 2) / scale;
    u64::try_from(whole.checked_mul(factor)?.checked_add(part)?).ok()
}

/// Reads a size in bytes. A number without a unit counts bytes; `k`, `M` and `G` alone are powers of 1024, as in dd(1)
/// and perftest.
///
/// ```
/// assert_eq!(cc::quantity::parse_size("64k"), Ok(65_536));
/// assert_eq!(cc::quantity::parse_size("1 MB"), Ok(1_000_000));
/// ```
///
/// # Errors
///
/// The text is not a size.
pub fn parse_size(text: &str) -> Result<u64, QuantityError> {
    read(text, Quantity::Size, Some(1))
}

/// Reads a rate in bits per second. [`Rate`](crate::Rate) implements `FromStr` by it.
///
/// # Errors
///
/// The text is not a rate.
pub fn parse_rate(text: &str) -> Result<u64, QuantityError> {
    read(text, Quantity::Rate, None)
}

/// Reads a time, which needs a unit unless it is 0.
///
/// # Errors
///
/// The text is not a time.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    read(text, Quantity::Duration, None).map(Duration::from_nanos)
}

/// Reads a time; a number without a unit counts seconds.
///
/// # Errors
///
/// The text is not a time.
pub fn parse_seconds(text: &str) -> Result<Duration, QuantityError> {
    read(text, Quantity::Duration, Some(1_000_000_000)).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_all_usual_spellings() {
        for (text, bytes) in [
            ("0", 0),
            ("262144", 262_144),
            ("100 B", 100),
            ("100 bytes", 100),
            ("64k", 65_536),
            ("64K", 65_536),
            ("64KiB", 65_536),
            ("64 kib", 65_536),
            ("64Ki", 65_536),
            ("64KB", 64_000),
            ("64 kB", 64_000),
            ("1MB", 1_000_000),
            ("1mb", 1_000_000),
            ("1MiB", 1 << 20),
            ("1m", 1 << 20),
            ("8M", 8 << 20),
            ("1.5 KB", 1_500),
            (".5 MiB", 1 << 19),
            ("1 GB", 1_000_000_000),
            ("2 GiB", 2 << 30),
            (" 1G ", 1 << 30),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn rates_are_read_in_all_usual_spellings() {
        const FIVE: u64 = 5_000_000_000;
        for text in [
            "5 Gb/s",
            "5Gb/s",
            "5Gbps",
            "5 gbps",
            "5gbit",
            "5Gbit",
            "5 Gbit/s",
            "5 Gbits/s",
            "5G",
            "5g",
            "5000 Mb/s",
            "5000mbit",
            "5000000 kb/s",
            "0.005 Tb/s",
            "5000000000 b/s",
            "5000000000 bps",
        ] {
            assert_eq!(parse_rate(text), Ok(FIVE), "{text}");
        }
        assert_eq!(parse_rate("2.5 Gb/s"), Ok(2_500_000_000));
        assert_eq!(parse_rate("7 bit"), Ok(7));
    }

    #[test]
    fn durations_are_read_in_all_usual_spellings() {
        for (text, nanos) in [
            ("7 ns", 7),
            ("7ns", 7),
            ("1.5 us", 1_500),
            ("1.5\u{b5}s", 1_500),
            ("1.5 \u{3bc}s", 1_500),
            ("200ms", 200_000_000),
            ("200 msec", 200_000_000),
            ("0.5s", 500_000_000),
            ("2 sec", 2_000_000_000),
            ("2 seconds", 2_000_000_000),
            ("1 min", 60_000_000_000),
            ("0", 0),
            ("0 s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        assert_eq!(parse_seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_seconds("10ms"), Ok(Duration::from_millis(10)));
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_unit() {
        assert_eq!(parse_duration("1.4 ns"), Ok(Duration::from_nanos(1)));
        assert_eq!(parse_duration("1.5 ns"), Ok(Duration::from_nanos(2)));
        assert_eq!(parse_duration("1.000000001 s"), Ok(Duration::from_nanos(1_000_000_001)));
        let long = format!("0.{}1 s", "0".repeat(300));
        assert_eq!(parse_duration(&long), Ok(Duration::ZERO));
    }

    #[test]
    fn errors_say_what_to_write() {
        for (error, says) in [
            (parse_size("").unwrap_err(), "write a number and a unit, such as `4096`, `64 KiB` or `1 MB`"),
            (parse_size("-1").unwrap_err(), "write a number and a unit, such as `4096`, `64 KiB` or `1 MB`"),
            (
                parse_size("1 XB").unwrap_err(),
                "unknown unit `XB`; size units are B, KB, MB, GB, KiB, MiB and GiB",
            ),
            (parse_size("20000000000 GB").unwrap_err(), "the size is too large"),
            (parse_rate("5").unwrap_err(), "the unit is missing; write `5 Gb/s` or `5 Mb/s`"),
            (parse_rate("5 GB/s").unwrap_err(), "rates count bits; write `40 Gb/s`"),
            (parse_rate("0.5 MBps").unwrap_err(), "rates count bits; write `4 Mb/s`"),
            (
                parse_rate("5 Gx").unwrap_err(),
                "unknown unit `Gx`; rate units are b/s, kb/s, Mb/s, Gb/s and Tb/s",
            ),
            (parse_duration("10").unwrap_err(), "the unit is missing; write `10 us`, `10 ms` or `10 s`"),
            (parse_seconds("1m").unwrap_err(), "unknown unit `m`; time units are ns, us, ms, s and min"),
        ] {
            assert_eq!(error.to_string(), says);
        }
    }

    #[test]
    fn what_is_not_a_quantity_is_refused() {
        for text in ["", "s", "-1s", "NaN", "inf", "1e99", "5\u{e9}", "1..5s", ".", "1.2.3 s", "\u{ff11} s"] {
            assert!(parse_seconds(text).is_err(), "{text}");
            assert!(parse_rate(text).is_err(), "{text}");
        }
        for text in ["K", "x", "64\u{e9}", "1iB", "1 i", "1 KKB", "1 Kbb"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        for text in ["Gb/s", "NaN b/s", "1e30 Tb/s", "30000000 Tb/s", "5 Gb", "5 b/", "5 GiB/s"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
