//! Published sets of parameters, and one for laptops.

use super::settings::{
    AlphaOrder, AlphaUpdate, BYTE_RESET_UNIT, FirstIncrease, Notification, Reaction, Red, Settings,
};
use crate::rate::Rate;
use crate::setting::{SettingError, Value, names, pairs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::str::FromStr;

names! {
    /// A set of parameters with a name.
    Preset {
        /// What the authors of DCQCN recommend for ports of 40 Gb/s (SIGCOMM 2015; the tables and MATLAB files of
        /// their CoNEXT 2016 paper): RED from 5 to 200 KB and 1 %, tau 50 us, tau' and T 55 us, B 10 MB, F 5,
        /// g 1/256, R_AI 40 Mb/s, no hyper increase. It holds up to 14 flows at 40 Gb/s, 37 at 100 Gb/s. The lowest
        /// rate, 1 Mb/s, is NVIDIA's default: the authors name none.
        Paper = "paper",
        /// The first attempt with the parameters of QCN and DCTCP, to see why the recommended ones differ: T 1.5 ms,
        /// B 150 KB, g 1/16, R_AI 5 Mb/s, R_HAI 50 Mb/s, lowest rate 100 Mb/s are the defaults of the authors' ns-3
        /// code. That it marks everything above 40 KB and nothing below is our choice: we found no source to open.
        PaperStrawman = "paper-strawman",
        /// The sample configuration of the authors' ns-3 code (`mix/config.txt`): RED from 40 to 1000 KB and 100 %,
        /// T 60 us, B 300 MB, R_HAI 200 Mb/s, lowest rate 100 Mb/s; alpha begins at 1/2 and is raised before the cut.
        /// Left out: that hyper increase halves the timer and the byte counter.
        Ns3Rdma = "ns3-rdma",
        /// The `dcqcn` configuration of the HPCC authors' ns-3 code (`run.py`), modelled on NVIDIA's firmware: no byte
        /// counter, F 1, T 300 us, R_AI 5 and R_HAI 50 Mb/s and RED from 100 to 400 KB and 20 % for each 25 Gb/s of
        /// the port, lowest rate 1 Gb/s (here at most a tenth of the port's).
        HpccSim = "hpcc-sim",
        /// The defaults of NVIDIA's firmware, as `mlxconfig query` shows them on recent adapters; defaults of old ones
        /// differ. Our choices, for what has no default there: queues mark as in `hpcc-sim`, and the target rate rises
        /// after F steps as in the paper.
        Nvidia = "nvidia",
        /// For emulated links of 1 to 10 Gb/s between programs on a laptop. See [`Preset::settings`].
        Laptop = "laptop",
    }
}

/// The lowest rate to which RED of the HPCC authors is scaled. Below it `kmin` would be less than five packets of 4
/// KiB. Our choice.
const LEAST_RED_RATE: Rate = Rate::from_gbps(5);

/// RED as the HPCC authors set it: 100 and 400 KB for each 25 Gb/s, 20 %.
fn red_of_hpcc(rate: Rate) -> Red {
    let rate = rate.max(LEAST_RED_RATE);
    let scaled = |kilobytes: u64| (kilobytes as f64 * 1000.0 * rate.as_f64() / 25e9).round() as u64;
    Red { kmin: scaled(100), kmax: scaled(400), pmax: 0.2 }
}

/// NVIDIA's defaults for the receiver.
const NOTIFICATION: Notification =
    Notification { min_time_between_cnps: 4, cnp_dscp: 48, cnp_802p_prio: 6, deferred_cnp: false };

/// Bytes in units of the byte counter.
const fn byte_reset(bytes: u64) -> u32 {
    bytes.div_ceil(BYTE_RESET_UNIT) as u32
}

const PAPER: Reaction = Reaction {
    clamp_tgt_rate: true,
    clamp_tgt_rate_after_time_inc: true,
    rpg_time_reset: 55,
    rpg_byte_reset: byte_reset(10_000_000),
    rpg_threshold: 5,
    rpg_max_rate: 0,
    rpg_ai_rate: 40,
    rpg_hai_rate: 0,
    rpg_gd: 11,
    rpg_min_dec_fac: 50,
    rpg_min_rate: 1,
    rate_to_set_on_first_cnp: 0,
    dce_tcp_g: 1020,
    dce_tcp_rtt: 55,
    rate_reduce_monitor_period: 0,
    initial_alpha_value: 1024,
    alpha_update: AlphaUpdate::OnCnp,
    alpha_order: AlphaOrder::CutThenRaise,
    first_increase: FirstIncrease::AfterThreshold,
    qcn_target_drop: false,
};

const NVIDIA: Reaction = Reaction {
    clamp_tgt_rate: false,
    clamp_tgt_rate_after_time_inc: true,
    rpg_time_reset: 300,
    rpg_byte_reset: 32_767,
    rpg_threshold: 1,
    rpg_ai_rate: 5,
    rpg_hai_rate: 50,
    dce_tcp_g: 1019,
    dce_tcp_rtt: 1,
    rate_reduce_monitor_period: 4,
    initial_alpha_value: 1023,
    alpha_update: AlphaUpdate::Periodic,
    ..PAPER
};

impl Preset {
    /// The rate of the ports that the parameters were published for; `None` if they follow the rate of the port.
    const fn made_for(self) -> Option<Rate> {
        match self {
            Self::Paper | Self::PaperStrawman | Self::Ns3Rdma => Some(Rate::from_gbps(40)),
            Self::HpccSim | Self::Nvidia => Some(Rate::from_gbps(25)),
            Self::Laptop => None,
        }
    }

    /// A caveat about the preset at a port of rate `rate`; `None` if it suits the port.
    ///
    /// Parameters are assumed to suit ports of at least a quarter of the rate that they were published for.
    #[must_use]
    pub fn advice(self, rate: Rate) -> Option<String> {
        if self == Self::PaperStrawman {
            return Some(
                "preset paper-strawman shows how parameters that do not fit behave: its flows swing, and leave up to a \
                 third of the port unused; preset=paper has those that are recommended"
                    .to_owned(),
            );
        }
        let made_for = self.made_for()?;
        (rate.bits_per_second() < made_for.bits_per_second() / 4).then(|| {
            format!(
                "preset {self} is made for ports of {made_for} whose NICs react within microseconds; programs share a port \
                 of {rate} better with preset=laptop"
            )
        })
    }

    /// The parameters, for a port of rate `rate`.
    ///
    /// # The laptop preset
    ///
    /// The paper's parameters are for 40 Gb/s and a control loop of microseconds. Where they rest depends only on the
    /// rate that each flow gets, and below 2.7 Gb/s the port would have to mark more than RED's 1 % (see
    /// [`Model::fixed_point`](super::fluid::Model::fixed_point)): at 1 to 10 Gb/s the queue would swing around `kmax`
    /// instead of resting below it. The preset differs in three things.
    ///
    /// * Time: tau, tau' and T are ten times the paper's, because a loop through two operating systems takes tens to
    ///   hundreds of microseconds where the paper's takes 4.
    /// * Amounts: B, R_AI and RED's lengths grow with the rate of the port, so that ports of any rate behave alike.
    ///   B is what the port carries in 20 ms, which is the paper's 2 ms in that longer time. R_AI is a 500th of the
    ///   port, twice the paper's share: T is ten times as long, and flows that start late would wait otherwise.
    /// * RED: `kmin` is 0.5 ms and `kmax` 2.5 ms of the port's rate (62.5 and 312.5 KB at 1 Gb/s), `pmax` 20 %. A sender
    ///   that waited for a core sends what it missed in a burst; `kmin` leaves room for that. Up to 16 flows rest in the
    ///   linear part of RED at 1 to 10 Gb/s, with packets of 1 to 4 KiB. By the fluid model the queue rests there, and does
    ///   not swing, if the loop takes 100 us.
    ///
    /// A late flow comes within 10 % of its share in 0.4 s: ten times the paper's time scale.
    #[must_use]
    pub fn settings(self, rate: Rate) -> Settings {
        match self {
            Self::Paper => Settings {
                roce_rp: PAPER,
                roce_np: Notification { min_time_between_cnps: 50, ..NOTIFICATION },
                red: Red { kmin: 5_000, kmax: 200_000, pmax: 0.01 },
            },
            Self::PaperStrawman => Settings {
                roce_rp: Reaction {
                    rpg_time_reset: 1500,
                    rpg_byte_reset: byte_reset(150_000),
                    rpg_ai_rate: 5,
                    rpg_hai_rate: 50,
                    rpg_min_rate: 100,
                    dce_tcp_g: 960,
                    ..PAPER
                },
                roce_np: Notification { min_time_between_cnps: 50, ..NOTIFICATION },
                red: Red { kmin: 40_000, kmax: 40_000, pmax: 1.0 },
            },
            Self::Ns3Rdma => Settings {
                roce_rp: Reaction {
                    rpg_time_reset: 60,
                    rpg_byte_reset: byte_reset(300_000_000),
                    rpg_hai_rate: 200,
                    rpg_min_rate: 100,
                    initial_alpha_value: 512,
                    alpha_order: AlphaOrder::RaiseThenCut,
                    first_increase: FirstIncrease::AtThreshold,
                    qcn_target_drop: true,
                    ..PAPER
                },
                roce_np: Notification { min_time_between_cnps: 50, ..NOTIFICATION },
                red: Red { kmin: 40_000, kmax: 1_000_000, pmax: 1.0 },
            },
            Self::HpccSim => {
                let scaled = |mbps: f64| (mbps * rate.as_f64() / 25e9).round().max(1.0) as u32;
                Settings {
                    roce_rp: Reaction {
                        rpg_byte_reset: 0,
                        rpg_ai_rate: scaled(5.0),
                        rpg_hai_rate: scaled(50.0),
                        rpg_min_rate: (rate.as_mbps() / 10.0).clamp(1.0, 1000.0) as u32,
                        dce_tcp_g: 1020,
                        initial_alpha_value: 1024,
                        first_increase: FirstIncrease::OneAdditive,
                        ..NVIDIA
                    },
                    roce_np: Notification { min_time_between_cnps: 0, ..NOTIFICATION },
                    red: red_of_hpcc(rate),
                }
            }
            Self::Nvidia => Settings { roce_rp: NVIDIA, roce_np: NOTIFICATION, red: red_of_hpcc(rate) },
            Self::Laptop => laptop(rate),
        }
    }
}

/// See [`Preset::settings`].
fn laptop(rate: Rate) -> Settings {
    let bytes_per_second = rate.as_f64() / 8.0;
    Settings {
        roce_rp: Reaction {
            rpg_time_reset: 550,
            rpg_byte_reset: byte_reset((bytes_per_second * 0.02) as u64).max(1),
            rpg_ai_rate: (rate.as_mbps() / 500.0).round().max(1.0) as u32,
            dce_tcp_rtt: 550,
            ..PAPER
        },
        roce_np: Notification { min_time_between_cnps: 500, ..NOTIFICATION },
        red: Red {
            kmin: (bytes_per_second * 0.5e-3) as u64,
            kmax: (bytes_per_second * 2.5e-3) as u64,
            pmax: 0.2,
        },
    }
}

/// A preset and the differences from it: how to choose DCQCN.
///
/// In a configuration file a table with `preset` and any of [`Settings::WORDS`]; on a command line the same words
/// with commas between them: `preset=paper,rpg_ai_rate=10`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Where to start from.
    #[serde(default = "paper")]
    pub preset: Preset,
    /// The settings that differ.
    #[serde(flatten)]
    pub different: BTreeMap<String, Value>,
}

const fn paper() -> Preset {
    Preset::Paper
}

impl Options {
    /// A preset without changes.
    #[must_use]
    pub const fn new(preset: Preset) -> Self {
        Self { preset, different: BTreeMap::new() }
    }

    /// Sets one word differently.
    #[must_use]
    pub fn with(mut self, word: &str, value: impl Into<Value>) -> Self {
        self.different.insert(word.to_owned(), value.into());
        self
    }

    /// The settings for a port of rate `rate`.
    ///
    /// # Errors
    ///
    /// A word does not exist, or a value does not suit it.
    pub fn settings(&self, rate: Rate) -> Result<Settings, SettingError> {
        let mut settings = self.preset.settings(rate);
        for (word, value) in &self.different {
            settings.set(word, &value.to_string())?;
        }
        settings.check()?;
        Ok(settings)
    }
}

impl FromStr for Options {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut options = Self::new(Preset::Paper);
        for pair in pairs(text) {
            let (word, value) = pair?;
            if word == "preset" {
                options.preset = value.parse()?;
            } else if Settings::WORDS.contains(&word) {
                options = options.with(word, value);
            } else {
                return Err(SettingError::Unknown { word: word.to_owned(), known: Settings::WORDS });
            }
        }
        Ok(options)
    }
}
