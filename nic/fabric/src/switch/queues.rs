//! The queues in front of a wire, and which of them sends next.

use cc::ets::{self, Tsa};
use cc::vl::{self, Arbiter, Vl};
use std::collections::VecDeque;
use time::Instant;

/// The most queues of a port: one for each class, or for each virtual lane.
pub(crate) const QUEUES: usize = 16;

/// The largest packet on the wire, in bytes, which is the unit of turns: 4096 of payload with RETH and immediate data.
pub(crate) const LARGEST_PACKET: u32 = 4_220;

/// A packet that waits, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) packet: u32,
    pub(crate) bytes: u32,
    /// Since when it waits.
    pub(crate) since: Instant,
}

/// One queue, in one line of a processor's caches.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Queue {
    packets: VecDeque<Waiting>,
    bytes: u64,
    /// Since when the first one is the first.
    head_since: Instant,
}

/// How the next queue is selected.
#[derive(Clone, Debug)]
pub(crate) enum Selection {
    /// The highest number first.
    Strict,
    /// Classes share by weights.
    Shares(ets::Scheduler),
    /// Virtual lanes by two tables.
    Lanes(Box<Arbiter>),
}

impl Selection {
    /// The selection among traffic classes.
    pub(crate) fn classes(config: &ets::Config) -> Result<Self, ets::ConfigError> {
        let scheduler = ets::Scheduler::new(config, LARGEST_PACKET)?;
        Ok(if config.tsa == [Tsa::Strict; ets::CLASSES] { Self::Strict } else { Self::Shares(scheduler) })
    }

    /// The selection among virtual lanes.
    pub(crate) fn lanes(config: &vl::Config) -> Result<Self, vl::ConfigError> {
        Arbiter::new(config).map(|arbiter| Self::Lanes(Box::new(arbiter)))
    }

    fn next(&mut self, eligible: u16, bytes: impl Fn(u8) -> Option<u32>) -> Option<u8> {
        let ready = |queue: u8| if eligible >> queue & 1 == 1 { bytes(queue) } else { None };
        match self {
            Self::Strict => eligible.checked_ilog2().and_then(|highest| u8::try_from(highest).ok()),
            Self::Shares(scheduler) => scheduler.next(ready),
            Self::Lanes(arbiter) => arbiter.next(|vl| ready(vl.number())).map(Vl::number),
        }
    }
}

/// The queues of a port.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Queues {
    /// The queues in which packets wait.
    waiting: u16,
    bytes: u64,
    peak: u64,
    selection: Selection,
    queues: [Queue; QUEUES],
}

impl Queues {
    pub(crate) fn new(selection: Selection) -> Self {
        Self { queues: Default::default(), selection, waiting: 0, bytes: 0, peak: 0 }
    }

    /// Selects in another way from now on.
    pub(crate) fn select_by(&mut self, selection: Selection) {
        self.selection = selection;
    }

    /// Puts a packet at the end of a queue.
    pub(crate) fn push(&mut self, number: usize, waiting: Waiting) {
        let queue = &mut self.queues[number];
        if queue.packets.is_empty() {
            queue.head_since = waiting.since;
        }
        queue.packets.push_back(waiting);
        queue.bytes += u64::from(waiting.bytes);
        self.waiting |= 1 << number;
        self.bytes += u64::from(waiting.bytes);
        self.peak = self.peak.max(self.bytes);
    }

    /// The queues in which packets wait.
    pub(crate) const fn waiting(&self) -> u16 {
        self.waiting
    }

    /// The first packet of a queue, and since when it is.
    pub(crate) fn first(&self, number: usize) -> Option<(Waiting, Instant)> {
        let queue = &self.queues[number];
        queue.packets.front().map(|first| (*first, queue.head_since))
    }

    /// The queue that sends next, among those in `eligible`. The packet counts as sent: take it.
    pub(crate) fn next(&mut self, eligible: u16) -> Option<usize> {
        let Self { queues, selection, .. } = self;
        let first = |queue: u8| queues[usize::from(queue)].packets.front().map(|first| first.bytes);
        selection.next(eligible, first).map(usize::from)
    }

    /// Takes the first packet out of a queue.
    pub(crate) fn take(&mut self, number: usize, now: Instant) -> Option<Waiting> {
        let queue = &mut self.queues[number];
        let first = queue.packets.pop_front()?;
        queue.head_since = now;
        queue.bytes -= u64::from(first.bytes);
        self.bytes -= u64::from(first.bytes);
        if queue.packets.is_empty() {
            self.waiting &= !(1 << number);
        }
        Some(first)
    }

    /// The packets of a queue, by their numbers.
    pub(crate) fn packets(&self, number: usize) -> impl Iterator<Item = u32> {
        self.queues[number].packets.iter().map(|waiting| waiting.packet)
    }

    /// The bytes of a queue.
    pub(crate) fn bytes_of(&self, number: usize) -> u64 {
        self.queues[number].bytes
    }

    /// The bytes of all queues.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most bytes since the last call.
    pub(crate) const fn take_peak(&mut self) -> u64 {
        std::mem::replace(&mut self.peak, self.bytes)
    }

    /// The number of packets that wait.
    pub(crate) fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.packets.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(packet: u32, bytes: u32) -> Waiting {
        Waiting { packet, bytes, since: Instant::EPOCH.plus_picos(u128::from(packet)) }
    }

    #[test]
    fn strict_queues_go_by_number_and_each_is_first_in_first_out() {
        let mut queues = Queues::new(Selection::Strict);
        for (queue, number) in [(3, 1), (0, 2), (3, 3), (6, 4)] {
            queues.push(queue, packet(number, 100));
        }
        assert_eq!(
            (queues.bytes(), queues.bytes_of(3), queues.len(), queues.waiting()),
            (400, 200, 4, 0b100_1001)
        );
        let at = Instant::EPOCH.plus_picos(9);
        let mut order = Vec::new();
        while let Some(queue) = queues.next(queues.waiting() & !(1 << 6)) {
            order.push(queues.take(queue, at).expect("it was selected").packet);
            let since = queues.first(3).map(|(_, since)| since);
            assert!(since.is_none_or(|since| since == at), "the next one is the first since then");
        }
        assert_eq!(order, [1, 3, 2], "queue 6 may not send");
        assert_eq!(queues.first(6), Some((packet(4, 100), Instant::EPOCH.plus_picos(4))));
        assert_eq!((queues.take_peak(), queues.take_peak()), (400, 100));
    }

    #[test]
    fn classes_share_by_their_weights() {
        let config = ets::Config { tsa: [Tsa::Ets; 8], tc_bw: [1, 9, 10, 20, 57, 1, 1, 1] };
        let mut queues = Queues::new(Selection::classes(&config).expect("they add up"));
        for number in 0..10_000 {
            for queue in [3, 4] {
                queues.push(queue, packet(number, 4_178));
            }
        }
        let turns = (0..7_700).filter(|_| {
            let queue = queues.next(queues.waiting()).expect("both wait");
            queues.take(queue, Instant::EPOCH);
            queue == 3
        });
        let share = turns.count();
        assert!((1_990..2_010).contains(&share), "{share} of 7700: 20 to 57");
    }
}
