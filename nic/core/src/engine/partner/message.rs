//! Transmission of messages between rnic ports.

use super::Partners;
use crate::engine::path::Path;
use crate::engine::schedule::Due;
use crate::engine::{Departure, Engine};
use cc::credits::CreditMessage;
use cc::vl::Vl;
use qp::wire::control::{FLOW_CONTROL_LEN, MAX_FLOW_CONTROLS, TOKEN_LEN};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::hello::Hello;
use qp::wire::{DethFields, Headers, IpHeader, Opcode, PauseTimes};
use qp::{Psn, QKey, Qpn, Train};
use std::net::IpAddr;
use time::Instant;

/// The class selector that networks prioritise by default (network control, CS6): link messages must not queue behind
/// the traffic that they control.
const TOS: u8 = 48 << 2;

/// A message to be sent.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Message {
    /// The identity of this port.
    Hello { to: IpAddr, slot: u8, hello: Hello },
    /// A request for credit on a lane, or for its lease to go on, or the confirmation that a lowered limit is obeyed. It
    /// is worded when it leaves, after everything for which credit was taken.
    Ask { to: usize, vl: usize },
    /// A new limit of a lane.
    Grant { to: usize, grant: CreditMessage },
    /// A pause, or the end of one.
    Pause { to: usize, times: PauseTimes },
}

impl Message {
    const fn partner(&self) -> Option<usize> {
        match self {
            Self::Hello { .. } => None,
            Self::Ask { to, .. } | Self::Grant { to, .. } | Self::Pause { to, .. } => Some(*to),
        }
    }
}

/// Writes one packet, if `buf` has room for it.
pub(in crate::engine) fn write_single(
    path: &Path,
    headers: &Headers,
    payload: &[u8],
    buf: &mut [u8],
) -> Option<Departure> {
    let mut train = Train::new(buf, path.ip.flow(), 1);
    if !train.has_room(headers, payload.len()) {
        return None;
    }
    let _: Result<(), std::convert::Infallible> = train.push(headers, payload.len(), |out| {
        out.copy_from_slice(payload);
        Ok(())
    });
    Some(path.departure(&train))
}

impl Engine {
    /// The next message to a partner, in `buf`.
    pub(in crate::engine) fn poll_message(&mut self, now: Instant, buf: &mut [u8]) -> Option<Departure> {
        self.collect_grants(now);
        while let Some(message) = self.partners.outbox.pop_front() {
            let departure = match message {
                Message::Hello { to, slot, hello } => self.write_hello(to, slot, &hello, buf),
                Message::Ask { to, vl } => self.write_ask(now, to, vl, buf),
                Message::Grant { to, grant } => self.write_grants(to, &grant, buf),
                Message::Pause { to, times } => self.write_pause(to, times, buf),
            };
            if let Some(departure) = departure {
                return Some(departure);
            }
        }
        None
    }

    /// Returns whether there is a message for a partner.
    pub(in crate::engine) fn has_messages(&self) -> bool {
        self.partners.grants_due || !self.partners.outbox.is_empty()
    }

    /// Discards the messages to a partner that is gone.
    pub(super) fn drop_messages(&mut self, id: usize) {
        self.partners.outbox.retain(|message| message.partner() != Some(id));
    }

    fn write_hello(&mut self, to: IpAddr, slot: u8, hello: &Hello, buf: &mut [u8]) -> Option<Departure> {
        let dest_qpn = Qpn::new(u32::from(slot) << 16 | Qpn::GSI.value());
        let mut headers = Headers::new(Opcode::UdSendOnly, dest_qpn, self.next_message_psn());
        headers.deth = DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI };
        let mut mad = [0; MAD_LEN];
        hello.emit(&mut mad);
        self.write(to, &headers, &mad, buf)
    }

    fn write_ask(&mut self, now: Instant, id: usize, vl: usize, buf: &mut [u8]) -> Option<Departure> {
        let want = self.wanted(id, vl);
        let lane = Partners::lane(&mut self.peers, id, vl)?;
        let ask = lane.sender.ask(now, Vl::new(u8::try_from(vl).ok()?)?, want);
        self.write_updates(id, &ask.encode(), buf)
    }

    /// A grant, and those for other lanes of the same partner that are next in the queue.
    fn write_grants(&mut self, id: usize, first: &CreditMessage, buf: &mut [u8]) -> Option<Departure> {
        let mut body = [0; FLOW_CONTROL_LEN * MAX_FLOW_CONTROLS];
        let (mut places, mut count) = (body.as_chunks_mut().0.iter_mut(), 1);
        *places.next()? = first.encode();
        while let Some(&Message::Grant { to, grant }) = self.partners.outbox.front()
            && to == id
            && let Some(place) = places.next()
        {
            *place = grant.encode();
            count += 1;
            self.partners.outbox.pop_front();
        }
        self.write_updates(id, &body[..count * FLOW_CONTROL_LEN], buf)
    }

    fn write_updates(&mut self, id: usize, updates: &[u8], buf: &mut [u8]) -> Option<Departure> {
        let peer = self.peers.find_mut(id)?;
        let (address, slot) = (peer.address, peer.slot);
        self.partners.sequence = self.partners.sequence.wrapping_add(1);
        let headers = Headers::flow_control(slot, self.partners.slot, self.partners.sequence);
        self.counters.tx_flow_control += 1;
        self.write_with_token(id, address, &headers, updates, buf)
    }

    fn write_pause(&mut self, id: usize, times: PauseTimes, buf: &mut [u8]) -> Option<Departure> {
        let peer = self.peers.find_mut(id)?;
        let (address, slot) = (peer.address, peer.slot);
        self.partners.sequence = self.partners.sequence.wrapping_add(1);
        let headers = Headers::pause(slot, self.partners.slot, self.partners.sequence);
        self.write_with_token(id, address, &headers, &times.emit(), buf)
    }

    /// Writes a message to a partner, preceded by the token that the partner gave us.
    fn write_with_token(
        &mut self,
        id: usize,
        address: IpAddr,
        headers: &Headers,
        said: &[u8],
        buf: &mut [u8],
    ) -> Option<Departure> {
        let token = Partners::partner(&mut self.peers, id)?.token;
        let mut payload = [0; TOKEN_LEN + FLOW_CONTROL_LEN * MAX_FLOW_CONTROLS];
        let payload = payload.get_mut(..TOKEN_LEN + said.len())?;
        payload[..TOKEN_LEN].copy_from_slice(&token.to_be_bytes());
        payload[TOKEN_LEN..].copy_from_slice(said);
        self.write(address, headers, payload, buf)
    }

    fn next_message_psn(&mut self) -> Psn {
        self.partners.sequence = self.partners.sequence.wrapping_add(1);
        Psn::new(self.partners.sequence.into())
    }

    /// Writes one packet.
    fn write(&mut self, to: IpAddr, headers: &Headers, payload: &[u8], buf: &mut [u8]) -> Option<Departure> {
        // All messages leave from the first port, so that they stay in order.
        let path = self.config.path(0, IpHeader { tos: TOS, ..IpHeader::to(to) });
        write_single(&path, headers, payload, buf)
    }

    /// Sets the timer of the pool.
    pub(super) fn arm_partners(&mut self) {
        let Some(at) = self.partners.pool.as_ref().and_then(cc::credits::Pool::poll_timeout) else { return };
        self.timers.set(&mut self.partners.timer, at, Due::Limits);
    }

    /// The timer of the pool fired.
    pub(in crate::engine) fn limits_timeout(&mut self, now: Instant) {
        if self.partners.timer.expires(now) {
            self.partners.grants_due = true;
        }
    }

    /// Processes a link message of a partner.
    pub(in crate::engine) fn handle_message(
        &mut self,
        now: Instant,
        id: usize,
        packet: &qp::wire::Packet<'_>,
    ) -> bool {
        if let Some(updates) = packet.flow_controls() {
            self.counters.rx_flow_control += 1;
            self.handle_credits(now, id, updates);
            return true;
        }
        if let Some(times) = packet.pause_times() {
            self.handle_pause(now, id, &times);
            return true;
        }
        false
    }
}
