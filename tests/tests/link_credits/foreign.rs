//! Peers that are not rnic see the same packets in every configuration, and no others.

use super::{config, met, moved, until};
use nix::sys::socket::{setsockopt, sockopt};
use qp::wire::icrc::{self, Flow};
use qp::wire::{AethFields, Headers, ICRC_LEN, Opcode, Packet, Position, UDP_PORT, pad_len};
use rnic::link::{Direction, FrameRef, Now, Observer};
use rnic::{
    Access, AddressVector, CompletionQueue, Device, DeviceConfig, MemoryRegion, Mtu, ProtectionDomain, Psn,
    QKey, QpAttr, QpInit, Qpn, QueuePair, RcEnd, Remote, WcStatus,
};
use rnic_tests::{counter, fresh_address};
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The queue pair of the stranger, its key, and the start of its memory: it accepts anything.
const STRANGERS: Qpn = Qpn::new(0x777);
const REMOTE: Remote = Remote { addr: 0x10_0000, rkey: 0x4242 };
const QKEY: QKey = QKey(0x1234_5678);

/// First PSNs of the device, and of the stranger.
const SQ: u32 = 1000;
const RQ: u32 = 5000;

/// Number of WRITEs from the stranger.
const WRITES: u32 = 20;

/// "ECN-capable transport, congestion experienced": as if every packet of the stranger had been marked.
const CE: i32 = 0b11;

/// How rnic ports recognise each other (`rnic`'s `net::sign`): the remainder of the UDP source port.
const fn has_sign(port: u16) -> bool {
    port % 61 == 23
}

/// A packet sent by the device: TOS, TTL and bytes without ICRC.
type Noted = (u8, u8, Vec<u8>);

/// Records the packets that a device sends to an address.
struct Ear {
    to: IpAddr,
    heard: Arc<Mutex<Vec<Noted>>>,
    ports: Arc<Mutex<Vec<u16>>>,
}

impl Observer for Ear {
    fn name(&self) -> &'static str {
        "ear"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        if frame.direction == Direction::Tx && frame.ip.dst == self.to {
            let bytes = without_chance(frame.bytes);
            self.heard.lock().expect("nobody panics").push((frame.ip.tos, frame.ip.hop_limit, bytes));
            self.ports.lock().expect("nobody panics").push(frame.ip.src_port);
        }
    }
}

/// A packet without its random parts: the sender's queue pair number in datagrams, and the ICRC, which covers that
/// and the UDP source port.
fn without_chance(packet: &[u8]) -> Vec<u8> {
    let (covered, _) = packet.split_last_chunk::<ICRC_LEN>().expect("an ICRC");
    let mut bytes = covered.to_vec();
    if Packet::parse(packet).is_ok_and(|p| p.deth().is_some()) {
        // After BTH (12 bytes), Q_Key (4) and a reserved byte.
        bytes[17..20].fill(0);
    }
    bytes
}

/// A peer with a UDP socket at port 4791 that answers WRITEs, sending from another port.
struct Stranger {
    address: IpAddr,
    listens: UdpSocket,
    says: UdpSocket,
    heard: Mutex<Vec<Vec<u8>>>,
}

impl Stranger {
    fn new(address: IpAddr, sign: bool) -> Self {
        let listens = UdpSocket::bind((address, UDP_PORT)).expect("port 4791");
        listens.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let mut ports = (0xc000_u16..).filter(|port| has_sign(*port) == sign);
        let says = ports.find_map(|port| UdpSocket::bind((address, port)).ok()).expect("a free port");
        setsockopt(&says, sockopt::Ipv4Tos, &CE).expect("a TOS");
        Self { address, listens, says, heard: Mutex::default() }
    }

    fn say(&self, to: IpAddr, headers: &Headers, payload: &[u8]) {
        let mut bytes = vec![0; headers.wire_len()];
        headers.emit(&mut bytes, payload.len());
        bytes.extend(payload);
        bytes.resize(bytes.len() + pad_len(payload.len()), 0);
        let src_port = self.says.local_addr().expect("bound").port();
        let flow = Flow { src: self.address, dst: to, src_port, dst_port: UDP_PORT };
        let icrc = icrc::compute(&flow, 0, &bytes);
        bytes.extend(icrc.to_le_bytes());
        self.says.send_to(&bytes, (to, UDP_PORT)).expect("sent");
    }

    /// Answers every request for an acknowledgement, until told to stop.
    fn answer(&self, dest_qpn: Qpn, stop: &AtomicBool) {
        let mut buffer = [0; 9000];
        let mut msn = 0;
        while !stop.load(Ordering::Relaxed) {
            let (len, from) = match self.listens.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(error) => panic!("{error}"),
            };
            let packet = Packet::parse(&buffer[..len]).expect("a packet");
            self.heard.lock().expect("nobody panics").push(without_chance(&buffer[..len]));
            let position = packet.opcode().info().position;
            msn += u32::from(matches!(position, Position::Last | Position::Only));
            if packet.ack_req() {
                let headers = Headers {
                    aeth: AethFields { syndrome: 0x1f, msn },
                    ..Headers::new(Opcode::RcAcknowledge, dest_qpn, packet.psn())
                };
                self.say(from.ip(), &headers, &[]);
            }
        }
    }

    fn heard_acks(&self) -> usize {
        let heard = self.heard.lock().expect("nobody panics");
        heard.iter().filter(|bytes| bytes[0] == Opcode::RcAcknowledge as u8).count()
    }
}

/// Stops the stranger, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The device's side.
struct Ours {
    pd: ProtectionDomain,
    rc: QueuePair,
    ud: QueuePair,
    cq: CompletionQueue,
    source: MemoryRegion,
    target: MemoryRegion,
    way: AddressVector,
}

impl Ours {
    fn new(device: &Device, stranger: IpAddr) -> Self {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(256).expect("a completion queue");
        let bytes: Vec<u8> = (0..20_000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let source = pd.register_bytes(&bytes, Access::LOCAL_WRITE).expect("memory");
        let target = pd.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("memory");
        let rc = pd.create_qp(&QpInit::rc(&cq, &cq)).expect("a queue pair");
        let way = AddressVector::new(stranger.into(), 0);
        rc.modify(&QpAttr::to_init(1, 0, Access::REMOTE_WRITE | Access::LOCAL_WRITE)).expect("INIT");
        let to_rtr = QpAttr::to_rtr(way, Mtu::B1024, STRANGERS, Psn::new(RQ));
        rc.modify(&to_rtr.max_dest_rd_atomic(1).min_rnr_timer(12)).expect("RTR");
        // 17 s: nothing is retransmitted.
        let to_rts = QpAttr::to_rts(Psn::new(SQ)).timeout(22).retry_cnt(7).rnr_retry(7).max_rd_atomic(1);
        rc.modify(&to_rts).expect("RTS");
        let ud = pd.create_qp(&QpInit::ud(&cq, &cq)).expect("a queue pair");
        let init = QpAttr::to_init_datagram(1, 0, QKEY);
        for attr in [init, QpAttr::to_state(rnic::QpState::Rtr), QpAttr::to_rts(Psn::new(SQ))] {
            ud.modify(&attr).expect("as it was told");
        }
        Self { pd, rc, ud, cq, source, target, way }
    }

    fn done(&self) {
        let wc = self.cq.wait(super::PATIENCE).expect("a completion");
        assert_eq!(wc.status, WcStatus::Success);
    }

    /// WRITEs, one after the other, and a datagram.
    fn talk(&self) {
        for len in [1, 64, 1024, 5000, 20_000] {
            self.rc.write(1, self.source.slice(0..len).expect("inside"), REMOTE).expect("room");
            self.done();
        }
        let ah = self.pd.create_ah(&self.way).expect("an address handle");
        self.ud.send_to(2, self.source.slice(0..100).expect("inside"), &ah, STRANGERS, QKEY).expect("room");
        self.done();
    }
}

/// The packets sent to a stranger: as recorded at the device, and as received.
struct Conversation {
    sent: Vec<Noted>,
    heard: Vec<Vec<u8>>,
    device: Device,
}

impl Conversation {
    fn count(&self, is: impl Fn(&Noted) -> bool) -> usize {
        self.sent.iter().filter(|noted| is(noted)).count()
    }

    fn hellos(&self) -> usize {
        self.count(|(_, _, bytes)| is_hello(bytes))
    }

    /// The same without hellos.
    fn without_hellos(mut self) -> Self {
        self.sent.retain(|(_, _, bytes)| !is_hello(bytes));
        self.heard.retain(|bytes| !is_hello(bytes));
        self
    }
}

fn is_hello(packet: &[u8]) -> bool {
    packet[0] == Opcode::UdSendOnly as u8 && packet[6..8] == [0, 1]
}

/// An exchange between a device with this configuration and a stranger, with or without the sign.
fn talk(config: &DeviceConfig, stranger: IpAddr, sign: bool) -> Conversation {
    let device = config.open().expect("a device");
    let (heard, ports) = (Arc::default(), Arc::default());
    let ear = Ear { to: stranger, heard: Arc::clone(&heard), ports: Arc::clone(&ports) };
    device.observe(ear).expect("an observer");
    let stranger = Stranger::new(stranger, sign);
    let ours = Ours::new(&device, stranger.address);
    let (stop, qpn) = (AtomicBool::new(false), ours.rc.qpn());
    std::thread::scope(|scope| {
        scope.spawn(|| stranger.answer(qpn, &stop));
        let _stop = Stop(&stop);
        ours.talk();
        // One after the other, so that each gets its own acknowledgement.
        for nth in 0..WRITES {
            let mut headers = Headers::new(Opcode::RcWriteOnly, qpn, Psn::new(RQ + nth));
            (headers.ack_req, headers.reth.va, headers.reth.rkey, headers.reth.length) =
                (true, ours.target.addr(), ours.target.rkey(), 64);
            stranger.say(device.address(), &headers, &[nth as u8; 64]);
            until("an answer", || stranger.heard_acks() > nth as usize);
        }
        // Any further packets would arrive within this time.
        std::thread::sleep(Duration::from_millis(300));
    });
    assert!(ports.lock().expect("nobody panics").iter().all(|port| has_sign(*port)));
    let sent = std::mem::take(&mut *heard.lock().expect("nobody panics"));
    let heard = stranger.heard.into_inner().expect("nobody panics");
    Conversation { sent, heard, device }
}

/// All features that can be configured between partners.
const CONFIGURED: [(&str, &str); 3] = [
    ("ib-credits", "dcqcn"),
    ("ib-credits", "dctcp"),
    ("rate=1Gb/s,pfc=0,kmin=1000,kmax=5000,pmax=1", "dcqcn"),
];

#[test]
fn a_foreign_peer_sees_the_same_packets_whatever_is_configured() {
    let (ours, theirs) = (fresh_address(), fresh_address());
    let plain = talk(&config(ours, "", "off"), theirs, false);
    // 1 + 1 + 1 + 5 + 20 packets, a datagram, and the answers.
    assert_eq!(plain.sent.len(), 28 + 1 + WRITES as usize);
    assert!(plain.sent.iter().all(|(tos, _, _)| *tos == 0));
    let bytes = |sent: &[Noted]| sent.iter().map(|(_, _, bytes)| bytes.clone()).collect::<Vec<_>>();
    assert_eq!(bytes(&plain.sent), plain.heard);
    drop(plain.device);
    for (link, cc) in CONFIGURED {
        let with = talk(&config(ours, link, cc), theirs, false);
        // Asked until two seconds are over, ever more slowly.
        // Lossless priorities on sockets rest on credits, too.
        let hellos = with.hellos();
        assert!((4..20).contains(&hellos), "{link}, {cc}: {hellos} hellos");
        assert_eq!(counter(&with.device, "foreign_peers"), 1, "{link}, {cc}");
        let with = with.without_hellos();
        assert_eq!(with.sent, plain.sent, "{link}, {cc}");
        assert_eq!(with.heard, plain.heard, "{link}, {cc}");
        let marked = counter(&with.device, "np_ecn_marked_roce_packets");
        assert!(marked >= u64::from(WRITES), "{link}, {cc}: {:?}", moved(&with.device));
        for name in ["np_cnp_sent", "tx_flow_control", "tx_pause", "partners_met"] {
            assert_eq!(counter(&with.device, name), 0, "{link}, {cc}: {name}");
        }
        assert_eq!(with.device.counters().port.dropped_total(), 0, "{:?}", moved(&with.device));
    }
}

/// Cases in which the packets do differ.
#[test]
fn a_peer_with_the_sign_is_greeted_and_one_that_is_told_of_congestion_sees_it() {
    let (ours, theirs) = (fresh_address(), fresh_address());
    let signed = talk(&config(ours, "", "dcqcn"), theirs, true);
    assert!((1..=3).contains(&signed.hellos()), "{} hellos", signed.hellos());
    assert_eq!(met(&signed.device), 0, "it does not answer");
    drop(signed);
    let foreign_cnp = DeviceConfig { foreign_cnp: true, ..config(ours, "", "dcqcn") };
    let told = talk(&foreign_cnp, theirs, false);
    assert_eq!(told.hellos(), 0);
    let cnps = told.count(|(_, _, bytes)| bytes[0] == Opcode::Cnp as u8);
    assert!(cnps > 0 && cnps as u64 == counter(&told.device, "np_cnp_sent"), "{cnps}");
    assert!(told.count(|(tos, _, _)| tos & 0b11 == 0b10) > 0, "packets are marked as ECN-capable");
}

#[test]
fn two_ports_of_ours_greet_and_meet() {
    let link = |link: &str| super::device(fresh_address(), link, "off");
    let (a, b) = (link("ib-credits"), link("ib-credits"));
    let (heard, ports) = (Arc::default(), Arc::default());
    a.observe(Ear { to: b.address(), heard: Arc::clone(&heard), ports }).expect("an observer");
    let (left, right) = RcEnd::pair(&a, &b).expect("connected");
    let source = left.register(&[7; 100]).expect("memory");
    let target = right.register_remote(100).expect("memory");
    left.qp.write(1, source.all(), target.remote(0)).expect("room");
    assert_eq!(left.wait().expect("a completion").status, WcStatus::Success);
    until("they meet", || met(&a) == 1 && met(&b) == 1);
    let sent = std::mem::take(&mut *heard.lock().expect("nobody panics"));
    assert!(Conversation { sent, heard: Vec::new(), device: a }.hellos() > 0);
}
