//! Transmission: from the turn that comes up to a train of packets.

use super::admit::{Account, Grant};
use super::{Gate, Next, Place, Turn};
use crate::engine::path::Path;
use crate::engine::{Departure, Engine};
use qp::queue_pair::Budget;
use qp::{Psn, Train};
use time::Instant;

/// Number of turns that are examined for packets that can join a train. With several peers, their turns alternate.
const TRAIN_LOOK: usize = 8;

/// How often the two turns of a queue pair may be held back before something is sent or nothing is ready. A turn may go on
/// from one kind of gate to another, of which there are seven, but never back.
#[cfg(debug_assertions)]
const HELD_MOST: usize = 2 * 8;

impl Engine {
    /// Writes the next train into `buf`: at most `max_packets` packets. Returns `None` when there is nothing more to send
    /// for now.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut [u8], max_packets: u32) -> Option<Departure> {
        #[cfg(debug_assertions)]
        let mut held = 0;
        loop {
            if self.has_messages()
                && let Some(message) = self.poll_message(now, buf)
            {
                self.book_port(now, &message);
                return self.count(message);
            }
            if let Some(departure) = self.poll_notification(now, buf) {
                return Some(departure);
            }
            if self.agents_speak()
                && let Some(datagram) = self.poll_agents(now, buf)
            {
                self.book_port(now, &datagram);
                return self.count(datagram);
            }
            if !self.port_may_send(now) {
                return None;
            }
            let Some((turn, called)) = self.next_turn() else {
                self.rates.caught_up();
                #[cfg(debug_assertions)]
                self.check_at_times();
                return None;
            };
            match self.admit(now, turn, called, max_packets) {
                Ok(grant) => {
                    let mut train = grant.limit.train(buf, grant.path.ip.flow());
                    self.transmit(now, turn, called, &grant, &mut train);
                    if grant.is_dropped {
                        self.counters.pause_storm_dropped_pkts += u64::from(train.packets());
                        #[cfg(debug_assertions)]
                        {
                            held = 0;
                        }
                        continue;
                    }
                    self.fill(now, &grant, &mut train);
                    if let Some(departure) = self.count(grant.path.departure(&train)) {
                        return Some(departure);
                    }
                }
                Err(place) => {
                    self.hold(now, turn, called, place);
                    #[cfg(debug_assertions)]
                    {
                        held += 1;
                        assert!(
                            held <= HELD_MOST * self.qps.len(),
                            "{turn:?} goes round in circles, to {place:?}"
                        );
                    }
                }
            }
        }
    }

    /// Takes the next turn out of the ready list, with the gate that called it.
    fn next_turn(&mut self) -> Option<(Turn, Option<Gate>)> {
        loop {
            let next = self.places.next()?;
            if let Some(turn) = self.turn_of(next) {
                return Some((turn, next.gate()));
            }
        }
    }

    /// The turn that comes up when this does.
    fn turn_of(&self, next: Next) -> Option<Turn> {
        match next {
            Next::Turn(turn) => Some(turn),
            Next::Gate(gate) => self.places.front(gate),
        }
    }

    /// Fills a train with packets of the queue pairs that come up soon and whose packets travel the same way. A system
    /// call for each queue pair would cost more than a small packet does.
    fn fill(&mut self, now: Instant, first: &Grant, train: &mut Train<'_>) {
        // Where a rate or a credit allows a train, it allows that of one queue pair.
        if self.rates.is_active() || matches!(first.account, Account::Credit { .. }) {
            return;
        }
        while train.packets() > 0
            && train.room() > 0
            && let Some((next, turn)) = self.next_along(&first.path)
        {
            let called = next.gate();
            self.places.take(next);
            let grant = match self.admit(now, turn, called, train.room()) {
                Ok(grant) => grant,
                Err(place) => {
                    self.hold(now, turn, called, place);
                    continue;
                }
            };
            let before = train.packets();
            self.write_packets(now, turn, &grant, train);
            let wants = self.qps[turn.index()].as_ref().is_some_and(|entry| entry.qp.wants_to_transmit());
            if train.packets() == before && wants {
                // Its packets are too long for this train: it comes up next.
                self.places.put_back(next);
                self.settle(turn.index());
                return;
            }
            self.end_turn(now, turn, called, &grant);
        }
    }

    /// The first turn, among those that come up soon, whose packets travel along `path`.
    fn next_along(&self, path: &Path) -> Option<(Next, Turn)> {
        let goes_along = |turn: Turn| {
            let entry = self.qps[turn.index()].as_ref()?;
            entry.path.is_some_and(|other| other == *path).then_some(turn)
        };
        let mut soon = self.places.ready().take(TRAIN_LOOK);
        soon.find_map(|next| Some((next, self.turn_of(next).and_then(goes_along)?)))
    }

    /// Gives a queue pair its turn.
    fn transmit(
        &mut self,
        now: Instant,
        turn: Turn,
        called: Option<Gate>,
        grant: &Grant,
        train: &mut Train<'_>,
    ) {
        self.write_packets(now, turn, grant, train);
        self.end_turn(now, turn, called, grant);
    }

    /// Adds packets of a queue pair to a train, within its grant.
    fn write_packets(&mut self, now: Instant, turn: Turn, grant: &Grant, train: &mut Train<'_>) {
        let Some(entry) = self.qps[turn.index()].as_mut() else { return };
        let before = grant.path.departure(train);
        let mut budget = Budget { requests: grant.requests, responses: grant.responses };
        let from = entry.qp.next_psn();
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.taken);
        entry.qp.poll_transmit(now, train, &mut budget, &mut host);
        let departure = grant.path.departure(train).since(&before);
        if departure.packets > 0 {
            self.charge(now, turn.index(), grant, from, &departure, before.packets > 0);
            self.book_flow(now, turn.index(), from, &departure);
            self.book_port(now, &departure);
        }
    }

    /// Charges packets to what granted them. `joined`: others in the train have paid for what it costs as a whole.
    fn charge(
        &mut self,
        now: Instant,
        index: usize,
        grant: &Grant,
        from: Psn,
        departure: &Departure,
        joined: bool,
    ) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        if !entry.qp.config().qp_type.is_reliable() {
            (entry.last_sent, entry.last_to) = (Some(now), Some(grant.path.ip.dst));
        }
        match grant.account {
            Account::Window(id) => {
                let psns = (from, entry.qp.next_psn());
                let charge = entry.flights.depart(now, psns, departure, joined, entry.qp.mtu());
                self.peers.get_mut(id).window.take(charge);
            }
            Account::Beyond => {}
            Account::Credit { peer, vl } => self.take_credit(now, peer, vl, departure),
            Account::Drain => {
                self.book_drain(now, grant.path.ip.dst, departure.packets, departure.segment_size);
            }
        }
    }

    /// Puts a queue pair where it belongs after its turn.
    fn end_turn(&mut self, now: Instant, turn: Turn, called: Option<Gate>, grant: &Grant) {
        let index = turn.index();
        let Some(entry) = self.qps[index].as_ref() else { return };
        let place = match grant.held {
            _ if !entry.qp.wants_to_transmit() => Place::Idle,
            // Answers for which the train had no room have a turn of their own.
            Some(held @ Place::Waits(_)) if entry.qp.wants_to_request() => held,
            Some(held @ Place::Paced(_)) => held,
            _ => Place::Ready,
        };
        match turn {
            Turn::Own(_) => self.go(now, turn, called, place),
            // Whatever is left of them, settling finds it.
            Turn::Answers(_) => self.places.put(turn, Place::Idle),
        }
        self.settle(index);
    }

    /// A queue pair may not send in its turn: it goes where it has to wait. If it was called from a gate that is still
    /// shut to it, it stays in front there.
    fn hold(&mut self, now: Instant, turn: Turn, called: Option<Gate>, place: Place) {
        self.go(now, turn, called, place);
        if place != Place::Idle {
            self.settle(turn.index());
        }
    }

    /// Moves a turn to a place, and makes sure that something wakes it there.
    fn go(&mut self, now: Instant, turn: Turn, called: Option<Gate>, place: Place) {
        let entry = self.qps[turn.index()].as_mut().filter(|_| matches!(turn, Turn::Own(_)));
        if let Some(flow) = entry.and_then(|entry| entry.flow.as_mut()) {
            flow.set_behind(matches!(place, Place::Ready | Place::Paced(_)));
        }
        let is_new = called.is_none_or(|gate| place != Place::Waits(gate));
        if is_new {
            self.places.put(turn, place);
        }
        match place {
            Place::Waits(gate) => self.watch(now, gate, turn.index(), is_new),
            Place::Paced(at) => self.timers.push(at, super::Due::Turn(turn)),
            Place::Idle | Place::Ready => {}
        }
    }

    /// Counts a train, if any.
    pub(in crate::engine) fn count(&mut self, departure: Departure) -> Option<Departure> {
        if departure.packets == 0 {
            return None;
        }
        self.counters.tx_packets += u64::from(departure.packets);
        self.counters.tx_bytes += departure.len as u64;
        Some(departure)
    }
}
