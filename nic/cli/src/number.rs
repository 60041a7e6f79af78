//! Whole numbers on the command line.

use std::str::FromStr;

/// A whole number. The error of the standard library names digits and integer types instead.
pub(crate) fn whole<T: FromStr>(text: &str) -> Result<T, &'static str> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().map_err(|_| if is_number { "the number is too large" } else { "write a whole number" })
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
}
