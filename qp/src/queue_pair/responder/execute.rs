//! Executing the expected request.

use super::{Message, Nak, QueuePair, Refusal, Refused, TakenRecv, scatter};
use crate::memory::{Access, Domain, Host, NoSharedRecv, SharedRecv};
use crate::queue_pair::MAX_MESSAGE;
use crate::wire::opcode::{Operation as WireOperation, Position};
use crate::wire::packet::Packet;
use crate::wire::syndrome::NakCode;
use crate::work::{WcFlags, WcOpcode, WcStatus, WorkCompletion};

impl QueuePair {
    /// Executes the expected request; returns the number of PSNs it takes.
    pub(super) fn execute(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<u32, Refusal> {
        let info = packet.info();
        let fits = matches!(
            (&self.responder.message, info.operation, info.position),
            (Message::None, _, Position::First | Position::Only)
                | (Message::Send { .. }, WireOperation::Send, Position::Middle | Position::Last)
                | (Message::Write { .. }, WireOperation::Write, Position::Middle | Position::Last)
        );
        if !fits {
            return Err(Refusal::invalid(Refused::OutOfPlace));
        }
        match info.operation {
            WireOperation::Send => self.execute_send(packet, host).map(|()| 1),
            WireOperation::Write => self.execute_write(packet, host).map(|()| 1),
            WireOperation::ReadRequest => self.execute_read(packet, host),
            WireOperation::CompareSwap | WireOperation::FetchAdd => {
                self.execute_atomic(packet, host).map(|()| 1)
            }
            WireOperation::AtomicWrite => self.execute_atomic_write(packet, host).map(|()| 1),
            WireOperation::Flush => self.execute_flush(packet, host).map(|()| 1),
            _ => Err(Refusal::invalid(Refused::Unsupported)),
        }
    }

    /// A First or Middle carries exactly one path MTU, a Last 1 byte to one path MTU, an Only at most one path MTU
    /// (IBTA C9-92).
    fn check_length(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let len = packet.payload().len();
        let bytes = self.path.mtu.bytes();
        let mtu = bytes as usize;
        let right = match packet.info().position {
            Position::First | Position::Middle => len == mtu && packet.pad() == 0,
            Position::Last => (1..=mtu).contains(&len),
            Position::Only => len <= mtu,
        };
        if right { Ok(()) } else { Err(Refusal::invalid(Refused::PacketLength { len, mtu: bytes })) }
    }

    /// Takes a receive work request from the queue pair's own queue, its shared receive queue, or the shared
    /// receive queue that an XRC request names.
    fn take_recv(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<TakenRecv, Refusal> {
        if let Some(spare) = self.responder.take_spare() {
            return Ok(spare);
        }
        let xrc_srq = packet.xrc_srqn();
        if !self.config.has_srq && xrc_srq.is_none() {
            let recv = self.responder.pop(self.config.pd).ok_or(Refusal::NotReady)?;
            host.release_recv();
            return Ok(recv);
        }
        match host.take_shared_recv(xrc_srq) {
            Ok(SharedRecv { wr, pd }) => Ok(TakenRecv { wr, pd, xrc_srq }),
            Err(NoSharedRecv::Empty) => Err(Refusal::NotReady),
            Err(NoSharedRecv::Unknown) => Err(Refusal::invalid(Refused::NoSharedReceive)),
            Err(NoSharedRecv::Failed) => {
                let status = WcStatus::LocQpOpErr;
                Err(Refusal::Nak(Nak::operational(status, Refused::SharedReceiveFailed, None)))
            }
        }
    }

    fn execute_send(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refusal> {
        let position = packet.info().position;
        if matches!(position, Position::First | Position::Only) {
            let recv = self.take_recv(packet, host)?;
            self.responder.message = Message::Send { recv, received: 0 };
        }
        self.check_length(packet)?;
        let ours = self.domain();
        let Message::Send { recv, received } = &mut self.responder.message else {
            return Err(Refusal::invalid(Refused::OutOfPlace));
        };
        let data = packet.payload();
        let total = u64::from(*received) + data.len() as u64;
        if total > recv.wr.data.len() || total > MAX_MESSAGE {
            self.counters.resp_local_length_error += 1;
            let why = Refused::ReceiveTooShort { len: total, room: recv.wr.data.len() };
            let (code, recv_status) = (NakCode::InvalidRequest, WcStatus::LocLenErr);
            return Err(Refusal::Nak(Nak { code, recv_status, why, access: None }));
        }
        let offset = u64::from(*received);
        let domain = Domain { pd: recv.pd, ..ours };
        scatter(host, domain, recv.wr.data.elements(), offset, data, Access::LOCAL_WRITE).map_err(
            |error| Refusal::Nak(Nak::operational(WcStatus::LocProtErr, Refused::ReceiveBuffer, Some(error))),
        )?;
        *received = u32::try_from(total).unwrap_or(u32::MAX);
        if let Some(key) = packet.ieth() {
            // Before the completion: a program that sees it relies on the key being invalid.
            host.invalidate(ours, key).map_err(Refusal::access)?;
        }
        if matches!(position, Position::Last | Position::Only) {
            let received = *received;
            let Message::Send { recv, .. } = std::mem::take(&mut self.responder.message) else {
                return Ok(());
            };
            self.responder.count_message();
            self.deliver(packet, &recv, received, WcOpcode::Recv, host);
        }
        Ok(())
    }

    /// Completes the receive work request of a message that has arrived in full.
    fn deliver(
        &mut self,
        packet: &Packet<'_>,
        recv: &TakenRecv,
        byte_len: u32,
        opcode: WcOpcode,
        host: &mut impl Host,
    ) {
        self.counters.rdma_recvs += 1;
        let (flags, imm_or_rkey) = match (packet.imm(), packet.ieth()) {
            (Some(imm), _) => (WcFlags::WITH_IMM, imm),
            (None, Some(key)) => (WcFlags::WITH_INV, key),
            (None, None) => (WcFlags::empty(), 0),
        };
        let completion = WorkCompletion {
            wr_id: recv.wr.wr_id,
            status: WcStatus::Success,
            opcode,
            flags,
            byte_len,
            imm_or_rkey,
            qpn: self.config.qpn,
            src_qpn: self.path.dest_qpn,
            ..WorkCompletion::default()
        };
        host.complete_recv(recv.xrc_srq, completion, packet.solicited());
    }

    pub(super) fn allowed(&self, access: Access) -> Result<(), Refusal> {
        let missing = access - self.attr.qp_access_flags.unwrap_or_default();
        if missing.is_empty() { Ok(()) } else { Err(Refusal::invalid(Refused::NotEnabled { missing })) }
    }

    fn execute_write(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refusal> {
        let position = packet.info().position;
        let ends = matches!(position, Position::Last | Position::Only);
        if let (Some(reth), Message::None) = (packet.reth(), &self.responder.message) {
            self.allowed(Access::REMOTE_WRITE)?;
            if u64::from(reth.length) > MAX_MESSAGE {
                return Err(Refusal::invalid(Refused::TooLong));
            }
            self.responder.message =
                Message::Write { va: reth.va, rkey: reth.rkey, length: reth.length, received: 0 };
        }
        let outcome = self.write_packet(packet, ends, host);
        match outcome {
            // Not ready: a First or Only is executed from the start when it is retransmitted; a Last continues the
            // message in progress.
            Err(Refusal::NotReady) if position == Position::Only => self.responder.message = Message::None,
            Ok(()) if ends => {
                self.responder.message = Message::None;
                self.counters.rx_write_requests += 1;
                self.responder.count_message();
            }
            _ => {}
        }
        outcome
    }

    fn write_packet(&mut self, packet: &Packet<'_>, ends: bool, host: &mut impl Host) -> Result<(), Refusal> {
        let domain = self.domain_of(packet, host)?;
        let data = packet.payload();
        let Message::Write { va, rkey, length, received } = self.responder.message else {
            return Err(Refusal::invalid(Refused::OutOfPlace));
        };
        let recv = match packet.imm() {
            Some(_) => Some(self.take_recv(packet, host)?),
            None => None,
        };
        let result = self.check_length(packet).and_then(|()| {
            let total = u64::from(received) + data.len() as u64;
            let fits = if ends { total == u64::from(length) } else { total < u64::from(length) };
            if !fits {
                return Err(Refusal::invalid(Refused::LengthMismatch));
            }
            if received == 0 && !ends {
                // Check the whole range at once, so that a message that must fail does not write its first packets.
                host.check(domain, rkey, va, u64::from(length), Access::REMOTE_WRITE)
                    .map_err(Refusal::access)?;
            }
            host.write(domain, rkey, va.wrapping_add(u64::from(received)), Access::REMOTE_WRITE, data)
                .map_err(Refusal::access)?;
            Ok(u32::try_from(total).unwrap_or(u32::MAX))
        });
        match (result, recv) {
            (Ok(total), Some(recv)) => {
                self.deliver(packet, &recv, total, WcOpcode::RecvRdmaWithImm, host);
                Ok(())
            }
            (Ok(total), None) => {
                self.responder.message = Message::Write { va, rkey, length, received: total };
                Ok(())
            }
            (Err(refusal), Some(recv)) => {
                // The receive that the immediate data consumed reports the error.
                self.responder.message = Message::Send { recv, received: 0 };
                Err(refusal)
            }
            (Err(refusal), None) => Err(refusal),
        }
    }
}
