//! The sockets of one RoCEv2 address: one that receives, a few that send.

use super::error::{BindError, SendError};
use super::probe::{Offloads, probe_offloads, push_segment_size, udp_socket};
use super::recv::{RecvBatch, RecvError};
use super::sys::{self, Control, RawAddress};
use socket2::Socket;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The UDP destination port of RoCEv2 (IANA; IBTA A17.3.1).
pub const ROCE_PORT: u16 = 4791;

/// The UDP source ports that RoCEv2 senders use, as entropy for multipath routing: the dynamic ports of RFC 6335.
pub const SOURCE_PORTS: RangeInclusive<u16> = 0xC000..=0xFFFF;

/// How many packets a train holds at most: `UDP_MAX_SEGMENTS` of the Linux kernel before 6.9, since when it is 128.
pub const MAX_TRAIN_SEGMENTS: u32 = 64;

/// How many bytes of UDP payload a train holds at most: what fits an IPv4 packet behind its headers.
pub const MAX_TRAIN_BYTES: usize = 65_535 - 20 - 8;

/// How many source ports a socket can have at most: each is a descriptor, and routers have far fewer equal paths.
const MAX_SOURCE_PORTS: usize = 256;

/// The receive buffer asked for by default: 100 full trains, or 3 ms of 25 Gb/s. Most hosts grant less.
const DEFAULT_RECV_BUFFER: usize = 8 << 20;

/// How many addresses [`RoceSocket::bind_first_free_loopback`] tries.
pub(super) const LOOPBACK_TRIES: u8 = 254;

/// How many errors left behind by earlier sends one receive call skips before it gives the engine a turn.
const MAX_PENDING_ERRORS: usize = 16;

/// What to bind.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// The address, which becomes the port's GID. Under the ICRC, so a wildcard will not do.
    pub ip: IpAddr,
    /// The interface index, needed for IPv6 link-local addresses only.
    pub scope_id: u32,
    /// The UDP port to receive on and send to.
    pub port: u16,
    /// How many source ports to send from (1 to 256, else the nearest). Only the first is bound at once.
    pub source_ports: usize,
    /// Bytes of receive buffer to ask for; the kernel grants up to `net.core.rmem_max`, or all of it to root.
    pub recv_buffer: usize,
    /// Whether to send trains in one call where the kernel can.
    pub gso: bool,
    /// Whether to receive merged packets where the kernel can.
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

    fn address(&self, ip: IpAddr, port: u16) -> SocketAddr {
        let mut address = SocketAddr::new(ip, port);
        if let SocketAddr::V6(v6) = &mut address {
            v6.set_scope_id(self.scope_id);
        }
        address
    }
}

/// What became of a train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Sent {
    /// The kernel has it.
    All,
    /// Nothing was sent: the send buffer or the device queue is full. Wait until the descriptor is writable or
    /// some microseconds passed, then send again.
    WouldBlock,
}

/// Whether the kernel takes trains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Gso {
    /// Not tried with success yet.
    Unknown = 0,
    /// It does.
    Works = 1,
    /// It does not, or the configuration says not to.
    Refused = 2,
}

/// What this socket can do, for reports.
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
    /// Whether packets without a UDP checksum are received: Linux rxe sends such over IPv6.
    pub no_checksum: bool,
    /// Effective receive buffer in bytes, as the kernel charges them.
    pub rcvbuf: usize,
}

/// Declares the counters once: live, as a snapshot, and the copying between them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a socket did since it was bound.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
        pub struct SocketCounters { $($(#[$doc])* pub $name: u64,)* }

        #[derive(Debug, Default)]
        struct Tally { $($name: AtomicU64,)* }

        impl Tally {
            fn snapshot(&self) -> SocketCounters {
                SocketCounters { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Send calls that the kernel accepted; each a packet or a train.
    sends,
    /// UDP payload in them.
    sent_bytes,
    /// Sends put off because the kernel had no room.
    send_would_block,
    /// Sends lost to the path MTU.
    send_too_big,
    /// Sends lost for want of a route or neighbour.
    send_unreachable,
    /// Sends lost to a firewall rule.
    send_filtered,
    /// Sends lost for other reasons: trains refused, wrong arguments.
    send_failed,
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

/// A socket to send from, and the port it is bound to.
struct Sender {
    socket: Socket,
    port: u16,
}

/// The sockets of one address. It can be shared between threads, but datagrams are in order only for one
/// receiver, and trains of one source port only for one sender.
pub struct RoceSocket {
    config: SocketConfig,
    receiver: Socket,
    /// The ports to send from, bound when first asked for. An empty one stands for the first.
    senders: Box<[OnceLock<Option<Sender>>]>,
    first_sender: Sender,
    capabilities: Capabilities,
    gso: AtomicU8,
    tally: Tally,
    /// The kernel's own drop count when last seen; it counts modulo 2^32.
    kernel_drops: AtomicU32,
}

impl RoceSocket {
    /// Binds the receiving socket and the first sending one, and finds out what they can do.
    ///
    /// # Errors
    /// Says what is in the way and what to do about it; [`BindError::AddressInUse`] if somebody else serves
    /// the address.
    pub fn bind(config: &SocketConfig) -> Result<Self, BindError> {
        let ip = config.ip.to_canonical();
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(BindError::NotUnicast(ip));
        }
        let config = SocketConfig { ip, ..config.clone() };
        let (receiver, mut capabilities) = bind_receiver(&config)?;
        let first_sender = bind_sender(&config)?;
        let wanted = config.gso || config.gro;
        let offloads = if wanted { probe_offloads(ip, config.scope_id).ok() } else { None };
        let Offloads { gso, gro } = offloads.unwrap_or(Offloads { gso: None, gro: None });
        capabilities.gro &= gro != Some(false);
        let gso = match gso {
            _ if !config.gso => Gso::Refused,
            Some(true) => Gso::Works,
            Some(false) => Gso::Refused,
            None => Gso::Unknown,
        };
        let extra = config.source_ports.clamp(1, MAX_SOURCE_PORTS) - 1;
        let socket = Self {
            receiver,
            senders: (0..extra).map(|_| OnceLock::new()).collect(),
            first_sender,
            capabilities,
            gso: AtomicU8::new(Gso::Unknown as u8),
            tally: Tally::default(),
            kernel_drops: AtomicU32::new(0),
            config,
        };
        if gso == Gso::Refused && socket.config.gso {
            socket.refuse_gso();
        }
        socket.gso.store(gso as u8, Relaxed);
        Ok(socket)
    }

    /// Binds the first of 127.0.0.1, 127.0.0.2, ... 127.0.0.254 on which the port is free; the address in
    /// `config` does not matter. So several programs on one machine each get an address without asking.
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

    /// The address served.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.config.ip
    }

    /// The UDP port received on and sent to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.config.port
    }

    /// How many source ports there are to choose from.
    #[must_use]
    pub fn source_ports(&self) -> usize {
        self.senders.len() + 1
    }

    /// Which of the source ports a flow uses: the same one for the same hash.
    #[must_use]
    pub fn via(&self, flow_hash: u64) -> usize {
        (flow_hash % self.source_ports() as u64) as usize
    }

    /// The UDP source port of what is sent via `via` (taken modulo [`source_ports`](Self::source_ports)).
    /// Binds it if this is the first use. Should that fail, for want of descriptors say, `via` is the same as 0
    /// for good: less entropy, still right.
    #[must_use]
    pub fn source_port(&self, via: usize) -> u16 {
        self.sender(via).port
    }

    fn sender(&self, via: usize) -> &Sender {
        let Some(index) = (via % self.source_ports()).checked_sub(1) else { return &self.first_sender };
        let bound = self.senders[index].get_or_init(|| {
            bind_sender(&self.config)
                .inspect_err(|error| tracing::warn!(%error, "sharing the first source port instead"))
                .ok()
        });
        bound.as_ref().unwrap_or(&self.first_sender)
    }

    /// How many packets [`send_train`](Self::send_train) takes at once: 64, or 1 where the kernel refuses trains.
    #[must_use]
    pub fn gso_segments(&self) -> u32 {
        if self.gso.load(Relaxed) == Gso::Refused as u8 { 1 } else { MAX_TRAIN_SEGMENTS }
    }

    /// Sends `bytes` to `dst` as packets of `segment_size` bytes (the last may be shorter), all in one call.
    /// Each carries `tos` (DSCP and ECN) in its TOS or traffic class.
    ///
    /// # Errors
    /// The packets are lost, for the reason given; each kind is counted. After [`SendError::GsoRefused`] they
    /// have to be built again, as trains of one.
    pub fn send_train(
        &self,
        via: usize,
        dst: IpAddr,
        tos: u8,
        segment_size: usize,
        bytes: &[u8],
    ) -> Result<Sent, SendError> {
        let result = self.try_send(via, dst.to_canonical(), tos, segment_size, bytes);
        let count = match &result {
            Ok(Sent::All) => {
                self.tally.sent_bytes.fetch_add(bytes.len() as u64, Relaxed);
                &self.tally.sends
            }
            Ok(Sent::WouldBlock) => &self.tally.send_would_block,
            Err(SendError::TooBig { .. }) => &self.tally.send_too_big,
            Err(SendError::Unreachable { .. }) => &self.tally.send_unreachable,
            Err(SendError::Filtered { .. }) => &self.tally.send_filtered,
            Err(_) => &self.tally.send_failed,
        };
        count.fetch_add(1, Relaxed);
        result
    }

    fn try_send(
        &self,
        via: usize,
        dst: IpAddr,
        tos: u8,
        segment_size: usize,
        bytes: &[u8],
    ) -> Result<Sent, SendError> {
        let src = self.config.ip;
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
        // The socket's own value is 0, which every packet gets that says nothing else.
        if tos != 0 {
            let (level, kind) = if src.is_ipv4() {
                (libc::IPPROTO_IP, libc::IP_TOS)
            } else {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            };
            control.push(level, kind, &i32::from(tos).to_ne_bytes());
        }
        let to = RawAddress::new(self.config.address(dst, self.config.port));
        let fd = self.sender(via).socket.as_fd();
        loop {
            let Err(error) = sys::send(fd, &to, &mut control, bytes) else {
                if is_train && self.gso.load(Relaxed) == Gso::Unknown as u8 {
                    self.gso.store(Gso::Works as u8, Relaxed);
                }
                return Ok(Sent::All);
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return Ok(Sent::WouldBlock),
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

    /// Falls back to single packets for good.
    fn refuse_gso(&self) {
        if self.gso.swap(Gso::Refused as u8, Relaxed) != Gso::Refused as u8 {
            tracing::warn!(ip = %self.config.ip, "the kernel refuses UDP_SEGMENT: sending packet by packet, about 4 times slower");
        }
    }

    /// Receives what is there into `batch`; returns how many datagrams, 0 if there is none. Never waits.
    /// Errors that earlier packets caused in the network (ICMP) are counted and skipped.
    ///
    /// # Errors
    /// Only if the socket itself is unusable.
    pub fn recv(&self, batch: &mut RecvBatch) -> Result<usize, RecvError> {
        for _ in 0..MAX_PENDING_ERRORS {
            let error = match batch.fill(self.receiver.as_fd()) {
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

    /// Takes over the kernel's drop count, which wraps at 2^32; returns how many are new.
    fn note_drops(&self, count: u32) -> u64 {
        // Two threads may see counts in the wrong order: only a step forward counts.
        let ahead = |old: u32| (count.wrapping_sub(old) as i32 > 0).then_some(count);
        let Ok(old) = self.kernel_drops.fetch_update(Relaxed, Relaxed, ahead) else { return 0 };
        let new = u64::from(count.wrapping_sub(old));
        self.tally.drops.fetch_add(new, Relaxed);
        new
    }

    /// How many datagrams the kernel has dropped on the receiving socket so far, asked anew where the kernel
    /// can tell without a next datagram.
    #[must_use]
    pub fn drops(&self) -> u64 {
        if let Ok(info) = sys::mem_info(self.receiver.as_fd()) {
            self.note_drops(info.drops);
        }
        self.tally.drops.load(Relaxed)
    }

    /// Bytes of receive buffer in effect: Linux grants twice what was asked for, to cover its own overhead, and
    /// charges whole buffers against it ([`receive_charge`](super::receive_charge)).
    #[must_use]
    pub fn rcvbuf(&self) -> usize {
        self.capabilities.rcvbuf
    }

    /// Bytes of the receive buffer that waiting datagrams take up now.
    ///
    /// # Errors
    /// If the kernel has no `SO_MEMINFO` (before Linux 4.12).
    pub fn receive_backlog(&self) -> io::Result<u32> {
        sys::mem_info(self.receiver.as_fd()).map(|info| info.charged)
    }

    /// What works on this host.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let gso = match self.gso.load(Relaxed) {
            1 => Gso::Works,
            2 => Gso::Refused,
            _ => Gso::Unknown,
        };
        Capabilities { gso, ..self.capabilities }
    }

    /// What was sent, received and lost so far.
    #[must_use]
    pub fn counters(&self) -> SocketCounters {
        SocketCounters { drops: self.drops(), ..self.tally.snapshot() }
    }

    /// The descriptor that becomes writable again after [`Sent::WouldBlock`].
    #[must_use]
    pub fn sender_fd(&self, via: usize) -> BorrowedFd<'_> {
        self.sender(via).socket.as_fd()
    }

    /// All descriptors, the receiving one first: what a forked child has to close, lest it keep the address.
    pub fn raw_fds(&self) -> impl Iterator<Item = RawFd> {
        let bound = self.senders.iter().filter_map(|s| s.get()?.as_ref());
        let senders = std::iter::once(&self.first_sender).chain(bound);
        std::iter::once(self.receiver.as_raw_fd()).chain(senders.map(|s| s.socket.as_raw_fd()))
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

/// The receiving socket of `config`, bound, and what could be switched on.
fn bind_receiver(config: &SocketConfig) -> Result<(Socket, Capabilities), BindError> {
    let address = config.address(config.ip, config.port);
    let os = |error| BindError::new(address, error);
    let socket = udp_socket(config.ip).map_err(os)?;
    let fd = socket.as_fd();
    let on = |level, name| sys::set_option(fd, level, name, 1).is_ok();
    let size = i32::try_from(config.recv_buffer).unwrap_or(i32::MAX);
    // Root may exceed the limit of the host; others get as much as the limit allows.
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, size).map_err(os)?;
    }
    let v4 = config.ip.is_ipv4();
    let capabilities = Capabilities {
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
        // Over IPv4 a checksum of 0 means none, and is always accepted.
        no_checksum: v4 || on(libc::SOL_UDP, libc::UDP_NO_CHECK6_RX),
        rcvbuf: socket.recv_buffer_size().map_err(os)?,
    };
    // Last, so that no packet arrives before the options are in place.
    socket.bind(&address.into()).map_err(os)?;
    Ok((socket, capabilities))
}

/// A socket bound to a free port of [`SOURCE_PORTS`].
fn bind_sender(config: &SocketConfig) -> Result<Sender, BindError> {
    let os = |error| BindError::new(config.address(config.ip, 0), error);
    let socket = udp_socket(config.ip).map_err(os)?;
    let fd = socket.as_fd();
    let fixed = if config.ip.is_ipv4() {
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    } else {
        // No identification here: this only keeps routers' news about the path MTU from causing fragments.
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    };
    fixed.map_err(|source| BindError::Option { name: "IP_PMTUDISC_DO", source })?;
    // Nobody reads here; whatever is sent to this port by mistake should not occupy memory.
    socket.set_recv_buffer_size(0).map_err(os)?;
    let ports = SOURCE_PORTS.end() - SOURCE_PORTS.start() + 1;
    let start = rand::random_range(0..ports);
    for step in 0..ports {
        let port = SOURCE_PORTS.start() + (start + step) % ports;
        match socket.bind(&config.address(config.ip, port).into()) {
            Ok(()) => return Ok(Sender { socket, port }),
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
            Err(error) => return Err(os(error)),
        }
    }
    Err(BindError::NoSourcePort(config.ip))
}
