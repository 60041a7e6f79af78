//! Linux connection management, replayed: an endpoint in the place of either side writes the same datagrams as Linux
//! did, but for IDs, transaction IDs and starting PSNs, which are chosen at random.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cm::{Accept, Config, Connect, ConnectionId, Endpoint, Event, Listen, Path, ServiceId, Source};
use pcap_file::pcap::PcapReader;
use qp::wire::Packet;
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{Body, CommId, Message, Req};
use qp::{Gid, Mtu, Psn, QpType};
use std::collections::HashMap;
use std::fs::File;
use std::net::Ipv4Addr;
use support::{emit, parse};
use time::{Duration, Instant};

const SERVER: [u8; 4] = [10, 77, 0, 1];
const CLIENT: [u8; 4] = [10, 77, 0, 2];

/// The management datagrams of a capture, with their senders.
fn mads(capture: &str) -> Vec<([u8; 4], [u8; MAD_LEN])> {
    let path = format!("{}/../tests/golden/{capture}.pcap", env!("CARGO_MANIFEST_DIR"));
    let mut reader = PcapReader::new(File::open(path).expect("a golden capture")).expect("a capture");
    let mut found = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.expect("a whole frame").data;
        let ip = &frame[14..];
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let packet = Packet::parse(&ip[28..total]).expect("a RoCE packet");
        if let Some(mad) = packet.mad() {
            found.push((ip[12..16].try_into().expect("an address"), *mad));
        }
    }
    found
}

/// What the endpoint chose in place of Linux, and the other way round.
#[derive(Default)]
struct Names {
    /// Of Linux, by ours.
    ids: HashMap<u32, u32>,
    transactions: HashMap<u64, u64>,
}

impl Names {
    fn id(&self, ours: CommId) -> CommId {
        CommId(self.ids.get(&ours.0).copied().unwrap_or(ours.0))
    }

    fn ours(&self, theirs: CommId) -> CommId {
        let found = self.ids.iter().find(|(_, linux)| **linux == theirs.0);
        CommId(found.map_or(theirs.0, |(ours, _)| *ours))
    }

    fn our_transaction(&self, theirs: u64) -> u64 {
        let found = self.transactions.iter().find(|(_, linux)| **linux == theirs);
        found.map_or(theirs, |(ours, _)| *ours)
    }
}

/// Changes the IDs of a message.
fn rename<'a>(message: &Message<'a>, id: impl Fn(CommId) -> CommId, transaction_id: u64) -> Message<'a> {
    let mut message = *message;
    message.transaction_id = transaction_id;
    let (local, remote) = match &mut message.body {
        Body::Req(req) => (&mut req.local_comm_id, None),
        Body::Rep(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Rtu(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Rej(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Dreq(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Body::Drep(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        other => panic!("{other:?}"),
    };
    *local = id(*local);
    if let Some(remote) = remote {
        *remote = id(*remote);
    }
    message
}

fn ids(message: &Message<'_>) -> [CommId; 2] {
    match &message.body {
        Body::Req(m) => [m.local_comm_id, CommId(0)],
        Body::Rep(m) => [m.local_comm_id, m.remote_comm_id],
        Body::Rtu(m) => [m.local_comm_id, m.remote_comm_id],
        Body::Rej(m) => [m.local_comm_id, m.remote_comm_id],
        Body::Dreq(m) => [m.local_comm_id, m.remote_comm_id],
        Body::Drep(m) => [m.local_comm_id, m.remote_comm_id],
        other => panic!("{other:?}"),
    }
}

/// The request of the program whose REQ this is. What programs choose is taken from the REQ; all else is not.
fn request_of<'a>(req: &Req<'a>, port: u16) -> Connect<'a> {
    let (addresses, private_data) = req.ip_cm().expect("the addresses of a TCP port");
    let (local, remote) = (Gid::from(Ipv4Addr::from(CLIENT)), Gid::from(Ipv4Addr::from(SERVER)));
    let mut path = Path::new(local, remote, Mtu::B1024);
    path.to.flow_label = Path::flow_label(addresses.src_port, port);
    Connect {
        addresses: Some(addresses),
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        private_data,
        ..Connect::new(ServiceId::tcp(port), path, req.local_qpn)
    }
}

/// Puts an endpoint in the place of the host with this address; returns how many datagrams it wrote.
fn replay(capture: &str, port: u16, host: [u8; 4]) -> usize {
    let guid = 0x5054_00ff_fe77_0000 | u64::from(host[3]);
    let mut endpoint = Endpoint::new(Config { hold: Duration::ZERO, ..Config::new(guid) }, [7; 32]);
    let now = Instant::at(Duration::from_secs(5));
    if capture != "cm_reject" {
        let listen = Listen {
            service_id: ServiceId::tcp(port),
            address: Some(Gid::from(Ipv4Addr::from(SERVER))),
            with_addresses: true,
            qp_type: QpType::Rc,
            backlog: 3,
        };
        endpoint.listen(now, &listen).unwrap();
    }
    let peer = if host == SERVER { CLIENT } else { SERVER };
    let source = Source {
        remote: Gid::from(Ipv4Addr::from(peer)),
        local: Gid::from(Ipv4Addr::from(host)),
        proven: false,
    };
    let mut names = Names::default();
    // Connections by the ID that Linux gave them on this side, and requests that wait.
    let mut connections: HashMap<u32, ConnectionId> = HashMap::new();
    let mut requests: Vec<(ConnectionId, u32)> = Vec::new();
    let mut written = 0;
    for (from, mad) in mads(capture) {
        let theirs = parse(&mad);
        if from != host {
            let transaction = names.our_transaction(theirs.transaction_id);
            let renamed = rename(&theirs, |id| names.ours(id), transaction);
            endpoint.handle_mad(now, &source, &emit(&renamed));
            while let Some(event) = endpoint.poll_event() {
                if let Event::ConnectRequest { connection, request } = event {
                    assert_eq!(request.private_data.len(), 56);
                    requests.push((connection, request.remote_qpn.value()));
                }
            }
            continue;
        }
        let [local, _] = ids(&theirs);
        let connection = connections.get(&local.0).copied();
        match &theirs.body {
            Body::Req(req) => {
                let connection = endpoint.connect(now, &request_of(req, port)).unwrap();
                connections.insert(local.0, connection);
            }
            Body::Rep(rep) => {
                let at =
                    requests.iter().position(|(_, qpn)| *qpn == request_qpn(capture, rep.remote_comm_id));
                let (connection, _) = requests.remove(at.expect("a request"));
                connections.insert(local.0, connection);
                let accept = Accept {
                    qpn: rep.local_qpn,
                    srq: false,
                    responder_resources: rep.responder_resources,
                    initiator_depth: rep.initiator_depth,
                    rnr_retry_count: rep.rnr_retry_count,
                    flow_control: rep.end_to_end_flow_control,
                    ece: cm::Ece::default(),
                    private_data: rep.private_data,
                };
                endpoint.accept(now, connection, &accept).unwrap();
            }
            Body::Rtu(rtu) => endpoint.establish(now, connection.unwrap(), rtu.private_data).unwrap(),
            Body::Dreq(dreq) => endpoint.disconnect(now, connection.unwrap(), dreq.private_data).unwrap(),
            Body::Drep(drep) => endpoint.disconnect(now, connection.unwrap(), drep.private_data).unwrap(),
            // The endpoint rejects by itself.
            Body::Rej(_) => {}
            other => panic!("{other:?}"),
        }
        let ours = endpoint.poll_transmit(now).expect("a datagram");
        assert_eq!((ours.to.remote, ours.to.local), (source.remote, source.local));
        compare(&mut names, &ours.mad, &mad);
        written += 1;
    }
    assert_eq!(endpoint.poll_transmit(now), None, "{capture}: Linux sends no more");
    written
}

/// A datagram of this side is that of Linux but for the numbers that are chosen at random.
fn compare(names: &mut Names, ours: &[u8; MAD_LEN], linux: &[u8; MAD_LEN]) {
    let (message, theirs) = (parse(ours), parse(linux));
    let ([our_id, _], [id, _]) = (ids(&message), ids(&theirs));
    if our_id.0 != 0 {
        names.ids.insert(our_id.0, id.0);
    }
    names.transactions.insert(message.transaction_id, theirs.transaction_id);
    let mut renamed = rename(&message, |id| names.id(id), theirs.transaction_id);
    match (&mut renamed.body, &theirs.body) {
        (Body::Req(ours), Body::Req(theirs)) => ours.starting_psn = theirs.starting_psn,
        (Body::Rep(ours), Body::Rep(theirs)) => ours.starting_psn = theirs.starting_psn,
        _ => {}
    }
    assert_eq!(renamed, theirs);
    assert_eq!(&emit(&renamed), linux);
}

/// The queue pair in the REQ with this ID.
fn request_qpn(capture: &str, id: CommId) -> u32 {
    let all = mads(capture);
    let mut reqs = all.iter().filter_map(|(_, mad)| match parse(mad).body {
        Body::Req(req) if req.local_comm_id == id => Some(req.local_qpn.value()),
        _ => None,
    });
    reqs.next().expect("a REQ")
}

#[test]
fn an_endpoint_writes_what_linux_writes() {
    // rping and ucmatose have ports of their own.
    for (capture, port, datagrams) in
        [("cm_rping", 7174, [3, 2]), ("cm_ucmatose", 7471, [6, 4]), ("cm_reject", 7174, [1, 1])]
    {
        assert_eq!([CLIENT, SERVER].map(|host| replay(capture, port, host)), datagrams, "{capture}");
    }
}

/// Which PSN is whose: the data packets of the capture begin with those that the attributes say.
#[test]
fn starting_psns_are_those_of_the_data() {
    let all = mads("cm_rping");
    let (mut req, mut rep) = (None, None);
    for (_, mad) in &all {
        match parse(mad).body {
            Body::Req(body) => req = Some(body.starting_psn),
            Body::Rep(body) => rep = Some(body.starting_psn),
            _ => {}
        }
    }
    // Frame 4 is the client's first SEND, with the PSN of the REP; the server's first request has that of the REQ.
    let path = format!("{}/../tests/golden/cm_rping.pcap", env!("CARGO_MANIFEST_DIR"));
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut first: HashMap<[u8; 4], Psn> = HashMap::new();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.unwrap().data;
        let ip = &frame[14..];
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let packet = Packet::parse(&ip[28..total]).unwrap();
        if packet.mad().is_none() && packet.opcode().info().is_request {
            first.entry(ip[12..16].try_into().unwrap()).or_insert(packet.psn());
        }
    }
    assert_eq!((first.get(&CLIENT).copied(), first.get(&SERVER).copied()), (rep, req));
}
