//! Pacing of unacknowledged traffic: which queue pairs wait at which receiver for room.
//!
//! A receiver on another host is asked whether it is rnic when something waits for it the first time. Until it answers
//! the pace is the one for foreign receivers, whose socket buffers may be small and whose processors may be busy.

use super::Engine;
use super::peers::Flights;
use super::schedule::{Alarm, Due, Gate};
use cc::{Charge, Drain, Pace, Paces};
use qp::Mtu;
use std::collections::HashMap;
use std::net::IpAddr;
use time::{Duration, Instant};

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
    /// The charge of a full train of the queue pair that began to wait last: the next one goes when there is room for
    /// that much, because a system call for two packets costs as much as one for fifteen.
    turn: u32,
    /// The time at which there will be.
    alarm: Alarm,
}

impl Receiver {
    /// When there is room for the train of a queue pair that waits; `None` for long ago. Half a burst is enough, so that
    /// the receiver is never idle meanwhile.
    fn room_at(&self) -> Option<Instant> {
        self.drain.room_at(&self.pace, self.turn.min(self.pace.burst / 2))
    }
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
            // Those at which something waits have an alarm set.
            self.table.retain(|_, r| !r.drain.is_empty(now) || r.alarm.at().is_some());
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
            turn: 0,
            alarm: Alarm::default(),
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
    /// Nothing yet; the queue pair waits at the receiver with this number.
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
        called: Option<Gate>,
    ) -> Allowance {
        let Some(id) = self.drains.at(address, now) else { return Allowance::Packets(u32::MAX) };
        let gate = Gate::Drain(id);
        let receiver = &self.drains.table[id];
        let packets = receiver.drain.packets(now, &receiver.pace, Flights::packet_charge(mtu));
        let has_room = packets > 0;
        if called == Some(gate) {
            let is_due = receiver.room_at().is_none_or(|at| at <= now);
            let most = if self.places.waiting_at(gate) > 1 { train } else { u32::MAX };
            return if has_room && is_due {
                Allowance::Packets(packets.min(most))
            } else {
                Allowance::Wait(id)
            };
        }
        let may_go = has_room && !self.places.has_waiters(gate);
        if may_go { Allowance::Packets(packets) } else { Allowance::Wait(id) }
    }

    /// Charges a train that leaves for `address`.
    pub(super) fn book_drain(&mut self, now: Instant, address: IpAddr, packets: u32, size: usize) {
        let Some(id) = self.drains.at(address, now) else { return };
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let charge = Charge::in_train(size, packets).saturating_mul(packets);
        let receiver = &mut self.drains.table[id];
        receiver.drain.take(now, &receiver.pace, charge);
    }

    /// A queue pair waits at a receiver, which is to have room for a train with this charge when it goes on.
    pub(super) fn await_drain(&mut self, now: Instant, id: usize, train: u32) {
        let Some(receiver) = self.drains.table.get_mut(id) else { return };
        receiver.turn = train;
        let at = receiver.room_at().map_or(now, |at| at.max(now));
        self.timers.set(&mut receiver.alarm, at, Due::Drain(id));
        self.ask_receiver(now, id);
    }

    /// A receiver has room for the queue pair that has waited there longest.
    pub(super) fn drain_timeout(&mut self, now: Instant, id: usize) {
        if self.drains.table.get_mut(id).is_some_and(|receiver| receiver.alarm.expires(now)) {
            self.places.open(Gate::Drain(id));
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{DeviceSetup, Net};
    use crate::{Access, ConnectOptions, QpInit, Result, WcStatus};

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
    fn receivers_are_forgotten_when_they_must_have_read_everything_and_rarely_looked_for() {
        let pace = Pace::STOCK;
        let local = IpAddr::from([10, 0, 0, 1]);
        let mut drains = Drains::new(Paces { rnic: None, foreign: Some(pace) }, local);
        let start = Instant::EPOCH + Duration::from_secs(1);
        let meet = |drains: &mut Drains, nth: usize, at: Instant| {
            let address = IpAddr::from([10, 1, (nth >> 8) as u8, nth as u8]);
            let id = drains.at(address, at).expect("another host");
            drains.table[id].drain.take(at, &pace, 1000);
        };
        (0..=FEW).for_each(|nth| meet(&mut drains, nth, start));
        assert_eq!((drains.table.len(), drains.sweep_at), (FEW + 1, 2 * FEW), "all are needed");
        let later = start + Duration::from_secs(60);
        (0..FEW).for_each(|nth| meet(&mut drains, FEW + 1 + nth, later));
        assert_eq!((drains.table.len(), drains.sweep_at), (FEW, 2 * (FEW - 1)), "the first are forgotten");
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

    #[test]
    fn a_datagram_does_not_overtake_those_that_wait_at_the_receiver() -> Result<()> {
        const LEN: usize = 2 << 20;
        let net = Net::new();
        let mut setup = DeviceSetup::default();
        setup.partner.is_foreign = true;
        let (a, b) = (net.device(), net.device_with(&setup)?);
        let (pd, other_pd, other_cq) = (a.alloc_pd()?, b.alloc_pd()?, b.create_cq(8)?);
        let source = pd.register(LEN, Access::LOCAL_WRITE)?;
        let target = other_pd.register(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let connected = || {
            let cq = a.create_cq(8)?;
            let (left, right) = (
                pd.create_qp(&QpInit::uc(&cq, &cq))?,
                other_pd.create_qp(&QpInit::uc(&other_cq, &other_cq))?,
            );
            left.connect(&right.address(), &ConnectOptions::default())?;
            right.connect(&left.address(), &ConnectOptions::default())?;
            Result::Ok((left, right, cq))
        };
        let (long, _its_peer, long_cq) = connected()?;
        long.write(1, source.all(), target.remote(0))?;
        // Its next train needs more room than one short packet, which there is most of the time.
        net.run_for(Duration::from_millis(3));
        let mut late = Vec::new();
        for _ in 0..8 {
            let (qp, peer, cq) = connected()?;
            qp.write(2, source.slice(0..64)?, target.remote(0))?;
            net.run_for(Duration::from_nanos(1));
            assert!(cq.poll_one().is_none(), "it left at once");
            net.run_for(Duration::from_micros(370));
            late.push((qp, peer, cq));
        }
        for (_, _, cq) in &late {
            assert_eq!(cq.wait(Duration::from_millis(20))?.status, WcStatus::Success);
        }
        assert!(long_cq.poll_one().is_none(), "nor does it wait for the end of those before it");
        assert_eq!(long_cq.wait(Duration::from_secs(1))?.status, WcStatus::Success);
        Ok(())
    }
}
