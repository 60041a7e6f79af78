//! A RoCEv2 NIC without an operating system: the engine, registered memory, link layers, the objects of the verbs API,
//! traces, and a simulator in virtual time.
//!
//! Programs use the crate `rnic`, which re-exports the API from here and adds sockets, the port driver, its background
//! thread, and processes. This crate opens no sockets and reads no clock: time is an argument. What an operating system
//! does better (copies that survive a page fault, random numbers, memory of its own) comes from a
//! [`Platform`](platform::Platform); without one, portable substitutes serve, also on `wasm32-unknown-unknown`.
//!
//! From the bottom up:
//!
//! - [`memory`]: regions, windows and keys; the only code that touches registered memory.
//! - [`queue`]: completion and receive queues, which the engine shares with the program's threads without a lock.
//! - [`engine`]: the transport of all queue pairs, the scheduler, partners, rates and credits. Packets, timers and posts
//!   come in, and packets come out.
//! - [`link`]: what a port does to packets below the engine: fault rules, captures, and an emulated link.
//! - [`port`]: an engine with its links behind a lock of its owner's choice; the trait that the verbs are written against.
//! - [`verbs`]: devices, protection domains, regions, completion queues, queue pairs.
//! - [`sim`]: ports in virtual time, joined by a network with delays.
//! - [`capture`], [`ladder`], [`trace`]: what was sent, decoded, drawn, and sampled.

#![deny(unsafe_code)]

// Memory is tested on Linux, the platform that programs have. Its source names this crate from outside.
#[cfg(test)]
extern crate self as rnic_core;
#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "only memory is tested with it")]
#[path = "../../src/os/mod.rs"]
mod os;

pub mod capture;
pub mod datagram;
pub mod engine;
pub mod error;
pub mod gid;
pub mod instrument;
pub mod ladder;
pub mod link;
pub mod memory;
pub mod platform;
pub mod port;
pub mod priority;
pub mod queue;
pub mod reasons;
pub mod sim;
pub mod tally;
pub mod trace;
pub mod verbs;

/// Connections by address and port.
pub mod cm {
    pub use crate::engine::EventSink;
    pub use crate::error::ConnectError;
    pub use crate::verbs::cm::{
        Binding, Claim, Connection, ConnectionEvent, DATAGRAM_QKEY, Dialling, End, Listener, Manager,
        PortError, PortTable, Ports, Question, Ready, Request, Service, ServiceRequest,
    };
    #[doc(inline)]
    pub use ::cm as protocol;
}

#[doc(inline)]
pub use cc;
pub use engine::{AsyncEvent, EventSource, FlowState, PKeyTableError, RateConfig};
pub use error::{Error, Result};
pub use gid::{GidEntry, GidType, NetInterface};
pub use instrument::FaultReport;
pub use memory::{Advice, BufferError, MemoryBuffer, MwType, RegisterError, UserMemory};
pub use priority::{PRIORITIES, PriorityCounters};
#[doc(inline)]
pub use time;
pub use verbs::{
    AddressHandle, AsyncEvents, CompletionChannel, CompletionEvent, CompletionQueue, Completions,
    ConnectOptions, Counters, DEFAULT_UNACKED_RATE, Device, DeviceAttr, MemoryRegion, MemoryWindow,
    NotDestroyed, NullRegion, PortAttr, ProtectionDomain, QpAddress, QpInit, QueuePair, RcEnd, Rereg,
    SharedReceiveQueue, SrqAttr, SrqInit, SrqModify, WeakDevice, XrcDomain,
};

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
