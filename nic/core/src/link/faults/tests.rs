use super::*;
use crate::link::{Direction, Fate, Frame};
use qp::wire::{AethFields, Headers, NakCode, Opcode, Packet, Syndrome};
use qp::wire::{IpHeader, icrc};
use qp::{Psn, Qpn};
use time::{Duration, Instant};

mod grammar;
mod storms;
mod waiting;

const LOCAL: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];

fn ip() -> IpHeader {
    IpHeader { src: LOCAL.into(), src_port: 0xc000, tos: 2, ..IpHeader::to(PEER.into()) }
}

fn frame_of(headers: &Headers, payload: &[u8]) -> Frame {
    let mut bytes = vec![0; headers.wire_len()];
    headers.emit(&mut bytes, payload.len());
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let crc = icrc::compute(&ip().flow(), 0, &bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    Frame::new(Direction::Tx, ip(), bytes)
}

fn packet(opcode: Opcode, qpn: u32, psn: u32) -> Frame {
    let payload: &[u8] = if opcode.info().has_payload { &[0x55; 64] } else { &[] };
    frame_of(&Headers::new(opcode, Qpn::new(qpn), Psn::new(psn)), payload)
}

/// A SEND for queue pair 0x11.
fn send(psn: u32) -> Frame {
    packet(Opcode::RcSendOnly, 0x11, psn)
}

fn marked(tos: u8, frame: Frame) -> Frame {
    Frame { ip: IpHeader { tos, ..frame.ip }, ..frame }
}

fn received(frame: Frame) -> Frame {
    let ip = IpHeader { src: frame.ip.dst, dst: frame.ip.src, ..frame.ip };
    Frame { direction: Direction::Rx, ip, ..frame }
}

fn answer(syndrome: Syndrome, psn: u32) -> Frame {
    let mut headers = Headers::new(Opcode::RcAcknowledge, Qpn::new(0x11), Psn::new(psn));
    headers.aeth = AethFields { syndrome: syndrome.to_u8(), msn: 0 };
    received(frame_of(&headers, b""))
}

fn psn_of(frame: &Frame) -> u32 {
    Packet::parse(&frame.bytes).unwrap().psn().value()
}

/// A layer with these rules, added at `start`.
fn layer(start: Instant, rules: &[&str]) -> FaultLayer {
    let mut layer = FaultLayer::new(7);
    for rule in rules {
        layer.add(start, rule.parse().unwrap()).unwrap();
    }
    layer
}

/// All that comes out of a layer for these frames at one instant.
fn run(layer: &mut FaultLayer, now: Instant, frames: impl IntoIterator<Item = Frame>) -> Vec<Frame> {
    let mut out = Vec::new();
    for frame in frames {
        layer.handle(now, frame, &mut |f| out.push(f));
    }
    out
}

/// The numbers of the frames, from 0, on which a rule that drops acted.
fn dropped(rule: &str, frames: Vec<Frame>) -> Vec<usize> {
    let now = Instant::EPOCH;
    let out = run(&mut layer(now, &[rule]), now, frames);
    out.iter().enumerate().filter(|(_, f)| f.fate != Fate::Pending).map(|(i, _)| i).collect()
}

#[test]
fn a_dropped_packet_says_by_whom() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["lossy: tx drop"]);
    let out = run(&mut layer, now, [send(0)]);
    assert_eq!(out[0].fate, Fate::Dropped { by: "lossy".into() });
    assert_eq!(out[0].notes, ["fault lossy: dropped"]);
    assert_eq!(layer.hits("lossy"), Some(1));
    assert_eq!(layer.hits("other"), None);
}

#[test]
fn places() {
    let both = || vec![send(0), received(send(0))];
    assert_eq!(dropped("tx drop", both()), [0]);
    assert_eq!(dropped("rx drop", both()), [1]);
    assert_eq!(dropped("* drop", both()), [0, 1]);
    assert_eq!(dropped("drop", both()), [0, 1]);
    assert_eq!(dropped("tx>10.0.0.2 drop", both()), [0]);
    assert_eq!(dropped("tx>10.0.0.3 drop", both()), Vec::<usize>::new());
    assert_eq!(dropped("rx<10.0.0.2 drop", both()), [1]);
    assert_eq!(dropped("10.0.0.1>10.0.0.2 drop", both()), [0]);
    assert_eq!(dropped("10.0.0.2>* drop", both()), [1]);
    assert_eq!(dropped("10.0.0.2<>10.0.0.1 drop", both()), [0, 1]);
    assert_eq!(dropped("*>10.0.0.9 drop", both()), Vec::<usize>::new());
}

#[test]
fn kinds_of_packets() {
    use Opcode as O;
    let all = || {
        vec![
            packet(O::RcSendFirst, 0x11, 0),
            packet(O::RcReadRequest, 0x11, 0),
            packet(O::RcReadResponseOnly, 0x11, 0),
            answer(Syndrome::ACK_UNLIMITED, 0),
            answer(Syndrome::Nak(NakCode::InvalidRequest), 0),
            answer(Syndrome::Rnr { timer: 1 }, 0),
            packet(O::Cnp, 0x11, 0),
            packet(O::RcFetchAdd, 0x11, 0),
            packet(O::UdSendOnly, 0x11, 0),
            Frame { bytes: vec![0xff; 3], ..send(0) },
            packet(O::RnicFlowControl, 0x01_0000, 0),
            packet(O::RnicPause, 0x01_0000, 0),
            packet(O::RnicTelemetry, 0x11, 0),
        ]
    };
    for (word, expected) in [
        ("data", &[0, 2, 8][..]),
        ("ack", &[3]),
        ("nak", &[4]),
        ("rnr", &[5]),
        ("acknowledge", &[3, 4, 5]),
        ("cnp", &[6]),
        ("flow_control", &[10]),
        ("pause", &[11]),
        ("telemetry", &[12]),
        ("try=1", &[0, 2, 3, 8]),
        ("atomic", &[7]),
        ("read.req", &[1]),
        ("read.resp", &[2]),
        ("read.resp.first", &[]),
        ("send", &[0, 8]),
        ("rc.send.first", &[0]),
        ("ud.send", &[8]),
        ("send.only", &[8]),
        ("size<4", &[9]),
        ("", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    ] {
        assert_eq!(dropped(&format!("{word} drop"), all()), expected, "{word}");
    }
}

#[test]
fn every_opcode_has_a_word_of_its_own() {
    for opcode in Opcode::ALL {
        let rule = FaultRule::drop().opcode(*opcode);
        let text = rule.to_string();
        assert_eq!(text.parse(), Ok(rule), "{text}");
        let hits: Vec<_> =
            Opcode::ALL.iter().filter(|o| OpcodePattern::from(*opcode).covers(&o.info())).collect();
        assert_eq!(hits, [opcode], "{text}");
    }
}

#[test]
fn numbers_of_packets() {
    let ten = || (100..110).map(send).collect::<Vec<_>>();
    assert_eq!(dropped("psn=#3 drop", ten()), [3]);
    assert_eq!(dropped("psn=105 drop", ten()), [5]);
    assert_eq!(dropped("psn=0x69 drop", ten()), [5]);
    assert_eq!(dropped("nth=4 drop", ten()), [3]);
    assert_eq!(dropped("every=4 drop", ten()), [3, 7]);
    assert_eq!(dropped("2 times drop", ten()), [0, 1]);
    assert_eq!(dropped("drop once", ten()), [0]);
    assert_eq!(dropped("p=1 drop", ten()).len(), 10);
    assert_eq!(dropped("p=0 drop", ten()), Vec::<usize>::new());
}

#[test]
fn a_rule_that_singles_out_a_packet_acts_once_unless_told_otherwise() {
    let repeated = || vec![send(0), send(1), send(1), send(2), send(1)];
    assert_eq!(dropped("psn=#1 drop", repeated()), [1]);
    assert_eq!(dropped("psn=#1 drop always", repeated()), [1, 2, 4]);
    assert_eq!(dropped("psn=#1 try=2 drop", repeated()), [2]);
    assert_eq!(dropped("try=1 drop", repeated()), [0, 1, 3]);
    assert_eq!(dropped("try=3 drop", repeated()), [4]);
}

#[test]
fn queue_pairs_by_number_and_by_appearance() {
    let frames = || {
        vec![
            packet(Opcode::UdSendOnly, 1, 9),
            packet(Opcode::Cnp, 0x99, 0),
            packet(Opcode::RcSendOnly, 0x33, 5),
            packet(Opcode::RcSendOnly, 0x22, 50),
            received(packet(Opcode::RcSendOnly, 0x44, 50)),
            packet(Opcode::RcSendOnly, 0x33, 6),
        ]
    };
    assert_eq!(dropped("qp=0x33 drop", frames()), [2, 5]);
    assert_eq!(dropped("qp=51 drop", frames()), [2, 5]);
    assert_eq!(
        dropped("qp=#0 drop", frames()),
        [2, 4, 5],
        "in each direction the first; packets of QP1 and CNPs do not count"
    );
    assert_eq!(dropped("qp=#1 drop", frames()), [3]);
    assert_eq!(dropped("psn=#1 drop always", frames()), [5]);
}

#[test]
fn requests_and_responses_count_their_psns_apart() {
    let frames = vec![
        packet(Opcode::RcSendOnly, 0x11, 1000),
        packet(Opcode::RcReadResponseOnly, 0x11, 5),
        packet(Opcode::RcReadResponseOnly, 0x11, 6),
        packet(Opcode::RcSendOnly, 0x11, 1001),
    ];
    assert_eq!(dropped("psn=#1 drop always", frames), [2, 3]);
}

#[test]
fn sizes_and_ecn() {
    let frames =
        || [0, 1, 2, 3].map(|tos| marked(tos, packet(Opcode::RcSendOnly, 0x11, u32::from(tos)))).to_vec();
    assert_eq!(send(0).bytes.len(), 80);
    assert_eq!(dropped("size>79 drop", frames()).len(), 4);
    assert_eq!(dropped("size>80 drop", frames()).len(), 0);
    assert_eq!(dropped("size<80 drop", frames()).len(), 0);
    assert_eq!(dropped("size<81 drop", frames()).len(), 4);
    for (word, expected) in [("not", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)] {
        assert_eq!(dropped(&format!("ecn={word} drop"), frames()), [expected]);
    }
}

#[test]
fn copies_follow_their_packet() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["tx nth=1 dup 2"]);
    let out = run(&mut layer, now, [send(0), send(1)]);
    assert_eq!(out.iter().map(psn_of).collect::<Vec<_>>(), [0, 0, 0, 1]);
    assert_eq!(out[0].notes, ["fault f1: 2 copies follow"]);
    assert_eq!(out[2].notes, ["fault f1: 2 copies follow", "a copy"]);
    assert_eq!(out[3].notes, [""; 0]);
}

#[test]
fn corruption_hits_what_it_names_and_the_receiver_notices() {
    let now = Instant::EPOCH;
    let clean = send(0);
    for (what, bits) in [("icrc", 76 * 8..80 * 8), ("payload", 12 * 8..76 * 8), ("header", 0..12 * 8)] {
        let mut layer = layer(now, &[&format!("corrupt {what}")]);
        let mut seen = std::collections::HashSet::new();
        for frame in run(&mut layer, now, (0..2000).map(|_| clean.clone())) {
            let flipped: Vec<usize> = (0..clean.bytes.len() * 8)
                .filter(|bit| (frame.bytes[bit / 8] ^ clean.bytes[bit / 8]) & (0x80 >> (bit % 8)) != 0)
                .collect();
            let [bit] = *flipped else { panic!("{what}: {flipped:?}") };
            assert!(bits.contains(&bit), "{what}: bit {bit}");
            assert_eq!(frame.notes, [format!("fault f1: bit {bit} flipped")]);
            let (covered, crc) = frame.bytes.split_at(76);
            let good = icrc::compute(&ip().flow(), 0, covered).to_le_bytes() == *crc;
            assert!(!good, "{what}: bit {bit} goes unnoticed");
            seen.insert(bit);
        }
        // Byte 4 of the BTH is not under the ICRC.
        let expected = if what == "header" { bits.len() - 8 } else { bits.len() };
        assert!(seen.len() > expected * 9 / 10, "{what}: {} of {expected} bits", seen.len());
    }
}

#[test]
fn one_bit_by_its_number() {
    let now = Instant::EPOCH;
    let out = run(&mut layer(now, &["corrupt bit=9", "corrupt bit=640"]), now, [send(0)]);
    assert_eq!(out[0].bytes[1] ^ send(0).bytes[1], 0x40);
    assert_eq!(out[0].notes, ["fault f1: bit 9 flipped"], "the packet has 640 bits");
}

#[test]
fn no_payload_to_corrupt_is_no_match() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["corrupt payload once"]);
    let ack = answer(Syndrome::ACK_UNLIMITED, 0);
    assert_eq!(run(&mut layer, now, [ack.clone()]), [ack]);
    assert_eq!(layer.hits("f1"), Some(0));
    run(&mut layer, now, [send(0)]);
    assert_eq!(layer.hits("f1"), Some(1));
}

#[test]
fn marking_changes_ecn_only() {
    let now = Instant::EPOCH;
    let marked = marked(0x6a, send(0));
    let out = run(&mut layer(now, &["mark ce"]), now, [marked.clone()]);
    assert_eq!((out[0].ip.tos, &out[0].bytes), (0x6b, &marked.bytes));
}

#[test]
fn rules_add_up_to_the_first_drop() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["mark ce", "corrupt bit=0", "dup", "second: nth=2 drop", "late: mark ce"]);
    let out = run(&mut layer, now, [send(0), send(1)]);
    assert_eq!(out.len(), 3);
    assert_eq!(
        out[0].notes,
        [
            "fault f1: marked CE",
            "fault f2: bit 0 flipped",
            "fault f3: 1 copy follows",
            "fault late: marked CE"
        ]
    );
    assert_eq!(out[2].fate, Fate::Dropped { by: "second".into() });
    let hits: Vec<_> = layer.rules().map(|r| (r.name.to_owned(), r.hits, r.is_spent)).collect();
    let expected =
        [("f1", 2, false), ("f2", 2, false), ("f3", 2, false), ("second", 1, true), ("late", 1, false)];
    assert_eq!(hits, expected.map(|(name, hits, spent)| (name.to_owned(), hits, spent)));
}

#[test]
fn one_seed_gives_one_run_and_rules_draw_on_their_own() {
    let now = Instant::EPOCH;
    let outcome = |seed: u64, rules: &[&str]| {
        let mut layer = FaultLayer::new(seed);
        for rule in rules {
            layer.add(now, rule.parse().unwrap()).unwrap();
        }
        let frames = (0..500).map(send).map(|f| Frame { notes: Vec::new(), ..f });
        run(&mut layer, now, frames).into_iter().map(|f| (f.bytes, f.fate)).collect::<Vec<_>>()
    };
    let rules = ["p=0.1 drop", "p=0.1 corrupt payload"];
    assert_eq!(outcome(1, &rules), outcome(1, &rules));
    assert_ne!(outcome(1, &rules), outcome(2, &rules));
    let drops = |run: Vec<(Vec<u8>, Fate)>| run.iter().map(|(_, fate)| fate.clone()).collect::<Vec<_>>();
    assert_eq!(drops(outcome(1, &rules)), drops(outcome(1, &rules[..1])), "a second rule changes nothing");
}

/// A seed promises the same draws: they must not change with the version of any dependency.
#[test]
fn the_draws_of_a_seed_stay_the_same() {
    let frames = (0..200).map(send).collect();
    assert_eq!(dropped("p=0.05 drop", frames), [9, 109, 111, 113, 131, 135, 136, 168, 190, 191]);
}

#[test]
fn probability_is_what_it_says() {
    let hits = dropped("p=0.1 drop", (0..20_000).map(|n| send(n % 1000)).collect()).len();
    // Six standard deviations of a binomial distribution around 2000: 6 * sqrt(20000 * 0.1 * 0.9) = 255.
    assert!((1745..=2255).contains(&hits), "{hits}");
}

#[test]
fn names_and_removal() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["drop", "f3: drop", "drop"]);
    assert_eq!(layer.add(now, FaultRule::drop().named("f1")), Err(AddError::NameTaken("f1".to_owned())));
    assert_eq!(layer.rules().map(|r| r.name).collect::<Vec<_>>(), ["f1", "f3", "f2"]);
    assert!(layer.remove("f1") && !layer.remove("f1"));
    assert_eq!(layer.add(now, FaultRule::drop()).unwrap().as_ref(), "f1");
    layer.clear();
    assert!(!layer.applies_to(Direction::Tx));
    for _ in 0..1000 {
        layer.add(now, FaultRule::drop()).unwrap();
    }
    assert_eq!(layer.add(now, FaultRule::drop()), Err(AddError::TooMany));
    let bad = FaultLayer::new(0).add(now, FaultRule::duplicate(101)).unwrap_err();
    assert_eq!(bad.to_string(), "copies can be 1 to 100, not 101");
}

#[test]
fn the_layer_wants_only_what_rules_need() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["tx drop once"]);
    assert!(layer.applies_to(Direction::Tx) && !layer.applies_to(Direction::Rx));
    run(&mut layer, now, [send(0)]);
    assert!(!layer.applies_to(Direction::Tx), "the rule is spent");
}

#[test]
fn near_misses_name_what_differed() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["tx write.first psn=#3 drop", "always-hit: drop"]);
    run(&mut layer, now, [send(0)]);
    assert!(layer.rules().all(|r| r.near_misses.is_empty()), "only when asked");
    layer.diagnose(true);
    run(
        &mut layer,
        now,
        [send(1), send(2), received(send(0)), send(3), packet(Opcode::RcWriteFirst, 0x11, 4)],
    );
    let rules: Vec<_> = layer.rules().collect();
    assert!(rules[1].near_misses.is_empty(), "it acted");
    let near = rules[0].near_misses;
    assert_eq!(near.len(), 3);
    assert!(near.windows(2).all(|w| w[0].met >= w[1].met), "best first");
    assert!(near[0].packet.starts_with("RC SEND_ONLY dqp=0x000011 psn=3"), "{}", near[0].packet);
    assert_eq!((near[0].met, near[0].of), (3, 4));
    assert_eq!(near[0].differences, ["write.first: it has RC SEND_ONLY"]);
    assert_eq!(near[1].differences, ["psn=#3: it has psn=#4"]);
    assert_eq!(near[2].met, 2);
}
