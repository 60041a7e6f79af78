//! From a captured frame to the UDP payload.

use pcap_file::DataLink;
use qp::wire::{Flow, UDP_PORT};
use std::net::IpAddr;

/// A UDP datagram to the port of RoCEv2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram<'a> {
    pub(super) flow: Flow,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// IPv4 only.
    pub(super) ip_id: Option<u16>,
    /// IPv4 flags and fragment offset.
    pub(super) flags_fragment: u16,
    /// Length of the UDP payload on the wire.
    pub(super) length: usize,
    /// The part of it that was captured.
    pub(super) payload: &'a [u8],
}

/// IPv4 "more fragments".
const MORE_FRAGMENTS: u16 = 0x2000;
/// IPv4 fragment offset.
const FRAGMENT_OFFSET: u16 = 0x1fff;

impl Datagram<'_> {
    /// Whether the datagram is a first fragment.
    pub(super) const fn more_fragments(&self) -> bool {
        self.flags_fragment & MORE_FRAGMENTS != 0
    }
}

/// Link layers in which an IP packet can be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    Ethernet,
    /// The IP packet alone.
    Raw,
    /// 4 bytes of protocol family.
    BsdLoopback,
    /// Linux cooked capture, as of "any" interfaces.
    Sll,
    /// Version 2 of it.
    Sll2,
}

impl Link {
    pub(super) fn new(link: DataLink) -> Option<Self> {
        match link {
            DataLink::ETHERNET => Some(Self::Ethernet),
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Some(Self::Raw),
            DataLink::NULL | DataLink::LOOP => Some(Self::BsdLoopback),
            DataLink::LINUX_SLL => Some(Self::Sll),
            DataLink::LINUX_SLL2 => Some(Self::Sll2),
            _ => None,
        }
    }

    /// The IP packet of a frame.
    fn ip(self, frame: &[u8]) -> Option<&[u8]> {
        match self {
            // Two MAC addresses.
            Self::Ethernet => behind_ethertype(frame.get(12..)?),
            Self::Raw => Some(frame),
            // The numbers of the families differ between systems; the IP version behind does not.
            Self::BsdLoopback => frame.get(4..),
            // Packet type, hardware type, address length, address (8 bytes).
            Self::Sll => behind_ethertype(frame.get(14..)?),
            // Protocol; then reserved, interface, hardware type, packet type, address length, address: 18 bytes.
            Self::Sll2 => matches!(u16_at(frame, 0)?, IPV4 | IPV6).then(|| frame.get(20..))?,
        }
    }
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// VLAN tags: IEEE 802.1Q, 802.1ad, and the older form of the latter.
const VLAN_TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// More tags than any network stacks.
const MAX_VLAN_TAGS: usize = 4;

/// The data after an ethertype of IP, which may follow VLAN tags.
fn behind_ethertype(mut rest: &[u8]) -> Option<&[u8]> {
    for _ in 0..=MAX_VLAN_TAGS {
        match u16_at(rest, 0)? {
            IPV4 | IPV6 => return rest.get(2..),
            tag if VLAN_TAGS.contains(&tag) => rest = rest.get(4..)?,
            _ => return None,
        }
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    chunk_at(bytes, at).map(u16::from_be_bytes)
}

fn chunk_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Finds the RoCEv2 datagram in a frame. `None` if there is none, or if too little was captured to tell.
pub(super) fn dissect(link: Link, frame: &[u8]) -> Option<Datagram<'_>> {
    let ip = link.ip(frame)?;
    match ip.first()? >> 4 {
        4 => dissect_v4(ip),
        6 => dissect_v6(ip),
        _ => None,
    }
}

/// Protocol number of UDP.
const UDP: u8 = 17;
const UDP_LEN: usize = 8;
const IPV6_LEN: usize = 40;

fn dissect_v4(ip: &[u8]) -> Option<Datagram<'_>> {
    let header_len = usize::from(ip[0] & 0x0f) * 4;
    let total_len = usize::from(u16_at(ip, 2)?);
    let flags_fragment = u16_at(ip, 6)?;
    let [ttl, protocol] = chunk_at(ip, 8)?;
    if protocol != UDP || flags_fragment & FRAGMENT_OFFSET != 0 {
        return None;
    }
    let datagram = Datagram {
        flow: Flow {
            src: IpAddr::from(chunk_at::<4>(ip, 12)?),
            dst: IpAddr::from(chunk_at::<4>(ip, 16)?),
            src_port: 0,
            dst_port: 0,
        },
        tos: *ip.get(1)?,
        ttl,
        ip_id: Some(u16_at(ip, 4)?),
        flags_fragment,
        length: 0,
        payload: &[],
    };
    dissect_udp(datagram, ip.get(header_len..)?, total_len.checked_sub(header_len)?)
}

fn dissect_v6(ip: &[u8]) -> Option<Datagram<'_>> {
    let [next_header, ttl] = chunk_at(ip, 6)?;
    if next_header != UDP {
        return None;
    }
    let datagram = Datagram {
        flow: Flow {
            src: IpAddr::from(chunk_at::<16>(ip, 8)?),
            dst: IpAddr::from(chunk_at::<16>(ip, 24)?),
            src_port: 0,
            dst_port: 0,
        },
        tos: (u16_at(ip, 0)? >> 4) as u8,
        ttl,
        ip_id: None,
        flags_fragment: 0,
        length: 0,
        payload: &[],
    };
    dissect_udp(datagram, ip.get(IPV6_LEN..)?, usize::from(u16_at(ip, 4)?))
}

/// Adds the fields of the UDP header. `udp` may extend into the padding of the frame, or end early if the capture was cut;
/// `available` is its length on the wire.
fn dissect_udp<'a>(mut datagram: Datagram<'a>, udp: &'a [u8], available: usize) -> Option<Datagram<'a>> {
    datagram.flow.src_port = u16_at(udp, 0)?;
    datagram.flow.dst_port = u16_at(udp, 2)?;
    let udp_len = usize::from(u16_at(udp, 4)?);
    if datagram.flow.dst_port != UDP_PORT {
        return None;
    }
    datagram.length = udp_len.min(available).saturating_sub(UDP_LEN);
    let payload = udp.get(UDP_LEN..)?;
    datagram.payload = &payload[..datagram.length.min(payload.len())];
    Some(datagram)
}
