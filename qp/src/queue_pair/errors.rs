//! Errors of a queue pair: API misuse, dropped packets, and connection failures.

use crate::attr::{QpState, QpType};
use crate::ids::Psn;
use crate::memory::{AccessError, BindError};
use crate::work::WcStatus;
use std::fmt;
use thiserror::Error;

/// Why a work request was rejected. Nothing was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PostError {
    /// The queue is full.
    #[error("the {queue} queue is full: {max} work requests are outstanding; poll completions first")]
    QueueFull {
        /// "send" or "receive".
        queue: &'static str,
        /// The capacity of the queue.
        max: u32,
    },
    /// The queue pair's state does not allow posting.
    #[error("cannot post to the {queue} queue in state {}: the queue pair must be in {needed} or later", state.name())]
    State {
        /// "send" or "receive".
        queue: &'static str,
        /// The state of the queue pair.
        state: QpState,
        /// The first state that allows posting.
        needed: &'static str,
    },
    /// Too many scatter/gather elements.
    #[error("{given} scatter/gather elements; the queue pair was created with a maximum of {max}")]
    TooManySges {
        /// Number of elements in the request.
        given: usize,
        /// The maximum set at creation.
        max: u32,
    },
    /// Too much inline data.
    #[error("{given} bytes of inline data; the queue pair was created with a maximum of {max}")]
    TooMuchInline {
        /// Length of the inline data in bytes.
        given: usize,
        /// The maximum set at creation.
        max: u32,
    },
    /// The queue pair receives through a shared receive queue.
    #[error("this queue pair receives through its shared receive queue: post there instead")]
    UsesSharedReceiveQueue,
    /// An operation that returns data was given inline data instead of a buffer for the result.
    #[error("{operation} returns data and needs a registered buffer for it; it cannot use inline data")]
    InlineResult {
        /// The operation.
        operation: &'static str,
    },
    /// The destination does not fit the queue pair type.
    #[error("a send on {} queue pairs needs {needed}", qp_type.name())]
    Destination {
        /// The type of the queue pair.
        qp_type: QpType,
        /// The destination that the type requires.
        needed: &'static str,
    },
    /// The queue pair type does not have this queue.
    #[error("{} queue pairs have no {queue} queue", qp_type.name())]
    NoQueue {
        /// "send" or "receive".
        queue: &'static str,
        /// The type of the queue pair.
        qp_type: QpType,
    },
    /// The queue pair type does not have this operation, or the device does not support it.
    #[error("{operation} is not supported on {} queue pairs", qp_type.name())]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The type of the queue pair.
        qp_type: QpType,
    },
}

/// Why a packet that reached the queue pair was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PacketDrop {
    /// The queue pair's state does not accept such packets.
    State,
    /// The opcode belongs to a different service than the queue pair's.
    Service,
    /// A duplicate READ or atomic whose response is no longer kept (IBTA C9-105 ff.: never answered with a NAK).
    StaleDuplicate,
    /// A request ahead of the expected PSN, after the NAK was sent or while an RNR NAK is in effect.
    OutOfSequence,
    /// A response that matches no outstanding request.
    Ghost,
    /// An acknowledgement with a reserved syndrome.
    ReservedSyndrome,
    /// The datagram's Q_Key is not the queue pair's (IBTA 9.6.1.4.1).
    QKey,
    /// A message on an unreliable service found no receive posted (IBTA C9-205).
    NoReceive,
    /// A packet of a message on an unreliable service cannot be delivered: it follows a gap, breaks a rule, or is
    /// too long for its receive (IBTA 9.8.2).
    Unreliable,
}

/// Why a queue pair entered the error state, in more detail than a completion status provides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The completion status that was, or would have been, reported.
    pub status: WcStatus,
    /// PSN of the packet that caused the failure.
    pub psn: Psn,
    /// The operation that failed.
    pub context: FailureContext,
    /// The memory access rule that was broken, if any.
    pub access: Option<AccessError>,
}

/// The operation of the queue pair that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureContext {
    /// Preparing a work request that can never be sent: the message is too long, or a READ or atomic has no
    /// initiator depth.
    Starting,
    /// Reading the payload of an outgoing message.
    GatheringPayload,
    /// Writing response data into local memory.
    ScatteringResponse,
    /// Binding a memory window.
    Binding(BindError),
    /// Invalidating a local key.
    Invalidating,
    /// Waiting for a response.
    AwaitingResponse,
    /// Executing a request from the peer.
    ServingRequest(&'static str),
    /// The peer answered with a NAK.
    PeerRefused(&'static str),
}

impl Failure {
    /// The code of the broken memory access rule, which completions carry as `vendor_err`; 0 if no rule was broken.
    #[must_use]
    pub fn vendor_code(&self) -> u32 {
        match self.context {
            FailureContext::Binding(error) => error.vendor_code(),
            _ => self.access.map_or(0, AccessError::vendor_code),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at PSN {}: ", self.status, self.psn)?;
        match self.context {
            FailureContext::Starting => f.write_str("a work request that cannot be sent")?,
            FailureContext::GatheringPayload => f.write_str("the payload of a request could not be read")?,
            FailureContext::ScatteringResponse => f.write_str("a response could not be stored")?,
            FailureContext::Binding(error) => {
                return write!(f, "a memory window could not be bound: {error}");
            }
            FailureContext::Invalidating => f.write_str("a key could not be invalidated")?,
            FailureContext::AwaitingResponse => f.write_str("the peer did not answer")?,
            FailureContext::ServingRequest(what) => write!(f, "the peer's request was refused: {what}")?,
            FailureContext::PeerRefused(what) => write!(f, "the peer refused the request: {what}")?,
        }
        if let Some(access) = self.access {
            write!(f, "; {access}")?;
        }
        Ok(())
    }
}
