//! Linux connection management: the golden captures `cm_*`, field by field.

use qp::wire::mad::cm::{Body, Message};
use qp::wire::mad::{Fields, MAD_LEN, Value as Field};
use qp::wire::{Headers, Operation};
use qp::{Psn, Qpn};
use rnic::capture::{Content, DecodedPacket, Decoder};
use serde_json::Value;
use std::fmt::Write;
use std::fs::File;
use std::net::IpAddr;

const CAPTURES: [(&str, usize); 3] = [("cm_reject", 2), ("cm_rping", 5), ("cm_ucmatose", 10)];

fn packets(capture: &str) -> Vec<DecodedPacket> {
    let path = format!("{}/golden/{capture}.pcap", env!("CARGO_MANIFEST_DIR"));
    let file = File::open(path).expect("a golden capture");
    Decoder::new(file).expect("a capture").collect::<Result<_, _>>().expect("a whole capture")
}

fn mad(packet: &DecodedPacket) -> Option<&[u8; MAD_LEN]> {
    match &packet.content {
        Content::Packet { mad, .. } => mad.as_deref(),
        other => panic!("frame {}: {other}", packet.frame),
    }
}

/// The connection management datagrams, with the frames that carry them.
fn mads(packets: &[DecodedPacket]) -> Vec<(&DecodedPacket, &[u8; MAD_LEN])> {
    packets.iter().filter_map(|packet| mad(packet).map(|mad| (packet, mad))).collect()
}

/// All values of a JSON document, one per line, each with its path.
fn flatten(path: &str, value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                flatten(&format!("{path}.{name}"), value, out);
            }
        }
        other => writeln!(out, "  {} = {other}", path.trim_start_matches('.')).expect("a string takes it"),
    }
}

/// What `rnic decode` prints for the datagrams: the line of text, then all fields of the JSON form.
fn listing(capture: &str, expected: usize) -> String {
    let packets = packets(capture);
    let mut out = String::new();
    for (packet, _) in mads(&packets) {
        writeln!(out, "frame {}: {}", packet.frame, packet.content).expect("a string takes it");
        let json = serde_json::to_value(packet).expect("JSON");
        flatten("", &json["mad"], &mut out);
    }
    assert_eq!(out.matches("frame ").count(), expected, "{capture}");
    out
}

#[test]
fn every_field_of_a_refused_connection() {
    let (capture, expected) = CAPTURES[0];
    insta::assert_snapshot!(listing(capture, expected));
}

#[test]
fn every_field_of_rping() {
    let (capture, expected) = CAPTURES[1];
    insta::assert_snapshot!(listing(capture, expected));
}

#[test]
fn every_field_of_ucmatose() {
    let (capture, expected) = CAPTURES[2];
    insta::assert_snapshot!(listing(capture, expected));
}

#[test]
fn messages_of_linux_are_reproduced_byte_for_byte() {
    let mut kinds = Vec::new();
    for (capture, expected) in CAPTURES {
        let packets = packets(capture);
        let mads = mads(&packets);
        assert_eq!(mads.len(), expected, "{capture}");
        for (packet, bytes) in mads {
            let message = Message::parse(bytes).expect("a message of connection management");
            let mut written = [0xee; MAD_LEN];
            message.emit(&mut written).expect("it fitted before");
            assert_eq!(&written, bytes, "{capture}, frame {}: {message}", packet.frame);
            kinds.push(message.attribute().name());
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, ["DREP", "DREQ", "REJ", "REP", "REQ", "RTU"]);
}

/// The JSON form contains every field in the table of a message.
#[test]
fn the_json_form_has_every_field() {
    let packets = packets("cm_rping");
    for (packet, bytes) in mads(&packets) {
        let json = serde_json::to_value(packet).expect("JSON");
        let message = Message::parse(bytes).expect("a message");
        let mut names = Vec::new();
        message.each(&mut |name, value| {
            names.push(name);
            let found = &json["mad"]["cm"][name];
            assert_eq!(found.is_object(), nested(value), "frame {}, {name}: {found}", packet.frame);
        });
        let fields = json["mad"]["cm"].as_object().expect("fields");
        assert_eq!(fields.len(), names.len(), "frame {}: {names:?}", packet.frame);
    }
}

/// Whether a value consists of several JSON values.
fn nested(value: Field<'_>) -> bool {
    use Field::{Code, Group, Mtu, Service, Time};
    matches!(value, Code { .. } | Group(_) | Mtu(_) | Service(_) | Time(_))
}

/// The destination of a sequence of requests: its sender, and the queue pair at the other end.
type Way = (IpAddr, Qpn);

/// The starting PSN of each sequence of requests, taken from data packets.
fn first_psns(packets: &[DecodedPacket]) -> Vec<(Way, Psn)> {
    let mut found: Vec<(Way, Psn)> = Vec::new();
    for packet in packets.iter().filter(|p| mad(p).is_none()) {
        let Content::Packet { headers: Headers { opcode, dest_qpn, psn, .. }, .. } = &packet.content else {
            continue;
        };
        let way = (packet.src, *dest_qpn);
        if opcode.info().is_request
            && opcode.info().operation != Operation::Cnp
            && !found.iter().any(|f| f.0 == way)
        {
            found.push((way, *psn));
        }
    }
    found
}

/// A message gives the starting PSN of its *receiver*, not of its sender.
#[test]
fn the_starting_psn_is_the_one_that_the_other_side_begins_with() {
    for (capture, connections) in [("cm_rping", 1), ("cm_ucmatose", 2)] {
        let packets = packets(capture);
        let mut promised = Vec::new();
        for (packet, bytes) in mads(&packets) {
            match Message::parse(bytes).expect("a message").body {
                Body::Req(req) => promised.push(((packet.dst, req.local_qpn), req.starting_psn)),
                Body::Rep(rep) => promised.push(((packet.dst, rep.local_qpn), rep.starting_psn)),
                _ => {}
            }
        }
        let mut seen = first_psns(&packets);
        let key = |entry: &(Way, Psn)| (entry.0, entry.1.value());
        promised.sort_by_key(key);
        seen.sort_by_key(key);
        assert_eq!(promised.len(), connections * 2, "{capture}");
        assert_eq!(seen, promised, "{capture}");
    }
}

/// All messages of an exchange have the same transaction ID; all messages of a connection have the same two
/// communication IDs, the sender's first. Closing is an exchange of its own: either side may start it.
#[test]
fn the_messages_of_a_connection_belong_together() {
    for (capture, connections) in [("cm_rping", 1), ("cm_ucmatose", 2)] {
        let packets = packets(capture);
        let messages: Vec<_> =
            mads(&packets).into_iter().map(|(_, bytes)| Message::parse(bytes).expect("a message")).collect();
        let exchange = |id: u64| messages.iter().filter(move |m| m.transaction_id == id).map(|m| m.body);
        let mut seen = 0;
        for request in &messages {
            let Body::Req(req) = request.body else { continue };
            let answers: Vec<_> = exchange(request.transaction_id).skip(1).take(2).collect();
            let [Body::Rep(rep), Body::Rtu(rtu)] = answers[..] else { panic!("{capture}: {answers:?}") };
            let (active, passive) = (req.local_comm_id, rep.local_comm_id);
            assert_eq!(
                (rep.remote_comm_id, rtu.local_comm_id, rtu.remote_comm_id),
                (active, active, passive)
            );
            let end = messages.iter().find_map(|m| match m.body {
                Body::Dreq(dreq) if [dreq.local_comm_id, dreq.remote_comm_id].contains(&active) => {
                    Some((m.transaction_id, dreq))
                }
                _ => None,
            });
            let (id, dreq) = end.expect("a request for the end");
            let from_active = dreq.local_comm_id == active;
            assert_eq!(dreq.remote_comm_id, if from_active { passive } else { active });
            assert_eq!(dreq.remote_qpn, if from_active { rep.local_qpn } else { req.local_qpn });
            let Some(Body::Drep(drep)) = exchange(id).next_back() else { panic!("{capture}: no DREP") };
            assert_eq!((drep.local_comm_id, drep.remote_comm_id), (dreq.remote_comm_id, dreq.local_comm_id));
            seen += 1;
        }
        assert_eq!(seen, connections, "{capture}");
    }
}

#[test]
fn a_request_names_the_addresses_of_its_path() {
    let mut seen = 0;
    for (capture, _) in CAPTURES {
        for (packet, bytes) in mads(&packets(capture)) {
            let Body::Req(req) = Message::parse(bytes).expect("a message").body else { continue };
            let (ip_cm, consumer) = req.ip_cm().expect("the addresses of a TCP port");
            assert_eq!((ip_cm.src, ip_cm.dst), (packet.src, packet.dst), "{capture}");
            assert_eq!((req.primary.local_gid.ip(), req.primary.remote_gid.ip()), (packet.src, packet.dst));
            assert_eq!(consumer.len(), 56, "what rdma_connect takes");
            seen += 1;
        }
    }
    assert_eq!(seen, 4);
}
