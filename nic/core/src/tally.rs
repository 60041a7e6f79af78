//! What sockets report: their capabilities and counters.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Whether the kernel takes trains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Gso {
    /// No attempt has succeeded yet.
    Unknown = 0,
    /// The kernel takes trains.
    Works = 1,
    /// The kernel refuses trains, or the configuration forbids them.
    Refused = 2,
}

/// The capabilities of a socket, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Whether trains are sent in one call.
    pub gso: Gso,
    /// Whether merged packets are received.
    pub gro: bool,
    /// Whether DSCP and ECN of received packets are known.
    pub tos: bool,
    /// Whether the TTL or hop limit of received packets is known.
    pub ttl: bool,
    /// Whether the kernel reports how many packets it dropped.
    pub drops: bool,
    /// Whether packets without a UDP checksum are received: Linux rxe sends such packets over IPv6.
    pub no_checksum: bool,
    /// Effective receive buffer in bytes, as the kernel charges them.
    pub rcvbuf: usize,
}

/// Declares the counters once: live, as a snapshot, and the copying between them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Activity of a socket since it was bound, including the sockets of its multicast groups.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
        pub struct SocketCounters { $($(#[$doc])* pub $name: u64,)* }

        /// The live counters.
        #[derive(Debug, Default)]
        pub struct Tally { $($(#[$doc])* pub $name: AtomicU64,)* }

        impl Tally {
            /// Their values now.
            pub fn snapshot(&self) -> SocketCounters {
                SocketCounters { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Send calls that the kernel accepted, each for a packet or a train.
    sends,
    /// UDP payload in them.
    sent_bytes,
    /// Sends that were postponed because the kernel had no room.
    send_would_block,
    /// Sends lost to the path MTU.
    send_too_big,
    /// Sends lost for lack of a route or neighbour.
    send_unreachable,
    /// Sends lost to a firewall rule.
    send_filtered,
    /// Sends lost for other reasons: refused trains, invalid arguments.
    send_failed,
    /// Sends that left without the requested IPv6 flow label, because another program holds it exclusively.
    flow_labels_refused,
    /// Datagrams received, merged ones counted once.
    receives,
    /// UDP payload in them.
    received_bytes,
    /// Datagrams that arrived incomplete.
    receive_truncated,
    /// Errors that the network reported (ICMP) and that were skipped.
    receive_errors,
    /// Datagrams that the kernel dropped: receive buffer full or checksum wrong.
    drops,
}
