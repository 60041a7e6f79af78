//! What the transport needs from the host: memory, receive work and a place for completions.

use crate::ids::{PdId, Qpn};
use crate::queue_pair::{Notice, VendorError};
use crate::work::{RecvWr, WorkCompletion};
use bitflags::bitflags;
use std::fmt;
use thiserror::Error;

bitflags! {
    /// What a memory region or a queue pair allows. The bits are those of the verbs (`IBV_ACCESS_*`).
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

/// Why memory cannot be used as asked. The wire and the completion carry a class only; this says which rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AccessError {
    /// No region or window has this key (it never had, or it was deregistered or invalidated).
    #[error("key {key:#010x} names no memory region: never registered, deregistered or invalidated")]
    UnknownKey {
        /// The key as given.
        key: u32,
    },
    /// The key belongs to another protection domain than the queue pair.
    #[error("key {key:#010x} belongs to another protection domain than the queue pair")]
    WrongDomain {
        /// The key as given.
        key: u32,
    },
    /// The region lacks a right.
    #[error("key {key:#010x} lacks the right {missing}")]
    Denied {
        /// The key as given.
        key: u32,
        /// The rights that are missing.
        missing: Access,
    },
    /// The bytes lie outside the region, or the end of the range overflows.
    #[error(
        "{len} bytes at {va:#x} are not inside the region {start:#x}..{end:#x} of key {key:#010x}{}",
        beyond(*va, *len, *start, *end)
    )]
    OutOfRange {
        /// The key as given.
        key: u32,
        /// First address asked for.
        va: u64,
        /// Number of bytes asked for.
        len: u64,
        /// First address of the region.
        start: u64,
        /// First address behind the region.
        end: u64,
    },
    /// An atomic operation at an address that is not a multiple of 8.
    #[error("an atomic operation at {va:#x}, which is not a multiple of 8")]
    Misaligned {
        /// The address.
        va: u64,
    },
    /// The program unmapped or protected pages that are still registered.
    #[error("registered memory at {va:#x} is no longer mapped, or protected")]
    Fault {
        /// First address of the access that failed.
        va: u64,
    },
    /// The key is that of a type 2 memory window which another queue pair bound (IBTA 10.6.7.2.6).
    #[error("key {key:#010x} is a memory window that another queue pair bound")]
    WrongQueuePair {
        /// The key as given.
        key: u32,
    },
    /// The key cannot be invalidated: only type 2 memory windows can (IBTA o10-37.2.13 and o10-37.2.26).
    #[error("key {key:#010x} is no type 2 memory window: it cannot be invalidated by a work request")]
    NotInvalidatable {
        /// The key as given.
        key: u32,
    },
    /// The key is that of a memory window, used for local memory: windows give rights to peers only (IBTA 10.6.7.2).
    #[error(
        "key {key:#010x} is a memory window: it is for peers; local memory is named by the region's lkey"
    )]
    RemoteOnly {
        /// The key as given.
        key: u32,
    },
    /// The key is that of a memory window which opens nothing: never bound, unbound, or invalidated.
    #[error("key {key:#010x} is a memory window that is not bound to a memory region")]
    Unbound {
        /// The key as given.
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
    /// The number that completions carry as `vendor_err`: which rule was broken.
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

/// In whose name memory is touched: keys are valid inside one protection domain, and type 2 memory windows
/// for one queue pair only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domain {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// The queue pair.
    pub qpn: Qpn,
}

/// An atomic operation on 8 bytes, operands in host order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Store `swap` where the value equals `compare`.
    CompareSwap {
        /// The expected value.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Add, modulo 2^64.
    FetchAdd {
        /// The addend.
        add: u64,
    },
    /// Store (ATOMIC_WRITE, IBTA annex A19). Needs the right to write, not that to run atomics.
    Store {
        /// The new value.
        value: u64,
    },
}

impl AtomicOp {
    /// The right that a peer needs for it.
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Self::Store { .. } => Access::REMOTE_WRITE,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Access::REMOTE_ATOMIC,
        }
    }
}

/// A memory window and what it is to show: the operands of BIND_MW.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_mw_bind_info")]
pub struct Bind {
    /// A key of the window: the one that it has, or had when the bind was posted.
    pub window: u32,
    /// The key that it is to have: the present one with another low byte.
    pub key: u32,
    /// Local key of the region that it opens.
    pub lkey: u32,
    /// What peers may do through it; with `ZERO_BASED` they address it from 0 on.
    pub access: Access,
    /// First address.
    pub addr: u64,
    /// Number of bytes; 0 closes a window of type 1.
    pub len: u64,
}

/// Why a memory window cannot be bound. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BindError {
    /// The window's key names no window, or one of another protection domain than the queue pair's (IBTA C10-72).
    #[error("key {key:#010x} names no memory window of this protection domain")]
    NoWindow {
        /// The key as given.
        key: u32,
    },
    /// The region cannot be used so: no such key, another protection domain (IBTA C10-72), or not all of the range
    /// inside it (IBTA C10-75).
    #[error(transparent)]
    Region(#[from] AccessError),
    /// The new key has the low byte of the present one: the present one would not die.
    #[error("memory window {key:#010x} needs a new key with another low byte")]
    SameKey {
        /// The key of the window.
        key: u32,
    },
    /// The new key differs from the present one in more than the low byte.
    #[error("{key:#010x} cannot be the key of memory window {window:#010x}: only the low byte may change")]
    ForeignKey {
        /// The present key.
        window: u32,
        /// The new key as given.
        key: u32,
    },
    /// A window of type 2 is bound already: it has to be invalidated first (IBTA o10-37.2.30).
    #[error("memory window {key:#010x} is of type 2 and bound: invalidate it first")]
    Bound {
        /// The key of the window.
        key: u32,
    },
    /// A window of type 2 is bound to no bytes: it is closed by invalidating it (IBTA o10-37.2.40).
    #[error(
        "memory window {key:#010x} is of type 2: invalidate it to close it, a bind needs at least one byte"
    )]
    Empty {
        /// The key of the window.
        key: u32,
    },
    /// A window of type 1 always has the region's addresses (IBTA o10-36.2.2).
    #[error("memory window {key:#010x} is of type 1, and only windows of type 2 may be zero-based")]
    ZeroBasedWindow {
        /// The key of the window.
        key: u32,
    },
    /// The region has no addresses of its own (Linux rxe refuses it as well).
    #[error("memory region {lkey:#010x} is zero-based: memory windows cannot be bound to it")]
    ZeroBasedRegion {
        /// The key of the region.
        lkey: u32,
    },
    /// The key that should name a region names a window.
    #[error("key {lkey:#010x} is a memory window itself: windows are bound to memory regions")]
    NotARegion {
        /// The key as given.
        lkey: u32,
    },
    /// The region was registered without the right to bind windows to it (IBTA C10-73).
    #[error("memory region {lkey:#010x} lacks the right MW_BIND")]
    NotBindable {
        /// The key of the region.
        lkey: u32,
    },
    /// The region lacks a right that those of the window rest on: LOCAL_WRITE for remote writes and atomics
    /// (IBTA C10-74), and those to flush.
    #[error("a memory window with {access} needs {missing} on memory region {lkey:#010x}")]
    NeedsRight {
        /// The key of the region.
        lkey: u32,
        /// The rights asked for that need it.
        access: Access,
        /// What the region lacks.
        missing: Access,
    },
}

impl BindError {
    /// The number that completions carry as `vendor_err`, in one series with [`AccessError::vendor_code`].
    #[must_use]
    pub const fn vendor_code(self) -> u32 {
        match self {
            Self::Region(access) => access.vendor_code(),
            Self::NoWindow { .. } => VendorError::NoWindow.code(),
            Self::SameKey { .. } => VendorError::SameKey.code(),
            Self::ForeignKey { .. } => VendorError::ForeignKey.code(),
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

/// Registered memory, as the transport sees it: the DMA engine of the device.
///
/// Every access names a key, an address and the rights it needs, and is checked as a whole before a byte
/// moves. An access of 0 bytes succeeds whatever the key (IBTA C9-88). Keys are looked up anew for every
/// packet, so that one revoked in the middle of a message ends it cleanly.
pub trait Memory {
    /// Checks an access without doing it.
    fn check(&self, domain: Domain, key: u32, va: u64, len: u64, access: Access) -> Result<(), AccessError>;

    /// Copies registered memory out, into `out`.
    fn read(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError>;

    /// Copies `data` into registered memory. The last byte is stored last, with release order: programs
    /// poll it.
    fn write(
        &mut self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        data: &[u8],
    ) -> Result<(), AccessError>;

    /// Runs an atomic operation on 8 aligned bytes and returns the value from before it.
    fn atomic(&mut self, domain: Domain, key: u32, va: u64, op: AtomicOp) -> Result<u64, AccessError>;

    /// Makes earlier writes visible to everybody (FLUSH, IBTA annex A19): those to the `len` bytes at `va`, or to the
    /// whole region where there is no range.
    fn flush(
        &self,
        domain: Domain,
        key: u32,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), AccessError>;

    /// Binds a memory window.
    fn bind(&mut self, domain: Domain, bind: &Bind) -> Result<(), BindError>;

    /// Revokes a key, on behalf of the program (LOCAL_INV) or of the peer (SEND with invalidate). Only type 2 memory
    /// windows that are bound can be revoked, by the queue pair that bound them.
    fn invalidate(&mut self, domain: Domain, key: u32) -> Result<(), AccessError>;
}

/// Something that happened to a queue pair and is not a completion (IBTA 11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_event_type")]
pub enum QpEvent {
    /// The first packet arrived while the queue pair was in RTR.
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    CommunicationEstablished,
    /// The send queue is drained, in SQD.
    #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
    SendQueueDrained,
    /// The queue pair entered ERR and takes no more work from its shared receive queue.
    #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
    LastWqeReached,
    /// The queue pair failed in a way that no completion reports.
    #[doc(alias = "IBV_EVENT_QP_FATAL")]
    Fatal,
    /// A peer sent an invalid request while no receive was there to report it.
    #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
    RequestError,
    /// A peer violated access rights while no receive was there to report it (IBTA C9-222.1.1).
    #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
    AccessError,
}

/// A work request of a shared receive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedRecv {
    /// The work request.
    pub wr: RecvWr,
    /// The protection domain of the shared receive queue: that of the buffers (IBTA 10.2.9.3).
    pub pd: PdId,
}

/// Why a shared receive queue gives no work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSharedRecv {
    /// It is empty.
    Empty,
    /// There is no such queue, or it is of another XRC domain than the queue pair.
    Unknown,
    /// It is in error.
    Failed,
}

/// What surrounds a queue pair: memory, completion queues, events, and the shared receive queue if it has one.
pub trait Host: Memory {
    /// A work request of the send queue ended.
    fn complete_send(&mut self, completion: WorkCompletion);

    /// A receive work request ended. `solicited` wakes those who wait for solicited events only. `xrc_srq`: it came
    /// from the shared receive queue of this number, which an XRC request named and which has a completion queue of its
    /// own.
    fn complete_recv(&mut self, xrc_srq: Option<u32>, completion: WorkCompletion, solicited: bool);

    /// A work request left the send queue: its place can be taken again. Comes before the completion that tells the
    /// program so, because a program that counts completions posts as soon as it sees one.
    fn release_send(&mut self) {}

    /// A work request left the receive queue; as [`release_send`](Self::release_send).
    fn release_recv(&mut self) {}

    /// An asynchronous event of the queue pair.
    fn event(&mut self, qpn: Qpn, event: QpEvent);

    /// Something went wrong that no completion in error reports.
    fn notice(&mut self, _notice: Notice) {}

    /// Takes the next work request of the queue pair's shared receive queue, or of the one of number `xrc_srq`, which an
    /// XRC request named.
    fn take_shared_recv(&mut self, xrc_srq: Option<u32>) -> Result<SharedRecv, NoSharedRecv>;

    /// The protection domain of the shared receive queue that an XRC request names: keys in the request are of it (IBTA
    /// annex A14), because an XRC_RECV queue pair has none. `None` if there is no such queue in the queue pair's XRC
    /// domain.
    fn xrc_pd(&self, xrc_srq: u32) -> Option<PdId>;
}
