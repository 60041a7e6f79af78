//! Pacing of unacknowledged traffic: which queue pairs wait at which receiver for room.
//!
//! A receiver on another host is asked whether it is rnic when something waits for it the first time. Until it answers
//! the pace is the one for foreign receivers, whose socket buffers may be small and whose processors may be busy.

use super::peers::Flights;
use super::{Due, Engine};
use cc::{Charge, Drain, Pace, Paces};
use qp::Mtu;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Number of remembered receivers beyond which those whose socket buffers must be empty by now are forgotten.
const FEW: usize = 64;

/// A receiver is asked at most once in this time whether it is rnic.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The assumed socket buffer of one receiver: a host, or each member of a group.
#[derive(Debug)]
struct Receiver {
    address: IpAddr,
    pace: Pace,
    /// Whether it is rnic, as far as is known.
    is_rnic: bool,
    /// When it was last asked.
    asked: Option<Instant>,
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
    paces: Paces,
    /// The port's own address.
    local: IpAddr,
    by_address: HashMap<IpAddr, usize>,
    table: slab::Slab<Receiver>,
    /// Number of receivers at which empty ones are forgotten.
    sweep_at: usize,
}

impl Drains {
    pub(super) fn new(paces: Paces, local: IpAddr) -> Self {
        Self { paces, local, by_address: HashMap::new(), table: slab::Slab::new(), sweep_at: FEW }
    }

    /// The receiver at `address`; `None` if everything leaves for it at once.
    fn at(&mut self, address: IpAddr, now: Instant) -> Option<usize> {
        if let Some(id) = self.by_address.get(&address) {
            return Some(*id);
        }
        let is_rnic = is_same_host(self.local, address);
        let pace = if is_rnic { self.paces.rnic } else { self.paces.foreign }?;
        if self.table.len() >= self.sweep_at {
            self.table.retain(|_, r| !r.drain.is_empty(now) || !r.waiting.is_empty());
            self.by_address.retain(|_, id| self.table.contains(*id));
            // The threshold grows so that forgetting costs no more than remembering did.
            self.sweep_at = FEW.max(2 * self.table.len());
        }
        let id = self.table.insert(Receiver {
            address,
            pace,
            is_rnic,
            asked: None,
            drain: Drain::default(),
            waiting: VecDeque::new(),
            turn: 0,
            timer: None,
        });
        self.by_address.insert(address, id);
        Some(id)
    }

    /// A port at `address` has proven that it is rnic.
    pub(super) fn is_rnic(&mut self, address: IpAddr) {
        let Some(pace) = self.paces.rnic else { return };
        if let Some(id) = self.by_address.get(&address) {
            let receiver = &mut self.table[*id];
            (receiver.pace, receiver.is_rnic) = (pace, true);
        }
    }
}

/// Whether both addresses are certain to belong to one host.
pub(super) fn is_same_host(local: IpAddr, address: IpAddr) -> bool {
    address == local || (address.is_loopback() && local.is_loopback())
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
        let Some(id) = self.drains.at(address, now) else { return Allowance::Packets(u32::MAX) };
        let receiver = &self.drains.table[id];
        let packets = receiver.drain.packets(now, &receiver.pace, Flights::packet_charge(mtu));
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
        let Some(id) = self.drains.at(address, now) else { return };
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let charge = Charge::in_train(size, packets).saturating_mul(packets);
        let receiver = &mut self.drains.table[id];
        receiver.drain.take(now, &receiver.pace, charge);
    }

    /// Makes a queue pair wait at a receiver until there is room for a train of `train` packets: a system call for two
    /// packets costs as much as one for fifteen. A queue pair that was called in vain stays at the front.
    pub(super) fn wait_for_drain(
        &mut self,
        now: Instant,
        index: usize,
        id: usize,
        mtu: Mtu,
        train: u32,
        called: bool,
    ) {
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
        self.ask_receiver(now, id);
    }

    /// Asks a receiver whether it is rnic, unless that is known or it was asked not long ago.
    fn ask_receiver(&mut self, now: Instant, id: usize) {
        let Some(receiver) = self.drains.table.get_mut(id) else { return };
        let was_asked = receiver.asked.is_some_and(|at| now.saturating_duration_since(at) < ASK_AGAIN);
        // Where both paces are the same, the answer would change nothing.
        let is_settled = receiver.is_rnic || self.drains.paces.rnic == self.drains.paces.foreign;
        if is_settled || was_asked {
            return;
        }
        receiver.asked = Some(now);
        let address = receiver.address;
        self.ask_address(address);
    }

    /// Sets the timer that calls the next waiting queue pair once there is room for `trains` trains.
    fn arm_drain(&mut self, id: usize, trains: u32) {
        let Some(receiver) = self.drains.table.get_mut(id) else { return };
        let pace = receiver.pace;
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

#[cfg(test)]
mod tests {
    use crate::sim::{DeviceSetup, Net};
    use crate::{Access, ConnectOptions, QpInit, Result, WcStatus};
    use std::time::Duration;

    /// Writes 4 MiB over an unreliable connection at the default pace. Returns how long it takes to leave, and how many
    /// datagrams the receiver got that asked who it is.
    fn write(is_foreign: bool) -> Result<(Duration, u64)> {
        const LEN: usize = 4 << 20;
        let net = Net::new();
        let mut setup = DeviceSetup::default();
        setup.partner.is_foreign = is_foreign;
        let (a, b) = (net.device(), net.device_with(&setup)?);
        let (pd, cq, other_pd, other_cq) = (a.alloc_pd()?, a.create_cq(8)?, b.alloc_pd()?, b.create_cq(8)?);
        let (left, right) =
            (pd.create_qp(&QpInit::uc(&cq, &cq))?, other_pd.create_qp(&QpInit::uc(&other_cq, &other_cq))?);
        left.connect(&right.address(), &ConnectOptions::default())?;
        right.connect(&left.address(), &ConnectOptions::default())?;
        let source = pd.register(LEN, Access::LOCAL_WRITE)?;
        let target = other_pd.register(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        left.write(1, source.all(), target.remote(0))?;
        assert_eq!(cq.wait(Duration::from_secs(1))?.status, WcStatus::Success);
        let took = net.elapsed();
        assert!(net.run_until_idle(Duration::from_secs(1)));
        let counters = b.counters();
        assert_eq!(counters.qp.rx_write_requests, 1);
        Ok((took, counters.port.rx_packets - (LEN / 4096) as u64))
    }

    #[test]
    fn a_receiver_that_may_have_a_small_buffer_and_a_busy_processor_is_sent_to_slowly() -> Result<()> {
        let (took, questions) = write(true)?;
        // 4 MiB and the charges beyond the payload, less half a stock buffer, at 46.6 MB/s.
        assert!((Duration::from_millis(94)..Duration::from_millis(97)).contains(&took), "{took:?}");
        assert_eq!(questions, 1);
        Ok(())
    }

    #[test]
    fn a_receiver_that_says_that_it_is_rnic_is_sent_to_fast() -> Result<()> {
        let (took, questions) = write(false)?;
        // At 1.5 GB/s, but what waited first waited for room at the slow pace.
        assert!(took < Duration::from_millis(7), "{took:?}");
        assert_eq!(questions, 1);
        Ok(())
    }
}
