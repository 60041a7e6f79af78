//! What an endpoint tells the program.

use crate::params::{Query, Request, Resolved, Response};
use crate::{ConnectionId, QueryId, ResolutionId};
use qp::wire::mad::cm::{Attribute, RejReason, SidrStatus, Subject};
use qp::{Gid, Qpn};
use std::fmt;

/// Something that happened to a connection or a resolution.
///
/// A connection begins with [`ConnectRequest`](Self::ConnectRequest) or a call of
/// [`connect`](crate::Endpoint::connect). It then has at most one [`Established`](Self::Established), and exactly one
/// of [`Rejected`](Self::Rejected), [`Failed`](Self::Failed) and [`Disconnected`](Self::Disconnected), unless the
/// program destroys or rejects it first. After the first two, its ID means nothing any more; after the third, that is
/// so from [`TimeWaitExit`](Self::TimeWaitExit).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer asks for a connection. Answer with [`accept`](crate::Endpoint::accept) or
    /// [`reject`](crate::Endpoint::reject).
    ConnectRequest {
        /// The new connection.
        connection: ConnectionId,
        /// What the peer asks for.
        request: Box<Request>,
    },
    /// The peer accepts. Set up the queue pair, then call [`establish`](crate::Endpoint::establish).
    ConnectResponse {
        /// The connection.
        connection: ConnectionId,
        /// What the peer answered.
        response: Box<Response>,
    },
    /// On the passive side: the peer is ready, or the program told of a packet of it.
    Established {
        /// The connection.
        connection: ConnectionId,
        /// Private data of the RTU, padded with zeros to 224 bytes; empty if a packet came first.
        private_data: Box<[u8]>,
    },
    /// The peer refused. The connection is gone.
    Rejected {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        rejection: Box<Rejection>,
    },
    /// The connection could not be established. It is gone.
    Failed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        cause: FailCause,
    },
    /// The connection has ended. If the peer asked for it, answer with
    /// [`disconnect`](crate::Endpoint::disconnect) or [`destroy`](crate::Endpoint::destroy).
    Disconnected {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        cause: DisconnectCause,
    },
    /// Packets of the connection are no longer in the network; its queue pair may be used for another one.
    TimeWaitExit {
        /// The connection.
        connection: ConnectionId,
    },
    /// A REQ names the remote queue pair of this connection, so that the peer may have lost the connection. See
    /// [`StalePolicy`](crate::StalePolicy).
    StaleSuspected {
        /// The connection.
        connection: ConnectionId,
        /// Its peer.
        remote: Gid,
        /// The peer's queue pair.
        remote_qpn: Qpn,
    },
    /// A peer wants to know the queue pair of a service. Answer with [`reply`](crate::Endpoint::reply).
    ResolveRequest {
        /// The query.
        query: QueryId,
        /// What the peer asks for.
        request: Box<Query>,
    },
    /// A service was resolved. The resolution is gone.
    Resolved {
        /// The resolution.
        resolution: ResolutionId,
        /// What the peer answered.
        resolved: Box<Resolved>,
    },
    /// A service was not resolved. The resolution is gone.
    NotResolved {
        /// The resolution.
        resolution: ResolutionId,
        /// The status of the peer's answer; `None` if there was none.
        status: Option<SidrStatus>,
        /// Private data of the answer, padded with zeros to 136 bytes.
        private_data: Box<[u8]>,
    },
}

/// A message that nobody has answered yet. It is sent again, and no event tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Silence {
    /// The address of the peer.
    pub peer: Gid,
    /// The message.
    pub message: Attribute,
    /// How often it may be sent after this time.
    pub left: u8,
}

/// One sentence for the program's user, such as "10.0.0.2 has not answered the REQ, which is sent again, up to 15 times".
impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, message, left } = self;
        let times = u16::from(*left) + 1;
        write!(
            f,
            "{} has not answered the {}, which is sent again, up to {times} times",
            peer.ip(),
            message.name()
        )
    }
}

/// A rejection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// The message that was rejected.
    pub message: Subject,
    /// The reason.
    pub reason: RejReason,
    /// Additional information about the reason.
    pub info: Box<[u8]>,
    /// Private data, padded with zeros to 148 bytes.
    pub private_data: Box<[u8]>,
}

/// One sentence for the program's user, such as "Nobody listens for this service ID (reject reason 8)".
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (reject reason {})", self.reason.meaning().trim_end_matches('.'), self.reason.code())
    }
}

/// Why a connection was not established although the peer did not reject it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailCause {
    /// The peer did not answer a message, although it was repeated.
    Unreachable {
        /// The message.
        message: Attribute,
    },
    /// The program did not answer the request while the peer was waiting.
    Expired,
    /// The queue pair of this side cannot be set up for what the peer accepted. The peer was told.
    QueuePair,
    /// The request made room for a newer one; see [`Limits`](crate::Limits).
    Evicted,
}

impl fmt::Display for FailCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { message } => write!(f, "The peer does not answer the {}", message.name()),
            Self::Expired => f.write_str("The request was not answered in time"),
            Self::QueuePair => f.write_str("The queue pair of this side cannot be set up for it"),
            Self::Evicted => f.write_str("Too many requests of unproven sources are waiting"),
        }
    }
}

/// Why a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DisconnectCause {
    /// The peer sent DREQ.
    Peer,
    /// The program disconnected, and the peer answered.
    Answered,
    /// The program disconnected, and the peer did not answer.
    Unanswered,
    /// The peer sent REJ after this side was established.
    Rejected(RejReason),
}

impl fmt::Display for DisconnectCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer => f.write_str("The peer closed the connection"),
            Self::Answered => f.write_str("This side closed the connection"),
            Self::Unanswered => f.write_str("This side closed the connection; the peer did not answer"),
            Self::Rejected(reason) => write!(f, "The peer gave the connection up: {}", reason.meaning()),
        }
    }
}
