//! Answering duplicate requests.

use super::{QueuePair, Resource, Response};
use crate::queue_pair::PacketDrop;
use crate::wire::opcode::Operation as WireOperation;
use crate::wire::packet::Packet;

impl QueuePair {
    /// Answers a request that was already executed, without executing it again and never with a NAK (IBTA C9-105).
    pub(super) fn duplicate(&mut self, packet: &Packet<'_>) -> Result<(), PacketDrop> {
        self.counters.duplicate_request += 1;
        match packet.info().operation {
            WireOperation::Send | WireOperation::Write if self.responder.tells => {
                self.responder.held.came_again();
                self.report();
                Ok(())
            }
            WireOperation::Send | WireOperation::Write => {
                if self.responder.acknowledge(self.responder.expected.minus(1)) {
                    self.counters.ack_deferred += 1;
                }
                Ok(())
            }
            WireOperation::ReadRequest => self.duplicate_read(packet),
            WireOperation::CompareSwap | WireOperation::FetchAdd => self.duplicate_atomic(packet),
            WireOperation::AtomicWrite | WireOperation::Flush => self.duplicate_placed(packet),
            _ => Err(PacketDrop::StaleDuplicate),
        }
    }

    /// A duplicate ATOMIC_WRITE is answered but not stored again, because that could undo later writes (IBTA
    /// oA19-14). Data that a FLUSH placed stays placed.
    fn duplicate_placed(&mut self, packet: &Packet<'_>) -> Result<(), PacketDrop> {
        let wanted = packet.psn();
        let kept = |r: &Resource| matches!(r, Resource::Placed { psn } if *psn == wanted);
        if !self.responder.resources.iter().any(kept) {
            return Err(PacketDrop::StaleDuplicate);
        }
        let waits = |r: &Response| matches!(r, Response::Placed { psn, .. } if *psn == wanted);
        if self.responder.responses.iter().any(waits) {
            return Ok(());
        }
        let (msn, depth) = (self.responder.msn, self.depth());
        self.responder.insert(Response::Placed { psn: wanted, msn, replay: true }, depth)
    }

    /// A duplicate READ may request any part of the original (IBTA 9.7.5.1.4); the memory is read again.
    fn duplicate_read(&mut self, packet: &Packet<'_>) -> Result<(), PacketDrop> {
        let psn = packet.psn();
        let mtu = self.path.mtu.bytes();
        let reth = packet.reth().ok_or(PacketDrop::StaleDuplicate)?;
        let within = |r: &Resource| match *r {
            Resource::Read { first, packets, pd, va, rkey, length } => {
                let index = psn.distance_from(first);
                let offset = u64::try_from(index).unwrap_or(u64::MAX).saturating_mul(u64::from(mtu));
                let part = index >= 0
                    && index < i32::try_from(packets).unwrap_or(i32::MAX)
                    && reth.rkey == rkey
                    && reth.va == va.wrapping_add(offset)
                    && offset + u64::from(reth.length) <= u64::from(length);
                part.then_some(pd)
            }
            Resource::Atomic { .. } | Resource::Placed { .. } => None,
        };
        let pd = self.responder.resources.iter().find_map(within).ok_or(PacketDrop::StaleDuplicate)?;
        let end = psn.plus(self.path.mtu.packets(reth.length));
        let waiting = self.responder.responses.iter_mut().find(|r| match r {
            Response::Read { first, end: last, .. } => !psn.is_before(*first) && !last.is_before(end),
            _ => false,
        });
        if let Some(Response::Read { psn: next, va, left, started, .. }) = waiting {
            // The part not yet sent is already queued. The part that was sent is sent again, followed by the rest.
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
            pd,
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
}
