//! `rnic daemon`: many programs, one address.
//!
//! The daemon owns the sockets of its addresses and hands slots of them to programs; what that means, and the programs'
//! side of it, is in [`rnic::daemon`]. This crate is the other side:
//!
//! - [`Config`]: what is shared, and with whom.
//! - `server`: what all programs share, and the life of the daemon. `program`: a connection of a program, a task each.
//! - `nic`: an address: its group of sockets, its slots, and the daemon's own device at slot 0, whose engine passes
//!   datagrams of queue pair 1 on to programs.
//! - `programs`: who the programs are, and what they publish; `metrics`: the same for Prometheus.
//! - `slots`: who has which slot, without sockets and clocks.
//! - [`store`]: the keeper, a small process in which the sockets survive the daemon.

#![deny(unsafe_code)]

mod config;
mod metrics;
mod nic;
mod program;
mod programs;
mod server;
mod slots;
pub mod store;

pub use config::{Admitted, Config, ConfigError, EXAMPLE, Limits, Wanted};
pub use server::{DaemonFault, run};
