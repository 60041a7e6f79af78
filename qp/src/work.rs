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

/// A piece of local memory: `length` bytes at `addr` of the region with `lkey`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_sge")]
pub struct Sge {
    /// First address.
    pub addr: u64,
    /// Number of bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// Where the bytes of a work request come from, or go to.
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
    /// The bytes themselves, copied when the request was posted (`IBV_SEND_INLINE`).
    Inline(Box<[u8]>),
}

impl Gather {
    /// The scatter/gather elements; none for inline data.
    #[must_use]
    pub fn elements(&self) -> &[Sge] {
        match self {
            Self::Empty | Self::Inline(_) => &[],
            Self::One(sge) => std::slice::from_ref(sge),
            Self::Many(list) => list,
        }
    }

    /// The total number of bytes; 64 bits, because elements may add up to more than a message may carry.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            other => other.elements().iter().map(|e| u64::from(e.length)).sum(),
        }
    }

    /// Whether there are no bytes at all.
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

/// A place in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// First address, in the peer's address space.
    pub addr: u64,
    /// Remote key, as the peer handed it out.
    pub rkey: u32,
}

/// What a send work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_wr_opcode")]
pub enum Operation {
    /// SEND; `imm` is handed to the receiver's completion, `invalidate` revokes one of its keys. Not both.
    #[doc(alias("IBV_WR_SEND", "IBV_WR_SEND_WITH_IMM", "IBV_WR_SEND_WITH_INV"))]
    Send {
        /// Immediate data, a number; it travels in network order.
        imm: Option<u32>,
        /// Remote key to invalidate at the receiver.
        invalidate: Option<u32>,
    },
    /// RDMA WRITE; with `imm` it consumes a receive at the peer.
    #[doc(alias("IBV_WR_RDMA_WRITE", "IBV_WR_RDMA_WRITE_WITH_IMM"))]
    Write {
        /// Where to write.
        remote: Remote,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// RDMA READ.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    Read {
        /// Where to read.
        remote: Remote,
    },
    /// Atomic compare and swap of 8 bytes; the old value is written to the local buffer.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    CompareSwap {
        /// Where.
        remote: Remote,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Atomic addition to 8 bytes; the old value is written to the local buffer.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    FetchAdd {
        /// Where.
        remote: Remote,
        /// Addend.
        add: u64,
    },
    /// ATOMIC_WRITE: 8 local bytes are stored at once, after everything before (IBTA annex A19).
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    AtomicWrite {
        /// Where, a multiple of 8.
        remote: Remote,
    },
    /// FLUSH: completes when earlier writes to a range of the peer's memory are placed (IBTA annex A19).
    #[doc(alias = "IBV_WR_FLUSH")]
    Flush {
        /// First address and key.
        remote: Remote,
        /// Number of bytes.
        len: u32,
        /// How far, and which.
        flush: FlushKind,
    },
    /// LOCAL_INV: revokes a key of this side, after everything before is done.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    LocalInvalidate {
        /// The key of a type 2 memory window.
        key: u32,
    },
    /// BIND_MW: opens a memory window.
    #[doc(alias = "IBV_WR_BIND_MW")]
    BindWindow(Bind),
}

/// How far a FLUSH reaches (IBTA annex A19).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FlushKind {
    /// Earlier writes are to be visible to everyone at the peer.
    pub global: bool,
    /// Earlier writes are to survive a loss of power at the peer.
    pub persistent: bool,
    /// The whole memory region is meant, not the range only.
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
    /// The name, as verbs spell it.
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

    /// Whether the answer brings data into the local buffer.
    #[must_use]
    pub const fn brings_data(self) -> bool {
        matches!(self, Self::Read { .. }) || self.is_atomic()
    }

    /// Whether this is an atomic operation that answers with the old value.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether it concerns this side only and sends nothing.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalInvalidate { .. } | Self::BindWindow(_))
    }

    /// Whether it takes a receive work request at the peer, and so a credit (IBTA 9.7.7.2).
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
        /// Start only when all READs and atomics before are done.
        #[doc(alias = "IBV_SEND_FENCE")]
        const FENCE = 1;
        /// Make a completion even when it succeeds.
        #[doc(alias = "IBV_SEND_SIGNALED")]
        const SIGNALED = 1 << 1;
        /// Ask for an event at the receiver.
        #[doc(alias = "IBV_SEND_SOLICITED")]
        const SOLICITED = 1 << 2;
    }
}

/// Whom a send work request is for, beyond what the queue pair is connected to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Destination {
    /// The peer that the queue pair is connected to.
    #[default]
    Connected,
    /// A datagram's receiver.
    Datagram {
        /// The way there: an address handle's.
        path: Arc<AddressVector>,
        /// Its queue pair; [`Qpn::MULTICAST`] for a group.
        qpn: Qpn,
        /// Its Q_Key. With the most significant bit set, that of the sending queue pair is used (IBTA 10.2.5).
        qkey: QKey,
    },
    /// A shared receive queue of the peer's XRC domain.
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
    /// Handed back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation,
    /// Local bytes.
    pub data: Gather,
    /// How to do it.
    pub flags: SendFlags,
    /// Whom it is for.
    pub to: Destination,
}

impl SendWr {
    /// An unsignalled request to the peer that the queue pair is connected to.
    #[must_use]
    pub fn new(wr_id: u64, operation: Operation, data: impl Into<Gather>) -> Self {
        Self { wr_id, operation, data: data.into(), flags: SendFlags::empty(), to: Destination::Connected }
    }

    /// With these flags.
    #[must_use]
    pub fn flags(self, flags: SendFlags) -> Self {
        Self { flags, ..self }
    }

    /// To this receiver.
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
    /// Handed back in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub data: Gather,
}

/// How a work request ended. Codes and order are those of the verbs (`IBV_WC_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
#[doc(alias = "ibv_wc_status")]
pub enum WcStatus {
    /// Done.
    #[default]
    #[doc(alias = "IBV_WC_SUCCESS")]
    Success = 0,
    /// The message does not fit the local buffer, or is longer than a message may be.
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    LocLenErr = 1,
    /// The queue pair could not process the request.
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    LocQpOpErr = 2,
    /// End-to-end context error (reliable datagrams only; not used).
    #[doc(alias = "IBV_WC_LOC_EEC_OP_ERR")]
    LocEecOpErr = 3,
    /// A local buffer is not registered, or without the right.
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    LocProtErr = 4,
    /// Not executed: the queue pair was in the error state.
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    WrFlushErr = 5,
    /// Memory window bind failed.
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    MwBindErr = 6,
    /// The peer sent a response that makes no sense.
    #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
    BadRespErr = 7,
    /// A local protection error while receiving RDMA data.
    #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
    LocAccessErr = 8,
    /// The peer found the request invalid.
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    RemInvReqErr = 9,
    /// The peer's memory may not be used so.
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    RemAccessErr = 10,
    /// The peer could not complete the operation.
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    RemOpErr = 11,
    /// The peer did not answer, or kept losing packets, `retry_cnt` times.
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    RetryExcErr = 12,
    /// The peer had no receive posted, `rnr_retry` times.
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
    /// Anything else.
    #[doc(alias = "IBV_WC_GENERAL_ERR")]
    GeneralErr = 21,
}

impl WcStatus {
    /// The name that people search for, without the `IBV_WC_` prefix.
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

    /// What happened and where to look, in one sentence.
    #[must_use]
    pub const fn explain(self) -> &'static str {
        match self {
            Self::Success => "the work request completed",
            Self::LocLenErr => "the message is longer than the local buffer or than a message may be",
            Self::LocQpOpErr => {
                "the queue pair could not carry it out: a key to revoke that is not valid, or a shared receive queue \
                 that failed"
            }
            Self::LocProtErr => {
                "a local buffer is not covered by its lkey: check the region, its protection domain and rights, \
                 and that the memory is still mapped"
            }
            Self::WrFlushErr => {
                "not executed: the queue pair was in the error state; look at the first completion that failed"
            }
            Self::MwBindErr => {
                "the memory window cannot be bound: check its key and protection domain, and the region's range and \
                 MW_BIND right"
            }
            Self::BadRespErr => "the peer sent a response that does not belong to any request",
            Self::LocAccessErr => {
                "the peer reached for memory of this side that it may not use: check its rkey, range and rights, and \
                 those of the region here"
            }
            Self::RemInvReqErr => {
                "the peer found the request invalid: operation not enabled on its queue pair, message too long \
                 for its receive buffer, misaligned atomic, or too many READs outstanding"
            }
            Self::RemAccessErr => {
                "the peer refused the memory access: check rkey, address range, rights and protection domain there"
            }
            Self::RemOpErr => "the peer could not complete the operation, for a reason on its side",
            Self::RetryExcErr => {
                "no answer after retry_cnt retransmissions: is the peer alive, in RTR or RTS, with this QPN and \
                 address, and UDP port 4791 open?"
            }
            Self::RnrRetryExcErr => "the peer had no receive posted, rnr_retry times in a row",
            _ => "the device reported an error",
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What kind of work ended. Codes are those of the verbs (`IBV_WC_*`).
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
    /// A message arrived.
    #[doc(alias = "IBV_WC_RECV")]
    Recv = 128,
    /// An RDMA WRITE with immediate arrived.
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
        /// `imm_or_rkey` is the key that the peer invalidated.
        #[doc(alias = "IBV_WC_WITH_INV")]
        const WITH_INV = 1 << 3;
    }
}

/// The report that a work request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_wc")]
pub struct WorkCompletion {
    /// As given in the work request.
    pub wr_id: u64,
    /// How it ended. All that follows but `qpn` and `vendor_err` is meaningful on success only.
    pub status: WcStatus,
    /// What ended.
    pub opcode: WcOpcode,
    /// Which of the optional fields hold something.
    pub flags: WcFlags,
    /// Bytes received, or read.
    pub byte_len: u32,
    /// Immediate data (as a number in host order) or invalidated key, according to `flags`.
    pub imm_or_rkey: u32,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sender, for datagrams.
    pub src_qpn: Qpn,
    /// Index in the P_Key table of the key that a datagram for QP1 carried.
    pub pkey_index: u16,
    /// Service level of a datagram: always 0, because RoCE carries none in packets.
    pub sl: u8,
    /// Why it failed: the number of a [`VendorError`](crate::queue_pair::VendorError); 0 for no reason beyond the status.
    pub vendor_err: u32,
    /// When it was delivered, in nanoseconds of the device's clock; 0 where nobody asked for that.
    pub timestamp: u64,
}

impl WorkCompletion {
    /// The immediate data of the message that was received, or sent, if it carried any.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        self.flags.contains(WcFlags::WITH_IMM).then_some(self.imm_or_rkey)
    }
}
