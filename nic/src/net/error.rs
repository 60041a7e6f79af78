//! Why a socket cannot be bound, and why a train was lost.

use std::io;
use std::net::{IpAddr, SocketAddr};
use thiserror::Error;

pub use rnic_core::error::BindError;

/// Why `address` cannot be bound.
pub(super) fn not_bound(address: SocketAddr, source: io::Error) -> BindError {
    match source.raw_os_error() {
        Some(libc::EADDRINUSE) => BindError::AddressInUse(address),
        Some(libc::EADDRNOTAVAIL | libc::ENODEV) => BindError::NotLocal(address),
        Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) => BindError::NoFamily(address.ip()),
        _ => BindError::Os { address, source },
    }
}

/// Why a train was not sent. None of these is fatal: to the transport they are lost packets.
#[derive(Debug, Error)]
pub enum SendError {
    /// A packet is longer than the path carries unfragmented.
    #[error("a packet of {segment_size} bytes exceeds the MTU of the path to {dst}: use a smaller path MTU")]
    TooBig {
        /// UDP payload of a packet.
        segment_size: usize,
        /// The destination.
        dst: IpAddr,
    },
    /// The kernel cannot send trains, at least not to this destination. From now on
    /// [`RoceSocket::gso_segments`](super::RoceSocket::gso_segments) is 1. The packets cannot be sent one by one as
    /// they are: the ICRCs of all but the first cover their index as IPv4 identification, and as single datagrams
    /// they carry 0. Their ICRCs have to be computed again.
    #[error("the kernel refuses trains (UDP_SEGMENT); sending packet by packet from now on")]
    GsoRefused,
    /// More packets or bytes than a train may have.
    #[error("a train of {bytes} bytes in packets of {segment_size}: at most 64 packets and 65507 bytes")]
    TrainTooLong {
        /// Length of the train.
        bytes: usize,
        /// Length of each packet.
        segment_size: usize,
    },
    /// An IPv6 destination from an IPv4 address or the reverse.
    #[error("{dst} is of another address family than {src}")]
    WrongFamily {
        /// The socket's address.
        src: IpAddr,
        /// The destination.
        dst: IpAddr,
    },
    /// No route, no neighbour, or the interface is down.
    #[error("{dst} cannot be reached: {source}")]
    Unreachable {
        /// The destination.
        dst: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// A firewall on this host drops it.
    #[error("a firewall rule of this host forbids packets to {dst} UDP port 4791")]
    Filtered {
        /// The destination.
        dst: IpAddr,
    },
    /// Anything else.
    #[error("sending to {dst} failed: {source}")]
    Os {
        /// The destination.
        dst: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
}

impl SendError {
    pub(super) fn new(dst: IpAddr, segment_size: usize, source: io::Error) -> Self {
        match source.raw_os_error() {
            // Older kernels return EINVAL for a train whose packets exceed the MTU.
            Some(libc::EMSGSIZE | libc::EINVAL) => Self::TooBig { segment_size, dst },
            Some(libc::EPERM | libc::EACCES) => Self::Filtered { dst },
            Some(
                libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::EHOSTDOWN
                | libc::ECONNREFUSED
                | libc::EADDRNOTAVAIL
                | libc::ENONET
                | libc::ENODEV,
            ) => Self::Unreachable { dst, source },
            _ => Self::Os { dst, source },
        }
    }
}
