//! Checks the wire formats against captures of Linux soft-RoCE.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pcap_file::pcap::PcapReader;
use qp::wire::icrc::{self, TRAIN_INDICES};
use qp::wire::{Flow, Headers, ICRC_LEN, IcrcVerdict, IdentSolver, Packet, UDP_PORT, pad_len};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

/// A captured packet: what a UDP socket would provide, and the IPv4 identification that it would not.
struct Captured {
    flow: Flow,
    ident: u16,
    bytes: Vec<u8>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

/// Parses an Ethernet frame with IPv4 or IPv6 and UDP.
fn from_frame(frame: &[u8]) -> Captured {
    let ip = &frame[14..];
    let (src, dst, ident, udp): (IpAddr, IpAddr, u16, &[u8]) = match u16_at(frame, 12) {
        0x0800 => {
            let total = usize::from(u16_at(ip, 2));
            let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
            assert_eq!((ip[0], u16_at(ip, 6)), (0x45, icrc::DONT_FRAGMENT));
            (address(12), address(16), u16_at(ip, 4), &ip[20..total])
        }
        0x86dd => {
            let end = 40 + usize::from(u16_at(ip, 4));
            let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap()).into();
            (address(8), address(24), 0, &ip[40..end])
        }
        other => panic!("ethertype {other:#06x}"),
    };
    let flow = Flow { src, dst, src_port: u16_at(udp, 0), dst_port: u16_at(udp, 2) };
    assert_eq!(flow.dst_port, UDP_PORT);
    Captured { flow, ident, bytes: udp[8..].to_vec() }
}

/// All captures by name.
fn captures() -> BTreeMap<String, Vec<Captured>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "pcap") {
            let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
            let mut packets = Vec::new();
            while let Some(packet) = reader.next_packet() {
                packets.push(from_frame(&packet.unwrap().data));
            }
            all.insert(path.file_stem().unwrap().to_str().unwrap().to_owned(), packets);
        }
    }
    all
}

/// The entry for each file in the README's table: "20 packets, 0 bad ICRC; RC ACK x10, ..."
fn documented() -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder().join("README.md")).unwrap();
    text.lines()
        .filter_map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            let (first, last) = (cells.first()?, cells.last()?);
            last.contains("bad ICRC").then(|| ((*first).to_owned(), (*last).to_owned()))
        })
        .filter(|(name, _)| !name.contains(' '))
        .collect()
}

#[test]
fn counts_are_those_of_the_readme() {
    let found: BTreeMap<_, _> = captures()
        .into_iter()
        .map(|(name, packets)| {
            let mut kinds = BTreeMap::new();
            let mut bad = 0;
            for p in &packets {
                let packet = Packet::parse(&p.bytes).unwrap();
                *kinds.entry(packet.info().name).or_insert(0) += 1;
                let covered = &p.bytes[..p.bytes.len() - ICRC_LEN];
                bad += usize::from(icrc::compute(&p.flow, p.ident, covered) != packet.icrc());
            }
            let kinds: Vec<_> = kinds.into_iter().map(|(kind, n)| format!("{kind} x{n}")).collect();
            (name, format!("{} packets, {bad} bad ICRC; {}", packets.len(), kinds.join(", ")))
        })
        .collect();
    assert!(found.len() > 50, "only {} captures found", found.len());
    assert_eq!(found, documented());
}

#[test]
fn emitting_what_was_parsed_gives_the_same_bytes() {
    for (name, packets) in captures() {
        for p in packets {
            let packet = Packet::parse(&p.bytes).unwrap();
            let headers = Headers::of(&packet);
            let mut out = vec![0xaa; headers.wire_len()];
            let len = headers.emit(&mut out, packet.payload().len());
            assert_eq!(len, out.len());
            out.extend(packet.payload());
            out.resize(out.len() + pad_len(packet.payload().len()), 0);
            out.extend(icrc::compute(&p.flow, p.ident, &out).to_le_bytes());
            assert_eq!(out, p.bytes, "{name}: {packet}");
        }
    }
}

/// The verdict that an unmodified packet should get with `expected` as its expected identification.
fn untouched(p: &Captured, expected: u16) -> IcrcVerdict {
    if p.flow.src.is_ipv6() || p.ident == expected {
        IcrcVerdict::Exact
    } else if p.ident < TRAIN_INDICES {
        IcrcVerdict::Index(p.ident)
    } else {
        IcrcVerdict::Identification(p.ident)
    }
}

#[test]
fn the_solver_finds_every_identification() {
    let mut solver = IdentSolver::new();
    let mut found = 0;
    for p in captures().into_values().flatten() {
        for expected in [0, 1, p.ident, !p.ident] {
            assert_eq!(solver.verify(&p.flow, expected, &p.bytes), untouched(&p, expected));
        }
        found += usize::from(!p.flow.src.is_ipv6());
    }
    assert!(found > 1500, "only {found} packets over IPv4");
}

/// The byte in which a flipped bit goes unnoticed: FECN, BECN and reserved bits, which routers may change.
const UNCOVERED_BYTE: usize = 4;

fn flip_is_noticed(p: &Captured, bit: usize) {
    let mut broken = p.bytes.clone();
    broken[bit / 8] ^= 1 << (bit % 8);
    let (covered, received) = broken.split_last_chunk::<ICRC_LEN>().unwrap();
    let same = icrc::compute(&p.flow, p.ident, covered) == u32::from_le_bytes(*received);
    assert_eq!(same, bit / 8 == UNCOVERED_BYTE, "bit {bit} of {} bytes", p.bytes.len());
}

#[test]
fn every_flipped_bit_is_noticed() {
    for (_, packets) in captures() {
        for (i, p) in packets.iter().enumerate() {
            let bits = p.bytes.len() * 8;
            // All bits of the first packet of a file and of short packets; for the others, a few that differ
            // between packets.
            let step = if i == 0 || bits < 1000 { 1 } else { bits / 16 };
            (i % step..bits).step_by(step).for_each(|bit| flip_is_noticed(p, bit));
        }
    }
}

#[test]
fn a_flipped_bit_is_hardly_ever_taken_for_another_identification() {
    let mut solver = IdentSolver::new();
    let (mut flips, mut accepted) = (0u32, 0u32);
    for packets in captures().into_values() {
        let Some(p) = packets.iter().find(|p| !p.flow.src.is_ipv6()) else { continue };
        for bit in (0..p.bytes.len() * 8).filter(|bit| bit / 8 != UNCOVERED_BYTE) {
            let mut broken = p.bytes.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            let verdict = solver.verify(&p.flow, 0, &broken);
            assert!(!matches!(verdict, IcrcVerdict::Exact | IcrcVerdict::Index(_)), "{verdict:?}, bit {bit}");
            flips += 1;
            accepted += u32::from(verdict != IcrcVerdict::Bad);
        }
    }
    assert!(flips > 100_000, "only {flips} flips tried");
    assert!(accepted <= flips / 1000, "{accepted} of {flips} flips passed");
}

#[test]
fn every_truncation_is_an_error_or_a_shorter_packet() {
    for packets in captures().into_values() {
        // Packets of the same kind and length behave alike; a few from each file cover all kinds.
        let mut seen = BTreeMap::new();
        for p in packets {
            let whole = Packet::parse(&p.bytes).unwrap();
            if seen.insert((whole.opcode() as u8, p.bytes.len()), ()).is_some() {
                continue;
            }
            for len in 0..p.bytes.len() {
                match Packet::parse(&p.bytes[..len]) {
                    Ok(shorter) => assert!(shorter.payload().len() < whole.payload().len()),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
    }
}

#[test]
fn packets_read_as_one_line() {
    let captures = captures();
    let line = |name: &str, at: usize| Packet::parse(&captures[name][at].bytes).unwrap().to_string();
    let rnr = captures["rg_rnr_nak"].iter().map(|p| Packet::parse(&p.bytes).unwrap().to_string());
    assert_eq!(rnr.filter(|line| line.contains(" RNR 10.24ms ")).count(), 4);
    assert!(line("rg_nak_write_badrkey", 3).contains(" NAK remote-access-error msn="));
    assert!(line("rg_ud", 0).starts_with("UD SEND_ONLY dqp=0x"));
    assert!(
        line("cm_rping", 0)
            .starts_with("CM REQ comm=0xe1c2e0f5 svc=0x0000000001061c06(TCP 7174) qpn=0x000036 ")
    );
}
