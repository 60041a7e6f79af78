//! Sizes, rates and times in scenario files: text with a unit, or a number of bytes.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt::Display;

/// A number, or text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Whole(u64),
    Text(String),
}

impl Word {
    fn text(self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

/// Reads a word with `parse`.
fn read<'de, D: Deserializer<'de>, T, E: Display>(
    deserializer: D,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    let word = Word::deserialize(deserializer)
        .map_err(|_| D::Error::custom("write text, or a whole number"))?
        .text();
    parse(word.trim()).map_err(|why| D::Error::custom(format_args!("invalid value `{word}`: {why}")))
}

/// Numbers by number: the keys of a table are text.
pub(crate) fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u8, u8>, D::Error> {
    let table = BTreeMap::<String, u8>::deserialize(deserializer)?;
    let number = |(key, value): (String, u8)| match key.parse() {
        Ok(key) => Ok((key, value)),
        Err(_) => Err(D::Error::custom(format_args!("invalid key `{key}`: write a number up to 255"))),
    };
    table.into_iter().map(number).collect()
}

/// The functions of serde's `with` for a type: as it is, and as an option.
macro_rules! words {
    ($name:ident $or_none:ident: $type:ty, $parse:expr, $write:expr, $what:literal) => {
        #[doc = concat!("A ", $what, ".")]
        pub(crate) mod $name {
            use serde::{Deserializer, Serializer};

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                super::read(deserializer, $parse)
            }

            pub(crate) fn serialize<S: Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&$write(*value))
            }
        }

        #[doc = concat!("A ", $what, ", or nothing.")]
        pub(crate) mod $or_none {
            use serde::{Deserializer, Serializer};

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Option<$type>, D::Error> {
                super::read(deserializer, $parse).map(Some)
            }

            pub(crate) fn serialize<S: Serializer>(
                value: &Option<$type>,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                match value {
                    Some(value) => super::$name::serialize(value, serializer),
                    None => serializer.serialize_none(),
                }
            }
        }
    };
}

words!(size size_or_none: u64, cc::quantity::parse_size, std::convert::identity::<u64>, "number of bytes");
words!(duration duration_or_none: time::Duration, cc::quantity::parse_duration, crate::words::Time, "time");

/// A time as text: a whole number of the longest possible unit.
struct Time(time::Duration);

/// Units in nanoseconds, the longest first.
const UNITS: [(&str, u128); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nanos = self.0.as_nanos();
        let whole = UNITS.into_iter().find(|(_, unit)| nanos > 0 && nanos.is_multiple_of(*unit));
        let (name, unit) = whole.unwrap_or(("ns", 1));
        write!(f, "{} {name}", nanos / unit)
    }
}

/// A list of sizes in bytes.
pub(crate) fn sizes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let sizes = Vec::<Word>::deserialize(deserializer)?.into_iter().map(Word::text);
    sizes.map(|text| cc::quantity::parse_size(text.trim()).map_err(D::Error::custom)).collect()
}
