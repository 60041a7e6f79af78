//! Values as words: one way to read them, from a file and from a command line.

use super::Model;
use cc::Rate;
use cc::ets::Tsa;
use cc::pfc::Action;
use cc::vl::{self, Entry};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};
use std::fmt;
use std::time::Duration;

/// A kind of value.
pub(super) trait Word: Sized {
    /// Reads a value as it stands on a command line.
    fn parse(text: &str) -> Option<Self>;

    /// What would do, for errors.
    fn wanted() -> String;
}

/// A value as a file has it. Written out, it is what a command line has.
#[derive(Deserialize)]
#[serde(untagged)]
enum InFile {
    Whole(u64),
    Number(f64),
    Text(String),
    // Before entries, which could be lists as well.
    List(Vec<Self>),
    Entry(Entry),
}

impl fmt::Display for InFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(n) => n.fmt(f),
            Self::Number(n) => n.fmt(f),
            Self::Text(text) => text.fmt(f),
            Self::Entry(Entry { vl, weight }) => write!(f, "{vl}:{weight}"),
            Self::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "" } else { "," })?;
                }
                Ok(())
            }
        }
    }
}

/// Reads a value from a file.
pub(super) fn from_file<'de, D: Deserializer<'de>, T: Word>(deserializer: D) -> Result<T, D::Error> {
    let wrong = |value: &str| D::Error::custom(format_args!("{} is wanted, not {value}", T::wanted()));
    let value = InFile::deserialize(deserializer).map_err(|_| wrong("this"))?.to_string();
    T::parse(value.trim()).ok_or_else(|| wrong(&format!("`{value}`")))
}

/// Writes a time as it is read.
pub(super) fn in_words<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Time(*time))
}

/// A time as it is read: a whole number of the longest unit that fits.
pub(super) struct Time(pub(super) Duration);

/// Units of time in nanoseconds, longest first.
const TIMES: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// Units of sizes in bytes, decimal and binary.
const SIZES: [(&str, u64); 9] = [
    ("B", 1),
    ("KB", 1_000),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("", 1),
];

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let whole = TIMES.iter().find(|(_, unit)| nanos > 0 && nanos.is_multiple_of(u128::from(*unit)));
        let (unit, size) = whole.copied().unwrap_or(("ns", 1));
        write!(f, "{} {unit}", nanos / u128::from(size))
    }
}

/// Reads a number with one of `units`, to the nearest whole number of the smallest.
fn measure(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, size) = units.iter().find(|(name, _)| *name == unit)?;
    let number = number.trim_end();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*size);
    }
    let value = number.parse::<f64>().ok()? * *size as f64;
    (0.0..u64::MAX as f64).contains(&value).then(|| value.round() as u64)
}

impl<T: Word> Word for Option<T> {
    fn parse(text: &str) -> Option<Self> {
        T::parse(text).map(Some)
    }

    fn wanted() -> String {
        T::wanted()
    }
}

/// A size in bytes.
impl Word for u64 {
    fn parse(text: &str) -> Option<Self> {
        measure(text, &SIZES)
    }

    fn wanted() -> String {
        "a number of bytes, such as `262144`, `200 KB` or `1 MiB`,".to_owned()
    }
}

impl Word for Duration {
    fn parse(text: &str) -> Option<Self> {
        measure(text, &TIMES).map(Self::from_nanos)
    }

    fn wanted() -> String {
        "a time with its unit, such as `10 us` or `1.5 ms`,".to_owned()
    }
}

impl Word for Rate {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn wanted() -> String {
        "a rate with its unit, such as `5 Gb/s` or `500 Mb/s`,".to_owned()
    }
}

impl Word for f64 {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn wanted() -> String {
        "a number".to_owned()
    }
}

macro_rules! whole_numbers {
    ($($type:ty)*) => {$(
        impl Word for $type {
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }

            fn wanted() -> String {
                format!("a whole number up to {}", Self::MAX)
            }
        }
    )*};
}

whole_numbers!(u8 u32);

macro_rules! named {
    ($($type:ty)*) => {$(
        impl Word for $type {
            fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|v| v.name() == text)
            }

            fn wanted() -> String {
                let names: Vec<_> = Self::ALL.iter().map(|v| format!("`{v}`")).collect();
                names.join(" or ")
            }
        }
    )*};
}

named!(Model Action Tsa);

/// The items of a list.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Reads what a list names into the first places of `row`.
fn fill<T: Word, const N: usize>(text: &str, mut row: [T; N]) -> Option<[T; N]> {
    let mut places = row.iter_mut();
    for item in items(text) {
        *places.next()? = T::parse(item)?;
    }
    Some(row)
}

/// Priorities.
impl Word for Vec<u8> {
    fn parse(text: &str) -> Option<Self> {
        items(text).map(u8::parse).collect()
    }

    fn wanted() -> String {
        "a list of priorities, such as `3,4`,".to_owned()
    }
}

impl Word for [Tsa; 8] {
    fn parse(text: &str) -> Option<Self> {
        fill(text, [Tsa::Strict; 8])
    }

    fn wanted() -> String {
        "a list of up to eight of `strict` and `ets`".to_owned()
    }
}

/// Shares.
impl Word for [u8; 8] {
    fn parse(text: &str) -> Option<Self> {
        fill(text, [0; 8])
    }

    fn wanted() -> String {
        "a list of up to eight shares in percent, such as `60,40`,".to_owned()
    }
}

/// Virtual lanes of service levels.
impl Word for [u8; 16] {
    fn parse(text: &str) -> Option<Self> {
        fill(text, vl::Config::default().sl2vl)
    }

    fn wanted() -> String {
        "a list of up to 16 virtual lanes".to_owned()
    }
}

impl Word for Vec<Entry> {
    fn parse(text: &str) -> Option<Self> {
        let entry = |item: &str| {
            let (vl, weight) = item.split_once(':')?;
            Some(Entry { vl: u8::parse(vl.trim())?, weight: u8::parse(weight.trim())? })
        };
        items(text).map(entry).collect()
    }

    fn wanted() -> String {
        "a list of virtual lanes and their weights, such as `0:64,1:32`, or in a file `{ vl = 0, weight = 64 }`,"
            .to_owned()
    }
}
