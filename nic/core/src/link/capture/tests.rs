use super::*;
use crate::link::{Fate, Frame};
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption as Opt};
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::section_header::SectionHeaderOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness};
use qp::wire::{Headers, Opcode};
use qp::wire::{IpHeader, icrc};
use qp::{Psn, Qpn};
use std::net::IpAddr;
use std::process::Command;
use time::{Duration, Instant};

/// A writer that tests can inspect, and make fail.
#[derive(Clone, Default)]
struct Sink {
    bytes: Arc<Mutex<Vec<u8>>>,
    fails: Arc<AtomicBool>,
}

impl Write for Sink {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::Error::other("the disk is full"));
        }
        self.bytes.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn frame(src: &str, dst: &str, headers: &Headers, payload: &[u8]) -> Frame {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    let ip = IpHeader { src, src_port: 0xc123, tos: 0x6a, hop_limit: 63, ident: 3, ..IpHeader::to(dst) };
    let mut bytes = vec![0; headers.wire_len()];
    headers.emit(&mut bytes, payload.len());
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let crc = icrc::compute(&ip.flow(), ip.ident, &bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    Frame { fate: Fate::Delivered, ..Frame::new(Direction::Tx, ip, bytes) }
}

fn send_only(src: &str, dst: &str, payload: &[u8]) -> Frame {
    frame(src, dst, &Headers::new(Opcode::RcSendOnly, Qpn::new(0x51), Psn::new(200)), payload)
}

fn at(nanos: u64) -> Now {
    Now { instant: Instant::EPOCH, wall: Duration::from_nanos(nanos) }
}

fn options(max_bytes: Option<u64>) -> CaptureOptions {
    CaptureOptions { interface: "rnic0".to_owned(), max_bytes }
}

/// Captures frames, one every 1000 ns, and returns the file.
fn capture(frames: &[Frame], max_bytes: Option<u64>) -> (Vec<u8>, Arc<CaptureStatus>) {
    let sink = Sink::default();
    let mut capture = Capture::new(sink.clone(), options(max_bytes));
    let status = capture.status();
    for (i, frame) in frames.iter().enumerate() {
        capture.observe(at(1_700_000_000_123_456_789 + 1000 * i as u64), &frame.view());
    }
    drop(capture);
    let bytes = sink.bytes.lock().unwrap().clone();
    assert_eq!(bytes.len() as u64, status.bytes());
    (bytes, status)
}

fn blocks(file: &[u8]) -> Vec<Block<'static>> {
    let mut reader = PcapNgReader::new(file).unwrap();
    let mut list = Vec::new();
    while let Some(block) = reader.next_block() {
        list.push(block.unwrap().into_owned());
    }
    list
}

fn packets(file: &[u8]) -> Vec<EnhancedPacketBlock<'static>> {
    blocks(file).into_iter().filter_map(Block::into_enhanced_packet).collect()
}

#[test]
fn the_file_says_who_wrote_it_and_where() {
    let (file, _) = capture(&[], None);
    let reader = PcapNgReader::new(&*file).unwrap();
    let section = reader.section();
    assert_eq!(section.endianness, Endianness::Little);
    assert_eq!((section.major_version, section.minor_version), (1, 0));
    let application = concat!("rnic ", env!("CARGO_PKG_VERSION"));
    assert_eq!(section.options, [SectionHeaderOption::UserApplication(application.into())]);
    let all = blocks(&file);
    let [Block::InterfaceDescription(interface)] = &*all else { panic!("one interface only: {all:?}") };
    assert_eq!(interface.linktype, DataLink::RAW);
    assert_eq!(
        interface.options,
        [InterfaceDescriptionOption::IfName("rnic0".into()), InterfaceDescriptionOption::IfTsResol(9)]
    );
}

#[test]
fn an_ipv4_packet_has_the_headers_it_has_on_the_wire() {
    let sent = send_only("10.77.0.1", "10.77.0.2", b"hello");
    let (file, status) = capture(std::slice::from_ref(&sent), None);
    assert_eq!((status.packets(), status.missed()), (1, 0));
    let packets = packets(&file);
    let [packet] = &*packets else { panic!("{packets:?}") };
    assert_eq!(packet.timestamp, Duration::from_nanos(1_700_000_000_123_456_789));
    assert_eq!(packet.options, [Opt::Flags(2)], "outbound, and nothing to say about it");
    let data = &*packet.data;
    assert_eq!(packet.original_len as usize, data.len());
    let (ip, udp) = data.split_at(20);
    assert_eq!(ip[..10], [0x45, 0x6a, 0, 52, 0, 3, 0x40, 0, 63, 17]);
    assert_eq!(ip[12..], [10, 77, 0, 1, 10, 77, 0, 2]);
    assert_eq!(naive_checksum(ip), 0, "the sum over a right header is 0");
    assert_eq!(udp[..6], [0xc1, 0x23, 0x12, 0xb7, 0, 32]);
    assert_eq!(udp[8..], sent.bytes);
    let pseudo = [&ip[12..20], &[0, 17, 0, 32], udp].concat();
    assert_eq!(naive_checksum(&pseudo), 0);
}

#[test]
fn an_ipv6_packet_carries_its_traffic_class_flow_label_and_checksum() {
    let plain = send_only("fd00::1", "fd00::2", b"hi!");
    let received =
        Frame { direction: Direction::Rx, ip: IpHeader { flow_label: 0xa_bcde, ..plain.ip }, ..plain };
    let (file, _) = capture(std::slice::from_ref(&received), None);
    let packet = packets(&file).remove(0);
    assert_eq!(packet.options, [Opt::Flags(1)]);
    let (ip, udp) = packet.data.split_at(40);
    assert_eq!(ip[..8], [0x66, 0xaa, 0xbc, 0xde, 0, 28, 17, 63]);
    assert_eq!(udp[8..], received.bytes);
    let pseudo = [&ip[8..40], &[0, 0, 0, 28, 0, 0, 0, 17], udp].concat();
    assert_eq!(naive_checksum(&pseudo), 0);
}

/// The Internet checksum, written in another way than the one under test.
fn naive_checksum(bytes: &[u8]) -> u16 {
    let mut sum: u16 = 0;
    for word in bytes.chunks(2) {
        let word = u16::from(word[0]) << 8 | word.get(1).map_or(0, |b| u16::from(*b));
        let (next, carry) = sum.overflowing_add(word);
        sum = next + u16::from(carry);
    }
    !sum
}

#[test]
fn notes_become_comments() {
    let mut dropped = send_only("10.0.0.1", "10.0.0.2", b"");
    dropped.notes = vec!["fault f1: marked CE".to_owned(), "fault f2: dropped".to_owned()];
    dropped.fate = Fate::Dropped { by: "f2".into() };
    let mut silent = send_only("10.0.0.1", "10.0.0.2", b"");
    silent.fate = Fate::Dropped { by: "the wall".into() };
    let mut long = send_only("10.0.0.1", "10.0.0.2", b"");
    long.notes = vec!["\u{e4}".repeat(40_000)];
    let (file, _) = capture(&[dropped, silent, long], None);
    let comments: Vec<_> = packets(&file)
        .into_iter()
        .map(|p| match p.options.into_iter().next() {
            Some(Opt::Comment(text)) => text.into_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(comments[0], "fault f1: marked CE; fault f2: dropped");
    assert_eq!(comments[1], "dropped by the wall");
    assert_eq!(comments[2], "\u{e4}".repeat(32_767), "cut where a character ends");
}

#[test]
fn a_limit_ends_the_capture_with_a_note() {
    let frames = vec![send_only("10.0.0.1", "10.0.0.2", &[7; 256]); 100];
    let (file, status) = capture(&frames, Some(4000));
    assert!(file.len() <= 4000, "{} bytes", file.len());
    assert!(status.is_stopped());
    assert_eq!(status.error(), None);
    assert_eq!(status.packets() + status.missed(), 100);
    assert_eq!(packets(&file).len() as u64, status.packets());
    assert!(status.packets() > 8, "the space is used: {}", status.packets());
    let Some(Block::InterfaceStatistics(note)) = blocks(&file).pop() else { panic!("no note") };
    assert!(format!("{:?}", note.options).contains("capture ended at its size limit"));

    // The note has its place whatever the limit leaves behind the last packet, which takes some 350 bytes.
    for limit in (4000..4400).step_by(4) {
        let (file, status) = capture(&frames, Some(limit));
        assert!(file.len() as u64 <= limit && status.packets() > 8, "{} bytes of {limit}", file.len());
        let last = blocks(&file).pop();
        assert!(
            matches!(last, Some(Block::InterfaceStatistics(_))),
            "no note within {limit} bytes: {last:?}"
        );
    }

    let (file, status) = capture(&frames, Some(10));
    assert_eq!((status.packets(), status.missed(), status.is_stopped()), (0, 100, true));
    assert!(packets(&file).is_empty());
}

#[test]
fn an_error_ends_the_capture_and_not_the_traffic() {
    let sink = Sink::default();
    let mut capture = Capture::new(sink.clone(), options(None));
    let status = capture.status();
    let frame = send_only("10.0.0.1", "10.0.0.2", &[7; 4096]);
    capture.observe(at(1), &frame.view());
    sink.fails.store(true, Ordering::Relaxed);
    for i in 0..10 {
        capture.observe(at(i), &frame.view());
    }
    assert!(status.is_stopped());
    assert_eq!(status.error().as_deref(), Some("the disk is full"));
    assert_eq!(status.packets() + status.missed(), 11);
    assert!(status.missed() >= 8);
}

#[test]
fn what_is_no_ip_packet_is_missed() {
    let mut frame = send_only("10.0.0.1", "10.0.0.2", b"");
    frame.bytes = vec![0; 65_507];
    let longest = frame.clone();
    frame.bytes.push(0);
    let (file, status) = capture(&[frame, longest], None);
    assert_eq!((status.packets(), status.missed()), (1, 1));
    assert_eq!(packets(&file)[0].data.len(), 65_535);
}

/// Wireshark knows RoCEv2: it must recognise every packet without complaint.
#[test]
fn wireshark_reads_it() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("SKIPPED: tshark is not installed, so nobody checked that Wireshark reads a capture");
        return;
    }
    let mut frames = Vec::new();
    for (src, dst) in [("10.77.0.1", "10.77.0.2"), ("fd00::1", "fd00::2")] {
        for opcode in Opcode::ALL.iter().filter(|o| (**o as u8) < 0x15) {
            let headers = Headers::new(*opcode, Qpn::new(0x51), Psn::new(200));
            let payload: &[u8] = if opcode.info().has_payload { b"seven b" } else { b"" };
            frames.push(frame(src, dst, &headers, payload));
        }
    }
    frames[1].notes.push("fault f1: dropped".to_owned());
    let (file, _) = capture(&frames, None);
    let path = std::env::temp_dir().join(format!("rnic-capture-{}.pcapng", std::process::id()));
    std::fs::write(&path, file).unwrap();
    let fields = [
        "frame.protocols",
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
        "infiniband.bth.destqp",
        "ip.src",
        "ipv6.src",
        "frame.comment",
        "_ws.malformed",
        "ip.checksum.status",
        "udp.checksum.status",
    ];
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&path).args(["-Y", "infiniband", "-T", "fields", "-E", "separator=|"]);
    // It guesses the protocol of a payload, and ours has none.
    tshark.args(["--disable-protocol", "rpcordma"]);
    tshark.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    let output = tshark.args(fields.iter().flat_map(|f| ["-e", f])).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split('|').collect()).collect();
    assert_eq!(lines.len(), frames.len(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for (line, frame) in lines.iter().zip(&frames) {
        assert!(line[0].contains(":udp:infiniband"), "{line:?}");
        assert_eq!(line[1].parse(), Ok(frame.bytes[0]), "{line:?}");
        assert_eq!(line[2], "200", "{line:?}");
        // Versions differ in the number of leading zeros.
        let qpn = line[3].strip_prefix("0x").map(|hex| u32::from_str_radix(hex, 16));
        assert_eq!(qpn, Some(Ok(0x51)), "{line:?}");
        let src = if line[4].is_empty() { line[5] } else { line[4] };
        assert_eq!(src.parse::<IpAddr>(), Ok(frame.ip.src), "{line:?}");
        assert_eq!(line[6], frame.notes.join("; "));
        assert_eq!(line[7], "", "malformed: {line:?}");
        assert!(frame.ip.src.is_ipv6() || line[8] == "1", "IP checksum: {line:?}");
        assert_eq!(line[9], "1", "UDP checksum: {line:?}");
    }
}
