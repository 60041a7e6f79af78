//! Answering duplicate requests.

use super::{QueuePair, Resource, Responder, Response};
use crate::ids::Psn;
use crate::queue_pair::PacketDrop;
use crate::wire::opcode::Operation as WireOperation;
use crate::wire::packet::Packet;

/// The number of gaps in READ responses that a partner may have closed at once, beyond what the initiator depth allows. A
/// requester holds 256 packets of 4 KiB: if it lost a quarter of them, it has 64 gaps.
const MAX_GAPS: usize = 64;

impl Responder {
    /// If a READ response that waits includes what a duplicate asks for, sends the part again that was sent, followed by the
    /// rest, which is queued already. Returns whether one does.
    fn go_back_in_read(&mut self, from: Psn, end: Psn, address: u64, mtu: u32) -> bool {
        let waiting = self.responses.iter_mut().find(|r| match r {
            Response::Read { first, end: last, .. } => !from.is_before(*first) && !last.is_before(end),
            _ => false,
        });
        let Some(Response::Read { psn: next, va, left, started, .. }) = waiting else { return false };
        let back = u32::try_from(next.distance_from(from)).unwrap_or(0);
        if back > 0 {
            *next = from;
            *va = address;
            *left += back * mtu;
            *started = false;
        }
        true
    }

    /// Where the part of a READ response ends that has to be sent again for a partner: the rest still waits to be sent, and goes on
    /// from there, because the partner keeps what comes beyond a gap. `None` if all of it waits.
    fn end_of_repetition(&self, from: Psn, end: Psn) -> Option<Psn> {
        let mut until = end;
        for response in self.responses.iter().rev() {
            let Response::Read { psn: next, end: last, .. } = response else { continue };
            if next.is_before(until) && !last.is_before(until) {
                until = *next;
            }
        }
        from.is_before(until).then_some(until)
    }
}

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
        let mut end = psn.plus(self.path.mtu.packets(reth.length));
        let mut left = reth.length;
        if self.responder.tells {
            match self.responder.end_of_repetition(psn, end) {
                // What is missing is on its way.
                None => return Ok(()),
                Some(until) if until != end => {
                    end = until;
                    left = end.distance_from(psn).unsigned_abs() * mtu;
                }
                Some(_) => {}
            }
        } else if self.responder.go_back_in_read(psn, end, reth.va, mtu) {
            return Ok(());
        }
        let replay = Response::Read {
            first: psn,
            psn,
            end,
            pd,
            va: reth.va,
            rkey: reth.rkey,
            left,
            started: false,
            msn: self.responder.msn,
            replay: true,
        };
        let most = if self.responder.tells { self.depth().max(MAX_GAPS) } else { self.depth() };
        self.responder.insert(replay, most)
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
