//! Datagrams of RoCEv2, as whoever drives a port hands them in.

use cc::hpcc::Telemetry;
use qp::wire::IpHeader;
use std::ops::RangeInclusive;
use time::Duration;

/// The UDP source ports that RoCEv2 senders use, as entropy for multipath routing: the dynamic ports of RFC 6335.
pub const SOURCE_PORTS: RangeInclusive<u16> = 0xC000..=0xFFFF;

/// The default TTL or hop limit of packets: the one that Linux uses (`IPDEFTTL`).
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// The most bytes that travel as one datagram, in one packet or several: the largest UDP payload over IPv4.
pub const LARGEST_DATAGRAM: usize = 65_507;

/// A received datagram: one packet, or several of equal length behind one another (the last may be shorter).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// The UDP payload of all its packets.
    pub bytes: &'a [u8],
    /// Length of each packet but the last; at least 1.
    pub segment_size: usize,
    /// The headers around its packets, which the kernel merges only if they are equal. What it does not report is 0.
    pub ip: IpHeader,
    /// When the kernel received it, by the wall clock, since the UNIX epoch; `None` unless timestamps are enabled.
    /// For merged packets, the time of the first.
    pub stamp: Option<Duration>,
    /// Whether bytes or control messages were lost for lack of room. Such a datagram must be dropped.
    pub truncated: bool,
    /// What the ports on the way of its packet said, if the packet collects that.
    pub telemetry: Option<&'a Telemetry>,
}

impl<'a> Datagram<'a> {
    /// A datagram of one packet.
    pub const fn single(ip: IpHeader, bytes: &'a [u8]) -> Self {
        Self { bytes, segment_size: bytes.len(), ip, stamp: None, truncated: false, telemetry: None }
    }

    /// The packets with their headers.
    pub fn packets(&self) -> impl Iterator<Item = (IpHeader, &'a [u8])> + use<'a> {
        let ip = self.ip;
        self.segments().map(move |(index, packet)| {
            let ident = ip.ident.saturating_add(u16::try_from(index).unwrap_or(u16::MAX));
            (IpHeader { ident, ..ip }, packet)
        })
    }

    /// The packets with their index in the train. In a train that was never split the index is also the IPv4
    /// identification under the ICRC. The kernel may also merge packets from the middle of a train, or from several
    /// trains, so the index is only a guess. An empty datagram is one empty packet.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = (usize, &'a [u8])> + use<'a> {
        let (bytes, size) = (self.bytes, self.segment_size.max(1));
        (0..bytes.len().div_ceil(size).max(1)).map(move |index| {
            let start = index * size;
            (index, &bytes[start..bytes.len().min(start + size)])
        })
    }
}
