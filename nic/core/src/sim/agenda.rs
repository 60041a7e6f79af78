//! Future events: the arrival of packets, and the timers of devices.

use super::port::SimPacket;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use time::Instant;

/// The receiver of a packet in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// The device with this number.
    Site(usize),
    /// The device that has the packet's address when it arrives.
    Address,
    /// The devices that are members of the packet's group when it arrives.
    Members,
    /// The device with this number, if it is a member of the packet's group when it arrives.
    Member(usize),
}

/// A packet in flight.
#[derive(Debug)]
pub(super) struct Flying {
    pub(super) to: Target,
    pub(super) packet: SimPacket,
}

/// Packets in flight, in the order of their arrival, and for equal arrivals in that of departure.
#[derive(Default)]
pub(super) struct Air {
    /// The time of arrival, the number of the departure, and the index in the table.
    order: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    /// Kept apart from the order, whose entries move a lot.
    table: slab::Slab<Flying>,
    departed: u64,
}

impl Air {
    pub(super) fn depart(&mut self, arrives: Instant, flying: Flying) {
        self.departed += 1;
        let slot = self.table.insert(flying);
        self.order.push(Reverse((arrives, self.departed, slot)));
    }

    /// The time of the next arrival.
    pub(super) fn next(&self) -> Option<Instant> {
        self.order.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next packet that has arrived. It stays in the table until it is [taken](Self::take).
    pub(super) fn arrived(&mut self, now: Instant) -> Option<usize> {
        if self.next()? > now {
            return None;
        }
        self.order.pop().map(|Reverse((.., slot))| slot)
    }

    /// A packet in the table.
    pub(super) fn get(&self, slot: usize) -> Option<&Flying> {
        self.table.get(slot)
    }

    /// Takes a packet out of the table.
    pub(super) fn take(&mut self, slot: usize) -> Option<Flying> {
        self.table.try_remove(slot)
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
    use qp::wire::IpHeader;

    /// Picoseconds after the epoch.
    const fn at(picos: u128) -> Instant {
        Instant::EPOCH.plus_picos(picos)
    }

    fn flying(byte: u8) -> Flying {
        let packet = SimPacket { arrival: IpHeader::default(), bytes: vec![byte] };
        Flying { to: Target::Address, packet }
    }

    #[test]
    fn packets_arrive_in_the_order_of_time_and_then_of_departure() {
        let mut air = Air::default();
        for (arrives, byte) in [(20, 1), (10, 2), (20, 3), (10, 4), (15, 5)] {
            air.depart(at(arrives), flying(byte));
        }
        assert_eq!(air.next(), Some(at(10)));
        assert_eq!(air.arrived(at(9)), None);
        let mut arrived = |now| -> Vec<u8> {
            let slots: Vec<usize> = std::iter::from_fn(|| air.arrived(at(now))).collect();
            slots.iter().filter_map(|slot| air.take(*slot)).flat_map(|f| f.packet.bytes).collect()
        };
        assert_eq!(arrived(15), [2, 4, 5]);
        assert_eq!(arrived(100), [1, 3]);
        assert_eq!(air.next(), None);
        assert!(air.table.is_empty());
    }

    #[test]
    fn events_within_a_nanosecond_keep_their_order() {
        let (mut air, mut timers) = (Air::default(), Timers::default());
        timers.add();
        for (arrives, byte) in [(1_000_030, 3), (1_000_010, 1), (1_000_020, 2)] {
            air.depart(at(arrives), flying(byte));
        }
        timers.set(0, Some(at(1_000_015)));
        assert_eq!((air.next(), timers.next(|_| true)), (Some(at(1_000_010)), Some((at(1_000_015), 0))));
        let slot = air.arrived(at(1_000_015)).expect("the first");
        assert_eq!(air.take(slot).map(|flying| flying.packet.bytes), Some(vec![1]));
        assert_eq!(air.arrived(at(1_000_015)), None, "the second comes 5 ps after the timer");
        assert_eq!(air.next(), Some(at(1_000_020)));
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
