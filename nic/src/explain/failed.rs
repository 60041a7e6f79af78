//! What a process says about a work request that failed.

use super::refusals::{run_dir, told_by};
use crate::doctor::port_holders;
use crate::net::interfaces;
use crate::process::find_queue_pair;
use qp::queue_pair::{Failure, FailureContext, PeerRefusal};
use rnic_core::engine::QpSnapshot;
use rnic_core::reasons::{End, Failed};
use std::fmt;

/// The line about a work request of this side that failed.
pub(super) struct FailedLine {
    failed: Failed,
    view: PeerView,
}

impl FailedLine {
    /// Finds out what it can about the peer.
    pub(super) fn new(mut failed: Failed) -> Self {
        let itself = failed.itself.take();
        let view = match (failed.peer, failed.failure.context) {
            (None, _) => PeerView::Unknown,
            (_, FailureContext::PeerRefused(PeerRefusal::BadResponse(_))) => PeerView::Unknown,
            (Some(peer), FailureContext::PeerRefused(_)) => {
                told_by(peer.key(), failed.own.key()).map_or(PeerView::Silent, PeerView::Told)
            }
            (Some(peer), FailureContext::AwaitingResponse(_)) => match itself {
                Some(seen) => PeerView::Itself(peer, seen),
                None => PeerView::elsewhere(peer),
            },
            _ => PeerView::Unknown,
        };
        Self { failed, view }
    }
}

impl fmt::Display for FailedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failed { own, peer, failure, .. } = &self.failed;
        let Failure { status, wr_id, operation, .. } = *failure;
        write!(f, "queue pair {}", own.qpn)?;
        if let Some(peer) = peer {
            write!(f, " to {peer}")?;
        }
        if let Some(wr_id) = wr_id {
            write!(f, ": wr_id {wr_id}")?;
        }
        if let Some(operation) = operation {
            write!(f, ", {operation}")?;
        }
        let code = failure.vendor_code();
        write!(f, ": {status} (vendor_err {code}): {}{}", failure.reason(), self.view)
    }
}

/// What this side can find out about a peer without asking it.
enum PeerView {
    /// Nothing.
    Unknown,
    /// It published why it refused a request.
    Told(String),
    /// It runs on this host, but does not explain its refusals.
    Silent,
    /// Its address is this device's own. Includes the queue pair, if it exists.
    Itself(End, Option<QpSnapshot>),
    /// Another program of this user has its address. Includes the queue pair, if it exists.
    Program { peer: End, pid: u32, comm: String, queue_pair: Option<QpSnapshot> },
    /// Its address is on this host, but no process serves it.
    Nobody(End),
}

impl PeerView {
    /// Looks for a peer that does not answer and whose address differs from this device's.
    fn elsewhere(peer: End) -> Self {
        if let Some(run_dir) = run_dir()
            && let Some(found) = find_queue_pair(&run_dir, peer.address, peer.qpn.value())
        {
            let (pid, comm, queue_pair) = found;
            return Self::Program { peer, pid, comm, queue_pair };
        }
        let is_here = interfaces().is_ok_and(|all| all.iter().any(|interface| interface.has(peer.address)));
        let is_served =
            || port_holders().map_or(true, |all| all.iter().any(|holder| holder.blocks(peer.address)));
        if is_here && !is_served() { Self::Nobody(peer) } else { Self::Unknown }
    }
}

/// The state of the queue pair that should answer, as a hint why it does not.
struct Oddity<'a>(End, &'a Option<QpSnapshot>);

impl fmt::Display for Oddity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(End { qpn, .. }, seen) = self;
        let Some(seen) = seen else { return write!(f, "has no queue pair {qpn}") };
        write!(f, "has queue pair {qpn} in {}", seen.state)?;
        match seen.peer {
            None => f.write_str(", connected to nobody")?,
            Some((address, number)) => write!(f, ", connected to {address} queue pair {number:#08x}")?,
        }
        write!(f, ", and expects PSN {}", seen.expected_psn)?;
        // Only its own process, and the peers that it tells, may know the reason: see the module documentation of
        // `explain`.
        if seen.last_failure.is_some() { f.write_str("; it has failed") } else { Ok(()) }
    }
}

impl fmt::Display for PeerView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => Ok(()),
            Self::Told(reason) => write!(f, ". The peer says: {reason}"),
            Self::Silent => f.write_str(
                ". The peer's standard error says why, if it is rnic and runs with RNIC_EXPLAIN=1",
            ),
            Self::Itself(end, seen) => {
                let address = end.address;
                write!(
                    f,
                    ". The peer's address {address} is that of this device, which {}",
                    Oddity(*end, seen)
                )
            }
            Self::Program { peer, pid, comm, queue_pair } => {
                write!(
                    f,
                    ". {comm} (pid {pid}) has the address {}, and {}",
                    peer.address,
                    Oddity(*peer, queue_pair)
                )
            }
            Self::Nobody(End { address, .. }) => {
                write!(
                    f,
                    ". The peer's address {address} is on this host, and no program serves UDP port 4791 there"
                )
            }
        }
    }
}
