//! The RoCEv2 transport: wire formats and queue pairs.
//!
//! The crate is sans-IO. It owns no socket, reads no clock and needs no randomness: time is an argument, memory is
//! a trait ([`Memory`]), packets are byte slices. The caller drives a [`QueuePair`] through this contract:
//!
//! * commands (`post_*`, `modify`) and `handle_*` accept input; they never send anything;
//! * `poll_transmit` writes the packets that are due into a [`Train`]; it never waits;
//! * `poll_timeout` returns the next instant at which the caller must call `handle_timeout`;
//! * completions, events and every memory access go through the [`Host`] that the caller passes in.
//!
//! A packet is built only when it is about to be sent. Nothing is queued between the requester and the wire, so a
//! NAK, a rate cut or a missing credit affects the very next packet.
//!
//! The crate implements the rules of the InfiniBand Architecture Specification volume 1 (cited as "IBTA" with the
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
