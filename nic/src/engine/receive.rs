//! One pass in: from a datagram to the queue pair that it is for.

use super::{DropReason, Engine};
use qp::wire::{Arrival, IcrcVerdict, Packet};
use qp::{QpType, Qpn};
use std::time::Instant;

/// The ECN field of the TOS byte says "congestion experienced" (RFC 3168).
const CE: u8 = 0b11;

impl Engine {
    /// Takes a packet from the wire: BTH to ICRC.
    ///
    /// # Errors
    /// Why it was dropped; that is counted already.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        datagram: &[u8],
    ) -> Result<(), DropReason> {
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += datagram.len() as u64;
        self.counters.rx_ce_packets += u64::from(arrival.tos & CE == CE);
        let result = self.dispatch(now, arrival, datagram);
        if let Err(reason) = result {
            self.counters.drop(reason);
        }
        result
    }

    fn dispatch(&mut self, now: Instant, arrival: &Arrival, datagram: &[u8]) -> Result<(), DropReason> {
        if self.life.is_cut_off() {
            return Err(DropReason::PortDown);
        }
        let packet = Packet::parse(datagram)?;
        // Before any side effect: nothing of a damaged packet can be trusted, its destination included.
        match self.solver.verify(&arrival.flow(), arrival.ident, datagram) {
            IcrcVerdict::Exact | IcrcVerdict::Index(_) => {}
            IcrcVerdict::Identification(_) => self.counters.icrc_solved += 1,
            IcrcVerdict::Bad => return Err(DropReason::BadIcrc),
        }
        if packet.dest_qpn() == Qpn::MULTICAST || arrival.dst.is_multicast() {
            return self.deliver_to_group(now, arrival, &packet);
        }
        let index = self.index(packet.dest_qpn()).ok_or(DropReason::NoQp)?;
        self.deliver(now, index, arrival, &packet)
    }

    /// Gives a packet to a queue pair.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        index: usize,
        arrival: &Arrival,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let Some(entry) = self.qps[index].as_mut() else { return Err(DropReason::NoQp) };
        // QP1 takes any P_Key of the port (IBTA C9-42); the completion names it by its index.
        let matched = match entry.qp.config().qp_type {
            QpType::Gsi => self.config.pkeys.find(packet.pkey()),
            _ => packet.pkey().matches(entry.qp.pkey()).then_some(0),
        };
        let Some(pkey_index) = matched else { return Err(DropReason::BadPkey) };
        if entry.qp.config().qp_type.is_connected() && entry.remote.is_none_or(|r| r.address != arrival.src) {
            return Err(DropReason::BadAddress);
        }
        // A receive that was posted before the packet was sent is there when it arrives, even if its poster found the engine
        // busy and left it in the inbox: a datagram would be lost otherwise.
        self.collect(index);
        let Some(entry) = self.qps[index].as_mut() else { return Err(DropReason::NoQp) };
        let mut host = self.host.of(&entry.links, &entry.shared, &mut entry.accepted);
        host.pkey_index = pkey_index;
        let outcome = entry.qp.handle_packet(now, arrival, packet, &mut host);
        self.settle(index);
        outcome.map_err(DropReason::from)
    }
}
