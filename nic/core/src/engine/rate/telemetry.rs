//! Telemetry of packets: as their receiver, a port returns it to their sender, which controls its rate with it.
//!
//! What returns leaves just before the acknowledgement of its packet: then the sender knows its new window when the
//! acknowledgement makes room in it, and the packet is outstanding, which is checked as for an acknowledgement. Beside that, its
//! sender shows the token of the partner.

use super::notify::is_alive;
use crate::engine::partner::{Partners, write_single};
use crate::engine::{Departure, DropReason, Engine};
use cc::Policy;
use cc::hpcc::{Hop, Telemetry};
use qp::Psn;
use qp::wire::mad::hello::Features;
use qp::wire::{Headers, IpHeader, Packet, telemetry};
use time::Instant;

/// What a queue pair has to return, and the PSN of the packet that brought it.
pub(in crate::engine) type Returns = Option<Box<(Psn, Telemetry)>>;

impl Engine {
    /// Whether what is sent collects telemetry, and what that is returns.
    pub(crate) fn uses_telemetry(&self) -> bool {
        self.config.rate.policy.as_ref().is_some_and(Policy::uses_telemetry)
    }

    /// The partner that a connected queue pair has, if it uses telemetry.
    fn teller(&mut self, index: usize) -> Option<&mut crate::engine::partner::Partner> {
        let id = self.qps[index].as_ref()?.path?.peer?;
        Partners::partner(&mut self.peers, id).filter(|partner| partner.understands(Features::TELEMETRY))
    }

    /// A packet was taken that brought telemetry: this returns to its sender, if the packet is the last in order, and asks for
    /// an acknowledgement. Of several that arrive together, the latest counts.
    pub(in crate::engine) fn return_telemetry(&mut self, packet: &[u8], telemetry: &Telemetry) {
        if !self.uses_telemetry() || telemetry.hops().is_empty() {
            return;
        }
        let Ok(packet) = Packet::parse(packet) else { return };
        let Some(index) = self.index(packet.dest_qpn()).filter(|_| packet.ack_req()) else { return };
        if self.teller(index).is_none() {
            return;
        }
        let Some(entry) = self.qps[index].as_mut().filter(|entry| is_alive(entry.qp.state())) else { return };
        if entry.qp.expected_psn() != packet.psn().plus(1) {
            return;
        }
        match &mut entry.returns {
            Some(waiting) => **waiting = (packet.psn(), *telemetry),
            None => {
                entry.returns = Some(Box::new((packet.psn(), *telemetry)));
                self.rates.returning.push_back(index);
            }
        }
    }

    /// Writes the next telemetry that returns, if any.
    pub(super) fn transmit_telemetry(&mut self, buf: &mut [u8]) -> Option<Departure> {
        while let Some(index) = self.rates.returning.pop_front() {
            let Some(entry) = self.qps.get_mut(index).and_then(Option::as_mut) else { continue };
            let Some(returns) = entry.returns.take() else { continue };
            let (Some(path), dest_qpn, pkey) = (entry.path, entry.qp.dest_qpn(), entry.qp.pkey()) else {
                continue;
            };
            let Some(token) = self.teller(index).map(|partner| partner.token) else { continue };
            let (psn, path_said) = *returns;
            let headers = Headers { pkey, ..Headers::telemetry(dest_qpn, psn) };
            let mut payload = [0; telemetry::MAX_LEN];
            let words = path_said.hops().iter().map(|hop| hop.word());
            let payload = telemetry::emit(token, words, &mut payload).and_then(|len| payload.get(..len));
            if let Some(departure) = write_single(&path, &headers, payload?, buf) {
                self.counters.tx_telemetry += 1;
                return self.count(departure);
            }
        }
        None
    }

    /// Processes telemetry that returns.
    pub(in crate::engine) fn take_telemetry(
        &mut self,
        now: Instant,
        arrival: &IpHeader,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let is_known = self.partners.at(arrival.src, arrival.src_port).is_some();
        let Some(index) = self.index(packet.dest_qpn()) else {
            let is_of_another = self.config.is_of_another(packet.dest_qpn());
            return Err(match (is_known, is_of_another) {
                (false, _) => DropReason::Stranger,
                (true, true) => DropReason::Misrouted,
                (true, false) => DropReason::NoQp,
            });
        };
        let Some(entry) = self.qps[index].as_ref() else { return Err(DropReason::NoQp) };
        let (unacked, next) = (entry.qp.unacked_psn(), entry.qp.next_psn());
        let (path, pkey, is_alive) = (entry.path, entry.qp.pkey(), is_alive(entry.qp.state()));
        let Some(partner) = self.teller(index) else { return Err(DropReason::Stranger) };
        let expected = partner.expected;
        if path.is_none_or(|path| path.ip.dst != arrival.src) {
            return Err(DropReason::BadAddress);
        }
        if packet.token() != expected {
            return Err(DropReason::BadToken);
        }
        if !packet.pkey().matches(pkey) {
            return Err(DropReason::BadPkey);
        }
        let Some(path) = parse(packet) else { return Err(DropReason::BadTelemetry) };
        if !is_alive {
            return Err(DropReason::BadState);
        }
        if packet.psn().is_before(unacked) || !packet.psn().is_before(next) {
            return Err(DropReason::Ghost);
        }
        let flow = self.qps[index].as_mut().and_then(|entry| entry.flow.as_mut());
        if flow.is_some_and(|flow| flow.on_telemetry(now, packet.psn(), next, &path)) {
            self.counters.rx_telemetry += 1;
            self.pace_anew(index);
            self.settle_later(index);
        }
        Ok(())
    }
}

/// The hops in a packet; `None` if it is malformed.
fn parse(packet: &Packet<'_>) -> Option<Telemetry> {
    let mut path = Telemetry::default();
    packet.telemetry()?.all(|word| Hop::from_word(word).is_some_and(|hop| path.push(hop))).then_some(path)
}
