//! The sending port: which priorities it may not send now.

use super::{PRIORITIES, PauseFrame, Quanta};
use crate::rate::Rate;
use time::{Duration, Instant};

/// Statistics on the pauses of one priority, under the names of mlx5's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseCounters {
    /// Pause frames that named it: `rx_prio<n>_pause`.
    pub pause: u64,
    /// The time for which it was paused, without the current pause: `rx_prio<n>_pause_duration`.
    pub pause_duration: Duration,
    /// Pauses that ended: `rx_prio<n>_pause_transition`.
    pub pause_transition: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// The start and the end of the pause.
    paused: Option<(Instant, Instant)>,
    counters: PauseCounters,
}

/// The pauses that the peer has asked for. A port finishes a packet that it has begun; the question here is whether
/// the next one may begin.
#[derive(Clone, Debug)]
pub struct Paused {
    rate: Rate,
    classes: [Class; PRIORITIES],
}

impl Paused {
    /// A port of rate `rate`, not paused.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self { rate, classes: [Class::default(); PRIORITIES] }
    }

    /// Handles a pause frame.
    pub fn handle_frame(&mut self, now: Instant, frame: &PauseFrame) {
        self.handle_timeout(now);
        let times = match frame {
            PauseFrame::Link(time) => [Some(*time); PRIORITIES],
            PauseFrame::Priorities(times) => *times,
        };
        for (class, time) in self.classes.iter_mut().zip(times) {
            let Some(time) = time else { continue };
            class.counters.pause += 1;
            let since = class.paused.map_or(now, |(since, _)| since);
            match (time, now.checked_add(time.time(self.rate))) {
                (Quanta(1..), Some(until)) => class.paused = Some((since, until)),
                _ => class.end(now),
            }
        }
    }

    /// Whether a priority may begin a packet.
    #[must_use]
    pub fn may_send(&self, now: Instant, priority: u8) -> bool {
        let class = self.classes.get(usize::from(priority));
        class.is_some_and(|c| c.paused.is_none_or(|(_, until)| until <= now))
    }

    /// Since when a priority has been paused, without a break.
    #[must_use]
    pub fn paused_since(&self, now: Instant, priority: u8) -> Option<Instant> {
        let (since, until) = self.classes.get(usize::from(priority))?.paused?;
        (until > now).then_some(since)
    }

    /// When the next pause ends by itself.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.classes.iter().filter_map(|c| c.paused).map(|(_, until)| until).min()
    }

    /// Ends the pauses that have expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        for class in &mut self.classes {
            if let Some((_, until)) = class.paused.filter(|(_, until)| *until <= now) {
                class.end(until);
            }
        }
    }

    /// Statistics on the pauses of a priority.
    #[must_use]
    pub fn counters(&self, priority: u8) -> PauseCounters {
        self.classes.get(usize::from(priority)).map(|c| c.counters).unwrap_or_default()
    }
}

impl Class {
    fn end(&mut self, now: Instant) {
        if let Some((since, _)) = self.paused.take() {
            self.counters.pause_transition += 1;
            self.counters.pause_duration += now.saturating_duration_since(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::from_gbps(10);

    fn pause(priority: usize, quanta: u16) -> PauseFrame {
        let mut times = [None; PRIORITIES];
        times[priority] = Some(Quanta(quanta));
        PauseFrame::Priorities(times)
    }

    #[test]
    fn a_pause_holds_one_priority_until_its_time_is_over() {
        let (mut paused, now) = (Paused::new(RATE), Instant::EPOCH);
        paused.handle_frame(now, &pause(3, 10));
        let until = now + Duration::from_nanos(512);
        assert!(!paused.may_send(now, 3) && paused.may_send(now, 2));
        assert!(!paused.may_send(until - Duration::from_nanos(1), 3) && paused.may_send(until, 3));
        assert_eq!((paused.poll_timeout(), paused.paused_since(now, 3)), (Some(until), Some(now)));
        // Noticed late, the pause counts only to its end.
        paused.handle_timeout(until + Duration::from_secs(1));
        let counters =
            PauseCounters { pause: 1, pause_duration: Duration::from_nanos(512), pause_transition: 1 };
        assert_eq!((paused.counters(3), paused.poll_timeout()), (counters, None));
        assert_eq!(paused.counters(2), PauseCounters::default());
        assert!(!paused.may_send(now, 8), "there is no such priority");
    }

    #[test]
    fn a_pause_is_renewed_and_ended_by_frames() {
        let (mut paused, now) = (Paused::new(RATE), Instant::EPOCH);
        let at = |ns| now + Duration::from_nanos(ns);
        paused.handle_frame(now, &pause(3, 10));
        paused.handle_frame(at(300), &pause(3, 10));
        assert!(!paused.may_send(at(800), 3));
        assert_eq!(paused.paused_since(at(800), 3), Some(now), "without a break");
        paused.handle_frame(at(800), &pause(3, 0));
        assert!(paused.may_send(at(800), 3));
        let counters =
            PauseCounters { pause: 3, pause_duration: Duration::from_nanos(800), pause_transition: 1 };
        assert_eq!(paused.counters(3), counters);
        paused.handle_frame(at(900), &pause(3, 0));
        assert_eq!(paused.counters(3).pause_transition, 1, "nothing to end");
    }

    #[test]
    fn a_pause_of_the_link_holds_all_priorities() {
        let (mut paused, now) = (Paused::new(RATE), Instant::EPOCH);
        paused.handle_frame(now, &PauseFrame::Link(Quanta::MAX));
        assert!((0..8).all(|p| !paused.may_send(now, p)));
        paused.handle_frame(now, &PauseFrame::Link(Quanta(0)));
        assert!((0..8).all(|p| paused.may_send(now, p)));
    }
}
