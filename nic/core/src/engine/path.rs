//! Paths through the network: where the packets of a queue pair go, and in what headers.

use super::EngineConfig;
use super::rate::{ECN, ECT};
use crate::datagram::DEFAULT_HOP_LIMIT;
use crate::link::wire_bytes;
use qp::attr::AddressVector;
use qp::wire::{IpHeader, UDP_PORT};
use qp::{Qpn, Train};
use std::net::IpAddr;

/// How the packets of a queue pair travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Path {
    pub(super) ip: IpHeader,
    /// Index of the source port.
    pub(super) via: usize,
    /// The process at the destination; `None` for that of a single datagram.
    pub(super) peer: Option<usize>,
}

/// A train ready to leave. Its bytes are in the buffer passed to
/// [`Engine::poll_transmit`](super::Engine::poll_transmit).
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// The headers of its first packet.
    pub ip: IpHeader,
    /// Index of the source port.
    pub via: usize,
    /// Total length in bytes.
    pub len: usize,
    /// Length in bytes of every packet except possibly the last.
    pub segment_size: usize,
    /// Number of packets.
    pub packets: u32,
}

impl EngineConfig {
    /// A path from one of the port's source ports.
    pub(super) fn path(&self, via: usize, ip: IpHeader) -> Path {
        let src_port = self.source_ports.get(via).copied().unwrap_or(UDP_PORT);
        Path { ip: IpHeader { src: self.address, src_port, ..ip }, via, peer: None }
    }

    /// Whether a queue pair number is one of another process that shares the address. Whoever shares it out, at slot 0, also
    /// gets what is for slots that do not exist.
    pub(super) fn is_of_another(&self, qpn: Qpn) -> bool {
        self.share.is_some() && self.slot > 0 && qpn.slot() != self.slot
    }

    /// The path that an address vector describes, to a queue pair of this slot.
    pub(super) fn path_along(&self, av: &AddressVector, slot: u8) -> Path {
        let dst = av.dgid.ip();
        let flow_label = if dst.is_ipv6() { av.flow_label } else { 0 };
        let ip =
            IpHeader { tos: av.traffic_class, hop_limit: hop_limit(av), flow_label, ..IpHeader::to(dst) };
        self.path(source_port(av.flow_label, (dst, slot), self.source_ports.len()), ip)
    }

    /// The path to a slot at `dst`, with default header fields.
    pub(super) fn path_to(&self, dst: IpAddr, slot: u8) -> Path {
        self.path(source_port(0, (dst, slot), self.source_ports.len()), IpHeader::to(dst))
    }
}

impl Path {
    /// Marks the packets as ECN-capable (RFC 3168).
    pub(super) fn mark_ecn_capable(&mut self) {
        self.ip.tos = self.ip.tos & !ECN | ECT;
    }

    pub(super) fn departure(&self, train: &Train<'_>) -> Departure {
        Departure {
            ip: self.ip,
            via: self.via,
            len: train.bytes().len(),
            segment_size: train.segment_size(),
            packets: train.packets(),
        }
    }
}

/// Selects the source port. A flow label is entropy that the program chose: it is mapped to a port as on Linux
/// (`rdma_flow_label_to_udp_sport`), and that port to one of ours. Without a flow label, the destination decides: queue
/// pairs with the same peer share trains, which have one source port. Several processes may be at one address, each with a
/// slot: if packets for two of them leave from one port, a receiver that merges packets (GRO) gives some to the wrong one,
/// so neighbours among slots get different ports. A program that wants packets spread over equal-cost paths sets flow
/// labels.
fn source_port(flow_label: u32, (dst, slot): (IpAddr, u8), source_ports: usize) -> usize {
    let mix = |bytes: &[u8]| bytes.iter().fold(0_u32, |hash, byte| hash.wrapping_mul(31) ^ u32::from(*byte));
    let entropy = match (flow_label, dst) {
        (0, IpAddr::V4(dst)) => mix(&dst.octets()).wrapping_add(slot.into()),
        (0, IpAddr::V6(dst)) => mix(&dst.octets()).wrapping_add(slot.into()),
        (label, _) => (label ^ label >> 14) & 0x3fff,
    };
    entropy as usize % source_ports.max(1)
}

/// The TTL or hop limit of packets along `path`. Programs leave it 0, or set it to 1 as the libibverbs examples do,
/// even if the path crosses routers: Linux substitutes the route's own value. For a multicast group, 1 is taken
/// literally: the local network.
fn hop_limit(path: &AddressVector) -> u8 {
    match path.hop_limit {
        0 => DEFAULT_HOP_LIMIT,
        1 if !path.dgid.ip().is_multicast() => DEFAULT_HOP_LIMIT,
        hops => hops,
    }
}

impl Departure {
    /// The packets that were added to a train since it was `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self { len: self.len - before.len, packets: self.packets - before.packets, ..*self }
    }

    /// Its length on Ethernet.
    pub(super) fn wire_bytes(&self) -> u64 {
        let (last, full) = match self.packets.checked_sub(1) {
            Some(full) => (self.len - self.segment_size * full as usize, full),
            None => return 0,
        };
        let is_ipv6 = self.ip.dst.is_ipv6();
        u64::from(wire_bytes(self.segment_size, is_ipv6)) * u64::from(full)
            + u64::from(wire_bytes(last, is_ipv6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn flow_labels_choose_source_ports_as_on_linux() {
        // 0xabcde: its low 14 bits, XORed with its upper 6 bits, as rdma_flow_label_to_udp_sport does.
        let dst = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(source_port(0xa_bcde, (dst, 0), 0x4000), 0x3cde ^ 0x2a);
        for ports in [1, 4, 256] {
            let chosen = |label| source_port(label, (dst, 0), ports);
            assert!((0..1000).all(|label| chosen(label) < ports && chosen(label) == chosen(label)));
        }
        let spread: BTreeSet<_> = (1..20).map(|label| source_port(label, (dst, 0), 4)).collect();
        assert_eq!(spread.len(), 4);
        assert_eq!(source_port(9, (dst, 0), 0), 0);
    }

    #[test]
    fn without_flow_labels_destinations_choose_source_ports() {
        let v4: BTreeSet<_> = (0..20).map(|n| source_port(0, (IpAddr::from([10, 0, n, 1]), 0), 4)).collect();
        let v6 = |n| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, n, 1]);
        let v6: BTreeSet<_> = (0..20).map(|n| source_port(0, (v6(n), 0), 4)).collect();
        assert_eq!((v4.len(), v6.len()), (4, 4));
        let slots: BTreeSet<_> =
            (6..10).map(|slot| source_port(0, ([10, 0, 0, 1].into(), slot), 4)).collect();
        assert_eq!(slots.len(), 4);
    }

    #[test]
    fn hop_limits_mean_what_linux_makes_of_them() {
        let to = |ip: [u8; 4], hop_limit| {
            let path = AddressVector { hop_limit, ..AddressVector::new(IpAddr::from(ip).into(), 0) };
            super::hop_limit(&path)
        };
        assert_eq!([0, 1, 2, 255].map(|hops| to([10, 0, 0, 1], hops)), [64, 64, 2, 255]);
        assert_eq!([0, 1, 2, 255].map(|hops| to([239, 0, 0, 1], hops)), [64, 1, 2, 255]);
    }
}
