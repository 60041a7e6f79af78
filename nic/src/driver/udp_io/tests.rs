//! Trains on sockets whose kernel refuses them.

use super::UdpIo;
use crate::net::{RecvBatch, RoceSocket, SocketConfig};
use qp::wire::IpHeader;
use qp::wire::icrc::{self, Flow};
use rnic_core::engine::Departure;
use rnic_core::port::Io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// An address of loopback that is probably unused elsewhere, where trains are refused. GRO would merge arriving
/// packets.
fn socket() -> RoceSocket {
    let ip =
        Ipv4Addr::new(127, rand::random_range(1..=250), rand::random(), rand::random_range(1..=250)).into();
    RoceSocket::bind(&SocketConfig { gso: false, gro: false, ..SocketConfig::new(ip) })
        .expect("a free address")
}

fn departure(ip: IpHeader, len: usize) -> Departure {
    Departure { ip, via: 0, len, segment_size: 100, packets: 3 }
}

/// Packets of 100, 100 and 60 bytes, with ICRCs as parts of a train; a bit of the second is wrong.
fn train(flow: &Flow) -> Vec<u8> {
    let mut train = Vec::new();
    for (ident, len) in [(0, 96), (1, 96), (2, 56)] {
        let covered: Vec<u8> = (0..len).map(|at| at ^ ident as u8).collect();
        train.extend(&covered);
        train.extend(icrc::compute(flow, ident, &covered).to_le_bytes());
    }
    train[150] ^= 0x10;
    train
}

#[test]
fn packets_of_a_train_that_the_kernel_refuses_arrive_one_by_one() {
    let (sender, receiver) = (socket(), socket());
    let ip = IpHeader { src: sender.ip(), src_port: sender.source_port(0), ..IpHeader::to(receiver.ip()) };
    let flow = ip.flow();
    let train = train(&flow);
    let mut udp = UdpIo::new(sender, None);
    assert!(udp.send(&departure(ip, train.len()), &train));

    let (mut batch, mut packets) = (RecvBatch::new(1), Vec::new());
    let started = Instant::now();
    while packets.len() < 3 && started.elapsed() < Duration::from_secs(10) {
        receiver.recv(&mut batch).expect("the socket works");
        packets.extend(batch.datagrams().map(|datagram| datagram.bytes.to_vec()));
    }
    let rights: Vec<_> = packets
        .iter()
        .map(|packet| {
            let (covered, trailer) = packet.split_last_chunk::<4>().expect("an ICRC");
            (packet.len(), icrc::compute(&flow, 0, covered) == u32::from_le_bytes(*trailer))
        })
        .collect();
    assert_eq!(rights, [(100, true), (100, false), (60, true)], "what was wrong stays so");
    assert_eq!((udp.counters().sends, udp.counters().send_failed), (3, 0));
}
