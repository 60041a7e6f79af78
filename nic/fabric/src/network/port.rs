//! One end of a cable: what leaves there, and what keeps it from leaving.

use crate::switch::lanes;
use crate::switch::queues::{Queues, Selection};
use crate::topology::{Cable, NodeId};
use cc::dcqcn::CongestionPoint;
use cc::pfc::{PRIORITIES, Paused, Verdict, Watchdog};
use cc::{LineClock, Rate, vl};
use std::collections::BTreeMap;
use time::{Duration, Instant};

use super::Drop;
use super::forwarding::Lanes;
use super::traffic::Flow;

/// What a port has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PortStats {
    /// Packets that left.
    pub packets: u64,
    /// Bytes that left, as on Ethernet.
    pub bytes: u64,
    /// Packets that were marked as having met congestion.
    pub marked: u64,
    /// Packets that were dropped here, by reason.
    pub drops: BTreeMap<Drop, u64>,
    /// Pause frames that this port has sent, by class.
    pub pauses_sent: [u64; PRIORITIES],
    /// Pause frames that it has received, by class.
    pub pauses_received: [u64; PRIORITIES],
    /// For how long it was paused, in nanoseconds, by class.
    pub paused_ns: [u64; PRIORITIES],
    /// Storms that its watchdog found.
    pub storms: u64,
    /// Times that a lane had packets and no credit.
    pub credit_waits: u64,
    /// The most bytes in its queues.
    pub queue_peak: u64,
}

/// Which packets are marked of those that meet a long queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thinning {
    /// Packets of fewer bytes are not.
    least: u32,
    /// So many are not between two that are.
    between: u16,
    /// Those since the last one.
    since: u16,
}

impl Thinning {
    /// The first packet is marked.
    pub(super) const fn new(least: u32, between: u16) -> Self {
        Self { least, between, since: between }
    }

    /// Whether a packet of this many bytes is marked, which meets a long queue.
    const fn marks(&mut self, bytes: u32) -> bool {
        if bytes < self.least {
            return false;
        }
        let is_next = self.since >= self.between;
        self.since = if is_next { 0 } else { self.since + 1 };
        is_next
    }
}

/// The sending side of a port, and the receiving side's account of the lanes.
///
/// A fabric has thousands of ports, and a packet touches two at each node. So what every packet needs comes first, side by
/// side, in as few lines of a processor's caches as possible.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Port {
    /// The node at the other end, and its port.
    pub(super) peer: (NodeId, u16),
    /// How often the cable was cut, and whether it is whole.
    pub(super) cuts: u32,
    pub(super) is_up: bool,
    /// Whether its packets are captured.
    pub(super) is_captured: bool,
    /// Whether its packets may wait too long, by the rules of InfiniBand's switches.
    pub(super) expires: bool,
    /// Whether a switch that cuts through is at the other end.
    pub(super) is_cut_through: bool,
    /// Classes that a frame has paused, perhaps not any more.
    pub(super) pauses: u16,
    /// Classes that send in spite of pauses, and those whose packets are dropped: the watchdog's verdicts.
    pub(super) forced: u16,
    pub(super) discarded: u16,
    /// Classes whose pauses are repeated.
    pub(super) repeats: u8,
    /// Credit of what leaves, and of what arrives, with InfiniBand's model.
    pub(super) credit: Option<Box<[lanes::Sender; lanes::LANES]>>,
    pub(super) lanes: Option<Box<[lanes::Receiver; lanes::LANES]>>,
    pub(super) rate: Rate,
    /// The probability that a packet of a byte is damaged; of more, by its length.
    pub(super) bit_errors: f64,
    pub(super) line: LineClock,
    /// When the port looks again, if that is in the agenda.
    pub(super) looks: Option<Instant>,
    pub(super) delay: Duration,
    /// From here to the next node, beside waiting, sending and the cable: at both nodes.
    pub(super) latency: Duration,
    pub(super) queues: Queues,
    /// What performance management counts beside.
    pub(super) flow: Flow,
    pub(super) stats: PortStats,
    pub(super) marking: Option<CongestionPoint>,
    /// Which of those that are to be marked are, if congestion control management has said so.
    pub(super) thinning: Option<Thinning>,
    pub(super) paused: Paused,
    pub(super) watchdogs: Option<Box<[Watchdog; PRIORITIES]>>,
    /// The lanes of service levels, and the turns of lanes, if a subnet manager has written them.
    pub(super) sl2vl: Option<Lanes>,
    pub(super) arbitration: Option<vl::Config>,
    /// The bytes that had left when measuring began.
    pub(super) sent_before: u64,
}

impl Port {
    pub(super) fn new(cable: &Cable, peer: (NodeId, u16), selection: Selection, now: Instant) -> Self {
        Self {
            peer,
            rate: cable.rate,
            delay: cable.delay,
            latency: Duration::ZERO,
            expires: false,
            is_cut_through: false,
            bit_errors: cable.bit_errors,
            is_up: true,
            cuts: 0,
            line: LineClock::new(cable.rate, now),
            queues: Queues::new(selection),
            marking: None,
            thinning: None,
            paused: Paused::new(cable.rate),
            pauses: 0,
            forced: 0,
            discarded: 0,
            watchdogs: None,
            credit: None,
            lanes: None,
            sl2vl: None,
            arbitration: None,
            looks: None,
            repeats: 0,
            is_captured: false,
            stats: PortStats::default(),
            sent_before: 0,
            flow: Flow::default(),
        }
    }

    /// Whether a packet of this many bytes is marked, with a queue of this length.
    pub(super) fn marks(&mut self, length: u64, bytes: u32) -> bool {
        self.marking.as_mut().is_some_and(|point| point.marks(length))
            && self.thinning.as_mut().is_none_or(|thinning| thinning.marks(bytes))
    }

    /// Notes which queues have to wait, though the line is free.
    pub(super) fn note_waits(&mut self, now: Instant, eligible: u16) {
        self.flow.note_waits(now, self.queues.waiting(), eligible);
    }

    /// The queues that may send now.
    pub(super) fn eligible(&mut self, now: Instant) -> u16 {
        let mut eligible = self.queues.waiting();
        for queue in bits(eligible & self.pauses & !self.forced) {
            if self.paused.may_send(now, u8::try_from(queue).unwrap_or(u8::MAX)) {
                continue;
            }
            eligible &= !(1 << queue);
        }
        if let Some(credit) = &self.credit {
            for queue in bits(eligible) {
                let first = self.queues.first(queue);
                if first.is_some_and(|(first, _)| !credit[queue].may_send(first.bytes)) {
                    eligible &= !(1 << queue);
                }
            }
        }
        eligible
    }

    /// Whether a class may not send now.
    pub(super) fn is_blocked(&self, now: Instant, class: u8) -> bool {
        let is_paused = self.pauses >> class & 1 == 1 && !self.paused.may_send(now, class);
        let has_credit = self.credit.as_ref().is_none_or(|credit| credit[usize::from(class)].credit() > 0);
        is_paused || !has_credit || !self.is_up
    }

    pub(super) fn drop(&mut self, why: Drop) {
        *self.stats.drops.entry(why).or_default() += 1;
    }

    /// What the port has counted until now.
    pub(super) fn stats(&mut self, now: Instant) -> PortStats {
        self.paused.handle_timeout(now);
        let mut stats = self.stats.clone();
        stats.queue_peak = stats.queue_peak.max(self.queues.take_peak());
        self.stats.queue_peak = stats.queue_peak;
        for class in 0..PRIORITIES {
            let number = u8::try_from(class).unwrap_or(u8::MAX);
            let (counters, since) = (self.paused.counters(number), self.paused.paused_since(now, number));
            let current = since.map_or(Duration::ZERO, |since| now - since);
            stats.pauses_received[class] = counters.pause;
            let paused = (counters.pause_duration + current).as_nanos();
            stats.paused_ns[class] = u64::try_from(paused).unwrap_or(u64::MAX);
        }
        stats.storms = self.watchdogs.iter().flat_map(|dogs| dogs.iter()).map(Watchdog::storms).sum();
        stats
    }

    /// Has the watchdogs look. Returns the classes whose packets are to be dropped from now on.
    pub(super) fn watch(&mut self, now: Instant) -> u16 {
        let Some(dogs) = &mut self.watchdogs else { return 0 };
        let (mut forced, mut discarded) = (0, 0);
        for (class, dog) in (0u8..).zip(dogs.iter_mut()) {
            let is_paused = self.paused.paused_since(now, class).is_some();
            let waits = self.queues.waiting() >> class & 1 == 1;
            match dog.look(now, is_paused, waits) {
                Verdict::Storm(cc::pfc::Action::Drop) => discarded |= 1 << class,
                Verdict::Storm(cc::pfc::Action::Forward) => forced |= 1 << class,
                Verdict::Storm(cc::pfc::Action::Alert) | Verdict::Obey => {}
            }
        }
        let begun = discarded & !self.discarded;
        (self.forced, self.discarded) = (forced, discarded);
        begun
    }
}

/// The numbers of the bits that are set.
pub(super) fn bits(mut mask: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (mask != 0).then(|| mask.trailing_zeros() as usize);
        mask &= mask.wrapping_sub(1);
        lowest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_between_two_marks_and_short_ones_are_not_marked() {
        let mut thinning = Thinning::new(512, 2);
        let marks = [512, 511, 512, 512, 4096, 64, 512].map(|bytes| thinning.marks(bytes));
        assert_eq!(marks, [true, false, false, false, true, false, false], "short ones do not count");
        let mut all = Thinning::new(0, 0);
        assert_eq!([1, 1].map(|bytes| all.marks(bytes)), [true, true]);
    }
}
