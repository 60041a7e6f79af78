//! What becomes of work requests: their completions.

use crate::ids::Qpn;
use bitflags::bitflags;
use std::fmt;

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
