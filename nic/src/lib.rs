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

pub mod capture;
#[cfg(unix)]
pub mod doctor;
pub mod engine;
#[cfg(unix)]
pub mod explain;
pub mod ladder;
pub mod link;
pub mod memory;
#[cfg(unix)]
pub mod net;
#[cfg(unix)]
pub mod process;
pub mod sim;
pub mod trace;

mod address_handle;
#[cfg(unix)]
mod clock;
mod completion;
#[cfg(unix)]
mod config;
mod connection;
mod datagram;
mod destroy;
mod device;
mod domain;
#[cfg(unix)]
mod driver;
mod error;
mod events;
mod gid;
mod instrument;

#[cfg(unix)]
mod os;
mod platform;
mod port;
mod priority;
mod queue;
mod queue_pair;
mod reasons;
mod region;
mod srq;
mod tally;
mod window;
mod xrc;

pub use address_handle::AddressHandle;
#[doc(inline)]
pub use cc;
pub use completion::{CompletionChannel, CompletionEvent, CompletionQueue, Completions};
#[cfg(unix)]
pub use config::{ConfigError, ConfigFault};
pub use connection::RcEnd;
pub use destroy::NotDestroyed;
#[cfg(unix)]
pub use device::DeviceConfig;
pub use device::{Counters, DEFAULT_UNACKED_RATE, Device, DeviceAttr, PortAttr};
pub use domain::ProtectionDomain;
pub use engine::{AsyncEvent, EventSource, FlowState, PKeyTableError, RateConfig};
pub use error::{Error, Result};
pub use events::AsyncEvents;
pub use gid::{GidEntry, GidType, NetInterface};
pub use instrument::FaultReport;
pub use memory::{Advice, BufferError, MwType, RegisterError, UserMemory};
pub use priority::{PRIORITIES, PriorityCounters};
pub use queue_pair::{ConnectOptions, QpAddress, QpInit, QueuePair};
pub use region::{MemoryRegion, NullRegion, Rereg};
pub use srq::{SharedReceiveQueue, SrqAttr, SrqInit, SrqModify};
#[doc(inline)]
pub use time;
pub use window::MemoryWindow;
pub use xrc::XrcDomain;

pub use qp::attr::{AddressVector, ModifyError, PathMigState};
pub use qp::counters::QpCounters;
pub use qp::memory::{Bind, BindError, QpEvent};
pub use qp::queue_pair::{
    Failure, FailureContext, Notice, PeerRefusal, PostError, Refused, Silence, Tuning, Unsendable,
    VendorError,
};
pub use qp::{
    Access, AccessError, Destination, FlushKind, Gather, Gid, Mtu, Operation, PKey, ParseMtuError, Psn, QKey,
    QpAttr, QpCap, QpState, QpType, Qpn, RecvWr, Remote, SendFlags, SendWr, Sge, WcFlags, WcOpcode, WcStatus,
    WorkCompletion,
};

/// Opens a device at the first free loopback address.
///
/// # Errors
/// [`Error::Open`].
#[cfg(unix)]
pub fn open() -> Result<Device> {
    Device::open(&DeviceConfig::default())
}
