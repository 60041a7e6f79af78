//! Requests that get a response of their own: READ, atomics, ATOMIC_WRITE and FLUSH.

use super::{Nak, QueuePair, Refusal, Refused, Resource, Response};
use crate::ids::Psn;
use crate::memory::{Access, AccessError, AtomicOp, Host};
use crate::queue_pair::MAX_MESSAGE;
use crate::wire::headers::FethFields;
use crate::wire::opcode::Operation as WireOperation;
use crate::wire::packet::Packet;
use crate::wire::syndrome::NakCode;
use crate::work::WcStatus;

impl QueuePair {
    /// The number of READs and atomics that the peer may have outstanding.
    pub(super) fn depth(&self) -> usize {
        usize::from(self.attr.max_dest_rd_atomic.unwrap_or(0))
    }

    /// The depth, if it allows one more READ or atomic.
    fn check_depth(&self) -> Result<usize, Refusal> {
        let depth = self.depth();
        if self.responder.unanswered() >= depth {
            return Err(Refusal::invalid(Refused::TooManyReads { max: depth }));
        }
        Ok(depth)
    }

    pub(super) fn execute_read(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<u32, Refusal> {
        self.allowed(Access::REMOTE_READ)?;
        let depth = self.check_depth()?;
        let Some(reth) = packet.reth() else { return Err(Refusal::invalid(Refused::Header("no RETH"))) };
        if u64::from(reth.length) > MAX_MESSAGE {
            return Err(Refusal::invalid(Refused::TooLong));
        }
        let domain = self.domain_of(packet, host)?;
        host.check(domain, reth.rkey, reth.va, u64::from(reth.length), Access::REMOTE_READ)
            .map_err(Refusal::access)?;
        self.counters.rx_read_requests += 1;
        self.responder.count_message();
        let psn = packet.psn();
        let packets = self.path.mtu.packets(reth.length);
        let (pd, va, rkey, length) = (domain.pd, reth.va, reth.rkey, reth.length);
        self.responder.keep(Resource::Read { first: psn, packets, pd, va, rkey, length }, depth);
        self.responder.responses.push_back(Response::Read {
            first: psn,
            psn,
            end: psn.plus(packets),
            pd,
            va,
            rkey,
            left: length,
            started: false,
            msn: self.responder.msn,
            replay: false,
        });
        Ok(packets)
    }

    pub(super) fn execute_atomic(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        self.allowed(Access::REMOTE_ATOMIC)?;
        let depth = self.check_depth()?;
        let Some(atomic) = packet.atomic_eth() else {
            return Err(Refusal::invalid(Refused::Header("no AtomicETH")));
        };
        let op = match packet.info().operation {
            WireOperation::CompareSwap => {
                AtomicOp::CompareSwap { compare: atomic.compare, swap: atomic.swap_add }
            }
            _ => AtomicOp::FetchAdd { add: atomic.swap_add },
        };
        let domain = self.domain_of(packet, host)?;
        let original = host.atomic(domain, atomic.rkey, atomic.va, op).map_err(misaligned_is_invalid)?;
        self.counters.rx_atomic_requests += 1;
        self.responder.count_message();
        let psn = packet.psn();
        self.responder.keep(Resource::Atomic { psn, original }, depth);
        let msn = self.responder.msn;
        self.responder.responses.push_back(Response::Atomic { psn, original, msn, replay: false });
        Ok(())
    }

    /// Executes an ATOMIC_WRITE: 8 bytes, aligned, stored at once (IBTA annex A19). Requires the rights of a WRITE.
    pub(super) fn execute_atomic_write(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        self.allowed(Access::REMOTE_WRITE)?;
        let depth = self.check_depth()?;
        let Some(reth) = packet.reth() else { return Err(Refusal::invalid(Refused::Header("no RETH"))) };
        let Ok(bytes) = <[u8; 8]>::try_from(packet.payload()) else {
            return Err(Refusal::invalid(Refused::Header("an ATOMIC_WRITE of other than 8 bytes")));
        };
        if reth.length != 8 {
            return Err(Refusal::invalid(Refused::Header("an ATOMIC_WRITE of other than 8 bytes")));
        }
        // The bytes are stored as received, regardless of the host byte order.
        let op = AtomicOp::Store { value: u64::from_ne_bytes(bytes) };
        host.atomic(self.domain(), reth.rkey, reth.va, op).map_err(misaligned_is_invalid)?;
        self.counters.rx_write_requests += 1;
        self.answer_placed(packet.psn(), depth);
        Ok(())
    }

    /// Executes a FLUSH: placement type and selectivity as in IBTA annex A19.
    pub(super) fn execute_flush(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refusal> {
        let (Some(reth), Some(feth)) = (packet.reth(), packet.feth()) else {
            return Err(Refusal::invalid(Refused::Header("no FETH")));
        };
        let mut access = Access::empty();
        access.set(Access::FLUSH_GLOBAL, feth.placement & FethFields::GLOBAL != 0);
        access.set(Access::FLUSH_PERSISTENT, feth.placement & FethFields::PERSISTENT != 0);
        let known = FethFields::GLOBAL | FethFields::PERSISTENT;
        if access.is_empty() || feth.placement & !known != 0 || feth.selectivity > 1 {
            return Err(Refusal::invalid(Refused::Header(
                "a FLUSH of a reserved placement type or selectivity level",
            )));
        }
        self.allowed(access)?;
        let depth = self.check_depth()?;
        let range = (feth.selectivity == 0).then_some((reth.va, u64::from(reth.length)));
        host.flush(self.domain(), reth.rkey, range, access).map_err(Refusal::access)?;
        self.counters.rx_flush_requests += 1;
        self.answer_placed(packet.psn(), depth);
        Ok(())
    }

    fn answer_placed(&mut self, psn: Psn, depth: usize) {
        self.responder.count_message();
        self.responder.keep(Resource::Placed { psn }, depth);
        let msn = self.responder.msn;
        self.responder.responses.push_back(Response::Placed { psn, msn, replay: false });
    }
}

/// An atomic operation on a misaligned address is an invalid request, not an access error (IBTA 9.4.5).
fn misaligned_is_invalid(error: AccessError) -> Refusal {
    match error {
        AccessError::Misaligned { .. } => Refusal::Nak(Nak {
            code: NakCode::InvalidRequest,
            recv_status: WcStatus::RemInvReqErr,
            why: Refused::Misaligned,
            access: Some(error),
        }),
        other => Refusal::access(other),
    }
}
