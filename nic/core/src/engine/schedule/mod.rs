//! The sender's scheduler: which queue pair sends next, how much, and what wakes one that waits.
//!
//! The two turns of a queue pair (see [`places`]) are each in one [`Place`]: idle, ready, at a gate, or paced until a
//! time. Turns come up in order. When one does, the policies say what it may send ([`admit`]): the rate of the queue
//! pair, the link to its peer (handshake, pauses, credit), and the room at the peer (a window for what is acknowledged,
//! a pace for what is not). Either it sends a train ([`transmit`]), or it goes to the first gate that is shut. All
//! gates are asked again in every turn, so a place decides only what wakes a queue pair, never what it may do.
//!
//! What changes a queue pair's wishes ends in [`Engine::settle`]; what makes room calls [`Places::open`], which lets
//! the waiters of a gate try again, in order, until the first that still does not fit; and timers end in
//! [`Engine::handle_timeout`]. Nothing else moves a queue pair.

mod admit;
mod places;
#[cfg(test)]
mod tests;
mod timers;
mod transmit;
mod wire;

pub(super) use places::{Next, Place, Places, Turn};
pub(super) use timers::{Alarm, Timers};
pub(super) use wire::Wire;

use super::peers::FLIGHT_LIFE;
use super::rate::CnpSource;
use super::{Engine, QpEntry};
use qp::QpState;
use time::{Duration, Instant};

/// What a queue pair may have to wait for. Peers and receivers are numbers in their tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Gate {
    /// The end of the handshake with a peer.
    Greeting(usize),
    /// The end of a partner's pause of a priority.
    Pause { peer: usize, priority: u8 },
    /// Credit for a lane to a partner.
    Credit { peer: usize, vl: usize },
    /// Room in the window of a peer; answers need none, nor does the first packet of a retransmission.
    Window(usize),
    /// The time at which a receiver of unacknowledged packets will have read some of them.
    Drain(usize),
    /// Room for a priority in the NIC in front of the wire.
    Wire(u8),
    /// Room in the window that congestion control gives a queue pair, by table index; answers need none.
    Congestion(usize),
}

impl Gate {
    /// The peer that can open it.
    pub(super) const fn peer(self) -> Option<usize> {
        match self {
            Self::Greeting(peer)
            | Self::Pause { peer, .. }
            | Self::Credit { peer, .. }
            | Self::Window(peer) => Some(peer),
            Self::Drain(_) | Self::Wire(_) | Self::Congestion(_) => None,
        }
    }
}

/// The purpose of a timer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Due {
    /// A queue pair, by table index.
    Qp(usize),
    /// The departure time of a turn.
    Turn(Turn),
    /// The rate of the port allows a departure.
    Port,
    /// A receiver of unacknowledged packets has room.
    Drain(usize),
    /// What was never acknowledged no longer takes room in the window of a peer.
    Window(usize),
    /// Credit, pauses and questions of a peer.
    Partner(usize),
    /// Credit limits to be repeated.
    Limits,
    /// A congestion notification.
    Cnp(CnpSource),
    /// The connection manager.
    Connections,
}

impl Engine {
    /// Updates the engine after any action of a queue pair: completed work, its place, its timer, its peer's window,
    /// and the consequences for other queue pairs.
    pub(super) fn settle(&mut self, index: usize) {
        self.settle_one(index);
        self.fail_overrun();
    }

    pub(super) fn settle_one(&mut self, index: usize) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        let outstanding = [entry.qp.sends_outstanding(), entry.qp.recvs_outstanding()];
        entry.taken.settle(outstanding, &entry.shared);
        let state = entry.shared.state();
        if state != entry.qp.state() {
            entry.shared.set_state(entry.qp.state());
            let (qpn, now) = (entry.qp.qpn(), entry.qp.state());
            self.note_follower(qpn, Some(now));
            self.note_state(index, state);
        }
        let Some(entry) = self.qps[index].as_mut() else { return };
        if entry.qp.failure().is_some() && !entry.explained.failure {
            self.explain_failure(index);
        }
        let Some(entry) = self.qps[index].as_mut() else { return };
        if let Some(peer) = entry.path.as_ref().and_then(|path| path.peer) {
            let freed = match entry.qp.state() {
                // No acknowledgement is expected any more: what is in flight must not occupy the window indefinitely.
                QpState::Err | QpState::Reset => entry.flights.clear(),
                _ => entry.flights.arrive(entry.qp.unacked_psn(), entry.qp.next_psn(), entry.qp.landed()),
            };
            if entry.qp.repairs_loss() {
                self.peers.get_mut(peer).window.note_loss();
            }
            if freed > 0 {
                self.peers.get_mut(peer).window.give_back(freed);
                self.places.open(Gate::Window(peer));
            }
        }
        let gate = Gate::Congestion(index);
        if self.places.of(Turn::Own(index)) == Place::Waits(gate) && self.congestion_room(index) != Some(0) {
            self.places.open(gate);
        }
        let Some(entry) = self.qps[index].as_mut() else { return };
        place(&mut self.places, index, entry);
        entry.tell_busy(self.places.of(Turn::Own(index)));
        if let Some(due) = entry.qp.poll_timeout() {
            self.timers.set(&mut entry.alarm, due, Due::Qp(index));
        }
    }

    /// The rate of a queue pair may have risen: if it waits for its departure time, it looks again when that is.
    pub(super) fn pace_anew(&mut self, index: usize) {
        if let Place::Paced(_) = self.places.of(Turn::Own(index)) {
            self.places.put(Turn::Own(index), Place::Ready);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called next. May be earlier than needed.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, due)) = self.timers.pop(now) {
            match due {
                Due::Qp(index) => self.qp_timeout(now, index),
                Due::Turn(turn) if self.places.of(turn) == Place::Paced(at) => {
                    self.places.put(turn, Place::Ready);
                }
                Due::Turn(_) => {}
                Due::Port => self.rates.port_timeout(now),
                Due::Drain(receiver) => self.drain_timeout(now, receiver),
                Due::Window(peer) => self.window_timeout(now, peer),
                Due::Partner(peer) => self.partner_timeout(now, peer),
                Due::Limits => self.limits_timeout(now),
                Due::Cnp(source) => self.cnp_timeout(now, source),
                Due::Connections => self.connections_timeout(now),
            }
        }
    }

    fn qp_timeout(&mut self, now: Instant, index: usize) {
        let Some(entry) = self.qps.get_mut(index).and_then(Option::as_mut) else { return };
        if !entry.alarm.expires(now) {
            return;
        }
        // Deadlines move far more often than they pass, so the alarm may be set for an earlier one.
        if entry.qp.poll_timeout().is_some_and(|due| due <= now) {
            let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.taken);
            entry.qp.handle_timeout(now, &mut host);
            self.explain_stall(now, index);
        }
        self.settle(index);
    }

    /// Queue pairs have waited for room in a peer's window for a while: releases the room of what left long ago.
    fn window_timeout(&mut self, now: Instant, id: usize) {
        // The alarm is over even if nobody waits any more: otherwise it could not be set again.
        let Some(peer) = self.peers.find_mut(id) else { return };
        if !peer.watch.expires(now) || !self.places.has_waiters(Gate::Window(id)) {
            return;
        }
        let limit = now.checked_sub(FLIGHT_LIFE);
        let of_peer = |entry: &&mut Box<QpEntry>| entry.path.is_some_and(|path| path.peer == Some(id));
        let mut oldest = now;
        for entry in self.qps.iter_mut().flatten().filter(of_peer) {
            peer.window.give_back(limit.map_or(0, |limit| entry.flights.expire(limit)));
            oldest = entry.flights.oldest().map_or(oldest, |at| at.min(oldest));
        }
        let again = (oldest + FLIGHT_LIFE).max(now + LOOK_AGAIN);
        self.timers.set(&mut peer.watch, again, Due::Window(id));
        self.places.open(Gate::Window(id));
    }

    /// Returns whether a ready queue pair has more to send than acknowledgements.
    pub fn has_requests(&self) -> bool {
        let more = |next: Next| match next {
            Next::Turn(Turn::Own(index)) => {
                self.qps[index].as_ref().is_some_and(|entry| !entry.qp.only_acknowledges())
            }
            Next::Turn(Turn::Answers(_)) => false,
            Next::Gate(_) => true,
        };
        // Among more ready ones than were examined, some have more to send.
        self.places.ready().take(READY_LOOK).any(more) || self.places.ready().nth(READY_LOOK).is_some()
    }

    /// Returns whether there may be something to send.
    pub(crate) fn has_ready(&self) -> bool {
        let ready = !self.places.is_quiet() && !self.rates.port_waits();
        ready || self.has_messages() || self.agents_speak() || self.rates.has_notifications()
    }

    /// Checks what must hold between two calls: with few queue pairs each time; with many so seldom that a call does not take
    /// longer the more there are.
    #[cfg(debug_assertions)]
    fn check_at_times(&mut self) {
        /// Queue pairs that are worth a check. Programs and worlds of tests have fewer.
        const EACH_TIME: usize = 64;
        self.unchecked += EACH_TIME;
        if self.unchecked >= self.qps.len() {
            self.unchecked = 0;
            self.check();
        }
    }

    /// Checks what must hold between two calls: every turn is in the list of its place, and no queue pair that has
    /// something to send is forgotten.
    #[cfg(any(debug_assertions, test))]
    pub(crate) fn check(&self) {
        self.places.check();
        for (index, entry) in self.qps.iter().enumerate() {
            let place = self.places.of(Turn::Own(index));
            let wants = entry.as_ref().is_some_and(|entry| entry.qp.wants_to_transmit());
            assert_eq!(place != Place::Idle, wants, "queue pair {index} is {place:?}");
            let answers = entry.as_ref().is_some_and(|entry| may_answer(place, entry));
            let held = self.places.of(Turn::Answers(index)) != Place::Idle;
            assert_eq!(held, answers, "the answers of queue pair {index}, which is {place:?}");
        }
    }
}

/// How soon flights that are never acknowledged are looked at again: a tenth of their life, which bounds what looking at all
/// queue pairs costs.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Number of ready turns that are examined before they count as many.
const READY_LOOK: usize = 4;

/// Puts the turns of a queue pair where they belong after anything has happened to it.
fn place(places: &mut Places, index: usize, entry: &QpEntry) {
    let own = Turn::Own(index);
    match places.of(own) {
        Place::Idle if entry.qp.wants_to_transmit() => places.put(own, Place::Ready),
        Place::Idle | Place::Ready => return,
        // It was reset, or its work requests were flushed.
        _ if !entry.qp.wants_to_transmit() => places.put(own, Place::Idle),
        // A retransmission begins without room.
        Place::Waits(Gate::Window(_)) if entry.qp.repetitions_due() > 0 => places.put(own, Place::Ready),
        Place::Waits(_) | Place::Paced(_) => {}
    }
    let answers = Turn::Answers(index);
    match (may_answer(places.of(own), entry), places.of(answers)) {
        (true, Place::Idle) => places.put(answers, Place::Ready),
        (false, _) => places.put(answers, Place::Idle),
        (true, _) => {}
    }
}

/// Whether a queue pair at this place has answers that need not wait there. Those that its rate delays wait for it with
/// everything else.
fn may_answer(place: Place, entry: &QpEntry) -> bool {
    match place {
        Place::Waits(Gate::Window(_) | Gate::Congestion(_)) => entry.qp.wants_to_answer(),
        Place::Paced(_) => entry.qp.wants_to_acknowledge(),
        _ => false,
    }
}
