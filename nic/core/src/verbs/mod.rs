//! The objects of the verbs API, over a [`Port`](crate::port::Port): on sockets and in virtual time they are the same.

pub(crate) mod address_handle;
pub(crate) mod cm;
pub(crate) mod completion;
pub(crate) mod connection;
pub(crate) mod destroy;
pub(crate) mod device;
pub(crate) mod domain;
pub(crate) mod events;
pub(crate) mod queue_pair;
pub(crate) mod region;
pub(crate) mod srq;
pub(crate) mod window;
pub(crate) mod xrc;

pub use address_handle::AddressHandle;
pub use completion::{CompletionChannel, CompletionEvent, CompletionQueue, Completions};
pub use connection::RcEnd;
pub use destroy::NotDestroyed;
pub use device::{Counters, DEFAULT_UNACKED_RATE, Device, DeviceAttr, PortAttr, WeakDevice, paces};
pub use domain::ProtectionDomain;
pub use events::AsyncEvents;
pub use queue_pair::{ConnectOptions, QpAddress, QpInit, QueuePair};
pub use region::{MemoryRegion, NullRegion, Rereg};
pub use srq::{SharedReceiveQueue, SrqAttr, SrqInit, SrqModify};
pub use window::MemoryWindow;
pub use xrc::XrcDomain;
