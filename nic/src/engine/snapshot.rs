//! Queue pairs as others may look at them.

use super::{Engine, QpEntry};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::net::IpAddr;

/// A queue pair at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QpSnapshot {
    /// Its number.
    pub qpn: u32,
    /// Its type, as [`QpType::name`](qp::QpType::name) has it.
    pub qp_type: Cow<'static, str>,
    /// Its state, as [`QpState::name`](qp::QpState::name) has it.
    pub state: Cow<'static, str>,
    /// Address and queue pair of the peer that it is connected to.
    pub peer: Option<(IpAddr, u32)>,
    /// The PSN that it sends next.
    pub next_psn: u32,
    /// The oldest PSN that the peer has not acknowledged.
    pub unacked_psn: u32,
    /// The PSN that it expects next.
    pub expected_psn: u32,
    /// Send work requests that have not completed.
    pub sends: usize,
    /// Receive work requests that have not completed.
    pub recvs: usize,
    /// Retransmissions that are left.
    pub retries_left: u8,
    /// Waits for a receive at the peer that are left; 7 for without end.
    pub rnr_retries_left: u8,
    /// Why it failed, if it did.
    pub last_failure: Option<String>,
}

impl QpEntry {
    /// The queue pair as it is now.
    pub(super) fn snapshot(&self) -> QpSnapshot {
        let qp = &self.qp;
        let (retries_left, rnr_retries_left) = qp.retries_left();
        QpSnapshot {
            qpn: qp.qpn().value(),
            qp_type: qp.config().qp_type.name().into(),
            state: qp.state().name().into(),
            peer: self.remote.map(|remote| (remote.address, qp.dest_qpn().value())),
            next_psn: qp.next_psn().value(),
            unacked_psn: qp.unacked_psn().value(),
            expected_psn: qp.expected_psn().value(),
            sends: qp.sends_outstanding(),
            recvs: qp.recvs_outstanding(),
            retries_left,
            rnr_retries_left,
            last_failure: qp.failure().map(ToString::to_string),
        }
    }
}

impl Engine {
    /// The first `most` queue pairs as they are now, and how many more there are.
    #[must_use]
    pub fn snapshots(&self, most: usize) -> (Vec<QpSnapshot>, usize) {
        let first = self.qps.iter().flatten().take(most).map(|entry| entry.snapshot());
        (first.collect(), self.live.saturating_sub(most))
    }
}
