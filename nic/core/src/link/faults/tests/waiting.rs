use super::*;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);

/// Releases all waiting frames, each at its time; returns when and which.
fn drain(layer: &mut FaultLayer, start: Instant) -> Vec<(Duration, u32)> {
    let mut out = Vec::new();
    while let Some(at) = layer.poll_timeout() {
        layer.handle_timeout(at, &mut |f| out.push((at - start, psn_of(&f))));
    }
    out
}

fn psns(frames: &[Frame]) -> Vec<u32> {
    frames.iter().map(psn_of).collect()
}

#[test]
fn a_delayed_packet_is_overtaken() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["psn=#0 delay 80us", "psn=#1 delay 20us"]);
    assert_eq!(psns(&run(&mut layer, now, [send(0), send(1), send(2)])), [2]);
    assert_eq!(layer.poll_timeout(), Some(now + 20 * US));
    layer.handle_timeout(now + 19 * US, &mut |f| panic!("too early: {f:?}"));
    assert_eq!(drain(&mut layer, now), [(20 * US, 1), (80 * US, 0)]);
    assert_eq!(layer.poll_timeout(), None);
}

#[test]
fn equal_delays_keep_the_order_and_several_add_up() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["delay 10us", "psn=#1 delay 1us", "dup"]);
    assert!(run(&mut layer, now, [send(0), send(1), send(2)]).is_empty());
    let expected = [(10, 0), (10, 0), (10, 2), (10, 2), (11, 1), (11, 1)].map(|(us, psn)| (us * US, psn));
    assert_eq!(drain(&mut layer, now), expected);
}

#[test]
fn jitter_spreads_delays_evenly_around_the_middle() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["delay 100us +-40us"]);
    run(&mut layer, now, (0..2000).map(send));
    let times: Vec<_> = drain(&mut layer, now).into_iter().map(|(at, _)| at).collect();
    assert_eq!(times.len(), 2000);
    assert!(times.iter().all(|t| (60 * US..=140 * US).contains(t)));
    assert!(times[0] < 62 * US && times[1999] > 138 * US, "{:?} to {:?}", times[0], times[1999]);
    // The standard deviation of the median of 2000 uniform draws over 80 us is under 1 us.
    assert!((94 * US..=106 * US).contains(&times[1000]), "{:?}", times[1000]);
}

#[test]
fn a_held_packet_waits_for_others_of_its_queue_pair() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["qp=0x11 psn=#0 reorder 2"]);
    let other = packet(Opcode::RcSendOnly, 0x22, 500);
    let out = run(&mut layer, now, [send(0), other.clone(), send(1), other, send(2), send(3)]);
    assert_eq!(psns(&out), [500, 1, 500, 2, 0, 3]);
    assert_eq!(out[4].notes, ["fault f1: held until 2 overtake it"]);
    assert_eq!(layer.poll_timeout(), None);
}

#[test]
fn the_last_packet_of_a_burst_is_late_and_not_lost() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["tx psn=#0 reorder 5"]);
    run(&mut layer, now, [send(0), send(1)]);
    assert!(
        layer.applies_to(Direction::Tx),
        "the rule is spent, but somebody must count those that overtake"
    );
    assert_eq!(drain(&mut layer, now), [(10 * MS, 0)]);
    assert!(!layer.applies_to(Direction::Tx));
}

#[test]
fn a_rule_that_reorders_all_swaps_pairs() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["reorder 1"]);
    assert_eq!(psns(&run(&mut layer, now, (0..6).map(send))), [1, 0, 3, 2, 5, 4]);
    assert_eq!(layer.hits("f1"), Some(3));
}

#[test]
fn holding_and_delaying_add_up() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["psn=#0 reorder 1", "psn=#0 delay 5us"]);
    assert_eq!(psns(&run(&mut layer, now, [send(0), send(1)])), [1]);
    assert_eq!(drain(&mut layer, now), [(5 * US, 0)]);
}

#[test]
fn packets_that_are_late_overtake_as_well() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["psn=#0 reorder 1", "psn=#1 delay 5us"]);
    assert!(run(&mut layer, now, [send(0), send(1)]).is_empty());
    assert_eq!(drain(&mut layer, now), [(5 * US, 1), (5 * US, 0)]);
}

#[test]
fn windows_open_and_close() {
    let start = Instant::EPOCH;
    let mut layer = layer(start, &["drop from 1ms for 2ms", "mark ce for 1ms"]);
    let fate = |layer: &mut FaultLayer, at: Duration| {
        let out = run(layer, start + at, [send(0)]);
        (out[0].fate != Fate::Pending, out[0].ip.tos == 3)
    };
    assert_eq!(fate(&mut layer, Duration::ZERO), (false, true));
    assert_eq!(fate(&mut layer, MS - US), (false, true));
    assert_eq!(fate(&mut layer, MS), (true, false));
    assert_eq!(fate(&mut layer, 3 * MS - US), (true, false));
    assert_eq!(fate(&mut layer, 3 * MS), (false, false));
}

#[test]
fn what_waits_is_bounded() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["delay 1s"]);
    let big = frame_of(&Headers::new(Opcode::RcSendOnly, Qpn::new(0x11), Psn::new(0)), &[0; 60_000]);
    let passed = run(&mut layer, now, std::iter::repeat_n(big.clone(), 1200));
    let fits = (64 << 20) / big.bytes.len();
    assert_eq!(passed.len(), 1200 - fits);
    assert_eq!(layer.overflows(), passed.len() as u64);
    assert_eq!(passed[0].notes.last().map(String::as_str), Some("fault: too much is waiting, not delayed"));
    assert_eq!(drain(&mut layer, now).len(), fits);
    assert!(run(&mut layer, now, [big]).is_empty(), "there is room again");
}

#[test]
fn what_is_held_is_bounded() {
    let now = Instant::EPOCH;
    let mut layer = layer(now, &["reorder 1"]);
    let queue_pairs = (0..2000).map(|n| packet(Opcode::RcSendOnly, 0x100 + n, 0));
    let passed = run(&mut layer, now, queue_pairs);
    assert_eq!(passed.len(), 2000 - 1024);
    assert_eq!(drain(&mut layer, now).len(), 1024);
}

proptest! {
    /// Whatever arrives, nothing panics, and no packet is lost or invented unless a rule demands it.
    #[test]
    fn every_packet_comes_out_once(
        packets in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..100),
                (any::<u32>(), 0..50_u32).prop_map(|(qpn, psn)| packet(Opcode::RcSendOnly, qpn, psn).bytes),
            ],
            0..100,
        ),
        seed in any::<u64>(),
    ) {
        let now = Instant::EPOCH;
        let mut layer = FaultLayer::new(seed);
        layer.diagnose(true);
        for rule in [
            "p=0.3 drop", "p=0.3 delay 1ms +-2ms", "p=0.3 reorder 2", "p=0.3 corrupt payload", "qp=#3 try=2 mark ce",
            "p=0.3 corrupt header", "p=0.3 corrupt icrc", "corrupt bit=100", "every=3 delay 1us", "nth=1000 drop",
        ] {
            layer.add(now, rule.parse().unwrap()).unwrap();
        }
        let count = packets.len();
        let mut out = run(&mut layer, now, packets.into_iter().map(|bytes| Frame { bytes, ..send(0) }));
        while let Some(at) = layer.poll_timeout() {
            layer.handle_timeout(at, &mut |f| out.push(f));
        }
        prop_assert_eq!(out.len(), count);
        let dropped = out.iter().filter(|f| f.fate != Fate::Pending).count() as u64;
        prop_assert_eq!(Some(dropped), layer.hits("f1"));
    }
}
