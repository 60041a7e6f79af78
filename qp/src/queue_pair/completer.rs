//! The completer: retires send work requests as responses arrive.
//!
//! A response with PSN *n* also answers everything before *n* (IBTA 9.7.5.1.2), except READs and atomics, which
//! need their data. A response beyond one of those shows that its data was lost (an implied NAK). Between partners with selective
//! repeat, it is kept (`gap`).

mod gap;

use super::{FailureContext, PacketDrop, PeerRefusal, QueuePair, Silence};
use crate::attr::QpState;
use crate::ids::Psn;
use crate::memory::{Access, AccessError, Host};
use crate::wire::opcode::{Operation as WireOperation, Position};
use crate::wire::packet::Packet;
use crate::wire::syndrome::{NakCode, Syndrome, rnr_delay};
use crate::work::{Operation, WcStatus};
use time::Instant;

/// How far an acknowledgement advances the window.
enum Advance {
    /// Everything up to the PSN is answered.
    Reached,
    /// The data of an earlier READ or atomic is missing.
    Gap,
}

impl QueuePair {
    /// Handles an acknowledgement, a READ response or an atomic response.
    pub(super) fn handle_response(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return Err(PacketDrop::State);
        }
        let psn = packet.psn();
        let credited = match packet.aeth().map(|aeth| (aeth.kind(), aeth.msn)) {
            Some((Syndrome::Ack { credits }, msn)) if self.config.tuning.e2e_credits => {
                self.requester.take_credits(msn, credits)
            }
            _ => false,
        };
        if !self.is_outstanding(psn) {
            if credited && packet.info().operation == WireOperation::Acknowledge {
                // An unsolicited acknowledgement, sent because receives were posted (IBTA 9.7.7.2.4).
                return Ok(());
            }
            // The response is late, duplicated, or answers a request that was never sent: ignore it (IBTA
            // 9.7.5.1.3).
            self.counters.ghost_responses += 1;
            self.note_strange(packet);
            self.note_needless(packet);
            return Err(PacketDrop::Ghost);
        }
        self.requester.heard.answered = true;
        match self.keep_beyond_gap(now, packet) {
            Some(outcome) => outcome?,
            None => self.take_answer(now, packet, host)?,
        }
        self.take_kept(now, host);
        self.retire_failed(host);
        self.report_drained(host);
        Ok(())
    }

    /// Handles an answer whose turn has come.
    fn take_answer(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        match packet.info().operation {
            WireOperation::Acknowledge => {
                let syndrome = packet.aeth().map_or(Syndrome::Reserved(0), |a| Syndrome::from_u8(a.syndrome));
                self.handle_acknowledge(now, packet.psn(), syndrome, host)
            }
            WireOperation::ReadResponse => self.handle_read_response(now, packet, host),
            WireOperation::AtomicAcknowledge => self.handle_atomic_response(now, packet, host),
            _ => Err(PacketDrop::Service),
        }
    }

    /// Handles an acknowledgement that tells what the peer holds beyond a gap.
    pub(super) fn handle_selective_ack(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return Err(PacketDrop::State);
        }
        let Some(ack) = packet.selective_ack() else { return Err(PacketDrop::Service) };
        if let Some(aeth) = packet.aeth()
            && let Syndrome::Ack { credits } = aeth.kind()
            && self.config.tuning.e2e_credits
        {
            self.requester.take_credits(aeth.msn, credits);
        }
        let expected = ack.expected;
        if !self.is_outstanding(expected) && !self.is_outstanding(expected.minus(1)) {
            self.counters.ghost_responses += 1;
            return Err(PacketDrop::Ghost);
        }
        self.counters.rcvd_selective_acks += 1;
        self.requester.heard.answered = true;
        let keeps = self.requester.keeps && !self.requester.flight.is_empty();
        if let Advance::Gap = self.answered_to(now, expected, host)
            && !keeps
        {
            self.implied_nak(host);
        }
        match usize::try_from(expected.distance_from(self.requester.unacked)) {
            Ok(skipped) if !self.requester.flight.is_empty() => {
                let executed = if keeps { skipped } else { 0 };
                let tolerance = self.config.tuning.reorder_tolerance;
                self.requester.flight.report(&ack, skipped, executed, tolerance);
                self.shorten(now);
            }
            // This side has no selective repeat: a loss is a loss.
            _ if !self.config.tuning.selective_repeat && ack.held().next().is_some() => {
                self.counters.rcvd_seq_err += 1;
                if !self.requester.recovering {
                    self.retry(host);
                }
            }
            _ => {}
        }
        self.take_kept(now, host);
        self.retire_failed(host);
        self.report_drained(host);
        Ok(())
    }

    /// Keeps what an answer to nothing says, in case that no other comes: the PSNs of the two sides may differ.
    fn note_strange(&mut self, packet: &Packet<'_>) {
        let psn = packet.psn();
        self.requester.heard.strange = match packet.aeth().map(|aeth| aeth.kind()) {
            Some(Syndrome::Nak(NakCode::PsnSequenceError)) => Some(Silence::ExpectsPsn { expected: psn }),
            Some(Syndrome::Ack { .. }) => Some(Silence::Acknowledges { acknowledged: psn }),
            _ => self.requester.heard.strange,
        };
    }

    /// Whether a request with this PSN was ever sent and is not answered.
    fn is_outstanding(&self, psn: Psn) -> bool {
        psn.distance_from(self.requester.unacked) >= 0 && psn.is_before(self.requester.sent_end)
    }

    fn handle_acknowledge(
        &mut self,
        now: Instant,
        psn: Psn,
        syndrome: Syndrome,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        match syndrome {
            Syndrome::Ack { .. } => {
                if let Advance::Gap = self.answered_to(now, psn.plus(1), host) {
                    self.implied_nak(host);
                }
            }
            Syndrome::Rnr { timer } => {
                self.counters.rcvd_rnr_err += 1;
                match self.answered_to(now, psn, host) {
                    Advance::Gap => self.implied_nak(host),
                    Advance::Reached => self.receiver_not_ready(now, timer, host),
                }
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                self.counters.rcvd_seq_err += 1;
                if let Advance::Gap = self.answered_to(now, psn, host) {
                    self.implied_nak(host);
                } else if !self.requester.recovering {
                    self.retry(host);
                }
            }
            Syndrome::Nak(code) => {
                let (status, what) = match code {
                    NakCode::RemoteAccessError => (WcStatus::RemAccessErr, PeerRefusal::Access),
                    NakCode::RemoteOperationalError => (WcStatus::RemOpErr, PeerRefusal::Operational),
                    _ => (WcStatus::RemInvReqErr, PeerRefusal::Invalid),
                };
                match self.answered_to(now, psn, host) {
                    Advance::Gap => self.implied_nak(host),
                    Advance::Reached => {
                        self.refused(psn, status, FailureContext::PeerRefused(what), host);
                    }
                }
            }
            Syndrome::Reserved(_) => return Err(PacketDrop::ReservedSyndrome),
        }
        Ok(())
    }

    /// The peer had no receive posted: waits for the time that the peer asks for, then retransmits from there (IBTA
    /// 9.7.5.2.8).
    fn receiver_not_ready(&mut self, now: Instant, timer: u8, host: &mut impl Host) {
        if self.requester.rnr_until.is_some() {
            // A duplicate of the NAK that is already being obeyed.
            return;
        }
        let since = *self.requester.rnr_since.get_or_insert(now);
        // 7 means without end.
        if self.attr.rnr_retry.unwrap_or(0) != 7 {
            if self.requester.rnr_retries == 0 {
                self.counters.retry_rnr_exceeded_err += 1;
                let context = FailureContext::AwaitingReceive(now.saturating_duration_since(since));
                self.refused(self.requester.unacked, WcStatus::RnrRetryExcErr, context, host);
                return;
            }
            self.requester.rnr_retries -= 1;
        }
        self.requester.go_back();
        self.requester.recovering = true;
        self.requester.deadline = None;
        self.requester.rnr_until = Some(now + rnr_delay(timer));
    }

    fn refused(&mut self, psn: Psn, status: WcStatus, context: FailureContext, host: &mut impl Host) {
        match status {
            WcStatus::RemAccessErr => self.counters.req_remote_access_errors += 1,
            WcStatus::RemInvReqErr => self.counters.req_remote_invalid_request += 1,
            _ => {}
        }
        self.note_failure(status, psn, context, None);
        self.fail_oldest(status, host);
    }

    /// A response skipped data that never arrived: requests the missing data again.
    fn implied_nak(&mut self, host: &mut impl Host) {
        if self.requester.recovering {
            return;
        }
        self.counters.implied_nak_seq_err += 1;
        self.retry(host);
    }

    /// Marks every PSN before `end` as answered, up to the first READ or atomic whose data is missing.
    fn answered_to(&mut self, now: Instant, end: Psn, host: &mut impl Host) -> Advance {
        let before = self.requester.unacked;
        let mut outcome = Advance::Reached;
        while let Some(wqe) = self.requester.queue.front_mut() {
            let reach = end.distance_from(wqe.first_psn);
            if !wqe.started || reach <= 0 {
                break;
            }
            let acked = u32::try_from(reach).unwrap_or(0).min(wqe.packets);
            if wqe.wr.operation.expects_response() {
                if acked > wqe.acked {
                    outcome = Advance::Gap;
                }
                break;
            }
            if acked > wqe.acked {
                wqe.acked = acked;
                wqe.sent = wqe.sent.max(acked);
                self.requester.unacked = wqe.next_unacked();
            }
            if wqe.acked < wqe.packets {
                break;
            }
            self.retire(0, host);
        }
        self.progress(now, before);
        outcome
    }

    /// Call after `unacked` may have moved: resets the retry counters and the timer on progress.
    fn progress(&mut self, now: Instant, before: Psn) {
        if self.requester.unacked == before {
            return;
        }
        let answered = self.requester.unacked.distance_from(before);
        if !self.requester.flight.is_empty()
            && let Some(left) = self.requester.flight.answer(u32::try_from(answered).unwrap_or(0))
        {
            self.requester.patience.measure(now, left);
        }
        if self.requester.next_psn.is_before(self.requester.unacked) {
            // Responses to an earlier transmission arrived ahead of the retransmission.
            self.requester.next_psn = self.requester.unacked;
        }
        self.requester.drop_answered_reads();
        self.requester.recovering = false;
        self.requester.rnr_since = None;
        self.requester.refill_retries(&self.attr);
        self.rearm(now);
    }

    /// The oldest work request is answered; `byte_len` is the number of bytes it received.
    fn retire(&mut self, byte_len: u32, host: &mut impl Host) {
        let Some(wqe) = self.requester.queue.front() else { return };
        self.requester.unacked = wqe.first_psn.plus(wqe.packets);
        self.retire_oldest(byte_len, host);
    }

    fn handle_read_response(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        let psn = packet.psn();
        if let Advance::Gap = self.answered_to(now, psn, host) {
            self.implied_nak(host);
            return Ok(());
        }
        let mtu = self.path.mtu.bytes();
        let Some(wqe) = self.requester.queue.front() else { return Err(PacketDrop::Ghost) };
        if matches!(wqe.wr.operation, Operation::AtomicWrite { .. } | Operation::Flush { .. }) {
            return self.handle_placed(now, packet, host);
        }
        if !matches!(wqe.wr.operation, Operation::Read { .. }) || psn != wqe.next_unacked() {
            self.counters.ghost_responses += 1;
            return Err(PacketDrop::Ghost);
        }
        let offset = u64::from(wqe.acked) * u64::from(mtu);
        let wanted = u32::try_from(u64::from(wqe.len).saturating_sub(offset)).unwrap_or(0).min(mtu);
        if carries_nak(packet) {
            self.bad_response(psn, "READ response with a NAK syndrome", host);
            return Ok(());
        }
        let ends_message = wqe.acked + 1 == wqe.packets;
        let ends_response = matches!(packet.info().position, Position::Last | Position::Only);
        if packet.payload().len() != wanted as usize || (ends_message && !ends_response) {
            self.bad_response(psn, "READ response of the wrong length", host);
            return Ok(());
        }
        if let Err(error) = self.scatter(offset, packet.payload(), host) {
            self.note_failure(WcStatus::LocProtErr, psn, FailureContext::ScatteringResponse, Some(error));
            self.fail_oldest(WcStatus::LocProtErr, host);
            return Ok(());
        }
        let before = self.requester.unacked;
        // The answer to a part of a READ request may end before it.
        let ends_request = self.requester.ends_read(psn);
        if let Some(wqe) = self.requester.queue.front_mut() {
            if ends_request && wqe.responses_due > 0 {
                wqe.responses_due -= 1;
                self.requester.responses_due = self.requester.responses_due.saturating_sub(1);
            }
            wqe.acked += 1;
            wqe.sent = wqe.sent.max(wqe.acked);
            self.requester.unacked = wqe.next_unacked();
            let len = wqe.len;
            if ends_message {
                self.retire(len, host);
            }
        }
        self.progress(now, before);
        Ok(())
    }

    /// An empty READ response answers an ATOMIC_WRITE or FLUSH (IBTA annex A19).
    fn handle_placed(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        let psn = packet.psn();
        if self.requester.queue.front().is_none_or(|wqe| psn != wqe.first_psn) {
            self.counters.ghost_responses += 1;
            return Err(PacketDrop::Ghost);
        }
        if carries_nak(packet) || packet.info().position != Position::Only || !packet.payload().is_empty() {
            self.bad_response(psn, "response to ATOMIC_WRITE or FLUSH is not an empty READ response", host);
            return Ok(());
        }
        let before = self.requester.unacked;
        self.retire(0, host);
        self.progress(now, before);
        Ok(())
    }

    fn handle_atomic_response(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), PacketDrop> {
        let psn = packet.psn();
        if let Advance::Gap = self.answered_to(now, psn, host) {
            self.implied_nak(host);
            return Ok(());
        }
        let Some(wqe) = self.requester.queue.front() else { return Err(PacketDrop::Ghost) };
        if !wqe.wr.operation.is_atomic() || psn != wqe.first_psn {
            self.counters.ghost_responses += 1;
            return Err(PacketDrop::Ghost);
        }
        if carries_nak(packet) {
            self.bad_response(psn, "atomic response with a NAK syndrome", host);
            return Ok(());
        }
        let original = packet.atomic_ack().unwrap_or(0);
        // Big-endian on the wire, host byte order in memory (IBTA 9.4.5).
        if let Err(error) = self.scatter(0, &original.to_ne_bytes(), host) {
            self.note_failure(WcStatus::LocProtErr, psn, FailureContext::ScatteringResponse, Some(error));
            self.fail_oldest(WcStatus::LocProtErr, host);
            return Ok(());
        }
        let before = self.requester.unacked;
        self.retire(8, host);
        self.progress(now, before);
        Ok(())
    }

    fn bad_response(&mut self, psn: Psn, what: &'static str, host: &mut impl Host) {
        let context = FailureContext::PeerRefused(PeerRefusal::BadResponse(what));
        self.note_failure(WcStatus::BadRespErr, psn, context, None);
        self.fail_oldest(WcStatus::BadRespErr, host);
    }

    /// Writes response data into the buffers of the oldest work request, starting `offset` bytes into them.
    fn scatter(&self, offset: u64, data: &[u8], host: &mut impl Host) -> Result<(), AccessError> {
        let domain = self.domain();
        match self.requester.queue.front() {
            Some(wqe) => super::responder::scatter(
                host,
                domain,
                wqe.wr.data.elements(),
                offset,
                data,
                Access::LOCAL_WRITE,
            ),
            None => Ok(()),
        }
    }
}

/// Whether a data response contradicts itself by carrying a syndrome other than ACK.
fn carries_nak(packet: &Packet<'_>) -> bool {
    packet.aeth().is_some_and(|aeth| !matches!(aeth.kind(), Syndrome::Ack { .. }))
}
