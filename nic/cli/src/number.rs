//! Numbers on the command line.

use std::str::FromStr;
use std::time::Duration;

/// A whole number. The error of the standard library names digits and integer types instead.
pub(crate) fn whole<T: FromStr>(text: &str) -> Result<T, &'static str> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().map_err(|_| if is_number { "the number is too large" } else { "write a whole number" })
}

/// A period in seconds: from a tenth of one to an hour.
pub(crate) fn period(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or("write a number of seconds, from 0.1 to 3600")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_about_the_number_and_not_about_its_type() {
        assert_eq!(whole::<u32>("12"), Ok(12));
        assert_eq!(whole::<u32>("x"), Err("write a whole number"));
        assert_eq!(whole::<u32>(""), Err("write a whole number"));
        assert_eq!(whole::<u32>("-1"), Err("write a whole number"));
        assert_eq!(whole::<u32>("4294967296"), Err("the number is too large"));
    }

    #[test]
    fn a_period_is_neither_nothing_nor_endless() {
        assert_eq!(period("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "x", "", "NaN", "inf", "3601"] {
            assert!(period(wrong).is_err(), "{wrong}");
        }
    }
}
