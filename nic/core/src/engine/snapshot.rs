//! Snapshots of queue pairs for observers.

use super::{Engine, QpEntry};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::net::IpAddr;

/// The state of a queue pair at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QpSnapshot {
    /// Its number.
    pub qpn: u32,
    /// Its type, as named by [`QpType::name`](qp::QpType::name).
    pub qp_type: Cow<'static, str>,
    /// Its state, as named by [`QpState::name`](qp::QpState::name).
    pub state: Cow<'static, str>,
    /// Address and queue pair number of the peer that it is connected to.
    pub peer: Option<(IpAddr, u32)>,
    /// The next PSN to send.
    pub next_psn: u32,
    /// The oldest unacknowledged PSN.
    pub unacked_psn: u32,
    /// The next expected PSN.
    pub expected_psn: u32,
    /// Outstanding send work requests.
    pub sends: usize,
    /// Outstanding receive work requests.
    pub recvs: usize,
    /// Remaining retries.
    pub retries_left: u8,
    /// Remaining RNR retries; 7 means unlimited.
    pub rnr_retries_left: u8,
    /// Why it failed, if it did.
    pub last_failure: Option<String>,
}

impl QpEntry {
    /// Takes a snapshot of the queue pair.
    pub(super) fn snapshot(&self) -> QpSnapshot {
        let qp = &self.qp;
        let (retries_left, rnr_retries_left) = qp.retries_left();
        QpSnapshot {
            qpn: qp.qpn().value(),
            qp_type: qp.config().qp_type.name().into(),
            state: qp.state().name().into(),
            peer: self.path.map(|path| (path.ip.dst, qp.dest_qpn().value())),
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
    /// Takes snapshots of the first `most` queue pairs; also returns the number of those left out.
    #[must_use]
    pub fn snapshots(&self, most: usize) -> (Vec<QpSnapshot>, usize) {
        let first = self.qps.iter().flatten().take(most).map(|entry| entry.snapshot());
        (first.collect(), self.live.saturating_sub(most))
    }
}
