//! Strangers and forgers at real sockets: what they cost a port, and those that it knows.
//!
//! `RNIC_LONG=1` runs each attack for a minute. What an attack costs in time depends on the machine and is only printed;
//! `engine::partner::attacks` judges it in virtual time.

use cc::credits::{self, CreditMessage};
use cc::vl::Vl;
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::hello::{Counting, Features, Hello, Kind, SourcePorts, VERSION};
use qp::wire::{DethFields, Flow, Headers, Opcode, Packet, PauseTimes, UDP_PORT, icrc};
use rnic::cc;
use rnic::{Device, DeviceConfig, Psn, QKey, Qpn, RcEnd, WcStatus};
use rnic_tests::peer::{Peer, connect_local};
use rnic_tests::protocol::{Connection, Opening};
use rnic_tests::{counter, fresh_address, resident};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One attack at a time: each measures.
static ALONE: Mutex<()> = Mutex::new(());

/// What the memory of the victim may grow by, in bytes.
const GROWTH: usize = 2 << 20;

const LEN: usize = 1 << 20;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn is_long() -> bool {
    std::env::var("RNIC_LONG").is_ok_and(|long| long == "1")
}

fn duration() -> Duration {
    Duration::from_secs(if is_long() { 60 } else { 2 })
}

/// A packet from a socket to a port.
fn say(socket: &UdpSocket, to: IpAddr, headers: &Headers, payload: &[u8]) {
    let SocketAddr::V4(from) = socket.local_addr().expect("bound") else { panic!("IPv4") };
    let mut bytes = vec![0; headers.wire_len()];
    headers.emit(&mut bytes, payload.len());
    bytes.extend(payload);
    let flow = Flow { src: (*from.ip()).into(), dst: to, src_port: from.port(), dst_port: UDP_PORT };
    bytes.extend(icrc::compute(&flow, 0, &bytes).to_le_bytes());
    // What the victim's socket has no room for is lost, as anybody's.
    let _ = socket.send_to(&bytes, (to, UDP_PORT));
}

fn hello(proof: u64, port: u16, instance: u64) -> [u8; MAD_LEN] {
    let hello = Hello {
        kind: Kind::Ask,
        transaction_id: instance,
        version: VERSION,
        slot: 0,
        lanes: 1,
        features: Features::CREDITS | Features::PAUSE | Features::CNP,
        instance,
        block: 512,
        counting: Counting::TrainCharge,
        ports: SourcePorts::new(&[port]).expect("one port"),
        token: 7,
        proof,
    };
    let mut mad = [0; MAD_LEN];
    hello.emit(&mut mad);
    mad
}

fn to_qp1() -> Headers {
    Headers {
        deth: DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI },
        ..Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0))
    }
}

/// The 127.66.0.0/16 of these tests.
fn stranger(nth: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x7f42_0000 | (nth & 0xffff).max(1))
}

/// A socket of a stranger, at the port of RoCE.
fn stranger_socket(nth: u32) -> UdpSocket {
    let socket = UdpSocket::bind((stranger(nth), UDP_PORT)).expect("a port of RoCE");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    socket
}

/// The next hello that a socket receives. A port sends others what its link requires, which is passed over.
fn heard(socket: &UdpSocket) -> Hello {
    let mut buffer = [0; 2048];
    loop {
        let (len, _) = socket.recv_from(&mut buffer).expect("a packet");
        let packet = Packet::parse(&buffer[..len]).expect("a packet");
        if let Ok(hello) = Hello::parse(packet.payload()) {
            return hello;
        }
    }
}

/// Waits until a counter of a device reaches a value.
fn wait_for(device: &Device, name: &str, value: u64) {
    let deadline = Instant::now() + PATIENCE;
    while counter(device, name) < value {
        assert!(Instant::now() < deadline, "{name} stays at {}", counter(device, name));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends an attack when its measurement ends or fails: otherwise a failed test would wait for the attacker without end.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A process that serves, a device of this one that knows it, and the speed of WRITEs between them.
struct Scene {
    peer: Peer,
    device: Device,
    end: RcEnd,
    remote: rnic::Remote,
    source: rnic::MemoryRegion,
}

impl Scene {
    fn new(link: &str, cc: &str) -> Self {
        let mut peer = Peer::open(&Opening { link: link.into(), ..Opening::at(fresh_address()) });
        let config = DeviceConfig {
            link: link.parse().expect("a link"),
            cc: cc.parse().expect("an algorithm"),
            ..DeviceConfig::at(fresh_address())
        };
        let device = config.open().expect("a device");
        let (end, _) = connect_local(&device, &mut peer, Connection { timeout: 16, ..Connection::default() });
        let remote = peer.register_zeroes(LEN).place.into();
        let source = rnic_tests::peer::register_pattern(end.pd(), LEN, 1);
        let scene = Self { peer, device, end, remote, source };
        scene.write(Duration::from_millis(200));
        scene
    }

    /// WRITEs for a while; how many a second.
    fn write(&self, time: Duration) -> f64 {
        let (begin, mut writes) = (Instant::now(), 0_u32);
        while begin.elapsed() < time {
            self.end.qp.write(1, self.source.all(), self.remote).expect("room");
            let wc = self.end.cq().wait(Duration::from_secs(30)).expect("a completion");
            let counters: Vec<_> = self.device.counters().iter().filter(|(_, n)| *n > 0).collect();
            assert_eq!(wc.status, WcStatus::Success, "{counters:?}");
            writes += 1;
        }
        f64::from(writes) / begin.elapsed().as_secs_f64()
    }

    /// WRITEs without and with an attack, which `strike` carries out step by step, `rate` steps a second.
    fn endure(&mut self, name: &str, rate: u32, mut strike: impl FnMut(u32) + Send) {
        // What buffers and queues grow to by themselves, they have grown to before.
        self.write(duration() / 4);
        let alone = self.write(duration() / 2);
        let before = resident(self.peer.pid());
        let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
        let beset = std::thread::scope(|scope| {
            let _end = StopOnDrop(&stop);
            scope.spawn(|| {
                let begin = Instant::now();
                for step in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    strike(step);
                    steps.store(u64::from(step), Ordering::Relaxed);
                    let due = begin + Duration::from_secs_f64(f64::from(step) / f64::from(rate));
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                }
            });
            self.write(duration())
        });
        let grown = resident(self.peer.pid()).saturating_sub(before);
        let steps = steps.into_inner();
        println!("{name}: {steps} steps, {alone:.0} WRITEs/s alone, {beset:.0} beset, {grown} bytes grown");
        assert!(steps > 10, "{name}: no attack");
        assert!(grown <= GROWTH, "{name}: {grown} bytes grown");
    }
}

/// A device with link credits, whose background thread runs.
fn with_credits() -> (Device, RcEnd) {
    let link = "ib-credits".parse().expect("a link");
    let device = DeviceConfig { link, ..DeviceConfig::at(fresh_address()) }.open().expect("a device");
    let end = RcEnd::new(&device).expect("an end");
    (device, end)
}

/// Connects an end to queue pair 5 at the address of a socket, which nobody serves. The first WRITE makes the port ask
/// who is there.
fn write_to(end: &RcEnd, socket: &UdpSocket) {
    let to = socket.local_addr().expect("bound").ip();
    let address = rnic::QpAddress { gid: rnic::Gid::from(to).0, qpn: 5, psn: 0, mtu: 1024 };
    let options = rnic::ConnectOptions { timeout: 20, ..Default::default() };
    end.qp.connect(&address, &options).expect("connects");
    end.qp.write(1, rnic::Gather::Empty, rnic::Remote { addr: 0, rkey: 0 }).expect("posted");
}

/// Whoever has not seen the question cannot answer it: not even from the right address.
#[test]
fn an_answer_is_believed_only_if_it_repeats_the_challenge() {
    let (device, end) = with_credits();
    let socket = stranger_socket(0xfd01);
    write_to(&end, &socket);
    let question = heard(&socket);
    assert_eq!((question.kind, question.token, question.proof), (Kind::Ask, 0, 0));
    let answer = |challenge: u64| {
        let mut mad = [0; MAD_LEN];
        let asked = Hello::parse(&hello(0, UDP_PORT, 9)).expect("a hello");
        Hello { kind: Kind::Answer, transaction_id: challenge, ..asked }.emit(&mut mad);
        mad
    };
    for wrong in (0..64).map(|bit| question.transaction_id ^ 1 << bit).chain([0, 1, u64::MAX]) {
        say(&socket, device.address(), &to_qp1(), &answer(wrong));
    }
    let deadline = Instant::now() + PATIENCE;
    while counter(&device, "partners_met") == 0 && counter(&device, "hellos_ignored") < 67 {
        assert!(Instant::now() < deadline, "the answers are not counted");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(counter(&device, "partners_met"), 0, "it was not asked");
    say(&socket, device.address(), &to_qp1(), &answer(question.transaction_id));
    wait_for(&device, "partners_met", 1);
    assert_eq!(counter(&device, "hellos_ignored"), 67);
}

/// A token is worth nothing at another address, nor at another port, nor to another program.
#[test]
fn a_token_is_for_one_program_at_one_address_and_of_one_port() {
    let ports = [with_credits(), with_credits()];
    let sockets = [stranger_socket(0xfd02), stranger_socket(0xfd03)];
    // Starts the background threads.
    ports.iter().for_each(|(_, end)| write_to(end, &sockets[0]));
    ports.iter().for_each(|_| _ = heard(&sockets[0]));
    let ask = |port: usize, socket: usize, instance: u64, proof: u64| {
        say(&sockets[socket], ports[port].0.address(), &to_qp1(), &hello(proof, UDP_PORT, instance));
        loop {
            let hello = heard(&sockets[socket]);
            // The ports repeat their own questions meanwhile.
            if hello.kind == Kind::Answer {
                assert_eq!(hello.transaction_id, instance);
                return hello;
            }
        }
    };
    let token = |port, socket, instance| ask(port, socket, instance, 0).token;
    let mut all = vec![token(0, 0, 1), token(0, 0, 2), token(0, 1, 1), token(1, 0, 1), token(1, 1, 1)];
    assert_eq!(all[0], token(0, 0, 1), "the port remembers nothing, and gives the same again");
    // With the token of another program, of another address or of another port a stranger stays one.
    for (port, socket, proof) in [(0, 0, all[1]), (0, 0, all[2]), (0, 0, all[3]), (1, 1, all[2])] {
        assert_eq!(ask(port, socket, 1, proof).proof, 0, "{proof:#x} is taken for its own");
        assert_eq!(counter(&ports[port].0, "partners_met"), 0, "{proof:#x} is taken for its own");
    }
    // What its own is worth: the port believes it, and proves in turn that it is the one that was asked.
    assert_eq!(ask(0, 0, 1, all[0]).proof, 7);
    assert_eq!((counter(&ports[0].0, "partners_met"), counter(&ports[0].0, "hellos_ignored")), (1, 0));
    all.push(0);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 6, "tokens are equal, or none: {all:x?}");
}

#[test]
fn hellos_from_sixty_thousand_addresses_cost_no_memory() {
    let _alone = ALONE.lock();
    let mut scene = Scene::new("ib-credits", "off");
    let victim = scene.peer.address();
    scene.endure("hellos", 2000, |step| {
        // A port with the sign of rnic (the remainder 23 by 61).
        let Ok(socket) = UdpSocket::bind((stranger(step % 60_000), 49_158 - (49_158 % 61) + 23)) else {
            return;
        };
        let port = socket.local_addr().expect("bound").port();
        say(&socket, victim, &to_qp1(), &hello(u64::from(step), port, step.into()));
    });
    assert_eq!(scene.peer.counter("partners_met"), 1);
    assert!(scene.peer.counter("rx_packets") > 1000);
}

/// Pauses, credits and notifications that come from the partner's address, without its token.
#[test]
fn forgers_at_the_address_of_a_partner_are_not_believed() {
    let _alone = ALONE.lock();
    let mut scene = Scene::new("ethernet:rate=10Gb/s,pfc=0", "dcqcn:preset=laptop");
    let (victim, partner) = (scene.device.address(), scene.peer.address());
    let socket = UdpSocket::bind((partner, 0)).expect("a port at the partner's address");
    let slot = (scene.end.qp.qpn().value() >> 16) as u8;
    let partners = scene.end.qp.query().dest_qp_num.map_or(0, |qpn| (qpn.value() >> 16) as u8);
    let qpn = scene.end.qp.qpn();
    let update = CreditMessage {
        kind: credits::Kind::Grant,
        vl: Vl::new(0).expect("lane 0"),
        want: 0,
        number: 1,
        echo: 0,
        count: 0,
        limit: 0,
    };
    scene.endure("forgers", 1000, |step| {
        let said = |body: &[u8]| [&u64::from(step).to_be_bytes()[..], body].concat();
        let pause = said(&PauseTimes([Some(u16::MAX); 8]).emit());
        say(&socket, victim, &Headers::pause(slot, partners, step as u16), &pause);
        say(&socket, victim, &Headers::flow_control(slot, partners, step as u16), &said(&update.encode()));
        say(&socket, victim, &Headers { token: step.into(), ..Headers::cnp(qpn) }, &[]);
    });
    assert!(counter(&scene.device, "dropped_bad_token") > 30);
    assert_eq!(counter(&scene.device, "rp_cnp_handled"), 0);
}

/// Two hundred ports that have proven their addresses, and nothing else, ask for credit all the time.
#[test]
fn strangers_that_ask_for_credit_take_none_from_a_connection() {
    let _alone = ALONE.lock();
    let mut scene = Scene::new("ib-credits", "off");
    let victim = scene.peer.address();
    let sockets: Vec<_> = (0..200)
        .map(|nth| {
            let socket = UdpSocket::bind((stranger(0xff00 + nth), UDP_PORT)).expect("a port of RoCE");
            socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a time");
            socket
        })
        .collect();
    let slot = scene.end.qp.query().dest_qp_num.map_or(0, |qpn| (qpn.value() >> 16) as u8);
    let mut tokens = Vec::new();
    for (nth, socket) in sockets.iter().enumerate() {
        say(socket, victim, &to_qp1(), &hello(0, UDP_PORT, nth as u64));
        let mut buffer = [0; 2048];
        let (len, _) = socket.recv_from(&mut buffer).expect("an answer");
        let answer = Packet::parse(&buffer[..len]).expect("a packet");
        let token = Hello::parse(answer.payload()).expect("a hello").token;
        say(socket, victim, &to_qp1(), &hello(token, UDP_PORT, nth as u64));
        tokens.push(token);
    }
    let update = CreditMessage {
        kind: credits::Kind::Ask,
        vl: Vl::new(0).expect("lane 0"),
        want: 66,
        number: 1,
        echo: 0,
        count: 0,
        limit: 0,
    };
    scene.endure("credit", 2000, |step| {
        let nth = step as usize % sockets.len();
        let said = [&tokens[nth].to_be_bytes()[..], &update.encode()].concat();
        say(&sockets[nth], victim, &Headers::flow_control(slot, 0, step as u16), &said);
    });
    assert_eq!(scene.peer.counter("partners_met"), 201);
}

/// A REQ of a stranger, for a port where nobody listens, or somebody.
fn request(from: IpAddr, to: IpAddr, nth: u32, port: u16) -> [u8; MAD_LEN] {
    let seed = std::array::from_fn(|at| (nth >> (at % 4 * 8)) as u8);
    let mut endpoint = cm::Endpoint::new(cm::Config::new(nth.into()), seed);
    let path = cm::Path::new(from.into(), to.into(), rnic::Mtu::B1024);
    let mut connect = cm::Connect::new(cm::ServiceId::tcp(port), path, Qpn::new(0x100 + nth));
    connect.addresses = Some(cm::IpCm { src_port: 9, src: from, dst: to });
    let now = time::Instant::EPOCH;
    endpoint.connect(now, &connect).expect("room");
    endpoint.poll_transmit(now).expect("a REQ").mad
}

/// Requests of two hundred addresses, each with a new ID. Afterwards a connection is made at once.
#[test]
fn a_flood_of_requests_costs_no_memory_and_keeps_nobody_out() {
    let _alone = ALONE.lock();
    let mut scene = Scene::new("ethernet", "off");
    // What the attack itself takes from the machine: a socket that nobody reads bears it first.
    let silent = stranger_socket(0xfdff);
    let unread = silent.local_addr().expect("bound").ip();
    let victims = [unread, scene.peer.address(), scene.device.address()];
    let listener = scene.device.listen(7471).expect("a free port");
    let sockets: Vec<_> = (0..200).map(|nth| stranger_socket(0xfe00 + nth)).collect();
    for (victim, name) in
        victims.into_iter().zip(["requests for nobody", "requests for no service", "requests for a service"])
    {
        scene.endure(name, 2000, |step| {
            for nth in step * 10..step * 10 + 10 {
                let socket = &sockets[nth as usize % sockets.len()];
                let from = socket.local_addr().expect("bound").ip();
                say(socket, victim, &to_qp1(), &request(from, victim, nth, 7471));
            }
        });
    }
    let limits = cm::Limits::default();
    let manager = scene.device.connection_manager().expect("a manager");
    let (all, half_open, _) = manager.look(cm::Endpoint::sizes).expect("it lives");
    assert!(all <= limits.half_open && half_open <= limits.half_open, "{all} {half_open}");
    assert!(scene.peer.counter("cm_tx_rej") > 100 && scene.peer.counter("cm_held") > 10);
    assert!(counter(&scene.device, "cm_rx_req") > 1000);

    // The backlog is full of requests of strangers, which make room when they are older than a second.
    std::thread::sleep(limits.half_open_grace);
    let client = DeviceConfig::at(fresh_address()).open().expect("a device");
    let begin = Instant::now();
    let dialling = RcEnd::dial(&client, listener.local()).expect("a request");
    let own = loop {
        let request = listener.accept().expect("a request");
        if request.peer().ip() == client.address() {
            break request;
        }
    };
    let _right = own.accept_end().expect("a connection");
    dialling.wait().expect("a connection");
    println!("connected {:?} after the flood", begin.elapsed());
}
