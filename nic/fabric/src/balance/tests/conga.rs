//! CONGA: estimates, tables of leaves, and the way that a flowlet takes.

use super::{Flows, Ports, US, packet, ports};
use crate::balance::{BalanceConfig, Balancer, Conga, Feedback, Picos, Question, Tag};
use proptest::prelude::*;

/// The balancer of a leaf.
fn leaf(number: u32) -> Balancer {
    Balancer::new(&BalanceConfig::Conga(Conga::default()), number, 3)
}

/// The packet of a flow from leaf 1 to leaf 2.
fn from_1_to_2(now: Picos, flow: u64, ports: &[u16]) -> Question<'_> {
    Question { src_leaf: 1, dst_leaf: 2, ..packet(now, flow, ports) }
}

/// Tells leaf 1 that its way to leaf 2 is congested, as a packet from there does.
fn tell(leaf_1: &mut Balancer, now: Picos, way: u16, congestion: u8) {
    let feedback = Some(Feedback { way, congestion });
    leaf_1.on_delivered(now, &Tag { feedback, ..Tag::between(2, 1) });
}

/// The estimate of the paper's section 3.2, one period after the other: 50 us, alpha 0.2, 3 bits, 100 Gb/s.
fn level(sent: &[(Picos, u32)], until: Picos) -> u8 {
    let (mut estimate, mut sent) = (0.0, sent.iter().peekable());
    for period in 0..=until / (50 * US) {
        if period > 0 {
            estimate -= 0.2 * estimate;
        }
        while let Some((_, bytes)) = sent.next_if(|(at, _)| at / (50 * US) == period) {
            estimate += f64::from(*bytes);
        }
    }
    // In a period of 50 us, 625,000 bytes are possible, and an estimate is five times what is sent in one.
    let share = estimate / (5.0 * 625_000.0);
    (0..7).find(|level| share * 8.0 < f64::from(level + 1)).unwrap_or(7)
}

proptest! {
    #[test]
    fn estimates_shrink_with_each_period(sent in prop::collection::vec((0_u64..120 * US, 0_u32..600_000), 1..60)) {
        let (mut balancer, loads) = (leaf(7), Ports::idle(4));
        let (mut now, mut history) = (0, Vec::new());
        for (wait, bytes) in sent {
            now += wait;
            history.push((now, bytes));
            let mut tag = Tag::between(1, 2);
            balancer.on_forward(now, 3, bytes, &loads, &mut tag);
            prop_assert_eq!(tag.congestion, level(&history, now));
        }
    }

    /// The way with the least of the greater of what this leaf sees and what the other one told.
    #[test]
    fn the_least_congested_way_is_taken(local in prop::collection::vec(0_u8..8, 6), remote in prop::collection::vec(0_u8..8, 6), flow: u64) {
        let (mut balancer, loads, ports) = (leaf(1), Ports::idle(6), ports(6));
        for port in &ports {
            let at = usize::from(*port);
            // An eighth of five times 625,000 bytes for each level, and a half to be in the middle.
            let bytes = if local[at] == 0 { 0 } else { u32::from(local[at]) * 390_625 + 195_312 };
            // As a switch that is no leaf of this packet.
            let mut tag = Tag::between(8, 9);
            balancer.on_forward(10 * US, *port, bytes, &loads, &mut tag);
            prop_assert_eq!(tag.congestion, local[at]);
            tell(&mut balancer, 10 * US, *port, remote[at]);
        }
        let port = usize::from(balancer.choose(&from_1_to_2(20 * US, flow, &ports), &loads));
        let best = local.iter().zip(&remote).map(|(local, remote)| *local.max(remote)).min();
        prop_assert_eq!(Some(local[port].max(remote[port])), best);
    }
}

#[test]
fn a_packet_collects_the_worst_of_its_way_and_its_feedback_comes_back() {
    let (loads, ports) = (Ports::idle(4), ports(4));
    let (mut one, mut spine, mut two) = (leaf(1), leaf(9), leaf(2));
    // The spine's port to leaf 2 is busy.
    spine.on_forward(0, 2, 2_000_000, &loads, &mut Tag::between(5, 6));
    let mut tag = Tag::between(1, 2);
    let way = one.choose(&from_1_to_2(US, 4, &ports), &loads);
    one.on_forward(US, way, 4150, &loads, &mut tag);
    assert_eq!(tag, Tag { way, congestion: 0, ..Tag::between(1, 2) });
    spine.on_forward(2 * US, 2, 4150, &loads, &mut tag);
    // Another switch, where nothing else waits, changes nothing.
    leaf(8).on_forward(2 * US, 2, 4150, &loads, &mut tag);
    // 2,004,150 of 3,125,000 bytes, in eighths.
    assert_eq!((tag.way, tag.congestion, tag.feedback), (way, 5, None));
    two.on_delivered(3 * US, &tag);
    // An acknowledgement carries it back; afterwards leaf 1 avoids the way.
    let mut back = Tag::between(2, 1);
    two.on_forward(4 * US, 0, 64, &loads, &mut back);
    assert_eq!(back.feedback, Some(Feedback { way, congestion: 5 }));
    one.on_delivered(5 * US, &back);
    assert!(
        Flows::new(1).take(100).all(|flow| one.choose(&from_1_to_2(6 * US, flow, &ports), &loads) != way)
    );
    // The flow that is there already stays until it has a gap.
    assert_eq!(one.choose(&from_1_to_2(7 * US, 4, &ports), &loads), way);
    assert_ne!(one.choose(&from_1_to_2(108 * US, 4, &ports), &loads), way);
    // Another leaf's ways do not matter, and after the ageing time nobody remembers.
    let other = |flow| Question { dst_leaf: 3, ..from_1_to_2(6 * US, flow, &ports) };
    let used = |ways: Vec<u16>| ways.contains(&way);
    assert!(used(Flows::new(2).take(100).map(|flow| one.choose(&other(flow), &loads)).collect()));
    let late = 506 * US;
    assert!(used(
        Flows::new(3).take(100).map(|f| one.choose(&from_1_to_2(late, f, &ports), &loads)).collect()
    ));
}

#[test]
fn feedback_takes_turns_and_prefers_what_has_changed() {
    let (loads, mut two) = (Ports::idle(4), leaf(2));
    let told = |two: &mut Balancer, now| {
        let mut back = Tag::between(2, 1);
        two.on_forward(now, 0, 0, &loads, &mut back);
        back.feedback.map(|feedback| (feedback.way, feedback.congestion))
    };
    assert_eq!(told(&mut two, 0), None);
    let arrives = |two: &mut Balancer, now, way, congestion| {
        two.on_delivered(now, &Tag { way, congestion, ..Tag::between(1, 2) });
    };
    for way in 0..3 {
        arrives(&mut two, US, way, 2);
    }
    let turn: Vec<_> = (0..4).filter_map(|_| told(&mut two, 2 * US)).collect();
    assert_eq!(turn, [(0, 2), (1, 2), (2, 2), (0, 2)]);
    // The next would be 1, but 0 has changed.
    arrives(&mut two, 3 * US, 0, 6);
    arrives(&mut two, 3 * US, 1, 2);
    assert_eq!(told(&mut two, 4 * US), Some((0, 6)));
    assert_eq!(told(&mut two, 4 * US), Some((1, 2)));
    // Way 2 has not been used for longer than 500 us.
    arrives(&mut two, 502 * US, 0, 6);
    arrives(&mut two, 502 * US, 1, 2);
    let turn: Vec<_> = (0..3).filter_map(|_| told(&mut two, 502 * US)).map(|(way, _)| way).collect();
    assert_eq!(turn, [0, 1, 0]);
}

#[test]
fn switches_that_are_not_the_source_leaf_hash() {
    let (mut spine, loads, ports) = (leaf(9), Ports::idle(4), ports(4));
    for flow in Flows::new(1).take(50) {
        let first = spine.choose(&from_1_to_2(0, flow, &ports), &loads);
        spine.on_forward(0, first, 1_000_000, &loads, &mut Tag::between(1, 2));
        assert_eq!(spine.choose(&from_1_to_2(900 * US, flow, &ports), &loads), first);
    }
}
