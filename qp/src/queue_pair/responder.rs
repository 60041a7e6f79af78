//! The responder: executes the peer's requests and answers them.
//!
//! A request is judged in this order: PSN, opcode sequence, what the queue pair allows, receive work, lengths, key;
//! only then does a byte move. Answers wait in PSN order in a short queue; a new acknowledgement replaces one
//! that still waits, so a burst is acknowledged once.

use super::{FailureContext, MAX_MESSAGE, PacketDrop, QueuePair};
use crate::attr::QpState;
use crate::ids::Psn;
use crate::memory::{Access, AccessError, AtomicOp, Domain, Host, Memory, QpEvent};
use crate::train::Train;
use crate::wire::headers::AethFields;
use crate::wire::opcode::{Opcode, Operation as WireOperation, Position};
use crate::wire::packet::{Headers, Packet};
use crate::wire::syndrome::{NakCode, Syndrome};
use crate::work::{RecvWr, Sge, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use std::collections::VecDeque;

/// The message that is being received.
#[derive(Debug, Default)]
enum Message {
    /// None: the next request must be a First or an Only.
    #[default]
    None,
    /// A SEND into a receive work request.
    Send { wr: RecvWr, received: u32 },
    /// An RDMA WRITE.
    Write { va: u64, rkey: u32, length: u32, received: u32 },
}

/// What is kept of a READ or atomic, to answer a duplicate of it (IBTA 9.7.5.1.4).
#[derive(Clone, Copy, Debug)]
enum Resource {
    Read { first: Psn, packets: u32, va: u64, rkey: u32, length: u32 },
    Atomic { psn: Psn, original: u64 },
}

/// An answer that waits to be sent.
#[derive(Clone, Copy, Debug)]
enum Response {
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
        msn: u32,
    },
    /// The rest, from `psn` on, of an answer to a READ that occupies `first..end`.
    Read {
        first: Psn,
        psn: Psn,
        end: Psn,
        va: u64,
        rkey: u32,
        left: u32,
        started: bool,
        msn: u32,
        /// It answers a duplicate.
        replay: bool,
    },
    Atomic {
        psn: Psn,
        original: u64,
        msn: u32,
        /// It answers a duplicate.
        replay: bool,
    },
}

impl Response {
    fn psn(&self) -> Psn {
        match self {
            Self::Acknowledge { psn, .. } | Self::Read { psn, .. } | Self::Atomic { psn, .. } => *psn,
        }
    }

    /// Whether it is data for a READ or atomic: `Some(true)` for a duplicate of one.
    fn replays(&self) -> Option<bool> {
        match self {
            Self::Acknowledge { .. } => None,
            Self::Read { replay, .. } | Self::Atomic { replay, .. } => Some(*replay),
        }
    }
}

/// Why a request was not executed.
enum Refusal {
    /// No receive work request.
    NotReady,
    /// The request is at fault, or something here is.
    Nak {
        code: NakCode,
        /// Status of the receive work request that the message had taken, if any.
        recv_status: WcStatus,
        what: &'static str,
        access: Option<AccessError>,
    },
}

impl Refusal {
    fn invalid(what: &'static str) -> Self {
        Self::Nak { code: NakCode::InvalidRequest, recv_status: WcStatus::RemInvReqErr, what, access: None }
    }

    fn access(error: AccessError) -> Self {
        Self::Nak {
            code: NakCode::RemoteAccessError,
            recv_status: WcStatus::LocAccessErr,
            what: "remote memory access",
            access: Some(error),
        }
    }
}

/// State of the responder.
#[derive(Debug, Default)]
pub(super) struct Responder {
    recvs: VecDeque<RecvWr>,
    expected: Psn,
    msn: u32,
    message: Message,
    /// A NAK for the expected PSN was sent: silence until that PSN comes (IBTA 9.7.5.2.8).
    nak_sent: bool,
    established: bool,
    resources: VecDeque<Resource>,
    responses: VecDeque<Response>,
    /// An acknowledgement found no room behind the requests of the last train.
    waited: bool,
}

impl Responder {
    pub(super) fn recvs(&self) -> usize {
        self.recvs.len()
    }

    pub(super) fn push(&mut self, wr: RecvWr) {
        self.recvs.push_back(wr);
    }

    pub(super) fn pop(&mut self) -> Option<RecvWr> {
        self.recvs.pop_front()
    }

    pub(super) fn set_expected_psn(&mut self, psn: Psn) {
        self.expected = psn;
    }

    pub(super) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    /// Whether one acknowledgement is all there is to answer, and not a NAK.
    pub(super) fn only_acknowledges(&self) -> bool {
        matches!(
            self.responses.front(),
            None | Some(Response::Acknowledge { syndrome: Syndrome::Ack { .. }, .. })
        ) && self.responses.len() <= 1
    }

    /// Whether an acknowledgement may go behind requests: it did not have to wait for a train before.
    pub(super) fn may_wait(&self) -> bool {
        !self.waited
    }

    pub(super) fn made_wait(&mut self, waited: bool) {
        self.waited = waited;
    }

    pub(super) fn forget_resources(&mut self) {
        self.resources.clear();
    }

    pub(super) fn drop_responses(&mut self) {
        self.responses.clear();
    }

    /// Ends the message in progress; a receive work request that it had taken goes back to be flushed.
    pub(super) fn abandon_message(&mut self) {
        if let Message::Send { wr, .. } = std::mem::take(&mut self.message) {
            self.recvs.push_front(wr);
        }
    }

    /// Queues an acknowledgement of everything up to `psn`; true if it replaced one that still waited.
    fn acknowledge(&mut self, psn: Psn) -> bool {
        let msn = self.msn;
        let syndrome = Syndrome::ACK_UNLIMITED;
        if let Some(Response::Acknowledge { psn: p, msn: m, syndrome: Syndrome::Ack { .. } }) =
            self.responses.back_mut()
        {
            *p = psn;
            *m = msn;
            return true;
        }
        self.responses.push_back(Response::Acknowledge { psn, syndrome, msn });
        false
    }

    fn refuse(&mut self, psn: Psn, syndrome: Syndrome) {
        self.nak_sent = true;
        self.responses.push_back(Response::Acknowledge { psn, syndrome, msn: self.msn });
    }

    fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
    }

    /// READs and atomics that are accepted and not answered yet. Duplicates are none of them: their answer may
    /// have been late instead of lost, and the peer may have gone on.
    fn unanswered(&self) -> usize {
        self.responses.iter().filter(|r| r.replays() == Some(false)).count()
    }

    /// Answers to duplicates that wait.
    fn replays(&self) -> usize {
        self.responses.iter().filter(|r| r.replays() == Some(true)).count()
    }

    fn keep(&mut self, resource: Resource, depth: usize) {
        while self.resources.len() >= depth {
            self.resources.pop_front();
        }
        self.resources.push_back(resource);
    }

    /// Queues an answer to a duplicate among those that wait, in PSN order; no more than the peer could have
    /// outstanding.
    fn insert(&mut self, response: Response, depth: usize) -> Result<(), PacketDrop> {
        if self.replays() >= depth {
            return Err(PacketDrop::StaleDuplicate);
        }
        let psn = response.psn();
        let at = self.responses.iter().position(|r| psn.is_before(r.psn())).unwrap_or(self.responses.len());
        self.responses.insert(at, response);
        Ok(())
    }
}

impl QueuePair {
    /// Handles a request of the peer.
    pub(super) fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return Err(PacketDrop::State);
        }
        if self.state == QpState::Rtr && !self.responder.established {
            self.responder.established = true;
            host.event(self.config.qpn, QpEvent::CommunicationEstablished);
        }
        let psn = packet.psn();
        match psn.distance_from(self.responder.expected) {
            0 => {}
            ahead if ahead > 0 => return self.out_of_sequence(),
            _ => return self.duplicate(packet),
        }
        self.responder.nak_sent = false;
        match self.execute(packet, host) {
            Ok(psns) => {
                self.responder.expected = psn.plus(psns);
                // READs and atomics are answered by their data.
                if packet.ack_req() && !self.answers_itself(packet) && self.responder.acknowledge(psn) {
                    self.counters.ack_deferred += 1;
                }
            }
            Err(Refusal::NotReady) => {
                self.counters.out_of_buffer += 1;
                self.counters.send_rnr_err += 1;
                let timer = self.attr.min_rnr_timer.unwrap_or(0);
                self.responder.refuse(psn, Syndrome::Rnr { timer });
            }
            Err(Refusal::Nak { code, recv_status, what, access }) => {
                self.refuse_request(psn, code, recv_status, what, access, host);
            }
        }
        Ok(())
    }

    fn answers_itself(&self, packet: &Packet<'_>) -> bool {
        matches!(
            packet.info().operation,
            WireOperation::ReadRequest | WireOperation::CompareSwap | WireOperation::FetchAdd
        )
    }

    fn out_of_sequence(&mut self) -> Result<(), PacketDrop> {
        self.counters.out_of_seq_request += 1;
        if self.responder.nak_sent {
            return Err(PacketDrop::OutOfSequence);
        }
        let expected = self.responder.expected;
        self.responder.refuse(expected, Syndrome::Nak(NakCode::PsnSequenceError));
        Ok(())
    }

    /// Sends a NAK that ends the connection: a receive that the message had taken completes with an error, or an
    /// event tells of it where there is none (IBTA C9-222.1.1).
    fn refuse_request(
        &mut self,
        psn: Psn,
        code: NakCode,
        recv_status: WcStatus,
        what: &'static str,
        access: Option<AccessError>,
        host: &mut impl Host,
    ) {
        if code == NakCode::RemoteAccessError {
            self.counters.resp_remote_access_errors += 1;
        }
        self.note_failure(recv_status, psn, FailureContext::ServingRequest(what), access);
        self.responder.refuse(psn, Syndrome::Nak(code));
        if let Message::Send { wr, .. } = std::mem::take(&mut self.responder.message) {
            self.counters.resp_cqe_error += 1;
            let completion = WorkCompletion {
                wr_id: wr.wr_id,
                status: recv_status,
                opcode: WcOpcode::Recv,
                qpn: self.config.qpn,
                vendor_err: access.map_or(0, AccessError::vendor_code),
                ..WorkCompletion::default()
            };
            host.complete_recv(completion, true);
        } else {
            let event =
                if code == NakCode::RemoteAccessError { QpEvent::AccessError } else { QpEvent::RequestError };
            host.event(self.config.qpn, event);
        }
        self.enter_error(host);
    }

    /// Executes the expected request; returns how many PSNs it takes.
    fn execute(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<u32, Refusal> {
        let info = packet.info();
        let fits = matches!(
            (&self.responder.message, info.operation, info.position),
            (Message::None, _, Position::First | Position::Only)
                | (Message::Send { .. }, WireOperation::Send, Position::Middle | Position::Last)
                | (Message::Write { .. }, WireOperation::Write, Position::Middle | Position::Last)
        );
        if !fits {
            return Err(Refusal::invalid("opcode out of sequence"));
        }
        match info.operation {
            WireOperation::Send => self.execute_send(packet, host).map(|()| 1),
            WireOperation::Write => self.execute_write(packet, host).map(|()| 1),
            WireOperation::ReadRequest => self.execute_read(packet, host),
            WireOperation::CompareSwap | WireOperation::FetchAdd => {
                self.execute_atomic(packet, host).map(|()| 1)
            }
            _ => Err(Refusal::invalid("operation not supported")),
        }
    }

    /// First and Middle carry exactly one path MTU, Last 1 to one path MTU, Only at most one (IBTA C9-92).
    fn check_length(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let len = packet.payload().len();
        let mtu = self.path.mtu.bytes() as usize;
        let right = match packet.info().position {
            Position::First | Position::Middle => len == mtu && packet.pad() == 0,
            Position::Last => (1..=mtu).contains(&len),
            Position::Only => len <= mtu,
        };
        if right { Ok(()) } else { Err(Refusal::invalid("payload length does not fit the path MTU")) }
    }

    fn take_recv(&mut self, host: &mut impl Host) -> Result<RecvWr, Refusal> {
        let wr = if self.config.has_srq {
            host.take_shared_recv(self.config.qpn)
        } else {
            self.responder.recvs.pop_front()
        };
        wr.ok_or(Refusal::NotReady)
    }

    fn execute_send(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refusal> {
        let position = packet.info().position;
        if matches!(position, Position::First | Position::Only) {
            let wr = self.take_recv(host)?;
            self.responder.message = Message::Send { wr, received: 0 };
        }
        self.check_length(packet)?;
        let domain = self.domain();
        let Message::Send { wr, received } = &mut self.responder.message else {
            return Err(Refusal::invalid("opcode out of sequence"));
        };
        let data = packet.payload();
        let total = u64::from(*received) + data.len() as u64;
        if total > wr.data.len() || total > MAX_MESSAGE {
            self.counters.resp_local_length_error += 1;
            return Err(Refusal::Nak {
                code: NakCode::InvalidRequest,
                recv_status: WcStatus::LocLenErr,
                what: "message longer than the receive buffer",
                access: None,
            });
        }
        let offset = u64::from(*received);
        scatter(host, domain, wr.data.elements(), offset, data, Access::LOCAL_WRITE).map_err(|error| {
            Refusal::Nak {
                code: NakCode::RemoteOperationalError,
                recv_status: WcStatus::LocProtErr,
                what: "the receive buffer cannot be written",
                access: Some(error),
            }
        })?;
        *received = u32::try_from(total).unwrap_or(u32::MAX);
        if matches!(position, Position::Last | Position::Only) {
            let received = *received;
            let Message::Send { wr, .. } = std::mem::take(&mut self.responder.message) else {
                return Ok(());
            };
            self.responder.count_message();
            self.deliver(packet, wr.wr_id, received, WcOpcode::Recv, host);
        }
        Ok(())
    }

    /// Completes the receive work request of a message that is all there.
    fn deliver(
        &mut self,
        packet: &Packet<'_>,
        wr_id: u64,
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
            wr_id,
            status: WcStatus::Success,
            opcode,
            flags,
            byte_len,
            imm_or_rkey,
            qpn: self.config.qpn,
            src_qpn: self.path.dest_qpn,
            vendor_err: 0,
        };
        host.complete_recv(completion, packet.solicited());
    }

    fn allowed(&self, access: Access, what: &'static str) -> Result<(), Refusal> {
        if self.attr.qp_access_flags.unwrap_or_default().contains(access) {
            Ok(())
        } else {
            Err(Refusal::invalid(what))
        }
    }

    fn execute_write(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refusal> {
        let position = packet.info().position;
        let ends = matches!(position, Position::Last | Position::Only);
        if let (Some(reth), Message::None) = (packet.reth(), &self.responder.message) {
            self.allowed(Access::REMOTE_WRITE, "RDMA WRITE is not enabled on the queue pair")?;
            if u64::from(reth.length) > MAX_MESSAGE {
                return Err(Refusal::invalid("message longer than 2^31 bytes"));
            }
            self.responder.message =
                Message::Write { va: reth.va, rkey: reth.rkey, length: reth.length, received: 0 };
        }
        let outcome = self.write_packet(packet, ends, host);
        match outcome {
            // Not ready: a First or Only starts over when it comes again; a Last finds the message as it was.
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
        let domain = self.domain();
        let data = packet.payload();
        let Message::Write { va, rkey, length, received } = self.responder.message else {
            return Err(Refusal::invalid("opcode out of sequence"));
        };
        let recv = match packet.imm() {
            Some(_) => Some(self.take_recv(host)?),
            None => None,
        };
        let result = self.check_length(packet).and_then(|()| {
            let total = u64::from(received) + data.len() as u64;
            let fits = if ends { total == u64::from(length) } else { total < u64::from(length) };
            if !fits {
                return Err(Refusal::invalid("payload does not add up to the length in the RETH"));
            }
            if received == 0 {
                // The whole range at once, so that a message that cannot end does not begin.
                host.check(domain, rkey, va, u64::from(length), Access::REMOTE_WRITE)
                    .map_err(Refusal::access)?;
            }
            host.write(domain, rkey, va.wrapping_add(u64::from(received)), Access::REMOTE_WRITE, data)
                .map_err(Refusal::access)?;
            Ok(u32::try_from(total).unwrap_or(u32::MAX))
        });
        match (result, recv) {
            (Ok(total), Some(wr)) => {
                self.deliver(packet, wr.wr_id, total, WcOpcode::RecvRdmaWithImm, host);
                Ok(())
            }
            (Ok(total), None) => {
                self.responder.message = Message::Write { va, rkey, length, received: total };
                Ok(())
            }
            (Err(refusal), Some(wr)) => {
                // The receive that the immediate took reports the error.
                self.responder.message = Message::Send { wr, received: 0 };
                Err(refusal)
            }
            (Err(refusal), None) => Err(refusal),
        }
    }

    /// How many READs and atomics the peer may have outstanding.
    fn depth(&self) -> usize {
        usize::from(self.attr.max_dest_rd_atomic.unwrap_or(0))
    }

    /// The depth, if one more READ or atomic is within it.
    fn check_depth(&self) -> Result<usize, Refusal> {
        let depth = self.depth();
        if self.responder.unanswered() >= depth {
            return Err(Refusal::invalid("more READs and atomics outstanding than max_dest_rd_atomic"));
        }
        Ok(depth)
    }

    fn execute_read(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<u32, Refusal> {
        self.allowed(Access::REMOTE_READ, "RDMA READ is not enabled on the queue pair")?;
        let depth = self.check_depth()?;
        let Some(reth) = packet.reth() else { return Err(Refusal::invalid("no RETH")) };
        if u64::from(reth.length) > MAX_MESSAGE {
            return Err(Refusal::invalid("message longer than 2^31 bytes"));
        }
        host.check(self.domain(), reth.rkey, reth.va, u64::from(reth.length), Access::REMOTE_READ)
            .map_err(Refusal::access)?;
        self.counters.rx_read_requests += 1;
        self.responder.count_message();
        let psn = packet.psn();
        let packets = self.path.mtu.packets(reth.length);
        self.responder.keep(
            Resource::Read { first: psn, packets, va: reth.va, rkey: reth.rkey, length: reth.length },
            depth,
        );
        self.responder.responses.push_back(Response::Read {
            first: psn,
            psn,
            end: psn.plus(packets),
            va: reth.va,
            rkey: reth.rkey,
            left: reth.length,
            started: false,
            msn: self.responder.msn,
            replay: false,
        });
        Ok(packets)
    }

    fn execute_atomic(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refusal> {
        self.allowed(Access::REMOTE_ATOMIC, "atomics are not enabled on the queue pair")?;
        let depth = self.check_depth()?;
        let Some(atomic) = packet.atomic_eth() else { return Err(Refusal::invalid("no AtomicETH")) };
        let op = match packet.info().operation {
            WireOperation::CompareSwap => {
                AtomicOp::CompareSwap { compare: atomic.compare, swap: atomic.swap_add }
            }
            _ => AtomicOp::FetchAdd { add: atomic.swap_add },
        };
        let original =
            host.atomic(self.domain(), atomic.rkey, atomic.va, op).map_err(|error| match error {
                AccessError::Misaligned { .. } => Refusal::Nak {
                    code: NakCode::InvalidRequest,
                    recv_status: WcStatus::RemInvReqErr,
                    what: "misaligned atomic",
                    access: Some(error),
                },
                other => Refusal::access(other),
            })?;
        self.counters.rx_atomic_requests += 1;
        self.responder.count_message();
        let psn = packet.psn();
        self.responder.keep(Resource::Atomic { psn, original }, depth);
        let msn = self.responder.msn;
        self.responder.responses.push_back(Response::Atomic { psn, original, msn, replay: false });
        Ok(())
    }

    /// Answers a request that was executed before, without executing it again and never with a NAK (IBTA C9-105).
    fn duplicate(&mut self, packet: &Packet<'_>) -> Result<(), PacketDrop> {
        self.counters.duplicate_request += 1;
        match packet.info().operation {
            WireOperation::Send | WireOperation::Write => {
                if self.responder.acknowledge(self.responder.expected.minus(1)) {
                    self.counters.ack_deferred += 1;
                }
                Ok(())
            }
            WireOperation::ReadRequest => self.duplicate_read(packet),
            WireOperation::CompareSwap | WireOperation::FetchAdd => self.duplicate_atomic(packet),
            _ => Err(PacketDrop::StaleDuplicate),
        }
    }

    /// A duplicate READ may ask for any part of the original (IBTA 9.7.5.1.4): it is read anew.
    fn duplicate_read(&mut self, packet: &Packet<'_>) -> Result<(), PacketDrop> {
        let psn = packet.psn();
        let mtu = self.path.mtu.bytes();
        let reth = packet.reth().ok_or(PacketDrop::StaleDuplicate)?;
        let within = |r: &Resource| match *r {
            Resource::Read { first, packets, va, rkey, length } => {
                let index = psn.distance_from(first);
                let offset = u64::try_from(index).unwrap_or(u64::MAX).saturating_mul(u64::from(mtu));
                index >= 0
                    && index < i32::try_from(packets).unwrap_or(i32::MAX)
                    && reth.rkey == rkey
                    && reth.va == va.wrapping_add(offset)
                    && offset + u64::from(reth.length) <= u64::from(length)
            }
            Resource::Atomic { .. } => false,
        };
        if !self.responder.resources.iter().any(within) {
            return Err(PacketDrop::StaleDuplicate);
        }
        let end = psn.plus(self.path.mtu.packets(reth.length));
        let waiting = self.responder.responses.iter_mut().find(|r| match r {
            Response::Read { first, end: last, .. } => !psn.is_before(*first) && !last.is_before(end),
            _ => false,
        });
        if let Some(Response::Read { psn: next, va, left, started, .. }) = waiting {
            // What has not been sent yet is under way. What was sent is sent again, and the rest after it.
            let back = u32::try_from(next.distance_from(psn)).unwrap_or(0);
            if back > 0 {
                *next = psn;
                *va = reth.va;
                *left += back * mtu;
                *started = false;
            }
            return Ok(());
        }
        let replay = Response::Read {
            first: psn,
            psn,
            end,
            va: reth.va,
            rkey: reth.rkey,
            left: reth.length,
            started: false,
            msn: self.responder.msn,
            replay: true,
        };
        let depth = self.depth();
        self.responder.insert(replay, depth)
    }

    fn duplicate_atomic(&mut self, packet: &Packet<'_>) -> Result<(), PacketDrop> {
        let wanted = packet.psn();
        let original = self.responder.resources.iter().find_map(|r| match *r {
            Resource::Atomic { psn, original } if psn == wanted => Some(original),
            _ => None,
        });
        let original = original.ok_or(PacketDrop::StaleDuplicate)?;
        let waits = |r: &Response| matches!(r, Response::Atomic { psn, .. } if *psn == wanted);
        if self.responder.responses.iter().any(waits) {
            return Ok(());
        }
        let msn = self.responder.msn;
        let depth = self.depth();
        self.responder.insert(Response::Atomic { psn: wanted, original, msn, replay: true }, depth)
    }

    /// Writes answers into the train; true if some had to stay for want of room.
    pub(super) fn respond(&mut self, train: &mut Train<'_>, host: &mut impl Host) -> bool {
        while let Some(response) = self.responder.responses.front().copied() {
            let room = match response {
                Response::Acknowledge { psn, syndrome, msn } => {
                    self.send_acknowledge(train, psn, Opcode::RcAcknowledge, syndrome, msn, 0)
                }
                Response::Atomic { psn, original, msn, .. } => {
                    let syndrome = Syndrome::ACK_UNLIMITED;
                    self.send_acknowledge(train, psn, Opcode::RcAtomicAcknowledge, syndrome, msn, original)
                }
                Response::Read { .. } => match self.send_read_response(train, response, host) {
                    Some(room) => room,
                    // Given up: either it was a duplicate, or the QP went to ERR and the queue holds the NAK.
                    None => continue,
                },
            };
            if !room {
                return true;
            }
        }
        false
    }

    /// The headers of a response packet.
    fn response_headers(&self, opcode: Opcode, psn: Psn, syndrome: Syndrome, msn: u32) -> Headers {
        let mut headers = Headers::new(opcode, self.path.dest_qpn, psn);
        headers.pkey = self.path.pkey;
        headers.mig_req = self.config.tuning.mig_req;
        headers.aeth = AethFields { syndrome: syndrome.to_u8(), msn };
        headers
    }

    fn send_acknowledge(
        &mut self,
        train: &mut Train<'_>,
        psn: Psn,
        opcode: Opcode,
        syndrome: Syndrome,
        msn: u32,
        original: u64,
    ) -> bool {
        let mut headers = self.response_headers(opcode, psn, syndrome, msn);
        headers.atomic_ack = original;
        if !train.has_room(&headers, 0) {
            return false;
        }
        let _: Result<(), std::convert::Infallible> = train.push(&headers, 0, |_| Ok(()));
        self.responder.responses.pop_front();
        true
    }

    /// Writes the next packet of a READ response: whether there was room, or `None` if its memory is gone.
    fn send_read_response(
        &mut self,
        train: &mut Train<'_>,
        response: Response,
        host: &mut impl Host,
    ) -> Option<bool> {
        let Response::Read { first, psn, end, va, rkey, left, started, msn, replay } = response else {
            return Some(true);
        };
        let mtu = self.path.mtu.bytes();
        let payload = left.min(mtu);
        let ends = left <= mtu;
        let opcode = match (started, ends) {
            (false, true) => Opcode::RcReadResponseOnly,
            (false, false) => Opcode::RcReadResponseFirst,
            (true, false) => Opcode::RcReadResponseMiddle,
            (true, true) => Opcode::RcReadResponseLast,
        };
        let headers = self.response_headers(opcode, psn, Syndrome::ACK_UNLIMITED, msn);
        if !train.has_room(&headers, payload as usize) {
            return Some(false);
        }
        let domain = self.domain();
        let pushed = train
            .push(&headers, payload as usize, |out| host.read(domain, rkey, va, Access::REMOTE_READ, out));
        if pushed.is_err() && replay {
            // A duplicate is never answered by a NAK: the peer may have had its data long since.
            self.responder.responses.pop_front();
            return None;
        }
        if let Err(error) = pushed {
            // The region went away after the request was accepted (IBTA 9.7.4.1.5).
            self.responder.drop_responses();
            self.refuse_request(
                psn,
                NakCode::RemoteAccessError,
                WcStatus::LocAccessErr,
                "memory of a READ",
                Some(error),
                host,
            );
            return None;
        }
        self.counters.sent_bytes += u64::from(payload);
        if ends {
            self.responder.responses.pop_front();
        } else if let Some(front) = self.responder.responses.front_mut() {
            *front = Response::Read {
                first,
                psn: psn.plus(1),
                end,
                va: va.wrapping_add(u64::from(payload)),
                rkey,
                left: left - payload,
                started: true,
                msn,
                replay,
            };
        }
        Some(true)
    }
}

/// Writes `data` into a scatter list, `offset` bytes into it. What does not fit is left out: the caller compared
/// lengths.
pub(super) fn scatter(
    memory: &mut impl Memory,
    domain: Domain,
    elements: &[Sge],
    mut offset: u64,
    mut data: &[u8],
    access: Access,
) -> Result<(), AccessError> {
    for sge in elements {
        if data.is_empty() {
            break;
        }
        let len = u64::from(sge.length);
        if offset >= len {
            offset -= len;
            continue;
        }
        let here = usize::try_from(len - offset).unwrap_or(usize::MAX).min(data.len());
        let (now, later) = data.split_at(here);
        memory.write(domain, sge.lkey, sge.addr.wrapping_add(offset), access, now)?;
        data = later;
        offset = 0;
    }
    Ok(())
}
