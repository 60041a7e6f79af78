//! What the packets of a capture say about events outside of it: packets that were lost behind the point of capture, keys
//! that were not valid, receives that were not there. Nothing depends on the name of a capture, so a new one is only
//! dropped in.

use crate::{Captured, Side, responder};
use qp::wire::{NakCode, Syndrome};
use qp::{Psn, QpType, WcStatus};

/// The request that failed, and how.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Failure {
    pub(crate) psn: Psn,
    pub(crate) status: WcStatus,
}

pub(crate) fn syndrome(packet: &Captured) -> Option<Syndrome> {
    packet.packet().aeth().map(|aeth| aeth.kind())
}

impl<'c> Side<'c> {
    /// The request of ours, or of the peer, that failed. It is the last that was executed.
    pub(crate) fn failure(&self, ours: bool) -> Option<Failure> {
        if self.capture.qp_type() != QpType::Rc {
            return None;
        }
        let requests: Vec<_> = self.of_kind(true).filter(|p| (p.flow.src == self.us) == ours).collect();
        let answers: Vec<_> = self.of_kind(false).filter(|p| (p.flow.dst == self.us) == ours).collect();
        let refused = answers.iter().find_map(|answer| {
            let status = match syndrome(answer)? {
                Syndrome::Nak(NakCode::InvalidRequest) => WcStatus::RemInvReqErr,
                Syndrome::Nak(NakCode::RemoteAccessError) => WcStatus::RemAccessErr,
                Syndrome::Nak(NakCode::RemoteOperationalError) => WcStatus::RemOpErr,
                _ => return None,
            };
            Some(Failure { psn: answer.packet().psn(), status })
        });
        if refused.is_some() {
            return refused;
        }
        let first = requests.first()?.packet().psn();
        let last = requests.iter().map(|p| p.packet().psn()).max_by_key(|psn| psn.distance_from(first))?;
        let succeeds = |answer: &&Captured| match syndrome(answer) {
            Some(Syndrome::Rnr { .. } | Syndrome::Nak(_)) => false,
            _ => answer.packet().psn().distance_from(last) >= 0,
        };
        if answers.iter().copied().any(|answer| succeeds(&answer)) {
            return None;
        }
        let is_rnr = answers.last().and_then(|answer| syndrome(answer));
        let status = match is_rnr {
            Some(Syndrome::Rnr { .. }) => WcStatus::RnrRetryExcErr,
            _ => WcStatus::RetryExcErr,
        };
        Some(Failure { psn: last, status })
    }

    /// The requests that reached our queue pair. The tap sees packets before rules that drop them: a packet was dropped
    /// if it is the only way to explain the answers.
    pub(crate) fn arrived(&self) -> Vec<&'c Captured> {
        let mut all: Vec<_> = self.received(true).collect();
        if let Some(Failure { psn, status: WcStatus::RetryExcErr }) = self.failure(false) {
            // Nobody ever answered it.
            all.retain(|p| p.packet().psn() != psn);
        }
        if responder::explains(self, &all) {
            return all;
        }
        let without = |lost: &[usize]| -> Vec<&'c Captured> {
            all.iter().enumerate().filter(|(at, _)| !lost.contains(at)).map(|(_, p)| *p).collect()
        };
        let again = |at: usize| all[at + 1..].iter().any(|p| p.packet().psn() == all[at].packet().psn());
        let candidates: Vec<usize> = (0..all.len()).filter(|at| again(*at)).collect();
        let one = candidates.iter().map(|at| vec![*at]);
        let two =
            candidates.iter().flat_map(|a| candidates.iter().filter(move |b| *b > a).map(|b| vec![*a, *b]));
        let found = one.chain(two).map(|lost| without(&lost)).find(|rest| responder::explains(self, rest));
        // If nothing explains the answers, the replay shows the first that does not fit.
        found.unwrap_or(all)
    }
}
