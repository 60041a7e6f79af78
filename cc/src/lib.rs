//! When a NIC may send: how much may be on the way to a peer, and how fast.
//!
//! The crate is sans-IO: time is an argument, randomness a seed. It knows nothing of queue pairs, packets or sockets;
//! it is told numbers of bytes and answers whether and when.


#![forbid(unsafe_code)]

mod control;
pub mod credits;
pub mod dcqcn;
pub mod dctcp;
pub mod drain;
pub mod ets;
pub mod inflight;
pub mod pacer;
pub mod pfc;
mod random;
mod rate;
mod setting;
pub mod timely;
pub mod vl;
pub mod wheel;

pub use control::{Ack, Algorithm, Controller, Policy};
pub use drain::{Drain, Pace};
pub use inflight::{Charge, PeerWindow};
pub use pacer::{Pacer, train_bytes};
pub use rate::{ParseRateError, Rate};
pub use setting::{SettingError, Value};
pub use wheel::Wheel;
