//! Explaining why queue pairs fail: in the log, and for programs that ask for explanations.
//!
//! None of this runs on the fast path.

use super::{DropReason, Engine, QpEntry, QpSnapshot};
use crate::reasons::{self, Dropped, End, Failed, Reason, Refusing, Stalled};
use qp::queue_pair::{Failure, FailureContext};
use qp::wire::{IpHeader, Packet};
use qp::{QpState, Qpn};
use time::{Duration, Instant};

/// If the peer has no receive posted for this long, a queue pair with unlimited RNR retries needs an explanation.
const PATIENCE: Duration = Duration::from_secs(2);

/// The explanations that a queue pair has given: each only once, until it is reset.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Explained {
    pub(super) failure: bool,
    stall: bool,
    dropped: bool,
}

impl QpEntry {
    /// Both ends, or only the local one if there is no peer.
    fn ends(&self, own: std::net::IpAddr) -> (End, Option<End>) {
        let peer = self.path.map(|path| End { address: path.ip.dst, qpn: self.qp.dest_qpn() });
        (End { address: own, qpn: self.qp.qpn() }, peer)
    }
}

impl Engine {
    /// Logs a state transition of a queue pair.
    pub(super) fn note_state(&self, index: usize, from: QpState) {
        let Some(entry) = self.qps[index].as_ref() else { return };
        let to = entry.qp.state();
        if from != to {
            let (own, peer) = entry.ends(self.config.address);
            let peer = peer.map(tracing::field::display);
            tracing::debug!(qp = %own.qpn, %from, %to, peer, "a queue pair changes its state");
        }
    }

    /// Explains a failure of a queue pair that was not explained before.
    #[cold]
    pub(super) fn explain_failure(&mut self, index: usize) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        entry.explained.failure = true;
        let Some(failure) = entry.qp.failure().copied() else { return };
        let (own, peer) = entry.ends(self.config.address);
        tracing::debug!(qp = %own.qpn, peer = peer.map(tracing::field::display), %failure, "a queue pair fails");
        if !reasons::are_wanted() {
            return;
        }
        let reason = if failure.is_of_peer() {
            Reason::Refusing(Refusing { own, peer, failure })
        } else {
            let itself = peer.and_then(|peer| self.seen_itself(peer, &failure));
            Reason::Failed(Failed { own, peer, failure, itself })
        };
        reasons::report(reason);
    }

    /// The queue pair that does not answer, if it would be one of this device, and exists.
    fn seen_itself(&self, peer: End, failure: &Failure) -> Option<Option<QpSnapshot>> {
        let awaits = matches!(failure.context, FailureContext::AwaitingResponse(_));
        (awaits && peer.address == self.config.address).then(|| {
            let entry = self.index(peer.qpn).and_then(|index| self.qps[index].as_ref());
            entry.map(|entry| entry.snapshot())
        })
    }

    /// The timer of a queue pair fired: the peer may have lacked a receive for a long time.
    pub(super) fn explain_stall(&mut self, now: Instant, index: usize) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        let Some(since) = entry.qp.lacks_receive_since() else {
            entry.explained.stall = false;
            return;
        };
        let waited = now.saturating_duration_since(since);
        if waited >= PATIENCE && !std::mem::replace(&mut entry.explained.stall, true) {
            let (own, peer) = entry.ends(self.config.address);
            tracing::debug!(qp = %own.qpn, ?waited, "the peer has no receive posted");
            reasons::report(Reason::Stalled(Stalled { own, peer, waited }));
        }
    }

    /// Explains why a packet for a queue pair had no effect.
    #[cold]
    pub(super) fn explain_drop(
        &mut self,
        index: usize,
        arrival: &IpHeader,
        packet: &Packet<'_>,
        reason: DropReason,
    ) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        let own = End { address: self.config.address, qpn: entry.qp.qpn() };
        tracing::trace!(qp = %own.qpn, from = %arrival.src, reason = reason.name(), "a packet has no effect");
        if !reasons::are_wanted() || entry.qp.config().qp_type.is_reliable() || entry.explained.dropped {
            return;
        }
        let source = packet.deth().map_or(entry.qp.dest_qpn(), |deth| deth.src_qpn);
        let qkeys = match (reason, packet.deth(), entry.qp.query().qkey) {
            (DropReason::BadQkey, Some(deth), Some(own)) => Some((deth.qkey.0, own.0)),
            _ => None,
        };
        if qkeys.is_none() && reason != DropReason::NoReceive {
            return;
        }
        entry.explained.dropped = true;
        let peer = End { address: arrival.src, qpn: source };
        reasons::report(Reason::Dropped(Dropped { own, peer, reason, qkeys }));
    }

    /// A completion queue had no room for a completion, so this queue pair goes to ERR.
    #[cold]
    pub(super) fn explain_overrun(&self, qpn: Qpn, cq: usize) {
        tracing::debug!(qp = %qpn, cq, "a completion queue overruns");
        let entries = self.host.cqs.get(cq).map_or(0, |cq| cq.producer.shared.capacity());
        reasons::report(Reason::Other(
            "completion queue overruns",
            format_args!(
                "completion queue {cq} is full: all of its {entries} entries hold completions that were not polled, \
                 so it fails, and queue pair {qpn} goes to ERR"
            ),
        ));
    }
}
