//! Errors of a queue pair: API misuse, dropped packets, and connection failures.

use crate::attr::{QpState, QpType};
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
    /// A request ahead of the expected PSN, after the NAK was sent or while an RNR NAK is in effect. With selective repeat, a
    /// request or a response beyond a gap that there is no room for.
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
