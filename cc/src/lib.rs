//! When a NIC may send: how much may be in flight to a peer, and how fast.
//!
//! The crate is sans-IO: time is an argument, randomness a seed. It does not deal with queue pairs, packets or
//! sockets; it takes numbers of bytes and answers whether and when to send. As elsewhere in rnic, `handle_*` and
//! `on_*` take input, `poll_*` returns output, and `poll_timeout` names the next instant at which something is due.
//!
//! * How fast a flow may send, and how much it may have in flight: [`Algorithm`] chooses, a [`Controller`] for each flow
//!   decides. [`dcqcn`] with its receiver's and its queue's parts and its fluid model, [`dctcp`], [`timely`], [`swift`],
//!   [`nscc`], [`ibcc`], [`hpcc`].
//! * When it may send next at that rate: [`Pacer`].
//! * Whether the receiver has room: [`credits`] as on InfiniBand, [`pfc`] as on lossless Ethernet, [`PeerWindow`] and
//!   [`Drain`] without either.
//! * Which queue of a port sends next: [`vl`] as on InfiniBand, [`ets`] as on Ethernet.
//! * When a line has carried what it was given: [`LineClock`].
//! * How sizes, rates and times are written: [`quantity`].
//!
//! Settings have the names of vendors and standards, the same in configuration files, on command lines and in Rust.
//! Numbers state their origin.

#![forbid(unsafe_code)]

mod control;
pub mod credits;
pub mod dcqcn;
pub mod dctcp;
pub mod drain;
pub mod ets;
pub mod hpcc;
pub mod ibcc;
pub mod inflight;
mod line;
pub mod nscc;
pub mod pacer;
pub mod pfc;
pub mod quantity;
mod random;
mod rate;
mod setting;
pub mod swift;
pub mod timely;
pub mod vl;
mod words;

pub use control::{Ack, Algorithm, Controller, Policy};
pub use drain::{Drain, Pace, Paces};
pub use inflight::{Charge, PeerWindow};
pub use line::LineClock;
pub use pacer::{Pacer, train_bytes};
pub use rate::Rate;
pub use setting::{SettingError, Value, known_settings};
pub use words::{choice, nearest, unknown};
