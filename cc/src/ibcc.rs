//! InfiniBand's congestion control (IBTA volume 1, annex A10): marks in packets, an index that they raise, and a table of
//! delays.
//!
//! A switch marks packets (FECN) while the queue of an output is above a threshold. Their receiver tells their sender
//! (BECN). Each BECN raises the index of the flow into the Congestion Control Table (CCTI), and a timer lowers it by one each
//! time it expires. The entry at the index is a pause after each packet, in units of the packet's own time on the wire: so a
//! flow sends at `line / (1 + entry)`.
//!
//! The table and the other numbers are written by a manager: [`Reaction`]. OpenSM has no default; without a manager entry `i` is
//! `i` times [`Config::cct_step`], the usual choice. With a step of 1, N flows of one port rest near index N - 1.
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
    /// How senders react, without a manager: all service levels alike, each flow for itself.
    #[must_use]
    pub fn reaction(&self) -> Reaction {
        let level = Level {
            ccti_timer: self.ccti_timer,
            ccti_increase: self.ccti_increase,
            trigger_threshold: 0,
            ccti_min: self.ccti_min,
        };
        let table = (0..=self.ccti_limit).map(|index| f64::from(index) * self.cct_step).collect();
        Reaction { by_level: false, levels: [level; LEVELS], table }
    }

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

/// The number of service levels.
pub const LEVELS: usize = 16;

/// How the flows of a service level react (CACongestionEntry, A10.4.3.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// How often the timer lowers the index, in units of 1.024 us; 0 lowers it to its minimum at once.
    pub ccti_timer: u16,
    /// By how much a BECN raises the index.
    pub ccti_increase: u8,
    /// From this index on a BECN is logged; 0 for never.
    pub trigger_threshold: u8,
    /// The index to which the timer returns it.
    pub ccti_min: u8,
}

/// How a channel adapter reacts to BECNs: what a manager writes (CACongestionSetting and CongestionControlTable).
#[derive(Clone, Debug, PartialEq)]
pub struct Reaction {
    /// Whether the flows of a service level have one index in common (Port_Control), or each its own.
    pub by_level: bool,
    /// By service level.
    pub levels: [Level; LEVELS],
    /// By index, up to CCTI_Limit: the pause after a packet, in times of the packet. Without entries nothing pauses.
    pub table: Box<[f64]>,
}

impl Reaction {
    /// The pause that an entry of the Congestion Control Table means: a packet time, shifted to the right and then multiplied.
    /// (A10.4.3.9; the driver hfi1 of Linux computes it so, `set_link_ipg` in init.c.)
    #[must_use]
    pub fn pause(shift: u8, multiplier: u16) -> f64 {
        f64::from(multiplier) / f64::from(1_u32 << shift.min(3))
    }

    /// CCTI_Limit: the largest index.
    #[must_use]
    pub fn limit(&self) -> u16 {
        u16::try_from(self.table.len().saturating_sub(1)).unwrap_or(u16::MAX)
    }
}

/// The rate of one flow.
#[derive(Clone, Debug)]
pub struct Ibcc {
    reaction: Arc<Reaction>,
    level: Level,
    line: Rate,
    ccti: u16,
    lowers_at: Option<Instant>,
}

impl Ibcc {
    /// A flow of a service level at a port of rate `line`. There are levels 0 to 15, of which a larger number means the last.
    #[must_use]
    pub fn new(reaction: Arc<Reaction>, level: u8, line: Rate) -> Self {
        let level = reaction.levels[usize::from(level).min(LEVELS - 1)];
        let mut flow = Self { reaction, level, line, ccti: 0, lowers_at: None };
        flow.ccti = flow.least();
        flow
    }

    /// The same flow, once a manager has written something else. It is where it was in the table, as far as the new one goes.
    pub(crate) fn goes_on(self, now: Instant, reaction: Arc<Reaction>, level: u8) -> Self {
        let mut flow = Self::new(reaction, level, self.line);
        flow.ccti = self.ccti.clamp(flow.least(), flow.reaction.limit());
        flow.arm(now);
        flow
    }

    /// The index into the table.
    #[must_use]
    pub const fn ccti(&self) -> u16 {
        self.ccti
    }

    /// The rate at which the flow may send.
    #[must_use]
    pub fn rate(&self) -> Rate {
        let pause = self.reaction.table.get(usize::from(self.ccti)).copied().unwrap_or(0.0);
        Rate::from_bits_per_second((self.line.as_f64() / (1.0 + pause)).max(1.0) as u64)
    }

    /// Whether a BECN is to be logged, where the index is now.
    #[must_use]
    pub fn is_beyond_threshold(&self) -> bool {
        let threshold = self.level.trigger_threshold;
        threshold > 0 && self.ccti >= threshold.into()
    }

    /// Handles a BECN.
    pub fn on_becn(&mut self, now: Instant) {
        self.handle_timeout(now);
        self.ccti = self.ccti.saturating_add(self.level.ccti_increase.into()).min(self.reaction.limit());
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
            self.ccti = self.ccti.saturating_sub(1).max(self.least());
            self.lowers_at = None;
            self.arm(at);
        }
    }

    /// The least index.
    fn least(&self) -> u16 {
        u16::from(self.level.ccti_min).min(self.reaction.limit())
    }

    /// The timer runs while the index is above its minimum.
    fn arm(&mut self, from: Instant) {
        if self.lowers_at.is_none() && self.ccti > self.least() {
            self.lowers_at = from.checked_add(TIMER_UNIT * u32::from(self.level.ccti_timer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::from_gbps(40);

    fn flow(config: Config) -> Ibcc {
        Ibcc::new(Arc::new(config.reaction()), 0, LINE)
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

    /// What a manager may write, at two service levels: pauses of 0, 1, 2 and 3 packet times.
    fn written() -> Reaction {
        let mut levels = [Level::default(); LEVELS];
        levels[2] = Level { ccti_timer: 100, ccti_increase: 1, trigger_threshold: 2, ccti_min: 0 };
        levels[5] = Level { ccti_timer: 200, ccti_increase: 2, trigger_threshold: 0, ccti_min: 1 };
        let table =
            [(0, 0), (0, 1), (0, 2), (1, 6)].map(|(shift, multiplier)| Reaction::pause(shift, multiplier));
        Reaction { by_level: false, levels, table: table.into() }
    }

    #[test]
    fn entries_of_the_table_are_shifted_to_the_right_and_multiplied() {
        let pauses = [(0, 0), (0, 3), (1, 6), (2, 1), (3, 0x3FFF)].map(|(s, m)| Reaction::pause(s, m));
        assert_eq!(pauses, [0.0, 3.0, 3.0, 0.25, 2047.875]);
    }

    /// The levels have timers, increases and minima of their own, and one table.
    #[test]
    fn a_flow_reacts_as_its_service_level() {
        let reaction = Arc::new(written());
        let mut flows = [2, 5, 7].map(|level| Ibcc::new(Arc::clone(&reaction), level, LINE));
        flows.iter_mut().for_each(|flow| flow.on_becn(Instant::EPOCH));
        assert_eq!(flows.each_ref().map(Ibcc::ccti), [1, 3, 0], "nothing was written for level 7");
        let rates = flows.each_ref().map(|flow| flow.rate().as_mbps().round());
        assert_eq!(rates, [20_000.0, 10_000.0, 40_000.0]);
        let periods = [102_400, 204_800].map(|nanos| Some(Instant::EPOCH + Duration::from_nanos(nanos)));
        assert_eq!(flows.each_ref().map(Ibcc::poll_timeout), [periods[0], periods[1], None]);
        flows.iter_mut().for_each(|flow| flow.on_becn(Instant::EPOCH));
        assert_eq!(flows.each_ref().map(Ibcc::ccti), [2, 3, 0], "the limit is 3");
        flows.iter_mut().for_each(|flow| flow.handle_timeout(Instant::EPOCH + Duration::from_millis(9)));
        assert_eq!(flows.each_ref().map(Ibcc::ccti), [0, 1, 0]);
    }

    #[test]
    fn becns_are_logged_from_the_threshold_on() {
        let mut flow = Ibcc::new(Arc::new(written()), 2, LINE);
        let logs = [0, 1, 2].map(|_| {
            flow.on_becn(Instant::EPOCH);
            flow.is_beyond_threshold()
        });
        assert_eq!(logs, [false, true, true]);
        let mut never = Ibcc::new(Arc::new(written()), 5, LINE);
        never.on_becn(Instant::EPOCH);
        assert!(!never.is_beyond_threshold());
    }

    #[test]
    fn a_flow_keeps_its_index_as_far_as_a_new_table_goes() {
        let mut flow = flow(Config::default());
        (0..9).for_each(|_| flow.on_becn(Instant::EPOCH));
        let now = Instant::EPOCH + Duration::from_micros(10);
        let mut flow = flow.goes_on(now, Arc::new(written()), 2);
        assert_eq!((flow.ccti(), flow.rate()), (3, Rate::from_gbps(10)));
        assert_eq!(flow.poll_timeout(), Some(now + Duration::from_nanos(102_400)), "the new timer");
        flow.handle_timeout(now + Duration::from_millis(1));
        assert_eq!((flow.ccti(), flow.poll_timeout()), (0, None));
    }

    /// An adapter to which a manager has written settings and no table does not slow down, and a timer of 0 does not go on.
    #[test]
    fn an_empty_table_and_a_timer_of_zero_slow_nothing_down() {
        let mut empty = Ibcc::new(Arc::new(Reaction { table: Box::default(), ..written() }), 5, LINE);
        empty.on_becn(Instant::EPOCH);
        assert_eq!((empty.ccti(), empty.rate(), empty.poll_timeout()), (0, LINE, None));
        let levels = [Level { ccti_increase: 3, ..Level::default() }; LEVELS];
        let mut at_once = Ibcc::new(Arc::new(Reaction { levels, ..written() }), 0, LINE);
        at_once.on_becn(Instant::EPOCH);
        at_once.handle_timeout(Instant::EPOCH);
        assert_eq!((at_once.ccti(), at_once.poll_timeout()), (0, None));
    }
}
