//! What a packet is, in words and with all of its fields.

use qp::wire::{Headers, Syndrome};
use rnic_core::capture::Decoder;

/// What is known of a packet that was sent.
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) psn: i32,
    pub(crate) again: bool,
    /// Whether the fields are those of a marked packet.
    pub(crate) marked: bool,
    pub(crate) fields: serde_json::Value,
}

/// What a packet is.
pub(crate) fn know(from: usize, packet: &rnic_core::sim::Packet, highest: &mut i32) -> Known {
    let mut bytes = Vec::new();
    packet.write_to(&mut bytes);
    let mut known = Known {
        name: "?".to_owned(),
        kind: "other",
        psn: 0,
        again: false,
        marked: false,
        fields: decoded(packet),
    };
    if let Ok(parsed) = qp::wire::Packet::parse(&bytes) {
        let headers = Headers::of(&parsed);
        let info = headers.opcode.info();
        known.name = info.name.split(' ').next_back().unwrap_or_default().to_owned();
        known.psn = headers.psn.value() as i32;
        known.kind = match (info.is_request, headers.aeth.kind()) {
            (true, _) => "data",
            (false, Syndrome::Nak(_) | Syndrome::Rnr { .. }) if known.name == "ACK" => "nak",
            (false, _) if known.name == "CNP" => "cnp",
            (false, _) => "ack",
        };
        if known.kind == "nak" {
            known.name = match headers.aeth.kind() {
                Syndrome::Rnr { .. } => "RNR NAK".to_owned(),
                _ => "NAK".to_owned(),
            };
        }
        if info.is_request && from == 0 {
            known.again = known.psn <= *highest;
            *highest = known.psn.max(*highest);
        }
    }
    known
}

/// All fields of a packet, by the decoder of `rnic decode`: through a capture in memory.
pub(crate) fn decoded(packet: &rnic_core::sim::Packet) -> serde_json::Value {
    let mut bytes = Vec::new();
    packet.write_to(&mut bytes);
    let file = pcap(packet, &bytes);
    let Ok(decoder) = Decoder::new(&file[..]) else { return serde_json::Value::Null };
    let first = decoder.flatten().next();
    first.and_then(|packet| serde_json::to_value(packet).ok()).unwrap_or_default()
}

/// A capture of one packet: pcap, raw IP.
fn pcap(packet: &rnic_core::sim::Packet, bytes: &[u8]) -> Vec<u8> {
    let (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) = (packet.ip.src, packet.ip.dst) else {
        return Vec::new();
    };
    let total = 20 + 8 + bytes.len();
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101, 0, 0, total as u32, total as u32] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(&[0x45, packet.ip.tos]);
    file.extend_from_slice(&(total as u16).to_be_bytes());
    file.extend_from_slice(&packet.ip.ident.to_be_bytes());
    file.extend_from_slice(&[0x40, 0, packet.ip.hop_limit, 17, 0, 0]);
    file.extend_from_slice(&src.octets());
    file.extend_from_slice(&dst.octets());
    file.extend_from_slice(&packet.ip.src_port.to_be_bytes());
    file.extend_from_slice(&4791_u16.to_be_bytes());
    file.extend_from_slice(&((8 + bytes.len()) as u16).to_be_bytes());
    file.extend_from_slice(&[0, 0]);
    file.extend_from_slice(bytes);
    file
}
