//! What to do about a pause that does not end.

use crate::setting::{SettingError, names, settable};
use serde::{Deserialize, Serialize};
use time::{Duration, Instant};

names! {
    /// What happens to the packets of a priority in a pause storm.
    Action {
        /// Drop them, both those that wait and those that arrive.
        Drop = "drop",
        /// Send them in spite of the pause.
        Forward = "forward",
        /// Only report the storm.
        Alert = "alert",
    }
}

/// Settings of the watchdog, under SONiC's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WatchdogConfig {
    /// The time in milliseconds after which a pause without a break, while packets wait, is a storm: 100 to 5000.
    pub detection_time: u32,
    /// The time in milliseconds without a pause after which the storm is over: 100 to 60,000.
    pub restoration_time: u32,
    /// What happens to packets meanwhile.
    pub action: Action,
}

settable!(WatchdogConfig: detection_time restoration_time action);

impl Default for WatchdogConfig {
    /// The times of SONiC's example, 400 and 800 ms. Its action is that of a NIC rather than of a switch: what a NIC
    /// drops, its connections have to send again until their retries are used up.
    fn default() -> Self {
        Self { detection_time: 400, restoration_time: 800, action: Action::Forward }
    }
}

impl WatchdogConfig {
    /// Checks SONiC's ranges.
    ///
    /// # Errors
    ///
    /// Names the word whose value is out of range, and the range.
    pub fn check(&self) -> Result<(), SettingError> {
        SettingError::unless_between("detection_time", self.detection_time, 100, 5000)?;
        SettingError::unless_between("restoration_time", self.restoration_time, 100, 60_000)
    }
}

/// What to do with the packets of a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No storm: pauses are obeyed.
    Obey,
    /// A storm.
    Storm(Action),
}

/// The watchdog of one priority.
#[derive(Clone, Copy, Debug)]
pub struct Watchdog {
    config: WatchdogConfig,
    /// Since when the priority has been paused without a break while packets wait.
    stuck_since: Option<Instant>,
    /// In a storm: since when there has been no pause.
    calm_since: Option<Instant>,
    in_storm: bool,
    storms: u64,
}

impl Watchdog {
    /// A watchdog that has seen nothing yet.
    #[must_use]
    pub const fn new(config: WatchdogConfig) -> Self {
        Self { config, stuck_since: None, calm_since: None, in_storm: false, storms: 0 }
    }

    /// Observes a priority: whether it is paused, and whether packets wait. Call it several times in a detection
    /// time, and at the time that [`Watchdog::poll_timeout`] returns.
    pub fn look(&mut self, now: Instant, paused: bool, waiting: bool) -> Verdict {
        if self.in_storm {
            self.calm_since = if paused { None } else { self.calm_since.or(Some(now)) };
            if self.calm_since.is_some_and(|at| self.is_over(at, self.config.restoration_time, now)) {
                (self.in_storm, self.calm_since, self.stuck_since) = (false, None, None);
            }
        } else {
            self.stuck_since = if paused && waiting { self.stuck_since.or(Some(now)) } else { None };
            if self.stuck_since.is_some_and(|at| self.is_over(at, self.config.detection_time, now)) {
                self.in_storm = true;
                self.storms += 1;
            }
        }
        self.verdict()
    }

    fn is_over(&self, since: Instant, millis: u32, now: Instant) -> bool {
        now.saturating_duration_since(since) >= Duration::from_millis(millis.into())
    }

    /// What to do with packets, as of the latest observation.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        if self.in_storm { Verdict::Storm(self.config.action) } else { Verdict::Obey }
    }

    /// Storms that were detected.
    #[must_use]
    pub const fn storms(&self) -> u64 {
        self.storms
    }

    /// When to call [`Watchdog::look`] again.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (since, millis) = if self.in_storm {
            (self.calm_since, self.config.restoration_time)
        } else {
            (self.stuck_since, self.config.detection_time)
        };
        since.and_then(|at| at.checked_add(Duration::from_millis(millis.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORM: Verdict = Verdict::Storm(Action::Forward);

    /// Verdicts every 100 ms, with one letter per observation: `p` paused with packets waiting, `i` paused and idle,
    /// `.` not paused.
    fn verdicts(seen: &str) -> Vec<Verdict> {
        let start = Instant::EPOCH;
        let mut dog = Watchdog::new(WatchdogConfig::default());
        let mut at = start;
        seen.chars()
            .map(|c| {
                let verdict = dog.look(at, c != '.', c == 'p');
                at += Duration::from_millis(100);
                verdict
            })
            .collect()
    }

    #[test]
    fn a_storm_is_a_pause_without_a_break_while_packets_wait() {
        let first_storm = |seen: &str| verdicts(seen).iter().position(|v| *v == STORM);
        assert_eq!(first_storm("pppppp"), Some(4));
        assert_eq!(first_storm("ppp.pppp.pppp"), None);
        assert_eq!(first_storm("pppiippppp"), Some(9));
        assert_eq!(first_storm("iiiiiiiiii"), None);
    }

    #[test]
    fn a_storm_is_over_after_a_time_without_pauses() {
        let verdicts = verdicts("ppppp...p.........");
        assert_eq!(verdicts[4..17], [STORM; 13]);
        assert_eq!(verdicts[17], Verdict::Obey);
    }

    #[test]
    fn it_says_when_to_look_again_and_counts() {
        let start = Instant::EPOCH;
        let mut dog = Watchdog::new(WatchdogConfig { action: Action::Drop, ..WatchdogConfig::default() });
        assert_eq!(dog.poll_timeout(), None);
        dog.look(start, true, true);
        let at = start + Duration::from_millis(400);
        assert_eq!((dog.poll_timeout(), dog.storms()), (Some(at), 0));
        assert_eq!(dog.look(at, true, true), Verdict::Storm(Action::Drop));
        assert_eq!((dog.poll_timeout(), dog.storms()), (None, 1));
        dog.look(at, false, true);
        assert_eq!(dog.poll_timeout(), Some(at + Duration::from_millis(800)));
    }

    #[test]
    fn the_ranges_are_sonic_s() {
        let config: WatchdogConfig =
            "detection_time=100,restoration_time=60000,action=alert".parse().expect("words");
        assert_eq!((config.check(), config.action), (Ok(()), Action::Alert));
        for wrong in
            ["detection_time=99", "detection_time=5001", "restoration_time=99", "restoration_time=60001"]
        {
            assert!(wrong.parse::<WatchdogConfig>().expect("words").check().is_err(), "{wrong}");
        }
        let read: WatchdogConfig = toml::from_str("action = \"drop\"").expect("a table");
        assert_eq!(read, WatchdogConfig { action: Action::Drop, ..WatchdogConfig::default() });
    }
}
