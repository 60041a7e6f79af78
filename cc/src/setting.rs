//! Settings as words and values, the same in configuration files, on command lines and in Rust.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// There is no such word.
    #[error("there is no setting `{word}`; the settings are {known}")]
    Unknown {
        /// The word.
        word: String,
        /// The words that exist.
        known: String,
    },
    /// The value is not of the kind that the setting takes.
    #[error("`{word}` cannot be `{value}`: {wanted} is wanted")]
    Malformed {
        /// The setting.
        word: String,
        /// The value.
        value: String,
        /// What would do.
        wanted: String,
    },
    /// The value is out of the setting's range.
    #[error("`{word}` cannot be {value}: it must be {wanted}")]
    OutOfRange {
        /// The setting.
        word: &'static str,
        /// The value.
        value: String,
        /// The range.
        wanted: String,
    },
}

impl SettingError {
    pub(crate) fn unknown(word: &str, known: &[&str]) -> Self {
        Self::Unknown { word: word.to_owned(), known: known.join(", ") }
    }

    /// Refuses a `value` outside of `least..=most`.
    pub(crate) fn unless_between<T: PartialOrd + fmt::Display>(
        word: &'static str,
        value: T,
        least: T,
        most: T,
    ) -> Result<(), Self> {
        if value >= least && value <= most {
            return Ok(());
        }
        Err(Self::OutOfRange { word, value: value.to_string(), wanted: format!("{least} to {most}") })
    }
}

/// What a kind of value says of itself in errors.
pub(crate) trait Kind: FromStr {
    fn wanted() -> String;
}

impl Kind for bool {
    fn wanted() -> String {
        "true or false".to_owned()
    }
}

macro_rules! whole_numbers {
    ($($type:ty)*) => {$(
        impl Kind for $type {
            fn wanted() -> String {
                format!("a whole number up to {}", Self::MAX)
            }
        }
    )*};
}

whole_numbers!(u8 u16 u32 u64);

impl Kind for f64 {
    fn wanted() -> String {
        "a number".to_owned()
    }
}

pub(crate) fn parse<T: Kind>(word: &str, value: &str) -> Result<T, SettingError> {
    value.trim().parse().map_err(|_| SettingError::Malformed {
        word: word.to_owned(),
        value: value.to_owned(),
        wanted: T::wanted(),
    })
}

/// A value as it stands in a configuration file.
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
                Self::ALL.iter().copied().find(|v| v.name() == text).ok_or_else(|| {
                    $crate::setting::SettingError::Malformed {
                        word: stringify!($name).to_owned(),
                        value: text.to_owned(),
                        wanted: <Self as $crate::setting::Kind>::wanted(),
                    }
                })
            }
        }

        impl $crate::setting::Kind for $name {
            fn wanted() -> String {
                let names: Vec<_> = Self::ALL.iter().map(|v| format!("`{v}`")).collect();
                names.join(" or ")
            }
        }
    };
}

/// Writes `set`, `WORDS` and reading from a command line for a structure whose fields are its words.
macro_rules! settable {
    ($name:ident: $($field:ident)*) => {
        impl $name {
            /// The words that [`Self::set`] knows: the names of the fields.
            pub const WORDS: &[&str] = &[$(stringify!($field),)*];

            /// Sets what `word` names to `value`, both as they stand in a configuration file or on a command line.
            ///
            /// # Errors
            ///
            /// The word is not one of [`Self::WORDS`], or the value is not of its kind.
            pub fn set(&mut self, word: &str, value: &str) -> Result<(), $crate::setting::SettingError> {
                match word {
                    $(stringify!($field) => self.$field = $crate::setting::parse(word, value)?,)*
                    _ => return Err($crate::setting::SettingError::unknown(word, Self::WORDS)),
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
    text.split(',').map(str::trim).filter(|p| !p.is_empty()).map(|part| {
        part.split_once('=').ok_or_else(|| SettingError::Malformed {
            word: part.to_owned(),
            value: String::new(),
            wanted: "`word=value`".to_owned(),
        })
    })
}

pub(crate) use {names, settable};
