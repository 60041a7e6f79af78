//! InfiniBand's congestion control (IBTA volume 1, annex A10): marks in packets, an index that they raise, and a table of
//! delays.
//!
//! A switch marks packets (FECN) while the queue of an output is above a threshold. Their receiver tells their sender
//! (BECN). Each BECN raises the index of the flow into the Congestion Control Table (CCTI), and a timer lowers it by one each
//! time it expires. The entry at the index is a pause after each packet, in units of the packet's own time on the wire: so a
//! flow sends at `line / (1 + entry)`.
//!
//! The table is filled by the subnet manager. OpenSM has no default; here entry `i` is `i` times [`Config::cct_step`],
//! the usual choice. With a step of 1, N flows of one port rest near index N - 1.
//!
//! On RoCEv2 the mark is ECN's, and the BECN is that of a CNP, which has this bit.

use crate::dcqcn::{Notification, Red};
use crate::rate::Rate;
use crate::setting::{SettingError, settable};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use time::{Duration, Instant};

/// The unit of [`Config::ccti_timer`].
const TIMER_UNIT: Duration = Duration::from_nanos(1024);

/// Settings of InfiniBand's congestion control, with the names of the management attributes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// By how much a BECN raises the index (CCTI_Increase).
    pub ccti_increase: u8,
    /// The largest index (CCTI_Limit): OpenSM programs at most 128 entries.
    pub ccti_limit: u16,
    /// The index to which the timer returns it (CCTI_Min).
    pub ccti_min: u8,
    /// How often the timer lowers the index, in units of 1.024 us (CCTI_Timer).
    pub ccti_timer: u16,
    /// The pause that each entry of the table adds, in packet times.
    pub cct_step: f64,
    /// The queue above which a switch marks, in bytes.
    pub threshold: u64,
    /// The least time between two BECNs for a flow, in microseconds: 0 answers every mark.
    pub becn_interval: u32,
}

settable!(
    Config: ccti_increase ccti_limit ccti_min ccti_timer cct_step threshold becn_interval
);

impl Default for Config {
    /// Our choice of what has no default: an index that falls by one in 154 us, and one BECN in 50 us, as often as DCQCN has
    /// CNPs.
    fn default() -> Self {
        Self {
            ccti_increase: 1,
            ccti_limit: 127,
            ccti_min: 0,
            ccti_timer: 150,
            cct_step: 1.0,
            threshold: 64 << 10,
            becn_interval: 50,
        }
    }
}

/// The DSCP and the priority of CNPs: those of DCQCN.
const CNP: (u32, u32) = (48, 6);

impl Config {
    /// How switches mark: everything above the threshold (a Marking_Rate of 0).
    #[must_use]
    pub const fn red(&self) -> Red {
        Red { kmin: self.threshold, kmax: self.threshold, pmax: 1.0 }
    }

    /// How receivers tell senders.
    #[must_use]
    pub const fn notification(&self) -> Notification {
        Notification {
            min_time_between_cnps: self.becn_interval,
            cnp_dscp: CNP.0,
            cnp_802p_prio: CNP.1,
            deferred_cnp: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), SettingError> {
        SettingError::unless_between("ccti_increase", self.ccti_increase, 1, u8::MAX)?;
        SettingError::unless_between("ccti_limit", self.ccti_limit, 1, u16::MAX)?;
        SettingError::unless_between("ccti_min", u16::from(self.ccti_min), 0, self.ccti_limit)?;
        SettingError::unless_between("ccti_timer", self.ccti_timer, 1, u16::MAX)?;
        SettingError::unless_between("cct_step", self.cct_step, 0.001, 16_383.0)?;
        SettingError::unless_between("threshold", self.threshold, 1, 1 << 40)
    }
}

/// The rate of one flow.
#[derive(Clone, Debug)]
pub struct Ibcc {
    config: Arc<Config>,
    line: Rate,
    ccti: u16,
    lowers_at: Option<Instant>,
}

impl Ibcc {
    /// A flow at a port of rate `line`.
    #[must_use]
    pub fn new(config: Arc<Config>, line: Rate) -> Self {
        let ccti = config.ccti_min.into();
        Self { config, line, ccti, lowers_at: None }
    }

    /// The index into the table.
    #[must_use]
    pub const fn ccti(&self) -> u16 {
        self.ccti
    }

    /// The rate at which the flow may send.
    #[must_use]
    pub fn rate(&self) -> Rate {
        let pause = f64::from(self.ccti) * self.config.cct_step;
        Rate::from_bits_per_second((self.line.as_f64() / (1.0 + pause)).max(1.0) as u64)
    }

    /// Handles a BECN.
    pub fn on_becn(&mut self, now: Instant) {
        self.handle_timeout(now);
        self.ccti = self.ccti.saturating_add(self.config.ccti_increase.into()).min(self.config.ccti_limit);
        self.arm(now);
    }

    /// When the index falls next.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.lowers_at
    }

    /// Lowers the index for each time that the timer has expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(at) = self.lowers_at.filter(|at| *at <= now) {
            self.ccti = self.ccti.saturating_sub(1).max(self.config.ccti_min.into());
            self.lowers_at = None;
            self.arm(at);
        }
    }

    /// The timer runs while the index is above its minimum.
    fn arm(&mut self, from: Instant) {
        if self.lowers_at.is_none() && self.ccti > u16::from(self.config.ccti_min) {
            self.lowers_at = from.checked_add(TIMER_UNIT * u32::from(self.config.ccti_timer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::from_gbps(40);

    fn flow(config: Config) -> Ibcc {
        Ibcc::new(Arc::new(config), LINE)
    }

    #[test]
    fn a_becn_raises_the_index_and_the_timer_lowers_it() {
        let (mut flow, start) =
            (flow(Config { ccti_increase: 2, ccti_timer: 100, ..Config::default() }), Instant::EPOCH);
        assert_eq!((flow.rate(), flow.poll_timeout()), (LINE, None));
        flow.on_becn(start);
        assert_eq!((flow.ccti(), flow.rate().as_mbps().round()), (2, 13_333.0));
        let period = Duration::from_nanos(102_400);
        assert_eq!(flow.poll_timeout(), Some(start + period));
        flow.handle_timeout(start + period - Duration::from_nanos(1));
        assert_eq!(flow.ccti(), 2);
        flow.handle_timeout(start + period);
        assert_eq!((flow.ccti(), flow.poll_timeout()), (1, Some(start + period * 2)));
        flow.handle_timeout(start + period * 9);
        assert_eq!((flow.ccti(), flow.rate(), flow.poll_timeout()), (0, LINE, None));
    }

    #[test]
    fn the_index_stays_between_its_bounds() {
        let mut flow = flow(Config { ccti_min: 3, ccti_limit: 5, ..Config::default() });
        assert_eq!(flow.ccti(), 3);
        (0..9).for_each(|_| flow.on_becn(Instant::EPOCH));
        assert_eq!(flow.ccti(), 5);
        flow.handle_timeout(Instant::EPOCH + Duration::from_secs(1));
        assert_eq!((flow.ccti(), flow.poll_timeout()), (3, None));
    }

    /// The timer has expired, and only the BECN finds out: the index first falls to where it has been for so long.
    #[test]
    fn a_becn_comes_after_the_timers_that_have_expired() {
        let (mut flow, start) = (flow(Config { ccti_timer: 100, ..Config::default() }), Instant::EPOCH);
        flow.on_becn(start);
        flow.on_becn(start);
        let late = start + Duration::from_millis(1);
        flow.on_becn(late);
        assert_eq!((flow.ccti(), flow.poll_timeout()), (1, Some(late + Duration::from_nanos(102_400))));
    }

    #[test]
    fn the_step_stretches_the_table() {
        let mut flow = flow(Config { cct_step: 0.25, ..Config::default() });
        (0..4).for_each(|_| flow.on_becn(Instant::EPOCH));
        assert_eq!(flow.rate(), Rate::from_gbps(20));
    }
}
