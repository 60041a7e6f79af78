//! The requester: send work requests become request packets.
//!
//! Each work request gets its PSNs when its first packet is built, and keeps them. What is sent next is a position:
//! a work request and a packet in it. A retransmission moves the position back (go-back-N, IBTA 9.7.5.1.1); nothing
//! else changes, so a packet is built anew each time it is sent.

use super::{FailureContext, MAX_MESSAGE, QueuePair};
use crate::attr::{QpAttr, QpState};
use crate::ids::Psn;
use crate::memory::{Access, AccessError, Domain, Host, Memory, QpEvent};
use crate::train::Train;
use crate::wire::headers::{AtomicFields, RethFields};
use crate::wire::opcode::{Extra, Opcode, Operation as WireOperation, Position, Transport};
use crate::wire::packet::Headers;
use crate::work::{Gather, Operation, SendFlags, SendWr, WcStatus};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// With so many PSNs in flight no packet is added, and no packet adds more: so they stay below half the circle, beyond
/// which the peer could not tell old from new (IBTA 9.7.2).
const MAX_IN_FLIGHT: u32 = 1 << 22;

/// A send work request on its way.
#[derive(Debug)]
pub(super) struct SendWqe {
    pub(super) wr: SendWr,
    /// Bytes of the message. 8 for atomics.
    pub(super) len: u32,
    /// PSN of its first packet; meaningful once `started`.
    pub(super) first_psn: Psn,
    /// PSNs that it occupies: request packets, or response packets for a READ.
    pub(super) packets: u32,
    /// How many of its PSNs were sent or asked for, in the current pass.
    pub(super) sent: u32,
    /// How many of its PSNs were ever sent or asked for; what lies below is a retransmission.
    pub(super) sent_ever: u32,
    /// How many of its PSNs are answered.
    pub(super) acked: u32,
    /// Its READ or atomic requests that are in flight.
    pub(super) responses_due: u32,
    /// Whether PSNs were assigned.
    pub(super) started: bool,
    /// How it will end once it is the oldest, if something local already went wrong.
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

    /// PSN of the first packet that is not answered.
    pub(super) fn next_unacked(&self) -> Psn {
        self.first_psn.plus(self.acked)
    }
}

/// State of the requester.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// Work requests that have not completed, oldest first.
    pub(super) queue: VecDeque<SendWqe>,
    /// Index in `queue` of the work request whose packets are sent next.
    pub(super) position: usize,
    /// PSN of the next packet that was never sent.
    pub(super) fresh_psn: Psn,
    /// PSN of the next packet to be sent.
    pub(super) next_psn: Psn,
    /// PSN behind the newest packet that was ever sent or asked for.
    pub(super) sent_end: Psn,
    /// Oldest PSN without an answer.
    pub(super) unacked: Psn,
    /// READ and atomic requests in flight.
    pub(super) responses_due: u32,
    /// PSNs behind each READ request that was ever sent and is not answered, oldest first: a READ is repeated within
    /// these bounds, because a peer knows no duplicate that reaches beyond its original (IBTA 9.7.5.1.4).
    read_ends: VecDeque<Psn>,
    /// Request packets sent since an acknowledgement was last asked for.
    since_ack_request: u32,
    /// Retries left before RETRY_EXC_ERR.
    pub(super) retries: u8,
    /// RNR retries left before RNR_RETRY_EXC_ERR.
    pub(super) rnr_retries: u8,
    /// Nothing is sent before this instant: the peer was not ready.
    pub(super) rnr_until: Option<Instant>,
    /// When the oldest packet counts as lost.
    pub(super) deadline: Option<Instant>,
    /// A retransmission is under way and nothing new was answered yet: further signs of the same loss are ignored.
    pub(super) recovering: bool,
    /// SQ_DRAINED was asked for.
    pub(super) sqd_notify: bool,
}

impl Requester {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn push(&mut self, wr: SendWr) {
        self.queue.push_back(SendWqe::new(wr));
    }

    pub(super) fn pop(&mut self) -> Option<SendWr> {
        let wqe = self.queue.pop_front()?;
        self.position = self.position.saturating_sub(1);
        self.responses_due = self.responses_due.saturating_sub(wqe.responses_due);
        Some(wqe.wr)
    }

    pub(super) fn set_psn(&mut self, psn: Psn) {
        self.fresh_psn = psn;
        self.next_psn = psn;
        self.sent_end = psn;
        self.unacked = psn;
    }

    pub(super) fn refill_retries(&mut self, attr: &QpAttr) {
        self.retries = attr.retry_cnt.unwrap_or(0);
        self.rnr_retries = attr.rnr_retry.unwrap_or(0);
    }

    pub(super) fn stop_timers(&mut self) {
        self.deadline = None;
        self.rnr_until = None;
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        // While the peer is not ready the acknowledgement timer rests: it must not cut the wait short.
        self.rnr_until.or(self.deadline)
    }

    /// Forgets the bounds of READ requests that are answered.
    pub(super) fn drop_answered_reads(&mut self) {
        while self.read_ends.front().is_some_and(|end| !self.unacked.is_before(*end)) {
            self.read_ends.pop_front();
        }
    }

    /// Whether packets are sent and not answered.
    fn in_flight(&self) -> bool {
        self.next_psn.distance_from(self.unacked) > 0
    }

    /// Moves the sending position back to the oldest packet without an answer.
    pub(super) fn go_back(&mut self) {
        self.position = 0;
        self.next_psn = self.unacked;
        self.responses_due = 0;
        for wqe in self.queue.iter_mut().take_while(|w| w.started) {
            wqe.sent = wqe.acked;
            wqe.responses_due = 0;
        }
    }
}

/// One request packet: what it says and which bytes it carries.
struct Request {
    headers: Headers,
    offset: u64,
    payload: u32,
    /// PSNs it takes: more than one for a READ.
    psns: u32,
    /// Whether it ends the message.
    last: bool,
}

impl QueuePair {
    /// The time after which an unanswered packet counts as lost: 4.096 us x 2^timeout, none for 0 (IBTA 9.7.6.1.3).
    fn ack_timeout(&self) -> Option<Duration> {
        match self.attr.timeout.unwrap_or(0) {
            0 => None,
            t => Some(Duration::from_nanos(4096 << t.min(31))),
        }
    }

    /// Whether the requester has a packet that it could send now.
    pub(super) fn can_request(&self) -> bool {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || self.requester.rnr_until.is_some() {
            return false;
        }
        if self.requester.next_psn.distance_from(self.requester.unacked) >= MAX_IN_FLIGHT as i32 {
            return false;
        }
        self.requester.queue.get(self.requester.position).is_some_and(|wqe| self.may_start(wqe))
    }

    /// Whether a work request may (go on to) be sent: what is started goes on, what is new may have to wait.
    fn may_start(&self, wqe: &SendWqe) -> bool {
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
        // A fence waits for READs and atomics only (IBTA 10.8.3.3). New work does not start in SQD.
        self.state == QpState::Rts && !(wqe.wr.flags.contains(SendFlags::FENCE) && self.awaits_response())
    }

    fn awaits_response(&self) -> bool {
        self.requester
            .queue
            .iter()
            .take(self.requester.position)
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
            let index = self.requester.position;
            if !self.requester.queue[index].started && !self.start(index) {
                break;
            }
            let request = self.build(&self.requester.queue[index], *budget);
            if !train.has_room(&request.headers, request.payload as usize) {
                return true;
            }
            if let Err(error) = self.emit(train, index, &request, host) {
                self.fail_locally(index, WcStatus::LocProtErr, Some(error), host);
                break;
            }
            *budget = budget.saturating_sub(request.psns);
            self.account(now, index, &request);
        }
        self.retire_failed(host);
        false
    }

    /// Gives a work request its PSNs; false if it cannot be sent at all.
    fn start(&mut self, index: usize) -> bool {
        let mtu = self.path.mtu;
        let depth = self.attr.max_rd_atomic.unwrap_or(0);
        let wqe = &mut self.requester.queue[index];
        let len = wqe.wr.data.len();
        let expects_response = wqe.wr.operation.expects_response();
        wqe.failed = if len > MAX_MESSAGE || (wqe.wr.operation.is_atomic() && len != 8) {
            Some(WcStatus::LocLenErr)
        } else if expects_response && depth == 0 {
            // Without initiator depth no READ or atomic can ever be sent.
            Some(WcStatus::LocQpOpErr)
        } else {
            None
        };
        wqe.first_psn = self.requester.fresh_psn;
        if let Some(status) = wqe.failed {
            let psn = wqe.first_psn;
            self.note_failure(status, psn, FailureContext::Starting, None);
            return false;
        }
        wqe.len = u32::try_from(len).unwrap_or(u32::MAX);
        wqe.packets = if wqe.wr.operation.is_atomic() { 1 } else { mtu.packets(wqe.len) };
        wqe.started = true;
        self.requester.fresh_psn = wqe.first_psn.plus(wqe.packets);
        true
    }

    /// Decides the next packet of a started work request.
    fn build(&self, wqe: &SendWqe, budget: u32) -> Request {
        let mtu = self.path.mtu.bytes();
        let offset = u64::from(wqe.sent) * u64::from(mtu);
        let rest = u32::try_from(u64::from(wqe.len).saturating_sub(offset)).unwrap_or(0);
        let psn = wqe.first_psn.plus(wqe.sent);
        let mut headers = Headers::new(Opcode::RcSendOnly, self.path.dest_qpn, psn);
        headers.pkey = self.path.pkey;
        headers.mig_req = self.config.tuning.mig_req;
        let mut request = Request { headers, offset, payload: 0, psns: 1, last: true };
        let (operation, position, extra) = match wqe.wr.operation {
            Operation::Send { imm, invalidate } => {
                request.payload = rest.min(mtu);
                let position = position(wqe.sent, wqe.packets);
                request.last = matches!(position, Position::Last | Position::Only);
                let extra = match (imm, invalidate) {
                    _ if !request.last => Extra::None,
                    (Some(_), _) => Extra::Imm,
                    (None, Some(_)) => Extra::Inv,
                    (None, None) => Extra::None,
                };
                request.headers.imm = imm.unwrap_or(0);
                request.headers.ieth = invalidate.unwrap_or(0);
                (WireOperation::Send, position, extra)
            }
            Operation::Write { remote, imm } => {
                request.payload = rest.min(mtu);
                let position = position(wqe.sent, wqe.packets);
                request.last = matches!(position, Position::Last | Position::Only);
                request.headers.reth = RethFields { va: remote.addr, rkey: remote.rkey, length: wqe.len };
                request.headers.imm = imm.unwrap_or(0);
                let extra = if request.last && imm.is_some() { Extra::Imm } else { Extra::None };
                (WireOperation::Write, position, extra)
            }
            Operation::Read { remote } => {
                request.psns = self.read_span(wqe, psn, budget);
                let length = u64::from(rest).min(u64::from(request.psns) * u64::from(mtu));
                request.headers.reth = RethFields {
                    va: remote.addr.wrapping_add(offset),
                    rkey: remote.rkey,
                    length: u32::try_from(length).unwrap_or(u32::MAX),
                };
                (WireOperation::ReadRequest, Position::Only, Extra::None)
            }
            // Refused when they are posted.
            Operation::AtomicWrite { .. }
            | Operation::Flush { .. }
            | Operation::LocalInvalidate { .. }
            | Operation::BindWindow(_) => (WireOperation::Send, Position::Only, Extra::None),
            Operation::CompareSwap { remote, compare, swap } => {
                request.headers.atomic =
                    AtomicFields { va: remote.addr, rkey: remote.rkey, swap_add: swap, compare };
                (WireOperation::CompareSwap, Position::Only, Extra::None)
            }
            Operation::FetchAdd { remote, add } => {
                request.headers.atomic =
                    AtomicFields { va: remote.addr, rkey: remote.rkey, swap_add: add, compare: 0 };
                (WireOperation::FetchAdd, Position::Only, Extra::None)
            }
        };
        request.headers.opcode =
            Opcode::compose(Transport::Rc, operation, position, extra).unwrap_or(Opcode::RcSendOnly);
        let carries_event = operation == WireOperation::Send || extra == Extra::Imm;
        request.headers.solicited =
            request.last && carries_event && wqe.wr.flags.contains(SendFlags::SOLICITED);
        // Asked for at the end of a message, now and then within it, and in good time before the budget ends: an answer
        // is what brings new budget, and whoever gives it may stop short of its end.
        let since = self.requester.since_ack_request + request.psns;
        request.headers.ack_req = request.last || since >= self.config.tuning.ack_interval || since >= budget;
        request
    }

    /// How many PSNs the next READ request of a work request takes. What was asked for before is asked for in the same
    /// pieces, whatever the budget: it was given for them once.
    fn read_span(&self, wqe: &SendWqe, psn: Psn, budget: u32) -> u32 {
        if wqe.sent < wqe.sent_ever {
            let end = self.requester.read_ends.iter().find(|end| psn.is_before(**end));
            return end.map_or(1, |end| u32::try_from(end.distance_from(psn)).unwrap_or(1));
        }
        let chunk = match self.config.tuning.read_chunk {
            0 => MAX_IN_FLIGHT,
            bytes => (bytes / self.path.mtu.bytes()).clamp(1, MAX_IN_FLIGHT),
        };
        (wqe.packets - wqe.sent).min(chunk).min(budget.max(1))
    }

    /// Writes the packet into the train, payload and all.
    fn emit(
        &self,
        train: &mut Train<'_>,
        index: usize,
        request: &Request,
        host: &impl Host,
    ) -> Result<(), AccessError> {
        let wqe = &self.requester.queue[index];
        train.push(&request.headers, request.payload as usize, |out| {
            gather(host, self.domain(), &wqe.wr.data, request.offset, out)
        })
    }

    /// Books a packet that was written.
    fn account(&mut self, now: Instant, index: usize, request: &Request) {
        let timeout = self.ack_timeout();
        let wqe = &mut self.requester.queue[index];
        if wqe.sent < wqe.sent_ever {
            self.counters.retransmitted_pkts += 1;
            self.counters.retransmitted_bytes += u64::from(request.payload);
        } else if wqe.sent == 0 && matches!(wqe.wr.operation, Operation::Send { .. }) {
            self.counters.rdma_sends += 1;
        } else if matches!(wqe.wr.operation, Operation::Read { .. }) {
            self.requester.read_ends.push_back(request.headers.psn.plus(request.psns));
        }
        self.counters.sent_bytes += u64::from(request.payload);
        wqe.sent += request.psns;
        wqe.sent_ever = wqe.sent_ever.max(wqe.sent);
        let complete = wqe.sent >= wqe.packets;
        if wqe.wr.operation.expects_response() {
            wqe.responses_due += 1;
            self.requester.responses_due += 1;
        }
        self.requester.next_psn = self.requester.next_psn.plus(request.psns);
        if self.requester.sent_end.is_before(self.requester.next_psn) {
            self.requester.sent_end = self.requester.next_psn;
        }
        self.requester.since_ack_request =
            if request.headers.ack_req { 0 } else { self.requester.since_ack_request + 1 };
        if complete {
            self.requester.position = index + 1;
        }
        if self.requester.deadline.is_none() {
            self.requester.deadline = timeout.map(|t| now + t);
        }
    }

    /// Marks a work request that cannot be sent; it completes with `status` once those before it are done.
    fn fail_locally(
        &mut self,
        index: usize,
        status: WcStatus,
        access: Option<AccessError>,
        host: &mut impl Host,
    ) {
        let psn = self.requester.queue[index].first_psn.plus(self.requester.queue[index].sent);
        self.note_failure(status, psn, FailureContext::GatheringPayload, access);
        self.requester.queue[index].failed = Some(status);
        self.retire_failed(host);
    }

    /// Completes the oldest work request with its error, if it has one, and enters ERR.
    pub(super) fn retire_failed(&mut self, host: &mut impl Host) {
        if let Some(status) = self.requester.queue.front().and_then(|w| w.failed) {
            self.fail_oldest(status, host);
        }
    }

    /// Completes the oldest work request with an error and enters ERR.
    pub(super) fn fail_oldest(&mut self, status: WcStatus, host: &mut impl Host) {
        if let Some(wr) = self.requester.pop() {
            host.release_send();
            self.counters.req_cqe_error += 1;
            let access_code =
                self.failure.as_ref().and_then(|f| f.access).map_or(0, AccessError::vendor_code);
            host.complete_send(crate::work::WorkCompletion {
                wr_id: wr.wr_id,
                status,
                opcode: wr.operation.wc_opcode(),
                qpn: self.config.qpn,
                vendor_err: access_code,
                ..Default::default()
            });
        }
        self.responder.drop_responses();
        self.enter_error(host);
    }

    /// Timers of the requester: the end of a receiver-not-ready wait, and the acknowledgement timer.
    pub(super) fn requester_timeout(&mut self, now: Instant, host: &mut impl Host) {
        if let Some(until) = self.requester.rnr_until {
            if until <= now {
                self.requester.rnr_until = None;
            }
            return;
        }
        if self.requester.deadline.is_none_or(|d| d > now) {
            return;
        }
        self.requester.deadline = None;
        if !self.requester.in_flight() {
            return;
        }
        self.counters.local_ack_timeout_err += 1;
        self.requester.recovering = false;
        self.retry(host);
    }

    /// Starts a retransmission from the oldest unanswered packet, or gives up.
    pub(super) fn retry(&mut self, host: &mut impl Host) {
        if self.requester.retries == 0 {
            self.counters.retry_exceeded_err += 1;
            let psn = self.requester.unacked;
            self.note_failure(WcStatus::RetryExcErr, psn, FailureContext::AwaitingResponse, None);
            self.fail_oldest(WcStatus::RetryExcErr, host);
            return;
        }
        self.requester.retries -= 1;
        self.counters.completer_retry_err += 1;
        self.requester.recovering = true;
        self.requester.deadline = None;
        self.requester.go_back();
    }

    /// Restarts the acknowledgement timer after progress.
    pub(super) fn rearm(&mut self, now: Instant) {
        self.requester.deadline =
            if self.requester.in_flight() { self.ack_timeout().map(|t| now + t) } else { None };
    }

    /// In SQD: reports that everything that was started is done, if that was asked for.
    pub(super) fn report_drained(&mut self, host: &mut impl Host) {
        let drained = self.requester.queue.front().is_none_or(|w| !w.started);
        if self.state == QpState::Sqd && self.requester.sqd_notify && drained {
            self.requester.sqd_notify = false;
            host.event(self.config.qpn, QpEvent::SendQueueDrained);
        }
    }
}

/// Which of its message's packets number `index` of `packets` is.
fn position(index: u32, packets: u32) -> Position {
    match (index, packets) {
        (_, 1) => Position::Only,
        (0, _) => Position::First,
        (i, n) if i + 1 == n => Position::Last,
        _ => Position::Middle,
    }
}

/// Copies a slice of a gather list, `offset` bytes into it, to `out`.
fn gather(
    memory: &impl Memory,
    domain: Domain,
    data: &Gather,
    mut offset: u64,
    mut out: &mut [u8],
) -> Result<(), AccessError> {
    if let Gather::Inline(bytes) = data {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(source) = bytes.get(start..start.saturating_add(out.len())) {
            out.copy_from_slice(source);
        }
        return Ok(());
    }
    for sge in data.elements() {
        if out.is_empty() {
            break;
        }
        let len = u64::from(sge.length);
        if offset >= len {
            offset -= len;
            continue;
        }
        let here = usize::try_from(len - offset).unwrap_or(usize::MAX).min(out.len());
        let (now, later) = out.split_at_mut(here);
        memory.read(domain, sge.lkey, sge.addr.wrapping_add(offset), Access::empty(), now)?;
        out = later;
        offset = 0;
    }
    Ok(())
}
