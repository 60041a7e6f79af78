//! Rates of the queue pairs and of the port, and the notifications with which receivers report congestion.
//!
//! Each queue pair that sends has a controller, which determines its rate, and a pacer, which determines its departure
//! times. Until its next departure time it waits in a timer wheel; only its acknowledgements leave. All bytes that its
//! packets take on Ethernet count: requests, READ responses, retransmissions, acknowledgements.
//!
//! Without a policy and a port rate nothing is paced, and a train costs one extra branch.

mod flow;
mod notify;
#[cfg(test)]
mod tests;

use super::partner::Partners;
use super::transmit::Gate;
use super::{Departure, Engine};
use crate::link::wire_bytes;
use cc::{Policy, Rate, Wheel};
pub(super) use flow::{Flow, Notifier};
use flow::{PORT_CATCH_UP, Tempo};
pub(super) use notify::CnpSource;
use notify::Notifications;
use qp::queue_pair::Budget;
use qp::wire::mad::hello::Features;
use qp::{Psn, QpType, Qpn, Train};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The ECN field of the TOS byte (RFC 3168).
const ECN: u8 = 0b11;

/// "Congestion experienced".
pub(super) const CE: u8 = 0b11;

/// "ECN-capable transport", as used by RoCEv2: ECT(0).
const ECT: u8 = 0b10;

/// Tick of the wheel, as a power of two in nanoseconds: 64 ns, less than the duration of a 1 KiB packet at 100 Gb/s.
const TICK_BITS: u32 = 6;

/// Flows in the wheel: one for every possible index of a queue pair in the table.
const MAX_FLOWS: u32 = 1 << 17;

/// BTH and ICRC around the payload of most packets of a message.
const PACKET: usize = 12 + 4;

/// How a port paces its sending.
#[derive(Clone, Debug)]
pub struct RateConfig {
    /// The algorithm that determines the rate of each queue pair. `None`: each sends as fast as it can, and congestion
    /// signals are ignored.
    ///
    /// DCTCP and TIMELY depend on acknowledgements, so they do not slow down UC and UD. DCTCP needs a peer that returns
    /// marks with its acknowledgements, which only rnic with DCTCP does; TIMELY needs no support from the peer.
    pub policy: Option<Policy>,
    /// Longest duration of a train at the rate of its queue pair, and at that of the port. 0: packets leave one by one,
    /// as with pacing in hardware.
    pub train_time: Duration,
    /// The rate of the port: the limit for all queue pairs together, counting everything that packets take on Ethernet.
    pub port_rate: Option<Rate>,
    /// Whether CNPs are sent to peers that have not identified themselves as rnic, and packets to them are marked as
    /// ECN-capable. Hardware NICs obey CNPs; Linux rxe drops them, and some of its versions crash.
    pub foreign_cnp: bool,
}

impl Default for RateConfig {
    fn default() -> Self {
        Self { policy: None, train_time: cc::pacer::TRAIN_TIME, port_rate: None, foreign_cnp: false }
    }
}

/// Congestion control state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowState {
    /// Its number.
    pub qpn: Qpn,
    /// The rate at which it may send.
    pub rate: Rate,
    /// The rate to which it recovers, if the algorithm has one.
    pub target_rate: Option<Rate>,
    /// The congestion estimate, if the algorithm has one.
    pub alpha: Option<f64>,
    /// Whether its rate is below that of the port.
    pub limited: bool,
    /// Bytes that it has sent, as on Ethernet.
    pub sent_bytes: u64,
}

/// Pacing state of the engine beyond that of its queue pairs.
#[derive(Debug)]
pub(super) struct Rates {
    /// Whether anything is paced.
    active: bool,
    /// Queue pairs that wait for their departure time.
    wheel: Option<Box<Wheel>>,
    port: Option<Tempo>,
    /// Nothing leaves before this time.
    port_until: Option<Instant>,
    notifications: Notifications,
}

impl Rates {
    pub(super) fn new(config: &RateConfig) -> Self {
        Self {
            active: config.policy.is_some() || config.port_rate.is_some(),
            wheel: None,
            port: None,
            port_until: None,
            notifications: Notifications::default(),
        }
    }

    /// Returns whether the port must wait before anything leaves.
    pub(super) fn port_waits(&self) -> bool {
        self.port_until.is_some()
    }

    pub(super) fn has_notifications(&self) -> bool {
        self.notifications.is_due()
    }

    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// When [`Engine::rate_timeout`] has to be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let wheel = self.wheel.as_ref().and_then(|wheel| wheel.poll_timeout());
        [wheel, self.port_until].into_iter().flatten().min()
    }

    /// Records that nothing is left to send: the port is not behind.
    pub(super) fn caught_up(&mut self) {
        if let Some(port) = &mut self.port {
            port.set_behind(false);
        }
    }

    fn wheel(&mut self, now: Instant) -> &mut Wheel {
        self.wheel.get_or_insert_with(|| Box::new(Wheel::new(now, TICK_BITS, MAX_FLOWS)))
    }

    /// Removes a queue pair from the wheel.
    pub(super) fn unpark(&mut self, index: usize) {
        if let (Some(wheel), Ok(flow)) = (&mut self.wheel, u32::try_from(index)) {
            wheel.cancel(flow);
        }
    }
}

/// Limit for the next train.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    packets: u32,
    /// As on Ethernet: each packet counts `overhead` more than the engine writes.
    bytes: usize,
    overhead: usize,
    /// Only acknowledgements may be sent.
    acknowledgements: bool,
}

impl Limit {
    /// A limit of this many packets, of any size.
    pub(super) const fn packets(packets: u32) -> Self {
        Self { packets, bytes: usize::MAX, overhead: 0, acknowledgements: false }
    }

    /// The limit if there is room for this many packets.
    pub(super) const fn budget(&self, packets: u32) -> Budget {
        if self.acknowledgements { Budget::none() } else { Budget::requests(packets) }
    }

    /// The train within this limit.
    pub(super) fn train<'b>(&self, buf: &'b mut [u8], flow: qp::wire::Flow) -> Train<'b> {
        let mut train = Train::new(buf, flow, self.packets);
        train.limit_bytes(self.bytes, self.overhead);
        train
    }
}

impl Engine {
    /// Writes the next congestion notification. It is not delayed by the rate of the port, but counts towards it.
    pub(super) fn poll_notification(&mut self, now: Instant, buf: &mut [u8]) -> Option<Departure> {
        let departure = self.transmit_cnp(buf)?;
        self.book_port(now, &departure);
        Some(departure)
    }

    /// Gives a turn to a queue pair from the ready queue: it sends what its rate allows by now.
    pub(super) fn transmit_paced(
        &mut self,
        now: Instant,
        index: usize,
        buf: &mut [u8],
        max_packets: u32,
    ) -> Option<Departure> {
        let entry = self.qps[index].as_mut()?;
        entry.ready = false;
        let from = entry.qp.next_psn();
        let listens = self.listens(index);
        let departure = match self.allowed(now, index, max_packets) {
            Some(limit) => self.transmit(now, index, buf, max_packets, limit),
            None => self.transmit_acknowledgements(now, index, buf, max_packets),
        };
        let departure = self.book_flow(now, index, from, departure, listens)?;
        self.book_port(now, &departure);
        Some(departure)
    }

    /// Returns whether the port rate allows a departure now.
    pub(super) fn port_may_send(&mut self, now: Instant) -> bool {
        let Some(rate) = self.config.rate.port_rate else { return true };
        let port = self.rates.port.get_or_insert_with(|| Tempo::new(now, rate, PORT_CATCH_UP));
        self.rates.port_until = None;
        if port.may_send(now) {
            return true;
        }
        if !self.ready.is_empty() {
            port.set_behind(true);
            self.rates.port_until = port.next_send();
        }
        false
    }

    pub(super) fn book_port(&mut self, now: Instant, departure: &Departure) {
        if let Some(port) = &mut self.rates.port {
            port.on_sent(now, departure.wire_bytes());
        }
    }

    /// Size limit of a train that the queue pair may send now; `None` if its departure time has not come.
    fn allowed(&mut self, now: Instant, index: usize, max_packets: u32) -> Option<Limit> {
        let config = &self.config.rate;
        let unlimited = Limit::packets(max_packets);
        let Some(entry) = self.qps[index].as_mut() else { return Some(unlimited) };
        let is_ipv6 = self.config.address.is_ipv6();
        let mut rate = config.port_rate;
        // Management packets are not paced: there are few of them, and the end of congestion may depend on them.
        if let Some(policy) = config.policy.as_ref().filter(|_| entry.qp.config().qp_type != QpType::Gsi) {
            let reliable = entry.qp.config().qp_type.is_reliable();
            let flow = entry.flow.get_or_insert_with(|| Box::new(Flow::new(now, policy, reliable)));
            if flow.advance(now) && reliable {
                let packet = wire_bytes(PACKET + entry.qp.mtu().bytes() as usize, is_ipv6);
                entry.qp.set_packet_time(flow.controller.rate().time_for(packet.into()));
            }
            if !flow.tempo.may_send(now) {
                return None;
            }
            if std::mem::take(&mut flow.waits) {
                self.rates.unpark(index);
            }
            let own = flow.controller.rate();
            rate = Some(rate.map_or(own, |port| port.min(own)));
        }
        let Some(rate) = rate else { return Some(unlimited) };
        Some(Limit {
            packets: max_packets,
            bytes: usize::try_from(rate.bytes_in(config.train_time)).unwrap_or(usize::MAX),
            overhead: wire_bytes(0, is_ipv6) as usize,
            acknowledgements: false,
        })
    }

    /// Gives a turn to a queue pair whose departure time has not come: only its acknowledgements leave.
    fn transmit_acknowledgements(
        &mut self,
        now: Instant,
        index: usize,
        buf: &mut [u8],
        max_packets: u32,
    ) -> Option<Departure> {
        self.park(now, index);
        let entry = self.qps[index].as_ref()?;
        let mut departure = None;
        if entry.qp.wants_to_acknowledge() {
            let limit = Limit { acknowledgements: true, ..Limit::packets(max_packets) };
            let unbooked = match self.gate(now, index) {
                Gate::Credit { remote, peer, vl } => {
                    self.transmit_on_credit(now, index, (remote, peer, vl), buf, max_packets, limit)
                }
                Gate::Shut => None,
                Gate::Open => self.write_acknowledgements(now, index, buf, limit),
                Gate::Drop => {
                    let dropped = self.write_acknowledgements(now, index, buf, limit);
                    self.drop_in_storm(dropped)
                }
            };
            departure = unbooked.and_then(|departure| self.count(departure));
        }
        self.pass_call(index);
        departure
    }

    fn write_acknowledgements(
        &mut self,
        now: Instant,
        index: usize,
        buf: &mut [u8],
        limit: Limit,
    ) -> Option<Departure> {
        let entry = self.qps[index].as_mut()?;
        let remote = entry.remote?;
        let mut train = limit.train(buf, remote.flow(&self.config));
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.accepted);
        entry.qp.poll_transmit(now, &mut train, &mut limit.budget(0), &mut host);
        let departure = remote.departure(&train);
        self.settle(index);
        Some(departure)
    }

    /// A queue pair that was called may be unable to use its turn now: other queue pairs may use the room instead.
    pub(super) fn pass_call(&mut self, index: usize) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        if !std::mem::take(&mut entry.called) {
            return;
        }
        match (entry.lane, entry.remote.and_then(|remote| remote.peer)) {
            (Some((peer, vl)), _) => self.call_lane(peer, vl),
            (None, Some(peer)) if entry.qp.config().qp_type.is_reliable() => self.call_waiting(peer),
            // It keeps its turn at the receiver: those behind it are called in due course.
            _ => entry.called = true,
        }
    }

    /// Records what a queue pair sent in its turn, and makes it wait if it has more to send than its rate allows.
    fn book_flow(
        &mut self,
        now: Instant,
        index: usize,
        from: Psn,
        mut departure: Option<Departure>,
        listens: bool,
    ) -> Option<Departure> {
        let marks = listens && self.config.rate.policy.as_ref().is_some_and(|p| p.red().is_some());
        let Some(entry) = self.qps[index].as_mut() else { return departure };
        let Some(flow) = entry.flow.as_mut() else { return departure };
        let Some(departure) = &mut departure else {
            flow.tempo.set_behind(flow.waits);
            return None;
        };
        if marks {
            departure.tos = departure.tos & !ECN | ECT;
        }
        let bytes = departure.wire_bytes();
        flow.on_sent(now, bytes);
        let more = entry.qp.wants_to_transmit() && !entry.waiting && entry.waits_at.is_none();
        flow.tempo.set_behind(more || flow.waits);
        if let Some(trains) = &mut flow.trains {
            trains.depart(now, from, entry.qp.next_psn(), bytes, departure.packets);
        }
        if more && !flow.tempo.may_send(now) {
            self.park(now, index);
        }
        Some(*departure)
    }

    /// Makes a queue pair wait in the wheel until it may send, or until its rate changes.
    fn park(&mut self, now: Instant, index: usize) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        let Some(flow) = entry.flow.as_mut() else { return };
        let wants = entry.qp.wants_to_transmit() && !entry.qp.only_acknowledges();
        flow.waits = wants;
        flow.tempo.set_behind(wants);
        if let (true, Some(at), Ok(number)) = (wants, flow.wake_at(), u32::try_from(index)) {
            self.rates.wheel(now).set(number, at);
        }
    }

    /// Wakes the queue pairs whose departure time has come.
    pub(super) fn rate_timeout(&mut self, now: Instant) {
        if self.rates.port_until.is_some_and(|until| until <= now) {
            self.rates.port_until = None;
        }
        while let Some(number) = self.rates.wheel.as_mut().and_then(|wheel| wheel.poll_expired(now)) {
            let index = number as usize;
            let Some(entry) = self.qps.get_mut(index).and_then(Option::as_mut) else { continue };
            let Some(flow) = entry.flow.as_mut() else { continue };
            flow.waits = false;
            if !entry.ready && entry.qp.wants_to_transmit() {
                entry.ready = true;
                self.ready.push_back(index);
            }
        }
    }

    /// Discards the congestion control state of a queue pair.
    pub(super) fn forget_flow(&mut self, index: usize) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        entry.notifier = None;
        if entry.flow.take().is_some_and(|flow| flow.waits) {
            self.rates.unpark(index);
        }
    }

    /// Returns whether the peer of a queue pair's next packets reacts to congestion.
    fn listens(&mut self, index: usize) -> bool {
        if self.config.rate.policy.is_none() {
            return false;
        }
        let Some(entry) = self.qps[index].as_ref() else { return false };
        let (address, peer) = match (entry.remote, entry.qp.next_destination()) {
            (Some(remote), _) => (remote.address, remote.peer),
            (None, Some((path, qpn))) => (path.dgid.ip(), self.peers.find(path.dgid.ip(), qpn.slot())),
            (None, None) => return false,
        };
        // An unproven claim is enough for a mark, which costs a peer nothing.
        let claims = peer.and_then(|id| self.peers.find_mut(id)).is_some_and(|peer| peer.greeting.claims_cnp);
        claims || self.obeys_cnp(address, peer)
    }

    /// Returns whether a peer reacts to congestion: it may be sent CNPs, and packets to it are marked as ECN-capable.
    /// This is never assumed of a multicast group.
    fn obeys_cnp(&mut self, address: IpAddr, peer: Option<usize>) -> bool {
        let says_so = |id| {
            Partners::partner(&mut self.peers, id).is_some_and(|partner| partner.understands(Features::CNP))
        };
        !address.is_multicast() && (self.config.rate.foreign_cnp || peer.is_some_and(says_so))
    }

    /// Congestion control state of each queue pair at `now`; queue pairs that have not sent yet are left out.
    pub fn flows(&self, now: Instant) -> impl Iterator<Item = FlowState> {
        self.qps.iter().flatten().filter_map(move |entry| entry.flow_state(now))
    }

    /// Congestion control state of one queue pair; `None` without congestion control, and before it has sent.
    #[must_use]
    pub fn flow(&self, qpn: Qpn, now: Instant) -> Option<FlowState> {
        self.qps[self.index(qpn)?].as_ref()?.flow_state(now)
    }
}

impl super::QpEntry {
    /// Returns whether it has something to send before its departure time, or need not wait.
    pub(super) fn wants_a_turn(&self) -> bool {
        match &self.flow {
            Some(flow) if flow.waits => self.qp.wants_to_acknowledge(),
            _ => self.qp.wants_to_transmit(),
        }
    }

    fn flow_state(&self, now: Instant) -> Option<FlowState> {
        let flow = self.flow.as_ref()?;
        let mut controller = flow.controller.clone();
        controller.handle_timeout(now);
        let rate = controller.rate();
        Some(FlowState {
            qpn: self.qp.qpn(),
            rate,
            target_rate: controller.target_rate(),
            alpha: controller.alpha(now),
            limited: rate < flow.line,
            sent_bytes: flow.sent_bytes,
        })
    }
}

impl Departure {
    /// Its length on Ethernet.
    fn wire_bytes(&self) -> u64 {
        let (last, full) = match self.packets.checked_sub(1) {
            Some(full) => (self.len - self.segment_size * full as usize, full),
            None => return 0,
        };
        let is_ipv6 = self.dst.is_ipv6();
        u64::from(wire_bytes(self.segment_size, is_ipv6)) * u64::from(full)
            + u64::from(wire_bytes(last, is_ipv6))
    }
}
