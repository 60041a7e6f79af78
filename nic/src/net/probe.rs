//! Probes what the kernel's UDP supports, with a pair of temporary sockets.

use super::recv::RecvBatch;
use super::sys::{self, Control, RawAddress};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// How long to wait for a datagram to the same host. Delivery happens inside the send call, unless the machine is
/// under load or a firewall drops the datagram.
const PATIENCE_MS: u16 = 200;

/// Segmentation offload on this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offloads {
    /// The kernel takes a train in one call (UDP GSO, Linux 4.18). `None` if the probe itself failed.
    pub gso: Option<bool>,
    /// A train arrives in one piece (UDP GRO, Linux 5.0). `None` if nothing arrived.
    pub gro: Option<bool>,
}

/// A socket of the family of `ip`, not yet bound.
pub(super) fn udp_socket(ip: IpAddr) -> io::Result<Socket> {
    let domain = if ip.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if ip.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// The control message that makes the payload a train.
pub(super) fn push_segment_size(control: &mut Control, segment_size: u16) {
    control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment_size.to_ne_bytes());
}

/// A receiver and a sender on `ip`, and the receiver's address.
struct Pair {
    receiver: Socket,
    sender: Socket,
    to: RawAddress,
}

impl Pair {
    fn new(ip: IpAddr, scope_id: u32) -> io::Result<Self> {
        let mut any_port = SocketAddr::new(ip, 0);
        if let SocketAddr::V6(v6) = &mut any_port {
            v6.set_scope_id(scope_id);
        }
        let (receiver, sender) = (udp_socket(ip)?, udp_socket(ip)?);
        receiver.bind(&any_port.into())?;
        sender.bind(&any_port.into())?;
        let bound = receiver.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { receiver, sender, to: RawAddress::new(bound) })
    }

    /// Waits for a datagram; false if none arrived.
    fn arrived(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.receiver.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut fds, PollTimeout::from(PATIENCE_MS))? > 0)
    }
}

/// Sends a train of two segments to `ip`, an address of this host, and checks how it arrives.
///
/// # Errors
/// If `ip` is not an address of this host, or sockets cannot be created.
pub fn probe_offloads(ip: IpAddr, scope_id: u32) -> io::Result<Offloads> {
    const SEGMENT: u16 = 8;
    let pair = Pair::new(ip, scope_id)?;
    let gro_known = sys::set_option(pair.receiver.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
    // A kernel that does not know the option ignores the control message and sends one long datagram.
    if sys::set_option(pair.sender.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_err() {
        return Ok(Offloads { gso: Some(false), gro: if gro_known { None } else { Some(false) } });
    }
    let mut control = Control::new();
    push_segment_size(&mut control, SEGMENT);
    let train = [0u8; 2 * SEGMENT as usize];
    if let Err(error) = sys::send(pair.sender.as_fd(), &pair.to, &mut control, &train) {
        let refused = matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP));
        return Ok(Offloads { gso: refused.then_some(false), gro: None });
    }
    if !pair.arrived()? {
        return Ok(Offloads { gso: Some(true), gro: if gro_known { None } else { Some(false) } });
    }
    let mut batch = RecvBatch::with_buffers(2, 64);
    batch.fill(pair.receiver.as_fd(), ip)?;
    let first = batch.datagrams().next().map(|d| (d.bytes.len(), d.segment_size));
    Ok(Offloads {
        gso: Some(first != Some((train.len(), train.len()))),
        gro: Some(first == Some((train.len(), SEGMENT.into()))),
    })
}

/// How many bytes of its receive buffer a socket is charged for one datagram of `len` bytes of UDP payload.
///
/// The kernel charges whole buffers, not bytes: a packet of 84 bytes may cost ten times its length. Packets that
/// arrive merged cost less; single ones are the worst case, so credits are based on this charge.
///
/// # Errors
/// If `ip` is not an address of this host, the datagram does not arrive, or the kernel has no `SO_MEMINFO` (before
/// Linux 4.12).
pub fn receive_charge(ip: IpAddr, scope_id: u32, len: usize) -> io::Result<u32> {
    let pair = Pair::new(ip, scope_id)?;
    sys::send(pair.sender.as_fd(), &pair.to, &mut Control::new(), &vec![0; len])?;
    if !pair.arrived()? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(sys::mem_info(pair.receiver.as_fd())?.charged)
}
