//! Admission: what a queue pair may send in its turn, or what it waits for.
//!
//! Each policy answers for itself: "this much now" narrows the [`Grant`], "wait for that" is the [`Place`] where the
//! queue pair waits. They are asked in a fixed order: the rate, the room in the NIC, the link to the peer, the room at the
//! peer, the window of congestion control.

use super::{Due, Gate, Place, Turn, Wire};
use crate::engine::drains::Allowance;
use crate::engine::partner::{Partners, PauseGate, largest_packet};
use crate::engine::path::Path;
use crate::engine::peers::{FLIGHT_LIFE, Flights, PACKET_OVERHEAD};
use crate::engine::rate::Limit;
use crate::engine::{Engine, QpEntry};
use cc::PeerWindow;
use qp::QpType;
use time::Instant;

/// What a turn may send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) path: Path,
    /// The size of the train.
    pub(super) limit: Limit,
    /// Packets that may be put in flight, and READ responses that may be sent.
    pub(super) requests: u32,
    pub(super) responses: u32,
    /// What the train is charged to.
    pub(super) account: Account,
    /// What holds back the rest: the queue pair waits there after this turn.
    pub(super) held: Option<Place>,
    /// A pause counts as a storm, and the watchdog drops what leaves.
    pub(super) is_dropped: bool,
}

/// What a train is charged to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Account {
    /// The window of a peer.
    Window(usize),
    /// Nothing: a packet beyond the window.
    Beyond,
    /// Credit for a lane to a partner.
    Credit { peer: usize, vl: usize },
    /// The pace of a receiver of unacknowledged packets.
    Drain,
}

/// What the link to a peer allows.
enum Link {
    /// No restriction: the peer is not a partner, or gives no credit.
    Open,
    /// As much as the credit of a lane covers.
    Credit { peer: usize, vl: usize },
    /// No restriction, but the packets are dropped.
    Drop,
}

/// Number of packets with this payload in a train.
fn train_of(payload: u32, max_packets: u32) -> u32 {
    // The largest UDP payload over IPv4.
    (65_507 / (payload + PACKET_OVERHEAD)).min(max_packets)
}

impl Engine {
    /// What a turn may send now, or where it has to wait. A turn that was `called` from a gate goes before all others
    /// that wait there; a turn that was not queues behind them. In front of the wire, where every turn comes by, those
    /// that were called from any gate do not queue.
    #[inline]
    pub(super) fn admit(
        &mut self,
        now: Instant,
        turn: Turn,
        called: Option<Gate>,
        max_packets: u32,
    ) -> Result<Grant, Place> {
        let index = turn.index();
        let (mut limit, paced) = self.pace(now, index, max_packets);
        let Some(entry) = self.qps[index].as_ref() else { return Err(Place::Idle) };
        if let Some(at) = paced
            && !entry.qp.wants_to_acknowledge()
        {
            return Err(Place::Paced(at));
        }
        let is_reliable = entry.qp.config().qp_type.is_reliable();
        let Some(mut path) = self.destination(now, index) else { return Err(Place::Idle) };
        if let Some(room) = self.wire.room_for(path.ip.tos) {
            let gate = Wire::gate(path.ip.tos);
            // A turn called from another gate has already queued there. If it queued again here, the next one behind it
            // would take its place there, turns called from here would queue behind that one, and so on without end.
            if room == 0 || (called.is_none() && self.places.has_waiters(gate)) {
                return Err(Place::Waits(gate));
            }
            limit.narrow(room, self.config.address.is_ipv6());
        }
        let link = self.link(now, index, &path)?;
        if self.marks(index, &path) {
            path.mark_ecn_capable();
        }
        let is_dropped = matches!(link, Link::Drop);
        let responses = u32::MAX;
        let account = Account::Drain;
        let mut grant = Grant { path, limit, requests: 0, responses, account, held: None, is_dropped };
        match link {
            Link::Credit { peer, vl } => self.credit(now, index, called, (peer, vl), &mut grant)?,
            Link::Open | Link::Drop if is_reliable => self.window(index, called, max_packets, &mut grant)?,
            Link::Open | Link::Drop => self.drain(now, index, called, max_packets, &mut grant)?,
        }
        if let Some(room) = self.congestion_room(index).filter(|room| *room < grant.requests) {
            grant.requests = room;
            if room == 0 {
                grant.held = Some(Place::Waits(Gate::Congestion(index)));
            }
        }
        if matches!(turn, Turn::Answers(_)) {
            (grant.requests, grant.held) = (0, None);
        }
        if let Some(at) = paced {
            // An acknowledgement leaves. A READ response with data is longer, so it would begin another train anyway.
            (grant.requests, grant.responses, grant.held) = (0, 0, Some(Place::Paced(at)));
        }
        match grant.held {
            Some(place) if !self.qps[index].as_ref().is_some_and(|entry| entry.qp.wants_to_answer()) => {
                Err(place)
            }
            _ => Ok(grant),
        }
    }

    /// Where the next packets of a queue pair go. Under the credit model a destination that is not known yet becomes a
    /// peer.
    fn destination(&mut self, now: Instant, index: usize) -> Option<Path> {
        let entry = self.qps[index].as_ref()?;
        if entry.path.is_some() {
            return entry.path;
        }
        let (av, qpn) = entry.qp.next_destination()?;
        let mut path = self.config.path_along(av, qpn.slot());
        // Few peers are partners, so the lookup is skipped for all others.
        if self.partners.is_active() {
            let is_management = entry.qp.config().qp_type == QpType::Gsi;
            path.peer = self.peers.find(path.ip.dst, qpn.slot());
            let is_new = path.peer.is_none() && !is_management && !path.ip.dst.is_multicast();
            if is_new && self.partners.needs_credit() {
                self.make_room(now);
                path.peer = Some(self.peers.meet(path.ip.dst, qpn.slot()));
            }
        }
        Some(path)
    }

    /// What the link to a peer allows.
    fn link(&mut self, now: Instant, index: usize, path: &Path) -> Result<Link, Place> {
        let Some(peer) = path.peer.filter(|_| self.partners.is_active()) else { return Ok(Link::Open) };
        let Some(entry) = self.qps[index].as_ref() else { return Err(Place::Idle) };
        // Queue pair 1 needs no credit, as VL15 does not.
        let is_management = entry.qp.config().qp_type == QpType::Gsi;
        let Some(partner) = Partners::partner(&mut self.peers, peer) else {
            // As on an InfiniBand link, nothing is sent before credit is available.
            let is_shut = self.partners.needs_credit() && !is_management && !self.is_foreign(peer);
            return if is_shut { Err(Place::Waits(Gate::Greeting(peer))) } else { Ok(Link::Open) };
        };
        let gives_credit = partner.gives_credit() && !is_management;
        match self.pause_gate(now, peer, path.ip.tos) {
            PauseGate::Open if gives_credit => {
                Ok(Link::Credit { peer, vl: self.partners.lane_of(path.ip.tos) })
            }
            PauseGate::Open => Ok(Link::Open),
            PauseGate::Shut => Err(Place::Waits(Gate::Pause { peer, priority: path.ip.tos >> 5 })),
            PauseGate::Drop => Ok(Link::Drop),
        }
    }

    /// Grants what the credit of a lane covers.
    fn credit(
        &mut self,
        now: Instant,
        index: usize,
        called: Option<Gate>,
        (id, vl): (usize, usize),
        grant: &mut Grant,
    ) -> Result<(), Place> {
        let gate = Gate::Credit { peer: id, vl };
        let Some(entry) = self.qps[index].as_ref() else { return Err(Place::Idle) };
        let size = largest_packet(entry.qp.next_payload() as usize);
        let room = match called == Some(gate) || !self.places.has_waiters(gate) {
            true => self.credit_for(now, id, vl, size, grant.limit.packets),
            false => 0,
        };
        if room == 0 {
            return Err(Place::Waits(gate));
        }
        grant.limit.packets = grant.limit.packets.min(room);
        (grant.requests, grant.account) = (room, Account::Credit { peer: id, vl });
        Ok(())
    }

    /// Grants the room in the window of a peer. What a retransmission begins with needs none: otherwise a queue pair whose
    /// peer is gone would wait for others before each of its retries, and learn it that much later. A packet for each
    /// timeout is little, and is not charged, so that the window still empties while retries go on. With selective repeat
    /// nothing that is sent again needs room: it still has what it took at first.
    fn window(
        &mut self,
        index: usize,
        called: Option<Gate>,
        max_packets: u32,
        grant: &mut Grant,
    ) -> Result<(), Place> {
        let Some(id) = grant.path.peer else { return Err(Place::Idle) };
        let gate = Gate::Window(id);
        let Some(entry) = self.qps[index].as_ref() else { return Err(Place::Idle) };
        let is_first = called == Some(gate);
        let others = self.places.has_waiters(gate) && (!is_first || self.places.waiting_at(gate) > 1);
        // As long as the next packet will be: small packets leave in longer trains. The room that a READ takes is that of its
        // response.
        let response = entry.qp.next_read();
        let train = response.unwrap_or_else(|| train_of(entry.qp.next_payload(), max_packets));
        // A train of small packets is full when it has as many as one may have.
        let is_small = response.is_none() && train == max_packets;
        let window = self.peers.get_mut(id).window;
        let window = if is_small { window.for_small_packets() } else { window };
        let room = entry.window_room(&window, others, is_first, train);
        // The rest of the room is kept for a whole piece: the ends of a response leave in trains of their own.
        grant.requests = if response.is_some() && room > train { room - room % train } else { room };
        grant.account = Account::Window(id);
        let repetitions = entry.qp.repetitions_due();
        if grant.requests == 0 && repetitions > 0 {
            (grant.requests, grant.account) = (repetitions, Account::Beyond);
        }
        grant.held = (grant.requests == 0).then_some(Place::Waits(gate));
        Ok(())
    }

    /// Grants what a receiver of unacknowledged packets has room for by now.
    fn drain(
        &mut self,
        now: Instant,
        index: usize,
        called: Option<Gate>,
        max_packets: u32,
        grant: &mut Grant,
    ) -> Result<(), Place> {
        let Some(entry) = self.qps[index].as_ref() else { return Err(Place::Idle) };
        let mtu = entry.qp.mtu();
        let full = train_of(mtu.bytes(), max_packets);
        match self.allowance(now, grant.path.ip.dst, mtu, full, called) {
            Allowance::Packets(packets) => grant.requests = packets,
            Allowance::Wait(receiver) => return Err(Place::Waits(Gate::Drain(receiver))),
        }
        Ok(())
    }

    /// Makes sure that a gate at which a queue pair waits opens at some time. `is_new`: it did not wait there before.
    pub(super) fn watch(&mut self, now: Instant, gate: Gate, index: usize, is_new: bool) {
        let stalls = match gate {
            Gate::Greeting(_) => &mut self.counters.greeting_stalls,
            Gate::Pause { .. } => &mut self.counters.pause_stalls,
            Gate::Credit { .. } => &mut self.counters.credit_stalls,
            Gate::Window(_) => &mut self.counters.window_stalls,
            Gate::Drain(_) => &mut self.counters.pace_stalls,
            Gate::Wire(_) => &mut self.counters.wire_stalls,
            Gate::Congestion(_) => &mut self.counters.congestion_stalls,
        };
        *stalls += u64::from(is_new);
        match gate {
            Gate::Greeting(peer) => self.await_greeting(now, peer),
            Gate::Pause { peer, .. } => self.arm_pause(peer),
            Gate::Credit { peer, vl } => self.await_credit(now, peer, vl, is_new),
            Gate::Window(id) => {
                if let Some(peer) = self.peers.find_mut(id) {
                    self.timers.set(&mut peer.watch, now + FLIGHT_LIFE, Due::Window(id));
                }
            }
            Gate::Drain(receiver) => {
                let Some(entry) = self.qps[index].as_ref() else { return };
                let full = train_of(entry.qp.mtu().bytes(), u32::MAX);
                self.await_drain(now, receiver, Flights::packet_charge(entry.qp.mtu()).saturating_mul(full));
            }
            // The NIC tells; an acknowledgement or the queue pair's own timer opens its window.
            Gate::Wire(_) | Gate::Congestion(_) => {}
        }
    }
}

impl QpEntry {
    /// The number of packets that the queue pair may put in flight now. If no other queue pair uses the peer's window,
    /// it may fill the remaining room. Otherwise queue pairs take turns of one full train each: where the budget ends,
    /// the requester requests an acknowledgement. Thus no queue pair waits while unacknowledged packets, for which no
    /// acknowledgement was requested, occupy the window.
    fn window_room(&self, window: &PeerWindow, others: bool, is_first: bool, train: u32) -> u32 {
        let room = window.packets(Flights::packet_charge(self.qp.mtu()));
        let unrequested = self.qp.since_ack_request();
        // Requesting an acknowledgement ensures that packets in flight do not occupy room indefinitely, possibly the
        // very room that the queue pair waits for. If packets leave in shorter trains than assumed, the packet that
        // requests the acknowledgement may exceed the window by one.
        if unrequested > 0 && room == 0 {
            return 1;
        }
        // Near the end of the window, waiting for acknowledgements is better than sending trains into the little room
        // that is left: a system call for two packets costs as much as one for fifteen. Nor is a READ cut into small pieces.
        let is_nearly_full = room < train && window.is_half_used();
        if unrequested == 0 && (others && !is_first || is_nearly_full) {
            return 0;
        }
        let is_alone = !others && window.used() == self.flights.charged();
        if is_alone { room } else { room.min(train.saturating_sub(unrequested).max(1)) }
    }
}
