//! A receiving socket: its options, its datagrams, and the drops that the kernel reports.

use super::error::{BindError, not_bound};
use super::probe::udp_socket;
use super::recv::{RecvBatch, RecvError};
use super::socket::SocketConfig;
use super::sys;
use rnic_core::tally::{Capabilities, Gso, Tally};
use socket2::Socket;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many errors of earlier sends one receive call skips before it returns to the engine.
const MAX_PENDING_ERRORS: usize = 16;

/// Creates an unbound receiving socket, and reports which options were enabled.
pub(super) fn unbound(
    config: &SocketConfig,
    address: SocketAddr,
) -> Result<(Socket, Capabilities), BindError> {
    let os = |error| not_bound(address, error);
    let socket = udp_socket(config.ip).map_err(os)?;
    let size = i32::try_from(config.recv_buffer).unwrap_or(i32::MAX);
    // Root may exceed the limit of the host; others get as much as the limit allows.
    if sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size).is_err() {
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, size).map_err(os)?;
    }
    let capabilities = enable(config, socket.as_fd());
    Ok((socket, capabilities))
}

/// Enables the options of a receiving socket, and reports which ones the kernel has.
pub(super) fn enable(config: &SocketConfig, fd: BorrowedFd<'_>) -> Capabilities {
    let on = |level, name| sys::set_option(fd, level, name, 1).is_ok();
    let v4 = config.ip.is_ipv4();
    if !v4 {
        // If it is refused, flow labels read as 0.
        on(libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO);
    }
    Capabilities {
        gso: Gso::Unknown,
        gro: config.gro && on(libc::SOL_UDP, libc::UDP_GRO),
        tos: if v4 {
            on(libc::IPPROTO_IP, libc::IP_RECVTOS)
        } else {
            on(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)
        },
        ttl: if v4 {
            on(libc::IPPROTO_IP, libc::IP_RECVTTL)
        } else {
            on(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)
        },
        drops: on(libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
        // Over IPv4 a checksum of 0 means no checksum, and is always accepted.
        no_checksum: v4 || on(libc::SOL_UDP, libc::UDP_NO_CHECK6_RX),
        // A socket has a buffer; if its size cannot be read, credits begin with none.
        rcvbuf: socket2::SockRef::from(&fd).recv_buffer_size().unwrap_or(0),
    }
}

/// A bound socket that receives.
pub(super) struct Receiver {
    socket: Socket,
    /// The address that it receives for.
    ip: IpAddr,
    tally: Arc<Tally>,
    /// The kernel's own drop count when last seen; it counts modulo 2^32.
    kernel_drops: AtomicU32,
}

impl Receiver {
    /// `tally` may be shared with other sockets.
    pub(super) fn new(socket: Socket, ip: IpAddr, tally: Arc<Tally>) -> Self {
        Self { socket, ip, tally, kernel_drops: AtomicU32::new(0) }
    }

    /// See [`RoceSocket::recv`](super::RoceSocket::recv).
    pub(super) fn recv(&self, batch: &mut RecvBatch) -> Result<usize, RecvError> {
        for _ in 0..MAX_PENDING_ERRORS {
            let error = match batch.fill(self.socket.as_fd(), self.ip) {
                Ok(filled) => {
                    self.account(batch);
                    return Ok(filled);
                }
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return Ok(0),
                Some(libc::EINTR) => {}
                Some(
                    libc::ECONNREFUSED
                    | libc::EHOSTUNREACH
                    | libc::ENETUNREACH
                    | libc::EHOSTDOWN
                    | libc::ENETDOWN
                    | libc::EMSGSIZE
                    | libc::EPROTO
                    | libc::ENOPROTOOPT
                    | libc::EACCES
                    | libc::EOPNOTSUPP
                    | libc::ENONET,
                ) => {
                    self.tally.receive_errors.fetch_add(1, Relaxed);
                }
                _ => return Err(error.into()),
            }
        }
        Ok(0)
    }

    fn account(&self, batch: &mut RecvBatch) {
        let (mut datagrams, mut bytes, mut truncated) = (0, 0, 0);
        for datagram in batch.datagrams() {
            datagrams += 1;
            bytes += datagram.bytes.len() as u64;
            truncated += u64::from(datagram.truncated);
        }
        self.tally.receives.fetch_add(datagrams, Relaxed);
        self.tally.received_bytes.fetch_add(bytes, Relaxed);
        if truncated != 0 {
            self.tally.receive_truncated.fetch_add(truncated, Relaxed);
        }
        if let Some(count) = batch.drop_count() {
            batch.dropped = self.note_drops(count);
        }
    }

    /// Adopts the kernel's drop count, which wraps at 2^32; returns the number of new drops.
    fn note_drops(&self, count: u32) -> u64 {
        // Two threads may see counts in the wrong order: only a step forward counts.
        let ahead = |old: u32| (count.wrapping_sub(old) as i32 > 0).then_some(count);
        let Ok(old) = self.kernel_drops.fetch_update(Relaxed, Relaxed, ahead) else { return 0 };
        let new = u64::from(count.wrapping_sub(old));
        self.tally.drops.fetch_add(new, Relaxed);
        new
    }

    /// Adopts the kernel's drop count without waiting for another datagram, if the kernel supports that.
    pub(super) fn ask_drops(&self) {
        if let Ok(info) = sys::mem_info(self.socket.as_fd()) {
            self.note_drops(info.drops);
        }
    }

    /// Makes the kernel timestamp datagrams from now on. If it refuses, they have no timestamps.
    pub(super) fn stamp_arrivals(&self) {
        if let Err(error) = sys::set_option(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1) {
            tracing::debug!(%error, "datagrams are not stamped on arrival: they arrive when they are read");
        }
    }

    /// Bytes of the receive buffer that waiting datagrams occupy now.
    pub(super) fn backlog(&self) -> io::Result<u32> {
        sys::mem_info(self.socket.as_fd()).map(|info| info.charged)
    }

    /// The socket, for another process.
    pub(super) fn into_fd(self) -> OwnedFd {
        self.socket.into()
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
