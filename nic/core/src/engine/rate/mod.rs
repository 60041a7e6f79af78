//! Rates of the queue pairs and of the port, and the notifications with which receivers report congestion.
//!
//! Each queue pair that sends has a controller, which determines its rate, and a pacer, which determines its departure
//! times. Until its next departure time only its acknowledgements leave. All bytes that its
//! packets take on Ethernet count: requests, READ responses, retransmissions, acknowledgements.
//!
//! Without a policy and a port rate nothing is paced, and a train costs one extra branch.

mod flow;
mod log;
mod notify;
mod telemetry;
#[cfg(test)]
mod tests;

use super::partner::Partners;
use super::path::Path;
use super::schedule::{Alarm, Due};
use super::{Departure, Engine};
use crate::link::wire_bytes;
use cc::{Policy, Rate};
pub(super) use flow::{Flow, Notifier};
use flow::{PORT_CATCH_UP, Tempo};
pub use log::{CongestionEvent, CongestionLog};
pub(super) use notify::CnpSource;
use notify::Notifications;
use qp::wire::mad::hello::Features;
use qp::{Psn, QpType, Qpn, Train};
use std::collections::VecDeque;
use std::net::IpAddr;
pub(super) use telemetry::Returns;
use time::{Duration, Instant};

/// The ECN field of the TOS byte (RFC 3168).
pub(super) const ECN: u8 = 0b11;

/// "Congestion experienced".
pub(super) const CE: u8 = 0b11;

/// "ECN-capable transport", as used by RoCEv2: ECT(0).
pub(super) const ECT: u8 = 0b10;

/// BTH and ICRC around the payload of most packets of a message.
const PACKET: usize = 12 + 4;

/// How a port paces its sending.
#[derive(Clone, Debug)]
pub struct RateConfig {
    /// The algorithm that determines the rate of each queue pair. `None`: each sends as fast as it can, and congestion
    /// signals are ignored.
    ///
    /// DCTCP, TIMELY, Swift, NSCC and HPCC depend on acknowledgements, so they do not slow down UC and UD. DCTCP and NSCC need a
    /// peer that returns marks with its acknowledgements, which only rnic with one of them does; HPCC needs one that returns
    /// telemetry, which is rnic with HPCC, and ports on the way that write it; TIMELY and Swift need no support from the peer.
    /// All ask for an acknowledgement of every train. Swift, NSCC and HPCC bound what is in flight. They do not slow down the
    /// responses to READs, which their requester does not pace and which nothing acknowledges.
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
    port: Option<Tempo>,
    /// Nothing leaves before this time.
    port_until: Alarm,
    notifications: Notifications,
    /// The queue pairs that have telemetry to return, by table index.
    returning: VecDeque<usize>,
    log: CongestionLog,
}

impl Rates {
    pub(super) fn new(config: &RateConfig) -> Self {
        Self {
            active: config.policy.is_some() || config.port_rate.is_some(),
            port: None,
            port_until: Alarm::default(),
            notifications: Notifications::default(),
            returning: VecDeque::new(),
            log: CongestionLog::default(),
        }
    }

    /// Whether anything is paced.
    pub(super) const fn is_active(&self) -> bool {
        self.active
    }

    /// Returns whether the port must wait before anything leaves.
    pub(super) const fn port_waits(&self) -> bool {
        self.port_until.at().is_some()
    }

    /// The rate of the port allows a departure.
    pub(super) fn port_timeout(&mut self, now: Instant) {
        self.port_until.expires(now);
    }

    pub(super) fn has_notifications(&self) -> bool {
        self.notifications.is_due() || !self.returning.is_empty()
    }

    /// Records that nothing is left to send: the port is not behind.
    pub(super) fn caught_up(&mut self) {
        if let Some(port) = &mut self.port {
            port.set_behind(false);
        }
    }
}

/// Limit for the size of the next train.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) packets: u32,
    /// As on Ethernet: each packet counts `overhead` more than the engine writes.
    bytes: usize,
    overhead: usize,
}

impl Limit {
    /// A limit of this many packets, of any size.
    const fn packets(packets: u32) -> Self {
        Self { packets, bytes: usize::MAX, overhead: 0 }
    }

    /// No more than these bytes, as on Ethernet.
    pub(super) fn narrow(&mut self, bytes: u32, is_ipv6: bool) {
        self.bytes = self.bytes.min(bytes as usize);
        self.overhead = wire_bytes(0, is_ipv6) as usize;
    }

    /// The train within this limit.
    pub(super) fn train<'b>(&self, buf: &'b mut [u8], flow: qp::wire::Flow) -> Train<'b> {
        let mut train = Train::new(buf, flow, self.packets);
        train.limit_bytes(self.bytes, self.overhead);
        train
    }
}

impl Engine {
    /// Writes the next congestion notification, or telemetry that returns. It is not delayed by the rate of the port, but
    /// counts towards it.
    pub(super) fn poll_notification(&mut self, now: Instant, buf: &mut [u8]) -> Option<Departure> {
        let departure = self.transmit_cnp(buf).or_else(|| self.transmit_telemetry(buf))?;
        self.book_port(now, &departure);
        Some(departure)
    }

    /// Returns whether the port rate allows a departure now. If not, and something waits for it, a timer is set.
    pub(super) fn port_may_send(&mut self, now: Instant) -> bool {
        let Some(rate) = self.config.rate.port_rate else { return true };
        let Rates { port, port_until, .. } = &mut self.rates;
        let port = port.get_or_insert_with(|| Tempo::new(now, rate, PORT_CATCH_UP));
        port_until.cancel();
        if port.may_send(now) {
            return true;
        }
        if !self.places.is_quiet() {
            port.set_behind(true);
            if let Some(at) = port.next_send() {
                self.timers.set(port_until, at, Due::Port);
            }
        }
        false
    }

    /// Charges what leaves to the port: to its rate, and to the room in its NIC.
    pub(super) fn book_port(&mut self, now: Instant, departure: &Departure) {
        self.book_wire(departure);
        if let Some(port) = &mut self.rates.port {
            port.on_sent(now, departure.wire_bytes());
        }
    }

    /// Size limit of a train of this queue pair; if its departure time has not come, also when to look again. Until
    /// then only its acknowledgements may leave.
    #[inline]
    pub(super) fn pace(&mut self, now: Instant, index: usize, max_packets: u32) -> (Limit, Option<Instant>) {
        let unlimited = Limit::packets(max_packets);
        if !self.rates.active {
            return (unlimited, None);
        }
        self.begin_flow(now, index);
        let config = &self.config.rate;
        let Some(entry) = self.qps[index].as_mut() else { return (unlimited, None) };
        let is_ipv6 = self.config.address.is_ipv6();
        let mut rate = config.port_rate;
        if let Some(flow) = &mut entry.flow {
            let reliable = entry.qp.config().qp_type.is_reliable();
            if flow.advance(now) && reliable {
                let packet = wire_bytes(PACKET + entry.qp.mtu().bytes() as usize, is_ipv6);
                // Asked less often than once for each train, DCTCP would act on marks of a queue that is long gone: with one
                // acknowledgement in 128 KiB at 1 Gb/s, one of two flows starved, or both left a fifth of the port idle.
                let feedback = flow.trains.as_ref().map(|_| config.train_time);
                entry.qp.set_packet_time(flow.controller.rate().time_for(packet.into()), feedback);
            }
            if !flow.tempo.may_send(now) {
                return (unlimited, Some(flow.wake_at(now)));
            }
            let own = flow.controller.rate();
            rate = Some(rate.map_or(own, |port| port.min(own)));
        }
        let Some(rate) = rate else { return (unlimited, None) };
        let bytes = usize::try_from(rate.bytes_in(config.train_time)).unwrap_or(usize::MAX);
        (Limit { packets: max_packets, bytes, overhead: wire_bytes(0, is_ipv6) as usize }, None)
    }

    /// Makes the congestion control state of a queue pair that sends for the first time.
    #[inline]
    fn begin_flow(&mut self, now: Instant, index: usize) {
        let Some(policy) = &self.config.rate.policy else { return };
        let Some(entry) = self.qps[index].as_ref() else { return };
        // Management packets are not paced: there are few of them, and the end of congestion may depend on them.
        let qp_type = entry.qp.config().qp_type;
        if entry.flow.is_some() || qp_type == QpType::Gsi {
            return;
        }
        let level = entry.level();
        // What slows its service level down slows it down, too.
        let others = self.qps.iter().flatten().filter(|_| policy.is_by_level());
        let other = others.filter(|other| other.level() == level).find_map(|other| other.flow.as_ref());
        let controller = other.map_or_else(|| policy.controller(level), |other| other.controller.clone());
        let flow = Flow::new(now, policy, controller, qp_type.is_reliable());
        if let Some(entry) = self.qps[index].as_mut() {
            entry.flow = Some(Box::new(flow));
        }
    }

    /// Has the port go by another policy from now on, without one if that is `None`. Flows go on from where they are, if they can.
    pub fn set_policy(&mut self, now: Instant, policy: Option<Policy>) {
        self.config.rate.policy = policy;
        self.rates.active = self.config.rate.policy.is_some() || self.config.rate.port_rate.is_some();
        for index in 0..self.qps.len() {
            let Some(entry) = self.qps[index].as_mut().filter(|entry| entry.flow.is_some()) else { continue };
            let (level, is_reliable) = (entry.level(), entry.qp.config().qp_type.is_reliable());
            match (&self.config.rate.policy, &mut entry.flow) {
                (Some(policy), Some(flow)) => flow.follow(now, policy, level, is_reliable),
                _ => entry.flow = None,
            }
            self.pace_anew(index);
        }
    }

    /// Records what a queue pair sent in its turn.
    pub(super) fn book_flow(&mut self, now: Instant, index: usize, from: Psn, departure: &Departure) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        let Some(flow) = entry.flow.as_mut() else { return };
        let bytes = departure.wire_bytes();
        flow.on_sent(now, bytes);
        if entry.qp.noticed_loss() {
            flow.on_loss(now);
        }
        flow.depart(now, (from, entry.qp.next_psn()), bytes, departure.packets);
    }

    /// The packets that a queue pair may put in flight beside those that are, by its congestion control. Packets count as
    /// whole ones, and so do the responses that a READ asks for. `None` if there is no window.
    #[inline]
    pub(super) fn congestion_room(&self, index: usize) -> Option<u32> {
        let entry = self.qps[index].as_ref()?;
        let flow = entry.flow.as_ref()?;
        let packet = wire_bytes(PACKET + entry.qp.mtu().bytes() as usize, self.config.address.is_ipv6());
        let room = flow.room(packet, entry.qp.in_flight())?;
        // A window may shrink below what is in flight. If no acknowledgement of that was asked for, one more packet asks:
        // nothing else would open the window again.
        Some(if entry.qp.since_ack_request() > 0 { room.max(1) } else { room })
    }

    /// Discards the congestion control state of a queue pair.
    pub(super) fn forget_flow(&mut self, index: usize) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        (entry.notifier, entry.flow, entry.returns) = (None, None, None);
    }

    /// Returns whether the next packets of a queue pair are marked as ECN-capable: its rate depends on marks, and its
    /// peer reacts to them.
    pub(super) fn marks(&mut self, index: usize, path: &Path) -> bool {
        let has_flow = self.qps[index].as_ref().is_some_and(|entry| entry.flow.is_some());
        if !has_flow || self.config.rate.policy.as_ref().is_none_or(|policy| policy.red().is_none()) {
            return false;
        }
        // An unproven claim is enough for a mark, which costs a peer nothing.
        let known = path.peer.and_then(|id| self.peers.find_mut(id));
        let claims = known.is_some_and(|peer| peer.greeting.claims_cnp);
        claims || self.obeys_cnp(path.ip.dst, path.peer)
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
    /// The service level of what it sends: the upper three bits of the traffic class, as switches of the InfiniBand model read it. That
    /// of datagrams, each of which may have its own, counts as 0.
    pub(super) fn level(&self) -> u8 {
        self.path.map_or(0, |path| path.ip.tos >> 5)
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
