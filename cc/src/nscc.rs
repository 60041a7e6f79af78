//! NSCC: the sender-based congestion control of Ultra Ethernet, a window that follows marks and delay together.
//!
//! An acknowledgement is in one of four cases. No mark and little delay: the window grows in proportion to what is left up to the
//! target delay, or fast if there has been no queue for a whole window. No mark, but delay: the queue is new, and all
//! flows grow by the same. A mark and delay: once per round-trip time the window shrinks with the average delay. A mark and
//! little delay: the queue drains already, and nothing changes. Where that is too slow, because more than
//! four targets were measured or something was lost, quick adapt sets the window to what arrived in the last
//! round-trip time.
//!
//! Rules and parameters are those of uet-htsim, whose values are for 100 Gb/s and 12 us, and are scaled with the
//! bandwidth-delay product. The marks of an acknowledgement are those that DCTCP returns too.

use crate::control::Ack;
use crate::dcqcn::Red;
use crate::rate::Rate;
use crate::setting::{SettingError, settable};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use time::{Duration, Instant};

/// The network for which the constants are: its rate in bits a second, and its round-trip time in seconds.
const REFERENCE: (f64, f64) = (100e9, 12e-6);

/// Settings of NSCC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The round-trip time of the network when nothing is queued, in microseconds: with the rate of the port it gives the
    /// bandwidth-delay product.
    pub rtt: u32,
    /// The target of the queueing delay, in round-trip times: 0.75 where switches trim packets instead of dropping them.
    pub target: f64,
    /// The largest window, in bandwidth-delay products; flows begin with it.
    pub max_window: f64,
    /// The strength of decreases.
    pub gamma: f64,
    /// The weight of the latest delay in the average.
    pub delay_gain: f64,
    /// A packet on the wire, in bytes.
    pub mss: u32,
}

settable!(Config: rtt target max_window gamma delay_gain mss);

impl Default for Config {
    fn default() -> Self {
        Self { rtt: 12, target: 1.0, max_window: 1.5, gamma: 0.8, delay_gain: 0.0125, mss: 4178 }
    }
}

impl Config {
    /// The bandwidth-delay product at a port, in bytes.
    #[must_use]
    pub fn bdp(&self, line: Rate) -> f64 {
        line.as_f64() / 8.0 * f64::from(self.rtt) * 1e-6
    }

    /// The marking that NSCC wants: RED from 0.2 to 0.8 of the bandwidth-delay product, as in uet-htsim. Below a few packets it
    /// would mark all of them.
    #[must_use]
    pub fn red(&self, line: Rate) -> Red {
        let least = 4.0 * f64::from(self.mss);
        let kmin = (0.2 * self.bdp(line)).max(least);
        Red { kmin: kmin as u64, kmax: (0.8 * self.bdp(line)).max(2.0 * kmin) as u64, pmax: 1.0 }
    }

    pub(crate) fn check(&self) -> Result<(), SettingError> {
        SettingError::unless_between("rtt", self.rtt, 1, 1_000_000)?;
        SettingError::unless_between("target", self.target, 0.01, 100.0)?;
        SettingError::unless_between("max_window", self.max_window, 0.01, 1000.0)?;
        SettingError::unless_between("gamma", self.gamma, 0.0, 1.0)?;
        SettingError::unless_between("delay_gain", self.delay_gain, 0.0, 1.0)?;
        SettingError::unless_between("mss", self.mss, 64, 65_535)
    }
}

/// A queueing delay below which there is no queue, in seconds.
const NO_QUEUE: f64 = 1e-6;

/// The most that a decrease leaves out.
const LEAST_LEFT: f64 = 0.5;

/// Increases are applied after so many packets.
const UPDATE_AFTER: f64 = 8.0;

/// The constants of a flow, scaled with its network.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// The bandwidth-delay product in units of the reference's.
    bdp: f64,
    /// The target delay, in seconds.
    target: f64,
    /// The proportional increase, in bytes for each second below the target.
    alpha: f64,
    /// The fair increase, and that of each round-trip time, in bytes.
    fair: f64,
    eta: f64,
}

/// The window of one flow.
#[derive(Clone, Debug)]
pub struct Nscc {
    config: Arc<Config>,
    line: Rate,
    scale: Scale,
    largest: f64,
    /// In bytes.
    cwnd: f64,
    /// The smallest round-trip time that was measured, in seconds.
    base: f64,
    average: f64,
    /// Increases that are not applied yet, in bytes x bytes; and the bytes that were acknowledged meanwhile.
    increase: f64,
    since_update: f64,
    /// Bytes that were acknowledged without a queue, in a row.
    without_queue: f64,
    /// What arrived since the last look of quick adapt, and when it looks next.
    achieved: f64,
    adapt_at: Option<Instant>,
    /// Something was lost, or waited for too long, since then.
    is_bad: bool,
    /// Acknowledgements of these bytes were on their way when quick adapt acted: they say nothing new.
    ignore: f64,
    /// When the window may shrink again, and when it grows by `eta`.
    cut_until: Option<Instant>,
    eta_at: Option<Instant>,
}

fn seconds(time: f64) -> Duration {
    Duration::try_from_secs_f64(time).unwrap_or(Duration::MAX)
}

impl Nscc {
    /// A flow at a port of rate `line`.
    #[must_use]
    pub fn new(config: Arc<Config>, line: Rate) -> Self {
        let mss = f64::from(config.mss);
        let rtt = f64::from(config.rtt) * 1e-6;
        let bdp = config.bdp(line) / (REFERENCE.0 / 8.0 * REFERENCE.1);
        let target = rtt * config.target;
        let longer = target / REFERENCE.1;
        let scale = Scale {
            bdp,
            target,
            alpha: 4.0 * mss * bdp * longer / target,
            fair: 5.0 * mss * bdp,
            eta: 0.15 * mss * bdp,
        };
        let largest = (config.bdp(line) * config.max_window).max(mss);
        Self {
            config,
            line,
            scale,
            largest,
            cwnd: largest,
            base: rtt,
            average: 0.0,
            increase: 0.0,
            since_update: 0.0,
            without_queue: 0.0,
            achieved: 0.0,
            adapt_at: None,
            is_bad: false,
            ignore: 0.0,
            cut_until: None,
            eta_at: None,
        }
    }

    /// The bytes that may be in flight: at least a packet.
    #[must_use]
    pub const fn window(&self) -> u64 {
        self.cwnd as u64
    }

    /// The rate at which the flow may send: that of the port.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.line
    }

    /// The smoothed queueing delay, in seconds.
    #[must_use]
    pub const fn average_delay(&self) -> f64 {
        self.average
    }

    /// Handles an acknowledgement. One without a round-trip time counts as arrived, and changes nothing else.
    pub fn on_ack(&mut self, now: Instant, ack: &Ack) {
        let acked = ack.bytes as f64;
        self.achieved += acked;
        let Some(rtt) = ack.rtt.map(|rtt| rtt.as_secs_f64()) else { return };
        self.base = self.base.min(rtt.max(NO_QUEUE));
        let (delay, marked) = ((rtt - self.base).max(0.0), ack.marked > 0);
        let sample = if !marked && delay > self.scale.target { self.base / 4.0 } else { delay };
        self.average += self.config.delay_gain * (sample - self.average);
        self.is_bad |= delay > 4.0 * self.scale.target;
        if self.quick_adapt(now) {
            return;
        }
        if self.ignore > 0.0 {
            self.ignore -= acked;
            return;
        }
        self.without_queue = if delay < NO_QUEUE && !marked { self.without_queue + acked } else { 0.0 };
        match (marked, delay >= self.scale.target) {
            (false, true) => self.increase += self.scale.fair * acked,
            (false, false) if self.without_queue > self.cwnd => self.cwnd += 0.25 * self.scale.bdp * acked,
            (false, false) => self.increase += self.scale.alpha * acked * (self.scale.target - delay),
            (true, true) => self.decrease(now),
            (true, false) => {}
        }
        self.apply(now, acked);
    }

    /// Something has to be sent again.
    pub fn on_loss(&mut self, now: Instant) {
        self.is_bad = true;
        self.cwnd -= f64::from(self.config.mss);
        self.quick_adapt(now);
        self.clamp();
    }

    /// Each round-trip time with a full queue: if things went badly and next to nothing arrived, the window is what did.
    fn quick_adapt(&mut self, now: Instant) -> bool {
        let next = now.checked_add(seconds(self.base + self.scale.target));
        let Some(at) = self.adapt_at else {
            self.adapt_at = next;
            return false;
        };
        if now < at {
            return false;
        }
        self.adapt_at = next;
        let (achieved, is_bad) = (std::mem::take(&mut self.achieved), std::mem::take(&mut self.is_bad));
        if !is_bad || achieved >= self.largest / 8.0 {
            return false;
        }
        self.ignore = self.cwnd;
        self.cwnd = achieved;
        (self.increase, self.since_update, self.without_queue) = (0.0, 0.0, 0.0);
        self.clamp();
        true
    }

    fn decrease(&mut self, now: Instant) {
        if self.cut_until.is_some_and(|at| now < at) || self.average <= self.scale.target {
            return;
        }
        let left = 1.0 - self.config.gamma * (self.average - self.scale.target) / self.average;
        self.cwnd *= left.max(LEAST_LEFT);
        self.cut_until = now.checked_add(seconds(self.base));
    }

    /// Applies the increases, from time to time.
    fn apply(&mut self, now: Instant, acked: f64) {
        self.since_update += acked;
        let eta_at = *self.eta_at.get_or_insert(now);
        let is_round = now >= eta_at;
        if self.since_update >= UPDATE_AFTER * f64::from(self.config.mss) || is_round {
            self.cwnd += self.increase / self.cwnd;
            (self.increase, self.since_update) = (0.0, 0.0);
        }
        if is_round {
            self.cwnd += self.scale.eta;
            self.eta_at = now.checked_add(seconds(self.base));
        }
        self.clamp();
    }

    fn clamp(&mut self) {
        self.cwnd = self.cwnd.clamp(f64::from(self.config.mss), self.largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::from_gbps(100);

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    /// A flow at 100 Gb/s whose window is `cwnd` bytes, and which has measured a round-trip time of 12 us.
    fn flow(cwnd: f64) -> Nscc {
        let mut flow = Nscc::new(Arc::new(Config::default()), LINE);
        flow.cwnd = cwnd;
        flow.on_ack(Instant::EPOCH, &ack(0, false, 12));
        flow.cwnd = cwnd;
        flow
    }

    fn ack(packets: u64, marked: bool, rtt: u64) -> Ack {
        let bytes = packets * 4178;
        Ack { bytes, marked: if marked { bytes.max(1) } else { 0 }, rtt: Some(us(rtt)) }
    }

    #[test]
    fn a_flow_begins_with_one_and_a_half_bandwidth_delay_products() {
        let flow = Nscc::new(Arc::new(Config::default()), LINE);
        assert_eq!((flow.window(), flow.rate()), (225_000, LINE));
        assert!((flow.scale.bdp - 1.0).abs() < 1e-12 && (flow.scale.fair - 20_890.0).abs() < 1e-6);
        let slow = Nscc::new(Arc::new(Config { rtt: 24, ..Config::default() }), Rate::from_gbps(25));
        assert!((slow.scale.bdp - 0.5).abs() < 1e-12, "half the reference's product");
    }

    #[test]
    fn little_delay_adds_in_proportion_to_what_is_left() {
        let mut flow = flow(100_000.0);
        flow.on_ack(Instant::EPOCH + us(1), &ack(8, false, 18));
        // alpha is 4 packets for the whole target; half of it is left.
        let acked = 8.0 * 4178.0;
        assert!((flow.cwnd - (100_000.0 + 2.0 * 4178.0 * acked / 100_000.0)).abs() < 1.0, "{}", flow.cwnd);
    }

    #[test]
    fn delay_without_a_mark_adds_the_same_to_all() {
        let mut flow = flow(100_000.0);
        flow.on_ack(Instant::EPOCH + us(1), &ack(8, false, 30));
        assert!((flow.cwnd - (100_000.0 + 20_890.0 * 8.0 * 4178.0 / 100_000.0)).abs() < 1.0, "{}", flow.cwnd);
    }

    #[test]
    fn marks_and_delay_shrink_once_a_round_trip_and_marks_alone_do_not() {
        let mut flow = flow(100_000.0);
        flow.on_ack(Instant::EPOCH + us(1), &ack(1, true, 20));
        assert_eq!(flow.window(), 100_000, "it drains already");
        flow.average = 24e-6;
        flow.on_ack(Instant::EPOCH + us(2), &ack(1, true, 36));
        // Twice the target: 1 - 0.8 / 2.
        assert!((flow.cwnd - 60_000.0).abs() < 10.0, "{}", flow.cwnd);
        let after = flow.cwnd;
        flow.on_ack(Instant::EPOCH + us(13), &ack(1, true, 36));
        assert!(flow.cwnd >= after, "once each round-trip time");
    }

    #[test]
    fn without_a_queue_for_a_window_it_grows_fast() {
        let mut flow = flow(20_000.0);
        for n in 0..6 {
            flow.on_ack(Instant::EPOCH + us(n), &ack(1, false, 12));
        }
        assert!(flow.cwnd > 21_000.0, "a quarter of what arrives: {}", flow.cwnd);
    }

    #[test]
    fn quick_adapt_sets_the_window_to_what_arrived() {
        let (mut flow, start) = (flow(225_000.0), Instant::EPOCH);
        flow.on_ack(start + us(1), &ack(2, true, 200));
        assert!(flow.cwnd > 200_000.0, "not before its time");
        flow.on_ack(start + us(25), &ack(1, true, 200));
        assert_eq!(flow.window(), 3 * 4178);
        flow.on_ack(start + us(26), &ack(1, true, 300));
        assert_eq!(flow.window(), 3 * 4178, "what was on its way says nothing");
        // 225,000 bytes were on their way, and these are some of them.
        (0..40).for_each(|n| flow.on_ack(start + us(27 + n / 2), &ack(1, false, 12)));
        assert_eq!(flow.window(), 3 * 4178, "as many as the old window had");
        (0..20).for_each(|_| flow.on_ack(start + us(48), &ack(1, false, 12)));
        assert!(flow.window() > 3 * 4178, "and no more than those");
        let mut lost = Nscc::new(Arc::new(Config::default()), LINE);
        lost.on_loss(start);
        lost.on_loss(start + us(30));
        assert_eq!(lost.window(), 4178, "nothing arrived: one packet");
    }

    #[test]
    fn quick_adapt_leaves_a_flow_alone_of_which_much_arrived_or_which_fares_well() {
        for (packets, marked, rtt) in [(8, true, 200), (1, false, 12)] {
            let (mut flow, start) = (flow(225_000.0), Instant::EPOCH);
            flow.on_ack(start + us(1), &ack(1, marked, rtt));
            flow.on_ack(start + us(25), &ack(packets, marked, rtt));
            assert!(flow.ignore == 0.0 && flow.cwnd > 100_000.0, "{packets} packets: {}", flow.cwnd);
        }
    }

    #[test]
    fn only_what_met_neither_a_queue_nor_a_mark_counts_towards_fast_growth() {
        for (marked, rtt, counts) in
            [(false, 12, true), (true, 12, false), (false, 18, false), (true, 18, false)]
        {
            let mut flow = flow(100_000.0);
            flow.on_ack(Instant::EPOCH + us(1), &ack(1, marked, rtt));
            assert_eq!(flow.without_queue > 0.0, counts, "marked: {marked}, {rtt} us");
        }
    }

    /// A long delay without a mark is a queue that has just begun: the average takes a quarter of the round-trip time instead.
    #[test]
    fn a_new_queue_counts_little_in_the_average() {
        for (marked, sample) in [(true, 36e-6), (false, 3e-6)] {
            let mut flow = flow(100_000.0);
            let before = flow.average_delay();
            flow.on_ack(Instant::EPOCH + us(1), &ack(1, marked, 48));
            let wanted = before + 0.0125 * (sample - before);
            assert!((flow.average_delay() - wanted).abs() < 1e-12, "{marked}: {}", flow.average_delay());
        }
    }

    #[test]
    fn odd_acknowledgements_are_harmless() {
        let mut flow = flow(100_000.0);
        for rtt in [Duration::ZERO, Duration::MAX] {
            for bytes in [0, 1, u64::MAX] {
                for marked in [0, bytes] {
                    flow.on_ack(Instant::EPOCH, &Ack { bytes, marked, rtt: Some(rtt) });
                    assert!(flow.cwnd.is_finite() && (4178..=225_000).contains(&flow.window()));
                }
            }
        }
    }
}
