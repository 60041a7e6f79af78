//! Swift: a window that follows the delay, with a target that depends on the window (Kumar et al., SIGCOMM 2020).
//!
//! An acknowledgement whose round-trip time is below the target adds `ai` packets per round-trip time; one above it takes
//! away a part in proportion to the excess, at most once per round-trip time. The target is that of the path, plus a term
//! that grows as the window shrinks, so that many flows at one queue do not all stop at the same delay
//! ([`Config::target`]). A window of less than a packet is a rate: one packet each round-trip time divided by the window.
//!
//! Parameters have the values of uet-htsim, whose author calls them guesses: the published ones are for Google's networks. The
//! base target has to fit the network. Unless one is set, it is twice the smallest round-trip time that the flow has measured,
//! because between processes of a host a fixed one of 20 us would stop every flow.
//!
//! What rnic measures is the time from the departure of a train to its acknowledgement. It includes what the peer takes to
//! answer; Swift subtracts that with timestamps of the peer's NIC, which RoCEv2 does not carry. There is one window, that of
//! the fabric; a slow host shows as delay.

use crate::control::Ack;
use crate::rate::Rate;
use crate::setting::{SettingError, settable};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use time::{Duration, Instant};

/// Settings of Swift.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Packets that a round-trip time below the target adds to the window.
    pub ai: f64,
    /// The strength of decreases.
    pub beta: f64,
    /// The largest part of the window that one decrease takes.
    pub max_mdf: f64,
    /// The target delay of a path without hops and of a large window, in microseconds; 0 for twice the smallest round-trip
    /// time that was measured.
    pub base_target: u32,
    /// What each hop adds to the target, in microseconds.
    pub hop_scale: f64,
    /// The hops of the paths.
    pub hops: u32,
    /// The most that a small window adds to the target, in microseconds; 0 for five times the base target.
    pub fs_range: u32,
    /// At this window, in packets, and below, all of it is added.
    pub fs_min_cwnd: f64,
    /// At this window, in packets, and above, nothing is added.
    pub fs_max_cwnd: f64,
    /// The smallest window, in packets.
    pub min_cwnd: f64,
    /// The largest window, in packets; flows begin with it.
    pub max_cwnd: f64,
    /// A packet on the wire, in bytes.
    pub mss: u32,
}

settable!(
    Config: ai beta max_mdf base_target hop_scale hops fs_range fs_min_cwnd fs_max_cwnd min_cwnd max_cwnd mss
);

impl Default for Config {
    fn default() -> Self {
        Self {
            ai: 1.0,
            beta: 0.8,
            max_mdf: 0.5,
            base_target: 0,
            // Of a base target of 20 us.
            hop_scale: 20.0 / 6.55,
            hops: 0,
            fs_range: 0,
            fs_min_cwnd: 0.1,
            fs_max_cwnd: 100.0,
            // 10 bytes of 4 KiB.
            min_cwnd: 0.0025,
            max_cwnd: 1000.0,
            mss: 4178,
        }
    }
}

/// The base target in smallest round-trip times, and what a small window adds, in base targets.
const BASE: f64 = 2.0;
const RANGE: f64 = 5.0;

impl Config {
    /// The target delay of a window of so many packets, in seconds. `rtt` is the smallest round-trip time, in seconds.
    #[must_use]
    pub fn target(&self, cwnd: f64, rtt: f64) -> f64 {
        let own = if self.base_target == 0 { BASE * rtt * 1e6 } else { self.base_target.into() };
        let range = if self.fs_range == 0 { RANGE * own } else { self.fs_range.into() };
        let base = own + self.hop_scale * f64::from(self.hops);
        let inverse = |cwnd: f64| 1.0 / cwnd.sqrt();
        let alpha = range / (inverse(self.fs_min_cwnd) - inverse(self.fs_max_cwnd));
        let more = alpha * (inverse(cwnd) - inverse(self.fs_max_cwnd));
        (base + more.clamp(0.0, range)) * 1e-6
    }

    /// The window at which a queue holds `flows` flows of one bottleneck of rate `capacity` at the target, in packets. `rtt` is
    /// the smallest round-trip time, in seconds. The flows fill the bottleneck for as long as the target lasts.
    #[must_use]
    pub fn resting_window(&self, capacity: Rate, flows: u32, rtt: f64) -> f64 {
        let packets = capacity.as_f64() / 8.0 / f64::from(self.mss) / f64::from(flows);
        // The target falls as the window grows, so the two meet once.
        let (mut low, mut high) = (self.min_cwnd, self.max_cwnd);
        for _ in 0..100 {
            let middle = f64::midpoint(low, high);
            if middle < packets * self.target(middle, rtt) { low = middle } else { high = middle }
        }
        low
    }

    pub(crate) fn check(&self) -> Result<(), SettingError> {
        SettingError::unless_between("ai", self.ai, 0.0, 1e6)?;
        SettingError::unless_between("beta", self.beta, 0.0, 1.0)?;
        SettingError::unless_between("max_mdf", self.max_mdf, 0.0, 1.0)?;
        SettingError::unless_between("hop_scale", self.hop_scale, 0.0, 1e6)?;
        SettingError::unless_between("fs_min_cwnd", self.fs_min_cwnd, 1e-6, self.fs_max_cwnd / 2.0)?;
        SettingError::unless_between("fs_max_cwnd", self.fs_max_cwnd, 1e-6, 1e9)?;
        SettingError::unless_between("min_cwnd", self.min_cwnd, 1e-6, self.max_cwnd)?;
        SettingError::unless_between("max_cwnd", self.max_cwnd, 1e-6, 1e9)?;
        SettingError::unless_between("mss", self.mss, 64, 65_535)
    }
}

/// After this many losses in a row, with nothing new acknowledged in between, the window drops to its minimum: the path or the
/// peer is gone.
const GONE: u32 = 5;

/// The round-trip time before one was measured, in microseconds: the base target of uet-htsim.
const FIRST_RTT: u32 = 20;

/// The window of one flow.
#[derive(Clone, Debug)]
pub struct Swift {
    config: Arc<Config>,
    line: Rate,
    /// In packets.
    cwnd: f64,
    /// The latest round-trip time, and the smallest, in seconds.
    rtt: f64,
    smallest: f64,
    /// No further decrease until then.
    cut_until: Option<Instant>,
    losses: u32,
}

impl Swift {
    /// A flow at a port of rate `line`.
    #[must_use]
    pub fn new(config: Arc<Config>, line: Rate) -> Self {
        let first = if config.base_target == 0 { FIRST_RTT } else { config.base_target };
        let (cwnd, rtt) = (config.max_cwnd, f64::from(first) * 1e-6);
        Self { config, line, cwnd, rtt, smallest: f64::INFINITY, cut_until: None, losses: 0 }
    }

    /// The window, in packets.
    #[must_use]
    pub const fn cwnd(&self) -> f64 {
        self.cwnd
    }

    /// The bytes that may be in flight: at least a packet.
    #[must_use]
    pub fn window(&self) -> u64 {
        (self.cwnd.max(1.0) * f64::from(self.config.mss)) as u64
    }

    /// The rate at which the flow may send: that of the port, or less with a window of less than a packet.
    #[must_use]
    pub fn rate(&self) -> Rate {
        if self.cwnd >= 1.0 || self.rtt <= 0.0 {
            return self.line;
        }
        let bits = self.cwnd * f64::from(self.config.mss) * 8.0 / self.rtt;
        self.line.min(Rate::from_bits_per_second(bits.max(1.0) as u64))
    }

    /// Handles an acknowledgement. Only those with a round-trip time change the window.
    pub fn on_ack(&mut self, now: Instant, ack: &Ack) {
        if ack.bytes > 0 {
            self.losses = 0;
        }
        let Some(rtt) = ack.rtt else { return };
        self.rtt = rtt.as_secs_f64();
        self.smallest = self.smallest.min(self.rtt);
        let config = &*self.config;
        let target = config.target(self.cwnd, self.smallest);
        let acked = ack.bytes as f64 / f64::from(config.mss);
        if self.rtt < target {
            self.cwnd += config.ai * acked / self.cwnd.max(1.0);
        } else if self.may_decrease(now) {
            let left = 1.0 - config.beta * (self.rtt - target) / self.rtt;
            self.decrease(now, left.max(1.0 - config.max_mdf));
        }
        self.clamp();
    }

    /// Something has to be sent again.
    pub fn on_loss(&mut self, now: Instant) {
        self.losses = self.losses.saturating_add(1);
        if self.losses >= GONE {
            self.cwnd = self.config.min_cwnd;
        } else if self.may_decrease(now) {
            self.decrease(now, 1.0 - self.config.max_mdf);
        }
        self.clamp();
    }

    fn may_decrease(&self, now: Instant) -> bool {
        self.cut_until.is_none_or(|at| now >= at)
    }

    fn decrease(&mut self, now: Instant, left: f64) {
        self.cwnd *= left;
        self.cut_until = now.checked_add(Duration::try_from_secs_f64(self.rtt).unwrap_or(Duration::MAX));
    }

    fn clamp(&mut self) {
        self.cwnd = self.cwnd.clamp(self.config.min_cwnd, self.config.max_cwnd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::from_gbps(100);

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn flow(cwnd: f64) -> Swift {
        let config = Config { base_target: 20, fs_range: 100, ..Config::default() };
        let mut flow = Swift::new(Arc::new(config), LINE);
        flow.cwnd = cwnd;
        flow
    }

    fn ack(packets: u64, rtt: u64) -> Ack {
        Ack { bytes: packets * 4178, marked: 0, rtt: Some(us(rtt)) }
    }

    #[test]
    fn a_small_window_has_a_longer_target() {
        let config = Config { base_target: 20, hops: 2, hop_scale: 3.0, fs_range: 100, ..Config::default() };
        let target = |cwnd: f64| (config.target(cwnd, 1.0) * 1e9).round() / 1e3;
        assert_eq!((target(100.0), target(5000.0)), (26.0, 26.0));
        assert_eq!((target(0.1), target(0.01)), (126.0, 126.0));
        // alpha is 100 / (1/sqrt(0.1) - 1/10), about 32.65.
        assert_eq!(target(1.0), 55.39);
    }

    #[test]
    fn without_a_base_target_it_is_twice_the_smallest_round_trip_time() {
        let config = Config::default();
        let target = |cwnd: f64| (config.target(cwnd, 50e-6) * 1e9).round() / 1e3;
        assert_eq!((target(100.0), target(0.1)), (100.0, 600.0));
        let mut flow = Swift::new(Arc::new(config), LINE);
        flow.on_ack(Instant::EPOCH, &ack(1, 1000));
        assert_eq!(flow.cwnd(), 1000.0, "below its target, whatever that is");
        flow.on_ack(Instant::EPOCH, &ack(1, 400));
        flow.on_ack(Instant::EPOCH, &ack(1, 801));
        assert!(flow.cwnd() < 1000.0);
    }

    #[test]
    fn the_window_grows_by_a_packet_a_round_trip_and_shrinks_with_the_excess() {
        let (mut flow, start) = (flow(100.0), Instant::EPOCH);
        flow.on_ack(start, &ack(100, 19));
        assert_eq!(flow.cwnd(), 101.0);
        // The target is 20 us: half of the delay is too much, times 0.8.
        flow.on_ack(start + us(1), &ack(1, 40));
        assert!((flow.cwnd() - 101.0 * 0.6).abs() < 1e-9, "{}", flow.cwnd());
        let after = flow.cwnd();
        flow.on_ack(start + us(40), &ack(1, 400));
        assert_eq!(flow.cwnd(), after, "once each round-trip time");
        flow.on_ack(start + us(41), &ack(1, 4000));
        assert_eq!(flow.cwnd(), after / 2.0, "at most half");
        flow.on_ack(start + us(42), &Ack { bytes: 4178, marked: 0, rtt: None });
        assert_eq!(flow.cwnd(), after / 2.0, "what was sent twice tells nothing");
    }

    #[test]
    fn a_window_of_less_than_a_packet_is_a_rate() {
        let mut flow = flow(0.5);
        assert_eq!((flow.window(), flow.rate() < LINE), (4178, true));
        flow.on_ack(Instant::EPOCH, &ack(0, 50));
        // Half a packet in 50 us.
        assert!((flow.rate().as_f64() - 0.5 * 4178.0 * 8.0 / 50e-6).abs() < 2.0);
        flow.on_ack(Instant::EPOCH, &ack(1, 50));
        assert_eq!((flow.cwnd(), flow.rate()), (1.5, LINE), "a packet for each, below one");
    }

    #[test]
    fn losses_in_a_row_leave_the_smallest_window() {
        let (mut flow, start) = (flow(64.0), Instant::EPOCH);
        flow.on_loss(start);
        assert_eq!(flow.cwnd(), 32.0);
        flow.on_loss(start + us(1));
        assert_eq!(flow.cwnd(), 32.0, "the same round-trip time");
        for n in 1..=3 {
            flow.on_loss(start + us(100 * n));
        }
        assert_eq!(flow.cwnd(), Config::default().min_cwnd);
        flow.on_ack(start + us(500), &ack(1, 10));
        flow.on_loss(start + us(600));
        assert!(flow.cwnd() > 0.4, "an acknowledgement came: {}", flow.cwnd());
    }

    #[test]
    fn odd_acknowledgements_are_harmless() {
        let mut flow = flow(10.0);
        for rtt in [Duration::ZERO, Duration::MAX] {
            for bytes in [0, 1, u64::MAX] {
                flow.on_ack(Instant::EPOCH, &Ack { bytes, marked: bytes, rtt: Some(rtt) });
                assert!(flow.cwnd().is_finite() && flow.window() > 0 && flow.rate() > Rate::default());
            }
        }
    }
}
