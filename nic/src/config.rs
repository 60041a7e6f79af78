//! Configuration files.

use crate::DeviceConfig;
use crate::process::{EnvFault, HostAddress};
use cc::{Algorithm, known_settings};
use qp::{Mtu, PKey, ParseMtuError};
use rnic_core::link::{LinkConfig, LinkConfigError, size};
use serde::Deserialize;
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

/// A configuration file. Its keys are the fields of [`DeviceConfig`].
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    address: Option<Address>,
    scope_id: u32,
    mtu: Option<Bytes>,
    offload: Option<bool>,
    gso: Option<bool>,
    source_ports: Option<usize>,
    #[serde(deserialize_with = "size")]
    recv_buffer: Option<usize>,
    #[serde(deserialize_with = "size")]
    peer_window: Option<u32>,
    unacked_rate: Option<u64>,
    pkeys: Vec<u16>,
    faults: Vec<String>,
    fault_seed: u64,
    capture: Option<PathBuf>,
    foreign_cnp: bool,
    link: LinkConfig,
    cc: Algorithm,
}

impl Default for File {
    fn default() -> Self {
        let of = DeviceConfig::default();
        Self {
            address: of.address.map(|ip| Address(ip.into())),
            scope_id: of.scope_id,
            mtu: of.mtu.map(Bytes),
            offload: of.offload,
            gso: of.gso,
            source_ports: of.source_ports,
            recv_buffer: of.recv_buffer,
            peer_window: of.peer_window,
            unacked_rate: of.unacked_rate,
            pkeys: of.pkeys.iter().map(|pkey| pkey.0).collect(),
            faults: of.faults,
            fault_seed: of.fault_seed,
            capture: of.capture,
            foreign_cnp: of.foreign_cnp,
            link: of.link,
            cc: of.cc,
        }
    }
}

/// An address of the host, or an interface, as [`HostAddress`] reads it.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Address(HostAddress);

impl TryFrom<String> for Address {
    type Error = EnvFault;

    fn try_from(text: String) -> Result<Self, EnvFault> {
        text.parse().map(Self)
    }
}

/// A path MTU, in bytes.
#[derive(Deserialize)]
#[serde(try_from = "u32")]
struct Bytes(Mtu);

impl TryFrom<u32> for Bytes {
    type Error = ParseMtuError;

    fn try_from(bytes: u32) -> Result<Self, ParseMtuError> {
        Mtu::from_bytes(bytes).map(Self).ok_or_else(|| ParseMtuError(bytes.to_string()))
    }
}

/// The settings at the top of a file: the fields of [`File`].
const WORDS: &[&str] = &[
    "address",
    "scope_id",
    "mtu",
    "offload",
    "gso",
    "source_ports",
    "recv_buffer",
    "peer_window",
    "unacked_rate",
    "pkeys",
    "faults",
    "fault_seed",
    "capture",
    "foreign_cnp",
    "link",
    "cc",
];

/// The first unknown setting of a file, with its line. The settings of `[cc]` depend on the algorithm.
fn unknown_setting(text: &str) -> Option<(usize, ConfigFault)> {
    let table = DeTable::parse(text).ok()?;
    let top = table.get_ref();
    let link = top.get("link").and_then(|value| value.get_ref().as_table());
    let all = top.keys().map(|key| (key, WORDS));
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
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| line_of(text, span.start));
            at(line, ConfigFault::Syntax(error.message().to_owned()))
        })?;
        let File { link, cc, .. } = &file;
        let mtu = file.mtu.as_ref().map_or(Mtu::B4096, |mtu| mtu.0);
        link.at(cc, mtu).map_err(|error| at(find(text, error.word()), ConfigFault::Link(error)))?;
        let address = file.address.map(|address| address.0);
        // An address with an interface suffix needs no `scope_id`.
        let scope_id = address.map_or(0, |address| address.scope_id);
        Ok(Self {
            address: address.map(|address| address.ip),
            scope_id: if scope_id == 0 { file.scope_id } else { scope_id },
            mtu: file.mtu.map(|mtu| mtu.0),
            offload: file.offload,
            gso: file.gso,
            source_ports: file.source_ports,
            recv_buffer: file.recv_buffer,
            peer_window: file.peer_window,
            unacked_rate: file.unacked_rate,
            pkeys: file.pkeys.into_iter().map(PKey).collect(),
            faults: file.faults,
            fault_seed: file.fault_seed,
            capture: file.capture,
            foreign_cnp: file.foreign_cnp,
            link: file.link,
            cc: file.cc,
        })
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
