//! What can go wrong with a queue pair: misuse by the program, and packets without effect. [`Failure`](super::Failure)
//! says what failures of the connection are.

use crate::attr::{QpState, QpType};
use thiserror::Error;

/// Why a work request was not accepted. Nothing was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PostError {
    /// The queue is full.
    #[error("the {queue} queue is full: {max} work requests are outstanding; poll completions first")]
    QueueFull {
        /// "send" or "receive".
        queue: &'static str,
        /// Its size.
        max: u32,
    },
    /// Work cannot be posted in this state.
    #[error("cannot post to the {queue} queue in state {}: it takes {needed} or later", state.name())]
    State {
        /// "send" or "receive".
        queue: &'static str,
        /// The state of the queue pair.
        state: QpState,
        /// The first state in which posting works.
        needed: &'static str,
    },
    /// Too many scatter/gather elements.
    #[error("{given} scatter/gather elements, but the queue pair was created for {max}")]
    TooManySges {
        /// Elements of the request.
        given: usize,
        /// As created.
        max: u32,
    },
    /// Too much inline data.
    #[error("{given} bytes of inline data, but the queue pair was created for {max}")]
    TooMuchInline {
        /// Bytes of the request.
        given: usize,
        /// As created.
        max: u32,
    },
    /// The queue pair receives through a shared receive queue.
    #[error("this queue pair receives through its shared receive queue: post there")]
    UsesSharedReceiveQueue,
    /// An operation whose result has to be stored was given inline data instead of a place for it.
    #[error("{operation} brings data, so it needs registered memory to put it into; inline data is none")]
    InlineResult {
        /// The operation.
        operation: &'static str,
    },
    /// The request names the wrong kind of receiver.
    #[error("a send on {} queue pairs needs {needed}", qp_type.name())]
    Destination {
        /// The type of the queue pair.
        qp_type: QpType,
        /// What has to be given.
        needed: &'static str,
    },
    /// This type of queue pair has no such queue.
    #[error("{} queue pairs have no {queue} queue", qp_type.name())]
    NoQueue {
        /// "send" or "receive".
        queue: &'static str,
        /// The type of the queue pair.
        qp_type: QpType,
    },
    /// This type of queue pair has no such operation, or this device does not offer it.
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
    /// The queue pair is in a state that takes no such packets.
    State,
    /// The opcode belongs to another service than the queue pair's.
    Service,
    /// A duplicate READ or atomic whose answer is not kept any more (IBTA C9-105 ff.: never answered by a NAK).
    StaleDuplicate,
    /// A request ahead of the expected PSN after the NAK was sent, or while a receiver-not-ready NAK stands.
    OutOfSequence,
    /// A response that no outstanding request explains.
    Ghost,
    /// An acknowledgement with a reserved syndrome.
    ReservedSyndrome,
    /// A datagram whose Q_Key is not that of the queue pair (IBTA 9.6.1.4.1).
    QKey,
    /// A message over an unreliable service that found no receive work request (IBTA C9-205).
    NoReceive,
    /// A packet of a message over an unreliable service that cannot be delivered: it comes after a gap, breaks a rule,
    /// or is too long for its receive (IBTA 9.8.2).
    Unreliable,
}
