//! Settings of load balancing.

use crate::words;
use serde::{Deserialize, Serialize};
use time::Duration;

/// How the switches of a fabric choose between equal ports.
///
/// In a file: `mode = "letflow"`, and the settings of that mode beside it. Times are text, such as `"100 us"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "kebab-case")]
pub enum BalanceConfig {
    /// The port that a hash of the flow selects (RFC 2992).
    Ecmp(Ecmp),
    /// As `ecmp`, with shares in proportion to weights.
    Weighted(Weighted),
    /// A random port for each flowlet (Vanini et al.: Let It Flow, NSDI 2017).
    Letflow(Letflow),
    /// The best port of the switch for each flowlet: the dynamic load balancing of switches that are on sale.
    Flowlet(Flowlet),
    /// The least congested way between two leaves for each flowlet (Alizadeh et al.: CONGA, SIGCOMM 2014).
    Conga(Conga),
    /// The best port for each flowlet, where the neighbour's ports behind it count too: global load balancing.
    Glb(Glb),
    /// The shortest of a few queues for each packet (Ghorbani et al.: DRILL, SIGCOMM 2017).
    Drill(Drill),
    /// Each packet another port, whatever waits there.
    Spray(Spray),
    /// The best port of the switch for each packet or flowlet: adaptive routing.
    Adaptive(Adaptive),
}

impl Default for BalanceConfig {
    fn default() -> Self {
        Self::Ecmp(Ecmp::default())
    }
}

impl BalanceConfig {
    /// The name of the mode, as in a file.
    #[must_use]
    pub const fn mode(&self) -> &'static str {
        match self {
            Self::Ecmp(_) => "ecmp",
            Self::Weighted(_) => "weighted",
            Self::Letflow(_) => "letflow",
            Self::Flowlet(_) => "flowlet",
            Self::Conga(_) => "conga",
            Self::Glb(_) => "glb",
            Self::Drill(_) => "drill",
            Self::Spray(_) => "spray",
            Self::Adaptive(_) => "adaptive",
        }
    }

    /// Whether all settings make sense.
    ///
    /// # Errors
    /// Names the first one that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self {
            Self::Ecmp(_) | Self::Letflow(_) | Self::Spray(_) => Ok(()),
            Self::Weighted(Weighted { weights })
                if !weights.is_empty() && weights.iter().all(|w| *w == 0) =>
            {
                Err(ConfigError::NoWeight)
            }
            Self::Weighted(_) => Ok(()),
            Self::Flowlet(flowlet) => flowlet.quality.check(),
            Self::Adaptive(adaptive) => adaptive.quality.check(),
            Self::Conga(conga) => conga.check(),
            Self::Glb(glb) if glb.interval.is_zero() => Err(ConfigError::Zero { setting: "interval" }),
            Self::Glb(glb) => glb.quality.check(),
            Self::Drill(Drill { samples: 0, memory: _ }) => Err(ConfigError::Zero { setting: "samples" }),
            Self::Drill(_) => Ok(()),
        }
    }
}

/// A setting of load balancing makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No port has a weight.
    #[error("all weights are 0; one at least must be greater")]
    NoWeight,
    /// A setting is 0.
    #[error("`{setting}` must be greater than 0")]
    Zero {
        /// Its name.
        setting: &'static str,
    },
    /// A setting is no power of two.
    #[error("`{setting}` must be a power of two")]
    NotPowerOfTwo {
        /// Its name.
        setting: &'static str,
    },
    /// A setting is out of its range.
    #[error("`{setting}` must be {range}")]
    OutOfRange {
        /// Its name.
        setting: &'static str,
        /// What it may be.
        range: &'static str,
    },
    /// The limits of levels do not rise.
    #[error("each limit of `{setting}` must be greater than the one before")]
    NotRising {
        /// The list of limits.
        setting: &'static str,
    },
}

/// Settings of `ecmp`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ecmp {
    /// Whose hash it is.
    pub seed: Seed,
    /// Whether the number of the destination queue pair is hashed too. Then a flow is a queue pair, even if several have
    /// the same UDP source port. RFC 2992 hashes addresses and ports only, so the default is `false`.
    pub qp: bool,
}

/// Whose hash a switch uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seed {
    /// Each switch has its own, as in the simulator of ConWeave, where it depends on the number of the switch.
    #[default]
    PerSwitch,
    /// All have the same one. Then flows that come together at one stage stay together at the next: the hash is polarised.
    Same,
}

/// Settings of `weighted`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Weighted {
    /// By port, its share of the flows; ports after the last have 1. Without any, the default, shares are in proportion
    /// to the rates of the ports.
    pub weights: Vec<u32>,
}

/// Settings of `letflow`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Letflow {
    /// A longer time between two packets is a gap. 100 us, as in the simulator of ConWeave.
    #[serde(with = "words::duration")]
    pub timeout: Duration,
    /// A flow is forgotten after this time without a packet. 2 ms, as in the simulator of ConWeave.
    #[serde(with = "words::duration")]
    pub ageing: Duration,
}

impl Default for Letflow {
    fn default() -> Self {
        Self { timeout: Duration::from_micros(100), ageing: Duration::from_millis(2) }
    }
}

/// Settings of `flowlet`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Flowlet {
    /// A longer time between two packets is a gap. Manuals of switches recommend 16 to 256 us; 64 us is in the middle.
    #[serde(with = "words::duration")]
    pub gap: Duration,
    /// A flow is forgotten after this time without a packet. 2 ms, as `letflow`.
    #[serde(with = "words::duration")]
    pub ageing: Duration,
    /// The levels of ports. The one with the lowest level of its queue is best, and among those the one with the lowest of
    /// its utilisation.
    pub quality: Quality,
}

impl Default for Flowlet {
    fn default() -> Self {
        Self { gap: Duration::from_micros(64), ageing: Duration::from_millis(2), quality: Quality::default() }
    }
}

/// How good a port is, in levels. Level 0 is the best; each limit that is reached adds one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Quality {
    /// Limits of the bytes that wait at a port. uet-htsim has 5, 10 and 20 percent of the port's buffer; the default has
    /// those of 100 packets of 4,150 bytes.
    #[serde(deserialize_with = "words::sizes")]
    pub queue: Vec<u64>,
    /// Limits of the share of a port's rate that is in use, in percent. 1, 15 and 50, as in uet-htsim.
    pub utilisation: Vec<u8>,
    /// The share is a mean over this time, or longer where no packet asked. 10 us: our choice, 30 packets of 4 KiB at
    /// 100 Gb/s.
    #[serde(with = "words::duration")]
    pub window: Duration,
}

impl Default for Quality {
    fn default() -> Self {
        Self {
            queue: vec![20_750, 41_500, 83_000],
            utilisation: vec![1, 15, 50],
            window: Duration::from_micros(10),
        }
    }
}

impl Quality {
    fn check(&self) -> Result<(), ConfigError> {
        if !self.queue.is_sorted_by(|a, b| a < b) {
            return Err(ConfigError::NotRising { setting: "queue" });
        }
        if !self.utilisation.is_sorted_by(|a, b| a < b) {
            return Err(ConfigError::NotRising { setting: "utilisation" });
        }
        if self.window.is_zero() { Err(ConfigError::Zero { setting: "window" }) } else { Ok(()) }
    }
}

/// Settings of `conga`. The defaults are those with which the simulator of ConWeave runs it, unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Conga {
    /// Estimates of a port's load shrink once in this time. 50 us.
    #[serde(with = "words::duration")]
    pub period: Duration,
    /// The part by which they shrink. 0.2.
    pub alpha: f64,
    /// Bits of a level of congestion: Q of the paper. 3, as in the paper.
    pub bits: u8,
    /// A longer time between two packets is a gap. 100 us.
    #[serde(with = "words::duration")]
    pub flowlet: Duration,
    /// What a leaf has told, and what it has to tell, is forgotten after this time, as are flows. 500 us.
    #[serde(with = "words::duration")]
    pub ageing: Duration,
}

impl Default for Conga {
    fn default() -> Self {
        Self {
            period: Duration::from_micros(50),
            alpha: 0.2,
            bits: 3,
            flowlet: Duration::from_micros(100),
            ageing: Duration::from_micros(500),
        }
    }
}

impl Conga {
    fn check(&self) -> Result<(), ConfigError> {
        if self.period.is_zero() {
            return Err(ConfigError::Zero { setting: "period" });
        }
        if !(self.alpha > 0.0 && self.alpha < 1.0) {
            return Err(ConfigError::OutOfRange { setting: "alpha", range: "between 0 and 1" });
        }
        let bits = (1..=8).contains(&self.bits);
        if bits { Ok(()) } else { Err(ConfigError::OutOfRange { setting: "bits", range: "from 1 to 8" }) }
    }
}

/// Settings of `glb`. Vendors publish no numbers: the defaults are our choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Glb {
    /// A switch sends a report to its neighbours once in this time. 50 us: a few round trips of a data centre.
    #[serde(with = "words::duration")]
    pub interval: Duration,
    /// A longer time between two packets is a gap. 64 us, as `flowlet`.
    #[serde(with = "words::duration")]
    pub gap: Duration,
    /// A flow is forgotten after this time without a packet. 2 ms, as `flowlet`.
    #[serde(with = "words::duration")]
    pub ageing: Duration,
    /// The levels of ports; the higher one of queue and utilisation counts. Eight, the 3 bits of CONGA: 10 KB doubled six
    /// times, and 1, 15, 30 and so on to 90 percent.
    pub quality: Quality,
}

impl Default for Glb {
    fn default() -> Self {
        let quality = Quality {
            queue: (0..7).map(|n| 10_000 << n).collect(),
            utilisation: vec![1, 15, 30, 45, 60, 75, 90],
            ..Quality::default()
        };
        Self {
            interval: Duration::from_micros(50),
            gap: Duration::from_micros(64),
            ageing: Duration::from_millis(2),
            quality,
        }
    }
}

/// Settings of `drill`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Drill {
    /// Random ports that a packet compares: d of the paper. 2, with which the paper's authors get most of the benefit.
    pub samples: u8,
    /// Ports that were the best for the destination before, and are compared as well: m of the paper. 1, likewise.
    pub memory: u8,
}

impl Default for Drill {
    fn default() -> Self {
        Self { samples: 2, memory: 1 }
    }
}

/// Settings of `spray`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Spray {
    /// In which order packets take the ports.
    pub order: Order,
    /// Packets of fewer bytes take the port of their flow's hash, so that acknowledgements do not use up turns. 128, as in
    /// uet-htsim.
    pub by_hash_below: u32,
}

impl Default for Spray {
    fn default() -> Self {
        Self { order: Order::default(), by_hash_below: 128 }
    }
}

/// The order of ports in `spray`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Each packet takes a random port.
    Random,
    /// Each port once in a round, in an order that is drawn anew for each round, as in uet-htsim.
    #[default]
    RoundRobin,
}

/// Settings of `adaptive`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Adaptive {
    /// What makes a port better than another. Among the best, one is random.
    pub compare: Compare,
    /// What the best port is chosen for.
    pub unit: Unit,
    /// A longer time between two packets of a flow is a gap between flowlets. 10 us, as in uet-htsim, where a flow that had
    /// a gap takes a better port with probability one half.
    #[serde(with = "words::duration")]
    pub gap: Duration,
    /// Compare two random ports instead of all. uet-htsim offers both; the default is `false`.
    pub two_choices: bool,
    /// Packets of fewer bytes take the port of their flow's hash. 100, as in uet-htsim.
    pub by_hash_below: u32,
    /// The levels of ports.
    pub quality: Quality,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self {
            compare: Compare::default(),
            unit: Unit::default(),
            gap: Duration::from_micros(10),
            two_choices: false,
            by_hash_below: 100,
            quality: Quality::default(),
        }
    }
}

/// What makes a port better than another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compare {
    /// The level of its queue.
    Queue,
    /// The level of its utilisation.
    Utilisation,
    /// Whether it may send the packet's class now; then its queue, then its utilisation.
    #[default]
    PauseFirst,
}

/// What a port is chosen for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A packet.
    #[default]
    Packet,
    /// A flowlet: the packets of a flow between two gaps.
    Flowlet,
}
