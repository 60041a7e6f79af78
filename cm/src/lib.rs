//! The connection manager of rnic: how two hosts establish and close a connection (IBTA chapter 12).
//!
//! The crate is sans-IO. It owns no socket, reads no clock, and takes its randomness from a seed. An [`Endpoint`]
//! takes management datagrams that arrived on queue pair 1, calls of the program, and the time; it returns datagrams
//! to send and [events](Event) for the program. It modifies no queue pair: it computes the
//! [attributes](Endpoint::attributes) with which the caller does so.
//!
//! ```text
//!          active side                                            passive side
//!
//!   connect: REQ >     +---------+                +-------------+ < REQ: ConnectRequest
//!                      | ReqSent |                | ReqReceived |
//!                      +---------+                +-------------+
//!  < REP: ConnectResponse   |                            | accept: REP >
//!                    +-------------+                +---------+
//!                    | RepReceived |                | RepSent |
//!                    +-------------+                +---------+
//!           establish: RTU > |                            | < RTU, or a packet: Established
//!                            |       +-------------+      |
//!                            +-----> | Established | <----+
//!                                    +-------------+
//!              disconnect: DREQ > |                  | < DREQ: Disconnected
//!                          +----------+        +--------------+
//!                          | DreqSent |        | DreqReceived |
//!                          +----------+        +--------------+
//!  < DREP, < DREQ, or no answer:  |                  | disconnect: DREP >
//!                    Disconnected |   +----------+   |
//!                                 +-> | TimeWait | <-+
//!                                     +----------+
//!                                          | TimeWaitExit
//! ```
//!
//! From every state before `Established`, `reject` and `destroy` send REJ and lead to `Refused`, where the REJ is
//! repeated if the peer repeats itself; a REJ of the peer leads to the end. The whole table is `next` in `state.rs`.
//!
//! # Time
//!
//! REQ, REP and DREQ are repeated until they are answered. The times come from the messages: the active side waits
//! for the passive side's response timeout and twice the lifetime of a packet, the passive side for the active side's
//! response timeout; the REQ says how often. An MRA extends one wait. TIMEWAIT lasts for the acknowledgement timeout.
//! What a peer's message sets is bounded by [`Config::timeouts`].
//!
//! # Who is believed
//!
//! UDP addresses can be forged, so a datagram proves little:
//!
//! * A REQ whose primary path names another address than that of its packet is dropped. So a REQ can send answers to
//!   nobody but the address it came from.
//! * A message changes a connection only if it comes from the peer's address and names the connection's IDs, both of
//!   them where it carries both. IDs, transaction IDs and starting PSNs are unpredictable.
//! * A source is proven if the driver says so, or if a connection with it was established and is not forgotten yet.
//!   The others share the places that [`Limits`] does not reserve for proven ones. If those are taken, the oldest
//!   half-open connection that is older than a grace period makes room; without one, the REQ is dropped, and its
//!   sender will repeat it. Established connections are not affected.
//! * An answer has the length of the datagram that it answers. The exception is REP, which a timer repeats a few
//!   times to an unproven source ([`Limits::unproven_retries`]).
//! * A REQ that names the queue pair of an established connection is rejected as stale, and ends nothing:
//!   see [`StalePolicy`].
//!
//! A peer is sent a bounded number of REQs and SIDR_REQs at a time ([`Limits::requests_per_peer`]). The others wait until one of those is
//! answered: what a peer has no room for would be lost, and repeated only after seconds.
//!
//! All tables are bounded by [`Limits`]. A message costs the logarithm of such a bound, or less. What is dropped is
//! counted by its reason ([`DropReason`]).

#![forbid(unsafe_code)]

mod config;
mod counters;
mod endpoint;
mod error;
mod event;
mod negotiated;
mod params;
mod state;

pub use config::{Config, Limits, StalePolicy};
pub use counters::{Counters, DropReason};
pub use endpoint::{Connected, Endpoint, Entry, Recipient};
pub use error::CallError;
pub use event::{DisconnectCause, Event, FailCause, Rejection, Silence};
pub use negotiated::{Negotiated, Placement, UDP_QKEY, ack_timeout, unconnected};
pub use params::{
    Accept, Connect, Destination, Ece, Listen, Path, Query, Reply, Request, Resolve, Resolved, Response,
    Source, Transmit,
};
pub use qp::wire::mad::cm::{
    Attribute, CmTimeout, CommId, IpCm, PortSpace, RejReason, ServiceId, SidrStatus, Subject,
};
pub use state::ConnectionState;

/// A connection of an [`Endpoint`]: its local communication ID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(CommId);

impl ConnectionId {
    /// The local communication ID, which the connection's messages carry.
    #[must_use]
    pub const fn comm_id(self) -> CommId {
        self.0
    }
}

/// A listener of an [`Endpoint`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(u64);

/// A resolution that the program has started.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResolutionId(CommId);

/// A query of a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueryId(u64);
