//! The UDP sockets below the engine.
//!
//! RoCEv2 is UDP to port 4791. A [`RoceSocket`] owns the receiving socket of one address and the sockets it
//! sends from; a [`GroupSocket`] receives what is sent to one multicast group; a [`RecvBatch`] holds what one receive call brought. Everything here is plain system calls
//! without allocation; who waits, and when, is decided above.
//!
//! The ICRC at the end of each packet covers fields of the IP and UDP headers that a socket neither sets nor
//! shows, so this layer promises what the kernel will put there:
//!
//! | field | value | because |
//! |---|---|---|
//! | UDP source port | [`RoceSocket::source_port`] | the port really bound |
//! | UDP destination port | [`SocketConfig::port`] | |
//! | IPv4 identification | 0, and *i* in segment *i* of a train | unconnected socket, DF set (`IP_PMTUDISC_DO`) |
//! | IPv4 flags and offset | DF, 0 | the same |
//!
//! What the ICRC does not cover goes with each train ([`Way`]): TOS, hop limit and IPv6 flow label. It costs a control
//! message only where it differs from the socket's own values, and arrives in a [`Datagram`].
//!
//! On loopback a train reaches a `UDP_GRO` socket without ever being split, so that no such header exists.
//! Both ends then compute the ICRC as if it had been.

pub mod baseline;
mod error;
mod group;
mod interfaces;
mod probe;
mod receiver;
mod recv;
mod route;
mod sender;
mod sign;
mod socket;
mod sys;
mod tally;
mod watch;

#[cfg(test)]
mod tests;

pub use error::{BindError, SendError};
pub use group::{GroupSocket, JoinError};
pub use interfaces::{Interface, interfaces};
pub use probe::{Offloads, probe_offloads, receive_charge};
pub use recv::{Datagram, RecvBatch, RecvError};
pub(crate) use sign::{has_sign, signed_port};
pub use socket::{
    Capabilities, DEFAULT_HOP_LIMIT, Gso, MAX_TRAIN_BYTES, MAX_TRAIN_SEGMENTS, ROCE_PORT, RoceSocket,
    SOURCE_PORTS, Sent, SocketConfig, Way,
};
pub(crate) use sys::namespace_cookie;
pub use tally::SocketCounters;
pub(crate) use watch::{HostState, HostWatch};
