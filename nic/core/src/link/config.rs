//! The settings of a link.
//!
//! [`LinkConfig`] has the same settings in three places. In a configuration file, as a table:
//!
//! ```toml
//! [link]
//! rate = "5 Gb/s"
//! buffer = "1 MB"
//! pfc = [3]
//! ```
//!
//! On a command line, after the model and a colon, both of which are optional:
//! `--link ethernet:rate=5Gb/s,buffer=1MB,pfc=3`. An item without `=` continues the list before it, as in
//! `pfc=3,4,rate=5Gb/s`. [`cc::quantity`] lists the spellings of sizes, rates and times. In Rust, as fields:
//!
//! ```
//! # use rnic_core as rnic;
//! use rnic::cc::Rate;
//! use rnic::link::LinkConfig;
//!
//! let link = LinkConfig { rate: Some(Rate::from_gbps(5)), buffer: Some(1_000_000), pfc: vec![3], ..LinkConfig::default() };
//! assert_eq!("ethernet:rate=5Gb/s,buffer=1MB,pfc=3".parse(), Ok(link));
//! ```

mod error;
mod profile;
#[cfg(test)]
mod tests;
mod words;

pub use error::LinkConfigError;
pub use profile::{HOST_RATE, LARGEST_HEADERS, LinkProfile};
pub use words::size;

use cc::Rate;
use cc::ets::{self, Tsa};
use cc::pfc::{Action, WatchdogConfig};
use cc::vl;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use time::Duration;
use words::{Word, as_text, from_file};

/// The kind of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Model {
    /// A port that drops packets when its buffer is full. For the priorities in `pfc` it pauses its peers before.
    #[default]
    #[serde(rename = "ethernet")]
    Ethernet,
    /// A port as on InfiniBand, which receives only what it has granted credits for on each virtual lane.
    #[serde(rename = "ib-credits")]
    IbCredits,
}

impl Model {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Ethernet, Self::IbCredits];

    /// The name in configuration files and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "ethernet",
            Self::IbCredits => "ib-credits",
        }
    }
}

impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The link of a port. By default it emulates nothing: packets pass as fast as the host can process them.
///
/// Sizes count bytes, and as text have a unit or none (`262144`, `200 KB`, `256 KiB`). A packet counts with its size on
/// Ethernet: see [`wire_bytes`](super::wire_bytes).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkConfig {
    /// The kind of link.
    #[serde(deserialize_with = "from_file")]
    pub model: Model,
    /// The rate of the port, such as `5 Gb/s`. Packets pass the queue of a switch port of that rate before they arrive.
    /// `None` for a link as fast as the host, without a queue.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Bytes of the queue in front of the port, of all priorities together; lossless priorities have their own
    /// (`xoff` and `headroom`, for each peer). `None` for what the port carries in 1 ms, but at least four times
    /// `kmax` if packets are marked, 1 MB with congestion control, and two of the largest packets.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u64>,
    /// The additional delay of packets to this port, such as `10 us`.
    #[serde(deserialize_with = "from_file", serialize_with = "as_text")]
    pub delay: Duration,
    /// The rate at which a slow receiver reads its socket, such as `1 Gb/s`. Packets wait in the kernel's socket
    /// buffer and are lost when that is full (`socket_rx_overrun`). `None` for no limit.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub receiver_rate: Option<Rate>,
    /// The length of the queue, in bytes, up to which no packet is marked as having met congestion. This, `kmax` and
    /// `pmax` override the values of the congestion control; without either nothing is marked.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub kmin: Option<u64>,
    /// The length, in bytes, up to which the probability of a mark grows linearly. Above it every packet is marked.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub kmax: Option<u64>,
    /// The probability of a mark at `kmax`, 0 to 1.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub pmax: Option<f64>,
    /// The lossless priorities, 0 to 7. Peers must pause before packets of these would be lost.
    #[serde(deserialize_with = "from_file")]
    pub pfc: Vec<u8>,
    /// Bytes from one peer in the queue, of one priority, above which the peer is told to pause. `None` for half of
    /// the buffer, but at most half of what a peer has in flight by default (186,368 bytes): a peer whose window
    /// waits in the queue is paused.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub xoff: Option<u64>,
    /// The number of bytes at which a paused peer may resume. `None` for `xoff` minus one packet of the largest size,
    /// as in Linux' mlx5 driver.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub xon: Option<u64>,
    /// Bytes beyond `xoff`, for each peer, for packets that arrive before the pause takes effect.
    ///
    /// A peer that is a program reacts when it gets to run. So on sockets the bound is not a time: link credit limits
    /// the data of peers in flight to what the receive buffer of the socket holds, and the headroom has room for all
    /// of it. That is the default, and a smaller headroom is refused: a lossless priority loses nothing.
    ///
    /// A simulation accepts any headroom, so that a lab can show the effect of too little. The default there covers
    /// what `rate`, `cable_m`, `delay` and the largest packet require for a peer that finishes its train
    /// ([`cc::pfc::Span`], [`cc::train_bytes`]), and two windows that a peer may send at once.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub headroom: Option<u64>,
    /// The length of the cable in metres, for `headroom` only. The default of 200 m is 1 us, the transit time of a
    /// packet in a simulation.
    #[serde(deserialize_with = "from_file")]
    pub cable_m: u32,
    /// The time in milliseconds after which an uninterrupted pause with packets waiting is a storm: 100 to 5000.
    #[serde(deserialize_with = "from_file")]
    pub detection_time: u32,
    /// The time in milliseconds without a pause after which a storm is over: 100 to 60,000.
    #[serde(deserialize_with = "from_file")]
    pub restoration_time: u32,
    /// The treatment of packets in a storm: `drop`, `forward` or `alert`.
    #[serde(deserialize_with = "from_file")]
    pub action: Action,
    /// The selection of each priority, `strict` or `ets`, from priority 0 on. The default is `strict`.
    #[serde(deserialize_with = "from_file")]
    pub tsa: [Tsa; ets::CLASSES],
    /// The share of each priority in percent, from priority 0 on. It is 0 for strict priorities.
    #[serde(deserialize_with = "from_file")]
    pub tc_bw: [u8; ets::CLASSES],
    /// The virtual lane of each service level, from 0 on. Service levels that are not named keep OpenSM's default. On
    /// RoCE the service level is the upper three bits of the DSCP. Lane 15 drops packets; other lanes are modulo
    /// `vls`.
    #[serde(deserialize_with = "from_file")]
    pub sl2vl: [u8; 16],
    /// The arbitration table of low priority. On a command line as OpenSM writes it: `0:64,1:32`.
    #[serde(deserialize_with = "from_file")]
    pub vlarb_low: Vec<vl::Entry>,
    /// The arbitration table of high priority.
    #[serde(deserialize_with = "from_file")]
    pub vlarb_high: Vec<vl::Entry>,
    /// The amount that high priority may send before low priority has its turn, in units of 4096 bytes; 255 for no
    /// limit.
    #[serde(deserialize_with = "from_file")]
    pub high_limit: u8,
    /// The number of data lanes, 1 to 15.
    #[serde(deserialize_with = "from_file")]
    pub vls: u8,
}

impl Default for LinkConfig {
    fn default() -> Self {
        let (watchdog, ets, vl) = (WatchdogConfig::default(), ets::Config::default(), vl::Config::default());
        Self {
            model: Model::Ethernet,
            rate: None,
            buffer: None,
            delay: Duration::ZERO,
            receiver_rate: None,
            kmin: None,
            kmax: None,
            pmax: None,
            pfc: Vec::new(),
            xoff: None,
            xon: None,
            headroom: None,
            cable_m: 200,
            detection_time: watchdog.detection_time,
            restoration_time: watchdog.restoration_time,
            action: watchdog.action,
            tsa: ets.tsa,
            tc_bw: ets.tc_bw,
            sl2vl: vl.sl2vl,
            vlarb_low: vl.vlarb_low,
            vlarb_high: vl.vlarb_high,
            high_limit: vl.high_limit,
            vls: 1,
        }
    }
}

/// Derives `WORDS` and `set` from the names of the fields, so that they agree.
macro_rules! words {
    ($($field:ident)*) => {
        impl LinkConfig {
            /// The names of the settings, which are those of the fields.
            pub const WORDS: &[&str] = &[$(stringify!($field),)*];

            /// Sets the setting `word` to `value`, both as on a command line.
            ///
            /// # Errors
            /// The setting does not exist, or the value is not of its kind. [`check`](Self::check) validates ranges
            /// and the combination of settings.
            pub fn set(&mut self, word: &str, value: &str) -> Result<(), LinkConfigError> {
                match word {
                    $(stringify!($field) => self.$field = read(word, value)?,)*
                    _ => return Err(LinkConfigError::Unknown { word: word.to_owned(), known: Self::WORDS }),
                }
                Ok(())
            }
        }
    };
}

words! {
    model rate buffer delay receiver_rate kmin kmax pmax pfc xoff xon headroom cable_m detection_time restoration_time
    action tsa tc_bw sl2vl vlarb_low vlarb_high high_limit vls
}

fn read<T: Word>(word: &str, value: &str) -> Result<T, LinkConfigError> {
    let value = value.trim();
    T::parse(value).map_err(|why| LinkConfigError::Malformed {
        word: word.to_owned(),
        value: value.to_owned(),
        why,
    })
}

impl LinkConfig {
    /// Applies settings as on a command line: `ib-credits`, `ethernet:rate=5Gb/s,pfc=3`, or without a model,
    /// `rate=5Gb/s`. Settings that are not named keep their values.
    ///
    /// # Errors
    /// As [`set`](Self::set). Settings before the one at fault are applied.
    pub fn apply(&mut self, text: &str) -> Result<(), LinkConfigError> {
        let (model, settings) = match text.split_once(':') {
            Some((model, settings)) if !model.contains('=') => (model.trim(), settings),
            // The colon is part of a value, as in `vlarb_low=0:64`.
            Some(_) => ("", text),
            None if text.contains('=') => ("", text),
            None => (text.trim(), ""),
        };
        if !model.is_empty() {
            self.set("model", model)?;
        }
        let mut rest = settings.trim_matches([',', ' ']);
        while !rest.is_empty() {
            let Some((word, value)) = rest.split_once('=') else {
                return Err(LinkConfigError::NoValue { word: rest.to_owned() });
            };
            // The value goes up to the comma before the next word.
            let end = match value.find('=') {
                Some(next) => value[..next].rfind(',').unwrap_or(next),
                None => value.len(),
            };
            self.set(word.trim(), &value[..end])
                .map_err(|error| without_value(&value[..end]).unwrap_or(error))?;
            rest = value[end..].trim_matches([',', ' ']);
        }
        Ok(())
    }
}

/// The error for a value that ends in a setting's name, as in `rate=5Gb/s,pfc`: the name was meant to begin another
/// setting.
fn without_value(value: &str) -> Option<LinkConfigError> {
    let (_, last) = value.rsplit_once(',')?;
    let word = last.trim().to_owned();
    LinkConfig::WORDS.contains(&word.as_str()).then_some(LinkConfigError::NoValue { word })
}

impl FromStr for LinkConfig {
    type Err = LinkConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut config = Self::default();
        config.apply(text)?;
        Ok(config)
    }
}
