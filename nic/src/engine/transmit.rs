//! Transmission: from queue pairs that are ready to trains of packets.

use super::drains::Allowance;
use super::partner::{Partners, PauseGate, largest_packet};
use super::peers::{Flights, PACKET_OVERHEAD, Peer};
use super::rate::Limit;
use super::{Engine, EngineConfig, QpEntry, Remote};
use crate::net::{DEFAULT_HOP_LIMIT, Way};
use qp::attr::AddressVector;
use qp::queue_pair::Budget;
use qp::wire::{Flow, UDP_PORT};
use qp::{Mtu, QpType, Qpn, Train};
use std::net::IpAddr;
use std::time::Instant;

/// A train ready to leave. Its bytes are in the buffer passed to [`Engine::poll_transmit`].
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// Destination address.
    pub dst: IpAddr,
    /// Index of the source port.
    pub via: usize,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 for none.
    pub flow_label: u32,
    /// Total length in bytes.
    pub len: usize,
    /// Length in bytes of every packet except possibly the last.
    pub segment_size: usize,
    /// Number of packets.
    pub packets: u32,
}

impl Departure {
    /// The network path of its packets.
    pub(crate) fn way(&self) -> Way {
        let Self { via, dst, tos, hop_limit, flow_label, .. } = *self;
        Way { via, dst, tos, hop_limit, flow_label }
    }
}

/// Number of full packets of this path MTU in a train.
fn full_train(mtu: Mtu, max_packets: u32) -> u32 {
    // The largest UDP payload over IPv4.
    (65_507 / (mtu.bytes() + PACKET_OVERHEAD)).min(max_packets)
}

impl QpEntry {
    /// Returns the number of packets that the queue pair may send now. If no other queue pair uses the peer's window,
    /// it may fill the remaining room. Otherwise queue pairs take turns of one full train each: where the budget ends,
    /// the requester requests an acknowledgement. Thus no queue pair waits while unacknowledged packets, for which no
    /// acknowledgement was requested, occupy the window.
    fn budget(&self, peer: &Peer, called: bool, train: u32) -> u32 {
        let room = peer.window.packets(Flights::packet_charge(self.qp.mtu()));
        if self.turn > 0 {
            return room.min(self.turn);
        }
        // Requesting an acknowledgement ensures that packets in flight do not occupy room indefinitely, possibly the
        // very room that the queue pair waits for. If packets leave in shorter trains than assumed, the packet that
        // requests the acknowledgement may exceed the window by one.
        let owes = self.qp.owes_ack_request();
        let room = if owes { room.max(1) } else { room };
        // First come, first served: a queue pair that was not called queues behind those that wait.
        if !owes && (!called && !peer.waiting.is_empty() || peer.is_nearly_full(room, train)) {
            return 0;
        }
        if peer.is_for(&self.flights) { room } else { room.min(train) }
    }
}

impl Remote {
    /// The path that an address vector describes, for the queue pair with this number.
    pub(super) fn along(path: &AddressVector, qpn: Qpn, source_ports: usize) -> Self {
        let address = path.dgid.ip();
        Self {
            address,
            peer: None,
            via: source_port(path.flow_label, qpn, source_ports),
            tos: path.traffic_class,
            hop_limit: hop_limit(path),
            flow_label: if address.is_ipv6() { path.flow_label } else { 0 },
        }
    }

    pub(super) fn flow(&self, config: &EngineConfig) -> Flow {
        let src_port = config.source_ports.get(self.via).copied().unwrap_or(UDP_PORT);
        Flow { src: config.address, dst: self.address, src_port, dst_port: UDP_PORT }
    }

    pub(super) fn departure(&self, train: &Train<'_>) -> Departure {
        Departure {
            dst: self.address,
            via: self.via,
            tos: self.tos,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            len: train.bytes().len(),
            segment_size: train.segment_size(),
            packets: train.packets(),
        }
    }
}

/// Selects the source port. A flow label is entropy that the program chose: it is mapped to a port as on Linux
/// (`rdma_flow_label_to_udp_sport`), and that port to one of ours. Without a flow label, a queue pair always uses the
/// same port, which preserves the order of its packets and spreads many queue pairs over the ports.
fn source_port(flow_label: u32, qpn: Qpn, source_ports: usize) -> usize {
    let entropy = if flow_label == 0 { qpn.value() } else { (flow_label ^ flow_label >> 14) & 0x3fff };
    entropy as usize % source_ports.max(1)
}

/// The TTL or hop limit of packets along `path`. Programs leave it 0, or set it to 1 as the libibverbs examples do,
/// even if the path crosses routers: Linux substitutes the route's own value. For a multicast group, 1 is taken
/// literally: the local network.
fn hop_limit(path: &AddressVector) -> u8 {
    match path.hop_limit {
        0 => DEFAULT_HOP_LIMIT,
        1 if !path.dgid.ip().is_multicast() => DEFAULT_HOP_LIMIT,
        hops => hops,
    }
}

impl Peer {
    /// Returns whether waiting for acknowledgements is better than sending trains into the little room that is left:
    /// near the end of the window, a system call for two packets costs as much as one for fifteen.
    fn is_nearly_full(&self, room: u32, train: u32) -> bool {
        room < train && self.window.is_half_used()
    }
}

/// What link credit and pauses of a partner allow a queue pair to send.
pub(super) enum Gate {
    /// No restriction: the peer is not a partner, or gives no credit.
    Open,
    /// As much as its credit covers.
    Credit { remote: Remote, peer: usize, vl: usize },
    /// Nothing: the queue pair waits.
    Shut,
    /// No restriction, but the packets are dropped.
    Drop,
}

impl Engine {
    /// Writes the next train into `buf`: at most `max_packets` packets of one queue pair. Returns `None` when there is
    /// nothing more to send for now.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut [u8], max_packets: u32) -> Option<Departure> {
        let is_paced = self.rates.is_active();
        loop {
            if self.has_messages()
                && let Some(message) = self.poll_message(now, buf)
            {
                self.book_port(now, &message);
                return self.count(message);
            }
            if is_paced && let Some(departure) = self.poll_notification(now, buf) {
                return Some(departure);
            }
            if is_paced && !self.port_may_send(now) {
                return None;
            }
            let Some(index) = self.ready.pop_front() else {
                self.rates.caught_up();
                return None;
            };
            let departure = if is_paced {
                self.transmit_paced(now, index, buf, max_packets)
            } else {
                self.transmit(now, index, buf, max_packets, Limit::packets(max_packets))
            };
            if departure.is_some() {
                return departure;
            }
        }
    }

    /// What a partner allows a queue pair to send.
    #[inline]
    pub(super) fn gate(&mut self, now: Instant, index: usize) -> Gate {
        let source_ports = self.config.source_ports.len();
        let Some(entry) = self.qps[index].as_ref() else { return Gate::Shut };
        // Queue pair 1 needs no credit, as VL15 does not.
        let is_management = entry.qp.config().qp_type == QpType::Gsi;
        let needs_credit = self.partners.needs_credit() && !is_management;
        let (remote, peer) = match (entry.remote, entry.qp.next_destination()) {
            (Some(connected), _) => (connected, connected.peer),
            // Few peers are partners, so the lookup is skipped for all others.
            (None, Some((path, qpn))) if self.partners.is_active() => {
                let remote = Remote::along(path, entry.qp.qpn(), source_ports);
                let mut peer = self.peers.find(remote.address, qpn.slot());
                if peer.is_none() && needs_credit && !remote.address.is_multicast() {
                    self.make_room(now);
                    peer = Some(self.peers.meet(remote.address, qpn.slot()));
                }
                (remote, peer)
            }
            (None, _) => return Gate::Open,
        };
        let Some(peer) = peer else { return Gate::Open };
        let Some(partner) = Partners::partner(&mut self.peers, peer) else {
            // As on an InfiniBand link, nothing is sent before credit is available.
            let is_open = !needs_credit || self.may_send_to_stranger(now, index, peer);
            return if is_open { Gate::Open } else { Gate::Shut };
        };
        let gives_credit = partner.gives_credit();
        match self.pause_gate(now, peer, remote.tos) {
            PauseGate::Open => {}
            PauseGate::Shut => {
                self.wait_for_pause(index, peer);
                return Gate::Shut;
            }
            PauseGate::Drop => return Gate::Drop,
        }
        if gives_credit && !is_management {
            let vl = self.partners.lane_of(remote.tos);
            return Gate::Credit { remote, peer, vl };
        }
        Gate::Open
    }

    /// Gives a turn to a queue pair that sends to a partner: it sends within its credit.
    pub(super) fn transmit_on_credit(
        &mut self,
        now: Instant,
        index: usize,
        (remote, id, vl): (Remote, usize, usize),
        buf: &mut [u8],
        max_packets: u32,
        limit: Limit,
    ) -> Option<Departure> {
        let entry = self.qps[index].as_mut()?;
        let called = std::mem::take(&mut entry.called);
        let peer = self.peers.find_mut(id)?;
        let partner = peer.partner.as_deref_mut()?;
        let (theirs, lane) = (partner.theirs, partner.lanes.get_mut(vl)?);
        let size = largest_packet(entry.qp.next_payload() as usize);
        let mut room = theirs.packets(lane.sender.available(now).into(), size, max_packets);
        let alone = lane.waiting.is_empty();
        // First come, first served: a queue pair that was not called queues behind those that wait.
        if !called && !alone {
            room = 0;
        }
        if room == 0 {
            self.wait_for_credit(now, index, (id, vl), called);
            return None;
        }
        let mut train = limit.train(buf, remote.flow(&self.config));
        train.limit(room);
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.accepted);
        let mut budget = limit.budget(room);
        let more = entry.qp.poll_transmit(now, &mut train, &mut budget, &mut host);
        let departure = remote.departure(&train);
        if departure.packets > 0 {
            (entry.last_sent, entry.last_to) = (Some(now), Some(remote.address));
            let taken = lane.sender.try_take(now, theirs.of(departure.len, departure.segment_size));
            debug_assert!(taken, "a train took more than there was room for: {departure:?}");
        }
        if more {
            entry.ready = true;
            self.ready.push_back(index);
        }
        self.settle(index);
        if called {
            self.call_lane(id, vl);
        }
        Some(departure)
    }

    /// Gives a turn to a queue pair from the ready queue: one train within `limit`. A full train has `max_packets`.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        now: Instant,
        index: usize,
        buf: &mut [u8],
        max_packets: u32,
        limit: Limit,
    ) -> Option<Departure> {
        let entry = self.qps[index].as_mut()?;
        entry.ready = false;
        let is_reliable = entry.qp.config().qp_type.is_reliable();
        let departure = match self.gate(now, index) {
            Gate::Credit { remote, peer, vl } => {
                self.transmit_on_credit(now, index, (remote, peer, vl), buf, max_packets, limit)
            }
            Gate::Shut => {
                self.pass_call(index);
                None
            }
            Gate::Open if is_reliable => self.transmit_reliable(now, index, buf, max_packets, limit),
            Gate::Open => self.transmit_unacked(now, index, buf, max_packets, limit),
            Gate::Drop => {
                let dropped = if is_reliable {
                    self.transmit_reliable(now, index, buf, max_packets, limit)
                } else {
                    self.transmit_unacked(now, index, buf, max_packets, limit)
                };
                self.drop_in_storm(dropped)
            }
        };
        departure.and_then(|departure| self.count(departure))
    }

    /// Counts a train, if any.
    pub(super) fn count(&mut self, departure: Departure) -> Option<Departure> {
        if departure.packets == 0 {
            return None;
        }
        self.counters.tx_packets += u64::from(departure.packets);
        self.counters.tx_bytes += departure.len as u64;
        Some(departure)
    }

    /// Gives a turn to a queue pair whose peer acknowledges: it sends within the peer's window.
    #[inline]
    fn transmit_reliable(
        &mut self,
        now: Instant,
        index: usize,
        buf: &mut [u8],
        max_packets: u32,
        limit: Limit,
    ) -> Option<Departure> {
        let entry = self.qps[index].as_mut()?;
        let remote = entry.remote?;
        let mtu = entry.qp.mtu();
        let peer = self.peers.get_mut(remote.peer?);
        let called = std::mem::take(&mut entry.called);
        let alone = peer.is_for(&entry.flights);
        let full = full_train(mtu, max_packets);
        let mut budget = Budget::requests(entry.budget(peer, called, full));
        let mut train = limit.train(buf, remote.flow(&self.config));
        let from = entry.qp.next_psn();
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.accepted);
        let more = entry.qp.poll_transmit(now, &mut train, &mut budget, &mut host);
        let departure = remote.departure(&train);
        let to = entry.qp.next_psn();
        let charge = entry.flights.depart(now, (from, to), departure.packets, departure.segment_size, mtu);
        peer.window.take(charge);
        let room = peer.window.packets(Flights::packet_charge(mtu));
        let in_vain = more && budget.requests == 0 && charge == 0;
        // A queue pair that waits for room is not ready, whatever work it has: settling must not make it ready. A queue
        // pair whose turn is over does not wait while there is room: if the acknowledgements to all others are lost,
        // nothing would call it. Responses need no room, and they free the room of the requests that they answer.
        let waits = !entry.qp.wants_to_answer()
            && (in_vain
                || more
                    && budget.requests == 0
                    && (!peer.waiting.is_empty() || peer.is_nearly_full(room, full)));
        if !waits && called && in_vain {
            // Its requests follow once it has sent its responses.
            entry.called = true;
        }
        if waits && !entry.waiting {
            entry.waiting = true;
            if called && in_vain {
                peer.waiting.push_front(index);
            } else {
                peer.waiting.push_back(index);
                self.counters.window_stalls += 1;
            }
        }
        entry.turn = if more && !alone { budget.requests } else { 0 };
        if more && !waits {
            entry.ready = true;
            // If pacing makes trains short, a turn consists of several trains, interleaved with those of other queue
            // pairs.
            if entry.turn > 0 && !self.rates.is_active() {
                self.ready.push_front(index);
            } else {
                self.ready.push_back(index);
            }
        }
        self.settle_after_transmit(index, waits);
        if waits {
            self.watch_window(now, remote.peer?);
        }
        if called && !in_vain {
            self.call_waiting(remote.peer?);
        }
        Some(departure)
    }

    /// Gives a turn to a queue pair whose packets are not acknowledged: it sends at the pace of the receiver.
    fn transmit_unacked(
        &mut self,
        now: Instant,
        index: usize,
        buf: &mut [u8],
        max_packets: u32,
        limit: Limit,
    ) -> Option<Departure> {
        let source_ports = self.config.source_ports.len();
        let entry = self.qps[index].as_mut()?;
        let called = std::mem::take(&mut entry.called);
        let mtu = entry.qp.mtu();
        let remote = match (entry.remote, entry.qp.next_destination()) {
            (Some(connected), _) => connected,
            (None, Some((path, _))) => Remote::along(path, entry.qp.qpn(), source_ports),
            (None, None) => return None,
        };
        let full = full_train(mtu, max_packets);
        let mut budget = match self.allowance(now, remote.address, mtu, full, called) {
            Allowance::Packets(packets) => Budget::requests(packets),
            Allowance::Wait(receiver) => {
                self.wait_for_drain(now, index, receiver, mtu, full, called);
                return None;
            }
        };
        let entry = self.qps[index].as_mut()?;
        let mut train = limit.train(buf, remote.flow(&self.config));
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.accepted);
        let more = entry.qp.poll_transmit(now, &mut train, &mut budget, &mut host);
        let departure = remote.departure(&train);
        if departure.packets > 0 {
            (entry.last_sent, entry.last_to) = (Some(now), Some(remote.address));
        }
        if more {
            // Its next packet may go to another receiver. Whether that one has room is checked in its next turn.
            entry.ready = true;
            self.ready.push_back(index);
        }
        self.book(now, remote.address, departure.packets, departure.segment_size);
        self.settle(index);
        Some(departure)
    }

    fn settle_after_transmit(&mut self, index: usize, waits: bool) {
        if waits && let Some(entry) = self.qps[index].as_mut() {
            // The flag stands in for a place in the ready queue while the rest is settled.
            entry.ready = true;
            self.settle(index);
            if let Some(entry) = self.qps[index].as_mut() {
                // Room that was freed meanwhile may have called it.
                entry.ready = entry.called;
                if entry.called {
                    self.ready.push_back(index);
                }
            }
        } else {
            self.settle(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_labels_choose_source_ports_as_on_linux() {
        // 0xabcde: its low 14 bits, XORed with its upper 6 bits, as rdma_flow_label_to_udp_sport does.
        assert_eq!(source_port(0xa_bcde, Qpn::new(7), 0x4000), 0x3cde ^ 0x2a);
        for ports in [1, 4, 256] {
            let chosen = |label| source_port(label, Qpn::new(7), ports);
            assert!((0..1000).all(|label| chosen(label) < ports && chosen(label) == chosen(label)));
        }
        let spread: std::collections::BTreeSet<_> = (1..20).map(|l| source_port(l, Qpn::new(7), 4)).collect();
        assert_eq!(spread.len(), 4);
        assert_eq!(source_port(0, Qpn::new(7), 4), 3, "without a label, the queue pair decides");
        assert_eq!(source_port(9, Qpn::new(7), 0), 0);
    }

    #[test]
    fn hop_limits_mean_what_linux_makes_of_them() {
        let to = |ip: [u8; 4], hop_limit| {
            let path = AddressVector { hop_limit, ..AddressVector::new(IpAddr::from(ip).into(), 0) };
            super::hop_limit(&path)
        };
        assert_eq!([0, 1, 2, 255].map(|hops| to([10, 0, 0, 1], hops)), [64, 64, 2, 255]);
        assert_eq!([0, 1, 2, 255].map(|hops| to([239, 0, 0, 1], hops)), [64, 1, 2, 255]);
    }
}
