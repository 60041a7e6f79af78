//! Future events, and the timers of devices.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use time::Instant;

/// Bits of a digit of times.
const DIGIT: u32 = 6;

/// The values of a digit: one bit each in a word.
const VALUES: usize = 1 << DIGIT;

/// The digits of a time.
const DIGITS: usize = u64::BITS.div_ceil(DIGIT) as usize;

/// Events whose times differ from the present in the same highest digit, and agree in that digit, in the order in which they
/// were set.
#[derive(Debug)]
struct Bucket<T> {
    /// With their times, in picoseconds since the origin.
    events: Vec<(u64, T)>,
    /// The earliest of the times; of no meaning without events.
    first: u64,
}

/// Future events, in the order of their time, and for equal times in that in which they were set. So what happens never
/// depends on how they are stored.
///
/// No event lies before the one that was taken last, as in any simulation. A radix heap makes use of that (Ahuja, Mehlhorn,
/// Orlin and Tarjan, JACM 1990): an event lies in the bucket of the highest digit in which its time differs from the present,
/// and of the value of that digit. When the lowest bucket with events is due, its events move to lower ones, where they are
/// fewer: so an event moves once for a digit at most. What is in one bucket lies side by side in memory, while a binary heap
/// of a large fabric's events does not fit into a processor's caches. Equal times are always in one bucket, and keep their
/// order. (A calendar queue with slots of 8 ns and of 64 ps was tried: it has a third fewer instructions for an event, and
/// is a little slower, because its slots and events are apart in memory.)
#[derive(Debug)]
pub struct Agenda<T> {
    /// Where times begin, in picoseconds since the epoch.
    origin: u128,
    /// The time of the event that was taken last.
    now: u64,
    /// The events of that time.
    present: VecDeque<T>,
    /// By the highest digit that differs, and its value.
    buckets: Vec<Bucket<T>>,
    /// By digit: the values whose buckets have events, one bit each.
    filled: [u64; DIGITS],
    /// The digits of which there are such values, one bit each.
    digits: u32,
    /// Events whose times since the origin have no room in 64 bits, which is half a year, with their times since the epoch.
    far: Vec<(u128, T)>,
    /// The memory of buckets that have no events: any bucket may be the fullest at some time, and few are at the same time.
    spare: Vec<Vec<(u64, T)>>,
    len: usize,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        let buckets = (0..DIGITS * VALUES).map(|_| Bucket { events: Vec::new(), first: 0 }).collect();
        Self {
            origin: 0,
            now: 0,
            present: VecDeque::new(),
            buckets,
            filled: [0; DIGITS],
            digits: 0,
            far: Vec::new(),
            spare: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Agenda<T> {
    /// Adds an event. What lies in the past happens now.
    pub fn set(&mut self, at: Instant, event: T) {
        self.len += 1;
        self.set_picos(at.picos_since(Instant::EPOCH), event);
    }

    fn set_picos(&mut self, at: u128, event: T) {
        match u64::try_from(at.saturating_sub(self.origin)) {
            Ok(since) => self.put(since.max(self.now), event),
            Err(_) => self.far.push((at, event)),
        }
    }

    fn put(&mut self, at: u64, event: T) {
        let Some(highest) = (at ^ self.now).checked_ilog2() else { return self.present.push_back(event) };
        let digit = highest / DIGIT;
        let value = (at >> (digit * DIGIT)) as usize % VALUES;
        if let Some(bucket) = self.buckets.get_mut(digit as usize * VALUES + value) {
            if bucket.events.is_empty() {
                bucket.first = at;
                bucket.events = self.spare.pop().unwrap_or_default();
            }
            bucket.first = bucket.first.min(at);
            bucket.events.push((at, event));
            self.filled[digit as usize] |= 1 << value;
            self.digits |= 1 << digit;
        }
    }

    /// The number of the lowest bucket with events.
    fn lowest(&self) -> Option<usize> {
        let digit = self.digits.trailing_zeros() as usize;
        Some(digit * VALUES + self.filled.get(digit)?.trailing_zeros() as usize)
    }

    /// The time of the next event.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        let first = match self.lowest() {
            _ if !self.present.is_empty() => self.now,
            Some(lowest) => self.buckets.get(lowest)?.first,
            None => return self.far.iter().map(|(at, _)| Instant::EPOCH.plus_picos(*at)).min(),
        };
        Some(Instant::EPOCH.plus_picos(self.origin + u128::from(first)))
    }

    /// Removes the next event, if its time has come at `now`.
    pub fn take(&mut self, now: Instant) -> Option<T> {
        self.take_at(now).map(|(_, event)| event)
    }

    /// As [`take`](Self::take), with the time of the event.
    pub fn take_at(&mut self, now: Instant) -> Option<(Instant, T)> {
        let at = self.next().filter(|at| *at <= now)?;
        if self.present.is_empty() {
            self.come_to_next();
        }
        let event = self.present.pop_front()?;
        self.len -= 1;
        Some((at, event))
    }

    /// The time of the next event becomes the present.
    fn come_to_next(&mut self) {
        let Some(lowest) = self.lowest() else { return self.come_to_far() };
        let Some(bucket) = self.buckets.get_mut(lowest) else { return };
        self.now = bucket.first;
        let (digit, value) = (lowest / VALUES, lowest % VALUES);
        self.filled[digit] &= !(1 << value);
        if self.filled[digit] == 0 {
            self.digits &= !(1 << digit);
        }
        let mut events = std::mem::take(&mut bucket.events);
        for (at, event) in events.drain(..) {
            self.put(at, event);
        }
        self.spare.push(events);
    }

    /// Only events are left that are far from the origin: the first of them is the origin from now on.
    fn come_to_far(&mut self) {
        let Some(first) = self.far.iter().map(|(at, _)| *at).min() else { return };
        (self.origin, self.now) = (first, 0);
        for (at, event) in std::mem::take(&mut self.far) {
            self.set_picos(at, event);
        }
    }

    /// The number of events.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no events.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
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
    use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

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
        agenda.set(at(3), 7);
        assert_eq!((agenda.next(), agenda.take(at(20))), (Some(at(20)), Some(7)), "the past is now");
    }

    /// A sorted list is what the agenda has to be like.
    #[test]
    fn any_events_come_in_the_order_of_a_sorted_list() {
        let mut lots = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        // With the last, times outgrow 64 bits. What is a multiple of something is often at the same time as something else,
        // which was set long before.
        let wide = [1, 5, 100, 1 << 13, 1 << 20, 1 << 25, 1 << 60, u64::MAX];
        for (spread, step) in
            wide.map(|spread| [(spread, 1_u128), (spread, u128::from(spread / 37 + 1))]).into_iter().flatten()
        {
            let (mut agenda, mut list, mut now) = (Agenda::default(), Vec::new(), 0);
            for number in 0..3000 {
                let time: u128 = (now + u128::from(lots.next_u64() % spread)) / step * step;
                let time = time.max(now);
                agenda.set(at(time), number);
                list.push((time, number));
                if lots.next_u64() % 3 != 0 {
                    list.sort_unstable();
                    let (time, first) = list.remove(0);
                    assert_eq!((agenda.next(), agenda.len()), (Some(at(time)), list.len() + 1));
                    assert!(time == 0 || agenda.take(at(time - 1)).is_none(), "not before its time");
                    assert_eq!(agenda.take(at(time)), Some(first));
                    now = time;
                }
            }
            list.sort_unstable();
            let rest: Vec<i32> = std::iter::from_fn(|| agenda.take(at(u128::MAX))).collect();
            assert!(rest.iter().eq(list.iter().map(|(_, number)| number)) && agenda.is_empty());
        }
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
