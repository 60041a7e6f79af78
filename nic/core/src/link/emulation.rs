//! An emulated port and cable: packets arrive as if they had passed both.
//!
//! [`Emulation`] sits where packets arrive, behind the fault rules, which are the wire. To the engine it is the
//! egress queue of the switch port in front of this NIC, and the cable to it. Packets are late by the delay of the
//! cable, wait in queues by priority, are dropped when the buffer is full, and leave at the rate of the port. They
//! are marked as having met congestion, and make the port tell its peers to pause.
//!
//! Its clock is arithmetic. A packet leaves when the line has carried it, to the fraction of a picosecond, not when a
//! thread gets to look. A packet enters the queue when it arrived, not when it was read: the kernel stamps datagrams
//! on arrival, and a process that was not scheduled for some milliseconds works through them at the times of their
//! stamps. So a late thread does not turn a stream into a burst, and marks and drops follow from the queue as it was.

mod pauses;
mod queues;
#[cfg(test)]
mod tests;

use crate::link::{Fate, Frame, LinkProfile, Model};
use cc::pfc::PauseFrame;
use qp::wire::IpHeader;
use queues::Egress;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use time::{Duration, Instant};

/// The priority of a packet: the upper three bits of its DSCP, as Linux' mlx5 driver maps them if it trusts the DSCP.
#[must_use]
pub const fn priority_of(tos: u8) -> u8 {
    tos >> 5
}

/// The priorities of a port.
pub const PRIORITIES: usize = cc::pfc::PRIORITIES;

/// Opcodes of flow control and pauses between rnic ports, among those that IBTA leaves to manufacturers. On a cable
/// they do not wait in the queue: they have their own place between packets.
const LINK_OPCODES: std::ops::RangeInclusive<u8> = 0xc0..=0xc1;

/// The most bytes on the cable, as for packets that fault rules delay.
const MAX_ON_CABLE: u64 = 64 << 20;

/// Arrivals kept for [`Emulation::poll_entered`]: as many of the smallest packets as fill the largest windows of 15
/// lanes, 131,072 bytes each.
const MAX_ENTERED: usize = 15 * 131_072 / 64;

/// The counters of a link for one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityStats {
    /// Packets that left.
    pub packets: u64,
    /// Bytes that left, in sizes on Ethernet.
    pub bytes: u64,
    /// Packets that were marked as having met congestion.
    pub marked: u64,
    /// Packets that were dropped because the buffer was full: the priority is lossy.
    pub cong_discard: u64,
    /// Packets that were dropped because the headroom was full: the priority is lossless.
    pub buf_discard: u64,
    /// Packets that were dropped because their service level has no lane, or for lack of memory.
    pub other_discard: u64,
}

impl PriorityStats {
    /// Packets that were dropped, for any reason.
    #[must_use]
    pub const fn discards(&self) -> u64 {
        self.cong_discard + self.buf_discard + self.other_discard
    }
}

/// The counters of a link and the fill of its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmulationStats {
    /// Bytes in the queue, including the packet that is leaving.
    pub queue_bytes: u64,
    /// The highest value of `queue_bytes` so far.
    pub queue_bytes_max: u64,
    /// Bytes in the queue by priority.
    pub queue: [u64; PRIORITIES],
    /// The counters of each priority.
    pub priorities: [PriorityStats; PRIORITIES],
    /// Packets that were marked as having met congestion.
    pub marked: u64,
    /// Packets that were dropped because the buffer was full, or because there is no lane for their service level.
    pub dropped: u64,
    /// Packets that left.
    pub dequeued_packets: u64,
    /// Bytes that left, in sizes on Ethernet.
    pub dequeued_bytes: u64,
    /// Pause frames that the port had for its peers, including those that end a pause.
    pub pauses_sent: u64,
    /// Packets that the socket buffer of a slow receiver had no room for, in a simulation. On the network the kernel
    /// counts them: `socket_rx_overrun`.
    pub receiver_overrun: u64,
}

/// A packet that reached the queue of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// The headers around it on arrival.
    pub ip: IpHeader,
    /// Its first bytes: the BTH as far as the destination.
    pub head: [u8; 8],
    /// Its length, BTH to ICRC.
    pub len: usize,
    /// Whether it was dropped: it will not leave the queue.
    pub dropped: bool,
}

/// A packet on the cable.
struct Flying {
    due: Instant,
    frame: Frame,
}

/// Makes arriving packets behave as if they had come through a port of a given rate, and over a cable of a given
/// length.
pub struct Emulation {
    /// `None` for a cable without a port.
    egress: Option<Egress>,
    delay: Duration,
    cable: VecDeque<Flying>,
    on_cable: u64,
    /// The latest time seen. Threads may take the lock in another order than they read the clock.
    latest: Option<Instant>,
    /// When the latest packet arrived. Packets of several sockets may be read in another order.
    last_arrival: Option<Instant>,
    /// `None` unless link credit guards the queue.
    entered: Option<VecDeque<Entered>>,
    /// The name to which captures attribute drops.
    name: Arc<str>,
    /// Dropped on the cable.
    dropped: u64,
}

impl Emulation {
    /// The port and cable that `profile` describes; `None` if it describes neither. Random marks follow from `seed`.
    #[must_use]
    pub fn new(profile: &LinkProfile, now: Instant, seed: u64) -> Option<Self> {
        let entered = (profile.model == Model::IbCredits).then(VecDeque::new);
        profile.emulates().then(|| Self {
            egress: Egress::new(profile, now, seed),
            delay: profile.delay,
            cable: VecDeque::new(),
            on_cable: 0,
            latest: None,
            last_arrival: None,
            entered,
            name: "link".into(),
            dropped: 0,
        })
    }

    /// Has the port write telemetry into what leaves it: a peer uses it for congestion control.
    pub const fn write_telemetry(&mut self) {
        if let Some(egress) = &mut self.egress {
            egress.write_telemetry();
        }
    }

    /// Counters, and the length of the queue as of the last packet or timeout.
    #[must_use]
    pub fn stats(&self) -> EmulationStats {
        let stats = self.egress.as_ref().map(Egress::stats).unwrap_or_default();
        EmulationStats { dropped: stats.dropped + self.dropped, ..stats }
    }

    /// The peak number of bytes in the queue since the last call; `None` without a queue.
    pub fn take_queue_peak(&mut self) -> Option<u64> {
        self.egress.as_mut().map(Egress::take_peak)
    }

    /// Whether link credit guards the queue of this port ([`Model::IbCredits`]), rather than the socket in front of it.
    #[must_use]
    pub const fn holds_credit(&self) -> bool {
        self.entered.is_some()
    }

    /// The next packet that entered the queue, with `ib-credits`. Its credit returns when it leaves, or at once if it
    /// was dropped. Beyond a bound the oldest entries are forgotten.
    pub fn poll_entered(&mut self) -> Option<Entered> {
        self.entered.as_mut()?.pop_front()
    }

    /// Returns the next pause frame to send, and the peer to send it to. Call it after packets arrived and after
    /// timeouts, until it returns `None`.
    pub fn poll_pause(&mut self, now: Instant) -> Option<(IpAddr, PauseFrame)> {
        self.egress.as_mut()?.poll_pause(now)
    }

    /// Processes everything that is due, in order: a packet that arrives at the instant at which another leaves finds
    /// its place free.
    fn advance(&mut self, now: Instant, out: &mut dyn FnMut(Frame)) {
        loop {
            let departure = self.egress.as_ref().and_then(Egress::departs).filter(|at| *at <= now);
            let landing = self.cable.front().map(|flying| flying.due).filter(|at| *at <= now);
            match (departure, landing) {
                (Some(leaves), lands) if lands.is_none_or(|lands| leaves <= lands) => {
                    if let Some(frame) = self.egress.as_mut().and_then(Egress::depart) {
                        out(frame);
                    }
                }
                (_, Some(_)) => {
                    let Some(Flying { due, frame }) = self.cable.pop_front() else { return };
                    self.on_cable = self.on_cable.saturating_sub(frame.bytes.len() as u64);
                    self.arrive(due, frame, out);
                }
                _ => return,
            }
        }
    }

    /// A packet arrives at the port.
    fn arrive(&mut self, at: Instant, frame: Frame, out: &mut dyn FnMut(Frame)) {
        let Some(egress) = &mut self.egress else { return out(frame) };
        if frame.bytes.first().is_some_and(|opcode| LINK_OPCODES.contains(opcode)) {
            return out(frame);
        }
        let mut entered = Entered {
            ip: frame.ip,
            head: frame.bytes.first_chunk().copied().unwrap_or_default(),
            len: frame.bytes.len(),
            dropped: false,
        };
        if let Some((mut frame, why)) = egress.enqueue(at, frame) {
            entered.dropped = true;
            drop_by(&self.name, &mut frame, why);
            out(frame);
        }
        if let Some(list) = &mut self.entered {
            if list.len() >= MAX_ENTERED {
                list.pop_front();
            }
            list.push_back(entered);
        }
    }

    fn not_before(&mut self, now: Instant) -> Instant {
        let now = self.latest.map_or(now, |latest| latest.max(now));
        self.latest = Some(now);
        now
    }
}

fn drop_by(name: &Arc<str>, frame: &mut Frame, why: &str) {
    frame.fate = Fate::Dropped { by: Arc::clone(name) };
    frame.notes.push(format!("link: dropped: {why}"));
}

impl Emulation {
    /// Takes a packet that arrived at `arrived`, or arrives now if that is not known. It goes to `out` when it leaves the port, now or in a later call; a dropped packet
    /// goes there at once, with [`Fate::Dropped`], for observers.
    pub fn handle(
        &mut self,
        now: Instant,
        arrived: Option<Instant>,
        mut frame: Frame,
        out: &mut dyn FnMut(Frame),
    ) {
        let now = self.not_before(now);
        let at = arrived.map_or(now, |arrived| arrived.min(now));
        let at = self.last_arrival.map_or(at, |last| last.max(at));
        self.last_arrival = Some(at);
        // What leaves after this packet arrives stays in the queue with it, even if that is in the past by now.
        self.advance(at, out);
        if self.delay.is_zero() {
            self.arrive(at, frame, out);
            return;
        }
        let bytes = frame.bytes.len() as u64;
        if self.on_cable + bytes > MAX_ON_CABLE {
            self.dropped += 1;
            drop_by(&self.name, &mut frame, "too much on the cable");
            out(frame);
            return;
        }
        self.on_cable += bytes;
        self.cable.push_back(Flying { due: at + self.delay, frame });
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let egress = self.egress.as_ref();
        let times = [
            egress.and_then(Egress::departs),
            egress.and_then(Egress::refreshes),
            self.cable.front().map(|flying| flying.due),
        ];
        times.into_iter().flatten().min()
    }

    /// Lets packets leave that are due.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut dyn FnMut(Frame)) {
        let now = self.not_before(now);
        self.advance(now, out);
    }
}
