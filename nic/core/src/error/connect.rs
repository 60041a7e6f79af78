//! Why a connection is not made.

use crate::engine::ModifyQpError;
use crate::verbs::cm::PortError;
use cm::{CallError, DisconnectCause, FailCause, RejReason, Rejection, SidrStatus};
use std::net::{IpAddr, SocketAddr};
use thiserror::Error;

/// Why a connection is not made, or a service not resolved.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ConnectError {
    /// The host answers, but no program listens there.
    #[error("nobody listens on {to} (reject reason 8): start the server first, or check the port")]
    NobodyListens {
        /// Where to.
        to: SocketAddr,
    },
    /// The peer's program refuses the connection, or its connection manager does.
    #[error("{to} refuses the connection: {rejection}")]
    Refused {
        /// Where to.
        to: SocketAddr,
        /// What it says.
        rejection: Box<Rejection>,
    },
    /// The peer does not answer, although the message was repeated.
    #[error(
        "{to} does not answer: check the address, that a program with an RDMA device is running there, and that UDP port 4791 is open on the way"
    )]
    Unreachable {
        /// Where to.
        to: SocketAddr,
    },
    /// The connection was given up on this side.
    #[error("the connection to {to} is given up: {cause}")]
    Failed {
        /// Where to.
        to: SocketAddr,
        /// Why.
        cause: FailCause,
    },
    /// The connection is over already.
    #[error("the connection to {to} is over: {cause}")]
    Over {
        /// Where to.
        to: SocketAddr,
        /// Why.
        cause: DisconnectCause,
    },
    /// The host answers, but no program receives datagrams there.
    #[error("nobody receives datagrams on {to} (status 1): start the receiver first, or check the port")]
    NobodyReceives {
        /// Where to.
        to: SocketAddr,
    },
    /// The service exists, but its program names no queue pair.
    #[error("the program at {to} refuses datagrams ({status})")]
    NoService {
        /// Where to.
        to: SocketAddr,
        /// The status of the answer.
        status: SidrStatus,
    },
    /// The address is of the other IP family.
    #[error("the port's address is {ours}, which cannot reach {theirs}: both must be IPv4 or both IPv6")]
    Family {
        /// Address of the port.
        ours: IpAddr,
        /// Address of the peer.
        theirs: IpAddr,
    },
    /// No port of this side.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The queue pair cannot be set up.
    #[error(transparent)]
    QueuePair(#[from] ModifyQpError),
    /// The connection manager refuses the call.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl ConnectError {
    /// A rejection by the peer.
    #[must_use]
    pub fn rejected(to: SocketAddr, rejection: Box<Rejection>) -> Self {
        match rejection.reason {
            RejReason::InvalidServiceId => Self::NobodyListens { to },
            _ => Self::Refused { to, rejection },
        }
    }

    /// A failure on this side.
    #[must_use]
    pub const fn failed(to: SocketAddr, cause: FailCause) -> Self {
        match cause {
            FailCause::Unreachable { .. } => Self::Unreachable { to },
            cause => Self::Failed { to, cause },
        }
    }

    /// A service that was not resolved, by the status of the answer, if there was one.
    #[must_use]
    pub const fn not_resolved(to: SocketAddr, status: Option<SidrStatus>) -> Self {
        match status {
            None => Self::Unreachable { to },
            Some(SidrStatus::Unsupported) => Self::NobodyReceives { to },
            Some(status) => Self::NoService { to, status },
        }
    }
}
