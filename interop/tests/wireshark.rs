//! Wireshark's dissector as a judge: it shares no code with rnic, and decodes the headers that rnic writes.

use qp::wire::{HeaderSet, Headers, Opcode};
use rnic::capture::{Content, Decoder};
use rnic::{ConnectOptions, Error, Mtu, Operation, RcEnd, WcStatus};
use rnic_interop::tshark;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The fields that are compared, as tshark calls them.
const FIELDS: &[&str] = &[
    "frame.number",
    "infiniband.bth.opcode",
    "infiniband.bth.psn",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.se",
    "infiniband.bth.p_key",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.immdt",
];

/// Parses a field as a number. tshark prints immediate data as bytes.
fn number(field: &str, text: &str) -> Option<u64> {
    if field == "infiniband.immdt" { u64::from_str_radix(text, 16).ok() } else { tshark::number(text) }
}

/// The same fields as rnic's own decoder reads them.
fn ours(frame: u64, h: &Headers) -> Vec<Option<u64>> {
    let has = |set| h.opcode.info().headers.contains(set);
    let when = |set, value: u64| has(set).then_some(value);
    vec![
        Some(frame),
        Some(u64::from(h.opcode as u8)),
        Some(u64::from(h.psn.value())),
        Some(u64::from(h.dest_qpn.value())),
        Some(u64::from(h.ack_req)),
        Some(u64::from(h.solicited)),
        Some(u64::from(h.pkey.0)),
        // The dissector uses the same names for address and key of both headers.
        when(HeaderSet::RETH, h.reth.va).or(when(HeaderSet::ATOMIC_ETH, h.atomic.va)),
        when(HeaderSet::RETH, u64::from(h.reth.rkey))
            .or(when(HeaderSet::ATOMIC_ETH, u64::from(h.atomic.rkey))),
        when(HeaderSet::RETH, u64::from(h.reth.length)),
        when(HeaderSet::AETH, u64::from(h.aeth.syndrome)),
        when(HeaderSet::AETH, u64::from(h.aeth.msn)),
        when(HeaderSet::IMM_DT, u64::from(h.imm)),
    ]
}

/// Compares tshark's decoding of a capture with ours, field by field; returns the number of packets.
fn compare(file: &Path) -> usize {
    let fields: Vec<&str> = FIELDS.iter().copied().chain(["_ws.malformed"]).collect();
    let read = |columns: Vec<String>| {
        let values = FIELDS.iter().zip(&columns).map(|(f, text)| number(f, text)).collect();
        (values, columns.get(FIELDS.len()).cloned().unwrap_or_default())
    };
    let theirs: Vec<(Vec<Option<u64>>, String)> =
        tshark::fields(file, "infiniband", &fields).into_iter().map(read).collect();
    let decoder = Decoder::new(File::open(file).expect("the capture is there")).expect("a capture");
    let mut packets = 0;
    for (packet, (theirs, malformed)) in decoder.map(|p| p.expect("a whole packet")).zip(&theirs) {
        let Content::Packet { headers, payload_len, .. } = &packet.content else {
            panic!("{}: frame {} is no packet to us", file.display(), packet.frame);
        };
        assert_eq!(&ours(packet.frame, headers), theirs, "{}: frame {}", file.display(), packet.frame);
        // A UD SEND without payload is legal, but the dissector looks for a payload type in it. It also takes some
        // payloads for Ethernet frames that hold IP packets.
        let quirk = headers.opcode == Opcode::UdSendOnly && *payload_len == 0
            || malformed.contains("Malformed Packet: IPv4");
        assert!(malformed.is_empty() || quirk, "{}: frame {}: {malformed}", file.display(), packet.frame);
        packets += 1;
    }
    assert_eq!(packets, theirs.len(), "{}: both count the same packets", file.display());
    packets
}

/// Runs every operation, with losses, and captures the packets.
fn record(net: &rnic::sim::Net, path: &Path, mtu: Mtu) -> Result<(), Error> {
    let (a, b) = (net.device(), net.device());
    a.capture(path)?;
    let options = ConnectOptions { mtu: Some(mtu), ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
    a.add_fault("tx data psn=#2 drop")?;
    a.add_fault("rx ack nth=4 drop")?;
    let bytes: Vec<u8> = (0..20_001u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let source = left.register(&bytes)?;
    let target = right.register_remote(bytes.len())?;
    let remote = target.remote(0);
    for len in [0, 1, 2, 3, 4, 255, 256, 257, 20_001] {
        let part = source.slice(0..len)?;
        for operation in [
            Operation::Write { remote, imm: None },
            Operation::Write { remote, imm: Some(0x1234_5678) },
            Operation::Send { imm: None, invalidate: None },
            Operation::Send { imm: Some(7), invalidate: None },
            Operation::Read { remote },
        ] {
            right.qp.recv(1, target.all())?;
            left.qp.post(1, operation, part)?;
            assert_eq!(left.wait()?.status, WcStatus::Success);
        }
    }
    for operation in
        [Operation::FetchAdd { remote, add: 5 }, Operation::CompareSwap { remote, compare: 1, swap: 2 }]
    {
        left.qp.post(2, operation, source.slice(0..8)?)?;
        assert_eq!(left.wait()?.status, WcStatus::Success);
    }
    let wrong = rnic::Remote { addr: remote.addr, rkey: remote.rkey ^ 1 };
    left.qp.write(3, source.slice(0..8)?, wrong)?;
    assert_eq!(left.wait()?.status, WcStatus::RemAccessErr);
    a.stop_captures();
    Ok(())
}

#[test]
fn wireshark_reads_what_we_send() -> Result<(), Error> {
    if !tshark::is_installed() {
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("rnic-wireshark-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
        let path = folder.join(format!("{}.pcapng", mtu.bytes()));
        record(&rnic::sim::Net::new(), &path, mtu)?;
        let packets = compare(&path);
        assert!(packets > 100, "{packets} packets at MTU {}", mtu.bytes());
    }
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    Ok(())
}

#[test]
fn wireshark_and_we_read_linux_rxe_alike() {
    if !tshark::is_installed() {
        return;
    }
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let mut total = 0;
    for entry in std::fs::read_dir(folder).expect("the golden captures").flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "pcap") {
            total += compare(&path);
        }
    }
    assert!(total > 1800, "{total} packets");
}
