//! Building request packets.

use super::{MAX_IN_FLIGHT, NUMBER, SendWqe};
use crate::memory::{Access, AccessError, Domain, Host, Memory, SUMMED_COPY};
use crate::queue_pair::{FailureContext, MAX_MESSAGE, QueuePair, Unsendable};
use crate::train::Train;
use crate::wire::headers::{AtomicFields, RethFields};
use crate::wire::icrc;
use crate::wire::opcode::{Extra, Opcode, Operation as WireOperation, Position};
use crate::wire::packet::Headers;
use crate::work::{Destination, Gather, Operation, SendFlags, Sge, WcStatus};

/// One request packet: its headers and its part of the payload.
pub(super) struct Request {
    pub(super) headers: Headers,
    pub(super) offset: u64,
    pub(super) payload: u32,
    /// Number of PSNs it takes: more than one for a READ.
    pub(super) psns: u32,
    /// Whether it is the last packet of the message.
    pub(super) last: bool,
}

impl QueuePair {
    /// Assigns PSNs to a work request; false if it cannot be sent at all.
    pub(super) fn start(&mut self, index: usize) -> bool {
        let mtu = self.path.mtu;
        let depth = self.attr.max_rd_atomic.unwrap_or(0);
        let wqe = &mut self.requester.queue[index];
        let operation = wqe.wr.operation;
        // A FLUSH carries no payload, regardless of the buffers given.
        let len = if matches!(operation, Operation::Flush { .. }) { 0 } else { wqe.wr.data.len() };
        let one_word = operation.is_atomic() || matches!(operation, Operation::AtomicWrite { .. });
        let expects_response = operation.expects_response();
        let wrong = if len > MAX_MESSAGE {
            Some((WcStatus::LocLenErr, Unsendable::TooLong(len)))
        } else if one_word && len != 8 {
            Some((WcStatus::LocLenErr, Unsendable::NotEightBytes(len)))
        } else if expects_response && depth == 0 {
            // Without initiator depth no READ or atomic can ever be sent.
            Some((WcStatus::LocQpOpErr, Unsendable::NoInitiatorDepth))
        } else {
            None
        };
        wqe.failed = wrong.map(|(status, _)| status);
        wqe.first_psn = self.requester.fresh_psn;
        if let Some((status, why)) = wrong {
            let psn = wqe.first_psn;
            self.note_cause(status, psn, FailureContext::Starting(why), None);
            return false;
        }
        wqe.len = u32::try_from(len).unwrap_or(u32::MAX);
        wqe.packets = if operation.is_atomic() { 1 } else { mtu.packets(wqe.len) };
        wqe.started = true;
        self.requester.ssn = self.requester.ssn.wrapping_add(1) & NUMBER;
        self.requester.fresh_psn = wqe.first_psn.plus(wqe.packets);
        true
    }

    /// Chooses the packet of a started work request that is `at` PSNs from its first.
    pub(super) fn build(&self, wqe: &SendWqe, at: u32, budget: u32) -> Request {
        let mtu = self.path.mtu.bytes();
        let offset = u64::from(at) * u64::from(mtu);
        let rest = u32::try_from(u64::from(wqe.len).saturating_sub(offset)).unwrap_or(0);
        let psn = wqe.first_psn.plus(at);
        let mut headers = Headers::new(Opcode::RcSendOnly, self.path.dest_qpn, psn);
        headers.pkey = self.path.pkey;
        headers.mig_req = self.config.tuning.mig_req;
        if let Destination::XrcSrq(srqn) = wqe.wr.to {
            headers.xrc_srqn = srqn;
        }
        let mut request = Request { headers, offset, payload: 0, psns: 1, last: true };
        let (operation, position, extra) = match wqe.wr.operation {
            Operation::Send { imm, invalidate } => {
                request.payload = rest.min(mtu);
                let position = position(at, wqe.packets);
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
                let position = position(at, wqe.packets);
                request.last = matches!(position, Position::Last | Position::Only);
                request.headers.reth = RethFields { va: remote.addr, rkey: remote.rkey, length: wqe.len };
                request.headers.imm = imm.unwrap_or(0);
                let extra = if request.last && imm.is_some() { Extra::Imm } else { Extra::None };
                (WireOperation::Write, position, extra)
            }
            Operation::Read { remote } => {
                request.psns = self.read_span(wqe, at, budget);
                let length = u64::from(rest).min(u64::from(request.psns) * u64::from(mtu));
                request.headers.reth = RethFields {
                    va: remote.addr.wrapping_add(offset),
                    rkey: remote.rkey,
                    length: u32::try_from(length).unwrap_or(u32::MAX),
                };
                (WireOperation::ReadRequest, Position::Only, Extra::None)
            }
            Operation::AtomicWrite { remote } => {
                request.payload = rest.min(mtu);
                request.headers.reth = RethFields { va: remote.addr, rkey: remote.rkey, length: wqe.len };
                (WireOperation::AtomicWrite, Position::Only, Extra::None)
            }
            Operation::Flush { remote, len, flush } => {
                request.headers.reth = RethFields { va: remote.addr, rkey: remote.rkey, length: len };
                request.headers.feth = flush.into();
                (WireOperation::Flush, Position::Only, Extra::None)
            }
            // Never built: see `execute_locally`.
            Operation::LocalInvalidate { .. } | Operation::BindWindow(_) => {
                (WireOperation::Send, Position::Only, Extra::None)
            }
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
        let transport = self.config.qp_type.transport();
        request.headers.opcode =
            Opcode::compose(transport, operation, position, extra).unwrap_or(Opcode::RcSendOnly);
        let carries_event = operation == WireOperation::Send || extra == Extra::Imm;
        request.headers.solicited =
            request.last && carries_event && wqe.wr.flags.contains(SendFlags::SOLICITED);
        // Ask for an acknowledgement at the end of a message, periodically within it, and well before the budget
        // runs out: an answer brings new budget, and the caller may stop granting budget before its end. Unreliable
        // services have no acknowledgements (IBTA 9.2.8).
        let since = self.requester.since_ack_request.saturating_add(request.psns);
        let reliable = self.config.qp_type.is_reliable();
        let interval = self.config.tuning.ack_interval.min(self.requester.ack_every.unwrap_or(u32::MAX));
        request.headers.ack_req = reliable && (request.last || since >= interval || since >= budget);
        request
    }

    /// Builds the retransmission of a packet. A READ asks for `psns` of its PSNs at most.
    pub(super) fn build_repetition(&self, wqe: &SendWqe, at: u32, psns: u32) -> Request {
        let mut request = self.build(wqe, at, u32::MAX);
        if request.psns > psns {
            request.psns = psns;
            // It ends before the READ, so all its packets are full.
            request.headers.reth.length = psns.saturating_mul(self.path.mtu.bytes());
        }
        request
    }

    /// The number of PSNs that the next READ request of a work request takes. A repeated READ uses the same pieces
    /// as before, regardless of the budget: its responses were budgeted the first time.
    fn read_span(&self, wqe: &SendWqe, at: u32, budget: u32) -> u32 {
        if at < wqe.sent_ever {
            let psn = wqe.first_psn.plus(at);
            let end = self.requester.read_ends.iter().find(|end| psn.is_before(**end));
            return end.map_or(1, |end| u32::try_from(end.distance_from(psn)).unwrap_or(1));
        }
        (wqe.packets - at).min(self.read_packets()).min(budget.max(1))
    }

    /// The greatest number of packets for which one READ request asks.
    pub(in crate::queue_pair) fn read_packets(&self) -> u32 {
        match self.config.tuning.read_chunk {
            0 => MAX_IN_FLIGHT,
            bytes => {
                let whole = bytes.saturating_mul(1 << self.path.read_doublings);
                (whole / self.path.mtu.bytes()).clamp(1, MAX_IN_FLIGHT)
            }
        }
    }

    /// Writes the packet and its payload into the train.
    pub(super) fn emit(
        &self,
        train: &mut Train<'_>,
        index: usize,
        request: &Request,
        host: &impl Host,
    ) -> Result<(), AccessError> {
        let wqe = &self.requester.queue[index];
        train.push_summed(&request.headers, request.payload as usize, |out, crc| {
            gather(host, self.domain(), &wqe.wr.data, request.offset, out, crc)
        })
    }
}

/// The position of packet `index` in a message of `packets` packets.
fn position(index: u32, packets: u32) -> Position {
    match (index, packets) {
        (_, 1) => Position::Only,
        (0, _) => Position::First,
        (i, n) if i + 1 == n => Position::Last,
        _ => Position::Middle,
    }
}

/// Copies part of a gather list to `out`, starting `offset` bytes into the list, and extends the CRC by it.
pub(in crate::queue_pair) fn gather(
    memory: &impl Memory,
    domain: Domain,
    data: &Gather,
    mut offset: u64,
    out: &mut [u8],
    mut crc: Option<&mut u32>,
) -> Result<(), AccessError> {
    if let Gather::One(Sge { addr, lkey, .. }) = *data {
        // The usual case, without the arithmetic of the others.
        let va = addr.wrapping_add(offset);
        return match crc {
            None => memory.read(domain, lkey, va, Access::empty(), out),
            Some(crc) => {
                *crc = memory.read_summed(domain, lkey, va, Access::empty(), out, *crc)?;
                Ok(())
            }
        };
    }
    // Up to here `out` is filled, and up to there the CRC covers it.
    let (mut filled, mut summed) = (0, 0);
    if let Gather::Inline(bytes) = data {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(source) = bytes.get(start..start.saturating_add(out.len())) {
            out.copy_from_slice(source);
        }
        filled = out.len();
    }
    for sge in data.elements() {
        if filled == out.len() {
            break;
        }
        let len = u64::from(sge.length);
        if offset >= len {
            offset -= len;
            continue;
        }
        let here = usize::try_from(len - offset).unwrap_or(usize::MAX).min(out.len() - filled);
        let (before, now) = out.split_at_mut(filled);
        let (now, va) = (&mut now[..here], sge.addr.wrapping_add(offset));
        match crc.as_deref_mut().filter(|_| here >= SUMMED_COPY) {
            // Short elements are summed together.
            None => memory.read(domain, sge.lkey, va, Access::empty(), now)?,
            Some(crc) => {
                *crc = icrc::extend(*crc, &before[summed..]);
                *crc = memory.read_summed(domain, sge.lkey, va, Access::empty(), now, *crc)?;
                summed = filled + here;
            }
        }
        filled += here;
        offset = 0;
    }
    if let Some(crc) = crc {
        *crc = icrc::extend(*crc, &out[summed..]);
    }
    Ok(())
}
