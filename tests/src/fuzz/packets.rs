//! The packet printer, which reads every field of every header.

use super::{byte, packet};
use arbitrary::Unstructured;
use qp::Qpn;
use qp::wire::mad::{MAD_LEN, Mad, Summary, cm, hello::Hello};
use qp::wire::{DethFields, Headers, IpHeader, Opcode, Packet, UDP_PORT};
use qp::{Psn, QKey};
use rnic::capture::{Content, Control, DecodedPacket, IcrcCheck};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Parses the bytes as a packet, or as the payload of one, and prints everything.
///
/// # Panics
///
/// Panics if the headers of a packet change when they are written and parsed again, or if a description is not a
/// single line.
pub fn packets(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let selector = byte(&mut input);
    let rest = input.take_rest();
    let payload_of = |opcode, qpn| {
        let mut headers = Headers::new(opcode, qpn, Psn::new(u32::from(selector)));
        headers.deth = DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI };
        packet(&IpHeader::default(), &headers, rest)
    };
    let bytes = match selector {
        0..=0x7f => rest.to_vec(),
        0x80..=0xbf => {
            // Adjust the length to that of a management datagram: most inputs would otherwise not be one.
            let mut mad = rest.to_vec();
            mad.resize(MAD_LEN, 0);
            management(&mad);
            let headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
            packet(&IpHeader::default(), &headers, &mad)
        }
        0xc0..=0xdf => payload_of(Opcode::RnicFlowControl, Qpn::new(0)),
        0xe0..=0xe7 => payload_of(Opcode::RnicPause, Qpn::new(0)),
        0xe8..=0xef => payload_of(Opcode::RnicTelemetry, Qpn::new(0x51)),
        _ => payload_of(Opcode::UdSendOnly, Qpn::GSI),
    };
    if let Ok(packet) = Packet::parse(&bytes) {
        print(&packet);
        decode(&packet);
    }
}

fn print(packet: &Packet<'_>) {
    let line = packet.to_string();
    assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
    assert!(!format!("{packet:?}").is_empty());
    let headers = Headers::of(packet);
    let mut written = vec![0; headers.wire_len()];
    headers.emit(&mut written, packet.payload().len());
    written.extend(&packet.bytes()[headers.wire_len()..]);
    // The pad count follows the payload, so the end of the payload may move.
    let mut again = written;
    again[1] = again[1] & !0x30 | packet.pad() << 4;
    let again = Packet::parse(&again).expect("what was written is a packet");
    assert_eq!(Headers::of(&again), headers);
    assert_eq!(again.payload(), packet.payload());
    if let Some(control) = Control::of(packet) {
        assert!(!control.to_string().contains('\n'));
    }
}

fn management(mad: &[u8]) {
    let Ok(whole) = <&[u8; MAD_LEN]>::try_from(mad) else { return };
    let summary = Summary(whole).to_string();
    assert!(!summary.contains('\n'), "{summary:?}");
    if let Ok(mad) = Mad::parse(mad) {
        let mut again = [0; MAD_LEN];
        mad.emit(&mut again).expect("256 bytes are enough");
        assert_eq!(Mad::parse(&again), Ok(mad));
    }
    if let Ok(hello) = Hello::parse(mad) {
        let mut again = [0; MAD_LEN];
        hello.emit(&mut again);
        assert_eq!(Hello::parse(&again), Ok(hello));
    }
    if let Ok(message) = cm::Message::parse(mad) {
        assert!(!message.to_string().contains('\n'));
        let mut again = [0; MAD_LEN];
        message.emit(&mut again).expect("256 bytes are enough");
        assert_eq!(cm::Message::parse(&again), Ok(message));
    }
}

/// The packet as shown in a listing and as JSON.
fn decode(packet: &Packet<'_>) {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let decoded = DecodedPacket {
        frame: 1,
        segment: None,
        time: Duration::ZERO,
        src: address,
        src_port: 0xc000,
        dst: address,
        dst_port: UDP_PORT,
        tos: 0,
        ttl: 64,
        ip_id: Some(0),
        len: packet.bytes().len(),
        content: Content::Packet {
            headers: Headers::of(packet),
            payload_len: packet.payload().len(),
            mad: packet.mad().map(|mad| Box::new(*mad)),
            control: Control::of(packet),
        },
        icrc: Some(IcrcCheck { computed: 0, found: packet.icrc() }),
        comments: Vec::new(),
        relative_psn: None,
        src_qpn: None,
    };
    let line = decoded.content.to_string();
    assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
    let json = serde_json::to_value(&decoded).expect("a packet is JSON");
    assert_eq!(json["text"], line);
}
