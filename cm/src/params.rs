//! What the program says and learns about a connection.

use crate::ListenerId;
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{CmTimeout, IpCm, ServiceId, SidrStatus};
use qp::{Gid, Mtu, PKey, QKey, QpType, Qpn};

/// Where a datagram came from. The driver takes the addresses from the IP header, never from the datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The sender's address.
    pub remote: Gid,
    /// The address of this host that it was sent to.
    pub local: Gid,
    /// Whether the driver knows that the sender receives at its address, by a handshake of its own. An address with
    /// which a connection was established counts as proven in any case.
    pub proven: bool,
}

/// Where a datagram goes, and the fields of its IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Destination {
    /// The receiver's address.
    pub remote: Gid,
    /// The address of this host to send from.
    pub local: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level: the priority on Ethernet.
    pub sl: u8,
}

impl Destination {
    /// The way back to a source.
    pub(crate) fn back_to(source: &Source) -> Self {
        Self { remote: source.remote, local: source.local, hop_limit: 64, ..Self::default() }
    }
}

/// A management datagram to be sent from queue pair 1 to queue pair 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where it goes.
    pub to: Destination,
    /// The datagram.
    pub mad: [u8; MAD_LEN],
}

/// A path to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The addresses, and the fields of the IP header.
    pub to: Destination,
    /// Path MTU.
    pub mtu: Mtu,
    /// Partition.
    pub pkey: PKey,
    /// Rate, as the six-bit code of static rates; 0 for that of the port.
    pub packet_rate: u8,
    /// Longest time that a packet takes through the network.
    pub lifetime: CmTimeout,
}

impl Path {
    /// A path with the defaults of Linux over RoCE: hop limit 64, the default partition, a lifetime of 1 s.
    #[must_use]
    pub fn new(local: Gid, remote: Gid, mtu: Mtu) -> Self {
        let to = Destination { remote, local, hop_limit: 64, ..Destination::default() };
        // `CMA_IBOE_PACKET_LIFETIME`.
        Self { to, mtu, pkey: PKey::DEFAULT, packet_rate: 0, lifetime: CmTimeout::new(18) }
    }

    /// The flow label that Linux gives a connection between two ports (`cma_get_roce_udp_flow_label` uses the same
    /// sum). The UDP source port of the connection's packets is derived from it.
    #[must_use]
    pub const fn flow_label(src_port: u16, dst_port: u16) -> u32 {
        (src_port as u32 * 31 + dst_port as u32) & 0xf_ffff
    }
}

/// Options of a vendor for a connection (enhanced connection establishment). All zero means that there are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ece {
    /// The vendor, 24 bits.
    pub vendor_id: u32,
    /// Its options.
    pub options: u32,
}

/// Where a program listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// The service.
    pub service_id: ServiceId,
    /// The address that requests must be sent to; `None` for any.
    pub address: Option<Gid>,
    /// Whether requests must begin with IP addresses (IBTA annex A11), which are taken off their private data.
    pub with_addresses: bool,
    /// Type of the program's queue pairs: RC, UC or XRC_RECV; UD for [resolutions](crate::Endpoint::resolve).
    pub qp_type: QpType,
    /// Requests that may wait for the program's answer; 0 admits none. Those of proven sources are counted on their
    /// own.
    pub backlog: u32,
}

/// What the program connects to, and what it offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect<'a> {
    /// The service.
    pub service_id: ServiceId,
    /// The IP addresses to begin the private data with (IBTA annex A11); `None` for a raw service ID.
    pub addresses: Option<IpCm>,
    /// The path to the peer.
    pub path: Path,
    /// Type of the queue pair: RC, UC or XRC_SEND.
    pub qp_type: QpType,
    /// The queue pair.
    pub qpn: Qpn,
    /// Whether it uses a shared receive queue.
    pub srq: bool,
    /// READs and atomics that the program serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that the program wants to have outstanding.
    pub initiator_depth: u8,
    /// Retry count of both queue pairs, 7 at most.
    pub retry_count: u8,
    /// RNR retry count of the passive side; 7 means without limit.
    pub rnr_retry_count: u8,
    /// Whether the queue pair implements end-to-end credits.
    pub flow_control: bool,
    /// Time that the peer may take to answer a message.
    pub remote_response_timeout: CmTimeout,
    /// Time that this side takes to answer a message.
    pub local_response_timeout: CmTimeout,
    /// How often either side repeats a message, 15 at most.
    pub max_cm_retries: u8,
    /// Options of a vendor.
    pub ece: Ece,
    /// Data for the program at the other end: 92 bytes, or 56 after [`addresses`](Self::addresses).
    pub private_data: &'a [u8],
}

impl Connect<'_> {
    /// A request with the defaults of Linux's `rdma_cm`: RC, retry counts of 7, a CM response timeout of 4.3 s and
    /// 15 retries.
    #[must_use]
    pub fn new(service_id: ServiceId, path: Path, qpn: Qpn) -> Self {
        // `CMA_CM_RESPONSE_TIMEOUT` and `CMA_MAX_CM_RETRIES`.
        let timeout = CmTimeout::new(20);
        Self {
            service_id,
            addresses: None,
            path,
            qp_type: QpType::Rc,
            qpn,
            srq: false,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            flow_control: false,
            remote_response_timeout: timeout,
            local_response_timeout: timeout,
            max_cm_retries: 15,
            ece: Ece::default(),
            private_data: &[],
        }
    }
}

/// What the program accepts a request with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accept<'a> {
    /// The queue pair.
    pub qpn: Qpn,
    /// Whether it uses a shared receive queue.
    pub srq: bool,
    /// READs and atomics that the program serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that the program wants to have outstanding.
    pub initiator_depth: u8,
    /// RNR retry count of the active side; 7 means without limit.
    pub rnr_retry_count: u8,
    /// Whether the queue pair implements end-to-end credits.
    pub flow_control: bool,
    /// Options of a vendor.
    pub ece: Ece,
    /// Data for the program at the other end: 196 bytes.
    pub private_data: &'a [u8],
}

impl Accept<'_> {
    /// Accepts what the peer asks for.
    #[must_use]
    pub fn new(qpn: Qpn, request: &Request) -> Self {
        Self {
            qpn,
            srq: false,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            rnr_retry_count: request.rnr_retry_count,
            flow_control: request.flow_control,
            ece: Ece::default(),
            private_data: &[],
        }
    }
}

/// What a peer asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The listener that it reached.
    pub listener: ListenerId,
    /// The service.
    pub service_id: ServiceId,
    /// The IP addresses at the start of the private data; they are those of the packet.
    pub addresses: Option<IpCm>,
    /// The path, as this side sees it.
    pub path: Path,
    /// Type of the queue pair that is needed here.
    pub qp_type: QpType,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// READs and atomics that the peer wants to have outstanding, so that this side must serve: the REQ's initiator
    /// depth.
    pub responder_resources: u8,
    /// READs and atomics that the peer serves, so that this side may have outstanding: the REQ's responder
    /// resources.
    pub initiator_depth: u8,
    /// Retry count.
    pub retry_count: u8,
    /// RNR retry count.
    pub rnr_retry_count: u8,
    /// Whether the peer implements end-to-end credits.
    pub flow_control: bool,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Options of a vendor.
    pub ece: Ece,
    /// The program's part of the private data, padded with zeros: 56 bytes after addresses, else 92.
    pub private_data: Box<[u8]>,
}

/// What a peer answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// READs and atomics that this side must serve: the REP's initiator depth.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding: the REP's responder resources.
    pub initiator_depth: u8,
    /// RNR retry count for this side.
    pub rnr_retry_count: u8,
    /// Whether the peer implements end-to-end credits.
    pub flow_control: bool,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Options of a vendor.
    pub ece: Ece,
    /// Private data, padded with zeros to 196 bytes.
    pub private_data: Box<[u8]>,
}

/// A service of datagrams to be resolved to a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolve<'a> {
    /// The service.
    pub service_id: ServiceId,
    /// The IP addresses to begin the private data with; `None` for a raw service ID.
    pub addresses: Option<IpCm>,
    /// The path to the peer.
    pub path: Path,
    /// Time that the peer may take to answer.
    pub response_timeout: CmTimeout,
    /// How often the request is repeated, 15 at most.
    pub max_cm_retries: u8,
    /// Data for the program at the other end: 216 bytes, or 180 after [`addresses`](Self::addresses).
    pub private_data: &'a [u8],
}

impl Resolve<'_> {
    /// A resolution with the defaults of Linux's `rdma_cm`: 4.3 s for an answer, 15 retries.
    #[must_use]
    pub fn new(service_id: ServiceId, path: Path) -> Self {
        let response_timeout = CmTimeout::new(20);
        Self { service_id, addresses: None, path, response_timeout, max_cm_retries: 15, private_data: &[] }
    }
}

/// A peer's wish to know the queue pair of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query {
    /// The listener that it reached.
    pub listener: ListenerId,
    /// The service.
    pub service_id: ServiceId,
    /// The IP addresses at the start of the private data; they are those of the packet.
    pub addresses: Option<IpCm>,
    /// The way to the peer.
    pub to: Destination,
    /// The partition that it will send in.
    pub pkey: PKey,
    /// The program's part of the private data, padded with zeros: 180 bytes after addresses, else 216.
    pub private_data: Box<[u8]>,
}

/// What the program answers a query with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    /// The outcome: [`SidrStatus::Valid`], or why there is no queue pair.
    pub status: SidrStatus,
    /// The queue pair of the service.
    pub qpn: Qpn,
    /// The key that datagrams to it must carry.
    pub qkey: QKey,
    /// Options of a vendor.
    pub ece: Ece,
    /// Data for the program at the other end: 136 bytes.
    pub private_data: &'a [u8],
}

/// The queue pair that receives datagrams for a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The queue pair.
    pub qpn: Qpn,
    /// The key that datagrams to it must carry.
    pub qkey: QKey,
    /// The way to it.
    pub path: Path,
    /// Options of a vendor.
    pub ece: Ece,
    /// Private data, padded with zeros to 136 bytes.
    pub private_data: Box<[u8]>,
}
