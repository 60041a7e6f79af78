//! Why a port has no sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use thiserror::Error;

/// How many loopback addresses are tried for a device without an address.
pub const LOOPBACK_TRIES: u8 = 254;

/// Why an address cannot be served.
#[derive(Debug, Error)]
pub enum BindError {
    /// Another socket holds the port on this address or on all addresses.
    #[error(
        "{0} is taken, by another rnic program or the kernel's rdma_rxe: `rnic doctor` says by whom; \
         use another address of this host"
    )]
    AddressInUse(SocketAddr),
    /// All the loopback addresses tried are taken.
    #[error(
        "port {port} is taken on 127.0.0.1 to 127.0.0.{LOOPBACK_TRIES}: a wildcard bind, such as that of the \
         kernel's rdma_rxe, takes them all; `rnic doctor` says who"
    )]
    NoFreeLoopback {
        /// The UDP port.
        port: u16,
    },
    /// The address is not one of this host's.
    #[error("{0} is not an address of this host (`ip address` lists them)")]
    NotLocal(SocketAddr),
    /// A wildcard or multicast address.
    #[error("{0} cannot be a RoCEv2 source: name one unicast address of this host")]
    NotUnicast(IpAddr),
    /// The host has no such protocol.
    #[error("this host has no {}: use an address of the other family", if .0.is_ipv4() { "IPv4" } else { "IPv6" })]
    NoFamily(IpAddr),
    /// All dynamic ports are taken.
    #[error("no free UDP port from 49152 to 65535 on {0} to send from: close some programs' sockets")]
    NoSourcePort(IpAddr),
    /// The kernel lacks an option without which ICRCs would be wrong.
    #[error(
        "the kernel refuses {name}, which fixes the IPv4 identification under the ICRC: {source}; try IPv6"
    )]
    Option {
        /// The socket option.
        name: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel does not let several sockets share an address by the program that steers packets.
    #[error("the kernel refuses {name}, without which programs cannot share an address: {source}")]
    NoSharing {
        /// The socket option.
        name: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// All slots of a shared address are taken, or this one does not exist.
    #[error("{ip} has no free slot: {most} programs at most share an address")]
    NoSlot {
        /// The address.
        ip: IpAddr,
        /// How many programs can share it.
        most: usize,
    },
    /// Anything else, such as too many open files.
    #[error("cannot make a UDP socket on {address}: {source}")]
    Os {
        /// The requested address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Why a multicast group cannot be joined.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The address is not one of a group.
    #[error("{0} is not a multicast group: groups are 224.0.0.0/4 and ff00::/8")]
    NotAGroup(IpAddr),
    /// The group is of the other IP family than the port.
    #[error("{group} is a group of the other IP family than {ip}, the address of the port")]
    WrongFamily {
        /// The group.
        group: IpAddr,
        /// Address of the port.
        ip: IpAddr,
    },
    /// A program that does not share the address holds the group's address or all addresses.
    #[error(
        "UDP port {port} of {group} is taken by a program that does not share it, the kernel's rdma_rxe perhaps: \
         `rnic doctor` says by whom"
    )]
    InUse {
        /// The group.
        group: IpAddr,
        /// The UDP port.
        port: u16,
    },
    /// The interface does not support multicast groups.
    #[error(
        "the interface of {ip} takes part in no multicast groups (`ip link set ... multicast on`): {source}"
    )]
    NoMulticast {
        /// Address of the port.
        ip: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// Nothing could be sent to the group.
    #[error("no route to the group {group}: {remedy}")]
    NoRoute {
        /// The group.
        group: IpAddr,
        /// The command that adds one.
        remedy: String,
    },
    /// Anything else, such as too many open files.
    #[error("cannot join the group {group}: {source}")]
    Os {
        /// The group.
        group: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
}
