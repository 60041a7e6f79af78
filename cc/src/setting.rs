//! Settings as words and values, the same in configuration files, on command lines and in Rust.

use crate::quantity::parse_size;
use crate::words::nearest;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// The setting does not exist.
    #[error("unknown setting `{word}`; {}", known_settings(word, known))]
    Unknown {
        /// The name as given.
        word: String,
        /// The settings that exist.
        known: &'static [&'static str],
    },
    /// A setting has a name only.
    #[error("`{word}` has no value; write `{word}=VALUE`")]
    NoValue {
        /// The setting.
        word: String,
    },
    /// The value is not of the kind that the setting takes.
    #[error("invalid value `{value}` for `{word}`: {why}")]
    Malformed {
        /// The setting.
        word: String,
        /// The value.
        value: String,
        /// What to write instead.
        why: String,
    },
    /// The value is outside of the setting's range.
    #[error("invalid value {value} for `{word}`: {why}")]
    OutOfRange {
        /// The setting.
        word: &'static str,
        /// The value.
        value: String,
        /// The range.
        why: String,
    },
}

impl SettingError {
    /// Rejects a `value` outside of `least..=most`.
    pub(crate) fn unless_between<T: PartialOrd + fmt::Display>(
        word: &'static str,
        value: T,
        least: T,
        most: T,
    ) -> Result<(), Self> {
        if value >= least && value <= most {
            return Ok(());
        }
        let why = format!("the range is {least} to {most}");
        Err(Self::OutOfRange { word, value: value.to_string(), why })
    }
}

/// The hint in an error about an unknown setting: the one that was probably meant, or all of them.
#[must_use]
pub fn known_settings(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("the settings are {}", known.join(", ")),
    }
}

/// A kind of value.
pub(crate) trait Kind: Sized {
    /// Reads a value.
    ///
    /// # Errors
    ///
    /// Says what to write instead.
    fn read(text: &str) -> Result<Self, String>;
}

impl Kind for bool {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "write `true` or `false`".to_owned())
    }
}

macro_rules! whole_numbers {
    ($($type:ty)*) => {$(
        impl Kind for $type {
            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("write a whole number up to {}", Self::MAX))
            }
        }
    )*};
}

whole_numbers!(u8 u16 u32);

/// A size in bytes.
impl Kind for u64 {
    fn read(text: &str) -> Result<Self, String> {
        parse_size(text).map_err(|error| error.to_string())
    }
}

impl Kind for f64 {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "write a number".to_owned())
    }
}

pub(crate) fn parse<T: Kind>(word: &str, value: &str) -> Result<T, SettingError> {
    let malformed = |why| SettingError::Malformed { word: word.to_owned(), value: value.to_owned(), why };
    T::read(value.trim()).map_err(malformed)
}

/// A value in a configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// true or false.
    Switch(bool),
    /// A whole number.
    Whole(u64),
    /// A number.
    Number(f64),
    /// Text.
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(v) => v.fmt(f),
            Self::Whole(v) => v.fmt(f),
            Self::Number(v) => v.fmt(f),
            Self::Text(v) => v.fmt(f),
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}

from!(bool => Switch, u32 => Whole, u64 => Whole, f64 => Number, &str => Text, String => Text);

/// Defines an enumeration whose variants have names in configuration files and on command lines.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in configuration files and on command lines.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::setting::SettingError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let malformed = |why| $crate::setting::SettingError::Malformed {
                    word: stringify!($name).to_lowercase(),
                    value: text.to_owned(),
                    why,
                };
                <Self as $crate::setting::Kind>::read(text).map_err(malformed)
            }
        }

        impl $crate::setting::Kind for $name {
            fn read(text: &str) -> Result<Self, String> {
                let known: Vec<_> = Self::ALL.iter().map(|v| v.name()).collect();
                let found = Self::ALL.iter().copied().find(|v| v.name() == text);
                found.ok_or_else(|| $crate::words::unknown(text, &known))
            }
        }
    };
}

/// Generates `set`, `WORDS` and command-line parsing for a structure whose fields are its words.
macro_rules! settable {
    ($name:ident: $($field:ident)*) => {
        impl $name {
            /// The words that [`Self::set`] knows: the names of the fields.
            pub const WORDS: &[&str] = &[$(stringify!($field),)*];

            /// Sets the setting `word` to `value`, both written as in a configuration file or on a command line.
            ///
            /// # Errors
            ///
            /// The word is not one of [`Self::WORDS`], or the value is not of its kind.
            pub fn set(&mut self, word: &str, value: &str) -> Result<(), $crate::setting::SettingError> {
                match word {
                    $(stringify!($field) => self.$field = $crate::setting::parse(word, value)?,)*
                    _ => {
                        let (word, known) = (word.to_owned(), Self::WORDS);
                        return Err($crate::setting::SettingError::Unknown { word, known });
                    }
                }
                Ok(())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::setting::SettingError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let mut settings = Self::default();
                for pair in $crate::setting::pairs(text) {
                    let (word, value) = pair?;
                    settings.set(word, value)?;
                }
                Ok(settings)
            }
        }
    };
}

/// The words and values of `word=value,word=value`.
pub(crate) fn pairs(text: &str) -> impl Iterator<Item = Result<(&str, &str), SettingError>> {
    text.split(',')
        .map(str::trim)
        .filter(|p| !p.is_empty())
        .map(|part| part.split_once('=').ok_or_else(|| SettingError::NoValue { word: part.to_owned() }))
}

pub(crate) use {names, settable};
