//! What the transport needs from its host: memory, receive work requests and a place for completions.

use crate::ids::{PdId, Qpn};
use crate::queue_pair::{Notice, VendorError};
use crate::wire::icrc;
use crate::work::{RecvWr, WorkCompletion};
use bitflags::bitflags;
use std::fmt;
use thiserror::Error;

bitflags! {
    /// Access rights of a memory region or a queue pair. The bits are those of the verbs (`IBV_ACCESS_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[doc(alias = "ibv_access_flags")]
    pub struct Access: u32 {
        /// The device may write on behalf of its own program (receives, READ and atomic results).
        #[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
        const LOCAL_WRITE = 1;
        /// A peer may write.
        #[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read.
        #[doc(alias = "IBV_ACCESS_REMOTE_READ")]
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomic operations.
        #[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        #[doc(alias = "IBV_ACCESS_MW_BIND")]
        const MW_BIND = 1 << 4;
        /// Addresses are offsets from the start of the region.
        #[doc(alias = "IBV_ACCESS_ZERO_BASED")]
        const ZERO_BASED = 1 << 5;
        /// Pages need not be pinned.
        #[doc(alias = "IBV_ACCESS_ON_DEMAND")]
        const ON_DEMAND = 1 << 6;
        /// Back the region with huge pages.
        #[doc(alias = "IBV_ACCESS_HUGETLB")]
        const HUGETLB = 1 << 7;
        /// A peer may flush to global visibility.
        #[doc(alias = "IBV_ACCESS_FLUSH_GLOBAL")]
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush to persistence.
        #[doc(alias = "IBV_ACCESS_FLUSH_PERSISTENT")]
        const FLUSH_PERSISTENT = 1 << 9;
        /// The device may reorder its accesses.
        #[doc(alias = "IBV_ACCESS_RELAXED_ORDERING")]
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Why a memory access is refused. The wire and the completion only carry an error class; this names the rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AccessError {
    /// No region or window has this key: it never existed, or was deregistered or invalidated.
    #[error(
        "key {key:#010x} names no memory region: it was never registered, or was deregistered or invalidated"
    )]
    UnknownKey {
        /// The key given.
        key: u32,
    },
    /// The key and the queue pair belong to different protection domains.
    #[error("key {key:#010x} belongs to another protection domain than the queue pair")]
    WrongDomain {
        /// The key given.
        key: u32,
    },
    /// The region lacks a right.
    #[error("key {key:#010x} lacks the right {missing}")]
    Denied {
        /// The key given.
        key: u32,
        /// The missing rights.
        missing: Access,
    },
    /// The range is not inside the region, or its end overflows.
    #[error(
        "{len} bytes at {va:#x} are not inside the region {start:#x}..{end:#x} of key {key:#010x}{}",
        beyond(*va, *len, *start, *end)
    )]
    OutOfRange {
        /// The key given.
        key: u32,
        /// First address of the access.
        va: u64,
        /// Length of the access in bytes.
        len: u64,
        /// First address of the region.
        start: u64,
        /// First address after the region.
        end: u64,
    },
    /// An atomic operation on an address that is not a multiple of 8.
    #[error("atomic operation at {va:#x}: the address is not a multiple of 8")]
    Misaligned {
        /// The address.
        va: u64,
    },
    /// The program unmapped or protected pages that are still registered.
    #[error("registered memory at {va:#x} is protected or no longer mapped")]
    Fault {
        /// First address of the access that failed.
        va: u64,
    },
    /// The key belongs to a type 2 memory window that another queue pair bound (IBTA 10.6.7.2.6).
    #[error("key {key:#010x} is a memory window that another queue pair bound")]
    WrongQueuePair {
        /// The key given.
        key: u32,
    },
    /// The key cannot be invalidated: only type 2 memory windows can (IBTA o10-37.2.13 and o10-37.2.26).
    #[error("key {key:#010x} cannot be invalidated by a work request: it is not a type 2 memory window")]
    NotInvalidatable {
        /// The key given.
        key: u32,
    },
    /// The key of a memory window was used for local memory. Windows only grant rights to peers (IBTA 10.6.7.2).
    #[error(
        "key {key:#010x} is a memory window, which only peers can use; use the region's lkey for local memory"
    )]
    RemoteOnly {
        /// The key given.
        key: u32,
    },
    /// The key belongs to a memory window that is not bound: never bound, unbound or invalidated.
    #[error("key {key:#010x} is a memory window that is not bound to a memory region")]
    Unbound {
        /// The key given.
        key: u32,
    },
}

/// By how much a range misses a region: `: it ends 90 bytes before the access ends`.
fn beyond(va: u64, len: u64, start: u64, end: u64) -> String {
    match va.checked_add(len) {
        None => ", beyond the end of all addresses".to_owned(),
        Some(last) if va >= start && va < end => {
            format!(", which ends {} bytes before the access ends", last.saturating_sub(end))
        }
        Some(_) if va < start => {
            format!(", which begins {} bytes behind the first of them", start.saturating_sub(va))
        }
        Some(_) => format!(", which ends {} bytes before the first of them", va.saturating_sub(end)),
    }
}

/// `REMOTE_WRITE | REMOTE_READ`.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

impl AccessError {
    /// The code of the broken rule, which completions carry as `vendor_err`.
    #[must_use]
    pub const fn vendor_code(self) -> u32 {
        match self {
            Self::UnknownKey { .. } => VendorError::UnknownKey.code(),
            Self::WrongDomain { .. } => VendorError::WrongDomain.code(),
            Self::Denied { .. } => VendorError::Denied.code(),
            Self::OutOfRange { .. } => VendorError::OutOfRange.code(),
            Self::Misaligned { .. } => VendorError::Misaligned.code(),
            Self::Fault { .. } => VendorError::Fault.code(),
            Self::WrongQueuePair { .. } => VendorError::WrongQueuePair.code(),
            Self::NotInvalidatable { .. } => VendorError::NotInvalidatable.code(),
            Self::RemoteOnly { .. } => VendorError::RemoteOnly.code(),
            Self::Unbound { .. } => VendorError::Unbound.code(),
        }
    }
}

/// The protection domain and queue pair on whose behalf memory is accessed. Keys are valid in one protection
/// domain; type 2 memory windows are valid for one queue pair only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domain {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// The queue pair.
    pub qpn: Qpn,
}

/// An atomic operation on 8 bytes, with operands in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Compare and swap: stores `swap` if the value equals `compare`.
    CompareSwap {
        /// The expected value.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Fetch and add, modulo 2^64.
    FetchAdd {
        /// The addend.
        add: u64,
    },
    /// ATOMIC_WRITE (IBTA annex A19). Requires the right to write, not the right to run atomics.
    Store {
        /// The new value.
        value: u64,
    },
}

impl AtomicOp {
    /// The right that a peer needs for this operation.
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Self::Store { .. } => Access::REMOTE_WRITE,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Access::REMOTE_ATOMIC,
        }
    }
}

/// A memory window and the range to bind it to: the operands of BIND_MW.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_mw_bind_info")]
pub struct Bind {
    /// A key of the window: its current key, or the one it had when the bind was posted.
    pub window: u32,
    /// The low byte of the new key, which may be the same as before; the device keeps the rest of the key and reads only this
    /// byte (IBTA 10.6.7.2, as Linux rxe and mlx5 do).
    pub key: u32,
    /// Local key of the region to bind to.
    pub lkey: u32,
    /// The rights that the window grants to peers. With `ZERO_BASED`, addresses in the window start at 0.
    pub access: Access,
    /// First address.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a type 1 window.
    pub len: u64,
}

/// Why a memory window cannot be bound. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BindError {
    /// The window's key names no window, or a window of another protection domain than the queue pair's (IBTA
    /// C10-72).
    #[error("key {key:#010x} names no memory window of this protection domain")]
    NoWindow {
        /// The key given.
        key: u32,
    },
    /// The region is unusable: no region has this key, it is in another protection domain (IBTA C10-72), or the
    /// range is not entirely inside it (IBTA C10-75).
    #[error(transparent)]
    Region(#[from] AccessError),
    /// The type 2 window is already bound and must be invalidated first (IBTA o10-37.2.30).
    #[error("type 2 memory window {key:#010x} is already bound: invalidate it first")]
    Bound {
        /// The key of the window.
        key: u32,
    },
    /// A type 2 window cannot be bound to zero bytes; it is unbound by invalidating it (IBTA o10-37.2.40).
    #[error("type 2 memory window {key:#010x} cannot be bound to zero bytes: invalidate it to unbind it")]
    Empty {
        /// The key of the window.
        key: u32,
    },
    /// A type 1 window always uses the region's addresses (IBTA o10-36.2.2).
    #[error("memory window {key:#010x} is of type 1; only type 2 windows may be zero-based")]
    ZeroBasedWindow {
        /// The key of the window.
        key: u32,
    },
    /// The region is zero-based (Linux rxe also refuses this).
    #[error("memory region {lkey:#010x} is zero-based: memory windows cannot be bound to it")]
    ZeroBasedRegion {
        /// The key of the region.
        lkey: u32,
    },
    /// The key given for the region belongs to a window.
    #[error("key {lkey:#010x} is a memory window; windows can only be bound to memory regions")]
    NotARegion {
        /// The key given.
        lkey: u32,
    },
    /// The region was registered without the right MW_BIND (IBTA C10-73).
    #[error("memory region {lkey:#010x} lacks the right MW_BIND")]
    NotBindable {
        /// The key of the region.
        lkey: u32,
    },
    /// The region lacks a right that the window's rights depend on: LOCAL_WRITE for remote writes and atomics (IBTA
    /// C10-74), and the flush rights.
    #[error("a memory window with {access} requires {missing} on memory region {lkey:#010x}")]
    NeedsRight {
        /// The key of the region.
        lkey: u32,
        /// The rights requested for the window.
        access: Access,
        /// The rights that the region lacks.
        missing: Access,
    },
}

impl BindError {
    /// The code that completions carry as `vendor_err`. It continues the codes of [`AccessError::vendor_code`].
    #[must_use]
    pub const fn vendor_code(self) -> u32 {
        match self {
            Self::Region(access) => access.vendor_code(),
            Self::NoWindow { .. } => VendorError::NoWindow.code(),
            Self::Bound { .. } => VendorError::Bound.code(),
            Self::Empty { .. } => VendorError::Empty.code(),
            Self::ZeroBasedWindow { .. } => VendorError::ZeroBasedWindow.code(),
            Self::ZeroBasedRegion { .. } => VendorError::ZeroBasedRegion.code(),
            Self::NotARegion { .. } => VendorError::NotARegion.code(),
            Self::NotBindable { .. } => VendorError::NotBindable.code(),
            Self::NeedsRight { .. } => VendorError::NeedsRight.code(),
        }
    }
}

/// From this length on a copy out of registered memory computes the CRC on the way ([`Memory::read_summed`]). The headers
/// of a shorter packet and its payload take less time together, behind the copy (measured on Zen 4).
pub const SUMMED_COPY: usize = 512;

/// Registered memory as the transport sees it: the DMA engine of the device.
///
/// Every access names a key, an address and the rights it needs, and is checked as a whole before a byte moves. An
/// access of 0 bytes succeeds with any key (IBTA C9-88). Keys are looked up for every packet, so a key that is
/// revoked in the middle of a message ends it cleanly.
pub trait Memory {
    /// Checks an access without performing it.
    fn check(&self, domain: Domain, key: u32, va: u64, len: u64, access: Access) -> Result<(), AccessError>;

    /// Copies from registered memory into `out`.
    fn read(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError>;

    /// Like [`read`](Self::read). Also [extends](icrc::extend) the CRC-32 `crc` by the bytes in `out`, and returns it:
    /// one pass over the bytes is cheaper than two. Memory that changes meanwhile makes no difference between the two.
    fn read_summed(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        out: &mut [u8],
        crc: u32,
    ) -> Result<u32, AccessError> {
        self.read(domain, key, va, access, out)?;
        Ok(icrc::extend(crc, out))
    }

    /// Copies `data` into registered memory. The last byte is stored last, with release ordering, because programs
    /// poll it.
    fn write(
        &mut self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        data: &[u8],
    ) -> Result<(), AccessError>;

    /// Runs an atomic operation on 8 aligned bytes and returns the previous value.
    fn atomic(&mut self, domain: Domain, key: u32, va: u64, op: AtomicOp) -> Result<u64, AccessError>;

    /// Makes earlier writes globally visible (FLUSH, IBTA annex A19): writes to the `len` bytes at `va`, or to the
    /// whole region if no range is given.
    fn flush(
        &self,
        domain: Domain,
        key: u32,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), AccessError>;

    /// Binds a memory window.
    fn bind(&mut self, domain: Domain, bind: &Bind) -> Result<(), BindError>;

    /// Revokes a key, on behalf of the program (LOCAL_INV) or of the peer (SEND with invalidate). Only a bound type
    /// 2 memory window can be revoked, and only by the queue pair that bound it.
    fn invalidate(&mut self, domain: Domain, key: u32) -> Result<(), AccessError>;
}

/// An asynchronous event of a queue pair (IBTA 11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_event_type")]
pub enum QpEvent {
    /// The first packet arrived while the queue pair was in RTR.
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    CommunicationEstablished,
    /// The send queue is drained, in state SQD.
    #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
    SendQueueDrained,
    /// The queue pair is in ERR and takes no more work requests from its shared receive queue.
    #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
    LastWqeReached,
    /// The queue pair failed with an error that no completion reports.
    #[doc(alias = "IBV_EVENT_QP_FATAL")]
    Fatal,
    /// A peer sent an invalid request while no receive was posted to report it.
    #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
    RequestError,
    /// A peer violated access rights while no receive was posted to report it (IBTA C9-222.1.1).
    #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
    AccessError,
}

/// A work request from a shared receive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedRecv {
    /// The work request.
    pub wr: RecvWr,
    /// The protection domain of the shared receive queue, to which the buffers belong (IBTA 10.2.9.3).
    pub pd: PdId,
}

/// Why a shared receive queue returns no work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSharedRecv {
    /// The queue is empty.
    Empty,
    /// The queue does not exist, or belongs to another XRC domain than the queue pair.
    Unknown,
    /// The queue is in the error state.
    Failed,
}

/// The environment of a queue pair: memory, completion queues, events, and the shared receive queue if it has one.
pub trait Host: Memory {
    /// Reports the completion of a send work request.
    fn complete_send(&mut self, completion: WorkCompletion);

    /// Reports the completion of a receive work request. `solicited` also wakes programs that wait for solicited
    /// events only. `xrc_srq` is the shared receive queue that an XRC request named and that the receive came from;
    /// it has its own completion queue.
    fn complete_recv(&mut self, xrc_srq: Option<u32>, completion: WorkCompletion, solicited: bool);

    /// Releases a slot of the send queue. Called before the completion is reported, because a program that counts
    /// completions posts again as soon as it sees one.
    fn release_send(&mut self) {}

    /// Releases a slot of the receive queue, like [`release_send`](Self::release_send).
    fn release_recv(&mut self) {}

    /// Reports an asynchronous event of the queue pair.
    fn event(&mut self, qpn: Qpn, event: QpEvent);

    /// Something went wrong that no completion in error reports.
    fn notice(&mut self, _notice: Notice) {}

    /// Takes the next work request of the queue pair's shared receive queue, or of queue `xrc_srq`, which an XRC
    /// request named.
    fn take_shared_recv(&mut self, xrc_srq: Option<u32>) -> Result<SharedRecv, NoSharedRecv>;

    /// The protection domain of the shared receive queue that an XRC request names. Keys in the request belong to
    /// it (IBTA annex A14), because an XRC_RECV queue pair has no protection domain of its own. `None` if the queue
    /// pair's XRC domain has no such queue.
    fn xrc_pd(&self, xrc_srq: u32) -> Option<PdId>;
}
