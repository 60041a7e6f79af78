//! Times and sizes of settings, as text with a unit.

/// A time, such as `100 us`.
pub(super) mod time {
    use cc::quantity::parse_duration;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use time::Duration;

    /// Units in nanoseconds, the longest first.
    const UNITS: [(&str, u128); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

    pub(in super::super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        let nanos = time.as_nanos();
        let whole = UNITS.into_iter().find(|(_, unit)| nanos > 0 && nanos.is_multiple_of(*unit));
        let (name, unit) = whole.unwrap_or(("ns", 1));
        to.collect_str(&format_args!("{} {name}", nanos / unit))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A list of sizes in bytes: numbers, or text such as `20 KB`.
pub(super) mod sizes {
    use cc::quantity::parse_size;
    use serde::{Deserialize, Deserializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
        let sizes = Vec::<Size>::deserialize(from)?.into_iter().map(|size| match size {
            Size::Bytes(bytes) => Ok(bytes),
            Size::Text(text) => parse_size(&text).map_err(D::Error::custom),
        });
        sizes.collect()
    }
}
