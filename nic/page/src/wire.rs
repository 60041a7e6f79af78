//! The cable between the two NICs of the page, with a queue in front of it, on which every packet can be touched.

use cc::Rate;
use cc::dcqcn::Red;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use rnic_core::sim::{Network, Packet, Reached, Room, Target};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use time::{Duration, Instant};

/// What the sliders say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    /// The time on the cable.
    pub(crate) latency: Duration,
    /// The share of packets that is lost, each way.
    pub(crate) loss: f64,
    /// The rate of the port in front of the cable.
    pub(crate) rate: Rate,
    /// The rate at which the sender's NIC sends, if somebody sets it by hand.
    pub(crate) sender: Option<Rate>,
    /// Bytes that the port keeps before it drops.
    pub(crate) buffer: u64,
    /// How the port marks: nothing below `kmin`, `pmax` at `kmax`, and everything beyond.
    pub(crate) kmin: u64,
    pub(crate) kmax: u64,
    pub(crate) pmax: f64,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It waits in the queue of its port.
    Queued,
    /// It is on the cable until then.
    Flying { until: Instant },
    /// It has arrived.
    Arrived { at: Instant },
    /// It is lost, by chance or by hand.
    Lost { at: Instant },
    /// The queue was full.
    Dropped { at: Instant },
}

/// A packet that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// 0 is the requester, 1 the responder.
    pub(crate) from: usize,
    pub(crate) at: Instant,
    pub(crate) packet: Packet,
    pub(crate) fate: Fate,
    /// When its last bit left the port.
    pub(crate) left: Option<Instant>,
    pub(crate) marked: bool,
    /// Whether its state has changed since the page was told.
    pub(crate) is_new: bool,
    to: Target,
}

/// A direction of the cable.
#[derive(Default)]
struct Side {
    /// Numbers of packets.
    queue: VecDeque<usize>,
    bytes: u64,
    /// When the port has sent what it is sending.
    free: Option<Instant>,
    /// When the sender's NIC may send again, if its rate is set by hand.
    may_send: Option<Instant>,
}

/// The cable.
pub(crate) struct Cable {
    pub(crate) settings: Settings,
    pub(crate) sent: Vec<Sent>,
    sides: [Side; 2],
    random: ChaCha8Rng,
}

/// The cable, for the simulation and for the page.
#[derive(Clone)]
pub(crate) struct Wire(Arc<Mutex<Cable>>);

impl Wire {
    pub(crate) fn new(settings: Settings, seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self(Arc::new(Mutex::new(Cable { settings, sent: Vec::new(), sides: Default::default(), random })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Cable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cable {
    /// Bytes that wait for the requester's port (0) or the responder's (1).
    pub(crate) fn queued(&self, side: usize) -> u64 {
        self.sides[side].bytes
    }

    /// Loses a packet that has not arrived. Returns whether it could.
    pub(crate) fn lose(&mut self, number: usize, now: Instant) -> bool {
        let Some(sent) = self.sent.get_mut(number) else { return false };
        if !matches!(sent.fate, Fate::Queued | Fate::Flying { .. }) {
            return false;
        }
        if sent.fate == Fate::Queued {
            let side = &mut self.sides[sent.from];
            side.queue.retain(|other| *other != number);
            side.bytes -= u64::from(sent.packet.wire_bytes());
        }
        (sent.fate, sent.is_new) = (Fate::Lost { at: now }, true);
        true
    }

    /// Makes a packet on the cable take longer. Others overtake it.
    pub(crate) fn delay(&mut self, number: usize, by: Duration) -> bool {
        match self.sent.get_mut(number) {
            Some(Sent { fate: Fate::Flying { until }, is_new, .. }) => {
                *until += by;
                *is_new = true;
                true
            }
            _ => false,
        }
    }

    /// Marks a packet as having met congestion.
    pub(crate) fn mark(&mut self, number: usize) -> bool {
        let Some(sent) = self.sent.get_mut(number) else { return false };
        let is_there = matches!(sent.fate, Fate::Queued | Fate::Flying { .. });
        if is_there {
            mark(sent);
        }
        is_there
    }

    fn chance(&mut self, share: f64) -> bool {
        (f64::from(self.random.next_u32()) / f64::from(u32::MAX)) < share
    }

    /// The port begins to send what waits, as far as it can at this instant.
    fn depart(&mut self, side: usize, now: Instant) {
        while self.sides[side].free.is_none_or(|free| free <= now) {
            let Some(number) = self.sides[side].queue.pop_front() else { return };
            let begin = self.sides[side].free.unwrap_or(now).max(self.sent[number].at);
            let bytes = u64::from(self.sent[number].packet.wire_bytes());
            let red = Red { kmin: self.settings.kmin, kmax: self.settings.kmax, pmax: self.settings.pmax };
            let share = red.probability(self.sides[side].bytes as f64);
            self.sides[side].bytes -= bytes;
            let end = begin + self.settings.rate.time_for(bytes);
            self.sides[side].free = Some(end);
            if self.chance(share) {
                mark(&mut self.sent[number]);
            }
            let is_lost = self.chance(self.settings.loss);
            let sent = &mut self.sent[number];
            sent.left = Some(end);
            sent.fate = if is_lost {
                Fate::Lost { at: end }
            } else {
                Fate::Flying { until: end + self.settings.latency }
            };
            sent.is_new = true;
        }
    }
}

/// Sets the ECN field to "congestion experienced", if the packet is of a transport that can read it (RFC 3168).
fn mark(sent: &mut Sent) {
    const CE: u8 = 3;
    if sent.packet.ip.tos & CE != 0 {
        sent.packet.ip.tos |= CE;
        (sent.marked, sent.is_new) = (true, true);
    }
}

impl Network for Wire {
    fn attach(&mut self, _: IpAddr) {}

    fn room(&self, site: usize) -> Option<Room> {
        let cable = self.lock();
        cable.settings.sender.filter(|_| site == 0)?;
        let is_open = cable.sides[0].may_send.is_none();
        Some([if is_open { 1 } else { 0 }; rnic_core::priority::PRIORITIES])
    }

    fn send(&mut self, now: Instant, from: Option<usize>, to: Target, packet: Packet) {
        let mut cable = self.lock();
        let from = from.unwrap_or(0).min(1);
        let bytes = u64::from(packet.wire_bytes());
        let number = cable.sent.len();
        let is_full = cable.sides[from].bytes + bytes > cable.settings.buffer;
        let fate = if is_full { Fate::Dropped { at: now } } else { Fate::Queued };
        cable.sent.push(Sent { from, at: now, packet, fate, left: None, marked: false, is_new: true, to });
        if let (Some(rate), 0) = (cable.settings.sender, from) {
            let free = cable.sides[0].may_send.unwrap_or(now).max(now);
            cable.sides[0].may_send = Some(free + rate.time_for(bytes));
        }
        if !is_full {
            cable.sides[from].bytes += bytes;
            cable.sides[from].queue.push_back(number);
            cable.depart(from, now);
        }
    }

    fn next(&mut self) -> Option<Instant> {
        let cable = self.lock();
        let arrivals = cable.sent.iter().filter_map(|sent| match sent.fate {
            Fate::Flying { until } => Some(until),
            _ => None,
        });
        let ports = cable.sides.iter().filter(|side| !side.queue.is_empty()).filter_map(|side| side.free);
        arrivals.chain(ports).chain(cable.sides[0].may_send).min()
    }

    fn run(&mut self, until: Instant, reached: &mut Vec<(Target, Reached)>) -> Option<Instant> {
        loop {
            let now = self.next().filter(|at| *at <= until)?;
            let mut cable = self.lock();
            for side in [0, 1] {
                cable.depart(side, now);
            }
            let count = reached.len();
            if cable.sides[0].may_send.is_some_and(|at| at <= now) {
                cable.sides[0].may_send = None;
                reached.push((Target::Site(0), Reached::Room));
            }
            for sent in cable.sent.iter_mut().filter(|sent| sent.fate == (Fate::Flying { until: now })) {
                (sent.fate, sent.is_new) = (Fate::Arrived { at: now }, true);
                reached.push((sent.to, Reached::Packet(sent.packet.clone())));
            }
            if reached.len() > count {
                return Some(now);
            }
        }
    }
}
