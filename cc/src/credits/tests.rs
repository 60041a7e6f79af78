//! Counts, windows, leases; and links and pools over channels that lose and delay.

use super::*;
use crate::vl::Vl;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

fn lane(n: u8) -> Vl {
    Vl::new(n).expect("a lane")
}

fn update(fctbs: u16, fccl: u16) -> FlowControlPacket {
    FlowControlPacket { op: Op::Normal, vl: lane(0), fctbs, fccl }
}

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

#[test]
fn a_flow_control_packet_is_laid_out_as_on_the_wire() {
    let packet = FlowControlPacket { op: Op::Init, vl: lane(3), fctbs: 0x123, fccl: 0x8AB };
    assert_eq!(packet.encode(), [0x11, 0x23, 0x38, 0xAB]);
    for op in [Op::Normal, Op::Init, Op::Stalled, Op::Yielded] {
        let packet = FlowControlPacket { op, vl: lane(14), fctbs: 0xFFF, fccl: 0 };
        assert_eq!(FlowControlPacket::decode(packet.encode()), Ok(packet));
    }
    assert_eq!(FlowControlPacket::decode([0x40, 0, 0, 0]), Err(MalformedUpdate::ReservedOp(4)));
    assert_eq!(FlowControlPacket::decode([0xF0, 0, 0, 0]), Err(MalformedUpdate::ReservedOp(15)));
    assert_eq!(FlowControlPacket::decode([0, 0, 0xF0, 0]), Err(MalformedUpdate::ManagementLane));
}

#[test]
fn a_link_is_set_up_by_words() {
    let config = Config { vls: 4, fcp_period: 500, ..Config::default() };
    assert_eq!("vls=4,fcp_period=500".parse(), Ok(config));
    assert_eq!(toml::from_str("vls = 4\nfcp_period = 500"), Ok(config));
    assert!("vls=256".parse::<Config>().is_err() && "vl=1".parse::<Config>().is_err());
}

#[test]
fn a_block_has_64_bytes() {
    assert_eq!([0, 1, 64, 65, 4096, 4154].map(blocks), [0, 1, 1, 2, 64, 65]);
}

#[test]
fn a_sender_goes_up_to_the_limit_and_waits() {
    let now = Instant::now();
    let mut sender = CreditSender::new(None);
    assert!(!sender.try_take(now, 1) && !sender.has_limit() && sender.is_stalled());
    sender.handle_update(now, &update(0, 3));
    assert_eq!(sender.available(now), 3);
    assert!(sender.try_take(now + us(5), 2));
    assert_eq!(sender.stalls(), Stalls { packets: 1, time: us(5) });
    assert!(!sender.try_take(now + us(6), 2), "one is left");
    assert!(!sender.try_take(now + us(7), 2), "still the same packet");
    sender.handle_update(now, &update(0, 4));
    assert!(sender.try_take(now + us(9), 2) && !sender.is_stalled());
    assert_eq!(sender.stalls(), Stalls { packets: 2, time: us(8) });
    assert!(!sender.try_take(now, u32::MAX));
}

#[test]
fn counts_wrap_and_a_limit_behind_allows_nothing() {
    let now = Instant::now();
    let mut sender = CreditSender::new(None);
    let mut receiver = CreditReceiver::new(2048);
    for round in 0..100 {
        sender.handle_update(now, &update(0, receiver.fccl()));
        assert_eq!(sender.available(now), 2048, "round {round}");
        assert!(sender.try_take(now, 2000));
        assert_eq!(receiver.handle_packet(2000), Ok(()));
        assert_eq!((receiver.fccl(), sender.available(now)), (advanced(sender.fctbs(), 48), 48));
        receiver.release(2000);
    }
    let behind = sender.fctbs().wrapping_sub(1) & MASK;
    sender.handle_update(now, &update(0, behind));
    assert_eq!(sender.available(now), 0);
    sender.handle_update(now, &update(0, advanced(sender.fctbs(), 2048)));
    assert_eq!(sender.available(now), 2048);
    sender.handle_update(now, &update(0, advanced(sender.fctbs(), 2049)));
    assert_eq!(sender.available(now), 0, "more than half of the counts is behind");
}

#[test]
fn a_large_buffer_is_granted_2048_blocks_at_a_time() {
    let mut receiver = CreditReceiver::new(10_000);
    assert_eq!(receiver.fccl(), 2048);
    assert_eq!(receiver.handle_packet(2048), Ok(()));
    assert_eq!((receiver.fccl(), receiver.free()), (0, 7952));
}

#[test]
fn a_buffer_refuses_what_it_has_no_room_for() {
    let mut receiver = CreditReceiver::new(10);
    assert_eq!(receiver.handle_packet(10), Ok(()));
    let before = receiver.fccl();
    assert_eq!(receiver.handle_packet(1), Err(Overrun { blocks: 1, free: 0 }));
    assert_eq!(receiver.handle_packet(u32::MAX), Err(Overrun { blocks: u32::MAX, free: 0 }));
    assert_eq!(receiver.fccl(), before);
    receiver.release(u32::MAX);
    assert_eq!(receiver.free(), 10, "no more than there is");
}

#[test]
fn lost_data_comes_back_with_the_next_update() {
    let now = Instant::now();
    let mut sender = CreditSender::new(None);
    let mut receiver = CreditReceiver::new(100);
    sender.handle_update(now, &update(0, receiver.fccl()));
    assert!(sender.try_take(now, 60));
    // The packet is lost.
    sender.handle_update(now, &update(0, receiver.fccl()));
    assert_eq!(sender.available(now), 40);
    receiver.handle_update(&update(sender.fctbs(), 0));
    sender.handle_update(now, &update(0, receiver.fccl()));
    assert_eq!((sender.available(now), receiver.lost()), (100, 60));
}

#[test]
fn a_lease_runs_out_unless_it_is_renewed() {
    let now = Instant::now();
    let mut sender = CreditSender::new(Some(us(100)));
    sender.handle_update(now, &update(0, 10));
    assert_eq!((sender.available(now + us(99)), sender.available(now + us(100))), (10, 0));
    sender.handle_update(now + us(150), &update(0, 10));
    assert_eq!((sender.available(now + us(249)), sender.available(now + us(250))), (10, 0));
}

#[test]
fn a_sender_says_that_it_obeys_when_its_limit_was_lowered() {
    let now = Instant::now();
    let mut sender = CreditSender::new(Some(us(100)));
    assert!(!sender.handle_update(now, &update(0, 4000)), "the first one");
    assert!(!sender.handle_update(now, &update(0, 4000)), "the same one");
    // Its own counts are as far ahead as the limit allows.
    sender = CreditSender::new(Some(us(100)));
    assert!(!sender.handle_update(now, &update(0, 2000)));
    assert!(sender.try_take(now, 2000));
    assert!(!sender.handle_update(now, &update(0, 4047)), "2047 more");
    assert!(sender.handle_update(now, &update(0, 4046)));
    assert!(sender.try_take(now, 46));
    assert!(sender.handle_update(now, &update(0, 2000)), "less than it has sent");
    let obeys = FlowControlPacket { op: Op::Yielded, vl: lane(3), fctbs: 2046, fccl: 2000 };
    assert_eq!((sender.yielded(lane(3)), sender.available(now)), (obeys, 0));
    assert!(!sender.handle_update(now, &obeys), "this is for the other direction");
    assert!(!sender.handle_update(now, &update(0, 4093)), "up again, by more than half of the counts");
    assert_eq!(sender.available(now), 2047);
    assert!(sender.handle_update(now, &update(0, 2045)), "and down again");
    assert!(!sender.handle_update(now, &update(0, 2046)) && sender.available(now) == 0);
}

/// The pool, to which that limit is also void, would take the answer for that to its latest recall.
#[test]
fn a_limit_whose_lease_ran_out_is_not_lowered() {
    let now = Instant::now();
    let mut sender = CreditSender::new(Some(us(100)));
    assert!(!sender.handle_update(now, &update(0, 10)));
    assert!(!sender.handle_update(now + us(100), &update(0, 5)));
    assert!(sender.handle_update(now + us(199), &update(0, 4)));
}

/// Two ends of a link, and the packets in flight between them, in order.
struct Pair {
    ends: [LinkCredits; 2],
    updates: [VecDeque<FlowControlPacket>; 2],
}

impl Pair {
    fn new(config: &Config, now: Instant) -> Self {
        Self {
            ends: [LinkCredits::new(config, now), LinkCredits::new(config, now)],
            updates: [VecDeque::new(), VecDeque::new()],
        }
    }

    /// Exchanges updates at `now`; `lost` decides for each whether it is lost.
    fn exchange(&mut self, now: Instant, mut lost: impl FnMut() -> bool) {
        for end in 0..2 {
            while let Some(update) = self.ends[end].poll_update(now) {
                if !lost() {
                    self.updates[1 - end].push_back(update);
                }
            }
        }
        for end in 0..2 {
            while let Some(update) = self.updates[end].pop_front() {
                assert!(self.ends[end].handle_update(now, &update));
            }
        }
    }
}

#[test]
fn a_link_comes_up_by_an_exchange_that_survives_loss() {
    let start = Instant::now();
    let config = Config { vls: 3, blocks: 100, ..Config::default() };
    let mut pair = Pair::new(&config, start);
    assert_eq!(pair.ends[0].state(), LinkState::Initialize);
    assert!(!pair.ends[0].try_take(start, lane(0), 1), "nothing is sent yet");
    assert!(pair.ends[0].try_take(start, Vl::MANAGEMENT, 4), "but management is");
    assert_eq!(pair.ends[0].poll_update(start).map(|u| (u.op, u.fccl)), Some((Op::Init, 100)));
    pair.exchange(start, || true);
    assert_eq!(pair.ends[1].state(), LinkState::Initialize);
    let later = start + us(1000);
    assert_eq!(pair.ends[0].poll_timeout(), Some(later));
    pair.exchange(later, || false);
    assert!(pair.ends.iter().all(|e| e.state() == LinkState::Active));
    assert!((0..3).all(|vl| pair.ends[0].available(later, lane(vl)) == 100));
    assert!(!pair.ends[0].try_take(later, lane(3), 1), "there is no such lane");
    assert_eq!(pair.ends[0].handle_packet(lane(3), 1), Err(Overrun { blocks: 1, free: 0 }));
    assert!(!pair.ends[0].handle_update(later, &FlowControlPacket { vl: lane(3), ..update(0, 0) }));
    let next = pair.ends[0].poll_update(later + us(1000)).map(|u| u.op);
    assert_eq!(next, Some(Op::Normal));
}

#[test]
fn updates_come_when_blocks_are_free_and_periodically() {
    let start = Instant::now();
    let config = Config { blocks: 200, ..Config::default() };
    let mut pair = Pair::new(&config, start);
    pair.exchange(start, || false);
    assert_eq!(pair.ends[1].poll_update(start), None);
    assert!(pair.ends[0].try_take(start, lane(0), 100));
    assert_eq!(pair.ends[1].handle_packet(lane(0), 100), Ok(()));
    pair.ends[1].release(lane(0), 63);
    assert_eq!(pair.ends[1].poll_update(start), None, "not worth it yet");
    pair.ends[1].release(lane(0), 1);
    assert_eq!(pair.ends[1].poll_update(start).map(|u| u.fccl), Some(264));
    pair.ends[1].release(lane(0), 36);
    assert_eq!(pair.ends[1].poll_update(start), None);
    assert_eq!(pair.ends[1].poll_update(start + us(1000)).map(|u| u.fccl), Some(300));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A packet of this many blocks on a lane, lost or not.
    Send(u8, u32, bool),
    /// The receiver reads this many packets.
    Read(usize),
    /// Time passes and updates are exchanged; one in this many arrives.
    Exchange(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..2u8, 1..70u32, prop::bool::weighted(0.1)).prop_map(|(v, n, lost)| Step::Send(v, n, lost)),
        2 => (0..10usize).prop_map(Step::Read),
        2 => (0..3000u64, 1..4u64).prop_map(|(us, kept)| Step::Exchange(us, kept)),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is lost, the receiver never has to drop, and all credit returns when loss ends.
    #[test]
    fn lost_updates_and_data_heal(steps in steps()) {
        let mut now = Instant::now();
        let config = Config { vls: 2, blocks: 150, fcp_on_free_blocks: 20, ..Config::default() };
        let mut pair = Pair::new(&config, now);
        pair.exchange(now, || false);
        let mut buffer = VecDeque::new();
        let mut turn = 0;
        for step in steps {
            match step {
                Step::Send(vl, n, lost) => {
                    if pair.ends[0].try_take(now, lane(vl), n) && !lost {
                        prop_assert_eq!(pair.ends[1].handle_packet(lane(vl), n), Ok(()));
                        buffer.push_back((vl, n));
                    }
                }
                Step::Read(packets) => {
                    for _ in 0..packets {
                        if let Some((vl, n)) = buffer.pop_front() {
                            pair.ends[1].release(lane(vl), n);
                        }
                    }
                }
                Step::Exchange(passed, kept) => {
                    now += us(passed);
                    pair.exchange(now, || { turn += 1; turn % kept != 0 });
                }
            }
        }
        while let Some((vl, n)) = buffer.pop_front() {
            pair.ends[1].release(lane(vl), n);
        }
        // Twice: the sender's count, then the limit that results from it.
        for _ in 0..2 {
            now += us(1000);
            pair.exchange(now, || false);
        }
        for vl in 0..2 {
            prop_assert_eq!(pair.ends[0].available(now, lane(vl)), 150);
        }
    }
}
