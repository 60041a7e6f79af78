//! The sockets against each other, over loopback and over a veth pair.

use super::*;
use qp::wire::IpHeader;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

mod groups;
mod identification;

/// A loopback address that no other test, or test run on this machine, is likely to use.
fn own_address() -> IpAddr {
    Ipv4Addr::new(127, rand::random_range(1..=250), rand::random(), rand::random_range(1..=250)).into()
}

fn config(ip: IpAddr) -> SocketConfig {
    SocketConfig::new(ip)
}

fn v4_pair(change: impl Fn(&mut SocketConfig)) -> (RoceSocket, RoceSocket) {
    let bind = || {
        let mut config = config(own_address());
        change(&mut config);
        RoceSocket::bind(&config).unwrap()
    };
    (bind(), bind())
}

/// Two sockets cannot have the same port of ::1, so the "pair" over IPv6 is one socket that talks to itself.
fn v6_socket(port: u16) -> Option<RoceSocket> {
    let config = SocketConfig { port, ..config(Ipv6Addr::LOCALHOST.into()) };
    match RoceSocket::bind(&config) {
        Err(BindError::NoFamily(_) | BindError::NotLocal(_)) => {
            eprintln!("SKIPPED: this host has no IPv6 loopback");
            None
        }
        bound => Some(bound.unwrap()),
    }
}

/// A port that is free on all addresses, for tests that cannot choose their own address.
fn free_port() -> u16 {
    let probe =
        UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    probe.and_then(|s| s.local_addr()).unwrap().port()
}

/// Receives one nonempty batch.
fn receive(socket: &RoceSocket, batch: &mut RecvBatch) -> usize {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        match socket.recv(batch).unwrap() {
            0 => std::thread::yield_now(),
            n => return n,
        }
    }
    panic!("nothing arrived at {socket:?}");
}

/// A train whose bytes encode their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
fn datagrams_are_stamped_when_they_arrive_if_that_is_asked_for() {
    let (from, to) = v4_pair(|_| {});
    let mut batch = RecvBatch::new(1);
    let send = || assert_eq!(from.send_train(0, &IpHeader::to(to.ip()), 100, &[1; 100]).unwrap(), Sent::All);
    send();
    receive(&to, &mut batch);
    assert_eq!(batch.datagrams().next().unwrap().stamp, None);
    to.stamp_arrivals();
    let since_epoch = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    // The kernel starts stamping on arrival a little later, and until then stamps at the time of the read.
    let stamped_on_arrival = (0..1000).any(|_| {
        let before = since_epoch();
        send();
        let after = since_epoch();
        std::thread::sleep(Duration::from_millis(10));
        receive(&to, &mut batch);
        let stamp = batch.datagrams().next().unwrap().stamp.expect("a stamp");
        (before..=after).contains(&stamp)
    });
    assert!(stamped_on_arrival, "stamps are those of reading");
}

fn train_arrives_whole(from: &RoceSocket, to: &RoceSocket) {
    let (segment, tos) = (4116, 0b0110_1011); // DSCP 26, CE
    let train = pattern(14 * segment + 100);
    assert_eq!(
        from.send_train(0, &IpHeader { tos, ..IpHeader::to(to.ip()) }, segment, &train).unwrap(),
        Sent::All
    );
    let mut batch = RecvBatch::new(4);
    assert_eq!(receive(to, &mut batch), 1);
    let got = batch.datagrams().next().unwrap();
    assert_eq!(got.segment_size, segment);
    assert!(got.bytes == train, "the bytes differ");
    assert_eq!((got.ip.tos, got.ip.hop_limit, got.truncated), (tos, 64, false));
    assert_eq!((got.ip.src, got.ip.src_port), (from.ip(), from.source_port(0)));
    let segments: Vec<_> = got.segments().collect();
    assert_eq!(segments.len(), 15);
    assert_eq!((segments[3].0, segments[3].1), (3, &train[3 * segment..4 * segment]));
    assert_eq!(segments[14].1.len(), 100);
}

#[test]
fn a_train_arrives_in_one_piece_with_its_tos_over_ipv4() {
    let (a, b) = v4_pair(|_| ());
    train_arrives_whole(&a, &b);
}

#[test]
fn a_train_arrives_in_one_piece_with_its_tos_over_ipv6() {
    let Some(socket) = v6_socket(free_port()) else { return };
    train_arrives_whole(&socket, &socket);
}

#[test]
fn every_tos_value_is_carried_as_it_is() {
    let (a, b) = v4_pair(|_| ());
    let v6 = v6_socket(free_port());
    let mut batch = RecvBatch::new(1);
    for tos in 0..=255 {
        for (from, to) in [Some((&a, &b)), v6.as_ref().map(|s| (s, s))].into_iter().flatten() {
            assert_eq!(
                from.send_train(0, &IpHeader { tos, ..IpHeader::to(to.ip()) }, 64, &[tos; 64]).unwrap(),
                Sent::All
            );
            receive(to, &mut batch);
            assert_eq!(batch.datagrams().next().unwrap().ip.tos, tos);
        }
    }
}

#[test]
fn single_datagrams_fill_a_batch_in_order() {
    let (a, b) = v4_pair(|_| ());
    for i in 0..10u8 {
        // Different lengths, which GRO would not merge even where it could.
        assert_eq!(
            a.send_train(0, &IpHeader::to(b.ip()), 4096, &vec![i; 20 + usize::from(i)]).unwrap(),
            Sent::All
        );
    }
    let mut batch = RecvBatch::new(4);
    let mut got = Vec::new();
    while got.len() < 10 {
        assert!(receive(&b, &mut batch) <= 4);
        got.extend(batch.datagrams().map(|d| (d.bytes[0], d.bytes.len(), d.segment_size)));
    }
    let expected: Vec<_> = (0..10u8).map(|i| (i, 20 + usize::from(i), 20 + usize::from(i))).collect();
    assert_eq!(got, expected);
    assert_eq!(b.recv(&mut batch).unwrap(), 0);
    assert_eq!(batch.datagrams().len(), 0, "an empty call leaves an empty batch");
}

#[test]
fn trains_stop_at_64_packets_and_65507_bytes() {
    let (a, b) = v4_pair(|_| ());
    let ok = |segment: usize, len: usize| a.send_train(0, &IpHeader::to(b.ip()), segment, &vec![0; len]);
    assert_eq!(ok(16, 64 * 16).unwrap(), Sent::All);
    assert_eq!(ok(16, 63 * 16 + 1).unwrap(), Sent::All);
    assert!(matches!(ok(16, 64 * 16 + 1), Err(SendError::TrainTooLong { .. })));
    assert_eq!(ok(4116, MAX_TRAIN_BYTES).unwrap(), Sent::All);
    assert!(matches!(ok(4116, MAX_TRAIN_BYTES + 1), Err(SendError::TrainTooLong { .. })));
    assert!(matches!(ok(0, 1), Err(SendError::TrainTooLong { .. })));
    assert!(matches!(ok(70_000, 70_000), Err(SendError::TooBig { .. })));
    let counters = a.counters();
    assert_eq!((counters.sends, counters.send_failed, counters.send_too_big), (3, 3, 1));
}

#[test]
fn without_gso_trains_are_refused_and_single_packets_go() {
    let (a, b) = v4_pair(|config| config.gso = false);
    assert_eq!((a.gso_segments(), a.capabilities().gso), (1, Gso::Refused));
    assert!(matches!(a.send_train(0, &IpHeader::to(b.ip()), 100, &[0; 101]), Err(SendError::GsoRefused)));
    assert_eq!(a.send_train(0, &IpHeader::to(b.ip()), 100, &[7; 100]).unwrap(), Sent::All);
    let mut batch = RecvBatch::new(1);
    receive(&b, &mut batch);
    assert_eq!(batch.datagrams().next().unwrap().bytes, [7; 100]);
}

#[test]
fn without_gro_a_train_arrives_split() {
    let (a, b) = v4_pair(|config| config.gro = false);
    assert!(!b.capabilities().gro);
    let train = pattern(250);
    assert_eq!(
        a.send_train(0, &IpHeader { tos: 3, ..IpHeader::to(b.ip()) }, 100, &train).unwrap(),
        Sent::All
    );
    let mut batch = RecvBatch::new(8);
    let mut got = Vec::new();
    while got.len() < 250 {
        receive(&b, &mut batch);
        for datagram in batch.datagrams() {
            assert_eq!((datagram.segment_size, datagram.ip.tos), (datagram.bytes.len(), 3));
            got.extend_from_slice(datagram.bytes);
        }
    }
    assert_eq!(got, train);
    assert_eq!(b.counters().receives, 3);
}

#[test]
fn a_second_bind_finds_the_address_in_use() {
    let ip = own_address();
    let first = RoceSocket::bind(&config(ip)).unwrap();
    match RoceSocket::bind(&config(ip)) {
        Err(BindError::AddressInUse(address)) => assert_eq!((address.ip(), address.port()), (ip, ROCE_PORT)),
        other => panic!("{other:?}"),
    }
    drop(first);
    RoceSocket::bind(&config(ip)).unwrap();
}

#[test]
fn addresses_that_cannot_be_a_source_are_refused() {
    let bind = |text: &str| RoceSocket::bind(&config(text.parse().unwrap()));
    for wildcard in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "::ffff:0.0.0.0"] {
        assert!(matches!(bind(wildcard), Err(BindError::NotUnicast(_))), "{wildcard}");
    }
    // TEST-NET-3 (RFC 5737), which no host has.
    assert!(matches!(bind("203.0.113.77"), Err(BindError::NotLocal(_))));
}

#[test]
fn the_first_free_loopback_address_is_taken() {
    // A separate port, in case other programs hold some of the addresses.
    let port = free_port();
    let config = SocketConfig { port, gso: false, gro: false, ..config(Ipv4Addr::LOCALHOST.into()) };
    let bind = || RoceSocket::bind_first_free_loopback(&config).unwrap();
    let (first, second) = (bind(), bind());
    assert_eq!(first.ip().to_string(), "127.0.0.1");
    assert_eq!(second.ip().to_string(), "127.0.0.2");
    drop(first);
    assert_eq!(bind().ip().to_string(), "127.0.0.1");
}

#[test]
fn a_wildcard_bind_elsewhere_leaves_no_loopback_address() {
    let elsewhere = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = elsewhere.local_addr().unwrap().port();
    let config = SocketConfig { port, gso: false, gro: false, ..config(Ipv4Addr::LOCALHOST.into()) };
    let error = RoceSocket::bind_first_free_loopback(&config).unwrap_err();
    assert!(matches!(error, BindError::NoFreeLoopback { port: p } if p == port), "{error:?}");
}

#[test]
fn source_ports_are_dynamic_ones_and_really_used() {
    let (a, b) = v4_pair(|config| config.source_ports = 3);
    let mut batch = RecvBatch::new(1);
    let mut ports: Vec<_> = (0..3).map(|via| a.source_port(via)).collect();
    for (via, &port) in ports.iter().enumerate() {
        assert!(SOURCE_PORTS.contains(&port), "{port}");
        assert_eq!(a.send_train(via, &IpHeader::to(b.ip()), 64, &[0; 64]).unwrap(), Sent::All);
        receive(&b, &mut batch);
        assert_eq!(batch.datagrams().next().unwrap().ip.src_port, port);
    }
    assert_eq!(a.source_port(4), ports[1], "taken modulo the number of ports");
    assert_eq!((a.via(7), a.source_ports()), (1, 3));
    ports.dedup();
    assert_eq!(ports.len(), 3);
    assert_eq!(a.raw_fds().count(), 4);
    assert_eq!(b.raw_fds().count(), 2, "the others are bound when needed");
}

#[test]
fn drops_are_counted_when_the_buffer_overflows() {
    // The smallest buffer that the kernel gives.
    let (a, b) = v4_pair(|config| config.recv_buffer = 0);
    for _ in 0..100 {
        assert_eq!(a.send_train(0, &IpHeader::to(b.ip()), 1024, &[0; 1024]).unwrap(), Sent::All);
    }
    let mut batch = RecvBatch::new(32);
    let mut kept = 0;
    let start = Instant::now();
    while kept + b.drops() < 100 && start.elapsed() < Duration::from_secs(10) {
        kept += b.recv(&mut batch).unwrap() as u64;
    }
    assert!((1..50).contains(&kept), "{kept} packets fit {} bytes", b.rcvbuf());
    assert_eq!(b.counters().drops, 100 - kept);
    // The message that comes with the next datagram reports the same count, which is not counted twice.
    assert_eq!(a.send_train(0, &IpHeader::to(b.ip()), 64, &[0; 64]).unwrap(), Sent::All);
    receive(&b, &mut batch);
    assert_eq!(batch.drop_count(), Some(100 - kept as u32));
    assert_eq!((batch.dropped(), b.drops()), (0, 100 - kept));
}

#[test]
fn datagrams_longer_than_the_buffer_are_marked() {
    let (a, b) = v4_pair(|_| ());
    assert_eq!(a.send_train(0, &IpHeader::to(b.ip()), 200, &[5; 200]).unwrap(), Sent::All);
    let mut batch = RecvBatch::with_buffers(2, 128);
    receive(&b, &mut batch);
    let got = batch.datagrams().next().unwrap();
    assert!(got.truncated);
    assert_eq!(got.bytes, [5; 128]);
    assert_eq!(b.counters().receive_truncated, 1);
}

#[test]
fn a_destination_of_the_other_family_is_an_error() {
    let (a, b) = v4_pair(|_| ());
    assert!(matches!(
        a.send_train(0, &IpHeader::to(Ipv6Addr::LOCALHOST.into()), 64, &[0; 64]),
        Err(SendError::WrongFamily { .. })
    ));
    let IpAddr::V4(v4) = b.ip() else { unreachable!() };
    assert_eq!(a.send_train(0, &IpHeader::to(v4.to_ipv6_mapped().into()), 64, &[0; 64]).unwrap(), Sent::All);
}

#[test]
fn a_port_that_nobody_has_costs_nothing_but_the_packet() {
    let (a, b) = v4_pair(|_| ());
    let nobody = own_address();
    for _ in 0..3 {
        // The answer is an ICMP port unreachable, which an unconnected socket may ignore.
        assert_eq!(a.send_train(0, &IpHeader::to(nobody), 64, &[0; 64]).unwrap(), Sent::All);
    }
    let mut batch = RecvBatch::new(1);
    assert_eq!(a.recv(&mut batch).unwrap(), 0);
    assert_eq!(a.send_train(0, &IpHeader::to(b.ip()), 64, &[0; 64]).unwrap(), Sent::All);
    assert_eq!(receive(&b, &mut batch), 1);
}

#[test]
fn the_probe_finds_what_the_sockets_report() {
    let ip = own_address();
    let offloads = probe_offloads(ip, 0).unwrap();
    let capabilities = RoceSocket::bind(&config(ip)).unwrap().capabilities();
    assert_eq!(offloads.gso == Some(true), capabilities.gso == Gso::Works);
    assert_eq!(offloads.gro == Some(true), capabilities.gro);
    assert!(probe_offloads("203.0.113.77".parse().unwrap(), 0).is_err());
}

#[test]
fn a_packet_is_charged_more_than_its_length() {
    let ip = own_address();
    let small = receive_charge(ip, 0, 64).unwrap();
    let large = receive_charge(ip, 0, 4116).unwrap();
    assert!(small > 64 && large > 4116 && large > small, "{small} {large}");
}

#[test]
fn the_backlog_is_that_of_the_waiting_packets() {
    let (a, b) = v4_pair(|_| ());
    assert_eq!(b.receive_backlog().unwrap(), 0);
    assert_eq!(a.send_train(0, &IpHeader::to(b.ip()), 4116, &[0; 4116]).unwrap(), Sent::All);
    let charge = receive_charge(own_address(), 0, 4116).unwrap();
    assert_eq!(b.receive_backlog().unwrap(), charge);
}
