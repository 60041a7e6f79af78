//! Transmission of messages between rnic ports.

use super::Partners;
use crate::engine::path::Remote;
use crate::engine::schedule::Due;
use crate::engine::{Departure, Engine};
use cc::credits::{FlowControlPacket, Op};
use qp::attr::AddressVector;
use qp::wire::control::{FLOW_CONTROL_LEN, MAX_FLOW_CONTROLS, TOKEN_LEN};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::hello::Hello;
use qp::wire::{DethFields, Flow, Headers, Opcode, PauseTimes};
use qp::{Psn, QKey, Qpn, Train};
use std::net::IpAddr;
use std::time::Instant;

/// The class selector that networks prioritise by default (network control, CS6): link messages must not queue behind
/// the traffic that they control.
const TOS: u8 = 48 << 2;

/// A message to be sent.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Message {
    /// The identity of this port.
    Hello { to: IpAddr, slot: u8, hello: Hello },
    /// An urgent message about a lane; the limit is the one that the partner was told last.
    Credits { to: usize, vl: usize, op: Op },
    /// A new limit of a lane.
    Limit { to: usize, vl: usize, fccl: u16 },
    /// Confirmation that a lowered limit is obeyed.
    Yield { to: usize, update: FlowControlPacket },
    /// A pause, or the end of one.
    Pause { to: usize, times: PauseTimes },
}

impl Message {
    const fn partner(&self) -> Option<usize> {
        match self {
            Self::Hello { .. } => None,
            Self::Credits { to, .. }
            | Self::Limit { to, .. }
            | Self::Yield { to, .. }
            | Self::Pause { to, .. } => Some(*to),
        }
    }
}

impl Engine {
    /// The next message to a partner, in `buf`.
    pub(in crate::engine) fn poll_message(&mut self, now: Instant, buf: &mut [u8]) -> Option<Departure> {
        self.collect_limits(now);
        while let Some(message) = self.partners.outbox.pop_front() {
            let departure = match message {
                Message::Hello { to, slot, hello } => self.write_hello(to, slot, &hello, buf),
                Message::Credits { to, vl, op } => self.write_credits(to, vl, op, None, buf),
                Message::Limit { to, vl, fccl } => self.write_credits(to, vl, Op::Normal, Some(fccl), buf),
                Message::Yield { to, update } => self.write_updates(to, &update.encode(), buf),
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
        self.partners.limits_due || !self.partners.outbox.is_empty()
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

    /// Updates for one lane, and for other lanes of the same partner whose messages are next in the queue.
    fn write_credits(
        &mut self,
        id: usize,
        vl: usize,
        op: Op,
        fccl: Option<u16>,
        buf: &mut [u8],
    ) -> Option<Departure> {
        let mut body = [0; FLOW_CONTROL_LEN * MAX_FLOW_CONTROLS];
        let mut len = 0;
        let mut add = |update: FlowControlPacket| {
            if let Some(room) = body.get_mut(len..len + FLOW_CONTROL_LEN) {
                room.copy_from_slice(&update.encode());
                len += FLOW_CONTROL_LEN;
            }
        };
        add(self.update(id, vl, op, fccl)?);
        while let Some(&Message::Limit { to, vl, fccl }) = self.partners.outbox.front() {
            if to != id {
                break;
            }
            self.partners.outbox.pop_front();
            if let Some(update) = self.update(id, vl, Op::Normal, Some(fccl)) {
                add(update);
            }
        }
        self.write_updates(id, &body[..len], buf)
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
        let path = AddressVector { traffic_class: TOS, ..AddressVector::new(to.into(), 0) };
        // All messages leave from the first port, so that they stay in order.
        let remote = Remote::along(&path, Qpn::GSI, 1);
        let flow: Flow = remote.flow(&self.config);
        let mut train = Train::new(buf, flow, 1);
        if !train.has_room(headers, payload.len()) {
            return None;
        }
        let _: Result<(), std::convert::Infallible> = train.push(headers, payload.len(), |out| {
            out.copy_from_slice(payload);
            Ok(())
        });
        Some(remote.departure(&train))
    }

    /// Sets the timer of the pool.
    pub(super) fn arm_partners(&mut self) {
        let Some(at) = self.partners.pool.as_ref().and_then(cc::credits::Pool::poll_timeout) else { return };
        self.timers.set(&mut self.partners.timer, at, Due::Limits);
    }

    /// The timer of the pool fired.
    pub(in crate::engine) fn limits_timeout(&mut self, now: Instant) {
        if self.partners.timer.expires(now) {
            self.partners.limits_due = true;
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
