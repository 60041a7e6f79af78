//! Links with a given rate, buffer and receiver, in virtual time and over sockets.

use qp::wire::mad::hello::Features;
use rnic::cc::Rate;
use rnic::engine::PartnerSetup;
use rnic::link::wire_bytes;
use rnic::sim::{DeviceSetup, Net};
use rnic::{Access, AddressVector, ConnectOptions, Device, DeviceConfig, Error, Mtu, RcEnd, WcStatus};
use rnic_tests::datagram::{QKEY, UdEnd};
use rnic_tests::{counter, fresh_address, open};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longer than anything here takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

fn setup(link: &str) -> DeviceSetup {
    DeviceSetup { link: link.parse().expect("a link"), ..DeviceSetup::default() }
}

fn device_with(net: &Net, link: &str) -> Device {
    net.device_with(&setup(link)).expect("a device")
}

/// Writes `len` bytes from one end to the other and compares them.
fn write(left: &RcEnd, right: &RcEnd, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    let source = left.register(&bytes).expect("memory");
    let target = right.register_remote(len).expect("memory");
    left.qp.write(1, source.all(), target.remote(0)).expect("posted");
    assert_eq!(left.wait().expect("a completion").status, WcStatus::Success);
    assert!(target.to_vec().expect("memory") == bytes);
}

/// Sends `count` datagrams of `len` bytes with this traffic class.
fn flood(from: &UdEnd, to: &UdEnd, count: u64, len: usize, traffic_class: u8) {
    let source = from.pd.register(len, Access::LOCAL_WRITE).expect("memory");
    let way = AddressVector { traffic_class, ..UdEnd::way(&to.device) };
    let ah = from.pd.create_ah(&way).expect("an address handle");
    for id in 0..count {
        from.qp.send_to(id, source.all(), &ah, to.qp.qpn(), QKEY).expect("posted");
    }
    for _ in 0..count {
        assert_eq!(from.sent().status, WcStatus::Success);
    }
}

#[test]
fn a_write_takes_the_time_that_its_packets_take_at_the_rate_of_the_port() {
    let net = Net::new();
    let (a, b) = (net.device(), device_with(&net, "rate=1Gb/s,buffer=1MB"));
    let (left, right) = RcEnd::pair(&a, &b).expect("connected");
    write(&left, &right, 1 << 20);
    // BTH, payload and ICRC of 256 packets; the first has a RETH.
    let wire = 256 * u64::from(wire_bytes(12 + 4096 + 4, false)) + 16;
    let stats = b.link_stats().expect("a link");
    assert_eq!((stats.dequeued_packets, stats.dequeued_bytes, stats.dropped), (256, wire, 0));
    assert_eq!((counter(&b, "link_rx_bytes"), counter(&b, "link_rx_packets")), (wire, 256));
    // 1 us each way.
    let least = Rate::from_gbps(1).time_for(wire) + Duration::from_micros(2);
    let took = net.elapsed();
    assert!((least..least + Duration::from_micros(20)).contains(&took), "{took:?}, at least {least:?}");
    assert!(stats.queue_bytes_max > 100_000 && stats.queue_bytes == 0, "{stats:?}");
    assert_eq!(a.link_stats(), None, "its own link is as it always is");
}

#[test]
fn packets_dropped_by_a_full_queue_are_retransmitted() {
    let net = Net::new();
    let (a, b) = (net.device(), device_with(&net, "rate=1Gb/s,buffer=50KB"));
    let (left, right) = RcEnd::pair(&a, &b).expect("connected");
    write(&left, &right, 1 << 20);
    assert!(counter(&b, "link_rx_dropped") > 0);
    assert!(counter(&b, "link_rx_queue_max") <= 50_000);
}

#[test]
fn marks_arrive_at_the_receiver() {
    let marked = |link: &str, cc: &str, ecn: u8| {
        let net = Net::new();
        let cc = cc.parse().expect("an algorithm");
        let b = net.device_with(&DeviceSetup { cc, ..setup(link) }).expect("a device");
        let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&b));
        flood(&a, &b, 100, 1000, ecn);
        assert!(net.run_until_idle(Duration::from_secs(1)));
        let marked = counter(&b.device, "link_rx_marked");
        assert_eq!(counter(&b.device, "np_ecn_marked_roce_packets"), marked);
        marked
    };
    assert!(marked("rate=1Gb/s,kmin=10000,kmax=20000,pmax=0.5", "off", 2) > 50);
    assert!(marked("rate=1Gb/s", "dctcp", 1) > 50);
    assert_eq!(marked("rate=1Gb/s", "dctcp", 0), 0, "not capable");
    assert_eq!(marked("rate=1Gb/s", "off", 2), 0);
}

#[test]
fn a_slow_receiver_overruns_its_socket_in_virtual_time() {
    let overrun = |datagrams: u64| {
        let net = Net::new();
        net.set_unacked_rate(Some(1_500_000_000));
        let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&device_with(&net, "receiver_rate=100Mb/s")));
        flood(&a, &b, datagrams, 4000, 0);
        assert!(net.run_until_idle(Duration::from_secs(10)));
        let overrun = counter(&b.device, "link_rx_overrun");
        let packets = counter(&b.device, "rx_packets");
        assert_eq!(packets + overrun, datagrams);
        // The last packet was read after the port had taken its time for all packets before it.
        let each = Rate::from_mbps(100).time_for(u64::from(wire_bytes(12 + 8 + 4000 + 4, false)));
        let read = each * u32::try_from(packets - 1).expect("few");
        assert!((read..read + Duration::from_micros(500)).contains(&net.elapsed()), "{:?}", net.elapsed());
        overrun
    };
    assert_eq!(overrun(50), 0);
    // The buffer holds 51 packets; the receiver reads few more meanwhile.
    assert!(overrun(500) > 300);
}

#[test]
fn a_port_that_fills_up_has_its_peers_pause() {
    // The window of one connection arrives at once: more than XOFF, less than the headroom.
    let paused = |features| {
        let net = Net::new();
        let partner = PartnerSetup { features, rate: Rate::from_gbps(1), ..PartnerSetup::default() };
        let link = "rate=1Gb/s,pfc=0,xoff=50KB,headroom=500KB";
        let device = |link| net.device_with(&DeviceSetup { partner: partner.clone(), ..setup(link) });
        let (a, b) = (device("").expect("a device"), device(link).expect("a device"));
        let (left, right) = RcEnd::pair(&a, &b).expect("connected");
        write(&left, &right, 4 << 20);
        assert_eq!(counter(&b, "link_rx_dropped"), 0);
        assert!(counter(&b, "link_tx_pause") > 0);
        counter(&a, "rx_pause")
    };
    assert!(paused(Features::PAUSE) > 0);
    assert_eq!(paused(Features::default()), 0, "it is told only if it would understand");
}

/// Two connected ends whose packets have this traffic class.
fn pair_with(a: &Device, b: &Device, traffic_class: u8) -> (RcEnd, RcEnd) {
    let (left, right) = (RcEnd::new(a).expect("an end"), RcEnd::new(b).expect("an end"));
    let options = ConnectOptions { traffic_class, ..ConnectOptions::default() };
    left.qp.connect(&right.qp.address(), &options).expect("connected");
    right.qp.connect(&left.qp.address(), &options).expect("connected");
    (left, right)
}

/// What a sender did in a pause storm of 300 ms, with a watchdog that notices after 100 ms and forgets after 100: how long a
/// write took, and the ports.
fn write_in_a_storm(action: &str) -> (Duration, Device, Device) {
    let net = Net::new();
    let link = format!("rate=10Gb/s,pfc=3,detection_time=100,restoration_time=100,action={action}");
    let (a, b) = (device_with(&net, &link), device_with(&net, &link));
    let (left, right) = pair_with(&a, &b, 3 << 5);
    // The ports become known to one another.
    write(&left, &right, 1);
    net.run_for(Duration::from_millis(1));
    b.add_fault("rx data pause=3 for 300ms").expect("a rule");
    let start = net.elapsed();
    write(&left, &right, 4 << 20);
    let took = net.elapsed() - start;
    net.run_for(Duration::from_secs(1));
    (took, a, b)
}

#[test]
fn a_pause_storm_stops_one_priority_until_it_is_over() {
    const MS: Duration = Duration::from_millis(1);
    let (took, a, b) = write_in_a_storm("alert");
    assert!((300 * MS..310 * MS).contains(&took), "{took:?}");
    assert_eq!((counter(&a, "pause_storms"), counter(&a, "pause_storm_dropped_pkts")), (1, 0));
    let pauses = counter(&b, "tx_prio3_pause");
    // Every half of 3.36 ms, and the end.
    assert!((170..190).contains(&pauses), "{pauses}");
    assert_eq!(counter(&a, "rx_prio3_pause"), pauses);
    assert_eq!(counter(&a, "rx_prio3_pause_transition"), 1);
    let lasted = counter(&a, "rx_prio3_pause_duration");
    assert!((299_000..301_000).contains(&lasted), "{lasted} us");
    let other = a.counters().priorities()[0];
    assert_eq!((other.pauses.rx_pause, other.pauses.rx_pause_duration), (0, Duration::ZERO));
}

#[test]
fn a_watchdog_forwards_or_drops_what_a_storm_holds_back() {
    const MS: Duration = Duration::from_millis(1);
    let (took, a, _) = write_in_a_storm("forward");
    assert!((100 * MS..110 * MS).contains(&took), "{took:?}: the pause is obeyed until it is a storm");
    assert_eq!((counter(&a, "pause_storms"), counter(&a, "pause_storm_dropped_pkts")), (1, 0));
    let (took, a, _) = write_in_a_storm("drop");
    assert!(took > 400 * MS, "{took:?}: packets go again 100 ms after the storm");
    assert_eq!(counter(&a, "pause_storms"), 1);
    assert!(counter(&a, "pause_storm_dropped_pkts") > 0);
}

#[test]
fn a_storm_of_one_priority_leaves_others_alone() {
    let net = Net::new();
    let (a, b) = (device_with(&net, "rate=10Gb/s,pfc=3"), device_with(&net, "rate=10Gb/s,pfc=3"));
    let (left, right) = pair_with(&a, &b, 0);
    write(&left, &right, 1);
    net.run_for(Duration::from_millis(1));
    b.add_fault("rx data pause=3").expect("a rule");
    let start = net.elapsed();
    write(&left, &right, 1 << 20);
    assert!(net.elapsed() - start < Duration::from_millis(2), "{:?}", net.elapsed() - start);
    assert!(counter(&a, "rx_prio3_pause") > 0 && counter(&a, "pause_stalls") == 0);
}

#[test]
fn counters_of_priorities_say_what_the_queue_did() {
    let net = Net::new();
    let b = device_with(&net, "rate=1Gb/s,buffer=20KB,kmin=0,kmax=0,pmax=1,pfc=3,xoff=10KB,headroom=10KB");
    let (from, to) = (UdEnd::new(&net.device()), UdEnd::new(&b));
    // ECN-capable, of priorities 2 and 3; and 20 KB hold four packets of either.
    flood(&from, &to, 10, 4000, 2 << 5 | 2);
    flood(&from, &to, 10, 4000, 3 << 5 | 2);
    assert!(net.run_until_idle(Duration::from_secs(1)));
    let of = |kind: &str| [2, 3].map(|priority| counter(&b, &format!("rx_prio{priority}_{kind}")));
    let [lossy, lossless] = of("packets");
    assert!((4..10).contains(&lossy) && (4..10).contains(&lossless), "{lossy}, {lossless}");
    assert_eq!(of("discards"), [10 - lossy, 10 - lossless]);
    assert_eq!(of("cong_discard"), [10 - lossy, 0]);
    assert_eq!(of("buf_discard"), [0, 10 - lossless]);
    assert_eq!(of("marked"), [lossy, lossless]);
    let each = u64::from(wire_bytes(12 + 8 + 4000 + 4, false));
    assert_eq!(of("bytes"), [lossy * each, lossless * each]);
    assert_eq!(counter(&b, "link_rx_dropped"), 20 - lossy - lossless);
}

/// Two senders into one lossless port with a stock receive buffer, over sockets, while `spinners` threads want a core.
/// Returns how often the senders were paused.
fn incast_over_sockets(spinners: usize) -> u64 {
    // So slow that two senders fill the port on any machine.
    let link: rnic::link::LinkConfig = "rate=200Mb/s,pfc=0".parse().expect("a link");
    let open = || {
        let recv_buffer = Some(212_992);
        let config = DeviceConfig { link: link.clone(), recv_buffer, ..DeviceConfig::at(fresh_address()) };
        config.open().expect("a device")
    };
    let receiver = open();
    let stop = AtomicBool::new(false);
    let pauses = std::thread::scope(|scope| {
        for _ in 0..spinners {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let senders = [(); 2].map(|()| {
            let sender = open();
            let receiver = &receiver;
            scope.spawn(move || {
                let (left, right) = RcEnd::pair(&sender, receiver).expect("connected");
                // The ports become known to one another.
                write(&left, &right, 1);
                for _ in 0..4 {
                    write(&left, &right, 1 << 20);
                }
                let repeated = left.qp.counters().retransmitted_pkts;
                // An acknowledgement may come later than its timer, however little is lost.
                let lost = left.qp.counters().rcvd_seq_err;
                println!("{repeated} packets repeated, {} pauses", counter(&sender, "rx_prio0_pause"));
                (lost, counter(&sender, "rx_prio0_pause"))
            })
        });
        let done = senders.map(|sender| sender.join().expect("no panic"));
        stop.store(true, Ordering::Relaxed);
        assert!(done.iter().all(|(lost, _)| *lost == 0), "{done:?}");
        done.iter().map(|(_, pauses)| pauses).sum::<u64>()
    });
    assert_eq!(counter(&receiver, "link_rx_dropped"), 0);
    assert_eq!(counter(&receiver, "socket_rx_overrun"), 0);
    pauses
}

#[test]
fn a_lossless_port_on_sockets_pauses_its_peers_and_loses_nothing() {
    // The senders fill the port unless something else has the processors all the time.
    let all = (0..3).map(|_| incast_over_sockets(0)).find(|pauses| *pauses > 0);
    assert!(all.is_some(), "no sender was paused in any of three runs");
}

#[test]
fn a_lossless_port_on_sockets_loses_nothing_when_everybody_waits_for_a_core() {
    incast_over_sockets(2 * std::thread::available_parallelism().map_or(2, usize::from));
}

#[test]
fn a_port_on_sockets_refuses_a_headroom_that_is_too_small() {
    let link = "rate=5Gb/s,pfc=3,xoff=50KB,headroom=30KB".parse().expect("a link");
    let error = DeviceConfig { link, ..DeviceConfig::at(fresh_address()) }.open().expect_err("30 KB");
    assert!(error.to_string().contains("invalid value 30000 for `headroom`"), "{error}");
}

#[test]
fn devices_refuse_links_that_cannot_be() {
    let net = Net::new();
    let refused = |result: rnic::Result<Device>| match result {
        Err(Error::Link(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused(net.device_with(&setup("pfc=3"))).contains("`rate`"));
    let small = DeviceSetup { mtu: Mtu::B256, ..setup("rate=1Gb/s,buffer=400") };
    assert!(net.device_with(&small).is_ok());
    assert!(refused(net.device_with(&DeviceSetup { mtu: Mtu::B512, ..small })).contains("path MTU 512"));
    let link = "kmin=5".parse().expect("a link");
    let config = DeviceConfig { link, ..DeviceConfig::at(fresh_address()) };
    assert!(refused(config.open()).contains("kmin"));
}

#[test]
fn the_same_port_over_sockets() {
    let link = "rate=2Gb/s,buffer=1MB,delay=20us".parse().expect("a link");
    let config = DeviceConfig { link, ..DeviceConfig::at(fresh_address()) };
    let (a, b) = (open(), config.open().expect("a device"));
    let (left, right) = RcEnd::pair(&a, &b).expect("connected");
    write(&left, &right, 3 << 20);
    assert!(counter(&b, "link_rx_packets") >= 768);
    write(&right, &left, 1 << 20);
}

/// A slow receiver leaves packets in its socket buffer, and the kernel drops those that do not fit: every packet is
/// either read or dropped. The background thread reads here; nothing polls.
#[test]
fn a_slow_receiver_overruns_its_socket() {
    let link = "receiver_rate=20Mb/s".parse().expect("a link");
    let slow = DeviceConfig { link, recv_buffer: Some(212_992), ..DeviceConfig::at(fresh_address()) };
    // One by one: the kernel counts a dropped train as one.
    let at = DeviceConfig::at(fresh_address());
    let fast = DeviceConfig { unacked_rate: Some(0), offload: Some(false), ..at };
    let a = UdEnd::new(&fast.open().expect("a device"));
    let b = UdEnd::new(&slow.open().expect("a device"));
    let sent = 400;
    flood(&a, &b, sent, 4000, 0);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (read, lost) = (counter(&b.device, "rx_packets"), counter(&b.device, "socket_rx_overrun"));
        if read + lost == sent {
            assert!(read > 0 && lost > 0, "{read} read, {lost} lost");
            break;
        }
        if Instant::now() > deadline {
            panic!("{read} read and {lost} lost of {sent}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
