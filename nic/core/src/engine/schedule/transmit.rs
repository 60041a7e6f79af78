//! Transmission: from the turn that comes up to a train of packets.

use super::admit::{Account, Grant};
use super::{Gate, Next, Place, Turn};
use crate::engine::{Departure, Engine};
use qp::Psn;
use qp::queue_pair::Budget;
use time::Instant;

impl Engine {
    /// Writes the next train into `buf`: at most `max_packets` packets of one queue pair. Returns `None` when there is
    /// nothing more to send for now.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut [u8], max_packets: u32) -> Option<Departure> {
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
            if !self.port_may_send(now) {
                return None;
            }
            let (turn, called) = match self.places.next() {
                Some(Next::Turn(turn)) => (turn, None),
                Some(Next::Gate(gate)) => match self.places.front(gate) {
                    Some(turn) => (turn, Some(gate)),
                    None => continue,
                },
                None => {
                    self.rates.caught_up();
                    #[cfg(debug_assertions)]
                    self.check();
                    return None;
                }
            };
            match self.admit(now, turn, called, max_packets) {
                Ok(grant) => {
                    if let Some(departure) = self.transmit(now, turn, called, &grant, buf) {
                        return self.count(departure);
                    }
                }
                Err(place) => self.hold(now, turn, called, place),
            }
        }
    }

    /// Gives a turn to a queue pair: one train within its grant. Returns `None` if nothing leaves after all.
    fn transmit(
        &mut self,
        now: Instant,
        turn: Turn,
        called: Option<Gate>,
        grant: &Grant,
        buf: &mut [u8],
    ) -> Option<Departure> {
        let entry = self.qps[turn.index()].as_mut()?;
        let mut train = grant.limit.train(buf, grant.path.ip.flow());
        let mut budget = Budget { requests: grant.requests, responses: grant.responses };
        let from = entry.qp.next_psn();
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.accepted);
        entry.qp.poll_transmit(now, &mut train, &mut budget, &mut host);
        let departure = grant.path.departure(&train);
        if departure.packets > 0 {
            self.charge(now, turn.index(), grant, from, &departure);
            self.book_flow(now, turn.index(), from, &departure);
            self.book_port(now, &departure);
        }
        self.end_turn(now, turn, called, grant);
        if grant.is_dropped {
            self.counters.pause_storm_dropped_pkts += u64::from(departure.packets);
            return None;
        }
        Some(departure).filter(|departure| departure.packets > 0)
    }

    /// Charges a train to what granted it.
    fn charge(&mut self, now: Instant, index: usize, grant: &Grant, from: Psn, departure: &Departure) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        if !entry.qp.config().qp_type.is_reliable() {
            (entry.last_sent, entry.last_to) = (Some(now), Some(grant.path.ip.dst));
        }
        match grant.account {
            Account::Window(id) => {
                let psns = (from, entry.qp.next_psn());
                let (packets, size) = (departure.packets, departure.segment_size);
                let charge = entry.flights.depart(now, psns, packets, size, entry.qp.mtu());
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
