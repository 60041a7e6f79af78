//! A fabric in virtual time: switches and cables between NICs.
//!
//! The hosts are devices of [`rnic_core::sim`], with the very engine that runs on sockets. The fabric carries their packets:
//! it is a [`Network`](rnic_core::sim::Network) of nodes that open no sockets and read no clock. So the same scenario and the
//! same seed give the same result on every machine, however busy it is.
//!
//! From the bottom up:
//!
//! - [`topology`]: which nodes there are, and the cables between them.
//! - [`routing`]: the ports of each switch that lead to a host.
//! - [`balance`]: which of several equal ports a packet takes.
//! - [`switch`]: buffers, queues and lanes.
//! - [`network`]: packets from port to port, pauses, credits, marks and drops.
//! - [`workload`]: who sends what to whom.
//! - [`run`]: devices at the hosts, and flows between their queue pairs.
//! - [`report`]: what came out.
//! - [`subnet`]: agents that a subnet manager finds, and the tables that it writes.
//! - [`scenario`]: all of that from a file, with what must come out.

#![forbid(unsafe_code)]

pub mod balance;
pub mod network;
pub mod report;
pub mod routing;
pub mod run;
pub mod scenario;
pub mod subnet;
pub mod switch;
pub mod topology;
mod words;
pub mod workload;
