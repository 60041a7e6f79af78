//! A port of rnic in place of either host of a capture in which connections are managed. The other host's datagrams arrive as they
//! were captured; what programs did follows from those of this one. The port must send the same packets, from the BTH to the
//! ICRC. Numbers that each side draws at random are translated: IDs, transactions, starting PSNs, and the GUID of the device.

use crate::capture::{self, Captured};
use qp::wire::icrc::{self, Flow};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{Body, CommId, Message, RejReason, Req, ServiceId};
use qp::wire::{ICRC_LEN, IpHeader, Packet};
use qp::{Gid, Mtu, QpType};
use rnic::cm::Manager;
use rnic::cm::protocol::{Accept, CallError, Connect, ConnectionId, Ece, Endpoint, Event, Listen, Path};
use rnic::link::{Direction, FrameRef, Now, Observer};
use rnic::sim::{DeviceSetup, Net};
use rnic::time::Instant;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a port sends.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<VecDeque<Departed>>>);

type Departed = (IpHeader, Vec<u8>);

impl Observer for Sent {
    fn name(&self) -> &str {
        "what is sent"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        if frame.direction == Direction::Tx {
            self.0.lock().unwrap().push_back((*frame.ip, frame.bytes.to_vec()));
        }
    }
}

fn mad(packet: &Captured) -> Option<[u8; MAD_LEN]> {
    packet.packet().mad().copied()
}

/// Applies `id` to all IDs of a message, and sets its transaction.
fn rename<'a>(message: &Message<'a>, id: impl Fn(CommId) -> CommId, transaction_id: u64) -> Message<'a> {
    let mut message = *message;
    message.transaction_id = transaction_id;
    let (local, remote) = match &mut message.body {
        Body::Req(m) => (&mut m.local_comm_id, None),
        Body::SidrReq(m) => (&mut m.request_id, None),
        Body::SidrRep(m) => (&mut m.request_id, None),
        Body::Rep(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Rtu(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Rej(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Dreq(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Drep(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Mra(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Lap(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Apr(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
    };
    *local = id(*local);
    if let Some(remote) = remote {
        *remote = id(*remote);
    }
    message
}

fn local_id(message: &Message<'_>) -> CommId {
    let first = Cell::new(None);
    let note = |id| {
        first.set(first.get().or(Some(id)));
        id
    };
    rename(message, note, 0);
    first.get().unwrap_or_default()
}

/// The port, its programs, and what it chose in place of Linux.
struct Side {
    net: Net,
    manager: Manager,
    sent: Sent,
    addresses: [IpAddr; 2],
    /// IDs and transactions of Linux, by ours.
    ids: HashMap<u32, u32>,
    transactions: HashMap<u64, u64>,
    /// Connections, by the ID that Linux gave them on this side.
    connections: HashMap<u32, ConnectionId>,
    /// Requests that wait, by the ID of their sender.
    requests: HashMap<u32, ConnectionId>,
    mtu: Mtu,
}

impl Side {
    fn call<R>(&self, call: impl FnOnce(&mut Endpoint, Instant) -> Result<R, CallError>) -> R {
        self.manager.call(call).unwrap().unwrap()
    }

    /// The request of the program whose REQ this is: what programs choose is taken from the REQ, all else is not.
    fn connect(&mut self, id: CommId, req: &Req<'_>) {
        let (addresses, private_data) = req.ip_cm().expect("the addresses of a port");
        let (_, port) = req.service_id.port().expect("a port");
        let [us, peer] = self.addresses.map(Gid::from);
        let mut path = Path::new(us, peer, self.mtu);
        path.to.flow_label = Path::flow_label(addresses.src_port, port);
        let connect = Connect {
            addresses: Some(addresses),
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            private_data,
            ..Connect::new(ServiceId::tcp(port), path, req.local_qpn)
        };
        let connection = self.call(|endpoint, now| endpoint.connect(now, &connect));
        self.connections.insert(id.0, connection);
    }

    /// The program does what makes this side send a message.
    fn act(&mut self, message: &Message<'_>) {
        let id = local_id(message);
        let own = self.connections.get(&id.0).copied();
        match &message.body {
            Body::Req(req) => self.connect(id, req),
            Body::Rep(rep) => {
                let connection = self.requests.remove(&rep.remote_comm_id.0).expect("a request");
                self.connections.insert(id.0, connection);
                let accept = Accept {
                    qpn: rep.local_qpn,
                    srq: rep.srq,
                    responder_resources: rep.responder_resources,
                    initiator_depth: rep.initiator_depth,
                    rnr_retry_count: rep.rnr_retry_count,
                    flow_control: rep.end_to_end_flow_control,
                    ece: Ece::default(),
                    private_data: rep.private_data,
                };
                self.call(|endpoint, now| endpoint.accept(now, connection, &accept));
            }
            Body::Rtu(rtu) => {
                self.call(|endpoint, now| endpoint.establish(now, own.unwrap(), rtu.private_data));
            }
            Body::Dreq(m) => {
                self.call(|endpoint, now| endpoint.disconnect(now, own.unwrap(), m.private_data))
            }
            Body::Drep(m) => {
                self.call(|endpoint, now| endpoint.disconnect(now, own.unwrap(), m.private_data))
            }
            // A program that refuses; where nobody listens, the port answers by itself.
            Body::Rej(rej) => {
                if let Some(connection) = self.requests.remove(&rej.remote_comm_id.0) {
                    self.call(|endpoint, now| {
                        endpoint.reject(now, connection, rej.reason, rej.info, rej.private_data)
                    });
                }
            }
            other => panic!("no program is known for {other:?}"),
        }
    }

    /// A datagram of the peer arrives, with our numbers in place of those that Linux chose on this side.
    fn arrive(&mut self, packet: &Captured, theirs: &Message<'_>) {
        let ours = |id: CommId| {
            let found = self.ids.iter().find(|(_, linux)| **linux == id.0);
            CommId(found.map_or(id.0, |(ours, _)| *ours))
        };
        let found = self.transactions.iter().find(|(_, linux)| **linux == theirs.transaction_id);
        let transaction = found.map_or(theirs.transaction_id, |(ours, _)| *ours);
        let mut mad = [0; MAD_LEN];
        rename(theirs, ours, transaction).emit(&mut mad).unwrap();
        self.net.inject(&packet.arrival(), &with_mad(&packet.flow, packet.ident, &packet.bytes, &mad));
        self.net.run_for(Duration::from_millis(1));
        while let Some(event) = self.manager.call(|endpoint, _| endpoint.poll_event()).unwrap() {
            if let (Event::ConnectRequest { connection, .. }, Body::Req(req)) = (event, &theirs.body) {
                self.requests.insert(req.local_comm_id.0, connection);
            }
        }
    }

    /// Compares what this side sent with what Linux sent.
    fn compare(&mut self, name: &str, linux: &Captured, theirs: &Message<'_>) {
        // Longer than a request is held for which nobody listens.
        self.net.run_for(Duration::from_millis(1100));
        let (ip, bytes) = self.sent.0.lock().unwrap().pop_front().expect("Linux sent a packet here");
        let packet = Packet::parse(&bytes).unwrap();
        let ours_raw = *packet.mad().expect("a management datagram");
        let ours = Message::parse(&ours_raw[..]).unwrap();
        let their_header = linux.arrival();
        assert_eq!((ip.dst, ip.tos), (their_header.dst, their_header.tos), "{name}");
        if local_id(&ours).0 != 0 {
            self.ids.insert(local_id(&ours).0, local_id(theirs).0);
        }
        self.transactions.insert(ours.transaction_id, theirs.transaction_id);
        let linux_id = |id: CommId| CommId(self.ids.get(&id.0).copied().unwrap_or(id.0));
        let mut renamed = rename(&ours, linux_id, theirs.transaction_id);
        match (&mut renamed.body, &theirs.body) {
            (Body::Req(ours), Body::Req(theirs)) => {
                (ours.starting_psn, ours.local_ca_guid) = (theirs.starting_psn, theirs.local_ca_guid);
            }
            (Body::Rep(ours), Body::Rep(theirs)) => {
                (ours.starting_psn, ours.local_ca_guid) = (theirs.starting_psn, theirs.local_ca_guid);
            }
            _ => {}
        }
        assert_eq!(&renamed, theirs, "{name}");
        let mut mad = [0; MAD_LEN];
        renamed.emit(&mut mad).unwrap();
        let mut whole = with_mad(&linux.flow, linux.ident, &bytes, &mad);
        // The last word of the BTH: Linux asks for acknowledgements that do not exist (see `freedom`), and counts PSNs on its own.
        whole[8..12].copy_from_slice(&linux.bytes[8..12]);
        assert!(linux.equals(&whole), "{name}: {:02x?}, not {:02x?}", whole, linux.bytes);
    }
}

/// A packet with another management datagram in it, and the ICRC of this flow.
fn with_mad(flow: &Flow, ident: u16, packet: &[u8], mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let headers = packet.len() - MAD_LEN - ICRC_LEN;
    let mut whole = [&packet[..headers], mad].concat();
    let icrc = icrc::compute(flow, ident, &whole);
    whole.extend(icrc.to_le_bytes());
    whole
}

/// Puts a port in the place of a host; returns how many packets it sent.
fn replay(name: &str, packets: &[(Captured, [u8; MAD_LEN])], addresses: [IpAddr; 2], mtu: Mtu) -> usize {
    let net = Net::with_seed(7);
    let [us, peer] = addresses;
    let IpAddr::V4(address) = us else { panic!("{name}: {us}") };
    let device = net.device_with(&DeviceSetup { address: Some(address), ..DeviceSetup::default() }).unwrap();
    let sent = Sent::default();
    device.observe(sent.clone()).unwrap();
    let manager = device.connection_manager().unwrap();
    let mut side = Side {
        net,
        manager,
        sent,
        addresses: [us, peer],
        ids: HashMap::new(),
        transactions: HashMap::new(),
        connections: HashMap::new(),
        requests: HashMap::new(),
        mtu,
    };
    let messages: Vec<_> =
        packets.iter().map(|(packet, mad)| (packet, Message::parse(&mad[..]).unwrap())).collect();
    // A program listens where a request was accepted, or refused by a program.
    let answers = |message: &Message<'_>| match message.body {
        Body::Rep(_) => true,
        Body::Rej(rej) => rej.reason == RejReason::ConsumerDefined,
        _ => false,
    };
    if messages.iter().any(|(packet, message)| packet.flow.src == us && answers(message)) {
        let ports = messages.iter().filter_map(|(packet, message)| match message.body {
            Body::Req(req) if packet.flow.dst == us => Some(req.service_id),
            _ => None,
        });
        let mut services: Vec<_> = ports.collect();
        services.dedup();
        for service_id in services {
            let listen = Listen {
                service_id,
                address: Some(Gid::from(us)),
                with_addresses: true,
                qp_type: QpType::Rc,
                backlog: 16,
            };
            side.call(|endpoint, now| endpoint.listen(now, &listen));
        }
    }
    let mut count = 0;
    for (packet, message) in &messages {
        if packet.flow.src == us {
            side.act(message);
            side.compare(name, packet, message);
            count += 1;
        } else {
            side.arrive(packet, message);
        }
    }
    side.net.run_for(Duration::from_millis(1100));
    assert!(side.sent.0.lock().unwrap().is_empty(), "{name}: Linux sends no more");
    count
}

#[test]
fn connections_of_linux_through_the_port() {
    let mut replayed = 0;
    for capture in capture::captures() {
        let packets: Vec<_> =
            capture.packets.iter().filter_map(|packet| Some((packet.clone(), mad(packet)?))).collect();
        if packets.is_empty() {
            continue;
        }
        let [a, b] = capture.sides();
        let mtu = capture.scenario.mtu();
        let sent = [[a, b], [b, a]].map(|addresses| replay(&capture.name, &packets, addresses, mtu));
        println!("{:24} {sent:?} packets", capture.name);
        assert_eq!(sent.iter().sum::<usize>(), packets.len());
        replayed += 1;
    }
    assert!(replayed >= 3, "captures of connections are missing");
}
