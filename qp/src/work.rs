//! Work requests and work completions.

use crate::attr::AddressVector;
use crate::ids::{QKey, Qpn};
use crate::memory::Bind;
use crate::wire::headers::FethFields;
use bitflags::bitflags;
use std::sync::Arc;

mod completion;
#[cfg(test)]
mod tests;

pub use completion::{WcFlags, WcOpcode, WcStatus, WorkCompletion};

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
