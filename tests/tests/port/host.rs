//! Links and addresses of a real host that disappear and come back under traffic.

use rnic_tests::Peer;
use rnic_tests::namespace::{Cable, Namespace};
use rnic_tests::peer::{Region, connect, connect_local};
use rnic_tests::protocol::{Command, Connection, Opening, Reply, Traffic, Verb};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection that survives 4 s without connectivity: 8 times 0.5 s.
fn patient() -> Connection {
    Connection { timeout: 17, ..Connection::default() }
}

/// Two connected peers at the ends of a cable.
struct Pair {
    cable: Cable,
    a: Peer,
    b: Peer,
    left: usize,
    right: usize,
    source: Region,
    target: Region,
}

/// Length of a message in bytes.
const SIZE: usize = 64 << 10;

impl Pair {
    /// Reports a skipped test and returns `None` if namespaces are not available.
    fn new(addresses: [IpAddr; 2], opening: &Opening) -> Option<Self> {
        let cable = match Cable::new() {
            Ok(cable) => cable,
            Err(why) => {
                rnic_tests::skipped(&why);
                return None;
            }
        };
        let [mut a, mut b] = [0, 1].map(|end| cable.ends[end].peer_at(addresses[end], opening));
        let (left, right) = connect(&mut a, &mut b, patient());
        let (source, target) = (a.register(SIZE, 1), b.register_zeroes(SIZE));
        Some(Self { cable, a, b, left, right, source, target })
    }

    fn v4() -> Option<Self> {
        Self::new(Cable::V4.map(IpAddr::from), &Opening::default())
    }

    /// Starts writing `count` messages from a to b.
    fn begin(&mut self, count: u64) {
        let verb = Verb::Write(self.target.place, None);
        let traffic = Traffic { verb, region: self.source.id, size: SIZE, count, depth: 8, slots: 1 };
        self.a.tell(&Command::Run(self.left, traffic));
    }

    /// Checks that all messages were written, and that another one can be.
    fn end(&mut self, count: u64) {
        self.a.ran(count);
        self.b.check(self.target.all(), 1, 0);
        self.b.post(self.right, 1, Verb::Read(self.source.place), &[self.target.all()]);
        self.b.succeed(self.right, 1);
    }
}

fn port(peer: &mut Peer) -> (bool, u32, Vec<(String, Option<String>)>) {
    match peer.ask(&Command::Port) {
        Reply::Port(active, mtu, gids) => (active, mtu, gids),
        other => panic!("{other:?}"),
    }
}

fn is_active(peer: &mut Peer) -> bool {
    port(peer).0
}

/// Number of messages that arrived.
fn arrived(peer: &mut Peer) -> u64 {
    peer.counter("rx_write_requests")
}

/// Number of messages that arrived, after the socket's backlog is processed: when the count stops changing.
fn settled(peer: &mut Peer) -> u64 {
    let mut before = arrived(peer);
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(50));
        let now = arrived(peer);
        if now == before {
            break;
        }
        before = now;
    }
    before
}

#[test]
fn an_address_is_taken_away_and_put_back_under_traffic() {
    // Far from done when the address is removed, even if the program that removes it is not scheduled for a while.
    const COUNT: u64 = 10_000;
    let Some(mut pair) = Pair::v4() else { return };
    assert_eq!(port(&mut pair.b), (true, 1024, vec![("::ffff:10.9.0.2".into(), Some("eth0".into()))]));
    pair.begin(COUNT);
    for round in 0..2 {
        pair.cable.ends[1].ip("addr del 10.9.0.2/24 dev eth0");
        assert_eq!(pair.b.events(2), ["PORT_ERR", "GID_CHANGE"], "round {round}");
        assert_eq!(port(&mut pair.b), (false, 1024, vec![]));
        let before = settled(&mut pair.b);
        assert!(before < COUNT, "traffic is interrupted");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(arrived(&mut pair.b), before, "nothing arrives at an address that is not there");
        pair.cable.ends[1].ip("addr add 10.9.0.2/24 dev eth0");
        assert_eq!(pair.b.events(2), ["GID_CHANGE", "PORT_ACTIVE"], "round {round}");
        assert!(is_active(&mut pair.b));
    }
    pair.end(COUNT);
    assert_eq!(pair.a.events_within(1, Duration::ZERO), [""; 0], "nothing happened to the other end");
}

#[test]
fn a_sender_whose_address_is_taken_away_loses_packets_and_does_not_spin() {
    let Some(mut pair) = Pair::v4() else { return };
    pair.cable.ends[0].ip("addr del 10.9.0.1/24 dev eth0");
    assert_eq!(pair.a.events(2), ["PORT_ERR", "GID_CHANGE"]);
    let write = Verb::Write(pair.target.place, None);
    pair.a.post(pair.left, 1, write, &[pair.source.all()]);
    // While the program does not poll, its background thread retransmits in vain.
    idles(&mut pair.a);
    assert!(pair.a.counter("socket_tx_refused") > 0);
    assert!(pair.a.counter("local_ack_timeout_err") > 0);
    pair.cable.ends[0].ip("addr add 10.9.0.1/24 dev eth0");
    assert_eq!(pair.a.events(2), ["GID_CHANGE", "PORT_ACTIVE"]);
    pair.a.succeed(pair.left, 1);
    pair.b.check(pair.target.all(), 1, 0);
}

/// A peer whose program sleeps has something to send, and its background thread sleeps most of the time too: it is seen
/// asleep, which a thread that spins never is, and it wakes no more often than every 100 us, which is a fraction of the
/// time after which it looks whether the kernel has room again. A slow machine wakes it less often.
fn idles(peer: &mut Peer) {
    const LOOKS: u32 = 100;
    let start = Instant::now();
    // A thread gives itself its name.
    let thread = loop {
        match rnic_tests::os::thread_of(peer.pid(), "rnic") {
            Ok(thread) => break thread,
            Err(error) => assert!(start.elapsed() < PATIENCE, "no background thread: {error}"),
        }
    };
    let (begin, before) = (Instant::now(), thread.waits().expect("its count"));
    let mut asleep = 0;
    while asleep < LOOKS {
        assert!(begin.elapsed() < PATIENCE, "the thread spins: seen asleep {asleep} times");
        asleep += u32::from(thread.is_asleep().expect("its state"));
        std::thread::sleep(Duration::from_millis(10));
    }
    let waits = thread.waits().expect("its count") - before;
    let most = begin.elapsed().as_micros() / 100;
    println!("background thread: {waits} waits in {:?}", begin.elapsed());
    assert!(u128::from(waits) < most, "woken {waits} times to do nothing, in a time for {most}");
}

#[test]
fn a_send_buffer_that_stays_full_is_not_waited_for_by_spinning() {
    let Some(mut pair) = Pair::v4() else { return };
    // Packets to hosts that do not answer ARP stay in the send buffer until the kernel gives up on them, after 3 s.
    for nobody in 100..108 {
        let gid = rnic::Gid::from(IpAddr::from([10, 9, 0, nobody])).0;
        let (qp, _) = pair.a.qp();
        pair.a.connect(qp, &rnic::QpAddress { gid, qpn: 5, psn: 0, mtu: 1024 }, patient());
        for id in 0..4 {
            pair.a.post(qp, id, Verb::Write(pair.target.place, None), &[pair.source.all()]);
        }
    }
    idles(&mut pair.a);
    assert!(pair.a.counter("socket_tx_full") > 0);
}

#[test]
fn a_link_goes_down_and_up_under_traffic() {
    const COUNT: u64 = 2000;
    let Some(mut pair) = Pair::v4() else { return };
    pair.begin(COUNT);
    pair.cable.ends[1].ip("link set eth0 down");
    assert_eq!(pair.b.events(1), ["PORT_ERR"]);
    let (active, _, gids) = port(&mut pair.b);
    assert_eq!((active, gids.len()), (false, 1), "the address stays");
    pair.cable.ends[1].ip("link set eth0 up");
    assert_eq!(pair.b.events(1), ["PORT_ACTIVE"]);
    pair.end(COUNT);
}

#[test]
fn a_port_whose_cable_ends_nowhere_is_down() {
    let Some(mut pair) = Pair::v4() else { return };
    pair.cable.ends[1].ip("link set eth0 down");
    // The interface is up, but has no carrier.
    assert_eq!(pair.a.events(1), ["PORT_ERR"]);
    assert!(!is_active(&mut pair.a));
    pair.cable.ends[1].ip("link set eth0 up");
    assert_eq!(pair.a.events(1), ["PORT_ACTIVE"]);
    assert!(is_active(&mut pair.a));
}

#[test]
fn a_link_that_goes_down_takes_ipv6_addresses_along() {
    const COUNT: u64 = 500;
    let Some(mut pair) = Pair::new(Cable::V6.map(IpAddr::from), &Opening::default()) else { return };
    pair.begin(COUNT);
    pair.cable.ends[1].ip("link set eth0 down");
    let mut told = pair.b.events(2);
    told.sort();
    assert_eq!(told, ["GID_CHANGE", "PORT_ERR"]);
    pair.cable.ends[1].ip("link set eth0 up");
    assert!(!is_active(&mut pair.b), "the address is missing");
    pair.cable.ends[1].ip("addr add fd09::2/64 dev eth0 nodad");
    assert_eq!(pair.b.events(2), ["GID_CHANGE", "PORT_ACTIVE"]);
    pair.end(COUNT);
}

#[test]
fn the_loopback_interface_goes_down_and_up() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return rnic_tests::skipped(&why),
    };
    let at = |last| namespace.peer_at(IpAddr::from([127, 0, 0, last]), &Opening::default());
    let (mut a, mut b) = (at(1), at(2));
    let (left, _) = connect(&mut a, &mut b, patient());
    let (source, target) = (a.register(SIZE, 1), b.register_zeroes(SIZE));
    // An MTU of 65536 bytes carries the largest path MTU.
    assert_eq!(port(&mut a), (true, 4096, vec![("::ffff:127.0.0.1".into(), Some("lo".into()))]));
    namespace.ip("link set lo down");
    for peer in [&mut a, &mut b] {
        assert_eq!(peer.events(1), ["PORT_ERR"]);
        assert!(!is_active(peer));
    }
    a.post(left, 1, Verb::Write(target.place, None), &[source.all()]);
    namespace.ip("link set lo up");
    for peer in [&mut a, &mut b] {
        assert_eq!(peer.events(1), ["PORT_ACTIVE"]);
    }
    a.succeed(left, 1);
    b.check(target.all(), 1, 0);
}

#[test]
fn a_device_may_be_opened_while_its_link_is_down() {
    let cable = match Cable::new() {
        Ok(cable) => cable,
        Err(why) => return rnic_tests::skipped(&why),
    };
    cable.ends[0].ip("link set eth0 down");
    let mut peer = cable.ends[0].peer_at(Cable::V4[0].into(), &Opening::default());
    assert!(!is_active(&mut peer));
    assert_eq!(peer.events_within(1, Duration::ZERO), [""; 0], "that is no news");
    cable.ends[0].ip("link set eth0 up");
    assert_eq!(peer.events(1), ["PORT_ACTIVE"]);
    assert!(is_active(&mut peer));
}

#[test]
fn the_path_mtu_of_new_connections_follows_the_interface() {
    let Some(mut pair) = Pair::v4() else { return };
    let mtus = |pair: &mut Pair| [port(&mut pair.a).1, port(&mut pair.b).1];
    assert_eq!(mtus(&mut pair), [1024, 1024]);
    let set = |pair: &Pair, mtu: u32| {
        for end in &pair.cable.ends {
            end.ip(&format!("link set eth0 mtu {mtu}"));
        }
    };
    set(&pair, 9000);
    assert_eq!(mtus(&mut pair), [4096, 4096]);
    let packets = |pair: &mut Pair, left| {
        let before = pair.a.counter("sent_pkts");
        pair.a.post(left, 1, Verb::Write(pair.target.place, None), &[pair.source.all()]);
        pair.a.succeed(left, 1);
        pair.a.counter("sent_pkts") - before
    };
    let old = pair.left;
    assert_eq!(packets(&mut pair, old), 64, "a connection keeps its path MTU");
    let (new, _) = connect(&mut pair.a, &mut pair.b, patient());
    assert_eq!(packets(&mut pair, new), 16);
    // Connections with a path MTU above what the link now carries lose their packets; new connections use a smaller
    // one.
    set(&pair, 1500);
    assert_eq!(mtus(&mut pair), [1024, 1024]);
    let (again, _) = connect(&mut pair.a, &mut pair.b, patient());
    assert_eq!(packets(&mut pair, again), 64);
    let refused = pair.a.counter("socket_tx_refused");
    pair.a.post(new, 2, Verb::Write(pair.target.place, None), &[pair.source.all()]);
    assert_eq!(pair.a.wait(new, 1)[0].status, "RETRY_EXC_ERR");
    assert!(pair.a.counter("socket_tx_refused") > refused);
    assert_eq!(pair.a.events_within(1, Duration::ZERO), [""; 0], "an MTU is no event");
}

#[test]
fn a_program_may_bound_the_path_mtu() {
    let opening = Opening { mtu: Some(512), ..Opening::default() };
    let Some(mut pair) = Pair::new(Cable::V4.map(IpAddr::from), &opening) else { return };
    assert_eq!(port(&mut pair.a).1, 512);
    pair.cable.ends[0].ip("link set eth0 mtu 9000");
    assert_eq!(port(&mut pair.a).1, 512, "as the program says");
    pair.cable.ends[0].ip("link set eth0 mtu 400");
    assert_eq!(port(&mut pair.a).1, 256, "as the interface says");
}

#[test]
fn a_device_fails_when_its_socket_is_closed_behind_its_back() {
    let device = rnic_tests::open();
    let mut peer = Peer::start();
    let (end, far) = connect_local(&device, &mut peer, Connection::brief());
    let region = peer.register_zeroes(64);
    peer.recv(far, 7, &[region.all()]);
    peer.ask(&Command::CloseSocket);
    assert_eq!(peer.events(1), ["DEVICE_FATAL"]);
    assert_eq!(peer.state(far), "ERR");
    let flushed = peer.wait(far, 1);
    assert_eq!((flushed[0].wr_id, flushed[0].status.as_str()), (7, "WR_FLUSH_ERR"));
    assert!(!is_active(&mut peer));
    let refused = peer.try_ask(&Command::CreateQp(Default::default()));
    assert!(matches!(&refused, Reply::Failed(why) if why.contains("the device has failed")), "{refused:?}");
    // This side reaches no peer until the device is opened again.
    end.qp.write(1, rnic::Gather::Empty, region.place.into()).expect("posted");
    assert_eq!(end.wait().expect("a completion").status, rnic::WcStatus::RetryExcErr);
    let address = peer.address();
    peer.ask(&Command::Close);
    peer.reopen(&Opening::at(address));
    let (end, _) = connect_local(&device, &mut peer, Connection::default());
    let region = peer.register_zeroes(64);
    end.qp.write(1, rnic::Gather::Empty, region.place.into()).expect("posted");
    assert_eq!(end.wait().expect("a completion").status, rnic::WcStatus::Success);
}
