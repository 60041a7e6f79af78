//! Ladders of small stories in virtual time.

use super::*;
use crate::link::Frame;
use crate::sim::Net;
use crate::{ConnectOptions, Error, Mtu, RcEnd, WcStatus};
use qp::wire::IpHeader;

/// Two connected ends with a path MTU of 1024, and the ladder of the first one's device.
fn ends(net: &Net) -> Result<(Device, RcEnd, RcEnd, Ladder)> {
    let (a, b) = (net.device(), net.device());
    let ladder = Ladder::attach(&a, "client", "server", 100)?;
    let options = ConnectOptions { mtu: Some(Mtu::B1024), ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
    Ok((a, left, right, ladder))
}

fn write(left: &RcEnd, right: &RcEnd, bytes: &[u8]) -> Result<()> {
    let source = left.register(bytes)?;
    let target = right.register_remote(bytes.len())?;
    left.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert_eq!(target.to_vec()?, bytes);
    Ok(())
}

#[test]
fn a_write_of_three_packets() -> Result<()> {
    let (_a, left, right, ladder) = ends(&Net::new())?;
    write(&left, &right, &[7; 2500])?;
    insta::assert_snapshot!(ladder.render(&Style::default()));
    Ok(())
}

#[test]
fn a_lost_packet_is_asked_for_again() -> Result<()> {
    let (a, left, right, ladder) = ends(&Net::new())?;
    a.add_fault("tx data psn=#1 drop")?;
    write(&left, &right, &[7; 2500])?;
    insta::assert_snapshot!(ladder.render(&Style::default()));
    Ok(())
}

#[test]
fn a_lost_acknowledgement_is_waited_for() -> Result<()> {
    let (a, left, right, ladder) = ends(&Net::new())?;
    a.add_fault("rx ack drop once")?;
    write(&left, &right, &[7; 500])?;
    insta::assert_snapshot!(ladder.render(&Style { icrc_values: false, ..Style::default() }));
    Ok(())
}

#[test]
fn a_receiver_that_is_not_ready() -> Result<()> {
    let net = Net::new();
    let (_a, left, right, ladder) = ends(&net)?;
    let source = left.register(b"is anybody there?")?;
    left.qp.send(1, source.all())?;
    net.run_for(std::time::Duration::from_micros(100));
    let target = right.register(&[0; 17])?;
    right.qp.recv(2, target.all())?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert_eq!(target.to_vec()?, b"is anybody there?");
    insta::assert_snapshot!(ladder.render(&Style::default()));
    Ok(())
}

#[test]
fn answers_count_in_the_sequence_of_the_requests() -> Result<()> {
    let (_a, left, right, ladder) = ends(&Net::new())?;
    write(&left, &right, &[1; 3000])?;
    let source = right.register_remote(16)?;
    let back = left.register(&[0; 8])?;
    left.qp.post(2, crate::Operation::FetchAdd { remote: source.remote(8), add: 5 }, back.all())?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    let absolute = ladder.render(&Style { psn: PsnForm::Absolute, ..Style::default() });
    let last = ladder.records().pop().ok_or(Error::Stalled)?;
    assert_eq!(last.relative_psn, Some(3));
    assert!(last.icrc_ok);
    assert!(
        absolute.contains("| ") && absolute.contains("ATOMIC_ACK psn 3 msn 2 credits 0 was 0x0"),
        "{absolute}"
    );
    Ok(())
}

#[test]
fn damage_is_seen() -> Result<()> {
    let (a, left, right, ladder) = ends(&Net::new())?;
    a.add_fault("tx data nth=1 corrupt payload")?;
    write(&left, &right, &[7; 500])?;
    let bad: Vec<_> = ladder.records().iter().map(|r| r.icrc_ok).collect();
    assert_eq!(bad, [false, true, true], "the packet, the same again, the acknowledgement");
    let text = ladder.render(&Style::default());
    assert!(text.lines().nth(1).is_some_and(|line| line.ends_with(" BAD")), "{text}");
    assert!(text.contains("fault f1: "), "{text}");
    Ok(())
}

#[test]
fn no_line_is_too_wide() -> Result<()> {
    let (a, left, right, _) = ends(&Net::new())?;
    let name = "a name that is much longer than the half of a ladder could ever be, for all we know";
    let ladder = Ladder::attach(&a, name, name, 3)?;
    a.add_fault("a-fault-with-quite-a-long-name: tx data psn=#0 drop")?;
    a.add_fault("rx ack delay 3ms once")?;
    let word = right.register_remote(8)?;
    let back = left.register(&[0; 8])?;
    let (compare, swap) = (u64::MAX, u64::MAX);
    left.qp.post(1, crate::Operation::CompareSwap { remote: word.remote(0), compare, swap }, back.all())?;
    left.wait()?;
    write(&left, &right, &[7; 5000])?;
    let style = Style { psn: PsnForm::Absolute, ..Style::default() };
    let text = ladder.render(&style);
    assert!(text.lines().all(|line| line.chars().count() <= Style::WIDTH), "{text}");
    let narrow = ladder.render(&Style { arrow: 0, icrc_values: false, ..style.clone() });
    let widest = Style::NARROWEST + 27;
    assert!(narrow.lines().all(|line| line.chars().count() <= widest), "{narrow}");
    let terminal = ladder.render(&Style { psn: PsnForm::Absolute, ..Style::narrow() });
    assert_eq!(terminal.lines().map(|line| line.chars().count()).max(), Some(80), "{terminal}");
    const { assert!(Style::WIDTH <= 110) };
    assert!(ladder.missed() > 3);
    assert!(text.ends_with(&format!("({} more packets were not recorded)\n", ladder.missed())), "{text}");
    let colored = ladder.render(&Style { color: true, ..style });
    let mut plain = String::new();
    for (index, part) in colored.split('\x1b').enumerate() {
        plain.push_str(if index == 0 { part } else { part.split_once('m').map_or("", |(_, rest)| rest) });
    }
    assert_eq!(plain, text);
    Ok(())
}

/// `ackreq` and `again` were cut where a packet was lost.
#[test]
fn the_words_of_a_lost_packet_are_never_cut() -> Result<()> {
    let (a, left, right, ladder) = ends(&Net::new())?;
    a.add_fault("a-rule-of-ours: tx data psn=#1 drop 2 times")?;
    write(&left, &right, &[7; 1500])?;
    let text = ladder.render(&Style::narrow());
    for word in ["ackreq", "again", "dropped by fault a-rule-of-ours"] {
        assert!(text.contains(word), "{word}\n{text}");
    }
    let narrowest = ladder.render(&Style { arrow: 0, ..Style::narrow() });
    for part in ["WRITE_LAST psn #1 again", "ackreq", "dropped by fault a-rule-of-ours"] {
        assert!(narrowest.contains(part), "{part}\n{narrowest}");
    }
    assert!(!narrowest.contains(".."), "{narrowest}");
    Ok(())
}

/// 16.777 ms once were 16.7 ms.
#[test]
fn times_are_rounded() {
    for (micros, text) in [
        (16_777, "16.8 ms"),
        (33_554, "33.6 ms"),
        (9_996, "10.0 ms"),
        (999, "999 us"),
        (1_000, "1.00 ms"),
        (999_600, "1.00 s"),
        (4_294_967, "4.29 s"),
        (68_719_477, "68.7 s"),
        (4_000_000_000, "4000 s"),
    ] {
        assert_eq!(render::human(std::time::Duration::from_micros(micros)), text);
    }
}

#[test]
fn what_was_cleared_is_not_drawn() -> Result<()> {
    let (a, left, right, ladder) = ends(&Net::new())?;
    write(&left, &right, &[7; 100])?;
    assert_eq!(ladder.records().len(), 2);
    ladder.clear();
    write(&left, &right, &[7; 100])?;
    let text = ladder.render(&Style::default());
    assert!(text.contains("    0.0  |-- WRITE_ONLY psn #1 ackreq"), "{text}");
    Ladder::detach(&a);
    write(&left, &right, &[7; 100])?;
    assert_eq!(ladder.records().len(), 2);
    Ok(())
}

#[test]
fn what_is_no_packet_is_drawn_too() {
    let ladder = Ladder::new("a", "b", 10);
    let ip = IpHeader { src: [10, 0, 0, 2].into(), ..IpHeader::to([10, 0, 0, 1].into()) };
    let notes = vec!["odd\x1b[2J".to_owned()];
    let frame = Frame { fate: Fate::Delivered, notes, ..Frame::new(Direction::Rx, ip, vec![0; 3]) };
    let now = Now { instant: Instant::EPOCH, wall: std::time::Duration::ZERO };
    ladder.observer().observe(now, &frame.view());
    let text = ladder.render(&Style::default());
    assert!(text.contains("malformed: a packet of 3 bytes"), "{text}");
    assert!(text.contains("odd?[2J") && !text.contains('\x1b'), "{text}");
}

/// The packets of a golden capture, as the port of the side that connects saw them.
fn observe(ladder: &Ladder, name: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
    let mut reader = pcap_file::pcap::PcapReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let (start, mut first) = (Instant::EPOCH, None);
    while let Some(frame) = reader.next_packet() {
        let frame = frame.unwrap();
        // Ethernet 14 bytes, IPv4 20, UDP 8.
        let (ip, udp) = (&frame.data[14..34], &frame.data[34..]);
        let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
        let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let (src, dst) = (address(12), address(16));
        let client = IpAddr::from([10, 77, 0, 2]);
        let bytes = udp[8..usize::from(word(udp, 4))].to_vec();
        let direction = if src == client { Direction::Tx } else { Direction::Rx };
        let (src_port, tos, hop_limit, ident) = (word(udp, 0), ip[1], ip[8], word(ip, 4));
        let ip = IpHeader { src, dst, src_port, tos, hop_limit, flow_label: 0, ident };
        let frame_of_link = Frame { fate: Fate::Delivered, ..Frame::new(direction, ip, bytes) };
        let first = *first.get_or_insert(frame.timestamp);
        let now = Now { instant: start + (frame.timestamp - first), wall: frame.timestamp };
        ladder.observer().observe(now, &frame_of_link.view());
    }
}

#[test]
fn connections_of_linux_are_made_and_ended() {
    let ladder = Ladder::new("client", "server", 100);
    observe(&ladder, "cm_ucmatose.pcap");
    insta::assert_snapshot!(ladder.render(&Style::default()));
}

#[test]
fn a_connection_that_is_refused() {
    let ladder = Ladder::new("client", "server", 100);
    observe(&ladder, "cm_reject.pcap");
    let text = ladder.render(&Style { color: true, ..Style::default() });
    assert!(
        text.contains("\x1b[33m<------ CM REJ invalid-service-id(8) id 00000000 for e4c2e0f5 --"),
        "{text}"
    );
}

#[test]
fn labels_of_the_other_management_datagrams() {
    use qp::wire::mad::MAD_LEN;
    use qp::wire::mad::cm::{
        Body, CmTimeout, CommId, Lap, Message, Mra, Req, ServiceId, SidrRep, SidrReq, SidrStatus,
    };
    let (id, service_id) = (CommId(7), ServiceId::udp(80));
    let wait = CmTimeout::new(20);
    let refused = SidrRep { request_id: id, status: SidrStatus::Rejected, ..SidrRep::default() };
    for (body, expected) in [
        (Body::Req(Req { service_id: ServiceId(9), ..Req::default() }), "CM REQ, service 0x9"),
        (
            Body::Mra(Mra { local_comm_id: id, service_timeout: wait, ..Mra::default() }),
            "CM MRA, wait 4.295s, id 00000007 for 00000000",
        ),
        (
            Body::SidrReq(SidrReq { request_id: id, service_id, ..SidrReq::default() }),
            "CM SIDR_REQ, UDP 80, id 00000007",
        ),
        (
            Body::SidrRep(SidrRep { request_id: id, ..SidrRep::default() }),
            "CM SIDR_REP, qp 0x000000, qkey 0x00000000, id 00000007",
        ),
        (Body::SidrRep(refused), "CM SIDR_REP rejected(2), id 00000007"),
        (Body::Lap(Lap::default()), "CM LAP"),
    ] {
        let mut bytes = [0; MAD_LEN];
        Message { transaction_id: 0, attribute_modifier: 0, body }.emit(&mut bytes).unwrap();
        let label = mad::label(&bytes);
        let text = [vec![label.main], label.more].concat().join(", ");
        assert!(text.starts_with(expected), "{text}");
    }
    use qp::wire::mad::hello::{Features, Hello, Kind};
    let mut hello = Hello { version: 2, slot: 3, instance: 0xabc, lanes: 4, block: 64, ..Hello::default() };
    for (kind, features, expected) in [
        (Kind::Ask, Features::CNP, "RNIC HELLO ask slot 3, cnp, instance 0000000000000abc"),
        (
            Kind::Answer,
            Features::CREDITS,
            "RNIC HELLO answer slot 3, credits, instance 0000000000000abc, 4 lanes of 64-byte blocks",
        ),
    ] {
        (hello.kind, hello.features) = (kind, features);
        let mut bytes = [0; MAD_LEN];
        hello.emit(&mut bytes);
        let label = mad::label(&bytes);
        assert_eq!([vec![label.main], label.more].concat().join(", "), expected);
    }
    let mut other = [0; MAD_LEN];
    other[..4].copy_from_slice(&[1, 4, 1, 1]);
    assert_eq!(mad::label(&other).main, "MAD class=0x04 method=0x01 attr=0x0000 tid=0x0");
}

#[test]
fn messages_between_ports_are_drawn_by_lane_and_priority() {
    let ladder = Ladder::new("a", "b", 10);
    let mut times = qp::wire::PauseTimes::default();
    (times.0[3], times.0[4]) = (Some(65_535), Some(0));
    let said = |body: &[u8]| [&[0xab; 8][..], body].concat();
    let lanes = [
        [0x00, 0, 0, 66, 0, 3, 0, 2, 0, 0, 0, 12, 0, 0, 0x08, 0x0c],
        [0x11, 0, 0, 0, 0, 5, 0, 4, 0, 0, 0, 9, 0, 0, 0, 64],
    ];
    let credits = said(lanes.as_flattened());
    let ip = IpHeader { src: [10, 0, 0, 1].into(), src_port: 0xc000, ..IpHeader::to([10, 0, 0, 2].into()) };
    let start = Instant::EPOCH;
    // The same number twice says nothing of the queue pairs, whose PSNs are repeated.
    for (headers, payload) in [
        (Headers::flow_control(2, 1, 7), &credits[..]),
        (Headers::flow_control(2, 1, 7), &credits[..]),
        (Headers::pause(2, 1, 8), &said(&times.emit())),
        (Headers::cnp(qp::Qpn::new(0x51)), &[]),
        (Headers::cnp(qp::Qpn::new(0x51)), &[]),
    ] {
        let mut bytes = vec![0; headers.wire_len()];
        headers.emit(&mut bytes, payload.len());
        bytes.extend(payload);
        bytes.extend(qp::wire::icrc::compute(&ip.flow(), 0, &bytes).to_le_bytes());
        let frame = Frame { fate: Fate::Delivered, ..Frame::new(Direction::Tx, ip, bytes) };
        let now = Now { instant: start, wall: std::time::Duration::ZERO };
        ladder.observer().observe(now, &frame.view());
    }
    insta::assert_snapshot!(ladder.render(&Style::default()));
}
