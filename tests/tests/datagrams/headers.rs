//! The network headers that a receiver sees, and the path back to the sender.

use rnic::sim::Net;
use rnic::{
    AddressVector, Error, Gather, Gid, Operation, QKey, SendFlags, SendWr, WcFlags, WcOpcode, WorkCompletion,
};
use rnic_tests::datagram::{GRH, QKEY, UdEnd};
use std::net::Ipv6Addr;

/// The one's complement sum over a header including its checksum: all ones if the checksum is right (RFC 1071).
fn checksum(header: &[u8]) -> u32 {
    let sum: u32 = header.chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn a_datagram_arrives_behind_its_network_header() {
    let net = Net::new();
    let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
    b.post(1);
    let way = AddressVector { traffic_class: 0b0110_1010, hop_limit: 9, ..UdEnd::way(&b.device) };
    let ah = a.pd.create_ah(&way).expect("an address handle");
    let operation = Operation::Send { imm: Some(0xdead_0001), invalidate: None };
    let wr = SendWr::new(5, operation, Gather::Inline(b"hello".as_slice().into()));
    a.qp.post_send(wr.flags(SendFlags::SIGNALED).to(ah.datagram(b.qp.qpn(), QKEY))).expect("posted");
    assert_eq!(a.sent().wr_id, 5);
    let got = b.receive();
    assert_eq!(got.data, b"hello");
    let wc = got.wc;
    assert_eq!((wc.opcode, wc.byte_len, wc.imm()), (WcOpcode::Recv, 45, Some(0xdead_0001)));
    assert_eq!((wc.flags, wc.src_qpn), (WcFlags::GRH | WcFlags::WITH_IMM, a.qp.qpn()));
    assert_eq!(wc.qpn, b.qp.qpn());
    let (unused, ip) = got.grh.split_at(20);
    assert_eq!(unused, [0; 20]);
    assert_eq!((ip[0], ip[1]), (0x45, 0b0110_1010), "version and length, DSCP 26 and ECT(0)");
    // IPv4, UDP, BTH, DETH, immediate data, five bytes and three of padding, ICRC.
    assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), 20 + 8 + 12 + 8 + 4 + 8 + 4);
    assert_eq!(ip[4..8], [0, 0, 0x40, 0], "identification 0, don't fragment");
    assert_eq!((ip[8], ip[9]), (9, 17), "hop limit and protocol");
    assert_eq!(checksum(ip), 0xffff);
    assert_eq!((&ip[12..16], &ip[16..20]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
}

/// The hop limit with which a datagram arrives that was sent with `given`.
fn hops(given: u8) -> u8 {
    let net = Net::new();
    let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
    b.post(1);
    let way = AddressVector { hop_limit: given, ..UdEnd::way(&b.device) };
    a.send_along(1, b"x", &way, b.qp.qpn(), QKEY);
    b.receive().grh[28]
}

#[test]
fn hop_limits_that_programs_leave_unset_lose_nothing() {
    // 0 means "unset", and 1 is what the examples of libibverbs set, however many routers are in between.
    assert_eq!([0, 1, 2, 64, 255].map(hops), [64, 64, 2, 64, 255]);
}

#[test]
fn an_answer_finds_its_way_back() {
    let net = Net::new();
    let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
    a.post(1);
    b.post(1);
    // DSCP 46 and "congestion experienced".
    let way = AddressVector { traffic_class: 46 << 2 | 0b11, hop_limit: 200, ..UdEnd::way(&b.device) };
    a.send_along(1, b"question", &way, b.qp.qpn(), QKEY);
    let question = b.receive();
    let back = b.pd.create_ah_from_wc(&question.wc, &question.grh).expect("an address handle");
    let attr = back.attr();
    assert_eq!((attr.dgid, attr.sgid_index, attr.port_num), (a.device.gid(), 0, 1));
    assert_eq!((attr.traffic_class, attr.hop_limit), (46 << 2 | 0b10, 200), "ECN-capable, not congested");
    b.qp.send_to(2, Gather::Inline(b"answer".as_slice().into()), &back, question.wc.src_qpn, QKEY)
        .expect("posted");
    let answer = a.receive();
    assert_eq!((answer.data.as_slice(), answer.wc.src_qpn), (b"answer".as_slice(), b.qp.qpn()));
    assert_eq!(answer.grh[21], 46 << 2 | 0b10);
}

#[test]
fn a_datagram_from_far_away_is_answered_with_hops_to_spare() {
    let net = Net::new();
    let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
    b.post(1);
    let way = AddressVector { hop_limit: 3, ..UdEnd::way(&b.device) };
    a.send_along(1, b"x", &way, b.qp.qpn(), QKEY);
    let got = b.receive();
    assert_eq!(got.grh[28], 3);
    assert_eq!(b.pd.create_ah_from_wc(&got.wc, &got.grh).expect("an address handle").attr().hop_limit, 64);
}

#[test]
fn network_headers_that_lead_nowhere_are_refused() {
    let net = Net::new();
    let end = UdEnd::new(&net.device());
    let wc = WorkCompletion { flags: WcFlags::GRH, ..WorkCompletion::default() };
    let refused = |wc: &WorkCompletion, grh: &[u8]| match end.pd.create_ah_from_wc(wc, grh) {
        Err(Error::Resource(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let mut grh = [0; GRH];
    assert!(refused(&WorkCompletion::default(), &grh).contains("no datagram"));
    assert!(refused(&wc, &grh[..39]).contains("40 bytes"));
    assert!(refused(&wc, &grh).contains("IP family"), "neither version");
    grh[0] = 0x60;
    assert!(refused(&wc, &grh).contains("IP family"), "an IPv6 header at an IPv4 port");
    grh[20] = 0x45;
    assert!(end.pd.create_ah_from_wc(&wc, &grh).is_ok(), "IPv4, whatever stands in front of it");
}

#[test]
fn datagrams_with_another_qkey_are_dropped_and_counted() {
    let net = Net::new();
    let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
    b.post(1);
    a.send_along(1, b"wrong", &UdEnd::way(&b.device), b.qp.qpn(), QKey(QKEY.0 + 1));
    assert!(net.run_until_idle(std::time::Duration::from_secs(1)));
    assert_eq!(rnic_tests::counter(&b.device, "dropped_bad_qkey"), 1);
    a.send_along(2, b"right", &UdEnd::way(&b.device), b.qp.qpn(), QKEY);
    let got = b.receive();
    assert_eq!((got.data.as_slice(), got.wc.wr_id), (b"right".as_slice(), 0), "its receive was still there");
    assert_eq!(rnic_tests::counter(&b.device, "dropped_bad_qkey"), 1);
}

#[test]
fn a_queue_pair_can_send_to_itself() {
    let net = Net::new();
    let end = UdEnd::new(&net.device());
    end.post(1);
    end.send(1, b"echo", &end);
    let got = end.receive();
    assert_eq!((got.data.as_slice(), got.wc.src_qpn), (b"echo".as_slice(), end.qp.qpn()));
}

#[test]
fn an_address_handle_belongs_to_its_domain() {
    let net = Net::new();
    let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
    let other = a.device.alloc_pd().expect("a domain");
    let ah = other.create_ah(&UdEnd::way(&b.device)).expect("an address handle");
    match a.qp.send_to(1, Gather::Empty, &ah, b.qp.qpn(), QKEY) {
        Err(Error::Resource(error)) => assert!(error.to_string().contains("domain"), "{error}"),
        other => panic!("{other:?}"),
    }
    let ipv6 = AddressVector::new(Gid::from(Ipv6Addr::LOCALHOST), 0);
    assert!(a.pd.create_ah(&ipv6).is_err(), "the other IP family");
}

#[test]
fn captures_show_the_fields_of_the_network_header() {
    let net = Net::new();
    let (a, b) = (UdEnd::new(&net.device()), UdEnd::new(&net.device()));
    let file = tempfile(&a);
    b.post(1);
    let way = AddressVector { traffic_class: 0xb8, hop_limit: 7, ..UdEnd::way(&b.device) };
    a.send_along(1, b"seen", &way, b.qp.qpn(), QKEY);
    let _ = b.receive();
    a.device.stop_captures();
    let bytes = file.lock().expect("no panic").clone();
    let decoder = rnic::capture::Decoder::new(bytes.as_slice()).expect("a capture");
    let packets: Vec<_> = decoder.map(|packet| packet.expect("whole")).collect();
    assert_eq!(packets.len(), 1);
    assert_eq!((packets[0].tos, packets[0].ttl), (0xb8, 7));
    assert!(packets[0].icrc.is_some_and(rnic::capture::IcrcCheck::is_ok));
}

/// Captures into memory.
fn tempfile(end: &UdEnd) -> std::sync::Arc<std::sync::Mutex<Vec<u8>>> {
    struct Sink(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let bytes = std::sync::Arc::default();
    end.device.capture_to(Sink(std::sync::Arc::clone(&bytes))).expect("a capture");
    bytes
}
