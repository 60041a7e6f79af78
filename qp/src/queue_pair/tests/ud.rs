//! Datagrams (IBTA 9.8.3): one packet each, to any destination, received after a network header of 40 bytes.

use super::*;
use crate::wire::headers::{DethFields, GRH_LEN};
use std::sync::Arc;

const DONE: WcStatus = WcStatus::Success;
/// The sender of the received datagrams.
const SENDER: Qpn = Qpn::new(0x77);

fn ud() -> Setup {
    Setup::of(QpType::Ud)
}

fn received(id: u64) -> Note {
    Note::Received(id, DONE)
}

/// A datagram with this Q_Key.
fn datagram(opcode: Opcode, psn: u32, qkey: QKey, data: &[u8]) -> Out {
    let mut out = Out::new(Headers::new(opcode, OURS, Psn::new(psn)), data);
    out.headers.deth = DethFields { qkey, src_qpn: SENDER };
    out
}

fn right(psn: u32, data: &[u8]) -> Out {
    datagram(Opcode::UdSendOnly, psn, QKEY, data)
}

fn way(last: u8) -> Arc<AddressVector> {
    Arc::new(AddressVector::new(Gid::from(Ipv4Addr::new(10, 0, 0, last)), 0))
}

fn to(path: &Arc<AddressVector>, qkey: u32) -> Destination {
    Destination::Datagram { path: Arc::clone(path), qpn: PEERS, qkey: QKey(qkey) }
}

impl Bench {
    fn post_to(&mut self, wr_id: u64, operation: Operation, sges: &[Sge], to: Destination) {
        let wr = SendWr::new(wr_id, operation, sges).flags(SendFlags::SIGNALED).to(to);
        self.qp.post_send(wr, &mut self.host).unwrap();
    }

    /// Feeds a packet with these network-layer properties.
    fn feed_from(&mut self, arrival: &IpHeader, packet: &Out) -> Result<(), PacketDrop> {
        let bytes = packet.to_bytes();
        self.qp.handle_packet(self.now, arrival, &Packet::parse(&bytes).unwrap(), &mut self.host)
    }
}

#[test]
fn a_datagram_lies_behind_its_network_header() {
    let mut b = ud().rts();
    b.post_recv(1, &[local(0, 10), local(100, 200)]);
    b.expect(&right(12345, b"hello"), &NONE);
    let (wc, solicited) = b.host.recvs[0];
    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.flags), (1, DONE, WcOpcode::Recv, WcFlags::GRH));
    assert_eq!((wc.byte_len as usize, wc.src_qpn, wc.qpn), (GRH_LEN + 5, SENDER, OURS));
    assert!(!solicited);
    // Ten bytes of the header are in the first element, thirty in the second.
    assert_eq!(b.host.behind(local(130, 6)), b"hello\0");
    assert_eq!((b.qp.counters().rdma_recvs, b.qp.recvs_outstanding()), (1, 0));
}

/// The PSN of a datagram has no meaning: any is accepted, even the same one twice.
#[test]
fn psns_of_datagrams_are_not_looked_at() {
    let mut b = ud().rts();
    for (id, psn) in [(1, 5), (2, 5), (3, 0xff_ffff), (4, 0)] {
        b.post_recv(id, &[local(0, 100)]);
        b.take(&right(psn, b"x"));
    }
    assert_eq!(b.notes(), [1, 2, 3, 4].map(received));
    assert_eq!((b.qp.counters().duplicate_request, b.qp.counters().out_of_seq_request), (0, 0));
}

#[test]
fn immediate_data_and_solicited_reach_the_completion() {
    let mut b = ud().rts();
    b.post_recv(1, &[local(0, 100)]);
    b.post_recv(2, &[local(0, 100)]);
    let mut with_imm = datagram(Opcode::UdSendOnlyImm, 0, QKEY, b"");
    with_imm.headers.imm = 0x0102_0304;
    with_imm.headers.solicited = true;
    b.take(&with_imm);
    b.take(&right(1, b"x"));
    let [(first, woke), (second, slept)] = b.host.recvs[..] else { panic!() };
    assert_eq!((first.imm(), woke, first.byte_len as usize), (Some(0x0102_0304), true, GRH_LEN));
    assert_eq!(first.flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!((second.imm(), slept), (None, false));
}

/// Rule "the Q_Key must match" (9.6.1.4.1): otherwise the datagram is silently dropped and consumes no receive.
#[test]
fn a_datagram_with_another_qkey_is_dropped() {
    let mut b = ud().rts();
    b.post_recv(1, &[local(0, 100)]);
    for qkey in [0, QKEY.0 ^ 1, QKEY.0 | 1 << 31, QKey::GSI.0, u32::MAX] {
        let wrong = datagram(Opcode::UdSendOnly, 0, QKey(qkey), b"x");
        assert_eq!(b.feed(&wrong), Err(PacketDrop::QKey), "{qkey:#x}");
    }
    assert_eq!((b.notes(), b.sent(), b.qp.recvs_outstanding()), (vec![], NONE, 1));
    // The Q_Key can change while the queue pair runs.
    b.modify(&QpAttr::default().qkey(QKey(7)));
    assert_eq!(b.feed(&right(0, b"x")), Err(PacketDrop::QKey));
    b.take(&datagram(Opcode::UdSendOnly, 0, QKey(7), b"x"));
    assert_eq!(b.notes(), [received(1)]);
}

/// 10.2.5: if the most significant bit of a work request's Q_Key is set, the queue pair's own is used.
#[test]
fn a_controlled_qkey_is_replaced_by_the_queue_pairs_own() {
    let mut b = ud().rts();
    let path = way(2);
    let keys = [0, 5, 0x7fff_ffff, 0x8000_0000, 0x8000_0005, u32::MAX];
    for (id, key) in (0..).zip(keys) {
        b.post_to(id, SEND, &[local(0, 1)], to(&path, key));
    }
    let sent: Vec<_> = b.sent().iter().map(|p| p.headers.deth.qkey.0).collect();
    assert_eq!(sent, [0, 5, 0x7fff_ffff, QKEY.0, QKEY.0, QKEY.0]);
}

#[test]
fn datagrams_name_their_sender_and_request_no_acknowledgement() {
    let mut b = Setup { sq_psn: 0xff_ffff, ..ud() }.rts();
    b.host.bytes(LOCAL)[..3].copy_from_slice(b"abc");
    let path = way(2);
    b.post_to(1, SEND, &[local(0, 1), local(1, 2)], to(&path, 3));
    let imm = Operation::Send { imm: Some(9), invalidate: None };
    let wr = SendWr::new(2, imm, Gather::Inline(b"xy".as_slice().into()))
        .flags(SendFlags::SOLICITED)
        .to(to(&path, 3));
    b.qp.post_send(wr, &mut b.host).unwrap();
    let mut first = Out::new(Headers::new(Opcode::UdSendOnly, PEERS, Psn::new(0xff_ffff)), b"abc");
    first.headers.deth = DethFields { qkey: QKey(3), src_qpn: OURS };
    let mut second = Out::new(Headers { psn: Psn::new(0), ..first.headers }, b"xy");
    second.headers.opcode = Opcode::UdSendOnlyImm;
    (second.headers.imm, second.headers.solicited) = (9, true);
    assert_eq!(b.sent(), [first, second], "no AckReq, PSNs that wrap");
    assert_eq!(b.notes(), [Note::Sent(1, DONE)], "done when sent; the second is not signalled");
    assert_eq!((b.qp.poll_timeout(), b.qp.sends_outstanding()), (None, 0));
    assert_eq!((b.qp.next_psn(), b.qp.unacked_psn()), (Psn::new(1), Psn::new(1)));
    assert_eq!((b.qp.counters().rdma_sends, b.qp.counters().sent_bytes), (2, 5));
}

/// All packets of a train take the same path: those for other destinations wait for the next train.
#[test]
fn each_train_goes_one_way() {
    let mut b = ud().rts();
    let [east, west] = [way(2), way(3)];
    let copy = Arc::new(*east);
    for (id, path) in (0..).zip([&east, &copy, &west, &east]) {
        b.post_to(id, SEND, &[], to(path, 0));
    }
    let flow = Flow { src: IpAddr::from([1; 4]), dst: IpAddr::from([2; 4]), src_port: 1, dst_port: 2 };
    let mut trains = Vec::new();
    while let Some(path) = b.qp.next_destination().map(|(path, _)| Arc::clone(path)) {
        let mut buf = [0; 1000];
        let mut train = Train::new(&mut buf, flow, 64);
        let more = b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
        trains.push((path.dgid, train.packets(), more));
    }
    let expected = [(east.dgid, 2, true), (west.dgid, 1, true), (east.dgid, 1, false)];
    assert_eq!(trains, expected, "two handles with the same address are the same path");
    assert!(!b.qp.wants_to_transmit());
}

/// Slots of one address are different processes: each has its own train.
#[test]
fn each_train_goes_to_one_slot() {
    let mut b = ud().rts();
    let path = way(2);
    for (id, qpn) in (0..).zip([0x01_0002, 0x01_0003, 0x02_0002]) {
        let qpn = Qpn::new(qpn);
        b.post_to(id, SEND, &[], Destination::Datagram { path: Arc::clone(&path), qpn, qkey: QKEY });
    }
    let mut buf = [0; 1000];
    let mut train = Train::new(&mut buf, Bench::flow(), 64);
    assert!(b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host));
    assert_eq!(train.packets(), 2);
    assert_eq!(b.qp.next_destination().map(|(_, qpn)| qpn.slot()), Some(2));
}

/// A train holds as many packets as the budget permits; without budget nothing is sent.
#[test]
fn datagrams_respect_the_budget() {
    let mut b = ud().rts();
    let path = way(2);
    (0..5).for_each(|id| b.post_to(id, SEND, &[], to(&path, 0)));
    let mut budget = 2;
    assert_eq!((b.poll(64, &mut budget).len(), budget), (2, 0));
    assert!(b.qp.wants_to_transmit());
    assert_eq!(b.poll(64, &mut 0), NONE);
    assert_eq!(b.poll(2, &mut 100).len(), 3);
}

/// C10-93.1.1: a message that does not fit into one packet is not sent, and that is not an error.
#[test]
fn a_message_longer_than_the_mtu_completes_without_a_packet() {
    let mut b = ud().rts();
    let path = way(2);
    for (id, len) in [(1, MTU), (2, MTU + 1), (3, 4096)] {
        b.post_to(id, SEND, &[local(0, len)], to(&path, 0));
    }
    // The sum of the lengths exceeds 32 bits.
    b.post_to(4, SEND, &[Sge { length: u32::MAX, ..local(0, 0) }, local(0, MTU + 1)], to(&path, 0));
    b.post_to(5, SEND, &[], to(&path, 0));
    let sent = b.sent();
    assert_eq!(sent.iter().map(|p| p.payload.len()).collect::<Vec<_>>(), [MTU, 0]);
    assert_eq!(psns(&sent), [SQ, SQ + 1]);
    assert_eq!(b.notes(), [1, 2, 3, 4, 5].map(|id| Note::Sent(id, DONE)));
    assert_eq!((b.qp.state(), b.qp.mtu()), (QpState::Rts, Mtu::B256));
}

/// The MTU of the port also limits received datagrams.
#[test]
fn a_datagram_longer_than_the_mtu_is_dropped() {
    let mut b = ud().rts();
    b.post_recv(1, &[local(0, 1000)]);
    assert_eq!(b.feed(&right(0, &[1; MTU + 1])), Err(PacketDrop::Unreliable));
    b.take(&right(0, &[1; MTU]));
    assert_eq!(b.notes(), [received(1)]);
}

/// C9-205: without a receive, or with one too short for network header and data, the datagram is dropped. The
/// receive stays.
#[test]
fn a_datagram_without_room_is_dropped_and_takes_no_receive() {
    let mut b = ud().rts();
    assert_eq!(b.feed(&right(0, b"x")), Err(PacketDrop::NoReceive));
    assert_eq!(b.qp.counters().out_of_buffer, 1);
    for (room, len, fits) in [(GRH_LEN, 0, true), (GRH_LEN - 1, 0, false), (50, 10, true), (50, 11, false)] {
        let mut b = ud().rts();
        b.post_recv(1, &[local(0, room)]);
        b.post_recv(2, &[local(1000, 400)]);
        let outcome = b.feed(&right(0, &vec![1; len]));
        if fits {
            assert_eq!((outcome, b.notes()), (Ok(()), vec![received(1)]));
            continue;
        }
        assert_eq!((outcome, b.notes()), (Err(PacketDrop::Unreliable), vec![]), "{len} into {room}");
        assert_eq!((b.qp.recvs_outstanding(), b.qp.counters().resp_local_length_error), (2, 1));
        assert!(b.host.bytes(LOCAL).iter().all(|b| *b == 0));
        assert_eq!((b.sent(), b.qp.state()), (NONE, QpState::Rts));
    }
    let mut b = ud().rts();
    b.post_recv(1, &[]);
    assert_eq!(b.feed(&right(0, b"")), Err(PacketDrop::Unreliable), "there is always a network header");
}

#[test]
fn a_receive_that_cannot_be_written_ends_the_queue_pair() {
    let mut b = ud().rts();
    b.post_recv(1, &[local(0, 40), Sge { addr: 0, length: 10, lkey: 7 }]);
    b.post_recv(2, &[]);
    b.take(&right(0, b"x"));
    let flushed = Note::Received(2, WcStatus::WrFlushErr);
    assert_eq!(b.notes(), [Note::Received(1, WcStatus::LocProtErr), flushed]);
    assert_eq!((b.host.recvs[0].0.vendor_err, b.qp.state()), (1, QpState::Err));
    let counters = b.qp.counters();
    assert_eq!((counters.rdma_recvs, counters.resp_cqe_error, counters.resp_cqe_flush_error), (0, 1, 1));
}

/// The length of a receive from a shared receive queue is only known after taking it: one that is too short ends
/// with an error.
#[test]
fn datagrams_from_a_shared_receive_queue() {
    let mut b = Setup { has_srq: true, ..ud() }.rts();
    assert_eq!(b.feed(&right(0, b"x")), Err(PacketDrop::NoReceive));
    for (id, len) in [(1, 41), (2, 40), (3, 300)] {
        b.host.shared.push_back(RecvWr { wr_id: id, data: local(id * 1000, len).into() });
    }
    (0..3).for_each(|_| b.take(&right(0, b"x")));
    assert_eq!(b.notes(), [received(1), Note::Received(2, WcStatus::LocLenErr), received(3)]);
    assert_eq!(b.qp.state(), QpState::Rts, "a short receive does not fail a queue pair that shares it");
    let counters = b.qp.counters();
    assert_eq!((counters.rdma_recvs, counters.resp_cqe_error, counters.resp_local_length_error), (2, 1, 1));
    assert_eq!(b.host.behind(local(2000, 40)), [0; 40]);
    assert_eq!(b.host.behind(local(1000, 41))[40], b'x');
    // Its buffers belong to its own protection domain.
    b.host.shared_pd = Some(PdId(99));
    b.host.shared.push_back(RecvWr { wr_id: 4, data: local(0, 100).into() });
    b.take(&right(0, b"x"));
    let expected = [Note::Received(4, WcStatus::LocProtErr), Note::Event(QpEvent::LastWqeReached)];
    assert_eq!((b.notes(), b.qp.state()), (expected.to_vec(), QpState::Err));
}

/// QP1 has the well-known Q_Key, regardless of the one set; its datagrams carry it too (13.5).
#[test]
fn the_general_services_queue_pair_has_its_own_qkey() {
    let mut b = Setup::of(QpType::Gsi).rts();
    b.post_recv(1, &[local(0, 400)]);
    assert_eq!(b.feed(&right(0, b"x")), Err(PacketDrop::QKey));
    b.take(&datagram(Opcode::UdSendOnly, 0, QKey::GSI, &[3; 256]));
    assert_eq!(b.notes(), [received(1)]);
    b.post_to(2, SEND, &[local(0, 256)], to(&way(2), QKey::GSI.0));
    assert_eq!(b.sent()[0].headers.deth.qkey, QKey::GSI);
}

/// A17.4.5.2: for IPv4, the last 20 bytes are the received IPv4 header, the first 20 are zero.
#[test]
fn the_network_header_over_ipv4() {
    let mut b = ud().rts();
    b.post_recv(1, &[local(0, 100)]);
    let arrival = IpHeader {
        src: IpAddr::from([10, 77, 0, 2]),
        dst: IpAddr::from([10, 77, 0, 1]),
        src_port: 0xc001,
        tos: 0x02,
        hop_limit: 63,
        flow_label: 0,
        ident: 0x0304,
    };
    // BTH 12, DETH 8, 5 bytes, 3 of padding, ICRC 4: 32; with UDP and IPv4 60.
    assert_eq!(b.feed_from(&arrival, &right(0, b"hello")), Ok(()));
    let mut expected = vec![0; 20];
    expected.extend([0x45, 0x02, 0, 60, 0x03, 0x04, 0x40, 0, 63, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1]);
    // RFC 1071, by hand: 4502 + 003c + 0304 + 4000 + 3f11 + 0a4d + 0002 + 0a4d + 0001 = dbf0; its complement is 240f.
    expected[30..32].copy_from_slice(&[0x24, 0x0f]);
    assert_eq!(b.host.behind(local(0, 40)), expected);
}

/// A sum that carries twice: 4502 + 003c + ffff + 4000 + 3f11 + 3161 + 0002 + 0a4d + 0001 = 1ffff, folded 10000,
/// folded again 0001; its complement is fffe.
#[test]
fn an_ipv4_header_checksum_that_carries_twice() {
    let mut b = ud().rts();
    b.post_recv(1, &[local(0, 100)]);
    let arrival = IpHeader {
        src: IpAddr::from([0x31, 0x61, 0, 2]),
        dst: IpAddr::from([10, 77, 0, 1]),
        tos: 0x02,
        hop_limit: 63,
        ident: 0xffff,
        ..IpHeader::default()
    };
    assert_eq!(b.feed_from(&arrival, &right(0, b"hello")), Ok(()));
    assert_eq!(b.host.behind(local(30, 2)), [0xff, 0xfe]);
}

/// The sum over an IPv4 header including its checksum is all ones for any header (RFC 1071).
#[test]
fn ipv4_header_checksums_add_up() {
    for i in 0..2000u32 {
        let mut b = ud().rts();
        b.post_recv(1, &[local(0, 400)]);
        let arrival = IpHeader {
            src: IpAddr::from(i.wrapping_mul(0x9e37_79b9).to_be_bytes()),
            dst: IpAddr::from(i.wrapping_mul(0x85eb_ca6b).to_be_bytes()),
            tos: i as u8,
            hop_limit: (i >> 3) as u8,
            ident: i.wrapping_mul(0xc2b2_ae35) as u16,
            ..IpHeader::default()
        };
        assert_eq!(b.feed_from(&arrival, &right(0, &vec![1; i as usize % (MTU + 1)])), Ok(()));
        let header = &b.host.behind(local(0, 40))[20..];
        let words = header.chunks(2).map(|w| u64::from(u16::from_be_bytes([w[0], w[1]])));
        let sum: u64 = words.sum();
        assert_eq!(sum % 0xffff, 0, "{header:02x?}");
    }
}

/// For IPv6 it is the IPv6 header.
#[test]
fn the_network_header_over_ipv6() {
    let mut b = ud().rts();
    b.post_recv(1, &[local(0, 100)]);
    let [src, dst]: [std::net::Ipv6Addr; 2] = ["fd77::2", "fd77::1"].map(|a| a.parse().unwrap());
    let arrival = IpHeader {
        src: src.into(),
        dst: dst.into(),
        src_port: 0xc001,
        tos: 0x1a,
        hop_limit: 64,
        flow_label: 0x6_789a,
        ident: 0,
    };
    assert_eq!(b.feed_from(&arrival, &right(0, &[9; 13])), Ok(()));
    // 12 + 8 + 13 + 3 + 4, and 8 of UDP: 48.
    let mut expected = vec![0x61, 0xa6, 0x78, 0x9a, 0, 48, 17, 64];
    expected.extend(src.octets());
    expected.extend(dst.octets());
    assert_eq!(b.host.behind(local(0, 40)), expected);
    assert_eq!(b.host.behind(local(40, 13)), [9; 13]);
}

#[test]
fn a_datagram_needs_an_address_and_only_sends() {
    let mut b = ud().rts();
    let post = |b: &mut Bench, wr: SendWr| b.qp.post_send(wr, &mut b.host);
    let nowhere = post(&mut b, SendWr::new(1, SEND, Gather::Empty));
    assert_eq!(
        nowhere.unwrap_err().to_string(),
        "a send on UD queue pairs needs an address handle, a remote QPN and a Q_Key"
    );
    let path = way(2);
    let invalidate = Operation::Send { imm: None, invalidate: Some(1) };
    for operation in [WRITE, READ, ADD, invalidate, Operation::LocalInvalidate { key: 1 }] {
        let refused = PostError::Unsupported { operation: operation.name(), qp_type: QpType::Ud };
        let wr = SendWr::new(1, operation, Gather::Empty).to(to(&path, 0));
        assert_eq!(post(&mut b, wr), Err(refused));
    }
    assert_eq!(b.qp.next_destination(), None);
    for opcode in [Opcode::RcSendOnly, Opcode::UcSendOnly, Opcode::RcAcknowledge, Opcode::XrcSendOnly] {
        assert_eq!(b.feed(&request(opcode, 0, b"")), Err(PacketDrop::Service));
    }
}

/// All packets of a train have the same size, except for a shorter last one: a longer datagram starts the next
/// train.
#[test]
fn a_longer_datagram_begins_a_new_train() {
    let mut b = ud().rts();
    let path = way(2);
    for (id, len) in (0..).zip([10, 10, 20, 20, 5, 5]) {
        b.post_to(id, SEND, &[local(0, len)], to(&path, 0));
    }
    let flow = Flow { src: IpAddr::from([1; 4]), dst: IpAddr::from([2; 4]), src_port: 1, dst_port: 2 };
    let mut trains = Vec::new();
    while b.qp.wants_to_transmit() {
        let mut buf = [0; 1000];
        let mut train = Train::new(&mut buf, flow, 64);
        b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
        trains.push(train.packets());
    }
    assert_eq!(trains, [2, 3, 1]);
}
