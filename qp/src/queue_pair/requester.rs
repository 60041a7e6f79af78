//! The requester: turns send work requests into request packets.
//!
//! A work request is assigned its PSNs when its first packet is built, and keeps them. The next packet to send is a
//! position: a work request and a packet in it. A retransmission moves the position back (go-back-N, IBTA
//! 9.7.5.1.1) and changes nothing else, so each transmission builds the packet anew.

mod build;
mod local;
mod patience;
mod timers;

use super::reasons::Heard;
use super::selective::{Flight, MAX_FLIGHT, OnDemand};
use super::{Failure, FailureContext, QueuePair, Tuning};
use crate::attr::{QpAttr, QpState};
use crate::ids::Psn;
use crate::memory::{AccessError, Host, QpEvent};
use crate::train::Train;
use crate::wire::syndrome::decode_credits;
use crate::work::{Operation, SendFlags, SendWr, WcFlags, WcStatus, WorkCompletion};
use build::Request;
pub(super) use build::gather;
use patience::Patience;
use std::collections::VecDeque;
use time::{Duration, Instant};

/// Maximum number of PSNs in flight, and per request packet. It keeps the window below half of the PSN space;
/// beyond that, the peer could not tell old PSNs from new (IBTA 9.7.2).
const MAX_IN_FLIGHT: u32 = 1 << 22;

/// With selective repeat, loss shows in what arrives later, unless few packets are on their way: then the requester waits for a
/// shorter time. IRN does so with up to 3 (RTO_low and RTO_high, SIGCOMM 2018).
const FEW: usize = 3;

/// Message sequence numbers have 24 bits.
const NUMBER: u32 = 0xff_ffff;

/// A send work request in progress.
#[derive(Debug)]
pub(super) struct SendWqe {
    pub(super) wr: SendWr,
    /// Length of the message in bytes; 8 for atomics.
    pub(super) len: u32,
    /// PSN of the first packet; valid once `started`.
    pub(super) first_psn: Psn,
    /// Number of PSNs that it occupies: request packets, or response packets for a READ.
    pub(super) packets: u32,
    /// Number of its PSNs sent or requested in the current pass.
    pub(super) sent: u32,
    /// Number of its PSNs ever sent or requested; sending below this is a retransmission.
    pub(super) sent_ever: u32,
    /// Number of its PSNs that are answered.
    pub(super) acked: u32,
    /// Number of its READ or atomic requests in flight.
    pub(super) responses_due: u32,
    /// Whether PSNs are assigned. A local operation that has started is done.
    pub(super) started: bool,
    /// The status to complete with once this is the oldest request, if it has already failed locally.
    pub(super) failed: Option<WcStatus>,
}

impl SendWqe {
    fn new(wr: SendWr) -> Self {
        Self {
            wr,
            len: 0,
            first_psn: Psn::default(),
            packets: 0,
            sent: 0,
            sent_ever: 0,
            acked: 0,
            responses_due: 0,
            started: false,
            failed: None,
        }
    }

    /// Whether this is a local operation that is done.
    pub(super) fn is_done_locally(&self) -> bool {
        self.started && self.wr.operation.is_local()
    }

    /// PSN of the first unanswered packet.
    pub(super) fn next_unacked(&self) -> Psn {
        self.first_psn.plus(self.acked)
    }
}

/// A work request that is no longer queued.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    pub(super) wr_id: u64,
    pub(super) operation: Operation,
    pub(super) flags: SendFlags,
}

/// State of the requester.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// Work requests that have not completed, oldest first.
    pub(super) queue: VecDeque<SendWqe>,
    /// Index in `queue` of the work request to send packets of next.
    pub(super) position: usize,
    /// PSN of the next packet that has never been sent.
    pub(super) fresh_psn: Psn,
    /// PSN of the next packet to be sent.
    pub(super) next_psn: Psn,
    /// The PSN after the newest packet ever sent or requested.
    pub(super) sent_end: Psn,
    /// The oldest unanswered PSN.
    pub(super) unacked: Psn,
    /// READ and atomic requests in flight.
    pub(super) responses_due: u32,
    /// The end PSN of each READ request that was sent and is not fully answered, oldest first. A READ is repeated
    /// within these bounds, because a peer does not recognise a duplicate that extends beyond its original (IBTA
    /// 9.7.5.1.4).
    read_ends: VecDeque<Psn>,
    /// Request packets sent since the last one that asked for an acknowledgement.
    pub(super) since_ack_request: u32,
    /// Acknowledgement interval in packets that the pacing rate requires, if any.
    ack_every: Option<u32>,
    /// Retries left before RETRY_EXC_ERR.
    pub(super) retries: u8,
    /// RNR retries left before RNR_RETRY_EXC_ERR.
    pub(super) rnr_retries: u8,
    /// End of the RNR wait: nothing is sent before this instant.
    pub(super) rnr_until: Option<Instant>,
    /// When the peer first said so, of those times that follow one another.
    pub(super) rnr_since: Option<Instant>,
    /// What was heard of the peer.
    pub(super) heard: Heard,
    /// When the oldest packet counts as lost.
    pub(super) deadline: Option<Instant>,
    /// How long to wait for an answer, with adaptive timeouts.
    pub(super) patience: Patience,
    /// A retransmission is under way and nothing new has been answered yet: further signs of the same loss are
    /// ignored.
    pub(super) recovering: bool,
    /// Whether SQ_DRAINED was requested.
    pub(super) sqd_notify: bool,
    /// Why the failed work request cannot be sent. Nothing after it starts, so there is at most one.
    pub(super) cause: Option<Box<Failure>>,
    /// What is known of each PSN in flight, with selective repeat.
    pub(super) flight: OnDemand<Flight>,
    /// Whether the peer is a partner, so that answers are kept that come while data before them is missing.
    pub(super) keeps: bool,
    /// The number of the last message started, counted from 1 (SSN, IBTA 9.7.7.2.5).
    pub(super) ssn: u32,
    /// The number of the last message that the peer has advertised a receive for, if it advertises credits (LSN,
    /// IBTA 9.7.7.2.5).
    limit: Option<u32>,
}

impl Requester {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The work requests that have not completed.
    pub(super) fn work(&self) -> impl Iterator<Item = &SendWr> {
        self.queue.iter().map(|wqe| &wqe.wr)
    }

    pub(super) fn push(&mut self, wr: SendWr) {
        self.queue.push_back(SendWqe::new(wr));
    }

    /// Removes the oldest work request, and returns the part of it that its completion repeats.
    pub(super) fn pop(&mut self) -> Option<Finished> {
        let wqe = self.queue.front()?;
        let SendWr { wr_id, operation, flags, .. } = wqe.wr;
        self.position = self.position.saturating_sub(1);
        self.responses_due = self.responses_due.saturating_sub(wqe.responses_due);
        self.queue.pop_front();
        Some(Finished { wr_id, operation, flags })
    }

    /// The next work request to send, with its index. A retransmission skips local operations that are done, because they
    /// are not idempotent.
    fn next_at(&self) -> Option<(usize, &SendWqe)> {
        let mut index = self.position;
        loop {
            let wqe = self.queue.get(index)?;
            if !wqe.is_done_locally() {
                return Some((index, wqe));
            }
            index += 1;
        }
    }

    /// The next work request to send.
    pub(super) fn next(&self) -> Option<&SendWqe> {
        self.next_at().map(|(_, wqe)| wqe)
    }

    /// Updates the credits from an AETH: the number of completed messages, and the receives posted beyond them.
    /// Returns whether more may be sent than before.
    pub(super) fn take_credits(&mut self, msn: u32, credits: u8) -> bool {
        let Some(receives) = decode_credits(credits) else {
            return self.limit.take().is_some();
        };
        let limit = Psn::new(msn.wrapping_add(receives));
        // A later acknowledgement, which overtook this one, knows more.
        if self.limit.is_some_and(|known| limit.distance_from(Psn::new(known)) <= 0) {
            return false;
        }
        self.limit.replace(limit.value()).is_some()
    }

    pub(super) fn set_psn(&mut self, psn: Psn) {
        self.heard = Heard::default();
        self.patience = Patience::default();
        self.fresh_psn = psn;
        self.next_psn = psn;
        self.sent_end = psn;
        self.unacked = psn;
        self.flight = OnDemand::default();
    }

    pub(super) fn refill_retries(&mut self, attr: &QpAttr) {
        self.retries = attr.retry_cnt.unwrap_or(0);
        self.rnr_retries = attr.rnr_retry.unwrap_or(0);
    }

    pub(super) fn stop_timers(&mut self) {
        self.deadline = None;
        self.rnr_until = None;
        self.rnr_since = None;
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        // The acknowledgement timer stops during an RNR wait: it must not cut the wait short.
        self.rnr_until.or(self.deadline)
    }

    /// Removes the bounds of READ requests that are answered.
    pub(super) fn drop_answered_reads(&mut self) {
        while self.read_ends.front().is_some_and(|end| !self.unacked.is_before(*end)) {
            self.read_ends.pop_front();
        }
    }

    /// Whether this PSN is the last that the oldest unanswered READ request asked for when it was sent first.
    pub(super) fn ends_read(&self, psn: Psn) -> bool {
        self.read_ends.front() == Some(&psn.plus(1))
    }

    /// Number of READ requests considered unanswered.
    #[cfg(test)]
    pub(super) fn reads_asked(&self) -> usize {
        self.read_ends.len()
    }

    /// Whether any packet is sent and unanswered.
    pub(super) fn in_flight(&self) -> bool {
        self.next_psn.distance_from(self.unacked) > 0
    }

    /// Moves the send position back to the oldest unanswered packet.
    pub(super) fn go_back(&mut self) {
        self.position = 0;
        self.next_psn = self.unacked;
        self.responses_due = 0;
        if !self.flight.is_empty() {
            self.flight.clear();
        }
        for wqe in self.queue.iter_mut().take_while(|w| w.started) {
            wqe.sent = wqe.acked;
            wqe.responses_due = 0;
        }
    }
}

impl QueuePair {
    /// The time after which an unanswered packet is considered lost: 4.096 us x 2^timeout, or `None` for 0 (IBTA
    /// 9.7.6.1.3). It is not shorter than the port allows.
    fn ack_timeout(&self) -> Option<Duration> {
        match self.attr.timeout.unwrap_or(0) {
            0 => None,
            t => Some(Duration::from_nanos(4096 << t.max(self.config.least_timeout).min(31))),
        }
    }

    /// How long to wait now for an answer to the oldest packet.
    fn wait(&self) -> Option<Duration> {
        let longest = self.ack_timeout()?;
        let Tuning { selective_repeat, adaptive_timeout, .. } = self.config.tuning;
        let Requester { patience, flight, .. } = &self.requester;
        Some(match selective_repeat {
            true if flight.suspects() => patience.wait_for_late(longest),
            true if flight.flying() <= FEW => patience.wait_for_few(longest),
            _ if selective_repeat || adaptive_timeout => patience.wait(longest),
            _ => longest,
        })
    }

    /// Sets the pacing interval of a full packet. The requester asks for acknowledgements at least four times per
    /// acknowledgement timeout, or with every packet, so that the timer does not expire while unacknowledged
    /// packets are still being sent; and at least once in `feedback`, if its rate follows from the acknowledgements.
    pub fn set_packet_time(&mut self, packet_time: Duration, feedback: Option<Duration>) {
        let longest = self.wait().map(|timeout| timeout / 4).into_iter().chain(feedback).min();
        self.requester.ack_every = longest.map(|longest| {
            let packets = longest.as_nanos() / packet_time.as_nanos().max(1);
            u32::try_from(packets).unwrap_or(u32::MAX).max(1)
        });
    }

    /// Whether the requester has a packet that it may send now.
    pub(super) fn can_request(&self) -> bool {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || self.requester.rnr_until.is_some() {
            return false;
        }
        if self.requester.flight.lost() > 0 {
            return true;
        }
        let Tuning { selective_repeat, max_in_flight, .. } = self.config.tuning;
        let longest = if selective_repeat { MAX_FLIGHT } else { MAX_IN_FLIGHT };
        let window = if max_in_flight == 0 { longest } else { max_in_flight.min(longest) };
        if self.requester.next_psn.distance_from(self.requester.unacked) >= window as i32 {
            return false;
        }
        self.requester.next_at().is_some_and(|(index, wqe)| self.may_start(index, wqe))
    }

    /// Whether a work request may be sent: one that has started continues, a new one may have to wait.
    fn may_start(&self, index: usize, wqe: &SendWqe) -> bool {
        if wqe.failed.is_some() {
            return false;
        }
        let due = self.requester.responses_due;
        let depth = u32::from(self.attr.max_rd_atomic.unwrap_or(0));
        if wqe.wr.operation.expects_response() && due >= depth && depth > 0 {
            return false;
        }
        if wqe.started {
            return true;
        }
        if self.state != QpState::Rts {
            // New work requests do not start in SQD.
            return false;
        }
        match wqe.wr.operation {
            // Requests in progress may still use the key, so an invalidation waits for all of them (IBTA 10.8.3.3,
            // table 79).
            Operation::LocalInvalidate { .. } if index > 0 => false,
            // A fence waits only for READs and atomics (IBTA 10.8.3.3).
            _ if wqe.wr.flags.contains(SendFlags::FENCE) && self.awaits_response() => false,
            operation => !operation.takes_recv() || self.has_credit(),
        }
    }

    /// Whether the next message may consume a receive at the peer. One message may exceed the limit, to probe for
    /// new receives (IBTA C9-150).
    fn has_credit(&self) -> bool {
        let Some(limit) = self.requester.limit else { return true };
        let next = self.requester.ssn.wrapping_add(1);
        // Serial arithmetic on 24 bits, as for PSNs.
        Psn::new(next).distance_from(Psn::new(limit.wrapping_add(1))) <= 0
    }

    fn awaits_response(&self) -> bool {
        self.requester
            .queue
            .iter()
            .take(self.requester.next_at().map_or(usize::MAX, |(index, _)| index))
            .any(|w| w.wr.operation.expects_response() && w.acked < w.packets)
    }

    /// Writes request packets; true if more could follow at once with a new train or budget.
    pub(super) fn request(
        &mut self,
        now: Instant,
        train: &mut Train<'_>,
        budget: &mut u32,
        host: &mut impl Host,
    ) -> bool {
        while self.can_request() {
            if *budget == 0 {
                return true;
            }
            if let Some((at, psns)) = self.requester.flight.next_lost() {
                match self.request_again(now, at, psns, train, host) {
                    Some(true) => *budget -= 1,
                    Some(false) => return true,
                    None => break,
                }
                continue;
            }
            let Some((index, wqe)) = self.requester.next_at() else { break };
            let (is_local, started) = (wqe.wr.operation.is_local(), wqe.started);
            self.requester.position = index;
            if is_local {
                if !self.execute_locally(index, host) {
                    break;
                }
                continue;
            }
            if !started && !self.start(index) {
                break;
            }
            let wqe = &self.requester.queue[index];
            let request = self.build(wqe, wqe.sent, *budget);
            if !train.has_room(&request.headers, request.payload as usize) {
                return true;
            }
            if let Err(error) = self.emit(train, index, &request, host) {
                self.fail_locally(index, WcStatus::LocProtErr, Some(error), host);
                break;
            }
            *budget = budget.saturating_sub(request.psns);
            self.account(now, index, &request);
            if !self.config.qp_type.is_reliable() {
                // Unreliable services have no acknowledgements: a sent packet is not in flight, and a sent message
                // is done (IBTA 9.8.1.1).
                self.requester.unacked = self.requester.next_psn;
                if request.last {
                    self.retire_oldest(0, host);
                    self.report_drained(host);
                }
            }
        }
        self.retire_failed(host);
        false
    }

    /// Updates the state for a packet that was written.
    fn account(&mut self, now: Instant, index: usize, request: &Request) {
        let starts_timer = self.requester.deadline.is_none() && self.config.qp_type.is_reliable();
        let timeout = if starts_timer { self.wait() } else { None };
        let wqe = &mut self.requester.queue[index];
        let is_repetition = wqe.sent < wqe.sent_ever;
        if is_repetition {
            self.counters.retransmitted_pkts += 1;
            self.counters.retransmitted_bytes += u64::from(request.payload);
        } else if wqe.sent == 0 && matches!(wqe.wr.operation, Operation::Send { .. }) {
            self.counters.rdma_sends += 1;
        } else if matches!(wqe.wr.operation, Operation::Read { .. }) {
            if wqe.sent > 0 {
                // The peer sees each piece of a READ as a message of its own and counts it in its MSN.
                self.requester.ssn = self.requester.ssn.wrapping_add(1) & NUMBER;
            }
            self.requester.read_ends.push_back(request.headers.psn.plus(request.psns));
        }
        self.counters.sent_bytes += u64::from(request.payload);
        wqe.sent += request.psns;
        wqe.sent_ever = wqe.sent_ever.max(wqe.sent);
        let complete = wqe.sent >= wqe.packets;
        let expects_response = wqe.wr.operation.expects_response();
        if expects_response {
            wqe.responses_due += 1;
            self.requester.responses_due += 1;
        }
        self.requester.next_psn = self.requester.next_psn.plus(request.psns);
        if self.config.tuning.selective_repeat {
            self.requester.flight.depart(now, request.psns, expects_response);
        }
        if self.requester.sent_end.is_before(self.requester.next_psn) {
            self.requester.sent_end = self.requester.next_psn;
        }
        self.requester.since_ack_request =
            if request.headers.ack_req { 0 } else { self.requester.since_ack_request.saturating_add(1) };
        if complete {
            self.requester.position = index + 1;
        }
        if self.requester.deadline.is_none() {
            self.requester.deadline = timeout.map(|t| now + t);
            self.requester.patience.start(now, is_repetition);
        }
    }

    /// Marks a work request that cannot be sent. It completes with `status` after all earlier requests are done.
    fn fail_locally(
        &mut self,
        index: usize,
        status: WcStatus,
        access: Option<AccessError>,
        host: &mut impl Host,
    ) {
        let psn = self.requester.queue[index].first_psn.plus(self.requester.queue[index].sent);
        self.note_cause(status, psn, FailureContext::GatheringPayload, access);
        self.requester.queue[index].failed = Some(status);
        self.retire_failed(host);
    }

    /// Keeps the cause of a failure until its work request is the oldest: an earlier one may still fail for another
    /// reason.
    fn note_cause(
        &mut self,
        status: WcStatus,
        psn: Psn,
        context: FailureContext,
        access: Option<AccessError>,
    ) {
        let failure = Failure { status, psn, context, access, wr_id: None, operation: None };
        self.requester.cause = Some(Box::new(failure));
    }

    /// If the oldest work request has failed, completes it with its error and enters ERR or SQE.
    pub(super) fn retire_failed(&mut self, host: &mut impl Host) {
        if let Some(status) = self.requester.queue.front().and_then(|w| w.failed) {
            if let Some(cause) = self.requester.cause.take() {
                self.failure.get_or_insert(cause);
            }
            self.fail_oldest(status, host);
        }
    }

    /// Completes the oldest work request successfully; `byte_len` is the number of bytes it received. Completed
    /// local operations after it are retired too.
    pub(super) fn retire_oldest(&mut self, byte_len: u32, host: &mut impl Host) {
        let mut byte_len = byte_len;
        loop {
            let Some(wr) = self.requester.pop() else { return };
            host.release_send();
            if self.config.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED) {
                // The sender's completion says that there was immediate data as the receiver's does, with rxe and mlx5 too.
                let imm = wr.operation.imm();
                host.complete_send(WorkCompletion {
                    wr_id: wr.wr_id,
                    status: WcStatus::Success,
                    opcode: wr.operation.wc_opcode(),
                    flags: if imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() },
                    imm_or_rkey: imm.unwrap_or(0),
                    byte_len,
                    qpn: self.config.qpn,
                    ..WorkCompletion::default()
                });
            }
            byte_len = 0;
            if !self.requester.queue.front().is_some_and(SendWqe::is_done_locally) {
                return;
            }
        }
    }

    /// Completes the oldest work request with an error. A reliable queue pair then enters ERR; an unreliable one
    /// enters SQE, and its receive queue continues (IBTA 10.3.1.7).
    pub(super) fn fail_oldest(&mut self, status: WcStatus, host: &mut impl Host) {
        if let Some(wr) = self.requester.pop() {
            host.release_send();
            self.counters.req_cqe_error += 1;
            let vendor_err = self.failure.as_mut().map_or(0, |failure| {
                (failure.wr_id, failure.operation) = (Some(wr.wr_id), Some(wr.operation.name()));
                failure.vendor_code()
            });
            host.complete_send(WorkCompletion {
                wr_id: wr.wr_id,
                status,
                opcode: wr.operation.wc_opcode(),
                qpn: self.config.qpn,
                vendor_err,
                ..WorkCompletion::default()
            });
        }
        if !self.config.qp_type.is_reliable() && matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.state = QpState::Sqe;
            self.flush_sends(host);
            // The unsent rest of the message uses no PSNs: the next message continues after the packets that were
            // sent.
            self.requester.set_psn(self.requester.next_psn);
            return;
        }
        self.responder.drop_responses();
        self.enter_error(host);
    }

    /// In SQD: reports that all started work is done, if requested.
    pub(super) fn report_drained(&mut self, host: &mut impl Host) {
        let drained = self.requester.queue.front().is_none_or(|w| !w.started);
        if self.state == QpState::Sqd && self.requester.sqd_notify && drained {
            self.requester.sqd_notify = false;
            host.event(self.config.qpn, QpEvent::SendQueueDrained);
        }
    }
}
