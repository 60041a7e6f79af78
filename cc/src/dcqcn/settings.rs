//! Settings, under NVIDIA's names and in NVIDIA's units where NVIDIA has one.

use super::fluid::{FixedPoint, Model, Saturation};
use crate::rate::Rate;
use crate::setting::{SettingError, names, parse};
use serde::{Deserialize, Serialize};
use time::Duration;

/// The unit of `rpg_byte_reset`. NVIDIA's text says bytes, but its range of 15 bits and the 2 MB that a maker of test
/// instruments gives as the default fit units of 64 bytes, and 32,767 bytes would expire every 2.6 us at 100 Gb/s
/// beside a timer of 300 us. Our reading.
pub const BYTE_RESET_UNIT: u64 = 64;

names! {
    /// When alpha is updated.
    AlphaUpdate {
        /// Raised by every CNP; lowered whenever no CNP came for `dce_tcp_rtt` since the last CNP or the last
        /// lowering. The paper.
        OnCnp = "on-cnp",
        /// Every `dce_tcp_rtt`, raised if a CNP came in that period, lowered if not. What NVIDIA's parameters
        /// describe, and the HPCC authors' simulator does.
        Periodic = "periodic",
    }
}

names! {
    /// Which alpha a cut uses, where alpha is raised by the same CNP (`alpha_update = "on-cnp"`).
    AlphaOrder {
        /// The old one: cut, then raise. The paper, and uet-htsim.
        CutThenRaise = "cut-then-raise",
        /// The new one: raise, then cut. The DCQCN authors' ns-3 code.
        RaiseThenCut = "raise-then-cut",
    }
}

names! {
    /// When increases of the target rate begin. T and BC are the numbers of expiries of the timer and the byte
    /// counter since the last cut, the present one included, F is `rpg_threshold`.
    FirstIncrease {
        /// F steps of fast recovery while max(T, BC) <= F, then additive; hyper when min(T, BC) > F, in steps of
        /// (min(T, BC) - F) x `rpg_hai_rate`. This is what the authors' fluid model counts, and uet-htsim.
        AfterThreshold = "after-threshold",
        /// F - 1 steps of fast recovery while max(T, BC) < F, then additive; hyper when min(T, BC) >= F, in steps of
        /// (min(T, BC) - F + 1) x `rpg_hai_rate`. The DCQCN authors' ns-3 code.
        AtThreshold = "at-threshold",
        /// F steps of fast recovery, one additive step, then hyper from then on in equal steps, whichever of the
        /// counters is ahead. The HPCC authors' simulator, which has the timer only.
        OneAdditive = "one-additive",
    }
}

/// The reaction point: the sender's part. `/sys/class/net/<if>/ecn/roce_rp/` of NVIDIA's driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reaction {
    /// Every CNP sets the target rate to the rate before the cut.
    pub clamp_tgt_rate: bool,
    /// Without `clamp_tgt_rate`: so does a CNP after an increase by the timer. If this is off too, only one after an
    /// increase by the byte counter does.
    pub clamp_tgt_rate_after_time_inc: bool,
    /// The increase timer (T of the paper), in microseconds; 0 for none.
    pub rpg_time_reset: u32,
    /// The byte counter (B of the paper), in units of 64 bytes ([`BYTE_RESET_UNIT`]); 0 for none.
    pub rpg_byte_reset: u32,
    /// Expiries of timer or byte counter that only recover the target rate (F of the paper).
    pub rpg_threshold: u32,
    /// The rate at which the limiter is released, in Mb/s; 0 for the rate of the port.
    pub rpg_max_rate: u32,
    /// The additive increase (R_AI), in Mb/s.
    pub rpg_ai_rate: u32,
    /// The hyper increase (R_HAI), in Mb/s; 0 for none: the increase stays additive (the authors' model has none).
    pub rpg_hai_rate: u32,
    /// The cut: rate x (1 - alpha x 2^10 / 2^rpg_gd). 11 makes it alpha / 2, as in the paper. This is not g.
    pub rpg_gd: u32,
    /// The least part of the rate that a cut leaves, in percent.
    pub rpg_min_dec_fac: u32,
    /// The lowest rate, in Mb/s.
    pub rpg_min_rate: u32,
    /// The rate that the first CNP sets instead of a cut, in Mb/s; 0 for a cut.
    pub rate_to_set_on_first_cnp: u32,
    /// The weight of alpha's past, in 1/1024: 1 - g of the paper.
    pub dce_tcp_g: u32,
    /// The period of alpha's updates (tau' of the paper), in microseconds.
    pub dce_tcp_rtt: u32,
    /// The least time between two cuts, in microseconds; 0 for none. A CNP that comes earlier cuts at its end.
    pub rate_reduce_monitor_period: u32,
    /// Alpha when the first CNP arrives, in 1/1024.
    pub initial_alpha_value: u32,
    /// When alpha is updated. (This and the following have no name with vendors.)
    pub alpha_update: AlphaUpdate,
    /// Which alpha a cut uses.
    pub alpha_order: AlphaOrder,
    /// When increases of the target rate begin.
    pub first_increase: FirstIncrease,
    /// At the first step after a cut, a target above ten times the rate is divided by eight, as QCN does and the
    /// DCQCN authors' ns-3 code.
    pub qcn_target_drop: bool,
}

impl Reaction {
    /// The increase timer; `None` if it is off.
    #[must_use]
    pub fn timer(&self) -> Option<Duration> {
        (self.rpg_time_reset > 0).then(|| Duration::from_micros(self.rpg_time_reset.into()))
    }

    /// The byte counter in bytes; `None` if it is off.
    #[must_use]
    pub fn byte_counter(&self) -> Option<u64> {
        (self.rpg_byte_reset > 0).then(|| u64::from(self.rpg_byte_reset) * BYTE_RESET_UNIT)
    }

    /// The gain of alpha (g of the paper).
    #[must_use]
    pub fn gain(&self) -> f64 {
        f64::from(1024 - self.dce_tcp_g.min(1024)) / 1024.0
    }

    /// The period of alpha's updates.
    #[must_use]
    pub fn alpha_period(&self) -> Duration {
        Duration::from_micros(self.dce_tcp_rtt.into())
    }

    /// The least time between two cuts.
    #[must_use]
    pub fn cut_period(&self) -> Duration {
        Duration::from_micros(self.rate_reduce_monitor_period.into())
    }
}

/// The notification point: the receiver's part. `/sys/class/net/<if>/ecn/roce_np/` of NVIDIA's driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notification {
    /// The least time between two CNPs for a flow (tau of the paper), in microseconds.
    pub min_time_between_cnps: u32,
    /// The DSCP of CNPs.
    pub cnp_dscp: u32,
    /// The priority of CNPs, where the link has priorities.
    pub cnp_802p_prio: u32,
    /// A mark that comes too early for a CNP is remembered: the CNP is sent when the time is over (uet-htsim).
    /// Otherwise it is forgotten (the paper).
    pub deferred_cnp: bool,
}

impl Notification {
    /// The least time between two CNPs for a flow.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_micros(self.min_time_between_cnps.into())
    }
}

/// The congestion point: the switch's part, RED on the length of the queue from which a packet departs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Red {
    /// Up to this length of the queue, in bytes, nothing is marked.
    pub kmin: u64,
    /// Up to this length, in bytes, the probability grows linearly; above it everything is marked.
    pub kmax: u64,
    /// The probability at `kmax`.
    pub pmax: f64,
}

impl Red {
    /// The probability that a packet departing from a queue of `bytes` is marked.
    #[must_use]
    pub fn probability(&self, bytes: f64) -> f64 {
        let (kmin, kmax) = (self.kmin as f64, self.kmax as f64);
        if bytes <= kmin {
            0.0
        } else if bytes > kmax {
            1.0
        } else {
            self.pmax * (bytes - kmin) / (kmax - kmin)
        }
    }
}

/// All settings of DCQCN. [`Preset::settings`](super::Preset::settings) creates them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The sender's part.
    pub roce_rp: Reaction,
    /// The receiver's part.
    pub roce_np: Notification,
    /// The part of the queue in between.
    pub red: Red,
}

/// Writes `Settings::set` and `Settings::WORDS` from the names of the fields, so that they cannot differ.
macro_rules! words {
    ($($part:ident: $($field:ident)*;)*) => {
        impl Settings {
            /// The words that [`Settings::set`] knows: the names of the fields.
            pub const WORDS: &[&str] = &[$($(stringify!($field),)*)*];

            /// Sets what `word` names to `value`, both as they stand in a configuration file or on a command line.
            ///
            /// # Errors
            ///
            /// The word is not one of [`Settings::WORDS`], or the value is not of its kind. Ranges are checked by
            /// [`Settings::check`].
            pub fn set(&mut self, word: &str, value: &str) -> Result<(), SettingError> {
                match word {
                    $($(stringify!($field) => self.$part.$field = parse(word, value)?,)*)*
                    _ => return Err(SettingError::Unknown { word: word.to_owned(), known: Self::WORDS }),
                }
                Ok(())
            }
        }
    };
}

words! {
    roce_rp: clamp_tgt_rate clamp_tgt_rate_after_time_inc rpg_time_reset rpg_byte_reset rpg_threshold rpg_max_rate
        rpg_ai_rate rpg_hai_rate rpg_gd rpg_min_dec_fac rpg_min_rate rate_to_set_on_first_cnp dce_tcp_g dce_tcp_rtt
        rate_reduce_monitor_period initial_alpha_value alpha_update alpha_order first_increase qcn_target_drop;
    roce_np: min_time_between_cnps cnp_dscp cnp_802p_prio deferred_cnp;
    red: kmin kmax pmax;
}

impl Settings {
    /// Whether `flows` flows with packets of `packet` bytes can rest at a port of rate `capacity`: where, by the fluid
    /// model.
    ///
    /// # Errors
    ///
    /// [`Saturation`]: more marks would be needed than the linear part of RED gives. Its text says what to change.
    pub fn check_flows(&self, capacity: Rate, packet: u32, flows: u32) -> Result<FixedPoint, Saturation> {
        Model::new(self, capacity, packet).fixed_point(flows)
    }

    /// Checks that every number is within its range and that they fit together.
    ///
    /// # Errors
    ///
    /// Names the word whose value is out of range, and the range.
    pub fn check(&self) -> Result<(), SettingError> {
        let (rp, np, red) = (&self.roce_rp, &self.roce_np, &self.red);
        let ranges = [
            // NVIDIA's range. Beyond it the phases would be hours long.
            ("rpg_threshold", rp.rpg_threshold, 0, 31),
            // 2^10 / 2^gd: 10 takes all of alpha off, 20 next to nothing.
            ("rpg_gd", rp.rpg_gd, 10, 20),
            ("rpg_min_dec_fac", rp.rpg_min_dec_fac, 1, 100),
            ("rpg_min_rate", rp.rpg_min_rate, 1, u32::MAX),
            ("dce_tcp_g", rp.dce_tcp_g, 0, 1024),
            ("dce_tcp_rtt", rp.dce_tcp_rtt, 1, u32::MAX),
            ("initial_alpha_value", rp.initial_alpha_value, 0, 1024),
            ("cnp_dscp", np.cnp_dscp, 0, 63),
            ("cnp_802p_prio", np.cnp_802p_prio, 0, 7),
        ];
        for (word, value, least, most) in ranges {
            SettingError::unless_between(word, value, least, most)?;
        }
        let fits = |word: &'static str, ok: bool, why: &'static str, value: String| {
            if ok { Ok(()) } else { Err(SettingError::OutOfRange { word, value, why: why.to_owned() }) }
        };
        fits("pmax", (0.0..=1.0).contains(&red.pmax), "the range is 0 to 1", red.pmax.to_string())?;
        fits("kmin", red.kmin <= red.kmax, "it must not exceed `kmax`", red.kmin.to_string())?;
        fits(
            "rpg_time_reset",
            rp.rpg_time_reset > 0 || rp.rpg_byte_reset > 0,
            "with `rpg_byte_reset` 0 as well, a rate that was cut would never recover",
            rp.rpg_time_reset.to_string(),
        )
    }
}
