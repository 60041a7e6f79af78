//! rnic: a RoCEv2 NIC in software.
//!
//! The API has the field's terms and shape: open a [`Device`], allocate a [`ProtectionDomain`], register memory
//! ([`MemoryRegion`]), create a [`CompletionQueue`] and a [`QueuePair`], connect it, post work, poll for completions.
//! On the network a device speaks real RoCEv2 over UDP port 4791; in a [`sim::Net`] the same engine runs in virtual
//! time. A first RDMA WRITE, in either:
//!
//! ```
//! use rnic::{RcEnd, WcStatus};
//!
//! let net = rnic::sim::Net::new();
//! let (a, b) = (net.device(), net.device());
//! let (left, right) = RcEnd::pair(&a, &b)?;
//! let source = left.register(b"hello rdma")?;
//! let target = right.register_remote(10)?;
//! left.qp.write(7, source.all(), target.remote(0))?;
//! let wc = left.wait()?;
//! assert_eq!((wc.wr_id, wc.status), (7, WcStatus::Success));
//! assert_eq!(target.to_vec()?, b"hello rdma");
//! # Ok::<(), rnic::Error>(())
//! ```
//!
//! Replace the first two lines by `let (a, b) = (rnic::open()?, rnic::open()?);` and it runs over sockets.

#![deny(unsafe_code)]

pub mod daemon;
pub mod doctor;
pub mod explain;
pub mod net;
pub mod process;

mod clock;
mod config;
mod driver;
mod open;
mod os;
mod recorder;

pub use config::{ConfigError, ConfigFault};
pub use open::DeviceConfig;
pub use rnic_core::{
    Access, AccessError, AddressHandle, AddressVector, Advice, AsyncEvent, AsyncEvents, Bind, BindError,
    BufferError, CompletionChannel, CompletionEvent, CompletionQueue, Completions, ConnectOptions, Counters,
    DEFAULT_UNACKED_RATE, Destination, Device, DeviceAttr, Error, EventSource, Failure, FailureContext,
    FaultReport, FlowState, FlushKind, Gather, Gid, GidEntry, GidType, MemoryRegion, MemoryWindow,
    ModifyError, Mtu, MwType, NetInterface, NotDestroyed, Notice, NullRegion, Operation, PKey,
    PKeyTableError, PRIORITIES, ParseMtuError, PathMigState, PeerRefusal, PortAttr, PostError,
    PriorityCounters, ProtectionDomain, Psn, QKey, QpAddress, QpAttr, QpCap, QpCounters, QpEvent, QpInit,
    QpState, QpType, Qpn, QueuePair, RateConfig, RcEnd, RecvWr, Refused, RegisterError, Remote, Rereg,
    Result, SendFlags, SendWr, Sge, SharedReceiveQueue, Silence, SrqAttr, SrqInit, SrqModify, Tuning,
    Unsendable, UserMemory, VendorError, WcFlags, WcOpcode, WcStatus, WeakDevice, WorkCompletion, XrcDomain,
};
#[doc(inline)]
pub use rnic_core::{capture, cc, ladder, sim, time};

/// What the engine tells: snapshots of queue pairs, counters by reason, limits, and why a verb is refused.
pub mod engine {
    pub use rnic_core::engine::{
        AsyncEvent, CreditSetup, DropReason, EventSource, FlowState, MAX_EVENTS, MAX_PKEYS, ModifyQpError,
        PKeyTableError, PartnerSetup, PortCounters, QpSnapshot, RateConfig, ResourceError,
    };
}

/// The link below the engine: the port that a device emulates, fault rules, captures, and observers of packets.
pub mod link {
    pub use rnic_core::link::{
        Direction, Fate, Frame, FrameRef, HOST_RATE, LinkConfig, LinkConfigError, Model, Now, Observer,
        emulation, faults, wire_bytes,
    };

    /// Captures of packets into pcapng files.
    pub mod capture {
        pub use rnic_core::link::capture::CaptureStatus;
    }
}

/// Memory that programs register.
pub mod memory {
    pub use rnic_core::memory::{Advice, BufferError, MemoryBuffer, MwType, RegisterError, UserMemory};
}

/// Flags that programs wait for by descriptor: for bindings of other languages.
pub mod readiness {
    pub use crate::driver::readiness::new;
    pub use rnic_core::port::Readiness;
}

/// Connections by address and port.
pub mod cm {
    #[doc(inline)]
    pub use rnic_core::cm::*;
}

/// Samples of a port's counters and queue pairs over time, in files that `rnic plot` draws.
pub mod trace {
    pub use crate::recorder::{MIN_INTERVAL, RecorderThread, header_now};
    #[doc(inline)]
    pub use rnic_core::trace::*;
}

/// Opens a device at the first free loopback address.
///
/// # Errors
/// [`Error::Open`].
pub fn open() -> Result<Device> {
    DeviceConfig::default().open()
}
