//! DCTCP as a rate: for NICs that pace instead of keeping a window.
//!
//! Every round-trip time, the fraction F of marked bytes moves alpha: (1 - g) alpha + g F. The first mark of a
//! round-trip time cuts the rate by alpha / 2; one without marks adds a segment per round-trip time. The queue marks
//! everything above a threshold ([`Config::red`]). Alizadeh et al., SIGCOMM 2010; g = 1/16, the rate form, and the
//! threshold of 30 KB per 10 Gb/s are those of the HPCC authors' simulator.
//!
//! It needs to know which acknowledged packets were marked. Plain RoCEv2 acknowledgements do not carry that.

use crate::control::Ack;
use crate::dcqcn::Red;
use crate::rate::Rate;
use crate::setting::{SettingError, settable};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use time::Instant;

/// Six packets of 4 KiB, each 4222 bytes on Ethernet over IPv6. Our choice: a few packets, and less than the published
/// threshold at 10 Gb/s.
const LEAST_THRESHOLD: u64 = 6 * 4222;

/// Settings of DCTCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The weight of the latest round-trip time in alpha (g).
    pub ewma_gain: f64,
    /// The segment that each round-trip time without marks adds, in bytes.
    pub mss: u32,
    /// The lowest rate, in Mb/s. The default is NVIDIA's for DCQCN.
    pub min_rate: u32,
}

settable!(Config: ewma_gain mss min_rate);

impl Default for Config {
    fn default() -> Self {
        Self { ewma_gain: 1.0 / 16.0, mss: 1000, min_rate: 1 }
    }
}

impl Config {
    /// The marking that DCTCP wants at a port of rate `rate`: everything above 30 KB per 10 Gb/s, but not below six
    /// packets of 4 KiB. With a threshold of less than a packet every packet is marked, and flows starve.
    #[must_use]
    pub fn red(rate: Rate) -> Red {
        let threshold = ((rate.as_f64() / 10e9 * 30_000.0) as u64).max(LEAST_THRESHOLD);
        Red { kmin: threshold, kmax: threshold, pmax: 1.0 }
    }

    pub(crate) fn check(&self) -> Result<(), SettingError> {
        SettingError::unless_between("ewma_gain", self.ewma_gain, 0.0, 1.0)?;
        SettingError::unless_between("mss", self.mss, 1, u32::MAX)?;
        SettingError::unless_between("min_rate", self.min_rate, 1, u32::MAX)
    }
}

/// The rate of one flow.
#[derive(Clone, Debug)]
pub struct Dctcp {
    config: Arc<Config>,
    line: f64,
    rate: f64,
    alpha: f64,
    acked: u64,
    marked: u64,
    /// When the current round-trip time ends; `None` before the first acknowledgement.
    round_ends: Option<Instant>,
    /// No further cut until then.
    cut_until: Option<Instant>,
}

impl Dctcp {
    /// A flow at a port of rate `line`, at which it begins.
    #[must_use]
    pub const fn new(config: Arc<Config>, line: Rate) -> Self {
        Self {
            config,
            line: line.as_f64(),
            rate: line.as_f64(),
            alpha: 1.0,
            acked: 0,
            marked: 0,
            round_ends: None,
            cut_until: None,
        }
    }

    /// The rate at which the flow may send.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        Rate::from_bits_per_second(self.rate as u64)
    }

    /// The estimate of congestion.
    #[must_use]
    pub const fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Handles an acknowledgement. One without a round-trip time counts but ends no round.
    pub fn on_ack(&mut self, now: Instant, ack: &Ack) {
        self.acked = self.acked.saturating_add(ack.bytes);
        self.marked = self.marked.saturating_add(ack.marked.min(ack.bytes));
        let cut_recently = self.cut_until.is_some_and(|at| now < at);
        let Some(rtt) = ack.rtt else { return };
        if ack.marked > 0 && !cut_recently {
            let lowest = f64::from(self.config.min_rate) * 1e6;
            self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(lowest.min(self.line));
            self.cut_until = now.checked_add(rtt);
        }
        if self.round_ends.is_some_and(|at| now < at) || self.acked == 0 {
            return;
        }
        let fraction = self.marked as f64 / self.acked as f64;
        let gain = self.config.ewma_gain;
        // The first acknowledgement begins the first round.
        if self.round_ends.is_some() {
            self.alpha = (1.0 - gain) * self.alpha + gain * fraction;
            if self.marked == 0 && !cut_recently && !rtt.is_zero() {
                let segment = f64::from(self.config.mss) * 8.0 / rtt.as_secs_f64();
                self.rate = (self.rate + segment).min(self.line);
            }
        }
        (self.acked, self.marked) = (0, 0);
        self.round_ends = now.checked_add(rtt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Duration;

    const RTT: Duration = Duration::from_micros(10);

    fn flow() -> Dctcp {
        Dctcp::new(Arc::new(Config::default()), Rate::from_gbps(10))
    }

    /// One acknowledgement for each round-trip time, of which `marked` in 10 bytes are marked.
    fn rounds(flow: &mut Dctcp, start: Instant, range: std::ops::Range<u32>, marked: u64) {
        for n in range {
            let ack = Ack { bytes: 10_000, marked: marked * 1000, rtt: Some(RTT) };
            flow.on_ack(start + RTT * n, &ack);
        }
    }

    #[test]
    fn alpha_follows_the_marked_fraction() {
        let (mut flow, start) = (flow(), Instant::EPOCH);
        rounds(&mut flow, start, 0..200, 3);
        assert!((flow.alpha() - 0.3).abs() < 0.01, "{}", flow.alpha());
        rounds(&mut flow, start, 200..400, 0);
        assert!(flow.alpha() < 0.01, "{}", flow.alpha());
    }

    #[test]
    fn a_round_trip_time_cuts_once_or_adds_a_segment() {
        let (mut flow, start) = (flow(), Instant::EPOCH);
        let marked = Ack { bytes: 1000, marked: 1000, rtt: Some(RTT) };
        for us in 0..10 {
            flow.on_ack(start + Duration::from_micros(us), &marked);
        }
        assert_eq!(flow.rate(), Rate::from_gbps(5), "alpha begins at 1: half");
        let clear = Ack { marked: 0, ..marked };
        flow.on_ack(start + Duration::from_micros(10), &clear);
        assert_eq!(flow.rate(), Rate::from_gbps(5), "the round had marks");
        flow.on_ack(start + Duration::from_micros(20), &clear);
        // 8000 bits each 10 us.
        assert_eq!(flow.rate(), Rate::from_mbps(5800));
    }

    #[test]
    fn rates_stay_between_the_lowest_and_the_port_s() {
        let (mut flow, start) = (flow(), Instant::EPOCH);
        rounds(&mut flow, start, 0..100, 10);
        assert_eq!(flow.rate(), Rate::from_mbps(1));
        rounds(&mut flow, start, 100..100_000, 0);
        assert_eq!(flow.rate(), Rate::from_gbps(10));
    }

    #[test]
    fn odd_acknowledgements_are_harmless() {
        let (mut flow, start) = (flow(), Instant::EPOCH);
        for rtt in [None, Some(Duration::ZERO), Some(Duration::MAX)] {
            for (bytes, marked) in [(0, 0), (0, 1), (1, u64::MAX), (u64::MAX, 0)] {
                flow.on_ack(start, &Ack { bytes, marked, rtt });
                assert!(flow.rate() > Rate::default() && (0.0..=1.0).contains(&flow.alpha()));
            }
        }
    }
}
