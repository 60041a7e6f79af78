//! What identifies a flow.

use qp::wire::IpHeader;
use rnic_core::sim::Packet;
use std::net::IpAddr;

/// Mixes the bits of a number so that each depends on all: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A hash of the addresses, the protocol and the ports of a packet. Those of RoCEv2 differ in addresses and source port.
pub(super) fn flow_of(ip: &IpHeader) -> u64 {
    let half = |address| match address {
        IpAddr::V4(v4) => u64::from(u32::from(v4)),
        IpAddr::V6(v6) => {
            let bits = u128::from(v6);
            mix((bits >> 64) as u64) ^ bits as u64
        }
    };
    // The order of the addresses counts.
    let addresses = mix(half(ip.src)).wrapping_add(half(ip.dst).rotate_left(32));
    mix(addresses ^ u64::from(ip.src_port) << 16)
}

/// The destination queue pair in the BTH of a packet; 0 if it is too short for one.
pub(super) fn destination_qp(packet: &Packet) -> u32 {
    let [high, middle, low] = [5, 6, 7].map(|at| packet.byte(at));
    u32::from_be_bytes([0, high, middle, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_differ_in_each_part_and_directions_differ() {
        let to = |src: [u8; 4], dst: [u8; 4], src_port| {
            flow_of(&IpHeader { src: src.into(), src_port, ..IpHeader::to(dst.into()) })
        };
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let all = [to(a, b, 1), to(b, a, 1), to(a, b, 2), to(a, a, 1), to(b, b, 1)];
        assert!((0..all.len()).all(|n| all.iter().filter(|other| **other == all[n]).count() == 1));
        let qp_of = |bytes: &[u8]| destination_qp(&Packet::new(IpHeader::default(), bytes));
        assert_eq!(qp_of(&[4, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 9]), 0x01_0203);
        assert_eq!(qp_of(&[4, 0, 0]), 0);
    }
}
