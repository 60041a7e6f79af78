use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

const V4: Flow = Flow {
    src: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
    dst: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
    src_port: 0xd431,
    dst_port: 4791,
};

fn v6() -> Flow {
    Flow { src: Ipv6Addr::LOCALHOST.into(), dst: "fd77::1".parse().unwrap(), ..V4 }
}

/// Two acknowledgements sent by Linux rxe, as captured: identification, flags, BTH and AETH, ICRC.
#[test]
fn acknowledgements_of_linux_rxe() {
    let v4 = Flow { src: [10, 77, 0, 1].into(), dst: [10, 77, 0, 2].into(), src_port: 0xc121, ..V4 };
    let covered = *b"\x11\0\xff\xff\0\0\0\x11\0\x9b\x3d\x05\x1f\0\0\x01";
    let sent = u32::from_le_bytes([0xb1, 0x4d, 0xb0, 0x0c]);
    assert_eq!(compute(&v4, 0x50af, &covered), sent);
    assert_eq!(compute_fragment(&v4, 0x50af, 0x4000, &covered), sent);
    let [src, dst] = ["fd77::1", "fd77::2"].map(|ip| ip.parse().unwrap());
    let v6 = Flow { src, dst, src_port: 0xc1b9, dst_port: 4791 };
    let covered = *b"\x11\0\xff\xff\0\0\0\x15\0\x29\x59\x17\x1f\0\0\x01";
    assert_eq!(compute(&v6, 0, &covered), u32::from_le_bytes([0x2b, 0x47, 0xbd, 0x06]));
}

/// A datagram of `len` covered bytes with the ICRC for this identification.
fn datagram(flow: &Flow, ident: u16, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    let crc = compute(flow, ident, &bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

fn expected_verdict(expected: u16, actual: u16) -> IcrcVerdict {
    match actual {
        same if same == expected => IcrcVerdict::Exact,
        index if index < TRAIN_INDICES => IcrcVerdict::Index(index),
        other => IcrcVerdict::Identification(other),
    }
}

#[test]
fn multiplication_and_division_by_x_are_inverse() {
    for bit in 0..32 {
        let a = 1 << bit;
        assert_eq!(over_x(times_x(a)), a);
        assert_eq!(times_x(over_x(a)), a);
    }
    assert_eq!(multiply(inverse_power(12_345), (0..12_345).fold(ONE, |a, _| times_x(a))), ONE);
}

#[test]
fn every_identification_is_found_for_some_lengths() {
    let mut solver = IdentSolver::new();
    for len in [12, 16, 40, 1036, 4108] {
        for expected in [0, 5, 0xbeef] {
            for ident in (0..=u16::MAX).step_by(if len > 100 { 61 } else { 1 }) {
                let verdict = solver.verify(&V4, expected, &datagram(&V4, ident, len));
                assert_eq!(verdict, expected_verdict(expected, ident), "length {len}, expected {expected}");
            }
        }
    }
}

#[test]
fn exactly_the_differences_of_real_identifications_are_explained() {
    let bytes = datagram(&V4, 0, 28);
    let base = u32::from_le_bytes(*bytes.last_chunk().unwrap());
    // Brute force: the effect of each identification on the ICRC.
    let mut explained: Vec<(u32, u16)> =
        (0..=u16::MAX).map(|ident| (base ^ compute(&V4, ident, &bytes[..28]), ident)).collect();
    explained.sort_unstable();
    assert!(explained.windows(2).all(|pair| pair[0].0 != pair[1].0), "no difference has two explanations");
    let mut solver = IdentSolver::new();
    let mut check = |delta: u32| {
        let expected = match explained.binary_search_by_key(&delta, |&(difference, _)| difference) {
            Ok(found) => expected_verdict(0, explained[found].1),
            Err(_) => IcrcVerdict::Bad,
        };
        let mut broken = bytes.clone();
        broken[28..].copy_from_slice(&(base ^ delta).to_le_bytes());
        assert_eq!(solver.verify(&V4, 0, &broken), expected, "difference {delta:#010x}");
    };
    for &(difference, _) in explained.iter().step_by(97) {
        check(difference);
        check(difference ^ 1);
    }
    // Visits the 32-bit numbers with a step that is coprime to their count.
    (0..100_000u32).for_each(|i| check(i.wrapping_mul(0x9e37_79b1)));
}

#[test]
fn lengths_that_share_a_cache_entry_do_not_mix() {
    let mut solver = IdentSolver::new();
    for _ in 0..3 {
        for len in [16, 16 + 4 * CACHED, 16 + 8 * CACHED, 0, 4 * CACHED] {
            let verdict = solver.verify(&V4, 0, &datagram(&V4, 0x1234, len));
            assert_eq!(verdict, IcrcVerdict::Identification(0x1234), "length {len}");
        }
    }
}

#[test]
fn ipv6_has_no_identification() {
    let flow = v6();
    let bytes = datagram(&flow, 1, 44);
    let mut solver = IdentSolver::new();
    assert_eq!(solver.verify(&flow, 2, &bytes), IcrcVerdict::Exact);
    for bit in 0..bytes.len() * 8 {
        let mut broken = bytes.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        let verdict = solver.verify(&flow, 0, &broken);
        // The ICRC does not cover byte 4 of the BTH.
        assert_eq!(verdict, if bit / 8 == 4 { IcrcVerdict::Exact } else { IcrcVerdict::Bad }, "bit {bit}");
    }
}

/// The contribution of an identification to an ICRC depends only on the length. Nothing is explained for IPv6, or
/// for lengths that are not those of packets.
#[test]
fn identifications_explain_packets_of_ipv4_only() {
    let mut solver = IdentSolver::new();
    for len in [16, 4112, 40_000, 65_532] {
        for ident in [1, 63, 64, 0xbeef] {
            let verdict = solver.verify(&V4, 0, &datagram(&V4, ident, len));
            assert_eq!(verdict, expected_verdict(0, ident), "{ident} at length {len}");
        }
    }
    for (flow, len) in [(v6(), 16), (v6(), 4112), (V4, 65_536), (V4, 70_000)] {
        let mut bytes = datagram(&flow, 0, len);
        let difference = compute(&V4, 0, &bytes[..len]) ^ compute(&V4, 1, &bytes[..len]);
        assert_eq!(solver.verify(&flow, 0, &bytes), IcrcVerdict::Exact);
        let crc = u32::from_le_bytes(*bytes.last_chunk().unwrap());
        bytes[len..].copy_from_slice(&(crc ^ difference).to_le_bytes());
        assert_eq!(solver.verify(&flow, 0, &bytes), IcrcVerdict::Bad, "{flow:?} at length {len}");
    }
}

#[test]
fn mapped_addresses_count_as_ipv4() {
    let mapped = |ip| match ip {
        IpAddr::V4(v4) => IpAddr::V6(Ipv4Addr::to_ipv6_mapped(&v4)),
        v6 => v6,
    };
    let both = Flow { src: mapped(V4.src), dst: mapped(V4.dst), ..V4 };
    let one = Flow { src: mapped(V4.src), ..V4 };
    let bytes = [7; 40];
    assert_eq!(compute(&both, 9, &bytes), compute(&V4, 9, &bytes));
    assert_eq!(compute(&one, 9, &bytes), compute(&V4, 9, &bytes));
    let mixed = Flow { src: v6().src, ..V4 };
    assert_eq!(compute(&mixed, 9, &bytes), compute(&mixed, 10, &bytes), "as IPv6");
}

/// The CRC of all bytes that an IPv4 packet is covered by, written out.
#[test]
fn the_icrc_is_the_crc_of_the_headers_with_ones_and_the_packet() {
    let mut covered: Vec<u8> = (0..60).map(|i| i * 3).collect();
    for ecn in 0..=u8::MAX {
        covered[BTH_ECN] = ecn;
        let mut all = vec![0xff; 8];
        all.extend([
            0x45, 0xff, 0, 92, 0x12, 0x34, 0x40, 0, 0xff, 17, 0xff, 0xff, 10, 77, 0, 2, 10, 77, 0, 1,
        ]);
        all.extend([0xd4, 0x31, 0x12, 0xb7, 0, 72, 0xff, 0xff]);
        all.extend(&covered);
        all[36 + BTH_ECN] = 0xff;
        assert_eq!(compute(&V4, 0x1234, &covered), crc32fast::hash(&all), "byte {ecn:#04x}");
    }
}

#[test]
fn fragment_word_counts() {
    assert_ne!(compute_fragment(&V4, 0, 0, &[0; 12]), compute(&V4, 0, &[0; 12]));
}

#[test]
fn short_and_oversized_input_is_bad_not_a_panic() {
    let mut solver = IdentSolver::new();
    for len in 0..16 {
        assert_eq!(solver.verify(&V4, 0, &vec![0; len]), IcrcVerdict::Bad, "length {len}");
    }
    assert_eq!(solver.verify(&V4, 0, &vec![0; 70_000]), IcrcVerdict::Bad);
}

proptest! {
    #[test]
    fn any_identification_of_any_packet(
        expected: u16, ident: u16, len in 3usize..1100, src: [u8; 4], dst: [u8; 4], src_port: u16,
    ) {
        let flow = Flow { src: src.into(), dst: dst.into(), src_port, dst_port: 4791 };
        let mut solver = IdentSolver::new();
        let verdict = solver.verify(&flow, expected, &datagram(&flow, ident, len * 4));
        prop_assert_eq!(verdict, expected_verdict(expected, ident));
    }
}

/// Flows of both families, one IPv4-mapped, and one with mixed addresses, which is treated as IPv6.
fn flows() -> [Flow; 5] {
    let flow = |src: &str, dst: &str, src_port| Flow {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        src_port,
        dst_port: 4791,
    };
    [
        flow("10.0.0.1", "10.0.0.2", 49_152),
        flow("10.0.0.1", "10.0.0.2", 49_153),
        flow("::ffff:10.9.0.1", "10.0.0.2", 7),
        flow("fe80::1", "2001:db8::7", 65_535),
        flow("10.0.0.1", "2001:db8::7", 8),
    ]
}

proptest! {
    #[test]
    fn packets_of_a_flow_have_the_icrc_of_each_alone(
        which in 0..5_usize,
        packets in vec((any::<u16>(), vec(any::<u8>(), 0..200)), 1..8),
    ) {
        let flow = flows()[which];
        let mut crc = FlowCrc::new(flow);
        for (ident, covered) in packets {
            // Small identifications come from a table.
            for ident in [ident, ident % 100] {
                let alone = compute(&flow, ident, &covered);
                prop_assert_eq!(crc.compute(ident, &covered), alone);
                let (start, rest) = covered.split_at(covered.len() / 3);
                if start.len() > BTH_ECN || rest.is_empty() {
                    prop_assert_eq!(extend(crc.begin(ident, covered.len(), start), rest), alone);
                }
            }
        }
    }

    #[test]
    fn packets_of_many_flows_and_lengths_are_checked_like_each_alone(
        packets in vec((0..5_usize, any::<u8>(), prop_oneof![Just(16), Just(272), 0..600_usize], 0..64_u16), 1..20),
    ) {
        let mut solver = IdentSolver::new();
        for (which, ecn, len, ident) in packets {
            let flow = flows()[which];
            // Mostly 0, as on the wire.
            for ecn in [ecn, 0] {
                let mut packet: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
                if let Some(byte) = packet.get_mut(BTH_ECN) {
                    *byte = ecn;
                }
                let crc = compute(&flow, ident, &packet);
                packet.extend(crc.to_le_bytes());
                prop_assert_eq!(solver.verify(&flow, ident, &packet), IcrcVerdict::Exact);
                packet[len] ^= 1;
                prop_assert_eq!(solver.verify(&flow, ident, &packet), IcrcVerdict::Bad);
            }
        }
    }
}
