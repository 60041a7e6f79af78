//! Answers that come while data before them is missing, between partners with selective repeat.
//!
//! Towards any other peer such an answer is an implied NAK (IBTA 9.7.5.1.2): everything from what is missing on is asked for
//! again. Between partners the answer is kept until its turn, and only what is missing is asked for: see
//! [`selective`](crate::queue_pair::selective).

use crate::memory::Host;
use crate::queue_pair::{PacketDrop, QueuePair};
use crate::wire::opcode::Operation as WireOperation;
use crate::wire::packet::Packet;
use crate::wire::syndrome::{NakCode, Syndrome};
use time::Instant;

impl QueuePair {
    /// If data is missing that should have come before this answer, keeps what it says. `None` if nothing is missing, or the peer
    /// is not a partner: then the answer is handled at once.
    pub(super) fn keep_beyond_gap(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
    ) -> Option<Result<(), PacketDrop>> {
        if !self.requester.keeps || self.requester.flight.is_empty() {
            return None;
        }
        let at = usize::try_from(packet.psn().distance_from(self.requester.unacked)).ok()?;
        let syndrome = packet.aeth().map(|aeth| aeth.kind());
        // Whether it is kept, and how many of the oldest PSNs it shows to be executed.
        let (is_kept, executed) = match (packet.info().operation, syndrome) {
            (WireOperation::ReadResponse | WireOperation::AtomicAcknowledge, _) => (true, at),
            (WireOperation::Acknowledge, Some(Syndrome::Ack { .. })) => (false, at + 1),
            // The peer does not take us for a partner: it is go-back-N.
            (_, None | Some(Syndrome::Nak(NakCode::PsnSequenceError) | Syndrome::Reserved(_))) => {
                return None;
            }
            // Its turn comes when everything before is complete.
            (_, Some(Syndrome::Rnr { .. } | Syndrome::Nak(_))) => (true, at),
            _ => return None,
        };
        if !self.requester.flight.misses_data(executed) {
            return None;
        }
        let is_here = self.requester.flight.is_here(at);
        if is_here.is_none() || is_here == Some(true) && is_kept {
            // All is to be sent anew, and its request has not been yet; or it came twice.
            if is_here.is_some() {
                self.note_needless(packet);
            }
            self.counters.ghost_responses += 1;
            return Some(Err(PacketDrop::Ghost));
        }
        let has_room = !is_kept || self.requester.flight.kept.hold(at, packet.bytes());
        // What there is no room for is asked for again when its turn comes, and until then its loss is no news.
        let executed = if has_room { executed } else { executed.min(self.requester.flight.kept.reach()) };
        let tolerance = self.config.tuning.reorder_tolerance;
        self.requester.flight.arrive(at, executed, is_kept && has_room, tolerance);
        self.counters.held_pkts += u64::from(is_kept && has_room);
        self.shorten(now);
        Some(if has_room { Ok(()) } else { Err(PacketDrop::OutOfSequence) })
    }

    /// Data came that was here already: it had been asked for again without need, or the network doubled it.
    pub(super) fn note_needless(&mut self, packet: &Packet<'_>) {
        let is_data = packet.info().operation != WireOperation::Acknowledge;
        if self.requester.keeps && is_data && !self.requester.flight.is_empty() {
            self.requester.flight.came_again(1);
        }
    }

    /// Handles the answers that were kept, and that everything before has arrived for by now.
    pub(super) fn take_kept(&mut self, now: Instant, host: &mut impl Host) {
        while self.requester.flight.is_front_here() {
            let before = self.requester.unacked;
            match self.requester.flight.kept.take() {
                None => _ = self.answered_to(now, before.plus(1), host),
                Some(bytes) => {
                    // It was parsed when it came. What it is counted as was counted then.
                    if let Ok(packet) = Packet::parse(&bytes) {
                        _ = self.take_answer(now, &packet, host);
                    }
                }
            }
            if self.requester.unacked == before {
                // It was no answer to the request with its PSN, or it has failed the queue pair.
                if self.requester.flight.is_front_here() {
                    self.requester.flight.reopen_front();
                }
                return;
            }
        }
    }
}
