//! One-line description of a management datagram.
//!
//! `CM REQ comm=0xe1c2e0f5 svc=0x0000000001061c06(TCP 7174) qpn=0x000036 psn=12258241 mtu=1024 rr=1 depth=1 ...`
//!
//! `RNIC HELLO ask slot=3 instance=0x0123456789abcdef features=cnp+credits lanes=4 block=64 of=datagram-charge
//! ports=49152`
//!
//! As with packets, values that are the default are omitted.

use super::cm::{Body, CommId, Mra, Rej, Rep, Req, SidrRep, SidrReq, SidrStatus, Transport};
use super::hello::{self, Hello, HelloError};
use super::{Header, MAD_LEN, Mad, cm};
use crate::ids::PKey;
use std::fmt;

/// Displays a management datagram. Invalid bytes are displayed with the reason why they are invalid.
#[derive(Clone, Copy, Debug)]
pub struct Summary<'a>(pub &'a [u8; MAD_LEN]);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mad = match Mad::parse(self.0) {
            Ok(mad) => mad,
            Err(error) => return write!(f, "MAD ({error})"),
        };
        let header = mad.header;
        let error = match cm::Message::of(&mad) {
            Ok(message) => return message.fmt(f),
            Err(error) => error,
        };
        let hello = Hello::parse(self.0);
        if let Ok(hello) = hello {
            return hello.fmt(f);
        }
        write!(
            f,
            "MAD class={:#04x} method={:#04x} attr={:#06x} tid={:#x}",
            header.class, header.method, header.attribute_id, header.transaction_id
        )?;
        // A datagram of another class or another vendor is not an error, so no reason is shown.
        match hello {
            _ if header.class == Header::CLASS_CM => write!(f, " ({error})"),
            Ok(_) | Err(HelloError::Mad(_) | HelloError::Class(_) | HelloError::Oui(_)) => Ok(()),
            Err(error) => write!(f, " ({error})"),
        }
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RNIC HELLO {}", self.kind.name())?;
        if self.version != hello::VERSION {
            write!(f, " version={}", self.version)?;
        }
        write!(f, " slot={} instance={:#018x} features={}", self.slot, self.instance, self.features)?;
        if self.features.contains(hello::Features::CREDITS) {
            write!(f, " lanes={} block={} of={}", self.lanes, self.block, self.counting)?;
        }
        for (index, port) in self.ports.as_slice().iter().enumerate() {
            write!(f, "{}{port}", if index == 0 { " ports=" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for cm::Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM {}", self.attribute().name())?;
        match &self.body {
            Body::Req(req) => request(f, req),
            Body::Rep(rep) => reply(f, rep),
            Body::Mra(Mra { local_comm_id, remote_comm_id, message, service_timeout, private_data }) => {
                ids(f, *local_comm_id, *remote_comm_id)?;
                write!(f, " of={} wait={service_timeout}", message.name())?;
                private(f, private_data)
            }
            Body::Rej(Rej { local_comm_id, remote_comm_id, message, reason, info, private_data }) => {
                ids(f, *local_comm_id, *remote_comm_id)?;
                write!(f, " of={} reason={reason}", message.name())?;
                if !info.is_empty() {
                    write!(f, " info={}", info.len())?;
                }
                private(f, private_data)
            }
            Body::Rtu(rtu) => {
                ids(f, rtu.local_comm_id, rtu.remote_comm_id)?;
                private(f, rtu.private_data)
            }
            Body::Dreq(dreq) => {
                ids(f, dreq.local_comm_id, dreq.remote_comm_id)?;
                write!(f, " peer_qpn={}", dreq.remote_qpn)?;
                private(f, dreq.private_data)
            }
            Body::Drep(drep) => {
                ids(f, drep.local_comm_id, drep.remote_comm_id)?;
                private(f, drep.private_data)
            }
            Body::SidrReq(req) => resolution(f, req),
            Body::SidrRep(rep) => resolved(f, rep),
            Body::Lap(lap) => {
                ids(f, lap.local_comm_id, lap.remote_comm_id)?;
                private(f, lap.private_data)
            }
            Body::Apr(apr) => {
                ids(f, apr.local_comm_id, apr.remote_comm_id)?;
                write!(f, " status={}", apr.status)?;
                private(f, apr.private_data)
            }
        }
    }
}

/// The connection IDs, the sender's first.
fn ids(f: &mut fmt::Formatter<'_>, local: CommId, remote: CommId) -> fmt::Result {
    write!(f, " comm={local} peer={remote}")
}

fn request(f: &mut fmt::Formatter<'_>, req: &Req<'_>) -> fmt::Result {
    write!(f, " comm={} svc={}", req.local_comm_id, req.service_id)?;
    if req.transport != Transport::Rc {
        write!(f, " transport={}", req.transport.name())?;
    }
    if req.extended_transport != 0 {
        write!(f, " extended={}", req.extended_transport)?;
    }
    write!(
        f,
        " qpn={} psn={} mtu={} rr={} depth={} retry={} rnr={}",
        req.local_qpn,
        req.starting_psn,
        req.path_mtu,
        req.responder_resources,
        req.initiator_depth,
        req.retry_count,
        req.rnr_retry_count
    )?;
    flags(f, req.end_to_end_flow_control, req.srq)?;
    if req.pkey != PKey::DEFAULT {
        write!(f, " pkey={:#06x}", req.pkey.0)?;
    }
    addressed(f, req.ip_cm(), req.private_data)
}

fn reply(f: &mut fmt::Formatter<'_>, rep: &Rep<'_>) -> fmt::Result {
    ids(f, rep.local_comm_id, rep.remote_comm_id)?;
    write!(
        f,
        " qpn={} psn={} rr={} depth={} rnr={}",
        rep.local_qpn, rep.starting_psn, rep.responder_resources, rep.initiator_depth, rep.rnr_retry_count
    )?;
    flags(f, rep.end_to_end_flow_control, rep.srq)?;
    private(f, rep.private_data)
}

fn resolution(f: &mut fmt::Formatter<'_>, req: &SidrReq<'_>) -> fmt::Result {
    write!(f, " request={} svc={}", req.request_id, req.service_id)?;
    if req.pkey != PKey::DEFAULT {
        write!(f, " pkey={:#06x}", req.pkey.0)?;
    }
    addressed(f, req.ip_cm(), req.private_data)
}

fn resolved(f: &mut fmt::Formatter<'_>, rep: &SidrRep<'_>) -> fmt::Result {
    write!(f, " request={} svc={} status={}", rep.request_id, rep.service_id, rep.status)?;
    if rep.status == SidrStatus::Valid {
        write!(f, " qpn={} qkey={:#010x}", rep.qpn, rep.qkey.0)?;
    }
    if !rep.info.is_empty() {
        write!(f, " info={}", rep.info.len())?;
    }
    private(f, rep.private_data)
}

fn flags(f: &mut fmt::Formatter<'_>, flow_control: bool, srq: bool) -> fmt::Result {
    f.write_str(if flow_control { " flow-control" } else { "" })?;
    f.write_str(if srq { " srq" } else { "" })
}

/// The addresses in a request, and the length of the private data that the consumer added.
fn addressed(
    f: &mut fmt::Formatter<'_>,
    ip_cm: Option<(cm::IpCm, &[u8])>,
    private_data: &[u8],
) -> fmt::Result {
    let Some((ip_cm, consumer)) = ip_cm else { return private(f, private_data) };
    write!(f, " from={} to={}", std::net::SocketAddr::new(ip_cm.src, ip_cm.src_port), ip_cm.dst)?;
    private(f, consumer)
}

/// The length of the private data. Zeros at the end may be padding and are not counted.
fn private(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    match bytes.iter().rposition(|&byte| byte != 0) {
        Some(last) => write!(f, " private={}", last + 1),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::cm::{
        Apr, AprStatus, CmTimeout, Drep, Dreq, IpCm, Lap, Message, MtuCode, RejReason, Rtu, ServiceId,
        Subject,
    };
    use super::*;
    use crate::ids::{Psn, QKey, Qpn};

    fn line(body: Body<'_>) -> String {
        Message { transaction_id: 7, attribute_modifier: 0, body }.to_string()
    }

    const LOCAL: CommId = CommId(0xabe8_e3ee);
    const REMOTE: CommId = CommId(0xe1c2_e0f5);

    #[test]
    fn a_request_shows_its_parameters() {
        let addresses = IpCm {
            src_port: 59_291,
            src: std::net::Ipv4Addr::new(10, 77, 0, 2).into(),
            dst: std::net::Ipv4Addr::new(10, 77, 0, 1).into(),
        };
        let mut private_data = addresses.to_bytes().to_vec();
        private_data.extend([1, 0, 2, 0]);
        let mut req = Req {
            local_comm_id: REMOTE,
            service_id: ServiceId::tcp(7471),
            local_qpn: Qpn::new(0x12),
            starting_psn: Psn::new(200),
            path_mtu: MtuCode::new(3),
            responder_resources: 16,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 6,
            private_data: &private_data,
            ..Req::default()
        };
        assert_eq!(
            line(Body::Req(req)),
            "CM REQ comm=0xe1c2e0f5 svc=0x0000000001061d2f(TCP 7471) qpn=0x000012 psn=200 mtu=1024 rr=16 depth=1 \
             retry=7 rnr=6 from=10.77.0.2:59291 to=10.77.0.1 private=3"
        );
        (req.service_id, req.path_mtu) = (ServiceId(9), MtuCode::new(0));
        (req.transport, req.extended_transport, req.pkey) = (Transport::Extended, 1, PKey(0x8001));
        (req.end_to_end_flow_control, req.srq, req.private_data) = (true, true, &[]);
        assert_eq!(
            line(Body::Req(req)),
            "CM REQ comm=0xe1c2e0f5 svc=0x0000000000000009 transport=extended extended=1 qpn=0x000012 psn=200 \
             mtu=reserved(0) rr=16 depth=1 retry=7 rnr=6 flow-control srq pkey=0x8001"
        );
    }

    #[test]
    fn answers_name_both_numbers_of_the_connection() {
        let rep = Rep {
            local_comm_id: LOCAL,
            remote_comm_id: REMOTE,
            local_qpn: Qpn::new(0x36),
            starting_psn: Psn::new(5),
            responder_resources: 1,
            initiator_depth: 2,
            rnr_retry_count: 7,
            ..Rep::default()
        };
        assert_eq!(
            line(Body::Rep(rep)),
            "CM REP comm=0xabe8e3ee peer=0xe1c2e0f5 qpn=0x000036 psn=5 rr=1 depth=2 rnr=7"
        );
        let rej = Rej {
            remote_comm_id: REMOTE,
            reason: RejReason::InvalidServiceId,
            info: &[1, 2],
            private_data: b"no",
            ..Rej::default()
        };
        assert_eq!(
            line(Body::Rej(rej)),
            "CM REJ comm=0x00000000 peer=0xe1c2e0f5 of=req reason=invalid-service-id(8) info=2 private=2"
        );
        let mra = Mra {
            local_comm_id: LOCAL,
            remote_comm_id: REMOTE,
            message: Subject::Rep,
            service_timeout: CmTimeout::new(20),
            ..Mra::default()
        };
        assert_eq!(line(Body::Mra(mra)), "CM MRA comm=0xabe8e3ee peer=0xe1c2e0f5 of=rep wait=4.295s");
    }

    #[test]
    fn short_messages() {
        let (local_comm_id, remote_comm_id) = (LOCAL, REMOTE);
        let rtu = Rtu { local_comm_id, remote_comm_id, ..Rtu::default() };
        assert_eq!(line(Body::Rtu(rtu)), "CM RTU comm=0xabe8e3ee peer=0xe1c2e0f5");
        let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn: Qpn::new(0x36), ..Dreq::default() };
        assert_eq!(line(Body::Dreq(dreq)), "CM DREQ comm=0xabe8e3ee peer=0xe1c2e0f5 peer_qpn=0x000036");
        let drep = Drep { local_comm_id, remote_comm_id, private_data: &[0, 1] };
        assert_eq!(line(Body::Drep(drep)), "CM DREP comm=0xabe8e3ee peer=0xe1c2e0f5 private=2");
        let lap = Lap { local_comm_id, remote_comm_id, ..Lap::default() };
        assert_eq!(line(Body::Lap(lap)), "CM LAP comm=0xabe8e3ee peer=0xe1c2e0f5");
        let apr = Apr { local_comm_id, remote_comm_id, status: AprStatus::Unsupported, ..Apr::default() };
        assert_eq!(line(Body::Apr(apr)), "CM APR comm=0xabe8e3ee peer=0xe1c2e0f5 status=unsupported(2)");
    }

    #[test]
    fn resolutions() {
        let service_id = ServiceId::udp(80);
        let req = SidrReq { request_id: LOCAL, service_id, ..SidrReq::default() };
        assert_eq!(line(Body::SidrReq(req)), "CM SIDR_REQ request=0xabe8e3ee svc=0x0000000001110050(UDP 80)");
        let mut rep =
            SidrRep { request_id: LOCAL, service_id, qkey: QKey(0x0123_4567), ..SidrRep::default() };
        assert_eq!(
            line(Body::SidrRep(rep)),
            "CM SIDR_REP request=0xabe8e3ee svc=0x0000000001110050(UDP 80) status=valid(0) qpn=0x000000 \
             qkey=0x01234567"
        );
        rep.status = SidrStatus::Unsupported;
        assert_eq!(
            line(Body::SidrRep(rep)),
            "CM SIDR_REP request=0xabe8e3ee svc=0x0000000001110050(UDP 80) status=unsupported(1)"
        );
    }

    #[test]
    fn hellos() {
        let mut hello = Hello { version: hello::VERSION, slot: 3, instance: 0xabc, ..Hello::default() };
        let mut bytes = [0; MAD_LEN];
        hello.emit(&mut bytes);
        assert_eq!(
            Summary(&bytes).to_string(),
            "RNIC HELLO ask slot=3 instance=0x0000000000000abc features=none"
        );
        hello.kind = hello::Kind::Answer;
        hello.features = hello::Features::CNP | hello::Features::CREDITS;
        (hello.lanes, hello.block, hello.counting) = (4, 64, hello::Counting::DatagramCharge);
        hello.ports = hello::SourcePorts::new(&[49_152, 49_153]).unwrap();
        hello.emit(&mut bytes);
        assert_eq!(
            Summary(&bytes).to_string(),
            "RNIC HELLO answer slot=3 instance=0x0000000000000abc features=cnp+credits lanes=4 block=64 \
             of=datagram-charge ports=49152,49153"
        );
        bytes[39] ^= 1;
        let other = "MAD class=0x3f method=0x81 attr=0x0001 tid=0x0";
        assert_eq!(Summary(&bytes).to_string(), other, "of another vendor");
        bytes[39] ^= 1;
        bytes[59] = 17;
        assert_eq!(Summary(&bytes).to_string(), format!("{other} (17 source ports; the maximum is 16)"));
    }

    #[test]
    fn other_datagrams_show_their_header() {
        let mut bytes = [0; MAD_LEN];
        assert_eq!(Summary(&bytes).to_string(), "MAD (management header version 0, only 1 exists)");
        bytes[..4].copy_from_slice(&[1, 4, 1, 1]);
        (bytes[15], bytes[17]) = (9, 0x12);
        assert_eq!(Summary(&bytes).to_string(), "MAD class=0x04 method=0x01 attr=0x0012 tid=0x9");
        bytes[1] = 7;
        assert_eq!(
            Summary(&bytes).to_string(),
            "MAD class=0x07 method=0x01 attr=0x0012 tid=0x9 (connection management version 1, only 2 is known)"
        );
    }
}
