use super::*;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness};
use proptest::prelude::*;
use qp::wire::icrc::DONT_FRAGMENT;
use qp::wire::{Flow, Opcode, pad_len};
use qp::{Psn, Qpn};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

const V4: Flow = Flow {
    src: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    dst: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    src_port: 50_000,
    dst_port: 4791,
};

fn v6() -> Flow {
    Flow { src: Ipv6Addr::LOCALHOST.into(), dst: "fd77::1".parse().unwrap(), ..V4 }
}

/// BTH to ICRC of a SEND.
fn send(flow: &Flow, ident: u16, payload_len: usize) -> Vec<u8> {
    let headers = Headers::new(Opcode::RcSendMiddle, Qpn::new(0x51), Psn::new(u32::from(ident)));
    let mut bytes = vec![0; headers.wire_len()];
    headers.emit(&mut bytes, payload_len);
    bytes.extend((0..payload_len).map(|i| i as u8));
    bytes.resize(bytes.len() + pad_len(payload_len), 0);
    let crc = icrc::compute(flow, ident, &bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// The IP packet around a UDP payload.
fn ip(flow: &Flow, ident: u16, payload: &[u8]) -> Vec<u8> {
    let udp_len = (payload.len() + 8) as u16;
    let mut out = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header = vec![0x45, 3];
            for word in [udp_len + 20, ident, DONT_FRAGMENT] {
                header.extend(word.to_be_bytes());
            }
            header.extend([63, 17, 0, 0]);
            header.extend(src.octets());
            header.extend(dst.octets());
            header
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut header = vec![0x60, 0x30, 0, 0];
            header.extend(udp_len.to_be_bytes());
            header.extend([17, 63]);
            header.extend(src.octets());
            header.extend(dst.octets());
            header
        }
        mixed => panic!("{mixed:?}"),
    };
    for word in [flow.src_port, flow.dst_port, udp_len, 0] {
        out.extend(word.to_be_bytes());
    }
    out.extend(payload);
    out
}

/// A big-endian pcap file with nanoseconds.
fn pcap(link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_3c4d, 0x0002_0004, 0, 0, 96, link] {
        file.extend(u32::to_be_bytes(word));
    }
    for (i, frame) in frames.iter().enumerate() {
        for word in [1_700_000_000, i as u32 + 5, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_be_bytes());
        }
        file.extend(frame);
    }
    file
}

fn decode_all(file: &[u8]) -> (Vec<DecodedPacket>, Summary) {
    let mut decoder = Decoder::new(file).unwrap();
    let packets = decoder.by_ref().map(Result::unwrap).collect();
    (packets, decoder.summary())
}

fn ethernet(tags: &[u8], ip: &[u8]) -> Vec<u8> {
    let kind: &[u8] = if ip[0] >> 4 == 4 { &[0x08, 0] } else { &[0x86, 0xdd] };
    // Two trailing bytes, as an Ethernet frame may have.
    [&[0xaa; 12], tags, kind, ip, &[0, 0]].concat()
}

#[test]
fn every_golden_capture_has_good_packets_only() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let (mut files, mut packets) = (0, 0);
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "pcap") {
            continue;
        }
        let (decoded, summary) = decode_all(&std::fs::read(&path).unwrap());
        // The table beside the files tells how many packets each has.
        let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
        let row = format!("| {} |", path.file_stem().unwrap().to_str().unwrap());
        let row = readme.lines().find(|line| line.starts_with(&row)).unwrap();
        assert!(row.contains(&format!("| {} packets, 0 bad ICRC;", decoded.len())), "{row}");
        assert_eq!(summary, Summary { packets: decoded.len() as u64, ..Summary::default() });
        assert!(decoded.iter().all(|packet| packet.segment.is_none()));
        files += 1;
        packets += decoded.len();
    }
    assert!(files > 50 && packets > 1500, "{packets} packets in {files} files");
}

#[test]
fn every_link_type_leads_to_the_packet() {
    for flow in [V4, v6()] {
        let packet = ip(&flow, 7, &send(&flow, 7, 5));
        let kind: [u8; 2] = if flow.src.is_ipv4() { [0x08, 0] } else { [0x86, 0xdd] };
        let vlan = [0x81, 0, 0, 5];
        let stacked = [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6];
        let frames = [
            (1, ethernet(&[], &packet)),
            (1, ethernet(&vlan, &packet)),
            (1, ethernet(&stacked, &packet)),
            (101, packet.clone()),
            (228, packet.clone()),
            (0, [&[2, 0, 0, 0], &packet[..]].concat()),
            (108, [&[0, 0, 0, 24], &packet[..]].concat()),
            (113, [&[0; 14], &kind[..], &packet].concat()),
            (276, [&kind[..], &[0; 18], &packet].concat()),
            // A frame checksum of 4 bytes is announced above the link type.
            (0x2400_0001, ethernet(&[], &packet)),
        ];
        for (link, frame) in frames {
            let (decoded, summary) = decode_all(&pcap(link, &[frame]));
            assert_eq!(summary, Summary { packets: 1, ..Summary::default() }, "link type {link:#x}");
            let found = &decoded[0];
            assert_eq!((found.src, found.dst, found.src_port), (flow.src, flow.dst, 50_000));
            assert_eq!((found.tos, found.ecn(), found.ttl), (3, Ecn::Ce, 63));
            assert_eq!(found.ip_id, flow.src.is_ipv4().then_some(7));
            assert_eq!(found.time, Duration::new(1_700_000_000, 5));
            assert_eq!(found.content.to_string(), "RC SEND_MIDDLE dqp=0x000051 psn=7 data=5");
            assert!(found.icrc.unwrap().is_ok());
        }
    }
}

#[test]
fn other_traffic_is_skipped() {
    let packet = ip(&V4, 0, &send(&V4, 0, 0));
    let with = |at: usize, byte: u8| {
        let mut other = packet.clone();
        other[at] = byte;
        other
    };
    let tcp = with(9, 6);
    let other_port = with(23, 0xb8);
    let later_fragment = with(7, 1);
    let frames = [tcp, other_port, later_fragment, Vec::new(), vec![0x50; 60], packet.clone()];
    let (decoded, summary) = decode_all(&pcap(101, &frames));
    assert_eq!(decoded[0].frame, 6);
    assert_eq!(summary, Summary { packets: 1, other_frames: 5, ..Summary::default() });
    let arp = [&[0xaa; 12], &[8, 6][..], &[0; 28]].concat();
    let endless_tags = [&[0xaa; 12], &[0x81, 0, 0, 1].repeat(9)[..]].concat();
    assert_eq!(decode_all(&pcap(1, &[arp, endless_tags])).1.other_frames, 2);
}

#[test]
fn damage_is_told_apart() {
    let good = ip(&V4, 0, &send(&V4, 0, 8));
    let mut flipped = good.clone();
    flipped[45] ^= 1;
    let mut unknown = good.clone();
    unknown[28] = 0x15;
    let mut first_fragment = good.clone();
    first_fragment[6] |= 0x20;
    let snapped = good[..40].to_vec();
    let (decoded, summary) = decode_all(&pcap(101, &[flipped, unknown, first_fragment, snapped]));
    let expected = Summary { packets: 4, bad_icrc: 2, malformed: 2, truncated: 1, ..Summary::default() };
    assert_eq!(summary, expected);
    assert!(matches!(decoded[0].content, Content::Packet { payload_len: 8, .. }));
    assert_eq!(decoded[1].content, Content::Malformed(WireError::UnknownOpcode(0x15)));
    assert_eq!((&decoded[2].content, decoded[2].icrc), (&Content::Fragment, None));
    assert_eq!(decoded[3].content, Content::Truncated { captured: 12, length: 24 });
    assert_eq!(summary.to_string(), "4 packets, 2 bad ICRC, 2 malformed, 1 truncated");
}

#[test]
fn a_train_is_taken_apart() {
    for (flow, first) in [(V4, 0), (V4, 0xfffe), (v6(), 0)] {
        let ident = |index: u16| if flow.src.is_ipv4() { index.wrapping_add(first) } else { 0 };
        let mut train: Vec<u8> = (0..5).flat_map(|index| send(&flow, ident(index), 1024)).collect();
        train.extend(send(&flow, ident(5), 3));
        let (decoded, summary) =
            decode_all(&pcap(101, &[ip(&flow, first, &train), ip(&flow, first, &train)]));
        assert_eq!(summary, Summary { packets: 12, trains: 2, ..Summary::default() });
        assert_eq!(summary.to_string(), "12 packets, 0 bad ICRC, 2 segmentation-offloaded frames split");
        let segments: Vec<_> = decoded.iter().map(|p| (p.frame, p.segment.unwrap(), p.len)).collect();
        assert_eq!(segments[4..7], [(1, 4, 1040), (1, 5, 20), (2, 0, 1040)]);
        let last = decoded.last().unwrap();
        assert_eq!(last.ip_id, flow.src.is_ipv4().then(|| first.wrapping_add(5)));
    }
}

#[test]
fn a_damaged_packet_of_a_train_is_named_and_the_others_are_good() {
    for damaged in 0..3u16 {
        let mut train: Vec<u8> = (0..3).flat_map(|index| send(&V4, index, 1024)).collect();
        train[usize::from(damaged) * 1040 + 500] ^= 4;
        let (decoded, summary) = decode_all(&pcap(101, &[ip(&V4, 0, &train)]));
        assert_eq!((summary.packets, summary.bad_icrc, summary.trains), (3, 1, 1));
        let bad: Vec<_> = decoded.iter().filter(|p| !p.icrc.unwrap().is_ok()).map(|p| p.segment).collect();
        assert_eq!(bad, [Some(damaged)]);
    }
    // Without a good packet at its beginning nothing tells where packets end.
    let mut train: Vec<u8> = (0..3).flat_map(|index| send(&V4, index, 1024)).collect();
    train[500] ^= 4;
    train[1540] ^= 4;
    let (decoded, summary) = decode_all(&pcap(101, &[ip(&V4, 0, &train)]));
    assert_eq!((summary.packets, summary.bad_icrc, decoded[0].segment), (1, 1, None));
}

#[test]
fn a_train_that_was_captured_in_part_shows_the_packets_that_are_whole() {
    let train: Vec<u8> = (0..4).flat_map(|index| send(&V4, index, 256)).collect();
    let frame = ip(&V4, 0, &train);
    // Two whole packets of 272 bytes behind 28 bytes of headers, and 100 bytes of the third.
    let (decoded, summary) = decode_all(&pcap(101, &[frame[..28 + 2 * 272 + 100].to_vec()]));
    assert_eq!((summary.packets, summary.bad_icrc, summary.truncated), (4, 0, 2));
    assert!(decoded[..2].iter().all(|p| p.icrc.unwrap().is_ok()));
    assert_eq!(decoded[2].content, Content::Truncated { captured: 100, length: 272 });
    assert_eq!(decoded[3].content, Content::Truncated { captured: 0, length: 272 });
}

fn pcapng(endianness: Endianness, resolution: u8) -> Vec<u8> {
    let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
    let mut usb = InterfaceDescriptionBlock::new(DataLink::USB_LINUX, 0);
    usb.options.push(InterfaceDescriptionOption::IfName("usb".into()));
    let mut raw = InterfaceDescriptionBlock::new(DataLink::RAW, 0);
    raw.options.push(InterfaceDescriptionOption::IfTsResol(resolution));
    raw.options.push(InterfaceDescriptionOption::IfTsOffset(100));
    writer.write_pcapng_block(usb).unwrap();
    writer.write_pcapng_block(raw).unwrap();
    let frame = ip(&V4, 3, &send(&V4, 3, 6));
    for interface_id in [0, 1] {
        let packet = EnhancedPacketBlock {
            interface_id,
            // The library writes this as a number of units.
            timestamp: Duration::from_nanos(3 << 10),
            original_len: frame.len() as u32,
            data: frame.as_slice().into(),
            options: vec![EnhancedPacketOption::Comment("dropped\nhere".into())],
        };
        writer.write_pcapng_block(packet).unwrap();
    }
    writer.into_inner()
}

#[test]
fn pcapng_has_interfaces_times_and_comments() {
    for endianness in [Endianness::Little, Endianness::Big] {
        for (resolution, nanos) in [(9, 3072), (6, 3_072_000), (0x80 | 10, 3_000_000_000), (200, 0), (99, 0)]
        {
            let (decoded, summary) = decode_all(&pcapng(endianness, resolution));
            assert_eq!(summary, Summary { packets: 1, other_frames: 1, ..Summary::default() });
            assert_eq!(decoded[0].frame, 2);
            assert_eq!(decoded[0].time, Duration::from_secs(100) + Duration::from_nanos(nanos));
            assert_eq!(decoded[0].comments, ["dropped\nhere"]);
            assert!(decoded[0].icrc.unwrap().is_ok());
        }
    }
}

#[test]
fn simple_packets_belong_to_the_first_interface() {
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    writer.write_pcapng_block(InterfaceDescriptionBlock::new(DataLink::RAW, 0)).unwrap();
    let frame = ip(&V4, 3, &send(&V4, 3, 6));
    let packet = SimplePacketBlock { original_len: frame.len() as u32, data: frame.into() };
    writer.write_block(&packet.into_block()).unwrap();
    let (decoded, summary) = decode_all(&writer.into_inner());
    assert_eq!((summary.packets, summary.bad_icrc), (1, 0));
    assert_eq!(decoded[0].time, Duration::ZERO);
}

#[test]
fn a_packet_of_an_unknown_interface_is_damage() {
    let mut file = pcapng(Endianness::Little, 6);
    // The first field of the last block's body; its type is 6 and it ends 4 bytes before the end.
    let length = u32::from_le_bytes(*file.last_chunk().unwrap()) as usize;
    let at = file.len() - length + 8;
    file[at] = 9;
    let error = Decoder::new(&file[..]).unwrap().find_map(Result::err).unwrap();
    assert!(matches!(error, CaptureError::Damaged { frames: 1, .. }), "{error}");
}

#[test]
fn errors_name_the_reason() {
    assert!(matches!(Decoder::new(&b""[..]).unwrap_err(), CaptureError::Empty));
    for not in [&b"abc"[..], b"#!/bin/sh\necho", &[0; 64]] {
        assert!(matches!(Decoder::new(not).unwrap_err(), CaptureError::NotACapture));
    }
    let file = pcap(101, &[ip(&V4, 0, &send(&V4, 0, 0)), ip(&V4, 1, &send(&V4, 1, 0))]);
    let error = Decoder::new(&file[..20]).unwrap_err();
    assert!(matches!(error, CaptureError::CutOff { frames: 0, bytes: 20 }));
    assert!(error.to_string().ends_with("ends after 20 bytes, inside the header of the file"), "{error}");
    let mut decoder = Decoder::new(&file[..file.len() - 1]).unwrap();
    assert!(decoder.next().unwrap().is_ok());
    let (error, len) = (decoder.next().unwrap().unwrap_err(), file.len() as u64 - 1);
    assert!(matches!(error, CaptureError::CutOff { frames: 1, bytes } if bytes == len));
    assert!(error.to_string().ends_with("inside frame 2"), "{error}");
    assert!(decoder.next().is_none());
    let error = Decoder::new(&pcap(189, &[])[..]).unwrap_err();
    assert!(matches!(error, CaptureError::UnsupportedLink(189)), "{error}");
}

#[test]
fn a_cut_pcapng_file_says_where_it_ends() {
    let file = pcapng(Endianness::Little, 6);
    let mut decoder = Decoder::new(&file[..file.len() - 5]).unwrap();
    let error = decoder.find_map(Result::err).unwrap();
    let len = file.len() as u64 - 5;
    assert!(matches!(error, CaptureError::CutOff { frames: 1, bytes } if bytes == len), "{error:?}");
}

#[test]
fn the_sender_of_an_answer_is_inferred_and_psns_count_from_the_first() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/rg_nak_write_badrkey.pcap");
    let (decoded, _) = decode_all(&std::fs::read(golden).unwrap());
    let (request, answer) = (&decoded[2], &decoded[3]);
    let to = |packet: &DecodedPacket| match &packet.content {
        Content::Packet { headers, .. } => headers.dest_qpn,
        other => panic!("{other}"),
    };
    assert_eq!(answer.src_qpn, Some(to(request)), "who was asked answers");
    assert_eq!(answer.relative_psn, request.relative_psn);
    assert_eq!(decoded[0].relative_psn, Some(0));
}

#[test]
fn json_has_the_headers_of_the_opcode() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/rg_nak_write_badrkey.pcap");
    let (decoded, summary) = decode_all(&std::fs::read(golden).unwrap());
    let report = serde_json::to_value(Report::new(&decoded, summary)).unwrap();
    assert_eq!(report["schema_version"], 1);
    assert_eq!(report["summary"]["packets"], 4);
    let write = &report["packets"][2];
    assert_eq!(write["headers"]["opcode"], "RC WRITE_ONLY");
    assert_eq!(write["headers"]["reth"]["length"], 8);
    assert!(write["headers"]["reth"]["va"].as_str().unwrap().starts_with("0x"));
    assert_eq!(write["icrc"]["ok"], true);
    assert!(write["headers"]["aeth"].is_null());
    let nak = &report["packets"][3]["headers"]["aeth"];
    assert_eq!((&nak["kind"], &nak["reason"]), (&"nak".into(), &"remote-access-error".into()));
}

/// Decodes to the end or to an error; panics are what the tests below look for.
fn exhaust(file: &[u8]) -> Summary {
    let Ok(mut decoder) = Decoder::new(file) else { return Summary::default() };
    for packet in decoder.by_ref().flatten() {
        assert!(serde_json::to_value(&packet).is_ok_and(|json| !json["text"].is_null()));
    }
    decoder.summary()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_files_never_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        which in 0..3,
    ) {
        let mut file = match which {
            0 => pcapng(Endianness::Little, 6),
            1 => pcapng(Endianness::Big, 9),
            _ => pcap(1, &[ethernet(&[], &ip(&V4, 0, &send(&V4, 0, 40)))]),
        };
        for (at, byte) in damage {
            let at = at.index(file.len());
            file[at] = byte;
        }
        prop_assert!(exhaust(&file).packets <= 2);
        let cut = cut.index(file.len());
        prop_assert!(exhaust(&file[..cut]).packets <= 2);
    }

    #[test]
    fn any_frame_of_any_link_type(
        frame in proptest::collection::vec(any::<u8>(), 0..120),
        link in prop::sample::select(vec![0u32, 1, 101, 113, 276]),
        plausible: bool,
    ) {
        let mut frame = frame;
        if plausible {
            let packet = ip(&V4, 0, &frame);
            frame = match link {
                1 => ethernet(&[], &packet),
                113 => [&[0; 14][..], &[8, 0], &packet].concat(),
                276 => [&[8, 0][..], &[0; 18], &packet].concat(),
                0 => [&[0; 4][..], &packet].concat(),
                _ => packet,
            };
        }
        let summary = exhaust(&pcap(link, &[frame]));
        prop_assert_eq!(summary.packets + summary.other_frames, 1);
        prop_assert!(!plausible || summary.packets == 1);
    }

    #[test]
    fn garbage_behind_a_magic_number(
        garbage in proptest::collection::vec(any::<u8>(), 0..200),
        magic in prop::sample::select(vec![0x0a0d_0d0au32, 0xa1b2_c3d4, 0xd4c3_b2a1, 0xa1b2_3c4d]),
    ) {
        let file = [&magic.to_be_bytes()[..], &garbage].concat();
        prop_assert_eq!(exhaust(&file).bad_icrc, 0);
    }
}

/// A capture of one packet for another rnic port.
fn decoded_control(headers: &Headers, payload: &[u8]) -> DecodedPacket {
    let mut bytes = vec![0; headers.wire_len()];
    headers.emit(&mut bytes, payload.len());
    bytes.extend(payload);
    bytes.extend(icrc::compute(&V4, 9, &bytes).to_le_bytes());
    let mut file: Vec<u8> =
        [0xa1b2_c3d4, 0x0002_0004, 0, 0, 0xffff, 101].into_iter().flat_map(u32::to_be_bytes).collect();
    let packet = ip(&V4, 9, &bytes);
    let len = packet.len() as u32;
    file.extend([0, 0, len, len].into_iter().flat_map(u32::to_be_bytes));
    file.extend(packet);
    let mut packets = Decoder::new(&file[..]).unwrap();
    let decoded = packets.next().unwrap().unwrap();
    assert!(decoded.icrc.is_some_and(IcrcCheck::is_ok) && packets.next().is_none());
    decoded
}

#[test]
fn credits_are_shown_by_lane_and_pauses_by_priority() {
    // An ask for 66 blocks, number 3, after grant 2, with 12 sent of 2060; a grant; and a message of a reserved kind.
    let lanes = [
        [0x00, 0, 0, 66, 0, 3, 0, 2, 0, 0, 0, 12, 0, 0, 0x08, 0x0c],
        [0x11, 0, 0, 0, 0, 5, 0, 4, 0, 0, 0, 9, 0, 1, 0, 0],
        [0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    let said = |body: &[u8]| [&[0xab; 8][..], body].concat();
    let decoded = decoded_control(&Headers::flow_control(2, 1, 7), &said(lanes.as_flattened()));
    assert_eq!(
        decoded.content.to_string(),
        "RNIC FLOW_CONTROL from=1 to=2 seq=7 data=56 vl0 ask=66 sent=12 limit=2060 vl1 grant received=9 limit=65536 \
         (flow control of kind 4 is reserved)"
    );
    let json = serde_json::to_value(&decoded).unwrap();
    let control = &json["control"];
    assert_eq!((&control["from"], &control["to"], &control["sequence"]), (&1.into(), &2.into(), &7.into()));
    let first = serde_json::json!(
        { "vl": 0, "kind": "ask", "want": 66, "number": 3, "echo": 2, "sent": 12, "limit": 2060 }
    );
    assert_eq!(control["lanes"][0], first);
    assert_eq!(control["lanes"][1]["received"], 9);
    assert_eq!(control["lanes"][2]["error"], "flow control of kind 4 is reserved");
    assert_eq!(json["headers"]["opcode"], "RNIC FLOW_CONTROL");

    let mut times = qp::wire::PauseTimes::default();
    (times.0[3], times.0[4]) = (Some(65_535), Some(0));
    let decoded = decoded_control(&Headers::pause(2, 1, 8), &said(&times.emit()));
    assert_eq!(
        decoded.content.to_string(),
        "RNIC PAUSE from=1 to=2 seq=8 data=28 prio3 pause=65535 prio4 go"
    );
    let quanta = serde_json::json!([null, null, null, 65_535, 0, null, null, null]);
    assert_eq!(serde_json::to_value(&decoded).unwrap()["control"]["quanta"], quanta);

    // Code 2, 3000 ns, 10 units of 512 bytes, 3 of 320; and a code that no rate has.
    let words = [2_u64 << 61 | 3000 << 37 | 10 << 17 | 3, 7 << 61];
    let body: Vec<u8> =
        [0, 2, 0, 0].into_iter().chain(words.iter().flat_map(|word| word.to_be_bytes())).collect();
    let decoded = decoded_control(&Headers::telemetry(Qpn::new(0x51), Psn::new(7)), &said(&body));
    assert_eq!(
        decoded.content.to_string(),
        "RNIC TELEMETRY dqp=0x000051 psn=7 data=28 hop1 100 Gb/s t=3000ns sent=5120 queue=960 \
         (hop2 has an unknown rate: 0xe000000000000000)"
    );
    let hops = serde_json::json!([
        { "rate": 100_000_000_000_u64, "time_ns": 3000, "sent": 5120, "queue": 960 },
        { "error": "unknown rate: 0xe000000000000000" }
    ]);
    assert_eq!(serde_json::to_value(&decoded).unwrap()["control"]["hops"], hops);

    let decoded = decoded_control(&Headers::pause(2, 1, 9), &[0; 16]);
    let text = "RNIC PAUSE from=1 to=2 seq=9 data=16 (of a length that it cannot have)";
    assert_eq!(decoded.content.to_string(), text);
}
