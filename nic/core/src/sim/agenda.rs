//! Future events, and the timers of devices.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use time::Instant;

/// An event to come.
#[derive(Debug)]
struct Entry<T> {
    at: Instant,
    /// The number of the event, in the order in which they were set.
    number: u64,
    event: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Future events, in the order of their time, and for equal times in that in which they were set. So what happens never
/// depends on how they are stored.
#[derive(Debug)]
pub struct Agenda<T> {
    order: BinaryHeap<Reverse<Entry<T>>>,
    set: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { order: BinaryHeap::new(), set: 0 }
    }
}

impl<T> Agenda<T> {
    /// Adds an event.
    pub fn set(&mut self, at: Instant, event: T) {
        self.set += 1;
        self.order.push(Reverse(Entry { at, number: self.set, event }));
    }

    /// The time of the next event.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.order.peek().map(|Reverse(entry)| entry.at)
    }

    /// Removes the next event, if its time has come at `now`.
    pub fn take(&mut self, now: Instant) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.order.pop().map(|Reverse(entry)| entry.event)
    }

    /// The number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// The next timer of a device, and its entry in the agenda.
#[derive(Clone, Copy, Debug, Default)]
struct Alarm {
    /// The time at which it is due.
    due: Option<Instant>,
    /// The earliest entry in the agenda. Timers are moved back far more often than they fire, so the agenda is updated with a
    /// later time only when the entry comes up.
    entry: Option<Instant>,
}

/// The timers of devices, for each device the one that is due next.
#[derive(Default)]
pub(super) struct Timers {
    /// By device.
    alarms: Vec<Alarm>,
    /// The time and the device.
    order: BinaryHeap<Reverse<(Instant, usize)>>,
}

impl Timers {
    /// Adds the timer of the next device, not set.
    pub(super) fn add(&mut self) {
        self.alarms.push(Alarm::default());
    }

    /// Notes when the timer of a device is due.
    pub(super) fn set(&mut self, site: usize, due: Option<Instant>) {
        let Some(alarm) = self.alarms.get_mut(site) else { return };
        alarm.due = due;
        if let Some(due) = due
            && alarm.entry.is_none_or(|entry| due < entry)
        {
            alarm.entry = Some(due);
            self.order.push(Reverse((due, site)));
        }
    }

    /// The time and the device of the next timer. Devices that are gone have no timers.
    pub(super) fn next(&mut self, is_there: impl Fn(usize) -> bool) -> Option<(Instant, usize)> {
        while let Some(Reverse((at, site))) = self.order.peek().copied() {
            let alarm = self.alarms.get_mut(site).filter(|alarm| alarm.entry == Some(at) && is_there(site));
            match alarm {
                Some(alarm) if alarm.due.is_some_and(|due| due <= at) => return Some((at, site)),
                Some(alarm) => {
                    let due = alarm.due;
                    alarm.entry = None;
                    self.order.pop();
                    self.set(site, due);
                }
                None => {
                    self.order.pop();
                }
            }
        }
        None
    }

    /// Removes the timer that [`next`](Self::next) found.
    pub(super) fn take(&mut self) {
        if let Some(Reverse((_, site))) = self.order.pop()
            && let Some(alarm) = self.alarms.get_mut(site)
        {
            *alarm = Alarm::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Picoseconds after the epoch.
    const fn at(picos: u128) -> Instant {
        Instant::EPOCH.plus_picos(picos)
    }

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_setting() {
        let mut agenda = Agenda::default();
        for (when, event) in [(20, 1), (10, 2), (20, 3), (10, 4), (15, 5)] {
            agenda.set(at(when), event);
        }
        assert_eq!((agenda.next(), agenda.take(at(9)), agenda.len()), (Some(at(10)), None, 5));
        let mut until = |now| -> Vec<i32> { std::iter::from_fn(|| agenda.take(at(now))).collect() };
        assert_eq!(until(15), [2, 4, 5]);
        assert_eq!(until(100), [1, 3]);
        assert!(agenda.is_empty());
    }

    #[test]
    fn events_within_a_nanosecond_keep_their_order() {
        let (mut agenda, mut timers) = (Agenda::default(), Timers::default());
        timers.add();
        for (when, event) in [(1_000_030, 3), (1_000_010, 1), (1_000_020, 2)] {
            agenda.set(at(when), event);
        }
        timers.set(0, Some(at(1_000_015)));
        assert_eq!((agenda.next(), timers.next(|_| true)), (Some(at(1_000_010)), Some((at(1_000_015), 0))));
        assert_eq!(agenda.take(at(1_000_015)), Some(1));
        assert_eq!(agenda.take(at(1_000_015)), None, "the second comes 5 ps after the timer");
        assert_eq!(agenda.next(), Some(at(1_000_020)));
    }

    #[test]
    fn a_timer_that_moves_is_due_once() {
        let mut timers = Timers::default();
        timers.add();
        timers.add();
        timers.set(0, Some(at(10)));
        timers.set(1, Some(at(12)));
        timers.set(0, Some(at(30)));
        assert_eq!(timers.next(|_| true), Some((at(12), 1)), "moved back");
        timers.set(0, Some(at(5)));
        assert_eq!(timers.next(|_| true), Some((at(5), 0)), "moved ahead");
        timers.take();
        assert_eq!(timers.next(|_| true), Some((at(12), 1)), "not again at 30");
        timers.set(1, None);
        assert_eq!(timers.next(|_| true), None);
        assert!(timers.order.is_empty());
    }

    #[test]
    fn timers_of_devices_that_are_gone_are_forgotten() {
        let mut timers = Timers::default();
        timers.add();
        timers.add();
        timers.set(0, Some(at(10)));
        timers.set(1, Some(at(11)));
        assert_eq!(timers.next(|site| site == 1), Some((at(11), 1)));
        assert_eq!(timers.next(|_| false), None);
        assert!(timers.order.is_empty());
    }
}
