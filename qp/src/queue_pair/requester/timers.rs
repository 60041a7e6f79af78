//! The requester's timers, and what is sent again.

use super::SendWqe;
use crate::memory::Host;
use crate::queue_pair::{FailureContext, QueuePair};
use crate::train::Train;
use crate::work::WcStatus;
use time::Instant;

impl QueuePair {
    /// Handles the requester's timers: the end of an RNR wait, and the acknowledgement timer.
    pub(in crate::queue_pair) fn requester_timeout(&mut self, now: Instant, host: &mut impl Host) {
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
        if self.requester.flight.suspects() {
            self.requester.flight.lose_suspects();
            self.requester.deadline = self.wait().map(|wait| now + wait);
            return;
        }
        self.counters.local_ack_timeout_err += 1;
        self.requester.recovering = false;
        let was_early = self.wait() < self.ack_timeout();
        self.requester.patience.lose();
        if was_early && !self.requester.flight.is_empty() {
            self.counters.completer_retry_err += 1;
            self.requester.flight.lose_oldest();
            // Congestion control may hold the repetition back until more of what is in flight counts as lost.
            self.requester.deadline = self.wait().map(|wait| now + wait);
        } else if was_early {
            self.repeat();
        } else {
            // Whatever the peer holds: this is go-back-N.
            if !self.requester.flight.is_empty() {
                self.requester.flight.give_up();
            }
            self.retry(host);
        }
    }

    /// Sends a lost packet again: the one that is `at` PSNs beyond the oldest unanswered one. `psns` of what it asks for are lost.
    /// Returns whether there was room; `None` if its payload is not accessible any more.
    pub(super) fn request_again(
        &mut self,
        now: Instant,
        at: u32,
        psns: u32,
        train: &mut Train<'_>,
        host: &mut impl Host,
    ) -> Option<bool> {
        let psn = self.requester.unacked.plus(at);
        let contains = |wqe: &SendWqe| {
            let place = psn.distance_from(wqe.first_psn);
            u32::try_from(place).is_ok_and(|place| place < wqe.packets)
        };
        let index = self.requester.queue.iter().position(|wqe| wqe.started && contains(wqe))?;
        let wqe = &self.requester.queue[index];
        let place = u32::try_from(psn.distance_from(wqe.first_psn)).unwrap_or(0);
        let mut request = self.build_repetition(wqe, place, psns);
        request.headers.ack_req = true;
        if !train.has_room(&request.headers, request.payload as usize) {
            return Some(false);
        }
        if let Err(error) = self.emit(train, index, &request, host) {
            self.fail_locally(index, WcStatus::LocProtErr, Some(error), host);
            return None;
        }
        self.counters.retransmitted_pkts += 1;
        self.counters.retransmitted_bytes += u64::from(request.payload);
        self.counters.sent_bytes += u64::from(request.payload);
        self.requester.flight.repeat(at, request.psns);
        if self.requester.deadline.is_none() {
            self.requester.deadline = self.wait().map(|wait| now + wait);
            self.requester.patience.start(now, true);
        }
        Some(true)
    }

    /// Retransmits from the oldest unanswered packet, or fails the request if no retries are left.
    pub(in crate::queue_pair) fn retry(&mut self, host: &mut impl Host) {
        if self.requester.retries == 0 {
            self.counters.retry_exceeded_err += 1;
            let psn = self.requester.unacked;
            let context = FailureContext::AwaitingResponse(self.requester.heard.silence());
            self.note_failure(WcStatus::RetryExcErr, psn, context, None);
            self.fail_oldest(WcStatus::RetryExcErr, host);
            return;
        }
        self.requester.retries -= 1;
        self.repeat();
    }

    /// Retransmits from the oldest unanswered packet.
    fn repeat(&mut self) {
        self.counters.completer_retry_err += 1;
        self.requester.recovering = true;
        self.requester.deadline = None;
        match self.requester.flight.is_empty() {
            true => self.requester.go_back(),
            false => self.requester.flight.lose_all(),
        }
    }

    /// Restarts the acknowledgement timer after progress.
    pub(in crate::queue_pair) fn rearm(&mut self, now: Instant) {
        if self.config.tuning.adaptive_timeout && !self.config.tuning.selective_repeat {
            self.requester.patience.learn(now);
            let is_repetition = self.requester.next_psn.is_before(self.requester.sent_end);
            self.requester.patience.start(now, is_repetition);
        }
        self.requester.deadline =
            if self.requester.in_flight() { self.wait().map(|t| now + t) } else { None };
    }

    /// Fewer packets are on their way than before: the acknowledgement timer may have to expire sooner.
    pub(in crate::queue_pair) fn shorten(&mut self, now: Instant) {
        let sooner = self.wait().map(|wait| now + wait);
        self.requester.deadline = self.requester.deadline.and_then(|at| sooner.map(|sooner| at.min(sooner)));
    }
}
