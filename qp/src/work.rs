//! Work requests and work completions.

use crate::attr::AddressVector;
use crate::ids::{QKey, Qpn};
use crate::memory::Bind;
use crate::wire::headers::FethFields;
use bitflags::bitflags;
use std::fmt;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// A scatter/gather element: `length` bytes of local memory at `addr` in the region with `lkey`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_sge")]
pub struct Sge {
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// The local buffers of a work request: the source or the destination of the data.
///
/// One element is the common case and costs no allocation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Gather {
    /// No bytes.
    #[default]
    Empty,
    /// One element.
    One(Sge),
    /// Several elements, in order.
    Many(Box<[Sge]>),
    /// The data itself, copied when the request was posted (`IBV_SEND_INLINE`).
    Inline(Box<[u8]>),
}

impl Gather {
    /// The scatter/gather elements; empty for inline data.
    #[must_use]
    pub fn elements(&self) -> &[Sge] {
        match self {
            Self::Empty | Self::Inline(_) => &[],
            Self::One(sge) => std::slice::from_ref(sge),
            Self::Many(list) => list,
        }
    }

    /// The total length in bytes. It has 64 bits because the sum may exceed the largest message.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            other => other.elements().iter().map(|e| u64::from(e.length)).sum(),
        }
    }

    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<&[Sge]> for Gather {
    fn from(list: &[Sge]) -> Self {
        match list {
            [] => Self::Empty,
            [one] => Self::One(*one),
            many => Self::Many(many.into()),
        }
    }
}

impl From<Sge> for Gather {
    fn from(sge: Sge) -> Self {
        Self::One(sge)
    }
}

/// An address in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// First address, in the peer's address space.
    pub addr: u64,
    /// Remote key, as the peer advertised it.
    pub rkey: u32,
}

/// The operation of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_wr_opcode")]
pub enum Operation {
    /// SEND. `imm` is delivered in the receiver's completion; `invalidate` revokes one of the receiver's keys. They
    /// are mutually exclusive.
    #[doc(alias("IBV_WR_SEND", "IBV_WR_SEND_WITH_IMM", "IBV_WR_SEND_WITH_INV"))]
    Send {
        /// Immediate data, as a number; it is in network byte order on the wire.
        imm: Option<u32>,
        /// Remote key to invalidate at the receiver.
        invalidate: Option<u32>,
    },
    /// RDMA WRITE. With `imm` it consumes a receive at the peer.
    #[doc(alias("IBV_WR_RDMA_WRITE", "IBV_WR_RDMA_WRITE_WITH_IMM"))]
    Write {
        /// The destination.
        remote: Remote,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// RDMA READ.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    Read {
        /// The source.
        remote: Remote,
    },
    /// Atomic compare and swap of 8 bytes; the previous value is written to the local buffer.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    CompareSwap {
        /// The address of the value.
        remote: Remote,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Atomic addition to 8 bytes; the previous value is written to the local buffer.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    FetchAdd {
        /// The address of the value.
        remote: Remote,
        /// Addend.
        add: u64,
    },
    /// ATOMIC_WRITE: stores 8 local bytes at once, after all earlier operations (IBTA annex A19).
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    AtomicWrite {
        /// The destination, a multiple of 8.
        remote: Remote,
    },
    /// FLUSH: completes when earlier writes to a range of the peer's memory have been placed (IBTA annex A19).
    #[doc(alias = "IBV_WR_FLUSH")]
    Flush {
        /// First address and key.
        remote: Remote,
        /// Length in bytes.
        len: u32,
        /// Placement type and selectivity.
        flush: FlushKind,
    },
    /// LOCAL_INV: revokes a local key after all earlier operations are done.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    LocalInvalidate {
        /// The key of a type 2 memory window.
        key: u32,
    },
    /// BIND_MW: binds a memory window.
    #[doc(alias = "IBV_WR_BIND_MW")]
    BindWindow(Bind),
}

/// Placement type and selectivity of a FLUSH (IBTA annex A19).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FlushKind {
    /// Earlier writes become visible to all observers at the peer.
    pub global: bool,
    /// Earlier writes survive a loss of power at the peer.
    pub persistent: bool,
    /// Flush the whole memory region instead of the range.
    pub whole_region: bool,
}

impl From<FlushKind> for FethFields {
    fn from(kind: FlushKind) -> Self {
        let placement =
            if kind.global { Self::GLOBAL } else { 0 } | if kind.persistent { Self::PERSISTENT } else { 0 };
        Self { placement, selectivity: u8::from(kind.whole_region) }
    }
}

impl Operation {
    /// The name that verbs use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send { imm: None, invalidate: None } => "SEND",
            Self::Send { imm: Some(_), .. } => "SEND_WITH_IMM",
            Self::Send { .. } => "SEND_WITH_INV",
            Self::Write { imm: None, .. } => "RDMA_WRITE",
            Self::Write { .. } => "RDMA_WRITE_WITH_IMM",
            Self::Read { .. } => "RDMA_READ",
            Self::CompareSwap { .. } => "ATOMIC_CMP_AND_SWP",
            Self::FetchAdd { .. } => "ATOMIC_FETCH_AND_ADD",
            Self::AtomicWrite { .. } => "ATOMIC_WRITE",
            Self::Flush { .. } => "FLUSH",
            Self::LocalInvalidate { .. } => "LOCAL_INV",
            Self::BindWindow(_) => "BIND_MW",
        }
    }

    /// The immediate data that it carries.
    #[must_use]
    pub const fn imm(self) -> Option<u32> {
        match self {
            Self::Send { imm, .. } | Self::Write { imm, .. } => imm,
            _ => None,
        }
    }

    /// Whether the peer answers each request by itself (READ, atomics, ATOMIC_WRITE and FLUSH): such requests are
    /// limited by `max_rd_atomic` and are what a fence waits for.
    #[must_use]
    pub const fn expects_response(self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::CompareSwap { .. }
                | Self::FetchAdd { .. }
                | Self::AtomicWrite { .. }
                | Self::Flush { .. }
        )
    }

    /// Whether the response carries data for the local buffer.
    #[must_use]
    pub const fn brings_data(self) -> bool {
        matches!(self, Self::Read { .. }) || self.is_atomic()
    }

    /// Whether this is an atomic operation that returns the previous value.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether the operation is local and sends nothing.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalInvalidate { .. } | Self::BindWindow(_))
    }

    /// Whether the operation consumes a receive at the peer, and therefore a credit (IBTA 9.7.7.2).
    #[must_use]
    pub const fn takes_recv(self) -> bool {
        matches!(self, Self::Send { .. } | Self::Write { imm: Some(_), .. })
    }

    /// The opcode of the completion.
    #[must_use]
    pub const fn wc_opcode(self) -> WcOpcode {
        match self {
            Self::Send { .. } => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            Self::Flush { .. } => WcOpcode::Flush,
            Self::LocalInvalidate { .. } => WcOpcode::LocalInv,
            Self::BindWindow(_) => WcOpcode::BindMw,
        }
    }
}

bitflags! {
    /// Flags of a send work request, with the verbs' bits (`IBV_SEND_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[doc(alias = "ibv_send_flags")]
    pub struct SendFlags: u32 {
        /// Start only after all earlier READs and atomics have completed.
        #[doc(alias = "IBV_SEND_FENCE")]
        const FENCE = 1;
        /// Generate a completion on success too.
        #[doc(alias = "IBV_SEND_SIGNALED")]
        const SIGNALED = 1 << 1;
        /// Request an event at the receiver.
        #[doc(alias = "IBV_SEND_SOLICITED")]
        const SOLICITED = 1 << 2;
    }
}

/// The destination of a send work request, where the connection alone does not determine it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Destination {
    /// The peer that the queue pair is connected to.
    #[default]
    Connected,
    /// The receiver of a datagram.
    Datagram {
        /// The path to the receiver, from an address handle.
        path: Arc<AddressVector>,
        /// The receiver's queue pair; [`Qpn::MULTICAST`] for a group.
        qpn: Qpn,
        /// The receiver's Q_Key. If the most significant bit is set, the Q_Key of the sending queue pair is used
        /// instead (IBTA 10.2.5).
        qkey: QKey,
    },
    /// A shared receive queue in the peer's XRC domain.
    XrcSrq(u32),
}

/// A request posted to a send queue.
///
/// ```
/// use qp::{Operation, Remote, SendFlags, SendWr, Sge};
///
/// let data = Sge { addr: 0x1000, length: 64, lkey: 0x11 };
/// let write = Operation::Write { remote: Remote { addr: 0x2000, rkey: 0x22 }, imm: Some(7) };
/// let wr = SendWr::new(1, write, data).flags(SendFlags::SIGNALED | SendFlags::FENCE);
/// assert_eq!(wr.wr_id, 1);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_send_wr")]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub operation: Operation,
    /// Local buffers.
    pub data: Gather,
    /// Flags.
    pub flags: SendFlags,
    /// The destination.
    pub to: Destination,
}

impl SendWr {
    /// An unsignalled request to the connected peer.
    #[must_use]
    pub fn new(wr_id: u64, operation: Operation, data: impl Into<Gather>) -> Self {
        Self { wr_id, operation, data: data.into(), flags: SendFlags::empty(), to: Destination::Connected }
    }

    /// Sets the flags.
    #[must_use]
    pub fn flags(self, flags: SendFlags) -> Self {
        Self { flags, ..self }
    }

    /// Sets the destination.
    #[must_use]
    pub fn to(self, to: Destination) -> Self {
        Self { to, ..self }
    }
}

/// A request posted to a receive queue.
///
/// ```
/// use qp::{RecvWr, Sge};
///
/// // A message goes into the first element until it is full, then into the next.
/// let header = Sge { addr: 0x1000, length: 16, lkey: 0x11 };
/// let body = Sge { addr: 0x8000, length: 4096, lkey: 0x11 };
/// let wr = RecvWr { wr_id: 1, data: [header, body].as_slice().into() };
/// assert_eq!(wr.wr_id, 1);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_recv_wr")]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The buffers for the message.
    pub data: Gather,
}

/// The outcome of a work request. Codes and order are those of the verbs (`IBV_WC_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
#[doc(alias = "ibv_wc_status")]
pub enum WcStatus {
    /// The request completed successfully.
    #[default]
    #[doc(alias = "IBV_WC_SUCCESS")]
    Success = 0,
    /// The message does not fit the local buffer, or exceeds the maximum message length.
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    LocLenErr = 1,
    /// The queue pair could not execute the request.
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    LocQpOpErr = 2,
    /// End-to-end context error (reliable datagrams only; not used).
    #[doc(alias = "IBV_WC_LOC_EEC_OP_ERR")]
    LocEecOpErr = 3,
    /// A local buffer is not registered or lacks the required access right.
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    LocProtErr = 4,
    /// The request was not executed because the queue pair was in the error state.
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    WrFlushErr = 5,
    /// The memory window bind failed.
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    MwBindErr = 6,
    /// The peer sent an invalid response.
    #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
    BadRespErr = 7,
    /// A local protection error occurred while receiving RDMA data.
    #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
    LocAccessErr = 8,
    /// The peer rejected the request as invalid.
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    RemInvReqErr = 9,
    /// The peer refused access to its memory.
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    RemAccessErr = 10,
    /// The peer could not complete the operation.
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    RemOpErr = 11,
    /// The peer did not answer, or packets kept getting lost, after `retry_cnt` retries.
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    RetryExcErr = 12,
    /// The peer still had no receive posted after `rnr_retry` retries.
    #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
    RnrRetryExcErr = 13,
    /// Reliable datagrams only; not used.
    #[doc(alias = "IBV_WC_LOC_RDD_VIOL_ERR")]
    LocRddViolErr = 14,
    /// Reliable datagrams only; not used.
    #[doc(alias = "IBV_WC_REM_INV_RD_REQ_ERR")]
    RemInvRdReqErr = 15,
    /// The peer aborted the operation.
    #[doc(alias = "IBV_WC_REM_ABORT_ERR")]
    RemAbortErr = 16,
    /// End-to-end context number (reliable datagrams only; not used).
    #[doc(alias = "IBV_WC_INV_EECN_ERR")]
    InvEecnErr = 17,
    /// End-to-end context state (reliable datagrams only; not used).
    #[doc(alias = "IBV_WC_INV_EEC_STATE_ERR")]
    InvEecStateErr = 18,
    /// The device failed.
    #[doc(alias = "IBV_WC_FATAL_ERR")]
    FatalErr = 19,
    /// Response timeout.
    #[doc(alias = "IBV_WC_RESP_TIMEOUT_ERR")]
    RespTimeoutErr = 20,
    /// Any other error.
    #[doc(alias = "IBV_WC_GENERAL_ERR")]
    GeneralErr = 21,
}

impl WcStatus {
    /// The name without the `IBV_WC_` prefix.
    #[must_use]
    #[doc(alias = "ibv_wc_status_str")]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::LocLenErr => "LOC_LEN_ERR",
            Self::LocQpOpErr => "LOC_QP_OP_ERR",
            Self::LocEecOpErr => "LOC_EEC_OP_ERR",
            Self::LocProtErr => "LOC_PROT_ERR",
            Self::WrFlushErr => "WR_FLUSH_ERR",
            Self::MwBindErr => "MW_BIND_ERR",
            Self::BadRespErr => "BAD_RESP_ERR",
            Self::LocAccessErr => "LOC_ACCESS_ERR",
            Self::RemInvReqErr => "REM_INV_REQ_ERR",
            Self::RemAccessErr => "REM_ACCESS_ERR",
            Self::RemOpErr => "REM_OP_ERR",
            Self::RetryExcErr => "RETRY_EXC_ERR",
            Self::RnrRetryExcErr => "RNR_RETRY_EXC_ERR",
            Self::LocRddViolErr => "LOC_RDD_VIOL_ERR",
            Self::RemInvRdReqErr => "REM_INV_RD_REQ_ERR",
            Self::RemAbortErr => "REM_ABORT_ERR",
            Self::InvEecnErr => "INV_EECN_ERR",
            Self::InvEecStateErr => "INV_EEC_STATE_ERR",
            Self::FatalErr => "FATAL_ERR",
            Self::RespTimeoutErr => "RESP_TIMEOUT_ERR",
            Self::GeneralErr => "GENERAL_ERR",
        }
    }

    /// What happened and what to check, in one sentence.
    #[must_use]
    pub const fn explain(self) -> &'static str {
        match self {
            Self::Success => "the work request completed",
            Self::LocLenErr => {
                "the message does not fit the local buffer, or exceeds the maximum message length"
            }
            Self::LocQpOpErr => {
                "the queue pair could not execute the request: the key to invalidate is not valid, or the shared \
                 receive queue failed"
            }
            Self::LocProtErr => {
                "a local buffer is not covered by its lkey: check the region, its protection domain and access \
                 rights, and that the memory is still mapped"
            }
            Self::WrFlushErr => {
                "not executed: the queue pair was in the error state; check the first completion that failed"
            }
            Self::MwBindErr => {
                "the memory window cannot be bound: check its key and protection domain, and the region's range \
                 and MW_BIND right"
            }
            Self::BadRespErr => "the peer sent a response that matches no outstanding request",
            Self::LocAccessErr => {
                "the peer tried to access memory on this side without permission: check the rkey and range it \
                 uses, and the access rights of the local region"
            }
            Self::RemInvReqErr => {
                "the peer rejected the request as invalid: operation not enabled on its queue pair, message too \
                 long for its receive buffer, misaligned atomic, or too many READs outstanding"
            }
            Self::RemAccessErr => {
                "the peer refused the memory access: check the rkey, address range, access rights and protection \
                 domain there"
            }
            Self::RemOpErr => "the peer could not complete the operation because of an error on its side",
            Self::RetryExcErr => {
                "no answer after retry_cnt retransmissions: check that the peer is running, is in RTR or RTS with \
                 this QPN and address, and that UDP port 4791 is open"
            }
            Self::RnrRetryExcErr => "the peer had no receive posted; rnr_retry retries were used up",
            _ => "the device reported an error",
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kind of a completed operation. Codes are those of the verbs (`IBV_WC_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
#[doc(alias = "ibv_wc_opcode")]
pub enum WcOpcode {
    /// SEND.
    #[default]
    #[doc(alias = "IBV_WC_SEND")]
    Send = 0,
    /// RDMA WRITE.
    #[doc(alias = "IBV_WC_RDMA_WRITE")]
    RdmaWrite = 1,
    /// RDMA READ.
    #[doc(alias = "IBV_WC_RDMA_READ")]
    RdmaRead = 2,
    /// Compare and swap.
    #[doc(alias = "IBV_WC_COMP_SWAP")]
    CompSwap = 3,
    /// Fetch and add.
    #[doc(alias = "IBV_WC_FETCH_ADD")]
    FetchAdd = 4,
    /// Memory window bind.
    #[doc(alias = "IBV_WC_BIND_MW")]
    BindMw = 5,
    /// Local invalidate.
    #[doc(alias = "IBV_WC_LOCAL_INV")]
    LocalInv = 6,
    /// Flush.
    #[doc(alias = "IBV_WC_FLUSH")]
    Flush = 8,
    /// Atomic write.
    #[doc(alias = "IBV_WC_ATOMIC_WRITE")]
    AtomicWrite = 9,
    /// A received SEND.
    #[doc(alias = "IBV_WC_RECV")]
    Recv = 128,
    /// A received RDMA WRITE with immediate data.
    #[doc(alias = "IBV_WC_RECV_RDMA_WITH_IMM")]
    RecvRdmaWithImm = 129,
}

bitflags! {
    /// Flags of a work completion (`IBV_WC_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[doc(alias = "ibv_wc_flags")]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the buffer hold a global routing header.
        #[doc(alias = "IBV_WC_GRH")]
        const GRH = 1;
        /// `imm_or_rkey` is immediate data.
        #[doc(alias = "IBV_WC_WITH_IMM")]
        const WITH_IMM = 1 << 1;
        /// `imm_or_rkey` is the key that the peer's SEND invalidated.
        #[doc(alias = "IBV_WC_WITH_INV")]
        const WITH_INV = 1 << 3;
    }
}

/// The completion of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_wc")]
pub struct WorkCompletion {
    /// The ID given in the work request.
    pub wr_id: u64,
    /// The outcome. If it is not success, only `wr_id`, `qpn` and `vendor_err` are meaningful.
    pub status: WcStatus,
    /// The completed operation.
    pub opcode: WcOpcode,
    /// Which optional fields are valid.
    pub flags: WcFlags,
    /// Number of bytes received or read.
    pub byte_len: u32,
    /// Immediate data (as a number in host byte order) or the invalidated key, depending on `flags`.
    pub imm_or_rkey: u32,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sending queue pair, for datagrams.
    pub src_qpn: Qpn,
    /// P_Key table index of the key in a datagram for QP1.
    pub pkey_index: u16,
    /// Service level of a datagram. RoCE packets do not carry it; it is derived from the priority bits.
    pub sl: u8,
    /// The code of the rule that failed, specific to rnic (0: none).
    pub vendor_err: u32,
    /// Delivery time, in nanoseconds of the device's clock; 0 unless timestamps were requested.
    pub timestamp: u64,
}

impl WorkCompletion {
    /// The immediate data of the message that was received, or sent, if it carried any.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        self.flags.contains(WcFlags::WITH_IMM).then_some(self.imm_or_rkey)
    }
}
