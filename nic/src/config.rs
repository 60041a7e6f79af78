//! Configuration files.

use crate::DeviceConfig;
use crate::process::HostAddress;
use cc::known_settings;
use qp::{Mtu, PKey, ParseMtuError};
use rnic_core::link::{LinkConfig, LinkConfigError};
use serde::de::{self, Deserializer, Error as _, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use std::fmt;
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    /// The file, if the configuration came from one.
    pub path: Option<PathBuf>,
    /// The line of the error, counted from 1, if it is known.
    pub line: Option<usize>,
    /// The error.
    #[source]
    pub fault: ConfigFault,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}", path.display())?,
            None => f.write_str("configuration")?,
        }
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.fault)
    }
}

impl From<ConfigError> for crate::Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(Box::new(error))
    }
}

/// An error in a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFault {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(std::io::Error),
    /// The file has no content.
    #[error("the file is empty")]
    Empty,
    /// A setting does not exist.
    #[error("unknown setting `{word}`; {}", known_settings(word, known))]
    Unknown {
        /// The name as given.
        word: String,
        /// The settings that exist at this level.
        known: &'static [&'static str],
    },
    /// It is not TOML, or a value is not of its setting's kind.
    #[error("{0}")]
    Syntax(String),
    /// The settings of the link and of congestion control contradict each other.
    #[error(transparent)]
    Link(LinkConfigError),
}

/// How values are written in a file, where that differs from their own way.
pub(crate) mod written {
    use super::*;

    /// An address of the host, or an interface, as [`HostAddress`] reads it.
    pub(crate) fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<HostAddress>, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Some).map_err(D::Error::custom)
    }

    /// A path MTU, in bytes.
    pub(crate) fn mtu<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Mtu>, D::Error> {
        let bytes = u32::deserialize(from)?;
        Mtu::from_bytes(bytes).map(Some).ok_or_else(|| D::Error::custom(ParseMtuError(bytes.to_string())))
    }

    /// A table of P_Keys, as numbers.
    pub(crate) fn pkeys<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PKey>, D::Error> {
        Ok(Vec::<u16>::deserialize(from)?.into_iter().map(PKey).collect())
    }
}

/// Asks a structure for the names of its fields, instead of giving it any.
struct AskFields<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for AskFields<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("only the names were asked for"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The settings at the top of a file: the fields of [`DeviceConfig`].
fn words() -> &'static [&'static str] {
    let mut fields: &[&str] = &[];
    // It fails as soon as the names are known.
    let _ = DeviceConfig::deserialize(AskFields(&mut fields));
    fields
}

/// The first unknown setting of a file, with its line. The settings of `[cc]` depend on the algorithm.
fn unknown_setting(text: &str) -> Option<(usize, ConfigFault)> {
    let table = DeTable::parse(text).ok()?;
    let top = table.get_ref();
    let link = top.get("link").and_then(|value| value.get_ref().as_table());
    let all = top.keys().map(|key| (key, words()));
    let mut all = all.chain(link.into_iter().flat_map(|t| t.keys()).map(|key| (key, LinkConfig::WORDS)));
    let (key, known) = all.find(|(key, known)| !known.contains(&key.get_ref().as_ref()))?;
    let word = key.get_ref().to_string();
    Some((line_of(text, key.span().start), ConfigFault::Unknown { word, known }))
}

impl DeviceConfig {
    /// Reads a configuration in TOML. Its keys are the names of the fields, with the tables `[link]` ([`LinkConfig`])
    /// and `[cc]` ([`cc::Algorithm`]). A missing key keeps its default.
    ///
    /// ```
    /// let config = rnic::DeviceConfig::from_toml(
    ///     r#"
    ///     mtu = 1024
    ///     faults = ["tx data psn=#3 drop"]
    ///     [link]
    ///     rate = "5 Gb/s"
    ///     [cc]
    ///     algorithm = "dcqcn"
    ///     preset = "laptop"
    ///     "#,
    /// )?;
    /// assert_eq!(config.mtu, Some(rnic::Mtu::B1024));
    /// # Ok::<(), rnic::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// The text is not TOML, or has an unknown key, a value of the wrong kind, or values that contradict each other.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let at = |line, fault| ConfigError { path: None, line, fault };
        if let Some((line, fault)) = unknown_setting(text) {
            return Err(at(Some(line), fault));
        }
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| line_of(text, span.start));
            at(line, ConfigFault::Syntax(error.message().to_owned()))
        })?;
        let checked = config.link.at(&config.cc, config.mtu.unwrap_or(Mtu::B4096));
        checked.map_err(|error| at(find(text, error.word()), ConfigFault::Link(error)))?;
        Ok(config)
    }

    /// Reads a configuration file: see [`from_toml`](Self::from_toml).
    ///
    /// # Errors
    /// Those of `from_toml`, and an error if the file cannot be read or is empty.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let named = |error: ConfigError| ConfigError { path: Some(path.to_owned()), ..error };
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|error| {
            named(ConfigError { path: None, line: None, fault: ConfigFault::Read(error) })
        })?;
        if text.trim().is_empty() {
            return Err(named(ConfigError { path: None, line: None, fault: ConfigFault::Empty }));
        }
        Self::from_toml(&text).map_err(named)
    }
}

/// The line of the byte offset `at`.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// The line of the key `word` in a table.
fn find(text: &str, word: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let tables = table.get_ref().values().filter_map(|value| value.get_ref().as_table());
    let key = tables.flat_map(|t| t.keys()).find(|key| key.get_ref() == word)?;
    Some(line_of(text, key.span().start))
}

#[cfg(test)]
mod tests;
