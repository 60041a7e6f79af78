//! Reception: from a datagram to its queue pair.

use super::partner::{Partners, is_free};
use super::rate::CE;
use super::{DropReason, Engine};
use crate::datagram::Datagram;
use crate::link::emulation::Entered;
use qp::wire::mad::Mad;
use qp::wire::mad::hello::{Features, Hello, HelloError};
use qp::wire::{IcrcVerdict, IpHeader, Opcode, Operation, Packet, Position, Transport};
use qp::{QKey, QpType, Qpn};
use time::Instant;

/// What the driver received at once, and all that it knows about it.
pub(crate) struct Batch<I> {
    pub(crate) arrivals: I,
    /// Whether the socket holds more; `None` if the driver did not look.
    pub(crate) has_more: Option<bool>,
}

/// A step on the way of packets to the engine. A sender's credit returns when its packets leave the buffer that the
/// credit guards: that of the socket, or the queue of an emulated port.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival<'a> {
    /// A datagram left the socket, and its packets are here.
    Read(Datagram<'a>),
    /// A datagram left the socket, but the layers of the link hold its packets. They follow as `Released`.
    Held(Datagram<'a>),
    /// The layers of the link released a packet.
    Released(Datagram<'a>),
    /// A packet entered the queue of an emulated port that credit guards.
    Entered(Entered),
    /// A packet left that queue, and is here.
    Left(Datagram<'a>),
}

impl Engine {
    /// Takes in what arrived. What is dropped is counted by its reason.
    pub(crate) fn receive<'a>(&mut self, now: Instant, batch: Batch<impl IntoIterator<Item = Arrival<'a>>>) {
        for arrival in batch.arrivals {
            match arrival {
                Arrival::Read(Datagram { truncated: true, .. }) => {
                    self.counters.rx_packets += 1;
                    self.counters.drop(DropReason::Truncated);
                }
                Arrival::Read(datagram) => {
                    self.note_datagram(now, &datagram.ip, datagram.bytes, datagram.segment_size);
                    self.handle_datagram(now, &datagram);
                }
                Arrival::Held(datagram) => {
                    self.note_datagram(now, &datagram.ip, datagram.bytes, datagram.segment_size);
                }
                Arrival::Released(datagram) => self.handle_datagram(now, &datagram),
                Arrival::Entered(entered) => self.note_entered(now, &entered),
                Arrival::Left(datagram) => {
                    self.note_left(&datagram.ip, datagram.bytes);
                    self.handle_datagram(now, &datagram);
                }
            }
        }
        if let Some(index) = self.unsettled.take() {
            self.settle(index);
        }
        if let Some(has_more) = batch.has_more {
            self.set_backlog(has_more);
        }
    }

    /// Settles a queue pair after a packet: once for all packets of a batch that follow each other.
    pub(super) fn settle_later(&mut self, index: usize) {
        if let Some(before) = self.unsettled.replace(index)
            && before != index
        {
            self.settle(before);
        }
    }

    /// The number of messages of peers that have ended, and READs and atomics they have asked for, since the last call.
    pub fn take_messages(&mut self) -> u32 {
        std::mem::take(&mut self.messages)
    }

    /// Processes the packets of a datagram: each from BTH to ICRC.
    fn handle_datagram(&mut self, now: Instant, datagram: &Datagram<'_>) {
        for (ip, packet) in datagram.packets() {
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += packet.len() as u64;
            self.counters.np_ecn_marked_roce_packets += u64::from(ip.tos & CE == CE);
            if let Err(reason) = self.dispatch(now, &ip, packet) {
                self.counters.drop(reason);
                tracing::trace!(from = %ip.src, reason = reason.name(), "a packet is dropped");
            } else if let Some(telemetry) = datagram.telemetry {
                self.return_telemetry(packet, telemetry);
            }
        }
    }

    fn dispatch(&mut self, now: Instant, arrival: &IpHeader, datagram: &[u8]) -> Result<(), DropReason> {
        if self.life.is_cut_off() {
            return Err(DropReason::PortDown);
        }
        let packet = Packet::parse(datagram)?;
        // This check precedes any side effect: nothing in a damaged packet can be trusted, including its destination.
        match self.solver.verify(&arrival.flow(), arrival.ident, datagram) {
            IcrcVerdict::Exact | IcrcVerdict::Index(_) => {}
            IcrcVerdict::Identification(_) => self.counters.icrc_solved += 1,
            IcrcVerdict::Bad => return Err(DropReason::BadIcrc),
        }
        match packet.info().operation {
            Operation::SelectiveAck if !self.partners.offers(Features::SELECTIVE) => {
                return Err(DropReason::Stranger);
            }
            Operation::SelectiveAck if packet.selective_ack().is_none() => return Err(DropReason::BadLength),
            Operation::Telemetry => return self.take_telemetry(now, arrival, &packet),
            // For a queue pair, like the acknowledgement that it is.
            Operation::SelectiveAck => {}
            _ if packet.info().transport == Transport::Rnic => {
                return self.take_message(now, arrival, &packet);
            }
            _ => {}
        }
        if packet.dest_qpn().value() & 0xffff == Qpn::GSI.value() && self.take_hello(now, arrival, &packet) {
            return Ok(());
        }
        if packet.dest_qpn() == Qpn::MULTICAST || arrival.dst.is_multicast() {
            return self.deliver_to_group(now, arrival, &packet);
        }
        if packet.dest_qpn() == Qpn::GSI && self.gsi.is_none() {
            return self.take_mad(now, arrival, &packet);
        }
        let delivered = match self.index(packet.dest_qpn()) {
            Some(index) => self.deliver(now, index, arrival, &packet),
            None if self.config.is_of_another(packet.dest_qpn()) => Err(DropReason::Misrouted),
            None => Err(DropReason::NoQp),
        };
        if packet.opcode() == Opcode::Cnp && delivered.is_err() {
            self.counters.rp_cnp_ignored += 1;
        }
        delivered
    }

    /// Processes a link message from a partner.
    fn take_message(
        &mut self,
        now: Instant,
        arrival: &IpHeader,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let Some(message) = packet.port_message() else {
            let is_known = self.partners.at(arrival.src, arrival.src_port).is_some();
            return Err(if is_known { DropReason::BadLength } else { DropReason::Stranger });
        };
        if message.dest_slot != self.config.slot {
            let is_shared = self.config.share.is_some();
            return Err(if is_shared { DropReason::Misrouted } else { DropReason::NoQp });
        }
        let id = self.peers.find(arrival.src, message.src_slot).ok_or(DropReason::Stranger)?;
        let Some(partner) = Partners::partner(&mut self.peers, id) else {
            self.doubt(now, id);
            return Err(DropReason::Stranger);
        };
        if packet.token() != partner.expected {
            // The sender is not the partner, or the partner has restarted.
            self.doubt(now, id);
            return Err(DropReason::BadToken);
        }
        if self.handle_message(now, id, packet) { Ok(()) } else { Err(DropReason::BadLength) }
    }

    /// Processes a hello; returns whether the packet is one. QP1 handles all its other packets itself.
    fn take_hello(&mut self, now: Instant, arrival: &IpHeader, packet: &Packet<'_>) -> bool {
        let slot = packet.dest_qpn().slot();
        let is_ours = slot == 0 || slot == self.config.slot;
        let is_datagram = packet.deth().is_some_and(|deth| deth.qkey == QKey::GSI);
        if !is_ours || !is_datagram || self.config.pkeys.find(packet.pkey()).is_none() {
            return false;
        }
        match Hello::parse(packet.payload()) {
            Ok(hello) => self.handle_hello(now, arrival.src, &hello),
            Err(HelloError::Status(_)) => {
                let Ok(mad) = Mad::parse(packet.payload()) else { return false };
                self.handle_refusal(now, arrival.src, mad.header.transaction_id);
            }
            Err(_) => return false,
        }
        true
    }

    /// Delivers a packet to a queue pair.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        index: usize,
        arrival: &IpHeader,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let Some(entry) = self.qps[index].as_mut() else { return Err(DropReason::NoQp) };
        // QP1 accepts any P_Key of the port (IBTA C9-42); the completion reports it by index.
        let matched = match entry.qp.config().qp_type {
            QpType::Gsi => self.config.pkeys.find(packet.pkey()),
            _ => packet.pkey().matches(entry.qp.pkey()).then_some(0),
        };
        let Some(pkey_index) = matched else { return Err(DropReason::BadPkey) };
        if entry.qp.config().qp_type.is_connected()
            && entry.path.is_none_or(|path| path.ip.dst != arrival.src)
        {
            return Err(DropReason::BadAddress);
        }
        if packet.opcode() == Opcode::Cnp {
            if !self.is_genuine_cnp(now, index, arrival, packet) {
                return Err(DropReason::BadToken);
            }
            self.handle_cnp(now, index);
            return Ok(());
        }
        if arrival.tos & CE == CE {
            self.handle_mark(now, index, arrival, packet);
        }
        // A receive posted before the packet was sent must be available when the packet arrives, even if it is still in
        // the inbox because the engine was busy when it was posted: otherwise a datagram would be lost.
        self.collect(index);
        let Some(entry) = self.qps[index].as_mut() else { return Err(DropReason::NoQp) };
        if entry.qp.needs_selective_peer(packet) {
            let peer = entry.path.and_then(|path| path.peer);
            let partner = peer.and_then(|id| Partners::partner(&mut self.peers, id));
            entry
                .qp
                .set_selective_peer(partner.is_some_and(|partner| partner.understands(Features::SELECTIVE)));
        }
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.taken);
        host.pkey_index = pkey_index;
        let outcome = entry.qp.handle_packet(now, arrival, packet, &mut host);
        let info = packet.info();
        if info.is_request && matches!(info.position, Position::Last | Position::Only) {
            self.messages = self.messages.saturating_add(1);
        }
        if entry.flow.is_some() && !packet.info().is_request {
            self.handle_answer(now, index, packet);
        }
        // A program that sees a completion with an error asks for the state next.
        match self.qps[index].as_ref() {
            Some(entry) if entry.qp.state() != entry.shared.state() => self.settle(index),
            _ => self.settle_later(index),
        }
        if outcome.is_ok() && self.partners.is_active() {
            self.note_taken(now, index, arrival, packet);
        }
        if self.awaits_first_packet() && outcome.is_ok() {
            self.note_first_packet(now, index);
        }
        outcome.map_err(|drop| {
            self.explain_drop(index, arrival, packet, drop.into());
            drop.into()
        })
    }

    /// A queue pair took a packet: draws conclusions about its sender.
    fn note_taken(&mut self, now: Instant, index: usize, arrival: &IpHeader, packet: &Packet<'_>) {
        let Some(entry) = self.qps[index].as_ref() else { return };
        let len = packet.bytes().len();
        if let Some(id) = entry.path.and_then(|path| path.peer) {
            if self.peers.find_mut(id).is_some_and(|peer| peer.partner.is_some()) {
                return;
            }
            if !is_free(packet.bytes()) {
                // A port that obeys credits would have waited for credit.
                self.count_as_foreign(id, "it sends without credit");
            }
            self.meet(now, arrival, len, Some(id));
        } else if let Some(id) = self.partners.at(arrival.src, arrival.src_port) {
            self.trust(id);
        } else if entry.qp.config().qp_type == QpType::Ud {
            let slot = packet.deth().map_or(0, |deth| deth.src_qpn.slot());
            let known = self.peers.find(arrival.src, slot);
            self.meet(now, arrival, len, known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Share;
    use crate::engine::partner::write_single;
    use crate::{Result, sim::Net};
    use qp::Psn;
    use qp::wire::Headers;

    #[test]
    fn a_datagram_that_was_cut_off_counts_as_one_packet_that_was_dropped() -> Result<()> {
        let device = Net::new().device();
        let port = device.inner.port()?;
        let now = port.now();
        port.with_datapath(|datapath| {
            let cut_off = Datagram { truncated: true, ..Datagram::single(IpHeader::default(), &[0; 20]) };
            for _ in 0..2 {
                datapath.engine.receive(now, Batch { arrivals: [Arrival::Read(cut_off)], has_more: None });
            }
        });
        let counters = device.counters().port;
        assert_eq!((counters.rx_packets, counters.dropped(DropReason::Truncated)), (2, 2));
        Ok(())
    }

    /// At a shared address a packet for another slot is told apart from one for a queue pair that is gone. Slot 0 gets what is for
    /// slots that nobody has: there it is no fault of whoever steers packets.
    #[test]
    fn packets_for_another_slot_are_misrouted() -> Result<()> {
        for (own, misrouted, unknown) in [(3, 2, 1), (0, 0, 3)] {
            let device = Net::new().device();
            let port = device.inner.port()?;
            let now = port.now();
            port.with_datapath(|datapath| {
                let engine = &mut datapath.engine;
                engine.config.slot = own;
                engine.config.share = Some(Share { rounds: [1, 2, 3, 4], first: 0 });
                for qpn in [0x04_0005, 0xff_0005, 0x03_0005] {
                    let to = IpHeader { dst: device.address(), ..IpHeader::to(device.address()) };
                    let path = engine.config.path(0, to);
                    let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(qpn), Psn::new(1));
                    let mut buf = [0; 256];
                    let sent = write_single(&path, &headers, b"hello", &mut buf).expect("room");
                    let datagram = Datagram::single(path.ip, &buf[..sent.len]);
                    engine.receive(now, Batch { arrivals: [Arrival::Read(datagram)], has_more: None });
                }
            });
            let counters = device.counters().port;
            let counted = [DropReason::Misrouted, DropReason::NoQp].map(|reason| counters.dropped(reason));
            assert_eq!(counted, [misrouted, unknown], "slot {own}");
        }
        Ok(())
    }
}
