//! Connections between ports in virtual time.

use crate::cm::Manager;
use crate::engine::{DropReason, ResourceError};
use crate::link::{Direction, FrameRef, Now, Observer};
use crate::sim::{DeviceSetup, Net};
use crate::{Device, Error, Gather, QpInit, QueuePair, RcEnd, Result, WcStatus};
use cm::{
    Accept, Connect, ConnectionId, DisconnectCause, Event, Listen, Path, Placement, PortSpace, RejReason,
    ServiceId,
};
use qp::wire::mad::cm::{Body, Message};
use qp::wire::mad::hello::{Hello, Kind};
use qp::wire::mad::{DATA_LEN, Header, MAD_LEN, Mad};
use qp::wire::{DethFields, Headers, IpHeader, Opcode, Packet, icrc};
use qp::{Gid, Psn, QKey, QpState, QpType, Qpn};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use time::Duration;

const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7471);

/// A device with its connection manager, and the events that it has told.
struct Side {
    device: Device,
    manager: Manager,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Side {
    fn new(net: &Net) -> Result<Self> {
        Self::of(net.device())
    }

    fn of(device: Device) -> Result<Self> {
        let manager = device.connection_manager()?;
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        manager.set_sink(move |event| told.lock().expect("no panic").push(event))?;
        Ok(Self { device, manager, events })
    }

    fn gid(&self) -> Gid {
        Gid::from(self.device.address())
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().expect("no panic"))
    }

    fn only(&self) -> Event {
        let mut events = self.take();
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    fn listen(&self) -> Result<()> {
        let listen = Listen {
            service_id: SERVICE,
            address: None,
            with_addresses: false,
            qp_type: QpType::Rc,
            backlog: 8,
        };
        self.manager.call(|endpoint, now| endpoint.listen(now, &listen))?.expect("a free service");
        Ok(())
    }

    fn connect(&self, to: &Self, qp: &QueuePair) -> Result<ConnectionId> {
        let path = Path::new(self.gid(), to.gid(), self.device.port_attr().active_mtu);
        let connect = Connect::new(SERVICE, path, qp.qpn());
        Ok(self.manager.call(|endpoint, now| endpoint.connect(now, &connect))?.expect("room"))
    }

    /// Brings a queue pair into a state with the attributes of its connection.
    fn set_up(&self, connection: ConnectionId, qp: &QueuePair, states: &[QpState]) -> Result<()> {
        for state in states {
            let attr = self.manager.look(|e| e.attributes(connection, *state, &Placement::default()))?;
            qp.modify(&attr.expect("attributes"))?;
        }
        Ok(())
    }

    fn accept(&self, qp: &QueuePair) -> Result<ConnectionId> {
        let Event::ConnectRequest { connection, request } = self.only() else { panic!("no request") };
        self.set_up(connection, qp, &[QpState::Init, QpState::Rtr, QpState::Rts])?;
        let accept = Accept::new(qp.qpn(), &request);
        self.manager.call(|endpoint, now| endpoint.accept(now, connection, &accept))?.expect("a request");
        Ok(connection)
    }

    fn establish(&self, qp: &QueuePair) -> Result<()> {
        let Event::ConnectResponse { connection, .. } = self.only() else { panic!("no response") };
        self.set_up(connection, qp, &[QpState::Init, QpState::Rtr, QpState::Rts])?;
        self.manager.call(|endpoint, now| endpoint.establish(now, connection, &[]))?.expect("a response");
        Ok(())
    }
}

fn soon(net: &Net) {
    net.run_for(Duration::from_micros(100));
}

/// Two sides with a connection between them, and its ends.
type Connected = [(Side, RcEnd, ConnectionId); 2];

fn connected(net: &Net) -> Result<Connected> {
    connect_sides(net, Side::new(net)?, Side::new(net)?)
}

fn connect_sides(net: &Net, a: Side, b: Side) -> Result<Connected> {
    b.listen()?;
    let (left, right) = (RcEnd::new(&a.device)?, RcEnd::new(&b.device)?);
    let active = a.connect(&b, &left.qp)?;
    soon(net);
    let passive = b.accept(&right.qp)?;
    soon(net);
    a.establish(&left.qp)?;
    soon(net);
    assert!(matches!(b.only(), Event::Established { .. }));
    Ok([(a, left, active), (b, right, passive)])
}

#[test]
fn a_connection_is_made_used_and_closed() -> Result<()> {
    let net = Net::new();
    let [(a, left, active), (b, right, passive)] = connected(&net)?;
    right.qp.recv(1, Gather::Empty)?;
    left.qp.send(2, Gather::Empty)?;
    soon(&net);
    let received = right.wait()?;
    assert_eq!((received.wr_id, received.status), (1, WcStatus::Success));

    b.manager.call(|endpoint, now| endpoint.disconnect(now, passive, &[]))?.expect("a connection");
    soon(&net);
    assert!(matches!(a.only(), Event::Disconnected { cause: DisconnectCause::Peer, .. }));
    a.manager.call(|endpoint, now| endpoint.disconnect(now, active, &[]))?.expect("a connection");
    soon(&net);
    assert!(matches!(b.only(), Event::Disconnected { cause: DisconnectCause::Answered, .. }));
    // The passive side would have waited for its program for as long as the active side repeats its REQ: 103 s.
    assert!(net.run_until_idle(Duration::from_secs(110)));
    let ends: Vec<_> = [&a, &b].map(|side| side.only()).into();
    assert!(ends.iter().all(|event| matches!(event, Event::TimeWaitExit { .. })), "{ends:?}");
    Ok(())
}

/// The peer's first message says as much as its RTU, which may be lost.
#[test]
fn data_that_comes_before_the_rtu_establishes_the_connection() -> Result<()> {
    let net = Net::new();
    let (a, b) = (Side::new(&net)?, Side::new(&net)?);
    b.listen()?;
    let (left, right) = (RcEnd::new(&a.device)?, RcEnd::new(&b.device)?);
    a.connect(&b, &left.qp)?;
    soon(&net);
    b.accept(&right.qp)?;
    soon(&net);
    let Event::ConnectResponse { connection, .. } = a.only() else { panic!("no response") };
    a.set_up(connection, &left.qp, &[QpState::Init, QpState::Rtr, QpState::Rts])?;
    left.qp.send(1, Gather::Empty)?;
    soon(&net);
    assert!(matches!(b.only(), Event::Established { ref private_data, .. } if private_data.is_empty()));
    a.manager.call(|endpoint, now| endpoint.establish(now, connection, &[]))?.expect("a response");
    soon(&net);
    assert_eq!(b.take(), [], "told once");
    Ok(())
}

/// Also by a program that has never heard of connections.
#[test]
fn a_service_without_a_listener_is_refused() -> Result<()> {
    let net = Net::new();
    let (a, b) = (Side::new(&net)?, net.device());
    let left = RcEnd::new(&a.device)?;
    let path = Path::new(a.gid(), b.gid(), a.device.port_attr().active_mtu);
    let connect = Connect::new(SERVICE, path, left.qp.qpn());
    a.manager.call(|endpoint, now| endpoint.connect(now, &connect))?.expect("room");
    soon(&net);
    assert_eq!(a.take(), [], "a listener may still come");
    net.run_for(Duration::from_secs(2));
    let Event::Rejected { rejection, .. } = a.only() else { panic!("not rejected") };
    assert_eq!(rejection.reason, RejReason::InvalidServiceId);
    // It costs the program nothing: it can still have QP1 for itself.
    let cq = b.create_cq(16)?;
    b.alloc_pd()?.create_qp(&QpInit::gsi(&cq, &cq))?;
    Ok(())
}

#[test]
fn qp1_belongs_to_the_program_or_to_the_device() -> Result<()> {
    let net = Net::new();
    let device = net.device();
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let own = pd.create_qp(&QpInit::gsi(&cq, &cq))?;
    let refused = device.connection_manager().expect_err("the program has QP1");
    assert!(matches!(refused, Error::Resource(ResourceError::Qp1Taken)), "{refused}");
    drop(own);
    let manager = device.connection_manager()?;
    let refused = pd.create_qp(&QpInit::gsi(&cq, &cq)).expect_err("the device has QP1");
    assert!(matches!(refused, Error::Resource(ResourceError::Qp1Managed)), "{refused}");
    let same = device.connection_manager()?;
    drop(manager);
    same.set_sink(|_| {})?;
    let refused = same.set_sink(|_| {}).expect_err("there is one");
    assert!(matches!(refused, Error::Resource(ResourceError::Busy { .. })), "{refused}");
    drop(same);
    pd.create_qp(&QpInit::gsi(&cq, &cq))?;
    Ok(())
}

/// A packet from QP1 of a host to QP1 of a device.
fn mad_packet(arrival: &IpHeader, mad: &[u8], qkey: QKey) -> Vec<u8> {
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
    headers.deth = DethFields { qkey, src_qpn: Qpn::GSI };
    let mut packet = vec![0; headers.wire_len()];
    headers.emit(&mut packet, mad.len());
    packet.extend(mad);
    packet.extend(icrc::compute(&arrival.flow(), arrival.ident, &packet).to_le_bytes());
    packet
}

/// The payloads of the datagrams that a device sends.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<Datagram>>>);

type Datagram = (Opcode, Vec<u8>);

impl Observer for Sent {
    fn name(&self) -> &'static str {
        "sent"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        if frame.direction == Direction::Tx {
            let packet = Packet::parse(frame.bytes).expect("a packet");
            self.0.lock().expect("no panic").push((packet.opcode(), packet.payload().to_vec()));
        }
    }
}

impl Sent {
    fn of(device: &Device) -> Result<Self> {
        let sent = Self::default();
        device.observe(sent.clone())?;
        Ok(sent)
    }

    fn take(&self) -> Vec<Datagram> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

fn stranger(nth: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a63_0000 + nth))
}

#[test]
fn requests_for_other_agents_are_refused_and_counted() -> Result<()> {
    let net = Net::new();
    let device = net.device();
    let sent = Sent::of(&device)?;
    let arrival = IpHeader { src: stranger(1), ..IpHeader::to(device.address()) };
    let ask = |class, method, base_version, qkey| {
        let header =
            Header { base_version, class, class_version: 1, method, transaction_id: 77, ..Header::default() };
        let mut mad = [0; MAD_LEN];
        Mad { header, data: &[9; DATA_LEN] }.emit(&mut mad).expect("the right length");
        net.inject(&arrival, &mad_packet(&arrival, &mad, qkey));
        soon(&net);
        sent.take()
    };
    // Get and Set of subnet administration and performance management: the port says that it has no such agent.
    for (class, method) in [(0x03, 0x01), (0x04, 0x02)] {
        let [(Opcode::UdSendOnly, answer)] = &ask(class, method, 1, QKey::GSI)[..] else {
            panic!("no answer")
        };
        let answer = Mad::parse(answer).expect("a datagram");
        let Header { transaction_id, status, .. } = answer.header;
        assert_eq!((answer.header.class, answer.header.method), (class, method | 0x80));
        assert_eq!((transaction_id, status, answer.data), (77, 0x000c, &[9; DATA_LEN]));
    }
    // An answer, a report, an unknown version, and a datagram without the key of QP1 are dropped.
    let nothing = [
        (0x04, 0x81, 1, QKey::GSI),
        (0x04, 0x03, 1, QKey::GSI),
        (0x04, 0x01, 2, QKey::GSI),
        (0x04, 0x01, 1, QKey(5)),
    ];
    for (class, method, version, qkey) in nothing {
        assert_eq!(ask(class, method, version, qkey), [], "{class} {method} {version}");
    }
    let port = device.counters().port;
    let reasons = [DropReason::NoAgent, DropReason::BadVersion, DropReason::BadQkey];
    assert_eq!(reasons.map(|reason| port.dropped(reason)), [4, 1, 1]);
    // Not more often than hellos are answered: 512 at once, and 5000 a second.
    let begin = net.elapsed();
    let answered = (0..4000).filter(|_| !ask(0x03, 0x01, 1, QKey::GSI).is_empty()).count();
    let allowed = 512.0 + 5000.0 * (net.elapsed() - begin).as_secs_f64();
    assert!((answered as f64) <= allowed && answered > 1000, "{answered} of {allowed}");
    Ok(())
}

/// A REQ of a stranger: to this service, from this queue pair.
fn request(from: IpAddr, to: IpAddr, nth: u32, qpn: Qpn) -> [u8; MAD_LEN] {
    let mut endpoint = cm::Endpoint::new(cm::Config::new(u64::from(nth)), [nth as u8; 32]);
    let path = Path::new(Gid::from(from), Gid::from(to), qp::Mtu::B1024);
    let now = time::Instant::EPOCH;
    endpoint.connect(now, &Connect::new(SERVICE, path, qpn)).expect("room");
    endpoint.poll_transmit(now).expect("a REQ").mad
}

/// Between two datagrams of the connection manager, data has its turn.
#[test]
fn a_flood_of_requests_does_not_keep_data_waiting() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (source, target) = (left.register(&[7; 4096])?, right.register_remote(4096)?);
    let sent = Sent::of(&a)?;
    for nth in 0..200 {
        let arrival = IpHeader { src: stranger(nth), ..IpHeader::to(a.address()) };
        let mad = request(arrival.src, a.address(), nth, Qpn::new(0x100 + nth));
        net.inject(&arrival, &mad_packet(&arrival, &mad, QKey::GSI));
    }
    // They arrive, and their answers are due when the data is posted.
    while a.counters().port.rx_packets < 200 {
        net.step();
    }
    (0..16).try_for_each(|n| left.qp.write(n, source.all(), target.remote(0)))?;
    soon(&net);
    let kinds: Vec<_> = sent.take().into_iter().map(|(opcode, _)| opcode == Opcode::UdSendOnly).collect();
    let (answers, last_data) =
        (kinds.iter().filter(|is_answer| **is_answer).count(), kinds.iter().rposition(|is| !is));
    // 64 are held for a listener to come; 64 of the others are answered at once.
    assert_eq!((answers, kinds.len()), (64, 80));
    assert!(last_data.is_some_and(|at| at < 40), "{kinds:?}");
    Ok(())
}

/// What requests of strangers may cost is bounded, in memory and in number; those who are known are served.
#[test]
fn requests_of_strangers_are_bounded() -> Result<()> {
    let net = Net::new();
    let b = Side::new(&net)?;
    b.listen()?;
    let requests = |from: u32, count: u32| {
        for nth in from..from + count {
            let arrival = IpHeader { src: stranger(nth), ..IpHeader::to(b.device.address()) };
            let mad = request(arrival.src, b.device.address(), nth, Qpn::new(0x100));
            net.inject(&arrival, &mad_packet(&arrival, &mad, QKey::GSI));
        }
        soon(&net);
        b.device.counters().port.dropped(DropReason::Requests)
    };
    assert_eq!(requests(0, 16_384), 0);
    // 100 us have passed: the time of half a request.
    assert_eq!(requests(20_000, 1000), 1000);
    let (all, half_open, _) = b.manager.look(cm::Endpoint::sizes)?;
    assert_eq!((all, half_open, b.take().len()), (8, 8, 8), "the backlog");
    net.run_for(Duration::from_secs(2));
    assert_eq!(requests(30_000, 10_000), 1000);
    assert!(requests(40_000, 10) >= 1009);
    Ok(())
}

/// Addresses with connections have an allowance of their own.
#[test]
fn strangers_do_not_use_up_the_allowance_of_those_who_are_known() -> Result<()> {
    let net = Net::new();
    let [(a, left, _), (b, right, _)] = connected(&net)?;
    let request_of = |from: IpAddr, nth: u32| {
        let arrival = IpHeader { src: from, ..IpHeader::to(b.device.address()) };
        let mad = request(from, b.device.address(), nth, Qpn::new(0x10_0000 + nth));
        net.inject(&arrival, &mad_packet(&arrival, &mad, QKey::GSI));
    };
    (0..17_000).for_each(|nth| request_of(stranger(nth), nth));
    soon(&net);
    let dropped = || b.device.counters().port.dropped(DropReason::Requests);
    let before = dropped();
    assert!(before > 600, "{before}");
    (0..100).for_each(|nth| request_of(a.device.address(), 20_000 + nth));
    soon(&net);
    assert_eq!(dropped(), before);
    drop((left, right));
    Ok(())
}

/// Whether one of these is a DREQ.
fn closes(sent: &[Datagram]) -> bool {
    let is_dreq = |payload: &[u8]| {
        let message = Message::parse(payload);
        message.is_ok_and(|message| matches!(message.body, Body::Dreq(_)))
    };
    sent.iter().any(|(_, payload)| is_dreq(payload))
}

#[test]
fn a_device_that_is_closed_tells_its_peers() -> Result<()> {
    let net = Net::new();
    let [(a, left, active), (b, right, _)] = connected(&net)?;
    drop((b, right));
    soon(&net);
    let Event::Disconnected { connection, cause } = a.only() else { panic!("not told") };
    assert_eq!((connection, cause), (active, DisconnectCause::Peer));
    drop(left);
    Ok(())
}

/// The host that now has the address of a connection's peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    /// The peer.
    Peer,
    /// Another program, after the peer was killed.
    Another,
    /// A host that does not know hellos.
    Foreign,
    /// Nobody, or a host that does not answer.
    Silent,
}

/// A REQ of the peer says that it uses the queue pair of a connection for another one. Whoever is there is asked.
#[test]
fn a_connection_is_stale_only_if_its_peer_is_another() -> Result<()> {
    for who in [Who::Peer, Who::Another, Who::Foreign, Who::Silent] {
        let net = Net::new();
        let [(a, left, _), (b, right, passive)] = connected(&net)?;
        let (address, qpn) = (a.device.address(), left.qp.qpn());
        let IpAddr::V4(v4) = address else { panic!("an IPv4 address") };
        let mut others = Vec::new();
        if who != Who::Peer {
            a.device.inject_port_state(false)?;
        }
        if who == Who::Another {
            others.push(net.device_with(&DeviceSetup {
                address: Some(v4),
                slot: 9,
                ..DeviceSetup::default()
            })?);
        }
        let sent = Sent::of(&b.device)?;
        let arrival = IpHeader { src: address, ..IpHeader::to(b.device.address()) };
        let mad = request(address, b.device.address(), 5, qpn);
        net.inject(&arrival, &mad_packet(&arrival, &mad, QKey::GSI));
        soon(&net);
        let all = sent.take();
        let hello = all.iter().find(|(_, payload)| Hello::parse(payload).is_ok()).expect("a question");
        let mut closed = closes(&all);
        if who == Who::Foreign {
            let asked = Mad::parse(&hello.1).expect("a datagram");
            let header = Header { method: 0x81, status: 0x0c, ..asked.header };
            let mut refusal = [0; MAD_LEN];
            Mad { header, ..asked }.emit(&mut refusal).expect("the right length");
            net.inject(&arrival, &mad_packet(&arrival, &refusal, QKey::GSI));
            soon(&net);
            closed |= closes(&sent.take());
        }
        assert_eq!(closed, matches!(who, Who::Another | Who::Foreign), "{who:?}");
        let state = b.manager.look(|endpoint| endpoint.state(passive))?;
        let expected = match who {
            Who::Peer | Who::Silent => cm::ConnectionState::Established,
            // It does not know the connection, and answers the DREQ with a DREP at once.
            Who::Another => cm::ConnectionState::TimeWait,
            Who::Foreign => cm::ConnectionState::DreqSent,
        };
        assert_eq!(state, expected, "{who:?}");
        drop((left, right));
    }
    Ok(())
}

/// Where processes share the peer's address, whoever shares it out answers too, for slot 0: that says nothing about the peer.
#[test]
fn a_connection_is_not_stale_because_a_daemon_answers_for_the_address() -> Result<()> {
    for answering in [0, 3, 4] {
        let net = Net::new();
        let a = Side::of(net.device_with(&DeviceSetup { slot: 3, ..DeviceSetup::default() })?)?;
        let [(a, left, _), (b, right, passive)] = connect_sides(&net, a, Side::new(&net)?)?;
        let (address, qpn) = (a.device.address(), left.qp.qpn());
        a.device.inject_port_state(false)?;
        let sent = Sent::of(&b.device)?;
        let arrival = IpHeader { src: address, ..IpHeader::to(b.device.address()) };
        let mad = request(address, b.device.address(), 5, qpn);
        net.inject(&arrival, &mad_packet(&arrival, &mad, QKey::GSI));
        soon(&net);
        let asked: Vec<Hello> = sent.take().iter().filter_map(|(_, mad)| Hello::parse(mad).ok()).collect();
        assert_eq!(asked.len(), 2, "the address and the slot are asked");
        let answer = Hello { kind: Kind::Answer, slot: answering, instance: 99, ..asked[0] };
        let mut mad = [0; MAD_LEN];
        answer.emit(&mut mad);
        net.inject(&arrival, &mad_packet(&arrival, &mad, QKey::GSI));
        soon(&net);
        let state = b.manager.look(|endpoint| endpoint.state(passive))?;
        let is_over = answering == 4;
        // In the slot itself another instance would say so; without a partner, whoever has it counts as the peer.
        assert_eq!(state != cm::ConnectionState::Established, is_over, "slot {answering}: {state}");
        drop((left, right));
    }
    Ok(())
}
