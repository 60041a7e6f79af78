//! The memory of a layer about earlier packets: first PSNs, repetitions, and the order in which queue pairs appeared.

use crate::link::{Direction, Frame};
use qp::wire::opcode::Transport;
use qp::wire::packet::Packet;
use qp::{Psn, Qpn};
use std::collections::HashMap;
use std::net::IpAddr;

/// The maximum number of remembered streams. Beyond it, the half that was silent the longest is forgotten: a queue
/// pair that sends again then counts as new.
const MAX_STREAMS: usize = 4096;

/// How far behind the newest PSN repetitions are counted one by one; of older ones every repetition counts as the
/// second transmission. Larger than the windows in use.
const TRY_WINDOW: u32 = 4096;

/// Packets in one direction for one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct QpFlow {
    direction: Direction,
    src: IpAddr,
    dst: IpAddr,
    qpn: Qpn,
}

impl QpFlow {
    /// The flow of a frame; frames that are not packets share one flow for each pair of hosts.
    pub(super) fn of(frame: &Frame, packet: Option<&Packet<'_>>) -> Self {
        Self {
            direction: frame.direction,
            src: frame.ip.src,
            dst: frame.ip.dst,
            qpn: packet.map_or(Qpn::default(), Packet::dest_qpn),
        }
    }
}

/// Packets whose PSNs belong to one sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    flow: QpFlow,
    /// Requests carry PSNs of their sender, responses those of the requester.
    is_request: bool,
    /// The sending queue pair, if the packet names it: many datagram senders may share a receiver.
    source: Option<Qpn>,
}

#[derive(Debug)]
struct Stream {
    first: Psn,
    newest: Psn,
    /// The number of transmissions of PSNs that were transmitted more than once.
    tries: HashMap<u32, u32>,
    last_used: u64,
}

/// What earlier packets reveal about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sighting {
    /// The order in which its queue pair appeared in its direction, from 0; `None` for QP1.
    pub(super) nth_qp: Option<u32>,
    /// The distance of its PSN from the first one of its stream.
    pub(super) relative_psn: i32,
    /// Which transmission of its PSN it is, from 1.
    pub(super) attempt: u32,
}

/// Bounded memory of the packets seen.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    streams: HashMap<Key, Stream>,
    /// Queue pairs with their position in the order of appearance.
    flows: HashMap<QpFlow, (u32, u64)>,
    appeared: [u32; 2],
    tick: u64,
}

impl Tracker {
    /// Takes note of a packet. Congestion notifications, credits and pauses have no PSN of a queue pair and are not
    /// counted.
    pub(super) fn see(&mut self, flow: QpFlow, packet: &Packet<'_>) -> Option<Sighting> {
        let info = packet.info();
        if !info.operation.has_psn() {
            return None;
        }
        self.tick += 1;
        let key = Key {
            flow,
            is_request: info.is_request,
            source: (info.transport == Transport::Ud).then(|| packet.deth().map(|d| d.src_qpn)).flatten(),
        };
        let nth_qp = self.place_of(flow);
        let psn = packet.psn();
        if self.streams.len() >= MAX_STREAMS && !self.streams.contains_key(&key) {
            let limit = middle(self.streams.values().map(|s| s.last_used));
            self.streams.retain(|_, s| s.last_used > limit);
        }
        let stream = self.streams.entry(key).or_insert_with(|| Stream {
            first: psn,
            newest: psn.minus(1),
            tries: HashMap::new(),
            last_used: 0,
        });
        stream.last_used = self.tick;
        let relative_psn = psn.distance_from(stream.first);
        Some(Sighting { nth_qp, relative_psn, attempt: stream.attempt(psn) })
    }

    /// The position of a queue pair in the order of appearance.
    fn place_of(&mut self, flow: QpFlow) -> Option<u32> {
        if flow.qpn <= Qpn::GSI {
            return None;
        }
        if self.flows.len() >= MAX_STREAMS && !self.flows.contains_key(&flow) {
            let limit = middle(self.flows.values().map(|(_, used)| *used));
            self.flows.retain(|_, (_, used)| *used > limit);
        }
        let appeared = &mut self.appeared[flow.direction as usize];
        let (place, used) = self.flows.entry(flow).or_insert_with(|| {
            let place = *appeared;
            *appeared = appeared.wrapping_add(1);
            (place, 0)
        });
        *used = self.tick;
        Some(*place)
    }
}

impl Stream {
    /// Which transmission of this PSN it is. A PSN behind the newest one was sent before: gaps in a stream belong
    /// to READ requests, which take a PSN for each packet of the answer.
    fn attempt(&mut self, psn: Psn) -> u32 {
        let behind = self.newest.distance_from(psn);
        if behind < 0 {
            self.newest = psn;
            return 1;
        }
        let behind = behind.unsigned_abs();
        if behind >= TRY_WINDOW {
            return 2;
        }
        let newest = self.newest;
        if self.tries.len() >= 2 * TRY_WINDOW as usize {
            self.tries.retain(|p, _| newest.distance_from(Psn::new(*p)).unsigned_abs() < TRY_WINDOW);
        }
        let count = self.tries.entry(psn.value()).or_insert(1);
        *count = count.saturating_add(1);
        *count
    }
}

/// The value that half of the others do not exceed.
fn middle(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    let half = values.len() / 2;
    match values.len() {
        0 => 0,
        _ => *values.select_nth_unstable(half).1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        Stream { first: Psn::new(0), newest: Psn::MAX, tries: HashMap::new(), last_used: 0 }
    }

    #[test]
    fn repetitions_are_counted_for_each_psn() {
        let mut stream = stream();
        let mut attempt = |n: u32| stream.attempt(Psn::new(n));
        assert_eq!([attempt(0), attempt(1), attempt(5)], [1, 1, 1]);
        assert_eq!([attempt(1), attempt(1), attempt(0), attempt(6), attempt(6)], [2, 3, 2, 1, 2]);
    }

    #[test]
    fn the_memory_of_repetitions_is_bounded() {
        let mut stream = stream();
        for n in 0..100_000 {
            assert_eq!(stream.attempt(Psn::new(n)), 1);
            assert_eq!(stream.attempt(Psn::new(n)), 2);
            assert!(stream.tries.len() <= 2 * TRY_WINDOW as usize);
        }
        assert_eq!(stream.attempt(Psn::new(99_999)), 3, "recent ones are remembered");
        assert_eq!(stream.attempt(Psn::new(5)), 2, "old ones are known to be repetitions");
        assert_eq!(stream.attempt(Psn::new(5)), 2, "but not which");
    }

    #[test]
    fn psns_wrap_around() {
        let mut stream = stream();
        stream.newest = Psn::new(0xff_fffe);
        assert_eq!(stream.attempt(Psn::MAX), 1);
        assert_eq!(stream.attempt(Psn::new(0)), 1);
        assert_eq!(stream.attempt(Psn::MAX), 2);
    }

    #[test]
    fn the_oldest_half_of_the_queue_pairs_is_forgotten() {
        let mut tracker = Tracker::default();
        let flow = |n: u32| QpFlow {
            direction: Direction::Rx,
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            qpn: Qpn::new(n + 2),
        };
        let count = MAX_STREAMS as u32;
        for n in 0..count + 10 {
            tracker.tick += 1;
            assert_eq!(tracker.place_of(flow(n)), Some(n));
            assert!(tracker.flows.len() <= MAX_STREAMS);
        }
        assert_eq!(tracker.place_of(flow(count)), Some(count), "a recent one keeps its place");
        assert_eq!(tracker.place_of(flow(0)), Some(count + 10), "a forgotten one is new");
        assert_eq!(tracker.place_of(QpFlow { qpn: Qpn::GSI, ..flow(0) }), None);
    }
}
