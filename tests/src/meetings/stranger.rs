//! Strangers: hosts that send connection management datagrams in the name of others.
//!
//! A stranger hears all that is said. In the name of a connection's peer it guesses what it needs to know: IDs and transactions,
//! which are 32 and 64 bits at random. With the right numbers, it speaks in the name of another host. It may also ask for a
//! connection in the name of a host, from a queue pair of that host. None of it may change a connection.

use super::side::Nonce;
use super::world::{PORT, World};
use crate::worlds::Rng;
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{
    Body, CommId, Dreq, IpCm, Message, Mra, Path, Rej, RejReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq,
    Subject,
};
use qp::wire::{DethFields, Headers, IpHeader, Opcode, icrc};
use qp::{Gid, Mtu};
use rnic::link::{Direction, Fate, FrameRef, Now, Observer};
use rnic::{Psn, QKey, Qpn};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bit that the requests of strangers have in their private data, where programs have their number.
const FORGED: Nonce = 1 << 63;

/// Whether a request is a stranger's.
pub(super) const fn is_forged(nonce: Nonce) -> bool {
    nonce & FORGED != 0
}

/// The UDP port of strangers, whose own words they do not repeat: in the name of the first speaker, they would be the packets of
/// a network that delays them without end.
const SPOKEN: u16 = 9;

/// Datagrams that a stranger remembers: some of connections that are over, and some of those being made.
const HEARD: usize = 64;

/// A datagram that arrived at a port: its sender, its receiver, and what it says.
#[derive(Clone)]
struct Heard {
    src: IpAddr,
    dst: IpAddr,
    mad: [u8; MAD_LEN],
}

/// Hears the connection management datagrams of all ports.
#[derive(Clone, Default)]
pub(super) struct Ear(Arc<Mutex<Memory>>);

#[derive(Default)]
struct Memory {
    heard: VecDeque<Heard>,
    /// DREQs for the queue pair of a host: how many left their sender, and how many arrived.
    dreqs: HashMap<(IpAddr, Qpn), [u32; 2]>,
}

/// How often a DREQ is sent: the first time, and 15 repetitions.
const DREQS: u32 = 16;

impl Ear {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn any(&self, rng: &mut Rng) -> Option<Heard> {
        let heard = &self.memory().heard;
        (!heard.is_empty()).then(|| heard[rng.size(0, heard.len() - 1)].clone())
    }

    /// Whether a peer has done all to end the connection of this queue pair, and the network has lost all of it.
    pub(super) fn has_lost_the_end_of(&self, host: IpAddr, qpn: Qpn) -> bool {
        self.memory().dreqs.get(&(host, qpn)).is_some_and(|[sent, arrived]| *sent >= DREQS && *arrived == 0)
    }
}

impl Observer for Ear {
    fn name(&self) -> &str {
        "a stranger"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        let arrived = frame.direction == Direction::Rx;
        let is_delivered = matches!(frame.fate, Fate::Delivered);
        if frame.ip.src_port == SPOKEN || arrived && !is_delivered {
            return;
        }
        let Ok(packet) = qp::wire::Packet::parse(frame.bytes) else { return };
        let Some(mad) = packet.mad() else { return };
        let Ok(message) = Message::parse(&mad[..]) else { return };
        let mut memory = self.memory();
        if let Body::Dreq(dreq) = message.body {
            memory.dreqs.entry((frame.ip.dst, dreq.remote_qpn)).or_default()[usize::from(arrived)] += 1;
        }
        if arrived {
            memory.heard.push_back(Heard { src: frame.ip.src, dst: frame.ip.dst, mad: *mad });
            if memory.heard.len() > HEARD {
                memory.heard.pop_front();
            }
        }
    }
}

impl World {
    /// A stranger speaks.
    pub(super) fn forge(&mut self) {
        for _ in 0..self.rng.between(1, 5) {
            let heard = self.ear.any(&mut self.rng);
            match (self.rng.below(4), heard) {
                (0, Some(heard)) => self.in_another_name(&heard),
                (1, Some(heard)) => self.with_guessed_numbers(&heard),
                (2, Some(heard)) => self.in_the_name_of_a_queue_pair(&heard),
                _ => self.out_of_the_blue(),
            }
        }
    }

    /// The right numbers, from a host that is not the peer.
    fn in_another_name(&mut self, heard: &Heard) {
        let src = self.somebody();
        if src == heard.src {
            return;
        }
        self.inject(src, heard.dst, &heard.mad, "a stranger repeats a message in another name");
    }

    /// In the name of the peer, with IDs that are not known to it.
    fn with_guessed_numbers(&mut self, heard: &Heard) {
        let Ok(mut message) = Message::parse(&heard.mad[..]) else { return };
        let ids = [0; 2].map(|_| CommId(self.rng.word() as u32));
        match &mut message.body {
            Body::Req(_) | Body::SidrReq(_) => return,
            // A peer that gives up its request does not name this side's ID.
            Body::Rej(m) if self.rng.percent(30) => {
                (m.local_comm_id, m.remote_comm_id, m.reason) = (ids[0], CommId(0), RejReason::Timeout);
            }
            Body::Rej(m) => (m.local_comm_id, m.remote_comm_id) = (ids[0], ids[1]),
            Body::Rep(m) => (m.local_comm_id, m.remote_comm_id) = (ids[0], ids[1]),
            Body::Rtu(m) => (m.local_comm_id, m.remote_comm_id) = (ids[0], ids[1]),
            Body::Dreq(m) => (m.local_comm_id, m.remote_comm_id) = (ids[0], ids[1]),
            Body::Drep(m) => (m.local_comm_id, m.remote_comm_id) = (ids[0], ids[1]),
            Body::Mra(m) => (m.local_comm_id, m.remote_comm_id) = (ids[0], ids[1]),
            Body::Lap(m) => (m.local_comm_id, m.remote_comm_id) = (ids[0], ids[1]),
            Body::Apr(m) => (m.local_comm_id, m.remote_comm_id) = (ids[0], ids[1]),
            Body::SidrRep(m) => m.request_id = ids[0],
        }
        message.transaction_id = self.rng.word();
        self.say(heard.src, heard.dst, &message, "a stranger guesses the numbers of a message");
    }

    /// A request in the name of a host, from a queue pair of it that has a connection or is to have one.
    fn in_the_name_of_a_queue_pair(&mut self, heard: &Heard) {
        let Ok(message) = Message::parse(&heard.mad[..]) else { return };
        let qpn = match message.body {
            Body::Req(req) => req.local_qpn,
            Body::Rep(rep) => rep.local_qpn,
            _ => return,
        };
        self.request(heard.src, heard.dst, qpn, "a stranger asks in the name of a queue pair");
    }

    /// Anything, in any name.
    fn out_of_the_blue(&mut self) {
        let (src, dst) = (self.somebody(), self.host_address());
        let [local_comm_id, remote_comm_id] = [0; 2].map(|_| CommId(self.rng.word() as u32));
        let qpn = Qpn::new(self.rng.word() as u32);
        let reason =
            *self.rng.pick(&[RejReason::StaleConnection, RejReason::Timeout, RejReason::ConsumerDefined]);
        let request_id = local_comm_id;
        let body = match self.rng.below(8) {
            0 => return self.request(src, dst, qpn, "a stranger asks for a connection"),
            1 => Body::Rep(Rep { local_comm_id, remote_comm_id, local_qpn: qpn, ..Rep::default() }),
            2 => Body::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
            3 => Body::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn: qpn, ..Dreq::default() }),
            4 => Body::Rej(Rej {
                local_comm_id,
                remote_comm_id,
                message: Subject::Other,
                reason,
                ..Rej::default()
            }),
            5 => Body::Mra(Mra { local_comm_id, remote_comm_id, ..Mra::default() }),
            6 => {
                Body::SidrReq(SidrReq { request_id, service_id: ServiceId::udp(PORT), ..SidrReq::default() })
            }
            _ => Body::SidrRep(SidrRep { request_id, qpn, ..SidrRep::default() }),
        };
        let message = Message { transaction_id: self.rng.word(), attribute_modifier: 0, body };
        self.say(src, dst, &message, "a stranger makes a message up");
    }

    fn request(&mut self, src: IpAddr, dst: IpAddr, qpn: Qpn, what: &'static str) {
        let mut private_data = IpCm { src_port: 9, src, dst }.to_bytes().to_vec();
        private_data.extend((self.rng.word() | FORGED).to_be_bytes());
        let body = Body::Req(Req {
            local_comm_id: CommId(self.rng.word() as u32),
            service_id: ServiceId::tcp(PORT),
            local_ca_guid: self.rng.word(),
            local_qpn: qpn,
            path_mtu: Mtu::B1024.into(),
            pkey: rnic::PKey::DEFAULT,
            max_cm_retries: self.rng.below(16) as u8,
            primary: Path {
                local_gid: Gid::from(src),
                remote_gid: Gid::from(dst),
                hop_limit: 64,
                ..Path::default()
            },
            private_data: &private_data,
            ..Req::default()
        });
        let message = Message { transaction_id: self.rng.word(), attribute_modifier: 0, body };
        self.say(src, dst, &message, what);
    }

    /// A host, or an address that nobody has.
    fn somebody(&mut self) -> IpAddr {
        if self.rng.percent(50) {
            return self.host_address();
        }
        Ipv4Addr::from(0x0a63_0000 + self.rng.below(1 << 16) as u32).into()
    }

    fn host_address(&mut self) -> IpAddr {
        let host = self.rng.size(0, self.hosts.len() - 1);
        self.hosts[host].device.address()
    }

    fn say(&mut self, src: IpAddr, dst: IpAddr, message: &Message<'_>, what: &'static str) {
        let mut mad = [0; MAD_LEN];
        if message.emit(&mut mad).is_ok() {
            self.inject(src, dst, &mad, what);
        }
    }

    fn inject(&mut self, src: IpAddr, dst: IpAddr, mad: &[u8; MAD_LEN], what: &'static str) {
        let arrival = IpHeader { src, dst, src_port: SPOKEN, hop_limit: 64, ..IpHeader::default() };
        let headers = Headers {
            deth: DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI },
            ..Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0))
        };
        let mut packet = vec![0; headers.wire_len()];
        headers.emit(&mut packet, mad.len());
        packet.extend(mad);
        packet.extend(icrc::compute(&arrival.flow(), arrival.ident, &packet).to_le_bytes());
        self.net.inject(&arrival, &packet);
        self.reach(what);
    }
}
