//! What can be set about a link.
//!
//! [`LinkConfig`] has the same words in three places. In a configuration file, as a table:
//!
//! ```toml
//! [link]
//! rate = "5 Gb/s"
//! buffer = "1 MB"
//! pfc = [3]
//! ```
//!
//! On a command line, behind the model and a colon, either of which may be missing:
//! `--link ethernet:rate=5Gb/s,buffer=1MB,pfc=3`. A piece without `=` continues the list before it, as in
//! `pfc=3,4,rate=5Gb/s`. In Rust, as fields:
//!
//! ```
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

use cc::Rate;
use cc::ets::{self, Tsa};
use cc::pfc::{Action, WatchdogConfig};
use cc::vl;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::time::Duration;
use words::{Word, from_file, in_words};

/// What kind of link it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Model {
    /// A port that drops what its buffer has no room for, or, for the priorities in `pfc`, stops its peers before.
    #[default]
    #[serde(rename = "ethernet")]
    Ethernet,
    /// A port that takes only what it gave credit for, for each of its virtual lanes: InfiniBand's.
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

/// The link of a port. Without any word it does nothing: packets come and go as fast as the host is.
///
/// Sizes are bytes, as text with a unit or without (`262144`, `200 KB`, `256 KiB`). What is counted is what a packet takes
/// on Ethernet: see [`wire_bytes`](super::wire_bytes).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkConfig {
    /// What kind of link it is.
    #[serde(deserialize_with = "from_file")]
    pub model: Model,
    /// The rate of the port, as in `5 Gb/s`: what arrives has passed a switch port of that rate, with its queue. `None`
    /// for a link as fast as the host, where nothing waits.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Bytes of the queue in front of the port, of all priorities together; lossless priorities have their own
    /// (`xoff` and `headroom`, for each peer). `None` for what the port carries in 1 ms, but at least four times `kmax`, if
    /// packets are marked, and two of the largest packets.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u64>,
    /// How long a packet is on the cable to this port, as in `10 us`, beyond the time that it takes anyway.
    #[serde(deserialize_with = "from_file", serialize_with = "in_words")]
    pub delay: Duration,
    /// How fast the receiver takes packets out of its socket: a slow one, as in `1 Gb/s`. They wait in the kernel's socket
    /// buffer and, where that is full, are lost (`socket_rx_overrun`). `None` for as fast as it can.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub receiver_rate: Option<Rate>,
    /// Up to this length of its queue, in bytes, no packet is marked as having met congestion. This, `kmax` and `pmax`
    /// take the place of what the congestion control says; without either nothing is marked.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub kmin: Option<u64>,
    /// Up to this length, in bytes, the probability of a mark grows linearly; above it every packet is marked.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub kmax: Option<u64>,
    /// The probability of a mark at `kmax`, 0 to 1.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub pmax: Option<f64>,
    /// The lossless priorities, 0 to 7: peers are told to pause before packets of these would be lost.
    #[serde(deserialize_with = "from_file")]
    pub pfc: Vec<u8>,
    /// Bytes from one peer in the queue, of one priority, above which it is told to pause. `None` for half of the buffer.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub xoff: Option<u64>,
    /// Bytes at which a peer that pauses may go on. `None` for a packet of the largest size less than `xoff`, as Linux'
    /// mlx5 driver sets it.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub xon: Option<u64>,
    /// Bytes beyond `xoff` for what arrives before the pause takes effect. `None` for what `rate`, `cable_m`, `delay` and
    /// the largest packet make necessary, and a peer that sends the train to its end that it has begun
    /// ([`cc::pfc::Span`], [`cc::train_bytes`]). A peer that is a program reacts when it gets to run: for
    /// 100 us at 5 Gb/s that takes 62,500 bytes more.
    #[serde(deserialize_with = "from_file", skip_serializing_if = "Option::is_none")]
    pub headroom: Option<u64>,
    /// The length of the cable in metres, for `headroom` only. The default of 200 m is 1 us, the time that a packet is on
    /// its way in a simulation.
    #[serde(deserialize_with = "from_file")]
    pub cable_m: u32,
    /// After how long a pause without a break, while packets wait, is a storm, in milliseconds: 100 to 5000.
    #[serde(deserialize_with = "from_file")]
    pub detection_time: u32,
    /// After how long without a pause the storm is over, in milliseconds: 100 to 60,000.
    #[serde(deserialize_with = "from_file")]
    pub restoration_time: u32,
    /// What happens to packets in a storm: `drop`, `forward` or `alert`.
    #[serde(deserialize_with = "from_file")]
    pub action: Action,
    /// How the port selects each priority, `strict` or `ets`, from priority 0 on; those that are not named are strict.
    #[serde(deserialize_with = "from_file")]
    pub tsa: [Tsa; ets::CLASSES],
    /// The share of each priority in percent, from priority 0 on; 0 for those that are strict or not named.
    #[serde(deserialize_with = "from_file")]
    pub tc_bw: [u8; ets::CLASSES],
    /// The virtual lane of each service level, from 0 on; those that are not named keep OpenSM's default. A service level
    /// on RoCE is the upper three bits of the DSCP. 15 drops; others are counted modulo `vls`.
    #[serde(deserialize_with = "from_file")]
    pub sl2vl: [u8; 16],
    /// The arbitration table of low priority. On a command line as OpenSM writes it: `0:64,1:32`.
    #[serde(deserialize_with = "from_file")]
    pub vlarb_low: Vec<vl::Entry>,
    /// The arbitration table of high priority.
    #[serde(deserialize_with = "from_file")]
    pub vlarb_high: Vec<vl::Entry>,
    /// What high priority may send before low priority gets its turn, in units of 4096 bytes; 255 for no limit.
    #[serde(deserialize_with = "from_file")]
    pub high_limit: u8,
    /// Data lanes, 1 to 15.
    #[serde(deserialize_with = "from_file")]
    pub vls: u8,
    /// After how many microseconds a port tells its credits again, if nothing changes. The default is our choice, and the most that
    /// is possible: 100 ms, a quarter of the time for which a limit holds, because a slow reader with many peers has to read all that,
    /// and because peers that wait for credit say so. InfiniBand, whose ports do not, has 262 us, which is what 65,536 symbols
    /// take on its slowest link, 2.5 Gb/s with ten bits to a symbol.
    #[serde(deserialize_with = "from_file")]
    pub fcp_period: u32,
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
            fcp_period: 100_000,
        }
    }
}

/// Writes `WORDS` and `set` from the names of the fields, so that they cannot differ.
macro_rules! words {
    ($($field:ident)*) => {
        impl LinkConfig {
            /// The words: the names of the fields.
            pub const WORDS: &[&str] = &[$(stringify!($field),)*];

            /// Sets what `word` names to `value`, as they stand on a command line.
            ///
            /// # Errors
            /// The word is not one of [`Self::WORDS`], or the value is not of its kind. What is out of range, or does not
            /// fit the others, [`check`](Self::check) says.
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
    action tsa tc_bw sl2vl vlarb_low vlarb_high high_limit vls fcp_period
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
    /// Sets what `text` says, as it stands on a command line: `ib-credits`, `ethernet:rate=5Gb/s,pfc=3`, or words alone,
    /// `rate=5Gb/s`. What it does not name stays as it is.
    ///
    /// # Errors
    /// As [`set`](Self::set). Words before the one at fault are set.
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

/// The error for a value that ends in a setting's name, as in `rate=5Gb/s,pfc`: the name was to begin another setting.
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
