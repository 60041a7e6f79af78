//! One pass in: from a datagram to the queue pair that it is for.

use super::{DropReason, Engine};
use qp::wire::{Flow, IcrcVerdict, Packet, UDP_PORT};
use std::net::IpAddr;
use std::time::Instant;

/// The ECN field of the TOS byte says "congestion experienced" (RFC 3168).
const CE: u8 = 0b11;

/// What the IP layer says of a packet that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Sender.
    pub src: IpAddr,
    /// The address that it was sent to.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// The IPv4 identification that it most likely had: its index in the train that it came in.
    pub ident: u16,
}

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
        let packet = Packet::parse(datagram)?;
        let flow =
            Flow { src: arrival.src, dst: arrival.dst, src_port: arrival.src_port, dst_port: UDP_PORT };
        // Before any side effect: nothing of a damaged packet can be trusted, its destination included.
        match self.solver.verify(&flow, arrival.ident, datagram) {
            IcrcVerdict::Exact | IcrcVerdict::Index(_) => {}
            IcrcVerdict::Identification(_) => self.counters.icrc_solved += 1,
            IcrcVerdict::Bad => return Err(DropReason::BadIcrc),
        }
        let index = self.index(packet.dest_qpn()).ok_or(DropReason::NoQp)?;
        let Some(entry) = self.qps[index].as_mut() else { return Err(DropReason::NoQp) };
        if !packet.pkey().matches(entry.qp.pkey()) {
            return Err(DropReason::BadPkey);
        }
        if entry.qp.config().qp_type.is_connected() && entry.remote.is_none_or(|r| r.address != arrival.src) {
            return Err(DropReason::BadAddress);
        }
        let mut host = self.host.of(entry.send_cq, entry.recv_cq, &entry.shared, &mut entry.accepted);
        let outcome = entry.qp.handle_packet(now, &packet, &mut host);
        self.settle(index);
        outcome.map_err(DropReason::from)
    }
}
