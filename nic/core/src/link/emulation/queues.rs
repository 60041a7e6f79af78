//! The queues of the port, and which packet leaves next.

use super::pauses::Pauses;
use super::{EmulationStats, PRIORITIES, priority_of};
use crate::link::{Frame, LinkProfile, Model, collects, telemetry_bytes, wire_bytes};
use cc::dcqcn::CongestionPoint;
use cc::ets::Scheduler;
use cc::hpcc::Hop;
use cc::pfc::PauseFrame;
use cc::vl::Arbiter;
use cc::{LineClock, Rate};
use std::collections::VecDeque;
use std::net::IpAddr;
use time::Instant;

/// The most bytes in all queues together: the limit of one buffer.
const MAX_WAITING: u64 = 1 << 30;

/// Queues: one for each priority or data lane.
const QUEUES: usize = 16;

/// The two ECN bits of the TOS, and their value for congestion experienced.
const ECN: u8 = 0b11;
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Whether a queue may mark a packet instead of dropping it: ECN says 01 or 10.
const fn is_ecn_capable(tos: u8) -> bool {
    matches!(tos & ECN, 0b01 | 0b10)
}

/// Why a packet is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    BufferFull,
    HeadroomFull,
    NoLane,
    TooMuch,
}

impl Refusal {
    /// For captures.
    const fn text(self) -> &'static str {
        match self {
            Self::BufferFull => "buffer full",
            Self::HeadroomFull => "headroom full",
            Self::NoLane => "its service level has no lane",
            Self::TooMuch => "too much is waiting",
        }
    }
}

/// A packet that waits.
struct Waiting {
    frame: Frame,
    bytes: u32,
    /// Its peer's account covers it, not the buffer.
    lossless: bool,
}

#[derive(Default)]
struct Queue {
    packets: VecDeque<Waiting>,
    bytes: u64,
}

/// Which queue a packet waits in, and which queue sends next.
enum Selection {
    Priorities(Scheduler),
    Lanes { arbiter: Arbiter, vls: u8 },
}

impl Selection {
    /// The queue of a priority; `None` if it has none.
    fn queue_of(&self, priority: u8) -> Option<u8> {
        match self {
            Self::Priorities(_) => Some(priority),
            Self::Lanes { arbiter, vls } => arbiter.lane_of(priority).map(|vl| vl.number() % (*vls).max(1)),
        }
    }

    fn next(&mut self, queues: &[Queue; QUEUES]) -> Option<u8> {
        let first = |queue: u8| {
            let queue = queues.get(usize::from(queue))?;
            queue.packets.front().map(|waiting| waiting.bytes)
        };
        match self {
            Self::Priorities(scheduler) => scheduler.next(first),
            Self::Lanes { arbiter, .. } => arbiter.next(|vl| first(vl.number())).map(cc::vl::Vl::number),
        }
    }
}

/// The egress side of a port: buffer, queues and line.
pub(super) struct Egress {
    selection: Selection,
    queues: [Queue; QUEUES],
    line: LineClock,
    /// The queue whose first packet is on the line, and when its last byte will have left.
    leaving: Option<(u8, Instant)>,
    buffer: u64,
    /// Waiting bytes of lossy priorities, which the buffer bounds.
    lossy: u64,
    marking: Option<CongestionPoint>,
    pauses: Option<Pauses>,
    stats: EmulationStats,
    /// The most bytes in the queue since the last query.
    peak: u64,
    rate: Rate,
    /// Whether it writes telemetry, which packets then collect.
    tells: bool,
}

impl Egress {
    /// The port of a profile; `None` if it has none.
    pub(super) fn new(profile: &LinkProfile, now: Instant, seed: u64) -> Option<Self> {
        let rate = profile.rate?;
        // A profile is valid: neither fails.
        let selection = match profile.model {
            Model::Ethernet => {
                Selection::Priorities(Scheduler::new(&profile.ets, profile.largest_packet).ok()?)
            }
            Model::IbCredits => {
                Selection::Lanes { arbiter: Arbiter::new(&profile.vl).ok()?, vls: profile.vls }
            }
        };
        Some(Self {
            selection,
            queues: Default::default(),
            line: LineClock::new(rate, now),
            leaving: None,
            // With credits the senders respect the buffer, in bytes as InfiniBand counts them.
            buffer: if profile.model == Model::IbCredits { MAX_WAITING } else { profile.buffer },
            lossy: 0,
            marking: profile.red.clone().map(|red| CongestionPoint::new(red, seed)),
            pauses: Pauses::new(rate, profile.thresholds),
            stats: EmulationStats::default(),
            peak: 0,
            rate,
            tells: false,
        })
    }

    pub(super) const fn write_telemetry(&mut self) {
        self.tells = true;
    }

    pub(super) fn stats(&self) -> EmulationStats {
        EmulationStats { pauses_sent: self.pauses.as_ref().map_or(0, |p| p.sent), ..self.stats }
    }

    /// The most bytes in the queue since the last call.
    pub(super) const fn take_peak(&mut self) -> u64 {
        std::mem::replace(&mut self.peak, self.stats.queue_bytes)
    }

    /// Puts a packet that arrives at `at` into its queue. If there is no room or no queue, returns it with the
    /// reason.
    pub(super) fn enqueue(&mut self, at: Instant, mut frame: Frame) -> Option<(Frame, &'static str)> {
        let priority = priority_of(frame.ip.tos);
        if self.tells && collects(&frame.bytes) {
            frame.telemetry.get_or_insert_default();
        }
        let bytes = wire_bytes(frame.bytes.len(), frame.ip.src.is_ipv6())
            + telemetry_bytes(frame.telemetry.as_deref());
        let (lossless, queue) = match self.admit(&frame, priority, bytes) {
            Ok(place) => place,
            Err(why) => {
                self.stats.dropped += 1;
                if let Some(of) = self.stats.priorities.get_mut(usize::from(priority)) {
                    match why {
                        Refusal::BufferFull => of.cong_discard += 1,
                        Refusal::HeadroomFull => of.buf_discard += 1,
                        Refusal::NoLane | Refusal::TooMuch => of.other_discard += 1,
                    }
                }
                return Some((frame, why.text()));
            }
        };
        let size = u64::from(bytes);
        if !lossless {
            self.lossy += size;
        }
        if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
            queue.bytes += size;
            queue.packets.push_back(Waiting { frame, bytes, lossless });
        }
        self.stats.queue_bytes += size;
        self.peak = self.peak.max(self.stats.queue_bytes);
        self.stats.queue_bytes_max = self.stats.queue_bytes_max.max(self.peak);
        if let Some(of) = self.stats.queue.get_mut(usize::from(priority)) {
            *of += size;
        }
        if self.leaving.is_none() {
            self.line.begin(at);
            self.send_next();
        }
        None
    }

    /// Whether a packet is lossless, and its queue; or why it is dropped.
    fn admit(&mut self, frame: &Frame, priority: u8, bytes: u32) -> Result<(bool, u8), Refusal> {
        let queue = self.selection.queue_of(priority).ok_or(Refusal::NoLane)?;
        if self.stats.queue_bytes + u64::from(bytes) > MAX_WAITING {
            return Err(Refusal::TooMuch);
        }
        match self.pauses.as_mut().and_then(|p| p.admit(frame.ip.src, priority, bytes)) {
            Some(Ok(())) => Ok((true, queue)),
            Some(Err(_)) => Err(Refusal::HeadroomFull),
            None if self.lossy + u64::from(bytes) > self.buffer => Err(Refusal::BufferFull),
            None => Ok((false, queue)),
        }
    }

    /// When the packet on the line has left.
    pub(super) fn departs(&self) -> Option<Instant> {
        self.leaving.map(|(_, at)| at)
    }

    /// Takes the packet on the line, which is due, and puts the next one there.
    pub(super) fn depart(&mut self) -> Option<Frame> {
        let (number, at) = self.leaving.take()?;
        let queue = self.queues.get_mut(usize::from(number))?;
        let length = queue.bytes;
        let Waiting { mut frame, bytes, lossless } = queue.packets.pop_front()?;
        let size = u64::from(bytes);
        queue.bytes -= size;
        let priority = priority_of(frame.ip.tos);
        if !lossless {
            self.lossy -= size;
        } else if let Some(pauses) = &mut self.pauses {
            pauses.release(frame.ip.src, priority, bytes);
        }
        self.stats.queue_bytes -= size;
        self.stats.dequeued_packets += 1;
        self.stats.dequeued_bytes += size;
        if let Some(of) = self.stats.queue.get_mut(usize::from(priority)) {
            *of -= size;
        }
        if let Some(telemetry) = frame.telemetry.as_mut().filter(|_| self.tells) {
            let stats = &self.stats;
            telemetry.push(Hop::new(self.rate, at, stats.dequeued_bytes, stats.queue_bytes));
        }
        let marked =
            is_ecn_capable(frame.ip.tos) && self.marking.as_mut().is_some_and(|point| point.marks(length));
        if let Some(of) = self.stats.priorities.get_mut(usize::from(priority)) {
            of.packets += 1;
            of.bytes += size;
            of.marked += u64::from(marked);
        }
        if marked {
            self.stats.marked += 1;
            frame.ip.tos |= CONGESTION_EXPERIENCED;
            frame.notes.push(format!("link: marked CE at queue {} KB", length.div_ceil(1000)));
        }
        self.send_next();
        Some(frame)
    }

    /// Puts the next packet on the line, behind the one before it.
    fn send_next(&mut self) {
        let Some(number) = self.selection.next(&self.queues) else { return };
        let first = self.queues.get(usize::from(number)).and_then(|queue| queue.packets.front());
        if let Some(first) = first {
            self.leaving = Some((number, self.line.carry(u64::from(first.bytes))));
        }
    }

    pub(super) fn poll_pause(&mut self, now: Instant) -> Option<(IpAddr, PauseFrame)> {
        self.pauses.as_mut()?.poll(now)
    }

    /// When the port asks for a pause again.
    pub(super) fn refreshes(&self) -> Option<Instant> {
        self.pauses.as_ref().and_then(Pauses::refreshes)
    }
}

// Each priority has its place among the queues and in the statistics.
const _: () = assert!(PRIORITIES <= QUEUES);
