//! Multicast groups, hop limits and flow labels on sockets.

use super::*;
use crate::net::sys::{FlowLabel, flow_label, set_option_bytes};
use nix::sched::{CloneFlags, unshare};
use std::os::fd::AsFd;
use std::process::Command;

/// A group that no other test run on this machine is likely to use.
fn own_group() -> IpAddr {
    Ipv4Addr::new(239, rand::random(), rand::random(), rand::random()).into()
}

/// Receives one datagram from a group: its bytes, segment size and TTL.
fn receive_from(group: &GroupSocket) -> (Vec<u8>, usize, u8) {
    let mut batch = RecvBatch::new(1);
    let start = Instant::now();
    while group.recv(&mut batch).unwrap() == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "nothing arrived at {group:?}");
        std::thread::yield_now();
    }
    let got = batch.datagrams().next().unwrap();
    (got.bytes.to_vec(), got.segment_size, got.ip.hop_limit)
}

#[test]
fn every_member_gets_a_whole_train_once_and_the_sender_too() {
    let (a, b) = v4_pair(|_| ());
    let group = own_group();
    let members = [a.join(group).unwrap(), b.join(group).unwrap()];
    let other = b.join(own_group()).unwrap();
    let train = pattern(14 * 4116 + 100);
    for (socket, hop_limit) in [(&a, 0), (&b, 9)] {
        let way = IpHeader { hop_limit, ..IpHeader::to(group) };
        assert_eq!(socket.send_train(0, &way, 4116, &train).unwrap(), Sent::All);
        // Followed by a single packet, which would be the second of a train that came twice.
        assert_eq!(socket.send_train(0, &IpHeader::to(group), 64, &[7; 64]).unwrap(), Sent::All);
        for member in &members {
            let expected = if hop_limit == 0 { DEFAULT_HOP_LIMIT } else { hop_limit };
            let (bytes, segment, ttl) = receive_from(member);
            assert!(bytes == train, "the bytes differ");
            assert_eq!((segment, ttl), (4116, expected));
            assert_eq!(receive_from(member), (vec![7; 64], 64, DEFAULT_HOP_LIMIT));
        }
    }
    let mut batch = RecvBatch::new(1);
    for socket in [&members[0], &members[1], &other] {
        assert_eq!(socket.recv(&mut batch).unwrap(), 0);
    }
    assert_eq!(a.recv(&mut batch).unwrap(), 0, "what is sent to a group does not come to the address");
    assert_eq!((a.counters().receives, b.counters().receives), (4, 4), "counted with the port's");
}

#[test]
fn what_a_group_loses_is_counted_with_the_port() {
    let (a, b) = v4_pair(|config| config.recv_buffer = 0);
    let group = own_group();
    let member = b.join(group).unwrap();
    for _ in 0..100 {
        assert_eq!(a.send_train(0, &IpHeader::to(group), 1024, &[0; 1024]).unwrap(), Sent::All);
    }
    let mut batch = RecvBatch::new(32);
    let mut kept = 0;
    let start = Instant::now();
    while kept + b.drops() < 100 && start.elapsed() < Duration::from_secs(10) {
        kept += member.recv(&mut batch).unwrap() as u64;
        member.ask_drops();
    }
    assert!((1..50).contains(&kept), "{kept}");
    assert_eq!(b.counters().drops, 100 - kept);
}

#[test]
fn what_is_no_group_of_the_port_cannot_be_joined() {
    let (a, _) = v4_pair(|_| ());
    assert!(matches!(a.join(a.ip()), Err(JoinError::NotAGroup(_))));
    assert!(matches!(a.join("ff0e::1".parse().unwrap()), Err(JoinError::WrongFamily { .. })));
    let mapped = "::ffff:239.1.2.3".parse().unwrap();
    assert_eq!(a.join(mapped).unwrap().group(), IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3)));
}

#[test]
fn hop_limits_are_carried_and_the_default_costs_no_message() {
    let (a, b) = v4_pair(|_| ());
    let v6 = v6_socket(free_port());
    let mut batch = RecvBatch::new(1);
    for hop_limit in [1, 2, 64, 255, 0] {
        for (from, to) in [Some((&a, &b)), v6.as_ref().map(|s| (s, s))].into_iter().flatten() {
            let way = IpHeader { hop_limit, ..IpHeader::to(to.ip()) };
            assert_eq!(from.send_train(0, &way, 64, &[0; 64]).unwrap(), Sent::All);
            receive(to, &mut batch);
            let expected = if hop_limit == 0 { 64 } else { hop_limit };
            assert_eq!(batch.datagrams().next().unwrap().ip.hop_limit, expected);
        }
    }
}

#[test]
fn flow_labels_are_carried_and_none_is_made_up() {
    let Some(socket) = v6_socket(free_port()) else { return };
    let mut batch = RecvBatch::new(1);
    for flow_label in [0, 1, 0xf_ffff, 0x1_2345, 0] {
        let way = IpHeader { flow_label, tos: 0xb9, ..IpHeader::to(socket.ip()) };
        assert_eq!(socket.send_train(0, &way, 100, &[0; 250]).unwrap(), Sent::All);
        receive(&socket, &mut batch);
        let got = batch.datagrams().next().unwrap();
        assert_eq!((got.ip.flow_label, got.ip.tos, got.bytes.len()), (flow_label, 0xb9, 250));
    }
    assert_eq!(socket.counters().flow_labels_refused, 0);
}

/// Runs `test` in a thread with its own network namespace; reports if that is not allowed.
fn in_own_network(test: impl FnOnce() + Send + 'static) {
    let run = || {
        let ready = unshare(CloneFlags::CLONE_NEWNET).is_ok()
            && Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok_and(|s| s.success());
        if !ready || v6_socket(free_port()).is_none() {
            eprintln!("SKIPPED: needs root, iproute2 and IPv6");
            return;
        }
        test();
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Takes a flow label exclusively for one socket.
fn take_exclusively(socket: &UdpSocket, label: u32) {
    // struct in6_flowlabel_req: GET, EXCL, CREATE | EXCL.
    let mut request = [0; 32];
    request[..16].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
    request[16..20].copy_from_slice(&label.to_be_bytes());
    (request[20], request[21]) = (0, 1);
    request[22..24].copy_from_slice(&3u16.to_ne_bytes());
    set_option_bytes(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_FLOWLABEL_MGR, &request).unwrap();
}

#[test]
fn flow_labels_are_leased_where_the_kernel_wants_it() {
    in_own_network(|| {
        let socket = v6_socket(free_port()).unwrap();
        // Once a socket holds a label exclusively, the kernel requires a lease for every other label.
        let rival = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        take_exclusively(&rival, 7);
        let mut batch = RecvBatch::new(1);
        let mut label_of = |flow_label| {
            let way = IpHeader { flow_label, ..IpHeader::to(socket.ip()) };
            assert_eq!(socket.send_train(0, &way, 64, &[0; 64]).unwrap(), Sent::All);
            receive(&socket, &mut batch);
            batch.datagrams().next().unwrap().ip.flow_label
        };
        // More than a socket may lease at once, and the first of them again.
        for label in (100..140).chain([100, 101]) {
            assert_eq!(label_of(label), label);
        }
        assert_eq!(socket.counters().flow_labels_refused, 0);
        for refused in 1..3 {
            assert_eq!(label_of(7), 0, "it is the rival's, so the packet leaves without");
            assert_eq!(socket.counters().flow_labels_refused, refused);
        }
        flow_label(rival.as_fd(), FlowLabel::Return, 7, Ipv6Addr::LOCALHOST).unwrap();
        drop(rival);
        assert_eq!(label_of(8), 8);
    });
}
