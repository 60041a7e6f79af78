//! Captures of hand-made packets, for other decoders to judge.

use qp::wire::icrc::{self, DONT_FRAGMENT};
use qp::wire::mad::MAD_LEN;
use qp::wire::{DethFields, Flow, Headers, Opcode, UDP_PORT, pad_len};
use qp::{Psn, QKey, Qpn};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Wraps a RoCEv2 packet in an IP packet, with the correct ICRC.
#[must_use]
pub fn ip_packet(ipv6: bool, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let (src, dst): (IpAddr, IpAddr) = if ipv6 {
        let host = |last| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last).into();
        (host(2), host(1))
    } else {
        (Ipv4Addr::new(10, 77, 0, 2).into(), Ipv4Addr::new(10, 77, 0, 1).into())
    };
    let flow = Flow { src, dst, src_port: 0xd872, dst_port: UDP_PORT };
    let mut bytes = vec![0; headers.wire_len()];
    headers.emit(&mut bytes, payload.len());
    bytes.extend(payload);
    bytes.resize(bytes.len() + pad_len(payload.len()), 0);
    bytes.extend(icrc::compute(&flow, 0, &bytes).to_le_bytes());
    let udp_len = bytes.len() as u16 + 8;
    let mut packet = Vec::new();
    match (src, dst) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(udp_len.to_be_bytes());
            packet.extend([17, 64]);
            packet.extend(src.octets());
            packet.extend(dst.octets());
        }
        _ => {
            packet.extend([0x45, 0]);
            packet.extend([udp_len + 20, 0, DONT_FRAGMENT].map(u16::to_be_bytes).concat());
            packet.extend([64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1]);
        }
    }
    packet.extend([flow.src_port, flow.dst_port, udp_len, 0].map(u16::to_be_bytes).concat());
    packet.extend(bytes);
    packet
}

/// Wraps a datagram to queue pair 1 in an IP packet.
#[must_use]
pub fn mad_packet(ipv6: bool, psn: u32, mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(psn));
    headers.deth = DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI };
    ip_packet(ipv6, &headers, mad)
}

/// A pcap file of IP packets (link type 101), one second apart.
#[must_use]
pub fn file(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file: Vec<u8> =
        [0xa1b2_c3d4, 0x0002_0004, 0, 0, 0xffff, 101].into_iter().flat_map(u32::to_be_bytes).collect();
    for (second, packet) in (1u32..).zip(packets) {
        let len = packet.len() as u32;
        file.extend([second, 0, len, len].into_iter().flat_map(u32::to_be_bytes));
        file.extend(packet);
    }
    file
}
