//! Datagrams over real sockets: loopback, and private network namespaces.

use rnic::net::JoinError;
use rnic::{Access, AddressVector, Device, DeviceConfig, Error, Gather, Gid, MemoryRegion, QKey, WcStatus};
use rnic_tests::datagram::{QKEY, UdEnd};
use rnic_tests::namespace::{ADDRESSES, in_own_network};
use rnic_tests::{counter, open};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// A group that no other test uses, derived from the process and the test's number.
fn group(number: u8) -> Gid {
    let [.., high, low] = std::process::id().to_be_bytes();
    Gid::from(Ipv4Addr::new(239, high, low, number))
}

/// Waits until `condition` holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn datagrams_and_their_answers_over_loopback() {
    let (a, b) = (UdEnd::new(&open()), UdEnd::new(&open()));
    a.post(1);
    b.post(1);
    let way = AddressVector { traffic_class: 0b0110_1000, hop_limit: 33, ..UdEnd::way(&b.device) };
    a.send_along(1, b"over a socket", &way, b.qp.qpn(), QKEY);
    assert_eq!(a.sent().status, WcStatus::Success);
    let got = b.receive();
    assert_eq!(got.data, b"over a socket");
    let (IpAddr::V4(from), IpAddr::V4(to)) = (a.device.address(), b.device.address()) else {
        panic!("both are loopback addresses")
    };
    assert_eq!((got.grh[21], got.grh[28]), (0b0110_1000, 33), "TOS and TTL");
    assert_eq!((&got.grh[32..36], &got.grh[36..40]), (&from.octets()[..], &to.octets()[..]));
    let back = b.pd.create_ah_from_wc(&got.wc, &got.grh).expect("an address handle");
    b.qp.send_to(2, Gather::Inline(b"back".as_slice().into()), &back, got.wc.src_qpn, QKEY).expect("posted");
    let answer = a.receive();
    assert_eq!(
        (answer.data.as_slice(), answer.wc.src_qpn, answer.grh[21]),
        (&b"back"[..], b.qp.qpn(), 0b0110_1000)
    );
}

#[test]
fn a_wrong_qkey_is_counted_over_loopback() {
    let (a, b) = (UdEnd::new(&open()), UdEnd::new(&open()));
    b.post(1);
    a.send_along(1, b"x", &UdEnd::way(&b.device), b.qp.qpn(), QKey(1));
    until("the drop", || counter(&b.device, "dropped_bad_qkey") == 1);
    a.send(2, b"y", &b);
    assert_eq!(b.receive().data, b"y");
    assert_eq!(counter(&b.device, "dropped_bad_qkey"), 1);
}

#[test]
fn a_device_sends_to_itself_over_loopback() {
    let end = UdEnd::new(&open());
    end.post(1);
    end.send(1, b"echo", &end);
    assert_eq!(end.receive().data, b"echo");
}

/// A NIC sends posted work at once. Datagrams posted to several peers are not lost when the program then exits.
#[test]
fn posted_work_is_sent_before_its_queue_pair_is_destroyed() {
    let hears: Vec<_> = (0..3).map(|_| UdEnd::new(&open())).collect();
    let device = open();
    for round in 0..100 {
        let end = UdEnd::new(&device);
        hears.iter().for_each(|to| to.post(1));
        let ways: Vec<_> = hears.iter().map(|to| end.ah(to.device.gid())).collect();
        for (to, way) in hears.iter().zip(&ways) {
            let bye = Gather::Inline(b"bye".as_slice().into());
            end.qp.send_to(1, bye, way, to.qp.qpn(), QKEY).expect("posted");
        }
        drop(end);
        for to in &hears {
            assert_eq!(to.receive().data, b"bye", "round {round}");
        }
    }
}

#[test]
fn many_datagrams_in_trains_arrive_in_order() {
    let (a, b) = (UdEnd::new(&open()), UdEnd::new(&open()));
    b.post(1000);
    let source = a.pd.register(4096, Access::LOCAL_WRITE).expect("memory");
    let ah = a.ah(b.device.gid());
    // It fits into the smallest buffer of a host, and so nothing is lost.
    for round in 0..10u64 {
        for id in 0..30 {
            a.qp.send_to(round * 30 + id, source.all(), &ah, b.qp.qpn(), QKEY).expect("room");
        }
        for id in 0..30 {
            assert_eq!(a.sent().wr_id, round * 30 + id);
            assert_eq!(b.receive().wc.wr_id, round * 30 + id);
        }
    }
    let sends = a.device.counters().socket.expect("sockets").sends;
    assert!(sends < 300, "{sends} system calls for 300 datagrams");
}

/// Three ports, two queue pairs on the first; each datagram reaches each member once.
fn group_on(devices: [Device; 3], group: Gid) {
    let ends = devices.each_ref().map(UdEnd::new);
    let second_of_0 = UdEnd::new(&devices[0]);
    let members = [&ends[0], &second_of_0, &ends[1], &ends[2]];
    for end in members {
        end.post(100);
        end.qp.attach_mcast(group).expect("attached");
    }
    for (number, sender) in ends.iter().enumerate() {
        for id in 0..10u8 {
            sender.send_to_group(u64::from(id), &[number as u8, id], group);
        }
        for member in members {
            for id in 0..10u8 {
                let got = member.receive();
                assert_eq!(got.data, [number as u8, id]);
                assert_eq!(got.wc.src_qpn, sender.qp.qpn());
            }
        }
    }
    // Duplicates would have arrived by now: each sender sends a last message after all others.
    for sender in &ends {
        sender.send_to_group(99, b"last", group);
        for member in members {
            assert_eq!(member.receive().data, b"last");
        }
    }
    // A member that left receives nothing, and the others do.
    ends[1].qp.detach_mcast(group).expect("detached");
    ends[0].send_to_group(100, b"after", group);
    assert_eq!(ends[2].receive().data, b"after");
    assert_eq!(second_of_0.receive().data, b"after");
    ends[0].send(101, b"direct", &ends[1]);
    assert_eq!(ends[1].receive().data, b"direct");
    for device in &devices {
        assert_eq!(device.counters().port.dropped_total(), 0);
        assert_eq!(counter(device, "socket_rx_overrun"), 0);
    }
}

#[test]
fn a_group_of_three_ports_over_loopback() {
    group_on([open(), open(), open()], group(1));
}

#[test]
fn groups_keep_apart() {
    let (a, b) = (UdEnd::new(&open()), UdEnd::new(&open()));
    for end in [&a, &b] {
        end.post(10);
    }
    a.qp.attach_mcast(group(2)).expect("attached");
    b.qp.attach_mcast(group(3)).expect("attached");
    b.qp.attach_mcast(group(2)).expect("attached");
    a.send_to_group(1, b"to 3", group(3));
    a.send_to_group(2, b"to 2", group(2));
    assert_eq!(a.receive().data, b"to 2");
    let mut got = [b.receive(), b.receive()].map(|m| (m.data, m.grh[39]));
    got.sort_unstable();
    assert_eq!(got, [(b"to 2".to_vec(), 2), (b"to 3".to_vec(), 3)]);
    assert!(a.drain().is_empty());
}

#[test]
fn a_group_reaches_a_program_that_does_not_poll() {
    let (a, b) = (UdEnd::new(&open()), UdEnd::new(&open()));
    let memory: MemoryRegion = b.pd.register(64, Access::LOCAL_WRITE).expect("memory");
    b.qp.recv(1, memory.all()).expect("room");
    // By now, the thread that serves the port sleeps, and knows no group yet.
    std::thread::sleep(Duration::from_millis(20));
    b.qp.attach_mcast(group(4)).expect("attached");
    std::thread::sleep(Duration::from_millis(20));
    a.send_to_group(1, b"awake", group(4));
    until("the message in memory", || memory.to_vec().expect("memory")[40..45] == *b"awake");
}

#[test]
fn a_group_address_in_use_by_another_socket_cannot_be_joined() {
    let IpAddr::V4(address) = group(5).ip() else { panic!("an IPv4 group") };
    let keeper = std::net::UdpSocket::bind((address, 4791)).expect("a socket");
    let end = UdEnd::new(&open());
    match end.qp.attach_mcast(group(5)) {
        Err(Error::Join(error @ JoinError::InUse { .. })) => assert!(error.to_string().contains("4791")),
        other => panic!("{other:?}"),
    }
    drop(keeper);
    // A child that another test has just forked may hold the socket until it executes its program.
    let attached = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        end.qp.attach_mcast(group(5)).ok()
    });
    attached.expect("the group is free, and the queue pair was not half attached");
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2");
    assert!(status.success(), "ip {arguments}");
}

fn at(address: Ipv6Addr) -> Device {
    DeviceConfig::at(address.into()).open().expect("a device")
}

#[test]
fn ipv6_carries_hop_limit_and_flow_label() {
    in_own_network(|| {
        let (a, b) = (UdEnd::new(&at(ADDRESSES[0])), UdEnd::new(&at(ADDRESSES[1])));
        a.post(2);
        b.post(2);
        let way = AddressVector {
            traffic_class: 0xb8,
            hop_limit: 33,
            flow_label: 0xa_bcde,
            ..UdEnd::way(&b.device)
        };
        a.send_along(1, b"six", &way, b.qp.qpn(), QKEY);
        let got = b.receive();
        assert_eq!(got.grh[..4], [0x6b, 0x8a, 0xbc, 0xde], "version, traffic class and flow label");
        // UDP, BTH, DETH, three bytes and one of padding, ICRC; UDP; hop limit.
        assert_eq!(got.grh[4..8], [0, 8 + 12 + 8 + 4 + 4, 17, 33]);
        assert_eq!(
            (&got.grh[8..24], &got.grh[24..40]),
            (&ADDRESSES[0].octets()[..], &ADDRESSES[1].octets()[..])
        );
        let back = b.pd.create_ah_from_wc(&got.wc, &got.grh).expect("an address handle").attr();
        assert_eq!((back.dgid, back.flow_label), (a.device.gid(), 0xa_bcde));
        b.send_along(2, b"and back", &back, a.qp.qpn(), QKEY);
        assert_eq!(a.receive().grh[..4], got.grh[..4]);
        // Without a label, the kernel does not generate one.
        a.send(3, b"plain", &b);
        assert_eq!(b.receive().grh[..4], [0x60, 0, 0, 0]);
    });
}

#[test]
fn ipv6_groups_on_loopback_want_a_route() {
    in_own_network(|| {
        let devices = [at(ADDRESSES[0]), at(ADDRESSES[1]), at(Ipv6Addr::LOCALHOST)];
        let wide = Gid::from("ff0e::4791:1".parse::<Ipv6Addr>().expect("an address"));
        let end = UdEnd::new(&devices[0]);
        let remedy = match end.qp.attach_mcast(wide) {
            Err(Error::Join(JoinError::NoRoute { remedy, .. })) => remedy,
            other => panic!("{other:?}"),
        };
        ip(remedy.strip_prefix("ip ").expect("a command"));
        end.qp.attach_mcast(wide).expect("attached");
        end.qp.detach_mcast(wide).expect("detached");
        group_on(devices.clone(), wide);
        // Link-local, where a group also has an interface.
        group_on(devices, Gid::from("ff02::4791:1".parse::<Ipv6Addr>().expect("an address")));
    });
}

#[test]
fn a_group_is_one_of_each_interface() {
    in_own_network(|| {
        ip("link add left type veth peer name right");
        ip("addr add 10.9.0.1/24 dev left");
        ip("link set left up");
        ip("link set right up");
        let at = |address: [u8; 4]| DeviceConfig::at(address.into()).open().expect("a device");
        let ends =
            [at([10, 9, 0, 1]), at([127, 0, 0, 1]), at([127, 0, 0, 2])].map(|device| UdEnd::new(&device));
        for end in &ends {
            end.post(4);
            end.qp.attach_mcast(group(6)).expect("attached");
        }
        // The sender's copy is delivered inside the host; nothing arrives over the cable.
        ends[0].send_to_group(1, b"cable", group(6));
        assert_eq!(ends[0].receive().data, b"cable");
        // The first message that the others receive comes from their own interface.
        ends[1].send_to_group(2, b"loopback", group(6));
        assert_eq!(
            (ends[1].receive().data, ends[2].receive().data),
            (b"loopback".to_vec(), b"loopback".to_vec())
        );
        assert!(ends[0].drain().is_empty());
    });
}
