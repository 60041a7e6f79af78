//! The labels of management datagrams.

use super::render::{Label, Tone};
use qp::wire::mad::cm::{Attribute, Body, CommId, Message, ServiceId, SidrStatus};
use qp::wire::mad::hello::{Features, Hello, Kind};
use qp::wire::mad::{MAD_LEN, Summary};
use qp::{Psn, Qpn};

/// The content of a datagram, the most important part first.
pub(super) fn label(mad: &[u8; MAD_LEN]) -> Label {
    if let Ok(said) = Hello::parse(mad) {
        return hello(&said);
    }
    let Ok(message) = Message::parse(mad) else {
        return Label { main: Summary(mad).to_string(), more: Vec::new(), tone: Tone::Plain };
    };
    let attribute = message.attribute();
    let mut main = format!("CM {}", attribute.name());
    let more = match message.body {
        Body::Req(req) => {
            vec![service(req.service_id), queue(req.local_qpn), psn(req.starting_psn), id(req.local_comm_id)]
        }
        Body::Rep(rep) => {
            vec![queue(rep.local_qpn), psn(rep.starting_psn), ids(rep.local_comm_id, rep.remote_comm_id)]
        }
        Body::Rej(rej) => {
            main.push(' ');
            main.push_str(&rej.reason.to_string());
            vec![ids(rej.local_comm_id, rej.remote_comm_id)]
        }
        Body::Mra(mra) => {
            vec![format!("wait {}", mra.service_timeout), ids(mra.local_comm_id, mra.remote_comm_id)]
        }
        Body::Rtu(rtu) => vec![ids(rtu.local_comm_id, rtu.remote_comm_id)],
        Body::Dreq(dreq) => {
            vec![format!("of {}", queue(dreq.remote_qpn)), ids(dreq.local_comm_id, dreq.remote_comm_id)]
        }
        Body::Drep(drep) => vec![ids(drep.local_comm_id, drep.remote_comm_id)],
        Body::SidrReq(req) => vec![service(req.service_id), id(req.request_id)],
        Body::SidrRep(rep) if rep.status == SidrStatus::Valid => {
            vec![queue(rep.qpn), format!("qkey {:#010x}", rep.qkey.0), id(rep.request_id)]
        }
        Body::SidrRep(rep) => {
            main.push(' ');
            main.push_str(&rep.status.to_string());
            vec![id(rep.request_id)]
        }
        Body::Lap(_) | Body::Apr(_) => Vec::new(),
    };
    let tone = match attribute {
        Attribute::Req | Attribute::Dreq | Attribute::SidrReq | Attribute::Lap => Tone::Plain,
        Attribute::Rej => Tone::Refusal,
        _ => Tone::Answer,
    };
    Label { main, more, tone }
}

/// How a port identifies itself.
fn hello(hello: &Hello) -> Label {
    let mut more = vec![hello.features.to_string(), format!("instance {:016x}", hello.instance)];
    if hello.features.contains(Features::CREDITS) {
        more.push(format!("{} lanes of {}-byte blocks", hello.lanes, hello.block));
    }
    let tone = if hello.kind == Kind::Ask { Tone::Plain } else { Tone::Answer };
    Label { main: format!("RNIC HELLO {} slot {}", hello.kind.name(), hello.slot), more, tone }
}

/// The port that is asked for, where it is one.
fn service(id: ServiceId) -> String {
    id.port().map_or_else(|| format!("service {:#x}", id.0), |(space, port)| format!("{space} {port}"))
}

fn queue(qpn: Qpn) -> String {
    format!("qp {qpn}")
}

fn psn(psn: Psn) -> String {
    format!("psn {psn}")
}

/// The sender's number of the connection.
fn id(comm_id: CommId) -> String {
    format!("id {:08x}", comm_id.0)
}

/// The sender's number of the connection, and the receiver's.
fn ids(local: CommId, remote: CommId) -> String {
    format!("{} for {:08x}", id(local), remote.0)
}
