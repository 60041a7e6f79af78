//! The IP and UDP headers of a packet on the wire, built from the information that a socket has.

use crate::link::FrameRef;
use qp::wire::icrc::DONT_FRAGMENT;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// Protocol number of UDP (IANA).
const UDP: u8 = 17;
/// The offset of the checksum in the UDP header.
const UDP_CHECKSUM: usize = 6;

/// An IPv4 or IPv6 header and a UDP header.
pub(super) struct IpUdp {
    buf: [u8; IPV6_LEN + UDP_LEN],
    len: usize,
}

impl IpUdp {
    /// The headers of a frame; `None` if it exceeds the maximum length of an IP packet.
    pub(super) fn of(frame: &FrameRef<'_>) -> Option<Self> {
        let udp_len = u16::try_from(frame.bytes.len().checked_add(UDP_LEN)?).ok()?;
        match (frame.ip.src.to_canonical(), frame.ip.dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Self::v4(frame, udp_len, src, dst),
            (src, dst) => Some(Self::v6(frame, udp_len, as_v6(src), as_v6(dst))),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    fn v4(frame: &FrameRef<'_>, udp_len: u16, src: Ipv4Addr, dst: Ipv4Addr) -> Option<Self> {
        let mut buf = [0; IPV6_LEN + UDP_LEN];
        let (ip, udp) = buf.split_at_mut(IPV4_LEN);
        // Version 4, five words of header (RFC 791).
        ip[0] = 0x45;
        ip[1] = frame.ip.tos;
        ip[2..4].copy_from_slice(&udp_len.checked_add(IPV4_LEN as u16)?.to_be_bytes());
        ip[4..6].copy_from_slice(&frame.ip.ident.to_be_bytes());
        ip[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
        ip[8] = frame.ip.hop_limit;
        ip[9] = UDP;
        ip[12..16].copy_from_slice(&src.octets());
        ip[16..20].copy_from_slice(&dst.octets());
        let checksum = finish(sum(ip));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let addresses = sum(&ip[12..20]);
        write_udp(&mut udp[..UDP_LEN], frame, udp_len, addresses);
        Some(Self { buf, len: IPV4_LEN + UDP_LEN })
    }

    fn v6(frame: &FrameRef<'_>, udp_len: u16, src: Ipv6Addr, dst: Ipv6Addr) -> Self {
        let mut buf = [0; IPV6_LEN + UDP_LEN];
        let (ip, udp) = buf.split_at_mut(IPV6_LEN);
        // Version 6, the traffic class and the flow label in one word (RFC 8200).
        let first = 6 << 28 | u32::from(frame.ip.tos) << 20 | frame.ip.flow_label & 0xf_ffff;
        ip[..4].copy_from_slice(&first.to_be_bytes());
        ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
        ip[6] = UDP;
        ip[7] = frame.ip.hop_limit;
        ip[8..24].copy_from_slice(&src.octets());
        ip[24..40].copy_from_slice(&dst.octets());
        let addresses = sum(&ip[8..40]);
        write_udp(udp, frame, udp_len, addresses);
        Self { buf, len: IPV6_LEN + UDP_LEN }
    }
}

/// Writes the UDP header; `addresses` is the sum over both addresses, for the pseudo-header.
fn write_udp(udp: &mut [u8], frame: &FrameRef<'_>, udp_len: u16, addresses: u64) {
    udp[0..2].copy_from_slice(&frame.ip.src_port.to_be_bytes());
    udp[2..4].copy_from_slice(&qp::wire::UDP_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    let pseudo = addresses + u64::from(UDP) + u64::from(udp_len);
    // A checksum of 0 would mean "none": it is sent as all ones (RFC 768).
    let checksum = match finish(pseudo + sum(udp) + sum(frame.bytes)) {
        0 => 0xffff,
        checksum => checksum,
    };
    udp[UDP_CHECKSUM..].copy_from_slice(&checksum.to_be_bytes());
}

/// The sum of 16-bit words that Internet checksums start from (RFC 1071); an odd byte at the end counts as the upper
/// half of a word. 2^48 words would fit.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let odd = rest.first().map_or(0, |last| u64::from(*last) << 8);
    words.iter().map(|w| u64::from(u16::from_be_bytes(*w))).sum::<u64>() + odd
}

/// Folds a sum to 16 bits and inverts it.
fn finish(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
