//! TIMELY: the rate follows the round-trip time and its gradient.
//!
//! The original (Mittal et al., SIGCOMM 2015) reacts to the gradient of the round-trip time alone while that is
//! between two thresholds: it has no fixed point, so flows may stay unequal indefinitely. The patched form (Zhu et
//! al., CoNEXT 2016) adds the distance from the lower threshold, and rests where the queue holds
//! `q' + N delta q' / (beta C)` with `q' = C t_low` ([`Config::resting_queue`]).
//!
//! Parameters and rules are those of the CoNEXT paper's sources. An update uses one sample, once a segment has been
//! acknowledged and `min_rtt` has passed since the last update.

use crate::control::Ack;
use crate::rate::Rate;
use crate::setting::{SettingError, names, settable};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use time::{Duration, Instant};

names! {
    /// The variant of TIMELY.
    Variant {
        /// As published: between the thresholds only the gradient counts.
        Original = "original",
        /// With the distance from `t_low`: it has a fixed point.
        Patched = "patched",
    }
}

/// Settings of TIMELY.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The variant.
    pub variant: Variant,
    /// The weight of the latest difference of round-trip times.
    pub alpha: f64,
    /// The strength of decreases: 0.8 for the original, 0.008 for the patched form.
    pub beta: f64,
    /// Below this round-trip time the rate always increases, in microseconds.
    pub t_low: u32,
    /// Above this round-trip time the rate always decreases, in microseconds.
    pub t_high: u32,
    /// The round-trip time of an empty network, in microseconds: the unit of gradients, and the least time between two
    /// updates.
    pub min_rtt: u32,
    /// The additive increase, in Mb/s.
    pub delta: u32,
    /// After this many updates in a row without a growing round-trip time, the original adds this many times delta.
    pub hai_after: u32,
    /// Bytes that are acknowledged between two updates: 16 to 64 KB.
    pub segment: u32,
    /// The rate at which flows begin, in Mb/s; 0 for the rate of the port.
    pub start_rate: u32,
    /// The lowest rate, in Mb/s. The default is NVIDIA's for DCQCN.
    pub min_rate: u32,
}

settable!(Config: variant alpha beta t_low t_high min_rtt delta hai_after segment start_rate min_rate);

impl Default for Config {
    fn default() -> Self {
        Self {
            variant: Variant::Patched,
            alpha: 0.875,
            beta: 0.008,
            t_low: 50,
            t_high: 500,
            min_rtt: 20,
            delta: 10,
            hai_after: 5,
            segment: 16_000,
            start_rate: 0,
            min_rate: 1,
        }
    }
}

impl Config {
    /// The original with its own beta.
    #[must_use]
    pub fn original() -> Self {
        Self { variant: Variant::Original, beta: 0.8, ..Self::default() }
    }

    /// The queue at which `flows` flows of the patched form rest at a port of rate `capacity`, in bytes, where the
    /// round-trip time is all queueing.
    #[must_use]
    pub fn resting_queue(&self, capacity: Rate, flows: u32) -> f64 {
        let threshold = capacity.as_f64() / 8.0 * f64::from(self.t_low) * 1e-6;
        let more = f64::from(flows) * f64::from(self.delta) * 1e6 / (self.beta * capacity.as_f64());
        threshold * (1.0 + more)
    }

    pub(crate) fn check(&self) -> Result<(), SettingError> {
        SettingError::unless_between("alpha", self.alpha, 0.0, 1.0)?;
        SettingError::unless_between("beta", self.beta, 0.0, 1.0)?;
        SettingError::unless_between("t_low", self.t_low, 1, self.t_high)?;
        SettingError::unless_between("min_rtt", self.min_rtt, 1, u32::MAX)?;
        SettingError::unless_between("min_rate", self.min_rate, 1, u32::MAX)
    }
}

/// An update leaves at least this part of the rate: otherwise a single odd sample would stop a flow. Our choice.
const LEAST_LEFT: f64 = 0.5;

/// The rate of one flow.
#[derive(Clone, Debug)]
pub struct Timely {
    config: Arc<Config>,
    line: f64,
    rate: f64,
    /// The latest round-trip time that an update used, in seconds.
    previous: Option<f64>,
    /// The smoothed difference of round-trip times, in seconds.
    difference: f64,
    /// Updates in a row without a growing round-trip time.
    calm: u32,
    acked: u64,
    next_update: Option<Instant>,
}

impl Timely {
    /// A flow at a port of rate `line`.
    #[must_use]
    pub fn new(config: Arc<Config>, line: Rate) -> Self {
        let rate = match config.start_rate {
            0 => line,
            mbps => line.min(Rate::from_mbps(mbps.into())),
        };
        Self {
            config,
            line: line.as_f64(),
            rate: rate.as_f64(),
            previous: None,
            difference: 0.0,
            calm: 0,
            acked: 0,
            next_update: None,
        }
    }

    /// The rate at which the flow may send.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        Rate::from_bits_per_second(self.rate as u64)
    }

    /// The gradient of the round-trip time: its smoothed difference, in units of `min_rtt`.
    #[must_use]
    pub fn gradient(&self) -> f64 {
        self.difference / (f64::from(self.config.min_rtt) * 1e-6)
    }

    /// Handles an acknowledgement. Only those with a round-trip time update the rate.
    pub fn on_ack(&mut self, now: Instant, ack: &Ack) {
        self.acked = self.acked.saturating_add(ack.bytes);
        let Some(rtt) = ack.rtt else { return };
        if self.acked < u64::from(self.config.segment) || self.next_update.is_some_and(|at| now < at) {
            return;
        }
        self.acked = 0;
        self.next_update = now.checked_add(Duration::from_micros(self.config.min_rtt.into()));
        let rtt = rtt.as_secs_f64();
        if let Some(previous) = self.previous.replace(rtt) {
            let weight = self.config.alpha;
            self.difference = (1.0 - weight) * self.difference + weight * (rtt - previous);
            self.update(rtt);
        }
    }

    fn update(&mut self, rtt: f64) {
        let config = &*self.config;
        let (low, high) = (f64::from(config.t_low) * 1e-6, f64::from(config.t_high) * 1e-6);
        let delta = f64::from(config.delta) * 1e6;
        let gradient = self.gradient();
        self.calm = if rtt <= high && gradient <= 0.0 { self.calm.saturating_add(1) } else { 0 };
        let (left, added) = if rtt < low {
            (1.0, delta)
        } else if rtt > high {
            (1.0 - config.beta * (1.0 - high / rtt), 0.0)
        } else {
            match config.variant {
                Variant::Original if gradient <= 0.0 => {
                    let hyper = config.hai_after > 0 && self.calm >= config.hai_after;
                    (1.0, delta * if hyper { f64::from(config.hai_after) } else { 1.0 })
                }
                Variant::Original => (1.0 - config.beta * gradient, 0.0),
                Variant::Patched => {
                    let weight = (2.0 * gradient + 0.5).clamp(0.0, 1.0);
                    let error = (rtt - low) / low;
                    (1.0 - config.beta * weight * error, delta * (1.0 - weight))
                }
            }
        };
        let lowest = (f64::from(config.min_rate) * 1e6).min(self.line);
        self.rate = (self.rate * left.max(LEAST_LEFT) + added).clamp(lowest, self.line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::from_gbps(10);

    /// The rate in Mb/s after each of the given round-trip times in microseconds, of a flow that begins at 1 Gb/s.
    fn rates(config: Config, rtts: &[u64]) -> Vec<f64> {
        let mut flow = Timely::new(Arc::new(Config { start_rate: 1000, ..config }), LINE);
        let mut now = Instant::EPOCH;
        let mut seen = Vec::new();
        for rtt in rtts {
            now += Duration::from_millis(1);
            flow.on_ack(now, &Ack { bytes: 16_000, marked: 0, rtt: Some(Duration::from_micros(*rtt)) });
            seen.push((flow.rate().as_mbps() * 100.0).round() / 100.0);
        }
        seen
    }

    #[test]
    fn the_original_follows_thresholds_and_gradient() {
        assert_eq!(rates(Config::original(), &[40, 45, 49]), [1000.0, 1010.0, 1020.0], "below t_low");
        // 1 - 0.8 (1 - 500/1000).
        assert_eq!(rates(Config::original(), &[600, 1000])[1], 600.0, "above t_high");
        // The difference of 10 us, smoothed, is 0.875 x 10 / 20 of min_rtt.
        assert_eq!(rates(Config::original(), &[100, 110])[1], 650.0, "growing");
        assert_eq!(
            rates(Config::original(), &[100; 8]),
            [1000.0, 1010.0, 1020.0, 1030.0, 1040.0, 1090.0, 1140.0, 1190.0],
            "steady: five times as fast from the fifth update on"
        );
        assert_eq!(rates(Config::original(), &[100, 400])[1], 500.0, "no update takes more than half");
    }

    #[test]
    fn the_patched_form_weighs_the_distance_from_the_threshold() {
        // Gradient 0: weight 1/2; 100 us is one t_low too much: 10/2 + 1000 (1 - 0.008 / 2).
        assert_eq!(rates(Config::default(), &[100, 100])[1], 1001.0);
        // A falling round-trip time has no weight, a growing one full weight.
        assert_eq!(rates(Config::default(), &[110, 100])[1], 1010.0);
        assert_eq!(rates(Config::default(), &[90, 100])[1], 992.0);
    }

    #[test]
    fn updates_wait_for_a_segment_and_for_the_least_round_trip_time() {
        let mut flow = Timely::new(Arc::new(Config { start_rate: 1000, ..Config::default() }), LINE);
        let start = Instant::EPOCH;
        let ack = Ack { bytes: 8_000, marked: 0, rtt: Some(Duration::from_micros(30)) };
        let mut changes = Vec::new();
        let mut before = flow.rate();
        for us in 0..100 {
            flow.on_ack(start + Duration::from_micros(us), &ack);
            if flow.rate() != before {
                changes.push(us);
                before = flow.rate();
            }
        }
        // The first sample, at 1 us, has no predecessor.
        assert_eq!(changes, [21, 41, 61, 81]);
        let no_rtt = Ack { rtt: None, ..ack };
        flow.on_ack(start + Duration::from_millis(1), &no_rtt);
        assert_eq!(flow.rate(), before);
    }

    #[test]
    fn the_resting_queue_is_that_of_the_formula() {
        // q' = 62.5 KB; two flows add 2 x 10 Mb/s / (0.008 x 10 Gb/s) of it.
        assert!((Config::default().resting_queue(LINE, 2) - 78_125.0).abs() < 1e-6);
    }

    #[test]
    fn rates_stay_between_the_lowest_and_the_port_s() {
        assert_eq!(rates(Config { t_high: 60, ..Config::original() }, &[1_000_000; 100])[99], 1.0);
        assert_eq!(rates(Config::default(), &[1; 1000])[999], 10_000.0);
        assert_eq!(rates(Config::default(), &[0, u64::from(u32::MAX), 0]).len(), 3);
    }
}
