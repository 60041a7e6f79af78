//! The JSON form of decoded packets.
//!
//! Numbers that programs calculate with (PSNs, queue pair numbers, lengths) are JSON numbers. Addresses, keys and 64-bit
//! operands are hexadecimal strings, because many JSON readers keep 53 bits only.

mod mad;

use super::{Content, Control, DecodedPacket, IcrcCheck, Summary, control};
use cc::credits::{CreditMessage, Kind, MalformedMessage};
use cc::hpcc::Hop;
use qp::wire::{HeaderSet, Headers, PauseTimes, PortMessage, Syndrome, decode_credits, rnr_delay};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// A decoded capture as one document.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// Version of the format; it grows when a field changes its meaning or is removed.
    schema_version: u32,
    packets: &'a [DecodedPacket],
    summary: Summary,
}

impl<'a> Report<'a> {
    /// The document for these packets.
    #[must_use]
    pub const fn new(packets: &'a [DecodedPacket], summary: Summary) -> Self {
        Self { schema_version: 1, packets, summary }
    }
}

impl Serialize for DecodedPacket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("frame", &self.frame)?;
        if let Some(segment) = self.segment {
            map.serialize_entry("segment", &segment)?;
        }
        // A string: seconds with nine digits need more than the 53 bits of a double.
        let time = format!("{}.{:09}", self.time.as_secs(), self.time.subsec_nanos());
        map.serialize_entry("time", &time)?;
        map.serialize_entry("src", &self.src)?;
        map.serialize_entry("src_port", &self.src_port)?;
        map.serialize_entry("dst", &self.dst)?;
        map.serialize_entry("dst_port", &self.dst_port)?;
        map.serialize_entry("tos", &self.tos)?;
        map.serialize_entry("ecn", &self.ecn())?;
        map.serialize_entry("ttl", &self.ttl)?;
        map.serialize_entry("ip_id", &self.ip_id)?;
        map.serialize_entry("len", &self.len)?;
        map.serialize_entry("text", &self.content.to_string())?;
        match &self.content {
            Content::Packet { headers, payload_len, mad, control } => {
                map.serialize_entry("status", "packet")?;
                map.serialize_entry("payload_len", payload_len)?;
                map.serialize_entry("headers", &header_fields(headers))?;
                if let Some(mad) = mad {
                    map.serialize_entry("mad", &mad::fields(mad))?;
                }
                if let Some(control) = control {
                    map.serialize_entry("control", &control_fields(headers, control))?;
                }
            }
            Content::Malformed(_) => map.serialize_entry("status", "malformed")?,
            Content::Truncated { captured, .. } => {
                map.serialize_entry("status", "truncated")?;
                map.serialize_entry("captured", captured)?;
            }
            Content::Fragment => map.serialize_entry("status", "fragment")?,
        }
        map.serialize_entry("relative_psn", &self.relative_psn)?;
        map.serialize_entry("src_qpn", &self.src_qpn.map(qp::Qpn::value))?;
        map.serialize_entry("icrc", &self.icrc)?;
        map.serialize_entry("comments", &self.comments)?;
        map.end()
    }
}

impl Serialize for IcrcCheck {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("ok", &self.is_ok())?;
        map.serialize_entry("computed", &hex32(self.computed))?;
        map.serialize_entry("found", &hex32(self.found))?;
        map.end()
    }
}

fn hex32(value: u32) -> String {
    format!("{value:#010x}")
}

fn hex64(value: u64) -> String {
    format!("{value:#x}")
}

/// The BTH and those extension headers that the opcode has.
fn header_fields(h: &Headers) -> Value {
    let info = h.opcode.info();
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    put("opcode", json!(info.name));
    put("opcode_byte", json!(h.opcode as u8));
    put("solicited", json!(h.solicited));
    put("mig_req", json!(h.mig_req));
    put("pkey", json!(h.pkey.0));
    put("fecn", json!(h.fecn));
    put("becn", json!(h.becn));
    put("dest_qpn", json!(h.dest_qpn.value()));
    put("ack_req", json!(h.ack_req));
    put("psn", json!(h.psn.value()));
    for header in info.headers {
        match header {
            HeaderSet::XRCETH => put("xrceth", json!({ "srqn": h.xrc_srqn })),
            HeaderSet::DETH => {
                put("deth", json!({ "qkey": hex32(h.deth.qkey.0), "src_qpn": h.deth.src_qpn.value() }))
            }
            HeaderSet::FETH => {
                put("feth", json!({ "placement": h.feth.placement, "selectivity": h.feth.selectivity }))
            }
            HeaderSet::RETH => put(
                "reth",
                json!({ "va": hex64(h.reth.va), "rkey": hex32(h.reth.rkey), "length": h.reth.length }),
            ),
            HeaderSet::ATOMIC_ETH => put(
                "atomiceth",
                json!({
                    "va": hex64(h.atomic.va),
                    "rkey": hex32(h.atomic.rkey),
                    "swap_add": hex64(h.atomic.swap_add),
                    "compare": hex64(h.atomic.compare),
                }),
            ),
            HeaderSet::AETH => put("aeth", acknowledge_fields(h)),
            HeaderSet::ATOMIC_ACK_ETH => put("atomicacketh", json!({ "original": hex64(h.atomic_ack) })),
            HeaderSet::IMM_DT => put("immdt", json!(hex32(h.imm))),
            HeaderSet::IETH => put("ieth", json!({ "rkey": hex32(h.ieth) })),
            // The reserved bytes of a congestion notification hold nothing.
            _ => None,
        };
    }
    fields.into()
}

/// A message between rnic ports. Priorities that a pause does not name are null.
fn control_fields(headers: &Headers, control: &Control) -> Value {
    let mut fields = match control {
        Control::FlowControl(lanes) => {
            let lane = |lane: &Result<CreditMessage, MalformedMessage>| match lane {
                Ok(message) => {
                    let count = if message.kind == Kind::Ask { "sent" } else { "received" };
                    json!({
                        "vl": message.vl.number(),
                        "kind": control::kind_name(message.kind),
                        "want": message.want,
                        "number": message.number,
                        "echo": message.echo,
                        count: message.count,
                        "limit": message.limit,
                    })
                }
                Err(error) => json!({ "error": error.to_string() }),
            };
            json!({ "lanes": lanes.iter().map(lane).collect::<Vec<_>>() })
        }
        Control::Pause(PauseTimes(quanta)) => json!({ "quanta": quanta }),
        Control::Telemetry(hops) => {
            let hop = |hop: &Result<Hop, u64>| match hop {
                Ok(hop) => json!({
                    "rate": hop.rate().bits_per_second(),
                    "time_ns": u64::try_from(hop.time().as_nanos()).unwrap_or(u64::MAX),
                    "sent": hop.sent(),
                    "queue": hop.queue(),
                }),
                Err(word) => json!({ "error": format!("unknown rate: {word:#018x}") }),
            };
            json!({ "hops": hops.iter().map(hop).collect::<Vec<_>>() })
        }
        Control::SelectiveAck(ack) => {
            let held: Vec<_> = control::ranges(ack).into_iter().map(|(first, last)| [first, last]).collect();
            json!({ "expected": ack.expected.value(), "held": held, "duplicates": ack.duplicates })
        }
        Control::Malformed => json!({ "error": control.to_string() }),
    };
    if let Some(PortMessage { dest_slot, src_slot, sequence }) = headers.port_message() {
        fields["from"] = json!(src_slot);
        fields["to"] = json!(dest_slot);
        fields["sequence"] = json!(sequence);
    }
    fields
}

fn acknowledge_fields(h: &Headers) -> Value {
    let mut fields = match h.aeth.kind() {
        Syndrome::Ack { credits } => json!({ "kind": "ack", "credits": decode_credits(credits) }),
        Syndrome::Rnr { timer } => {
            json!({ "kind": "rnr", "delay_us": u64::try_from(rnr_delay(timer).as_micros()).unwrap_or(u64::MAX) })
        }
        Syndrome::Nak(code) => json!({ "kind": "nak", "reason": code.name() }),
        Syndrome::Reserved(_) => json!({ "kind": "reserved" }),
    };
    fields["syndrome"] = json!(h.aeth.syndrome);
    fields["msn"] = json!(h.aeth.msn);
    fields
}
