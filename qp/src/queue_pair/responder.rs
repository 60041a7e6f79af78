//! The responder: executes the peer's requests and answers them.
//!
//! A request is checked in this order: PSN, opcode sequence, operations enabled on the queue pair, receive work
//! requests, lengths, key. Only then does a byte move. Responses wait in PSN order in a short queue; a new
//! acknowledgement replaces one that is still waiting, so a burst is acknowledged once.

mod answer;
mod answered;
mod duplicates;
mod execute;
mod unreliable;

use super::reasons::operation_name;
use super::{FailureContext, PacketDrop, QueuePair, Refused};
use crate::attr::{QpState, QpType};
use crate::ids::{PdId, Psn};
use crate::memory::{Access, AccessError, Domain, Host, Memory, QpEvent};
use crate::queue_pair::selective::{Held, OnDemand};
use crate::wire::opcode::Operation as WireOperation;
use crate::wire::packet::Packet;
use crate::wire::syndrome::{NakCode, Syndrome};
use crate::work::{RecvWr, Sge, WcOpcode, WcStatus, WorkCompletion};
use std::collections::VecDeque;

/// A receive work request that a message has consumed.
#[derive(Debug)]
pub(super) struct TakenRecv {
    pub(super) wr: RecvWr,
    /// Protection domain of its buffers.
    pd: PdId,
    /// The shared receive queue that an XRC request named, if the receive came from one.
    pub(super) xrc_srq: Option<u32>,
}

impl TakenRecv {
    /// Protection domain of its buffers.
    pub(super) fn pd(&self) -> PdId {
        self.pd
    }

    /// A receive of the queue pair's own queue.
    pub(super) fn own(wr: RecvWr, pd: PdId) -> Self {
        Self { wr, pd, xrc_srq: None }
    }
}

/// The message in progress.
#[derive(Debug, Default)]
enum Message {
    /// No message in progress: the next request must be a First or an Only.
    #[default]
    None,
    /// A SEND into a receive work request.
    Send { recv: TakenRecv, received: u32 },
    /// An RDMA WRITE.
    Write { va: u64, rkey: u32, length: u32, received: u32 },
}

/// State kept for a READ or atomic, to answer duplicates of it (IBTA 9.7.5.1.4).
#[derive(Clone, Copy, Debug)]
enum Resource {
    Read {
        first: Psn,
        packets: u32,
        pd: PdId,
        va: u64,
        rkey: u32,
        length: u32,
    },
    Atomic {
        psn: Psn,
        original: u64,
    },
    /// A completed ATOMIC_WRITE or FLUSH.
    Placed {
        psn: Psn,
    },
}

/// A response waiting to be sent.
#[derive(Clone, Copy, Debug)]
enum Response {
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
        msn: u32,
    },
    /// The rest of a READ response, from `psn` on; the whole response occupies `first..end`.
    Read {
        first: Psn,
        psn: Psn,
        end: Psn,
        pd: PdId,
        va: u64,
        rkey: u32,
        left: u32,
        started: bool,
        msn: u32,
        /// Whether it answers a duplicate.
        replay: bool,
    },
    Atomic {
        psn: Psn,
        original: u64,
        msn: u32,
        /// Whether it answers a duplicate.
        replay: bool,
    },
    /// The response to an ATOMIC_WRITE or FLUSH: an empty READ response (IBTA annex A19).
    Placed {
        psn: Psn,
        msn: u32,
        /// Whether it answers a duplicate.
        replay: bool,
    },
}

impl Response {
    fn psn(&self) -> Psn {
        match self {
            Self::Acknowledge { psn, .. }
            | Self::Read { psn, .. }
            | Self::Atomic { psn, .. }
            | Self::Placed { psn, .. } => *psn,
        }
    }

    /// For a response to a READ, atomic, ATOMIC_WRITE or FLUSH, whether it answers a duplicate; `None` for others.
    fn replays(&self) -> Option<bool> {
        match self {
            Self::Acknowledge { .. } => None,
            Self::Read { replay, .. } | Self::Atomic { replay, .. } | Self::Placed { replay, .. } => {
                Some(*replay)
            }
        }
    }
}

/// Why a request was not executed.
enum Refusal {
    /// No receive work request is posted.
    NotReady,
    /// The request is at fault, or something here is.
    Nak(Nak),
}

/// What ends a connection.
struct Nak {
    code: NakCode,
    /// Status of the receive work request that the message had taken, if any.
    recv_status: WcStatus,
    why: Refused,
    access: Option<AccessError>,
}

impl Refusal {
    fn invalid(why: Refused) -> Self {
        let (code, recv_status) = (NakCode::InvalidRequest, WcStatus::RemInvReqErr);
        Self::Nak(Nak { code, recv_status, why, access: None })
    }

    fn access(error: AccessError) -> Self {
        Self::Nak(Nak::access(Refused::Memory, error))
    }
}

impl Nak {
    fn access(why: Refused, error: AccessError) -> Self {
        let (code, recv_status) = (NakCode::RemoteAccessError, WcStatus::LocAccessErr);
        Self { code, recv_status, why, access: Some(error) }
    }

    /// Something of this side is at fault.
    fn operational(recv_status: WcStatus, why: Refused, access: Option<AccessError>) -> Self {
        Self { code: NakCode::RemoteOperationalError, recv_status, why, access }
    }
}

/// State of the responder.
#[derive(Debug, Default)]
pub(super) struct Responder {
    recvs: VecDeque<RecvWr>,
    /// A receive that a message on an unreliable connection consumed but did not fill: the next message uses it.
    spare: Option<TakenRecv>,
    expected: Psn,
    pub(super) msn: u32,
    message: Message,
    /// A NAK for the expected PSN was sent: no further NAK until that PSN arrives (IBTA 9.7.5.2.8).
    nak_sent: bool,
    established: bool,
    resources: VecDeque<Resource>,
    responses: VecDeque<Response>,
    /// An acknowledgement did not fit after the requests of the last train.
    waited: bool,
    /// Whether the next response carries BECN.
    echo: bool,
    /// Requests beyond a gap, and whether the peer understands what is said of them.
    pub(super) held: OnDemand<Held>,
    pub(super) tells: bool,
    /// A selective acknowledgement leaves behind all responses.
    pub(super) report_due: bool,
}

impl Responder {
    pub(super) fn recvs(&self) -> usize {
        self.recvs.len()
    }

    pub(super) fn push(&mut self, wr: RecvWr) {
        self.recvs.push_back(wr);
    }

    /// The oldest receive work request of the queue pair's own queue.
    pub(super) fn peek(&self) -> Option<&RecvWr> {
        self.recvs.front()
    }

    /// Takes the receive left by an unfinished message.
    pub(super) fn take_spare(&mut self) -> Option<TakenRecv> {
        self.spare.take()
    }

    /// Takes the oldest receive work request of the queue pair's own queue.
    pub(super) fn pop(&mut self, pd: PdId) -> Option<TakenRecv> {
        self.recvs.pop_front().map(|wr| TakenRecv::own(wr, pd))
    }

    pub(super) fn expected_psn(&self) -> Psn {
        self.expected
    }

    pub(super) fn set_expected_psn(&mut self, psn: Psn) {
        self.expected = psn;
    }

    pub(super) fn has_responses(&self) -> bool {
        !self.responses.is_empty() || self.report_due
    }

    /// Whether the next response is something other than a READ response.
    pub(super) fn acknowledges_next(&self) -> bool {
        self.responses.front().map_or(self.report_due, |r| !matches!(r, Response::Read { .. }))
    }

    /// Sets BECN in the next response.
    pub(super) fn echo_congestion(&mut self) {
        self.echo = true;
    }

    /// Whether the only response waiting is an acknowledgement, and not a NAK.
    pub(super) fn only_acknowledges(&self) -> bool {
        matches!(
            self.responses.front(),
            None | Some(Response::Acknowledge { syndrome: Syndrome::Ack { .. }, .. })
        ) && self.responses.len() <= 1
    }

    /// Whether an acknowledgement may follow requests: it has not already waited for a train.
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
        self.report_due = false;
    }

    /// Aborts the message in progress; returns the receive work request that it had consumed.
    pub(super) fn abandon_message(&mut self) -> Option<TakenRecv> {
        match std::mem::take(&mut self.message) {
            Message::Send { recv, .. } => Some(recv),
            Message::None | Message::Write { .. } => None,
        }
    }

    /// Queues an acknowledgement of everything up to `psn`; true if it replaced one that was still waiting.
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

    /// READs and atomics that are accepted and not yet answered. Duplicates do not count: the original response may
    /// have been late rather than lost, and the peer may have moved on.
    fn unanswered(&self) -> usize {
        self.responses.iter().filter(|r| r.replays() == Some(false)).count()
    }

    /// Number of responses to duplicates that are waiting.
    fn replays(&self) -> usize {
        self.responses.iter().filter(|r| r.replays() == Some(true)).count()
    }

    fn keep(&mut self, resource: Resource, depth: usize) {
        while self.resources.len() >= depth {
            self.resources.pop_front();
        }
        self.resources.push_back(resource);
    }

    /// Queues a response to a duplicate in PSN order, unless `most` of them are waiting already. That is the number of requests
    /// that the peer may have outstanding, or the number of gaps that a partner may have.
    fn insert(&mut self, response: Response, most: usize) -> Result<(), PacketDrop> {
        if self.replays() >= most {
            return Err(PacketDrop::StaleDuplicate);
        }
        let psn = response.psn();
        let at = self.responses.iter().position(|r| psn.is_before(r.psn())).unwrap_or(self.responses.len());
        self.responses.insert(at, response);
        Ok(())
    }
}

impl QueuePair {
    /// Handles a request from the peer.
    pub(super) fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return Err(PacketDrop::State);
        }
        if self.config.qp_type == QpType::XrcSend {
            return Err(PacketDrop::Service);
        }
        if self.state == QpState::Rtr && !self.responder.established {
            self.responder.established = true;
            host.event(self.config.qpn, QpEvent::CommunicationEstablished);
        }
        if !self.config.qp_type.is_reliable() {
            return self.receive_unreliable(packet, host);
        }
        let psn = packet.psn();
        match psn.distance_from(self.responder.expected) {
            0 => {}
            ahead if ahead > 0 => return self.out_of_sequence(packet, ahead),
            _ => return self.duplicate(packet),
        }
        self.execute_expected(packet, host);
        if !self.responder.held.is_empty() {
            self.execute_held(host);
        }
        Ok(())
    }

    /// Executes the requests that were held and now are next. The requester learns what it could not know: how far that goes.
    fn execute_held(&mut self, host: &mut impl Host) {
        while let Some(bytes) = self.responder.held.take() {
            let before = self.responder.expected;
            // It was parsed when it came.
            let Ok(packet) = Packet::parse(&bytes) else { return };
            self.execute_expected(&packet, host);
            if self.responder.expected == before {
                return;
            }
        }
        self.report();
    }

    /// Has the requester told what is held.
    pub(super) fn report(&mut self) {
        // It says what an acknowledgement would.
        let is_plain =
            |r: &mut Response| matches!(r, Response::Acknowledge { syndrome: Syndrome::Ack { .. }, .. });
        self.responder.responses.pop_back_if(is_plain);
        self.responder.report_due = true;
    }

    /// Executes the request with the expected PSN.
    fn execute_expected(&mut self, packet: &Packet<'_>, host: &mut impl Host) {
        let psn = packet.psn();
        self.responder.nak_sent = false;
        match self.execute(packet, host) {
            Ok(psns) => {
                self.responder.expected = psn.plus(psns);
                if !self.responder.held.is_empty() {
                    self.responder.held.advance(psns);
                }
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
            Err(Refusal::Nak(nak)) => {
                let operation = operation_name(packet.info().operation, packet.imm().is_some());
                self.refuse_request(psn, operation, &nak, host);
            }
        }
    }

    /// The domain in which a request accesses memory: for an XRC request that of the shared receive queue it names,
    /// otherwise that of the queue pair.
    fn domain_of(&self, packet: &Packet<'_>, host: &impl Host) -> Result<Domain, Refusal> {
        let domain = self.domain();
        match packet.xrc_srqn() {
            None => Ok(domain),
            Some(srqn) => match host.xrc_pd(srqn) {
                Some(pd) => Ok(Domain { pd, ..domain }),
                None => Err(Refusal::invalid(Refused::NoSharedReceive)),
            },
        }
    }

    fn answers_itself(&self, packet: &Packet<'_>) -> bool {
        matches!(
            packet.info().operation,
            WireOperation::ReadRequest
                | WireOperation::CompareSwap
                | WireOperation::FetchAdd
                | WireOperation::AtomicWrite
                | WireOperation::Flush
        )
    }

    fn out_of_sequence(&mut self, packet: &Packet<'_>, ahead: i32) -> Result<(), PacketDrop> {
        self.counters.out_of_seq_request += 1;
        if self.responder.tells {
            let is_held = self.responder.held.hold(ahead.unsigned_abs() as usize, packet.bytes());
            self.counters.held_pkts += u64::from(is_held);
            self.report();
            return if is_held { Ok(()) } else { Err(PacketDrop::OutOfSequence) };
        }
        if self.responder.nak_sent {
            return Err(PacketDrop::OutOfSequence);
        }
        let expected = self.responder.expected;
        self.responder.refuse(expected, Syndrome::Nak(NakCode::PsnSequenceError));
        Ok(())
    }

    /// Sends a NAK that ends the connection: a receive that the message had taken completes with an error, or an
    /// event tells of it where there is none (IBTA C9-222.1.1).
    fn refuse_request(&mut self, psn: Psn, operation: Option<&'static str>, nak: &Nak, host: &mut impl Host) {
        let Nak { code, recv_status, why, access } = *nak;
        if code == NakCode::RemoteAccessError {
            self.counters.resp_remote_access_errors += 1;
        }
        let first = self.failure.is_none();
        self.note_failure(recv_status, psn, FailureContext::ServingRequest(why), access);
        let failure = self.failure.as_mut().filter(|_| first);
        if self.config.qp_type.is_reliable() {
            self.responder.refuse(psn, Syndrome::Nak(code));
        }
        let message = std::mem::take(&mut self.responder.message);
        let mut vendor_err = access.map_or(0, AccessError::vendor_code);
        if let Some(failure) = failure {
            failure.operation = operation;
            vendor_err = failure.vendor_code();
            if let Message::Send { recv, .. } = &message {
                failure.wr_id = Some(recv.wr.wr_id);
            }
        }
        if let Message::Send { recv, .. } = message {
            self.counters.resp_cqe_error += 1;
            let completion = WorkCompletion {
                wr_id: recv.wr.wr_id,
                status: recv_status,
                opcode: WcOpcode::Recv,
                qpn: self.config.qpn,
                vendor_err,
                ..WorkCompletion::default()
            };
            host.complete_recv(recv.xrc_srq, completion, true);
        } else {
            let event =
                if code == NakCode::RemoteAccessError { QpEvent::AccessError } else { QpEvent::RequestError };
            host.event(self.config.qpn, event);
        }
        self.enter_error(host);
    }
}

/// Writes `data` into a scatter list, starting `offset` bytes into it. Excess data is ignored: the caller has
/// checked the lengths.
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
