//! The UDP sockets below the engine.
//!
//! RoCEv2 is UDP to port 4791. A [`RoceSocket`] owns the receiving socket of one address and the sockets that it
//! sends from, a [`GroupSocket`] receives datagrams to one multicast group, and a [`RecvBatch`] holds the datagrams
//! of one receive call. This layer makes plain system calls without allocation. The layers above decide when to wait.
//!
//! The ICRC at the end of each packet covers fields of the IP and UDP headers that a socket neither sets nor sees, so
//! this layer guarantees the values that the kernel puts there:
//!
//! | field | value | because |
//! |---|---|---|
//! | UDP source port | [`RoceSocket::source_port`] | the port that is bound |
//! | UDP destination port | [`SocketConfig::port`] | |
//! | IPv4 identification | 0, and *i* in segment *i* of a train | unconnected socket, DF set (`IP_PMTUDISC_DO`) |
//! | IPv4 flags and offset | DF, 0 | the same |
//!
//! The fields that the ICRC does not cover can be set for each train ([`IpHeader`](qp::wire::IpHeader)): TOS, hop limit and
//! IPv6 flow label.
//! They cost a control message only if they differ from the socket's own values, and they arrive in a [`Datagram`].
//!
//! On loopback a train reaches a `UDP_GRO` socket without being split, so the headers of its packets never exist.
//! Both ends then compute the ICRC as if it had been split.

pub mod baseline;
mod error;
mod group;
mod interfaces;
mod probe;
mod receiver;
mod recv;
mod route;
mod sender;
mod share;
mod socket;
mod sys;
mod watch;

#[cfg(test)]
mod tests;

pub use error::{BindError, SendError};
pub use group::GroupSocket;
pub use interfaces::{Interface, interfaces};
pub use probe::{Offloads, probe_offloads, receive_charge};
pub use recv::{RecvBatch, RecvError};
pub use rnic_core::datagram::{DEFAULT_HOP_LIMIT, Datagram, SOURCE_PORTS};
pub use rnic_core::error::JoinError;
pub use rnic_core::tally::{Capabilities, Gso, SocketCounters};
pub use share::{MOST_SENDERS, MOST_SLOTS, SharedAddress};
pub use socket::{
    MAX_TRAIN_BYTES, MAX_TRAIN_SEGMENTS, ROCE_PORT, RoceSocket, Sent, SlotSockets, SocketConfig,
};
pub(crate) use sys::namespace_cookie;
pub use watch::{HostState, HostWatch};
