//! What a RoCEv2 NIC says: wire formats and queue pairs.
//!
//! The crate is sans-IO. It owns no socket, reads no clock and needs no randomness: time is an argument,
//! memory is a trait ([`Memory`]), packets are byte slices. Whoever drives a [`QueuePair`] keeps this contract:
//!
//! * commands (`post_*`, `modify`) and `handle_*` take something in; they never send anything;
//! * `poll_transmit` writes packets that are due into a [`Train`]; it never waits;
//! * `poll_timeout` names the next instant at which `handle_timeout` wants to be called;
//! * completions, events and every memory access go through the [`Host`] that is passed in.
//!
//! A packet exists only once it is about to be sent: nothing is queued between the requester and the wire, so
//! a NAK, a rate cut or a missing credit acts on the very next packet.
//!
//! The crate knows the rules of the InfiniBand Architecture Specification volume 1 (cited as "IBTA" with the
//! number of the rule, in our own words) and of its annexes A16 and A17 (RoCE).

#![forbid(unsafe_code)]

pub mod attr;
pub mod counters;
pub mod ids;
pub mod memory;
pub mod queue_pair;
pub mod train;
pub mod wire;
pub mod work;

pub use attr::{AttrMask, ModifyError, QpAttr, QpCap, QpState, QpType};
pub use ids::{Gid, Mtu, PKey, ParseMtuError, PdId, Psn, QKey, Qpn};
pub use memory::{Access, AccessError, AtomicOp, Domain, Host, Memory};
pub use queue_pair::QueuePair;
pub use train::Train;
pub use work::{
    Destination, FlushKind, Gather, Operation, RecvWr, Remote, SendFlags, SendWr, Sge, WcFlags, WcOpcode,
    WcStatus, WorkCompletion,
};
