//! `rnic daemon`: many programs, one address.
//!
//! The daemon owns the sockets of its addresses and hands slots of them to programs; what that means, and the programs'
//! side of it, is in [`rnic::daemon`]. This crate is the other side:
//!
//! - [`Config`]: what is shared, and with whom.
//! - `server`: what all programs share, and the life of the daemon. `program`: a connection of a program, a task each;
//!   `session`: what is said over it, without its bytes.
//! - `nic`: an address: its group of sockets, its slots, and the daemon's own device at slot 0, whose engine passes
//!   datagrams of queue pair 1 on to programs.
//! - `programs`: who the programs are, and what they publish; `metrics`: the same for Prometheus.
//! - `slots`: who has which slot, without sockets and clocks.
//! - [`trial`]: a daemon without sockets for programs, for tests of what programs may say.
//! - [`store`]: the keeper, a small process in which the sockets survive the daemon.

#![deny(unsafe_code)]

mod config;
mod metrics;
mod nic;
mod program;
mod programs;
mod server;
mod session;
mod slots;
pub mod store;
pub mod trial;

pub use config::{Admitted, Config, ConfigError, EXAMPLE, Limits, Wanted};
pub use server::{DaemonFault, run};
