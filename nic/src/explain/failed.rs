//! The lines about queue pairs.

use super::refusals::run_dir;
use crate::doctor::port_holders;
use crate::engine::{DropReason, QpSnapshot};
use crate::net::interfaces;
use crate::process::find_queue_pair;
use qp::Qpn;
use qp::queue_pair::{Failure, FailureContext};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// One end of a connection, or the sender of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) address: IpAddr,
    pub(crate) qpn: Qpn,
}

impl End {
    pub(crate) fn key(self) -> (IpAddr, u32) {
        (self.address, self.qpn.value())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} queue pair {}", self.address, self.qpn)
    }
}

/// A work request of this side that failed.
pub(crate) struct Failed {
    pub(crate) own: End,
    pub(crate) peer: Option<End>,
    pub(crate) failure: Failure,
    pub(crate) view: PeerView,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { status, wr_id, operation, .. } = self.failure;
        write!(f, "queue pair {}", self.own.qpn)?;
        if let Some(peer) = self.peer {
            write!(f, " to {peer}")?;
        }
        if let Some(wr_id) = wr_id {
            write!(f, ": wr_id {wr_id}")?;
        }
        if let Some(operation) = operation {
            write!(f, ", {operation}")?;
        }
        let code = self.failure.vendor_code();
        write!(f, ": {status} (vendor_err {code}): {}{}", self.failure.reason(), self.view)
    }
}

/// A request of the peer that this side refused.
pub(crate) struct Refusing {
    pub(crate) own: End,
    pub(crate) peer: Option<End>,
    pub(crate) failure: Failure,
}

impl Refusing {
    /// The reason, for the peer.
    pub(crate) fn reason(&self) -> String {
        let FailureContext::ServingRequest(why) = self.failure.context else { return String::new() };
        let mut text = why.to_string();
        if let Some(access) = self.failure.access {
            text = access.to_string();
        }
        text
    }
}

impl fmt::Display for Refusing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {}: ", self.own.qpn)?;
        if let Some(peer) = self.peer {
            write!(f, "peer {peer}: ")?;
        }
        let code = self.failure.vendor_code();
        let operation = self.failure.operation.unwrap_or("request");
        write!(f, "{operation} refused (vendor_err {code}): {}", self.reason())?;
        if let Some(wr_id) = self.failure.wr_id {
            write!(f, "; its receive, wr_id {wr_id}, completes with {}", self.failure.status)?;
        }
        Ok(())
    }
}

/// A queue pair whose peer has not posted a receive, and which retries forever.
pub(crate) struct Stalled {
    pub(crate) own: End,
    pub(crate) peer: Option<End>,
    pub(crate) waited: Duration,
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {}", self.own.qpn)?;
        if let Some(peer) = self.peer {
            write!(f, " to {peer}")?;
        }
        let waited = self.waited.as_secs();
        write!(f, ": no receive posted at the peer for {waited} s, and rnr_retry 7 waits without end")
    }
}

/// A packet that a queue pair dropped without telling the sender.
pub(crate) struct Dropped {
    pub(crate) own: End,
    pub(crate) peer: End,
    pub(crate) reason: DropReason,
    /// The Q_Key of the packet and that of the queue pair, if they differ.
    pub(crate) qkeys: Option<(u32, u32)>,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {}: a message from {} is lost: ", self.own.qpn, self.peer)?;
        match (self.reason, self.qkeys) {
            (_, Some((came, wanted))) => {
                write!(f, "its Q_Key is {came:#010x}, and that of the queue pair {wanted:#010x}")
            }
            (DropReason::NoReceive, _) => f.write_str("no receive is posted"),
            (reason, _) => f.write_str(reason.explain()),
        }
    }
}

/// What this side can find out about a peer without asking it.
#[derive(Default)]
pub(crate) enum PeerView {
    /// Nothing.
    #[default]
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
    pub(crate) fn elsewhere(peer: End) -> Self {
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
