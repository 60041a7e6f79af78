//! Times on the command line.

use std::time::Duration;

/// A time: a number with `s`, `ms`, `us` or `ns` behind it; without a unit it is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "ns" => 1e-9,
        other => return Err(format!("`{other}` is not a unit of time: s, ms, us or ns")),
    };
    let number: f64 = digits.parse().map_err(|_| "a number is wanted, as in 0.5s or 10ms".to_owned())?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| format!("{text} is not a time from 0 on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(parse_duration("1.5us"), Ok(Duration::from_nanos(1500)));
        assert_eq!(parse_duration("7ns"), Ok(Duration::from_nanos(7)));
        for wrong in ["", "s", "-1s", "1m", "NaN", "inf", "1e99", "1 s", "5é"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
