//! The sockets of one RoCEv2 address: one to receive, a few to send.

use super::error::{BindError, SendError, not_bound};
use super::group::GroupSocket;
use super::interfaces::index_of;
use super::probe::{Offloads, probe_offloads, push_segment_size};
use super::receiver::{self, Receiver};
use super::recv::{RecvBatch, RecvError};
use super::sender::Sender;
use super::sys::{Control, RawAddress};
use qp::wire::IpHeader;
use rnic_core::datagram::DEFAULT_HOP_LIMIT;
use rnic_core::error::{JoinError, LOOPBACK_TRIES};
use rnic_core::tally::{Capabilities, Gso, SocketCounters, Tally};
use socket2::Socket;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The UDP destination port of RoCEv2 (IANA; IBTA A17.3.1).
pub const ROCE_PORT: u16 = 4791;

/// The maximum number of packets in a train: `UDP_MAX_SEGMENTS` of the Linux kernel before 6.9, since when it is 128.
pub const MAX_TRAIN_SEGMENTS: u32 = 64;

/// The maximum number of bytes of UDP payload in a train: what fits an IPv4 packet behind its headers.
pub const MAX_TRAIN_BYTES: usize = 65_535 - 20 - 8;

/// The maximum number of source ports of a socket: each is a descriptor, and routers have far fewer equal paths.
const MAX_SOURCE_PORTS: usize = 256;

/// The default requested receive buffer: 100 full trains, or 3 ms of 25 Gb/s. Most hosts grant less.
const DEFAULT_RECV_BUFFER: usize = 8 << 20;

/// The configuration of a socket.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// The address, which becomes the port's GID. The ICRC covers it, so a wildcard is not possible.
    pub ip: IpAddr,
    /// The interface index, needed for IPv6 link-local addresses only.
    pub scope_id: u32,
    /// The UDP port to receive on and send to.
    pub port: u16,
    /// How many source ports to send from (1 to 256, else the nearest). Only the first is bound at once.
    pub source_ports: usize,
    /// Bytes of receive buffer to ask for; the kernel grants up to `net.core.rmem_max`, or all of it to root.
    pub recv_buffer: usize,
    /// Whether to send trains in one call if the kernel supports it.
    pub gso: bool,
    /// Whether to receive merged packets if the kernel supports it.
    pub gro: bool,
}

impl SocketConfig {
    /// The defaults for `ip`: port 4791, 4 source ports, 8 MiB, all offloads.
    #[must_use]
    pub fn new(ip: IpAddr) -> Self {
        Self {
            ip,
            scope_id: 0,
            port: ROCE_PORT,
            source_ports: 4,
            recv_buffer: DEFAULT_RECV_BUFFER,
            gso: true,
            gro: true,
        }
    }

    /// The same with its address in its canonical form.
    ///
    /// # Errors
    /// [`BindError::NotUnicast`].
    pub(super) fn unicast(&self) -> Result<Self, BindError> {
        let ip = self.ip.to_canonical();
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(BindError::NotUnicast(ip));
        }
        Ok(Self { ip, ..self.clone() })
    }

    pub(super) fn address(&self, ip: IpAddr, port: u16) -> SocketAddr {
        let mut address = SocketAddr::new(ip, port);
        if let SocketAddr::V6(v6) = &mut address {
            v6.set_scope_id(self.scope_id);
        }
        address
    }

    /// The number of the interface that has the address.
    pub(super) fn interface_index(&self) -> Option<i32> {
        let index = if self.scope_id == 0 { index_of(self.ip)? } else { self.scope_id };
        i32::try_from(index).ok()
    }
}

/// The sockets of a part of a shared address, as the process that shares the address out hands them to another one.
#[derive(Debug)]
pub struct SlotSockets {
    /// The receiving socket.
    pub receiver: OwnedFd,
    /// The sockets to send from.
    pub senders: Vec<OwnedFd>,
    /// Their capabilities.
    pub capabilities: Capabilities,
}

/// The capabilities of sockets at an address: those of the receiving socket, with what the kernel does with trains.
pub(super) fn offered(config: &SocketConfig, mut capabilities: Capabilities) -> Capabilities {
    let wanted = config.gso || config.gro;
    let offloads = if wanted { probe_offloads(config.ip, config.scope_id).ok() } else { None };
    let Offloads { gso, gro } = offloads.unwrap_or(Offloads { gso: None, gro: None });
    capabilities.gro &= gro != Some(false);
    capabilities.gso = match gso {
        _ if !config.gso => Gso::Refused,
        Some(true) => Gso::Works,
        Some(false) => Gso::Refused,
        None => Gso::Unknown,
    };
    capabilities
}

/// The result of sending a train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Sent {
    /// The kernel has taken it.
    All,
    /// Nothing was sent: the send buffer or the device queue is full. Wait until the descriptor is writable or
    /// some microseconds passed, then send again.
    WouldBlock,
}

/// The sockets of one address. It can be shared between threads, but datagrams are in order only for one
/// receiver, and trains of one source port only for one sender.
pub struct RoceSocket {
    config: SocketConfig,
    receiver: Receiver,
    /// The ports to send from, bound on first use. An empty slot stands for the first port.
    senders: Box<[OnceLock<Option<Sender>>]>,
    first_sender: Sender,
    capabilities: Capabilities,
    gso: AtomicU8,
    /// Shared with the sockets of multicast groups.
    tally: Arc<Tally>,
}

impl RoceSocket {
    /// Binds the receiving socket and the first sending one, and determines their capabilities.
    ///
    /// # Errors
    /// The error names the obstacle and its remedy; [`BindError::AddressInUse`] if another program serves the
    /// address.
    pub fn bind(config: &SocketConfig) -> Result<Self, BindError> {
        let config = config.unicast()?;
        let address = config.address(config.ip, config.port);
        let (receiver, mut capabilities) = receiver::unbound(&config, address)?;
        // Last, so that no packet arrives before the options are in place.
        receiver.bind(&address.into()).map_err(|error| not_bound(address, error))?;
        let first_sender = Sender::bind(&config)?;
        capabilities = offered(&config, capabilities);
        let extra = config.source_ports.clamp(1, MAX_SOURCE_PORTS) - 1;
        let senders = (0..extra).map(|_| OnceLock::new()).collect();
        Ok(Self::assemble(config, receiver, first_sender, senders, capabilities))
    }

    /// Takes over the sockets of a slot, which another process has bound.
    ///
    /// # Errors
    /// [`BindError::NoSourcePort`] without a socket to send from; [`BindError::Os`] if a descriptor is not a socket.
    pub fn adopt(config: &SocketConfig, slot: SlotSockets) -> Result<Self, BindError> {
        let config = config.unicast()?;
        let os = |error| not_bound(config.address(config.ip, config.port), error);
        let SlotSockets { receiver, senders, mut capabilities } = slot;
        if !config.gso {
            capabilities.gso = Gso::Refused;
        }
        let mut senders = senders.into_iter().map(Sender::adopt);
        let first_sender = senders.next().ok_or(BindError::NoSourcePort(config.ip))?.map_err(os)?;
        let more: Result<Box<[_]>, _> =
            senders.map(|sender| sender.map(|sender| OnceLock::from(Some(sender)))).collect();
        let more = more.map_err(os)?;
        Ok(Self::assemble(config, Socket::from(receiver), first_sender, more, capabilities))
    }

    fn assemble(
        config: SocketConfig,
        receiver: Socket,
        first_sender: Sender,
        senders: Box<[OnceLock<Option<Sender>>]>,
        capabilities: Capabilities,
    ) -> Self {
        let tally = Arc::new(Tally::default());
        let socket = Self {
            receiver: Receiver::new(receiver, config.ip, Arc::clone(&tally)),
            senders,
            first_sender,
            capabilities,
            gso: AtomicU8::new(Gso::Unknown as u8),
            tally,
            config,
        };
        if capabilities.gso == Gso::Refused && socket.config.gso {
            socket.refuse_gso();
        }
        socket.gso.store(capabilities.gso as u8, Relaxed);
        socket
    }

    /// Binds the first of 127.0.0.1, 127.0.0.2, ... 127.0.0.254 on which the port is free; the address in `config` is
    /// ignored. So several programs on one machine each get an address without coordination.
    ///
    /// # Errors
    /// [`BindError::NoFreeLoopback`] if all are taken, or the first other error.
    pub fn bind_first_free_loopback(config: &SocketConfig) -> Result<Self, BindError> {
        for last in 1..=LOOPBACK_TRIES {
            let ip = Ipv4Addr::new(127, 0, 0, last).into();
            match Self::bind(&SocketConfig { ip, ..config.clone() }) {
                Err(BindError::AddressInUse(_)) => {}
                bound => return bound,
            }
        }
        Err(BindError::NoFreeLoopback { port: config.port })
    }

    /// The socket's address.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.config.ip
    }

    /// The UDP port to receive on and send to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.config.port
    }

    /// The number of source ports to choose from.
    #[must_use]
    pub fn source_ports(&self) -> usize {
        self.senders.len() + 1
    }

    /// The index of the source port for a flow: the same one for the same hash.
    #[must_use]
    pub fn via(&self, flow_hash: u64) -> usize {
        (flow_hash % self.source_ports() as u64) as usize
    }

    /// The UDP source port of packets sent via `via` (taken modulo [`source_ports`](Self::source_ports)). Binds it on
    /// first use. If that fails, for example for lack of descriptors, `via` means the same as 0 from then on: less
    /// entropy, but still correct.
    #[must_use]
    pub fn source_port(&self, via: usize) -> u16 {
        self.sender(via).port
    }

    fn sender(&self, via: usize) -> &Sender {
        let Some(index) = (via % self.source_ports()).checked_sub(1) else { return &self.first_sender };
        let bound = self.senders[index].get_or_init(|| {
            Sender::bind(&self.config)
                .inspect_err(|error| tracing::warn!(%error, "sharing the first source port instead"))
                .ok()
        });
        bound.as_ref().unwrap_or(&self.first_sender)
    }

    /// How many packets [`send_train`](Self::send_train) takes at once: 64, or 1 if the kernel refuses trains.
    #[must_use]
    pub fn gso_segments(&self) -> u32 {
        if self.gso.load(Relaxed) == Gso::Refused as u8 { 1 } else { MAX_TRAIN_SEGMENTS }
    }

    /// Sends `bytes` as packets of `segment_size` bytes (the last may be shorter) in one call, from the source port with
    /// the index `via` (taken modulo their number). `ip` tells their destination, TOS, hop limit (0 for
    /// [`DEFAULT_HOP_LIMIT`]) and flow label; the kernel fills in the other fields.
    ///
    /// # Errors
    /// The packets are lost, for the given reason; each kind is counted. After [`SendError::GsoRefused`] they are not
    /// lost: they can go as trains of one, with recomputed ICRCs.
    pub fn send_train(
        &self,
        via: usize,
        ip: &IpHeader,
        segment_size: usize,
        bytes: &[u8],
    ) -> Result<Sent, SendError> {
        let result = self.try_send(via, ip, segment_size, bytes);
        let count = match &result {
            Ok(Sent::All) => {
                self.tally.sent_bytes.fetch_add(bytes.len() as u64, Relaxed);
                &self.tally.sends
            }
            Ok(Sent::WouldBlock) => &self.tally.send_would_block,
            Err(SendError::TooBig { .. }) => &self.tally.send_too_big,
            Err(SendError::Unreachable { .. }) => &self.tally.send_unreachable,
            Err(SendError::Filtered { .. }) => &self.tally.send_filtered,
            Err(SendError::GsoRefused) => return result,
            Err(_) => &self.tally.send_failed,
        };
        count.fetch_add(1, Relaxed);
        result
    }

    fn try_send(
        &self,
        via: usize,
        ip: &IpHeader,
        segment_size: usize,
        bytes: &[u8],
    ) -> Result<Sent, SendError> {
        let (src, dst) = (self.config.ip, ip.dst.to_canonical());
        if src.is_ipv4() != dst.is_ipv4() {
            return Err(SendError::WrongFamily { src, dst });
        }
        let is_train = bytes.len() > segment_size;
        let mut control = Control::new();
        if is_train {
            let most = segment_size.saturating_mul(MAX_TRAIN_SEGMENTS as usize).min(MAX_TRAIN_BYTES);
            if bytes.len() > most {
                return Err(SendError::TrainTooLong { bytes: bytes.len(), segment_size });
            }
            if self.gso_segments() == 1 {
                return Err(SendError::GsoRefused);
            }
            push_segment_size(&mut control, segment_size as u16);
        }
        push_header_fields(&mut control, ip, src.is_ipv4());
        let mut to = RawAddress::new(self.config.address(dst, self.config.port));
        to.set_flow_label(ip.flow_label);
        let sender = self.sender(via);
        loop {
            let Err(error) = sender.send(&to, &mut control, bytes) else {
                if is_train && self.gso.load(Relaxed) == Gso::Unknown as u8 {
                    self.gso.store(Gso::Works as u8, Relaxed);
                }
                return Ok(Sent::All);
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return Ok(Sent::WouldBlock),
                Some(libc::EINVAL) if to.has_flow_label() => {
                    if let IpAddr::V6(v6) = dst
                        && !sender.lease(ip.flow_label, v6)
                    {
                        self.tally.flow_labels_refused.fetch_add(1, Relaxed);
                        to.set_flow_label(0);
                    }
                }
                Some(code) if is_train && self.is_refusal(code) => {
                    self.refuse_gso();
                    return Err(SendError::GsoRefused);
                }
                _ => return Err(SendError::new(dst, segment_size.min(bytes.len()), error)),
            }
        }
    }

    /// Whether an error on sending a train means that trains cannot be sent. EIO comes from devices without
    /// checksum offload and from IPsec, at any time. EINVAL comes from old kernels, but once trains have
    /// worked it is about the path MTU.
    fn is_refusal(&self, code: i32) -> bool {
        match code {
            libc::EIO | libc::EOPNOTSUPP => true,
            libc::EINVAL => self.gso.load(Relaxed) == Gso::Unknown as u8,
            _ => false,
        }
    }

    /// Falls back to single packets from now on.
    fn refuse_gso(&self) {
        if self.gso.swap(Gso::Refused as u8, Relaxed) != Gso::Refused as u8 {
            tracing::warn!(ip = %self.config.ip, "the kernel refuses UDP_SEGMENT: sending packet by packet, about 4 times slower");
        }
    }

    /// Receives waiting datagrams into `batch` and returns their number. Never waits.
    /// Errors that earlier packets caused in the network (ICMP) are counted and skipped.
    ///
    /// # Errors
    /// Only if the socket itself is unusable.
    pub fn recv(&self, batch: &mut RecvBatch) -> Result<usize, RecvError> {
        self.receiver.recv(batch)
    }

    /// Makes the kernel timestamp datagrams on arrival ([`Datagram::stamp`](super::Datagram::stamp)).
    pub(crate) fn stamp_arrivals(&self) {
        self.receiver.stamp_arrivals();
    }

    /// The number of datagrams that the kernel has dropped so far. Queries the receiving socket again if the kernel
    /// can report it without another datagram.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.receiver.ask_drops();
        self.tally.drops.load(Relaxed)
    }

    /// Joins a multicast group on the interface of the address.
    ///
    /// # Errors
    /// [`JoinError`] names the obstacle and its remedy.
    pub fn join(&self, group: IpAddr) -> Result<GroupSocket, JoinError> {
        GroupSocket::join(&self.config, group, Arc::clone(&self.tally))
    }

    /// Takes over a socket of a multicast group that another process has joined ([`SharedAddress::join`](super::SharedAddress::join)).
    #[must_use]
    pub fn adopt_group(&self, group: IpAddr, socket: OwnedFd) -> GroupSocket {
        GroupSocket::adopt(group, socket, Arc::clone(&self.tally))
    }

    /// Effective bytes of receive buffer: Linux grants twice the requested size, to cover its own overhead, and
    /// charges whole buffers against it ([`receive_charge`](super::receive_charge)).
    #[must_use]
    pub fn rcvbuf(&self) -> usize {
        self.capabilities.rcvbuf
    }

    /// Bytes of the receive buffer that waiting datagrams occupy now.
    ///
    /// # Errors
    /// If the kernel has no `SO_MEMINFO` (before Linux 4.12).
    pub fn receive_backlog(&self) -> io::Result<u32> {
        self.receiver.backlog()
    }

    /// The features that the kernel of this host supports.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let gso = match self.gso.load(Relaxed) {
            1 => Gso::Works,
            2 => Gso::Refused,
            _ => Gso::Unknown,
        };
        Capabilities { gso, ..self.capabilities }
    }

    /// The counters so far.
    #[must_use]
    pub fn counters(&self) -> SocketCounters {
        SocketCounters { drops: self.drops(), ..self.tally.snapshot() }
    }

    /// The descriptor that becomes writable again after [`Sent::WouldBlock`].
    #[must_use]
    pub fn sender_fd(&self, via: usize) -> BorrowedFd<'_> {
        self.sender(via).as_fd()
    }

    /// All descriptors, the receiving one first. A forked child must close them: otherwise it keeps the address.
    pub fn raw_fds(&self) -> impl Iterator<Item = RawFd> {
        let bound = self.senders.iter().filter_map(|s| s.get()?.as_ref());
        let senders = std::iter::once(&self.first_sender).chain(bound);
        std::iter::once(self.receiver.raw_fd()).chain(senders.map(Sender::raw_fd))
    }
}

/// The receiving socket, to be polled.
impl AsFd for RoceSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl fmt::Debug for RoceSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RoceSocket({}, {:?})",
            self.config.address(self.config.ip, self.config.port),
            self.capabilities()
        )
    }
}

/// Adds the fields that differ from the socket's own values; a packet with default fields carries no control message.
fn push_header_fields(control: &mut Control, ip: &IpHeader, v4: bool) {
    let (level, tos, hops) = if v4 {
        (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
    };
    if ip.tos != 0 {
        control.push(level, tos, &i32::from(ip.tos).to_ne_bytes());
    }
    if !matches!(ip.hop_limit, 0 | DEFAULT_HOP_LIMIT) {
        control.push(level, hops, &i32::from(ip.hop_limit).to_ne_bytes());
    }
}
