//! Why a queue pair failed, in more detail than the status of a completion can tell.

use super::vendor::VendorError;
use crate::ids::Psn;
use crate::memory::{Access, AccessError, BindError};
use crate::wire::opcode::Operation as WireOperation;
use crate::work::WcStatus;
use std::fmt;
use thiserror::Error;
use time::Duration;

/// Why a queue pair failed. The first failure counts: what is flushed after it has no reason of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The status that was or would have been reported.
    pub status: WcStatus,
    /// PSN of the packet at fault.
    pub psn: Psn,
    /// What the queue pair was doing.
    pub context: FailureContext,
    /// The memory rule that was broken, if it was one.
    pub access: Option<AccessError>,
    /// The work request that completed with the status; `None` where no completion reports it.
    pub wr_id: Option<u64>,
    /// The operation that failed, as verbs spell it: of this side's work request, or of the peer's.
    pub operation: Option<&'static str>,
}

/// What the queue pair was doing when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureContext {
    /// Preparing a work request that can never be sent.
    Starting(Unsendable),
    /// Reading the payload of an outgoing message.
    GatheringPayload,
    /// Writing a response into local memory.
    ScatteringResponse,
    /// Binding a memory window.
    Binding(BindError),
    /// Invalidating a key of this side.
    Invalidating,
    /// Waiting for an answer.
    AwaitingResponse(Silence),
    /// Waiting for the peer to post a receive: how long, since it first said that it has none.
    AwaitingReceive(Duration),
    /// Executing a request of the peer.
    ServingRequest(Refused),
    /// The peer answered with a NAK.
    PeerRefused(PeerRefusal),
}

/// Why a work request can never be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unsendable {
    /// It is longer than a message may be.
    #[error("the message has {0} bytes, and one can have 2^31 at most")]
    TooLong(u64),
    /// An operation on 8 bytes has buffers of another length.
    #[error("the operation works on 8 bytes, but its buffers have {0}")]
    NotEightBytes(u64),
    /// READs and atomics need initiator depth.
    #[error("max_rd_atomic of the queue pair is 0, so it cannot send READs or atomics")]
    NoInitiatorDepth,
}

/// What was heard of a peer that does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Silence {
    /// Nothing, since the queue pair is connected.
    #[error("no answer ever came")]
    Never,
    /// Answers to what was sent before.
    #[error("no answer came any more")]
    Stopped,
    /// It asks for a PSN that was never sent.
    #[error(
        "the peer expects PSN {expected}, which this side never sends: sq_psn here and rq_psn there differ"
    )]
    ExpectsPsn {
        /// The PSN that the peer's NAK names.
        expected: Psn,
    },
    /// It acknowledges a PSN that was never sent.
    #[error(
        "the peer acknowledges PSN {acknowledged}, which was never sent: sq_psn here and rq_psn there differ"
    )]
    Acknowledges {
        /// The PSN that the peer's ACK names.
        acknowledged: Psn,
    },
}

/// What a peer's refusal says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PeerRefusal {
    /// NAK "remote access error".
    #[error("remote access error")]
    Access,
    /// NAK "invalid request".
    #[error("invalid request")]
    Invalid,
    /// NAK "remote operational error".
    #[error("remote operational error")]
    Operational,
    /// A response that contradicts the request.
    #[error("{0}")]
    BadResponse(&'static str),
}

/// Why a request of the peer is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Refused {
    /// The packet does not continue the message before it.
    #[error("opcode out of sequence")]
    OutOfPlace,
    /// The operation does not exist here.
    #[error("operation not supported")]
    Unsupported,
    /// The packet is longer or shorter than the path MTU demands.
    #[error("payload length does not fit the path MTU: {len} bytes, with a path MTU of {mtu} here")]
    PacketLength {
        /// Bytes of payload.
        len: usize,
        /// Path MTU of this side, in bytes.
        mtu: u32,
    },
    /// The request names a shared receive queue that does not exist.
    #[error("no such shared receive queue")]
    NoSharedReceive,
    /// The shared receive queue failed.
    #[error("the shared receive queue failed")]
    SharedReceiveFailed,
    /// The message does not fit the receive work request.
    #[error("message longer than the receive buffer: {len} bytes arrived, and the receive has {room}")]
    ReceiveTooShort {
        /// Bytes of the message so far.
        len: u64,
        /// Bytes of the receive work request.
        room: u64,
    },
    /// The buffers of the receive work request cannot be written.
    #[error("the receive buffer cannot be written")]
    ReceiveBuffer,
    /// The queue pair does not allow the operation.
    #[error("it is not enabled on the queue pair, whose qp_access_flags lack {missing}")]
    NotEnabled {
        /// The right that the operation needs.
        missing: Access,
    },
    /// The message is longer than a message may be.
    #[error("message longer than 2^31 bytes")]
    TooLong,
    /// The packets of a message do not add up.
    #[error("payload does not add up to the length in the RETH")]
    LengthMismatch,
    /// Memory cannot be used as asked.
    #[error("remote memory access")]
    Memory,
    /// Memory of a READ went away after the READ was accepted.
    #[error("memory of a READ")]
    ReadMemory,
    /// More is outstanding than this side keeps answers for.
    #[error("more READs and atomics outstanding than max_dest_rd_atomic, which is {max} here")]
    TooManyReads {
        /// `max_dest_rd_atomic` of this side.
        max: usize,
    },
    /// The address of an atomic operation is not a multiple of 8.
    #[error("misaligned atomic")]
    Misaligned,
    /// A header is missing, or has reserved values.
    #[error("{0}")]
    Header(&'static str),
}

impl Refused {
    fn vendor_error(self) -> Option<VendorError> {
        Some(match self {
            Self::OutOfPlace => VendorError::OutOfPlace,
            Self::Unsupported => VendorError::Unsupported,
            Self::PacketLength { .. } => VendorError::PacketLength,
            Self::NoSharedReceive => VendorError::NoSharedReceive,
            Self::SharedReceiveFailed => VendorError::SharedReceiveFailed,
            Self::ReceiveTooShort { .. } => VendorError::ReceiveTooShort,
            Self::NotEnabled { .. } => VendorError::NotEnabled,
            Self::TooLong | Self::LengthMismatch => VendorError::WrongLength,
            Self::TooManyReads { .. } => VendorError::TooManyReads,
            Self::Header(_) => VendorError::BadHeader,
            // The rule of memory that was broken has a number of its own.
            Self::ReceiveBuffer | Self::Memory | Self::ReadMemory | Self::Misaligned => return None,
        })
    }
}

impl Failure {
    /// The number that completions carry as `vendor_err`: that of a [`VendorError`].
    #[must_use]
    pub fn vendor_code(&self) -> u32 {
        let own = match self.context {
            FailureContext::Binding(error) => return error.vendor_code(),
            FailureContext::Starting(Unsendable::TooLong(_)) => Some(VendorError::MessageTooLong),
            FailureContext::Starting(Unsendable::NotEightBytes(_)) => Some(VendorError::NotEightBytes),
            FailureContext::Starting(Unsendable::NoInitiatorDepth) => Some(VendorError::NoInitiatorDepth),
            FailureContext::AwaitingResponse(Silence::Never) => Some(VendorError::NeverAnswered),
            FailureContext::AwaitingResponse(Silence::Stopped) => Some(VendorError::StoppedAnswering),
            FailureContext::AwaitingResponse(_) => Some(VendorError::WrongPsn),
            FailureContext::AwaitingReceive(_) => Some(VendorError::NoReceiveAtPeer),
            FailureContext::PeerRefused(PeerRefusal::Access) => Some(VendorError::PeerDenied),
            FailureContext::PeerRefused(PeerRefusal::Invalid) => Some(VendorError::PeerFoundInvalid),
            FailureContext::PeerRefused(PeerRefusal::Operational) => Some(VendorError::PeerFailed),
            FailureContext::PeerRefused(PeerRefusal::BadResponse(_)) => Some(VendorError::BadResponse),
            FailureContext::ServingRequest(refused) => refused.vendor_error(),
            FailureContext::GatheringPayload
            | FailureContext::ScatteringResponse
            | FailureContext::Invalidating => None,
        };
        own.map(VendorError::code).or(self.access.map(AccessError::vendor_code)).unwrap_or(0)
    }

    /// Whether a request of the peer is what failed.
    #[must_use]
    pub fn is_of_peer(&self) -> bool {
        matches!(self.context, FailureContext::ServingRequest(_))
    }

    /// What is wrong: without the status, the work request and the PSN.
    pub fn reason(&self) -> impl fmt::Display {
        Reason(*self)
    }
}

/// What is wrong with a failure.
struct Reason(Failure);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.context {
            FailureContext::Starting(why) => write!(f, "a work request that cannot be sent: {why}")?,
            FailureContext::GatheringPayload => f.write_str("the payload of a request could not be read")?,
            FailureContext::ScatteringResponse => f.write_str("a response could not be stored")?,
            FailureContext::Binding(error) => {
                return write!(f, "a memory window could not be bound: {error}");
            }
            FailureContext::Invalidating => f.write_str("a key could not be invalidated")?,
            FailureContext::AwaitingResponse(silence) => write!(f, "the peer did not answer: {silence}")?,
            FailureContext::AwaitingReceive(waited) => {
                write!(f, "no receive posted at the peer for {:.1} ms", waited.as_secs_f64() * 1e3)?;
            }
            FailureContext::ServingRequest(why) => write!(f, "the peer's request was refused: {why}")?,
            FailureContext::PeerRefused(what) => write!(f, "the peer refused the request: {what}")?,
        }
        if let Some(access) = self.0.access {
            write!(f, "; {access}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at PSN {}: {}", self.status, self.psn, Reason(*self))
    }
}

/// Something that goes wrong without a completion in error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Notice {
    /// A datagram that no packet holds was not sent, and completed as if it had been (IBTA C10-93.1.1).
    #[error("wr_id {wr_id}: a datagram of {len} bytes is not sent, because the port's MTU is {mtu}")]
    DatagramTooLong {
        /// The work request.
        wr_id: u64,
        /// Its bytes.
        len: u64,
        /// Bytes of the port's MTU.
        mtu: u32,
    },
    /// A datagram met a receive that does not hold it and its 40 bytes of network header.
    #[error("a datagram needs {len} bytes with its GRH of 40 bytes, but the receive has {room}")]
    DatagramReceiveTooShort {
        /// Bytes of the datagram and its GRH.
        len: u64,
        /// Bytes of the receive.
        room: u64,
    },
}

/// The name of the operation that a request packet is part of, as verbs spell that of the work request.
pub(super) fn operation_name(of: WireOperation, has_imm: bool) -> Option<&'static str> {
    Some(match (of, has_imm) {
        (WireOperation::Send, false) => "SEND",
        (WireOperation::Send, true) => "SEND_WITH_IMM",
        (WireOperation::Write, false) => "RDMA_WRITE",
        (WireOperation::Write, true) => "RDMA_WRITE_WITH_IMM",
        (WireOperation::ReadRequest, _) => "RDMA_READ",
        (WireOperation::CompareSwap, _) => "ATOMIC_CMP_AND_SWP",
        (WireOperation::FetchAdd, _) => "ATOMIC_FETCH_AND_ADD",
        (WireOperation::AtomicWrite, _) => "ATOMIC_WRITE",
        (WireOperation::Flush, _) => "FLUSH",
        _ => return None,
    })
}

/// What a requester has heard of a peer whose answers it does not take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Heard {
    /// An answer was taken since the PSNs were set.
    pub(super) answered: bool,
    /// What an answer that was not taken said last.
    pub(super) strange: Option<Silence>,
}

impl Heard {
    /// What there is to say of a peer that does not answer.
    pub(super) fn silence(self) -> Silence {
        match self {
            Self { answered: true, .. } => Silence::Stopped,
            Self { strange, .. } => strange.unwrap_or(Silence::Never),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_number_of_its_reason() {
        let failure = |context, access| Failure {
            status: WcStatus::RemAccessErr,
            psn: Psn::new(7),
            context,
            access,
            wr_id: None,
            operation: None,
        };
        let key = AccessError::UnknownKey { key: 0x12 };
        let silence = FailureContext::AwaitingResponse(Silence::ExpectsPsn { expected: Psn::new(9) });
        assert_eq!(failure(silence, None).vendor_code(), 66);
        let refused = FailureContext::ServingRequest(Refused::Memory);
        assert_eq!(failure(refused, Some(key)).vendor_code(), 1);
        let invalid = FailureContext::ServingRequest(Refused::NotEnabled { missing: Access::REMOTE_WRITE });
        assert_eq!(failure(invalid, None).vendor_code(), 102);
        assert!(failure(invalid, None).to_string().ends_with("qp_access_flags lack REMOTE_WRITE"));
    }
}
