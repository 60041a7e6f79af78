//! A sending socket: bound to its own source port, with fixed values for everything that the ICRC covers.

use super::error::{BindError, not_bound};
use super::probe::udp_socket;
use super::socket::SocketConfig;
use super::sys::{self, Control, RawAddress};
use rnic_core::datagram::{DEFAULT_HOP_LIMIT, SOURCE_PORTS};
use rnic_core::engine::has_sign;
use socket2::Socket;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// How many flow labels a socket leases at once: half of the 32 that the kernel lets an ordinary user's socket have
/// (`FL_MAX_PER_SOCK`).
const MAX_LEASES: usize = 16;

/// A socket to send from, and the port it is bound to.
pub(super) struct Sender {
    socket: Socket,
    pub(super) port: u16,
    /// Flow labels that had to be leased, oldest first.
    leases: Mutex<VecDeque<u32>>,
}

impl Sender {
    /// A socket bound to a free port of [`SOURCE_PORTS`], preferably one that marks it as rnic.
    pub(super) fn bind(config: &SocketConfig) -> Result<Self, BindError> {
        let os = |error| not_bound(config.address(config.ip, 0), error);
        let socket = udp_socket(config.ip).map_err(os)?;
        fix_headers(socket.as_fd(), config)
            .map_err(|source| BindError::Option { name: "IP_PMTUDISC_DO", source })?;
        // This socket is never read. Datagrams sent to it by mistake should not occupy memory.
        socket.set_recv_buffer_size(0).map_err(os)?;
        let ports = SOURCE_PORTS.end() - SOURCE_PORTS.start() + 1;
        let start = rand::random_range(0..ports);
        let all = (0..ports).map(|step| SOURCE_PORTS.start() + (start + step) % ports);
        for port in all.clone().filter(|port| has_sign(*port)).chain(all.filter(|port| !has_sign(*port))) {
            match socket.bind(&config.address(config.ip, port).into()) {
                Ok(()) => return Ok(Self { socket, port, leases: Mutex::default() }),
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
                Err(error) => return Err(os(error)),
            }
        }
        Err(BindError::NoSourcePort(config.ip))
    }

    /// A socket that another process has bound.
    pub(super) fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(fd);
        let bound = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { socket, port: bound.port(), leases: Mutex::default() })
    }

    /// The socket, for another process.
    pub(super) fn into_fd(self) -> OwnedFd {
        self.socket.into()
    }

    pub(super) fn send(&self, to: &RawAddress, control: &mut Control, bytes: &[u8]) -> io::Result<usize> {
        sys::send(self.socket.as_fd(), to, control, bytes)
    }

    /// Leases a flow label from the kernel. Most kernels require that only while a program of the network namespace
    /// holds a label exclusively; those before Linux 5.3 always require it. Returns false if the kernel refuses.
    pub(super) fn lease(&self, label: u32, dst: Ipv6Addr) -> bool {
        let fd = self.socket.as_fd();
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if leases.contains(&label) {
            return false;
        }
        while leases.len() >= MAX_LEASES {
            let Some(oldest) = leases.pop_front() else { break };
            // It is ours, so the kernel takes it back.
            let _ = sys::flow_label(fd, sys::FlowLabel::Return, oldest, dst);
        }
        let leased = sys::flow_label(fd, sys::FlowLabel::Lease, label, dst).is_ok();
        if leased {
            leases.push_back(label);
        }
        leased
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sets the header fields of packets that carry no control messages.
fn fix_headers(fd: BorrowedFd<'_>, config: &SocketConfig) -> io::Result<()> {
    use libc::{IPPROTO_IP, IPPROTO_IPV6};
    let hops = i32::from(DEFAULT_HOP_LIMIT);
    let v4 = [(libc::IP_TTL, hops), (libc::IP_MULTICAST_TTL, hops)];
    let v6 = [
        (libc::IPV6_UNICAST_HOPS, hops),
        (libc::IPV6_MULTICAST_HOPS, hops),
        // Flow labels are those of the address vector, not chosen by the kernel.
        (libc::IPV6_AUTOFLOWLABEL, 0),
        (libc::IPV6_FLOWINFO_SEND, 1),
    ];
    let (level, options) =
        if config.ip.is_ipv4() { (IPPROTO_IP, v4.as_slice()) } else { (IPPROTO_IPV6, v6.as_slice()) };
    for (name, value) in options {
        // The ICRC does not cover these. If one is refused, packets leave with the host's own value.
        let _ = sys::set_option(fd, level, *name, *value);
    }
    match config.ip {
        // The interface for groups follows from the source address.
        IpAddr::V4(_) => sys::set_option(fd, IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
        IpAddr::V6(_) => {
            if let Some(index) = config.interface_index() {
                let _ = sys::set_option(fd, IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index);
            }
            // There is no identification here: this only prevents routers' news about the path MTU from causing
            // fragments.
            sys::set_option(fd, IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
        }
    }
}
