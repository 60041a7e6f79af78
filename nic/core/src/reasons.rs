//! Why queue pairs fail: values that the engine reports, for programs that ask for explanations.
//!
//! Nothing is printed here. Whoever runs devices decides what becomes of a reason, and installs a [`Sink`]. Without one
//! a failure costs one additional load, and success nothing.

use crate::engine::{DropReason, QpSnapshot};
use qp::Qpn;
use qp::queue_pair::{Failure, FailureContext, Refused};
use std::fmt;
use std::net::IpAddr;
use std::sync::OnceLock;
use time::Duration;

/// Takes reasons.
pub trait Sink: Sync {
    /// Takes a reason. The caller holds the lock of a port.
    fn take(&self, reason: Reason<'_>);
}

static SINK: OnceLock<&'static dyn Sink> = OnceLock::new();

/// Reports reasons to `sink` from now on. Only the first sink of a process counts.
pub fn report_to(sink: &'static dyn Sink) {
    let _ = SINK.set(sink);
}

/// Whether anybody wants reasons.
#[inline]
pub fn are_wanted() -> bool {
    SINK.get().is_some()
}

/// Reports a reason.
pub fn report(reason: Reason<'_>) {
    if let Some(sink) = SINK.get() {
        sink.take(reason);
    }
}

/// Why something failed.
pub enum Reason<'a> {
    /// A work request of this side.
    Failed(Failed),
    /// A request of the peer.
    Refusing(Refusing),
    /// The peer lacks a receive.
    Stalled(Stalled),
    /// A packet was dropped.
    Dropped(Dropped),
    /// Anything else: its kind, and a line about it.
    Other(&'static str, fmt::Arguments<'a>),
}

/// One end of a connection, or the sender of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// The address of its port.
    pub address: IpAddr,
    /// Its queue pair number.
    pub qpn: Qpn,
}

impl End {
    /// The two as one value to look things up by.
    #[must_use]
    pub fn key(self) -> (IpAddr, u32) {
        (self.address, self.qpn.value())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} queue pair {}", self.address, self.qpn)
    }
}

/// A work request of this side that failed.
pub struct Failed {
    /// The queue pair.
    pub own: End,
    /// Its peer, if it is connected.
    pub peer: Option<End>,
    /// What failed, and why.
    pub failure: Failure,
    /// If the peer's address is that of this device and nobody answers: the queue pair that should, if it exists.
    pub itself: Option<Option<QpSnapshot>>,
}

/// A request of the peer that this side refused.
pub struct Refusing {
    /// The queue pair of this side.
    pub own: End,
    /// Its peer, if it is connected.
    pub peer: Option<End>,
    /// What was refused, and why.
    pub failure: Failure,
}

impl Refusing {
    /// The reason, for the peer.
    #[must_use]
    pub fn reason(&self) -> String {
        let FailureContext::ServingRequest(why) = self.failure.context else { return String::new() };
        match self.failure.access {
            // The key is one of this side, in the list of a receive.
            Some(access) if why == Refused::ReceiveBuffer => format!("{why}: {access}"),
            Some(access) => access.to_string(),
            None => why.to_string(),
        }
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
pub struct Stalled {
    /// The queue pair of this side.
    pub own: End,
    /// Its peer.
    pub peer: Option<End>,
    /// How long it has waited.
    pub waited: Duration,
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
pub struct Dropped {
    /// The queue pair that dropped it.
    pub own: End,
    /// Its sender.
    pub peer: End,
    /// Why.
    pub reason: DropReason,
    /// The Q_Key of the packet and that of the queue pair, if they differ.
    pub qkeys: Option<(u32, u32)>,
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
