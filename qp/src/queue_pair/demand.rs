//! What a queue pair would send next: the questions that a scheduler asks before it gives it a turn. They change nothing.

use super::QueuePair;
use crate::wire::selective::MAX_LEN;
use crate::work::Operation;

impl QueuePair {
    /// Whether [`poll_transmit`](Self::poll_transmit) may have packets to send, given room and budget.
    #[must_use]
    pub fn wants_to_transmit(&self) -> bool {
        self.responder.has_responses() || self.can_request()
    }

    /// Whether requests may be sent, given room and budget.
    #[must_use]
    pub fn wants_to_request(&self) -> bool {
        self.can_request()
    }

    /// Whether the next request packet is the oldest unanswered one, sent again: the first packet of a retransmission.
    fn repeats_oldest(&self) -> bool {
        self.requester.recovering && !self.requester.in_flight()
    }

    /// Whether packets are sent again because some were lost, not because the peer was not ready.
    #[must_use]
    pub fn repairs_loss(&self) -> bool {
        self.requester.flight.lost() > 0 || self.requester.recovering && self.requester.rnr_since.is_none()
    }

    /// PSNs in flight that count as lost and are sent again next. They need no room beyond what they took at first. Where
    /// go-back-N begins, it is the oldest one; with selective repeat it may be several.
    #[must_use]
    pub fn repetitions_due(&self) -> u32 {
        let due = self.requester.flight.lost().max(self.repeats_oldest().into());
        if due > 0 && self.can_request() { due } else { 0 }
    }

    /// The number of packets in flight after the last one that asked for an acknowledgement. The peer does not
    /// acknowledge them until another packet asks.
    #[must_use]
    pub fn since_ack_request(&self) -> u32 {
        if self.next_psn() == self.unacked_psn() { 0 } else { self.requester.since_ack_request }
    }

    /// Whether the responder has responses to send.
    #[must_use]
    pub fn wants_to_answer(&self) -> bool {
        self.responder.has_responses()
    }

    /// Whether the next response is an acknowledgement. It needs no budget, unlike a READ response and everything
    /// queued behind one.
    #[must_use]
    pub fn wants_to_acknowledge(&self) -> bool {
        self.responder.acknowledges_next()
    }

    /// Whether the queue pair has nothing to transmit other than an acknowledgement.
    #[must_use]
    pub fn only_acknowledges(&self) -> bool {
        !self.can_request() && self.responder.only_acknowledges()
    }

    /// Maximum payload of the next packet in bytes; later packets in the same train carry no more.
    #[must_use]
    pub fn next_payload(&self) -> u32 {
        let mtu = self.mtu().bytes();
        if !self.responder.only_acknowledges() {
            return mtu;
        }
        if self.requester.flight.lost() > 0 {
            return mtu;
        }
        let report = if self.responder.report_due { (MAX_LEN as u32).min(mtu) } else { 0 };
        let request = match self.requester.next().filter(|_| self.can_request()) {
            None => 0,
            // A local operation is done at once; what follows it is not examined.
            Some(wqe) if wqe.wr.operation.is_local() => mtu,
            Some(wqe) => u32::try_from(wqe.wr.data.len()).unwrap_or(mtu).min(mtu),
        };
        request.max(report)
    }

    /// If a READ is next: the number of packets in the response to a whole piece of it, each of which takes a PSN.
    #[must_use]
    pub fn next_read(&self) -> Option<u32> {
        let next = self.requester.next().filter(|_| self.can_request())?;
        matches!(next.wr.operation, Operation::Read { .. }).then(|| self.read_packets())
    }
}
