//! The queue pair: one state machine with three roles.
//!
//! * The `requester` turns send work requests into request packets.
//! * The `completer` processes the responses and retires work requests.
//! * The `responder` executes the peer's requests and answers them.
//!
//! All three have one owner (`&mut QueuePair`), so no role waits for another or signals it through flags.
//! [`QueuePair::poll_transmit`] decides everything that a queue pair sends.

mod budget;
mod check;
mod completer;
mod datagram;
mod demand;
mod errors;
mod reasons;
mod requester;
mod responder;
mod selective;
#[cfg(test)]
mod tests;
mod tuning;
mod vendor;

pub use budget::Budget;
pub use check::{check_receive, check_request};
pub use errors::{PacketDrop, PostError};
pub use reasons::{Failure, FailureContext, Notice, PeerRefusal, Refused, Silence, Unsendable};
pub use tuning::Tuning;
pub use vendor::VendorError;

use crate::attr::{self, AddressVector, Limits, ModifyError, QpAttr, QpCap, QpState, QpType};
use crate::counters::QpCounters;
use crate::ids::{Mtu, PKey, PdId, Psn, Qpn};
use crate::memory::{AccessError, Domain, Host, QpEvent};
use crate::train::Train;
use crate::wire::IpHeader;
use crate::wire::opcode::Operation as WireOperation;
use crate::wire::packet::Packet;
use crate::work::{Operation, RecvWr, SendFlags, SendWr, WcStatus, WorkCompletion};
use requester::Requester;
use responder::{Responder, TakenRecv};
use selective::OnDemand;
use time::Instant;

/// The largest message: 2^31 bytes (IBTA C9-94).
pub const MAX_MESSAGE: u64 = 1 << 31;

/// The fixed configuration of a queue pair, set at creation.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// The queue pair number.
    pub qpn: Qpn,
    /// The service type.
    pub qp_type: QpType,
    /// The protection domain.
    pub pd: PdId,
    /// Capacities of the queues.
    pub cap: QpCap,
    /// Whether every send work request generates a completion, signalled or not.
    pub sq_sig_all: bool,
    /// Whether receives are taken from a shared receive queue.
    pub has_srq: bool,
    /// The shortest acknowledgement timeout, as a value of the attribute `timeout`: what asks for less, and not for none, gets
    /// this. 0 for any.
    pub least_timeout: u8,
    /// Choices that the protocol leaves open.
    pub tuning: Tuning,
}

/// Path properties that both the requester and the responder need.
#[derive(Clone, Copy, Debug)]
struct Path {
    mtu: Mtu,
    dest_qpn: Qpn,
    pkey: PKey,
    /// How often the size of the pieces of READs is doubled, because there is room for their responses.
    read_doublings: u8,
}

/// An InfiniBand queue pair.
#[derive(Debug)]
pub struct QueuePair {
    config: QpConfig,
    state: QpState,
    attr: QpAttr,
    path: Path,
    requester: Requester,
    responder: Responder,
    counters: QpCounters,
    failure: Option<Box<Failure>>,
}

impl QueuePair {
    /// A queue pair in RESET.
    #[must_use]
    pub fn new(config: QpConfig) -> Self {
        Self {
            config,
            state: QpState::Reset,
            attr: QpAttr::default(),
            path: Path { mtu: Mtu::B256, dest_qpn: Qpn::default(), pkey: PKey::DEFAULT, read_doublings: 0 },
            requester: Requester::default(),
            responder: Responder::default(),
            counters: QpCounters::default(),
            failure: None,
        }
    }

    /// The configuration that the queue pair was created with.
    #[must_use]
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    /// The number of the queue pair.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    /// The current state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// All attributes set so far, and the state.
    #[must_use]
    pub fn query(&self) -> QpAttr {
        let mut attr = self.attr.clone();
        attr.qp_state = Some(self.state);
        attr.cur_qp_state = Some(self.state);
        attr.cap = Some(self.config.cap);
        attr
    }

    /// The path to the peer, once set.
    #[must_use]
    pub fn address_vector(&self) -> Option<&AddressVector> {
        self.attr.ah_attr.as_ref()
    }

    /// The counters of the queue pair.
    #[must_use]
    pub fn counters(&self) -> &QpCounters {
        &self.counters
    }

    /// The failure that put the queue pair into the error state, if one did.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// The path MTU.
    #[must_use]
    pub fn mtu(&self) -> Mtu {
        self.path.mtu
    }

    /// The P_Key that outgoing packets carry and that incoming ones must match. The device looks it up in its
    /// table.
    #[must_use]
    pub fn pkey(&self) -> PKey {
        self.path.pkey
    }

    /// Sets the P_Key; call after `pkey_index` changed.
    pub fn set_pkey(&mut self, pkey: PKey) {
        self.path.pkey = pkey;
    }

    /// The PSN of the next request that the responder executes.
    #[must_use]
    pub fn expected_psn(&self) -> Psn {
        self.responder.expected_psn()
    }

    /// Retransmissions, and waits for a receive at the peer, that are left before the queue pair gives up.
    #[must_use]
    pub fn retries_left(&self) -> (u8, u8) {
        (self.requester.retries, self.requester.rnr_retries)
    }

    /// Since when the peer says that it has no receive posted, if it does.
    #[must_use]
    pub fn lacks_receive_since(&self) -> Option<Instant> {
        self.requester.rnr_since
    }

    /// Send work requests that have not completed and will not say so on success.
    #[must_use]
    pub fn unsignalled(&self) -> usize {
        let silent = |wr: &SendWr| !wr.flags.contains(SendFlags::SIGNALED);
        if self.config.sq_sig_all { 0 } else { self.requester.work().filter(|wr| silent(wr)).count() }
    }

    /// Send work requests that have not completed.
    #[must_use]
    pub fn sends_outstanding(&self) -> usize {
        self.requester.len()
    }

    /// Receive work requests that have not completed.
    #[must_use]
    pub fn recvs_outstanding(&self) -> usize {
        self.responder.recvs()
    }

    /// The oldest PSN that the peer has not acknowledged; equal to [`next_psn`](Self::next_psn) when nothing is
    /// in flight.
    #[must_use]
    pub fn unacked_psn(&self) -> Psn {
        self.requester.unacked
    }

    /// The peer's queue pair number; 0 if not connected.
    #[must_use]
    pub fn dest_qpn(&self) -> Qpn {
        self.path.dest_qpn
    }

    /// The PSN of the next request packet; a retransmission moves it back.
    #[must_use]
    pub fn next_psn(&self) -> Psn {
        self.requester.next_psn
    }

    /// Changes attributes and state, by the rules of [`attr::check`].
    ///
    /// # Errors
    ///
    /// [`ModifyError`] names the attributes that are missing, do not apply or are out of range. Nothing changes on
    /// error.
    pub fn modify(
        &mut self,
        attr: &QpAttr,
        limits: &Limits,
        host: &mut impl Host,
    ) -> Result<(), ModifyError> {
        let next = attr::check(self.config.qp_type, self.state, attr, limits)?;
        if next == QpState::Reset {
            self.reset();
            return Ok(());
        }
        self.attr.merge(attr);
        if let Some(mtu) = attr.path_mtu {
            self.path.mtu = mtu;
        }
        if let Some(qpn) = attr.dest_qp_num {
            self.path.dest_qpn = qpn;
        }
        if let Some(psn) = attr.rq_psn {
            self.responder.set_expected_psn(psn);
        }
        if let Some(psn) = attr.sq_psn {
            self.requester.set_psn(psn);
        }
        if attr.max_dest_rd_atomic.is_some() {
            // Responses kept for duplicates belong to the old depth.
            self.responder.forget_resources();
        }
        if !self.config.qp_type.is_connected() {
            // The port's MTU bounds a datagram; datagrams have no path MTU (IBTA 9.8.3.1).
            self.path.mtu = limits.path_mtu;
        }
        let previous = self.state;
        if previous == QpState::Sqe && next == QpState::Rts {
            // The program has handled this failure; the next one is recorded anew.
            self.failure = None;
        }
        if next == QpState::Err && previous != QpState::Err {
            self.responder.drop_responses();
            self.enter_error(host);
        }
        self.state = next;
        if next == QpState::Rts && previous != QpState::Rts {
            self.requester.refill_retries(&self.attr);
        }
        if next == QpState::Sqd {
            if previous != QpState::Sqd {
                self.requester.sqd_notify = attr.en_sqd_async_notify.unwrap_or(false);
            }
            self.report_drained(host);
        }
        Ok(())
    }

    /// Posts a send work request.
    ///
    /// # Errors
    ///
    /// [`PostError`]; in SQE and ERR the request is accepted and flushed at once (IBTA C10-96).
    pub fn post_send(&mut self, wr: SendWr, host: &mut impl Host) -> Result<(), PostError> {
        self.check_send_queue()?;
        check_request(&self.config, &wr)?;
        self.take_send(wr, host);
        Ok(())
    }

    /// Posts a send work request that has passed [`check_request`].
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    pub fn post_checked_send(&mut self, wr: SendWr, host: &mut impl Host) -> Result<(), PostError> {
        self.check_send_queue()?;
        self.take_send(wr, host);
        Ok(())
    }

    fn take_send(&mut self, wr: SendWr, host: &mut impl Host) {
        if matches!(self.state, QpState::Sqe | QpState::Err) {
            self.flush_send(wr.wr_id, wr.operation, host);
        } else {
            self.requester.push(wr);
        }
    }

    /// Checks whether the send queue would take another request.
    fn check_send_queue(&self) -> Result<(), PostError> {
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State { queue: "send", state: self.state, needed: "RTS" });
        }
        if self.requester.len() >= self.config.cap.max_send_wr as usize {
            return Err(PostError::QueueFull { queue: "send", max: self.config.cap.max_send_wr });
        }
        Ok(())
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    ///
    /// [`PostError`]; in ERR the request is accepted and flushed at once.
    pub fn post_recv(&mut self, wr: RecvWr, host: &mut impl Host) -> Result<(), PostError> {
        check_receive(&self.config, &wr)?;
        if self.state == QpState::Reset {
            return Err(PostError::State { queue: "receive", state: self.state, needed: "INIT" });
        }
        if self.responder.recvs() >= self.config.cap.max_recv_wr as usize {
            return Err(PostError::QueueFull { queue: "receive", max: self.config.cap.max_recv_wr });
        }
        if self.state == QpState::Err {
            host.release_recv();
            self.flush_recv(&TakenRecv::own(wr, self.config.pd), host);
            return Ok(());
        }
        self.responder.push(wr);
        Ok(())
    }

    /// Processes a packet whose ICRC, address and P_Key have been verified.
    ///
    /// # Errors
    ///
    /// [`PacketDrop`] if the packet was dropped; the caller counts it.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        arrival: &IpHeader,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        let info = packet.info();
        let speaks = match info.operation {
            WireOperation::SelectiveAck => self.config.qp_type.is_reliable(),
            _ => self.config.qp_type.speaks(info.transport),
        };
        if !speaks {
            return Err(PacketDrop::Service);
        }
        let outcome = if info.operation == WireOperation::SelectiveAck {
            self.handle_selective_ack(now, packet, host)
        } else if !self.config.qp_type.is_connected() {
            self.receive_datagram(arrival, packet, host)
        } else if info.is_request {
            self.handle_request(packet, host)
        } else {
            self.handle_response(now, packet, host)
        };
        if outcome.is_ok() {
            self.counters.rcvd_pkts += 1;
            self.counters.rcvd_bytes += packet.payload().len() as u64;
        }
        outcome
    }

    /// Handles timers that have expired.
    pub fn handle_timeout(&mut self, now: Instant, host: &mut impl Host) {
        self.requester_timeout(now, host);
    }

    /// The next instant at which [`handle_timeout`](Self::handle_timeout) must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.requester.poll_timeout()
    }

    /// Sets BECN in the next response: a request was congestion-marked on its way. Queue pairs that send no
    /// responses ignore this.
    pub fn echo_congestion(&mut self) {
        if self.config.qp_type.is_reliable() {
            self.responder.echo_congestion();
        }
    }

    /// Asks for pieces of READs that are 2^`doublings` times as large as [`Tuning::read_chunk`] from now on.
    pub fn set_read_doublings(&mut self, doublings: u8) {
        self.path.read_doublings = doublings.min(31);
    }

    /// Writes due packets into `train` until it is full, the `budget` is used up or nothing more may be sent.
    ///
    /// Responses go first, because the peer waits for them. A single acknowledgement follows the requests of a
    /// train instead, because the shortest packet of a train must be its last; if there is no room for it, it leads
    /// the next train.
    ///
    /// Deducts what it sends from `budget`. Acknowledgements need no budget.
    ///
    /// Returns whether there is more to send as soon as there is a new train or budget.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        train: &mut Train<'_>,
        budget: &mut Budget,
        host: &mut impl Host,
    ) -> bool {
        let before = train.packets();
        if !self.config.qp_type.is_connected() {
            let more = self.send_datagrams(train, &mut budget.requests, host);
            self.counters.sent_pkts += u64::from(train.packets() - before);
            return more;
        }
        let acknowledgement_last = self.responder.only_acknowledges() && self.responder.may_wait();
        let more = if acknowledgement_last {
            let more = self.request(now, train, &mut budget.requests, host);
            let left = self.respond(train, budget, host);
            self.responder.made_wait(left);
            more || left
        } else {
            self.responder.made_wait(false);
            self.respond(train, budget, host) || self.request(now, train, &mut budget.requests, host)
        };
        self.counters.sent_pkts += u64::from(train.packets() - before);
        more
    }

    fn domain(&self) -> Domain {
        Domain { pd: self.config.pd, qpn: self.config.qpn }
    }

    fn reset(&mut self) {
        let counters = self.counters;
        let pkey = self.path.pkey;
        *self = Self::new(self.config);
        self.counters = counters;
        self.path.pkey = pkey;
    }

    /// Records the first failure for later queries.
    fn note_failure(
        &mut self,
        status: WcStatus,
        psn: Psn,
        context: FailureContext,
        access: Option<AccessError>,
    ) {
        if self.failure.is_none() {
            let failure = Failure { status, psn, context, access, wr_id: None, operation: None };
            self.failure = Some(Box::new(failure));
        }
    }

    /// Enters ERR and flushes every work request of both queues, in order (IBTA C9-220, 10.3.1.5).
    fn enter_error(&mut self, host: &mut impl Host) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.requester.flight = OnDemand::default();
        self.responder.held = OnDemand::default();
        self.flush_sends(host);
        if let Some(recv) = self.responder.abandon_message().or_else(|| self.responder.take_spare()) {
            self.flush_recv(&recv, host);
        }
        while let Some(recv) = self.responder.pop(self.config.pd) {
            host.release_recv();
            self.flush_recv(&recv, host);
        }
        if self.config.has_srq {
            host.event(self.config.qpn, QpEvent::LastWqeReached);
        }
    }

    /// Flushes the send queue.
    fn flush_sends(&mut self, host: &mut impl Host) {
        self.requester.stop_timers();
        self.requester.cause = None;
        while let Some(wr) = self.requester.pop() {
            self.flush_send(wr.wr_id, wr.operation, host);
        }
    }

    fn flush_send(&mut self, wr_id: u64, operation: Operation, host: &mut impl Host) {
        host.release_send();
        self.counters.req_cqe_flush_error += 1;
        host.complete_send(WorkCompletion {
            wr_id,
            status: WcStatus::WrFlushErr,
            opcode: operation.wc_opcode(),
            qpn: self.config.qpn,
            ..WorkCompletion::default()
        });
    }

    fn flush_recv(&mut self, recv: &TakenRecv, host: &mut impl Host) {
        self.counters.resp_cqe_flush_error += 1;
        let completion = WorkCompletion {
            wr_id: recv.wr.wr_id,
            status: WcStatus::WrFlushErr,
            opcode: crate::work::WcOpcode::Recv,
            qpn: self.config.qpn,
            ..WorkCompletion::default()
        };
        host.complete_recv(recv.xrc_srq, completion, true);
    }
}
