//! Pacing of unacknowledged traffic: which queue pairs wait at which receiver for room.

use super::peers::Flights;
use super::{Due, Engine};
use cc::{Charge, Drain, Pace};
use qp::Mtu;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

/// Number of remembered receivers beyond which those whose socket buffers must be empty by now are forgotten.
const FEW: usize = 64;

/// The assumed socket buffer of one receiver: a host, or each member of a group.
#[derive(Debug)]
struct Receiver {
    drain: Drain,
    /// Queue pairs, by table index, that have something to send but no room, in order of arrival.
    waiting: VecDeque<usize>,
    /// The charge of a full train of the queue pair that began to wait last.
    turn: u32,
    /// The timer that calls the next waiting queue pair.
    timer: Option<Instant>,
}

/// Unacknowledged traffic to each receiver that may still lie in its socket buffer.
#[derive(Debug)]
pub(super) struct Drains {
    /// `None`: everything leaves immediately.
    pace: Option<Pace>,
    by_address: HashMap<IpAddr, usize>,
    table: slab::Slab<Receiver>,
    /// Number of receivers at which empty ones are forgotten.
    sweep_at: usize,
}

impl Drains {
    pub(super) fn new(pace: Option<Pace>) -> Self {
        Self { pace, by_address: HashMap::new(), table: slab::Slab::new(), sweep_at: FEW }
    }

    /// The receiver at `address`, and the pace of traffic to it; `None` if no pace is configured.
    fn at(&mut self, address: IpAddr, now: Instant) -> Option<(usize, Pace)> {
        let pace = self.pace?;
        if let Some(id) = self.by_address.get(&address) {
            return Some((*id, pace));
        }
        if self.table.len() >= self.sweep_at {
            self.table.retain(|_, r| !r.drain.is_empty(now) || !r.waiting.is_empty());
            self.by_address.retain(|_, id| self.table.contains(*id));
            // The threshold grows so that forgetting costs no more than remembering did.
            self.sweep_at = FEW.max(2 * self.table.len());
        }
        let id = self.table.insert(Receiver {
            drain: Drain::default(),
            waiting: VecDeque::new(),
            turn: 0,
            timer: None,
        });
        self.by_address.insert(address, id);
        Some((id, pace))
    }
}

/// What a queue pair may send to a receiver.
pub(super) enum Allowance {
    /// This many packets.
    Packets(u32),
    /// Nothing yet; the queue pair waits for its turn at the receiver with this number.
    Wait(usize),
}

impl Engine {
    /// Returns how many packets may go to `address` now. A queue pair that was not `called` queues behind those that
    /// wait; while others wait, a turn is one full `train`.
    pub(super) fn allowance(
        &mut self,
        now: Instant,
        address: IpAddr,
        mtu: Mtu,
        train: u32,
        called: bool,
    ) -> Allowance {
        let Some((id, pace)) = self.drains.at(address, now) else { return Allowance::Packets(u32::MAX) };
        let receiver = &self.drains.table[id];
        let packets = receiver.drain.packets(now, &pace, Flights::packet_charge(mtu));
        match (receiver.waiting.is_empty(), called) {
            _ if packets == 0 => Allowance::Wait(id),
            (true, _) => Allowance::Packets(packets),
            (false, true) => Allowance::Packets(packets.min(train)),
            (false, false) => Allowance::Wait(id),
        }
    }

    /// Charges a train that leaves for `address`.
    pub(super) fn book(&mut self, now: Instant, address: IpAddr, packets: u32, size: usize) {
        if packets == 0 {
            return;
        }
        let Some((id, pace)) = self.drains.at(address, now) else { return };
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let charge = Charge::in_train(size, packets).saturating_mul(packets);
        self.drains.table[id].drain.take(now, &pace, charge);
    }

    /// Makes a queue pair wait at a receiver until there is room for a train of `train` packets: a system call for two
    /// packets costs as much as one for fifteen. A queue pair that was called in vain stays at the front.
    pub(super) fn wait_for_drain(&mut self, index: usize, id: usize, mtu: Mtu, train: u32, called: bool) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        entry.waits_at = Some(id);
        let Some(receiver) = self.drains.table.get_mut(id) else { return };
        receiver.turn = Flights::packet_charge(mtu).saturating_mul(train);
        if called {
            receiver.waiting.push_front(index);
        } else {
            receiver.waiting.push_back(index);
            self.counters.pace_stalls += 1;
        }
        self.arm_drain(id, 1);
    }

    /// Sets the timer that calls the next waiting queue pair once there is room for `trains` trains.
    fn arm_drain(&mut self, id: usize, trains: u32) {
        let Some(pace) = self.drains.pace else { return };
        let Some(receiver) = self.drains.table.get_mut(id) else { return };
        // At most half a burst, so that the receiver is never idle meanwhile.
        let wanted = receiver.turn.saturating_mul(trains).min(pace.burst / 2);
        let Some(at) = receiver.drain.room_at(&pace, wanted) else { return };
        if receiver.timer.is_none_or(|t| at < t) {
            receiver.timer = Some(at);
            self.timers.push(Reverse((at, Due::Drain(id))));
        }
    }

    /// The timer of a receiver fired: the queue pair that has waited there longest gets a turn.
    pub(super) fn drain_timeout(&mut self, at: Instant, id: usize) {
        let Some(receiver) = self.drains.table.get_mut(id).filter(|r| r.timer == Some(at)) else { return };
        receiver.timer = None;
        let Some(index) = receiver.waiting.pop_front() else { return };
        let others = !receiver.waiting.is_empty();
        if let Some(entry) = self.qps[index].as_mut() {
            (entry.waits_at, entry.called) = (None, true);
            if !entry.ready {
                entry.ready = true;
                self.ready.push_back(index);
            }
        }
        if others {
            // The next is called once there is room beyond the train that is about to leave.
            self.arm_drain(id, 2);
        }
    }

    /// A queue pair stops waiting: it has nothing left to send, sends elsewhere, or was destroyed.
    pub(super) fn leave_drain(&mut self, index: usize, id: usize) {
        if let Some(receiver) = self.drains.table.get_mut(id) {
            receiver.waiting.retain(|waiting| *waiting != index);
        }
    }
}
