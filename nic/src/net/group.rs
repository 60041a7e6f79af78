//! The socket of a multicast group.
//!
//! Each group has its own socket, bound to the address of the group. So its datagrams were sent to this group and to
//! no other, which the ICRC depends on. Several programs on a host may join the same group, and the kernel gives each
//! a copy. A program sends to a group from its ordinary sockets, and members on the same host get a copy, including
//! the sender.
//!
//! On the loopback interface a packet to a group arrives once at each member, as on any other interface. Over IPv4 that
//! takes no preparation; over IPv6 the loopback interface has no route for groups, and an administrator
//! has to add one ([`JoinError::NoRoute`] says how).

use super::error::{BindError, not_bound};
use super::interfaces::interfaces;
use super::probe::udp_socket;
use super::receiver::{self, Receiver};
use super::recv::{RecvBatch, RecvError};
use super::socket::SocketConfig;
use super::sys;
use libc::{IPPROTO_IP, IPPROTO_IPV6};
use rnic_core::error::JoinError;
use rnic_core::tally::Tally;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A member's socket of one multicast group: it only receives. Dropping it leaves the group.
pub struct GroupSocket {
    group: IpAddr,
    receiver: Receiver,
}

impl GroupSocket {
    pub(super) fn join(config: &SocketConfig, group: IpAddr, tally: Arc<Tally>) -> Result<Self, JoinError> {
        let group = group.to_canonical();
        if !group.is_multicast() {
            return Err(JoinError::NotAGroup(group));
        }
        if group.is_ipv4() != config.ip.is_ipv4() {
            return Err(JoinError::WrongFamily { group, ip: config.ip });
        }
        check_route(config, group)?;
        let mut address = config.address(group, config.port);
        if let (std::net::SocketAddr::V6(v6), Some(index)) = (&mut address, config.interface_index()) {
            v6.set_scope_id(index.unsigned_abs());
        }
        let (socket, _) =
            receiver::unbound(config, address).map_err(|error| from_bind(group, config, error))?;
        let os = |source| JoinError::Os { group, source };
        socket.set_reuse_address(true).map_err(os)?;
        only_own_groups(socket.as_fd(), group);
        socket.bind(&address.into()).map_err(|error| from_bind(group, config, not_bound(address, error)))?;
        become_member(socket.as_fd(), config, group)
            .map_err(|source| JoinError::NoMulticast { ip: config.ip, source })?;
        Ok(Self { group, receiver: Receiver::new(socket, group, tally) })
    }

    pub(super) fn adopt(group: IpAddr, socket: OwnedFd, tally: Arc<Tally>) -> Self {
        let group = group.to_canonical();
        Self { group, receiver: Receiver::new(socket.into(), group, tally) }
    }

    /// The socket, for another process, which becomes a member in place of this one.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.receiver.into_fd()
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> IpAddr {
        self.group
    }

    /// As [`RoceSocket::recv`](super::RoceSocket::recv), for datagrams to the group.
    ///
    /// # Errors
    /// Only if the socket itself is unusable.
    pub fn recv(&self, batch: &mut RecvBatch) -> Result<usize, RecvError> {
        self.receiver.recv(batch)
    }

    /// Adds the kernel's count of datagrams dropped here to the counters of the port's sockets, without waiting for
    /// another datagram.
    pub fn ask_drops(&self) {
        self.receiver.ask_drops();
    }

    /// Its descriptor, which a forked child must close: otherwise it stays a member.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.receiver.raw_fd()
    }
}

/// To be polled.
impl AsFd for GroupSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl fmt::Debug for GroupSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupSocket({})", self.group)
    }
}

fn from_bind(group: IpAddr, config: &SocketConfig, error: BindError) -> JoinError {
    match error {
        BindError::AddressInUse(_) => JoinError::InUse { group, port: config.port },
        BindError::Os { source, .. } => JoinError::Os { group, source },
        other => JoinError::Os { group, source: io::Error::other(other.to_string()) },
    }
}

/// Keeps out packets that arrive on other interfaces for other programs' memberships.
fn only_own_groups(fd: BorrowedFd<'_>, group: IpAddr) {
    /// libc defines it for some systems only.
    const IPV6_MULTICAST_ALL: libc::c_int = 29;
    let (level, name) = match group {
        IpAddr::V4(_) => (IPPROTO_IP, libc::IP_MULTICAST_ALL),
        IpAddr::V6(_) => (IPPROTO_IPV6, IPV6_MULTICAST_ALL),
    };
    // If it is refused (IPv6 before Linux 4.20), copies from other interfaces may arrive: these are still packets of
    // this group.
    let _ = sys::set_option(fd, level, name, 0);
}

/// Joins on the interface of the port's address.
fn become_member(fd: BorrowedFd<'_>, config: &SocketConfig, group: IpAddr) -> io::Result<()> {
    match (group, config.ip) {
        (IpAddr::V4(group), IpAddr::V4(ip)) => {
            // struct ip_mreqn: the group, an address of the interface, and its number (0: by the address). The kernel
            // finds the loopback interface for all of 127.0.0.0/8.
            let mut request = [0; 12];
            request[..4].copy_from_slice(&group.octets());
            request[4..8].copy_from_slice(&ip.octets());
            sys::set_option_bytes(fd, IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)
        }
        (IpAddr::V6(group), _) => {
            // struct ipv6_mreq: the group and the number of the interface.
            let index = config.interface_index().ok_or(io::ErrorKind::AddrNotAvailable)?;
            let mut request = [0; 20];
            request[..16].copy_from_slice(&group.octets());
            request[16..].copy_from_slice(&index.to_ne_bytes());
            sys::set_option_bytes(fd, IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Checks whether the port could send to the group: joining succeeds without a route, and nothing would ever arrive.
fn check_route(config: &SocketConfig, group: IpAddr) -> Result<(), JoinError> {
    let os = |source| JoinError::Os { group, source };
    let probe = udp_socket(config.ip).map_err(os)?;
    if config.ip.is_ipv6()
        && let Some(index) = config.interface_index()
    {
        sys::set_option(probe.as_fd(), IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index).map_err(os)?;
    }
    probe.bind(&config.address(config.ip, 0).into()).map_err(os)?;
    let Err(error) = probe.connect(&config.address(group, config.port).into()) else { return Ok(()) };
    match error.raw_os_error() {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::EINVAL) => {
            Err(JoinError::NoRoute { group, remedy: remedy(config.ip) })
        }
        _ => Err(os(error)),
    }
}

/// The command that adds a route for groups to the interface of `ip`.
fn remedy(ip: IpAddr) -> String {
    let owner = interfaces().ok().and_then(|all| all.into_iter().find(|i| i.has(ip)));
    let name = owner.as_ref().map_or("INTERFACE", |i| &i.name);
    match ip {
        IpAddr::V4(_) => format!("ip route add 224.0.0.0/4 dev {name}"),
        // The kernel creates a trap for packets of any other route on the loopback interface.
        IpAddr::V6(_) if owner.as_ref().is_some_and(|i| i.loopback) => {
            format!("ip -6 route add local ff00::/8 dev {name} table local")
        }
        IpAddr::V6(_) => format!("ip -6 route add multicast ff00::/8 dev {name} table local"),
    }
}
