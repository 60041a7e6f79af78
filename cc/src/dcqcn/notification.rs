//! The notification point: when the receiver of a flow reports marks to its sender.

use super::settings::Notification;
use time::Instant;

/// The notification point of one flow. Feed packets to [`NotificationPoint::handle_packet`] and take due CNPs from
/// [`NotificationPoint::poll_cnp`].
///
/// A mark sends a CNP at once if no CNP was sent in the last `min_time_between_cnps`. Marks that come earlier are
/// forgotten, or with `deferred_cnp` answered when that time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotificationPoint {
    last: Option<Instant>,
    due: Option<Instant>,
}

impl NotificationPoint {
    /// Handles a packet of the flow, marked as having met congestion (ECN 11) or not.
    #[inline]
    pub fn handle_packet(&mut self, settings: &Notification, now: Instant, marked: bool) {
        if !marked || self.due.is_some() {
            return;
        }
        let earliest = self.last.and_then(|at| at.checked_add(settings.interval()));
        self.due = match earliest.filter(|at| *at > now) {
            None => Some(now),
            Some(at) => settings.deferred_cnp.then_some(at),
        };
    }

    /// Whether to send a CNP now. It counts as sent.
    pub fn poll_cnp(&mut self, now: Instant) -> bool {
        let is_due = self.due.take_if(|at| *at <= now).is_some();
        if is_due {
            self.last = Some(now);
        }
        is_due
    }

    /// When a CNP is due.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dcqcn::Preset;
    use crate::rate::Rate;
    use time::Duration;

    fn settings(deferred_cnp: bool) -> Notification {
        Notification { deferred_cnp, ..Preset::Paper.settings(Rate::from_gbps(40)).roce_np }
    }

    /// Microseconds at which CNPs go out, where a packet arrives every microsecond and `marked` says which are marked.
    fn cnps(settings: &Notification, marked: impl Fn(u64) -> bool) -> Vec<u64> {
        let start = Instant::EPOCH;
        let mut point = NotificationPoint::default();
        let mut sent = Vec::new();
        for us in 0..200 {
            let now = start + Duration::from_micros(us);
            point.handle_packet(settings, now, marked(us));
            if point.poll_cnp(now) {
                sent.push(us);
            }
            assert!(!point.poll_cnp(now), "one CNP, not two");
        }
        sent
    }

    #[test]
    fn marks_are_answered_at_once_but_not_more_often_than_allowed() {
        assert_eq!(cnps(&settings(false), |_| true), [0, 50, 100, 150]);
        assert_eq!(cnps(&settings(false), |us| us == 7), [7]);
        assert!(cnps(&settings(false), |_| false).is_empty());
    }

    #[test]
    fn an_early_mark_is_forgotten_or_deferred() {
        let marked = |us| us == 3 || us == 20;
        assert_eq!(cnps(&settings(false), marked), [3]);
        assert_eq!(cnps(&settings(true), marked), [3, 53]);
    }

    #[test]
    fn a_deferred_cnp_names_its_time() {
        let start = Instant::EPOCH;
        let mut point = NotificationPoint::default();
        point.handle_packet(&settings(true), start, true);
        assert_eq!(point.poll_timeout(), Some(start));
        assert!(point.poll_cnp(start));
        assert_eq!(point.poll_timeout(), None);
        point.handle_packet(&settings(true), start + Duration::from_micros(1), true);
        assert_eq!(point.poll_timeout(), Some(start + Duration::from_micros(50)));
    }
}
