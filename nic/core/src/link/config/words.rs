//! The values of settings, read from a file or a command line.

use super::Model;
use cc::Rate;
use cc::ets::Tsa;
use cc::pfc::Action;
use cc::quantity::{QuantityError, parse_duration, parse_size};
use cc::vl::{self, Entry};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};
use std::fmt;
use time::Duration;

/// A kind of value.
pub(super) trait Word: Sized {
    /// Reads a value in its command-line form.
    ///
    /// # Errors
    /// Says what to write instead.
    fn parse(text: &str) -> Result<Self, String>;
}

/// A value in a file. Its text is the form on a command line.
#[derive(Deserialize)]
#[serde(untagged)]
enum InFile {
    Whole(u64),
    Number(f64),
    Text(String),
    // Before entries, because those can be read as lists as well.
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
    let value = InFile::deserialize(deserializer)
        .map_err(|_| D::Error::custom("write text, a number or a list"))?
        .to_string();
    T::parse(value.trim()).map_err(|why| D::Error::custom(format_args!("invalid value `{value}`: {why}")))
}

/// Reads a size in bytes from a file, such as `4096` or `208 KiB`.
pub fn size<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let bytes: u64 = from_file(deserializer)?;
    T::try_from(bytes).map(Some).map_err(|_| D::Error::custom(format_args!("{bytes} bytes are too many")))
}

/// Writes a time in the form in which it is read.
pub(super) fn as_text<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Time(*time))
}

/// A time as text: a whole number of the longest possible unit.
pub(super) struct Time(pub(super) Duration);

/// Units of time in nanoseconds, longest first.
const TIMES: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let whole = TIMES.iter().find(|(_, unit)| nanos > 0 && nanos.is_multiple_of(u128::from(*unit)));
        let (unit, size) = whole.copied().unwrap_or(("ns", 1));
        write!(f, "{} {unit}", nanos / u128::from(size))
    }
}

impl<T: Word> Word for Option<T> {
    fn parse(text: &str) -> Result<Self, String> {
        T::parse(text).map(Some)
    }
}

/// A size in bytes.
impl Word for u64 {
    fn parse(text: &str) -> Result<Self, String> {
        parse_size(text).map_err(|error| error.to_string())
    }
}

impl Word for Duration {
    fn parse(text: &str) -> Result<Self, String> {
        parse_duration(text).map_err(|error| error.to_string())
    }
}

impl Word for Rate {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: QuantityError| error.to_string())
    }
}

impl Word for f64 {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "write a number".to_owned())
    }
}

macro_rules! whole_numbers {
    ($($type:ty)*) => {$(
        impl Word for $type {
            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("write a whole number up to {}", Self::MAX))
            }
        }
    )*};
}

whole_numbers!(u8 u32);

macro_rules! named {
    ($($type:ty)*) => {$(
        impl Word for $type {
            fn parse(text: &str) -> Result<Self, String> {
                let names: Vec<_> = Self::ALL.iter().map(|v| v.name()).collect();
                let found = Self::ALL.iter().copied().find(|v| v.name() == text);
                found.ok_or_else(|| cc::unknown(text, &names))
            }
        }
    )*};
}

named!(Model Action Tsa);

/// The items of a list.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Reads the items of a list into the first elements of `row`. `what` names them in errors.
fn fill<T: Word, const N: usize>(text: &str, mut row: [T; N], what: &str) -> Result<[T; N], String> {
    let mut places = row.iter_mut();
    for item in items(text) {
        let place = places.next().ok_or_else(|| format!("list up to {N} {what}"))?;
        *place = T::parse(item)?;
    }
    Ok(row)
}

/// Priorities.
impl Word for Vec<u8> {
    fn parse(text: &str) -> Result<Self, String> {
        let all: Result<_, _> = items(text).map(u8::parse).collect();
        all.map_err(|_| "list priorities from 0 to 7, such as `3,4`".to_owned())
    }
}

impl Word for [Tsa; 8] {
    fn parse(text: &str) -> Result<Self, String> {
        fill(text, [Tsa::Strict; 8], "of `strict` and `ets`")
    }
}

/// Shares.
impl Word for [u8; 8] {
    fn parse(text: &str) -> Result<Self, String> {
        fill(text, [0; 8], "shares in percent, such as `60,40`")
    }
}

/// Virtual lanes of service levels.
impl Word for [u8; 16] {
    fn parse(text: &str) -> Result<Self, String> {
        fill(text, vl::Config::default().sl2vl, "virtual lanes, such as `0,1,1`")
    }
}

impl Word for Vec<Entry> {
    fn parse(text: &str) -> Result<Self, String> {
        let entry = |item: &str| {
            let (vl, weight) = item.split_once(':')?;
            Some(Entry { vl: u8::parse(vl.trim()).ok()?, weight: u8::parse(weight.trim()).ok()? })
        };
        let list: Option<_> = items(text).map(entry).collect();
        list.ok_or_else(|| "list virtual lanes with their weights, such as `0:64,1:32`".to_owned())
    }
}
