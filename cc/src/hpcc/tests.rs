//! The formulas of HPCC against numbers computed by hand.

use super::*;

const LINE: Rate = Rate::from_gbps(100);

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// A record of one port of 100 Gb/s.
fn hop(at_us: u64, sent: u64, waiting: u64) -> Telemetry {
    Telemetry::of(&[Hop::new(LINE, Instant::EPOCH + us(at_us), sent, waiting)]).expect("room")
}

/// A flow with a round-trip time of 10 us, which has seen a first record at time 0.
fn flow(config: Config) -> Hpcc {
    let mut flow = Hpcc::new(Arc::new(Config { rtt: 10, ..config }), LINE);
    flow.on_telemetry(Instant::EPOCH, 1, 30, &hop(0, 0, 0));
    flow
}

fn is_close(found: f64, wanted: f64) -> bool {
    (found / wanted - 1.0).abs() < 1e-6
}

#[test]
fn a_flow_begins_at_the_rate_of_the_port_with_a_bandwidth_delay_product() {
    let flow = flow(Config::default());
    assert_eq!((flow.rate(), flow.window()), (LINE, 125_000));
    assert!(is_close(flow.utilisation(), 1.0), "the first record says nothing");
    assert!(
        is_close(Config::default().increase(LINE), 40e6) && is_close(Config::default().least(LINE), 100e6)
    );
    let slow = Rate::from_gbps(10);
    assert!(is_close(Config::default().increase(slow), 4e6) && is_close(Config::default().least(slow), 10e6));
}

/// In 10 us, a round-trip time, the port sent 64,000 of 125,000 bytes: `u = 0.512`. The rate is divided by `0.512 / 0.95`, which
/// goes beyond that of the port; from half of it, it does not.
#[test]
fn the_rate_is_divided_by_the_utilisation_over_the_target() {
    let mut flow = flow(Config::default());
    flow.current = 40e9;
    flow.on_telemetry(Instant::EPOCH + us(10), 40, 60, &hop(10, 64_000, 0));
    assert!(is_close(flow.utilisation(), 0.512), "{}", flow.utilisation());
    assert!(is_close(flow.rate, 40e9 * 0.95 / 0.512 + 40e6), "{}", flow.rate);
    let window = 125_000.0 * flow.rate / 100e9;
    assert_eq!(flow.window(), window as u64);
    flow.on_telemetry(Instant::EPOCH + us(20), 70, 90, &hop(20, 128_000, 0));
    assert_eq!(flow.rate(), LINE, "not above the port");
}

/// A full port, and a queue of 64,000 bytes at both ends of the time: `u = 1.024 + 64,000 / 125,000 = 1.536`. With a queue at one
/// end only it is 1.024.
#[test]
fn a_queue_counts_as_the_shorter_of_two() {
    let mut flow = flow(Config::default());
    flow.on_telemetry(Instant::EPOCH + us(10), 5, 60, &hop(10, 128_000, 64_000));
    assert!(is_close(flow.utilisation(), 1.024), "{}", flow.utilisation());
    flow.on_telemetry(Instant::EPOCH + us(20), 10, 60, &hop(20, 256_000, 64_000));
    assert!(is_close(flow.utilisation(), 1.536), "{}", flow.utilisation());
    assert!(is_close(flow.rate, 100e9 * 0.95 / 1.536 + 40e6), "{}", flow.rate);
}

/// After 4 us of 10 the new value has a weight of 0.4: `0.6 x 1 + 0.4 x 0.512`.
#[test]
fn the_utilisation_is_an_average_over_a_round_trip_time() {
    let mut flow = flow(Config::default());
    flow.on_telemetry(Instant::EPOCH + us(4), 5, 60, &hop(4, 25_600, 0));
    assert!(is_close(flow.utilisation(), 0.6 + 0.4 * 0.512), "{}", flow.utilisation());
    // A longer time than that counts as one round-trip time.
    flow.on_telemetry(Instant::EPOCH + us(104), 6, 60, &hop(104, 665_600, 0));
    assert!(is_close(flow.utilisation(), 0.512), "{}", flow.utilisation());
}

/// Within a round-trip time all rates are computed from the same one: two equal signals do not slow down twice.
#[test]
fn the_base_changes_once_in_a_round_trip_time() {
    let mut flow = flow(Config::default());
    let full = |n: u64| hop(10 * n, 128_000 * n, 128_000);
    flow.on_telemetry(Instant::EPOCH + us(10), 20, 50, &full(1));
    flow.on_telemetry(Instant::EPOCH + us(20), 30, 60, &full(2));
    let wanted = 100e9 * 0.95 / 2.048 + 40e6;
    assert!(
        is_close(flow.rate, wanted) && is_close(flow.current, 100e9),
        "30 is not after 30: {}",
        flow.rate
    );
    flow.on_telemetry(Instant::EPOCH + us(30), 31, 70, &full(3));
    assert!(is_close(flow.rate, wanted) && is_close(flow.current, wanted), "the round is over");
    flow.on_telemetry(Instant::EPOCH + us(40), 70, 90, &full(4));
    assert!(is_close(flow.rate, wanted * 0.95 / 2.048 + 40e6) && is_close(flow.current, wanted));
}

#[test]
fn with_stages_the_rate_only_grows_for_some_rounds() {
    let mut flow = flow(Config { max_stage: 2, ..Config::default() });
    flow.current = 10e9;
    flow.utilisation = 0.512;
    let mut rates = Vec::new();
    for n in 1..=4 {
        let at = Instant::EPOCH + us(10 * n);
        flow.on_telemetry(at, 100 * n, 100 * n + 50, &hop(10 * n, 64_000 * n, 0));
        rates.push(flow.rate);
    }
    let third = 10.08e9 * 0.95 / 0.512 + 40e6;
    for (found, wanted) in rates.iter().zip([10.04e9, 10.08e9, third, third + 40e6]) {
        assert!(is_close(*found, wanted), "{rates:?}");
    }
}

#[test]
fn the_busiest_hop_counts_with_its_own_time() {
    let mut flow = Hpcc::new(Arc::new(Config { rtt: 10, ..Config::default() }), LINE);
    let fast = Rate::from_gbps(400);
    let path = |n: u64, first: u64, second: u64| {
        let at = Instant::EPOCH + us(10 * n);
        Telemetry::of(&[Hop::new(LINE, at, first, 0), Hop::new(fast, at, second, 0)]).expect("room")
    };
    flow.on_telemetry(Instant::EPOCH, 1, 10, &path(0, 0, 0));
    // 0.512 of the first, 0.8192 of the second.
    flow.on_telemetry(Instant::EPOCH + us(10), 2, 10, &path(1, 64_000, 409_600));
    assert!(is_close(flow.utilisation(), 0.8192), "{}", flow.utilisation());
    // 0.9216 of the first, 0.4096 of the second.
    flow.on_telemetry(Instant::EPOCH + us(20), 3, 10, &path(2, 64_000 + 115_200, 409_600 + 204_800));
    assert!(is_close(flow.utilisation(), 0.9216), "{}", flow.utilisation());
}

/// What is no second record of the same ports changes nothing.
#[test]
fn records_of_another_path_or_of_long_ago_are_only_remembered() {
    let start = Instant::EPOCH;
    let mut flow = flow(Config::default());
    // More than the line carries: another port, with another count.
    flow.on_telemetry(start + us(10), 40, 60, &hop(10, 100_000_000, 0));
    assert_eq!((flow.rate(), flow.utilisation()), (LINE, 1.0));
    let two = [Hop::new(LINE, start + us(20), 0, 0); 2];
    flow.on_telemetry(start + us(20), 50, 70, &Telemetry::of(&two).expect("room"));
    assert_eq!(flow.utilisation(), 1.0, "another number of hops");
    flow.on_telemetry(start + us(30), 50, 70, &Telemetry::default());
    flow.on_telemetry(start + us(40), 50, 70, &Telemetry::default());
    assert_eq!(flow.utilisation(), 1.0, "no hops at all");
    flow.on_telemetry(start + us(50), 60, 80, &hop(50, 0, 0));
    let late = start + us(50) + hop::CLOCK;
    flow.on_telemetry(late, 70, 90, &hop(51, 128, 0));
    assert_eq!(flow.utilisation(), 1.0, "the clock has wrapped");
    flow.on_telemetry(late, 70, 90, &hop(51, 128, 0));
    assert_eq!(flow.utilisation(), 1.0, "no time has passed");
}

#[test]
fn the_rate_stays_within_its_bounds() {
    let mut flow = flow(Config::default());
    for n in 1..200 {
        let at = Instant::EPOCH + us(10 * n);
        flow.on_telemetry(at, 100 * n, 100 * n + 50, &hop(10 * n, 128_000 * n, u64::MAX));
        assert!(flow.rate >= 100e6 && flow.rate <= 100e9);
    }
    assert!(flow.rate < 150e6, "{}", flow.rate);
    for n in 200..600 {
        let at = Instant::EPOCH + us(10 * n);
        flow.on_telemetry(at, 100 * n, 100 * n + 50, &hop(10 * n, 128_000 * 200, 0));
        assert!(flow.rate.is_finite() && flow.rate >= 100e6 && flow.rate <= 100e9);
    }
    assert_eq!(flow.rate(), LINE, "an idle path is filled at once");
}

#[test]
fn a_word_has_its_fields_where_the_simulator_has_them() {
    // Code 2, 0x000bb8 ns, 10 units of 512 bytes, 3 of 320.
    let hop = Hop::new(LINE, Instant::EPOCH + us(3), 5300, 1000);
    assert_eq!(hop.word(), 2 << 61 | 3000 << 37 | 10 << 17 | 3);
    assert_eq!(hop.to_string(), "100 Gb/s t=3000ns sent=5120 queue=960");
    assert_eq!(Hop::from_word(hop.word()), Some(hop));
    assert_eq!(Hop::from_word(6 << 61), None, "no rate has this code");
    let later =
        Hop::new(LINE, Instant::EPOCH + us(3) + hop::CLOCK + us(2), 5120 + (1 << 29) + 1024, u64::MAX);
    assert_eq!((later.time_since(hop), later.bytes_since(hop)), (us(2), 1024), "both wrap");
    assert_eq!(later.queue(), 131_071 * 320, "it does not");
    // Both wrap between the two.
    let earlier = Hop::new(LINE, Instant::EPOCH + hop::CLOCK - us(1), (1 << 29) - 512, 0);
    let later = Hop::new(LINE, Instant::EPOCH + hop::CLOCK + us(1), (1 << 29) + 512, 0);
    assert_eq!((later.time_since(earlier), later.bytes_since(earlier)), (us(2), 1024));
}

/// A rate without a code takes the next higher one: what a port of 10 Gb/s sends and queues counts 2.5 times, at 25 Gb/s.
#[test]
fn rates_without_a_code_count_in_proportion() {
    for (rate, of, bytes, factor) in [
        (Rate::from_gbps(10), 25, 64_000, 2.5),
        (Rate::from_mbps(100), 25, 32_000, 250.0),
        (Rate::from_gbps(40), 50, 64_000, 1.25),
        (Rate::from_gbps(800), 800, 64_000, 1.0),
        (Rate::from_gbps(1600), 800, 64_000, 1.0),
    ] {
        let (old, new) = (Hop::new(rate, Instant::EPOCH, 0, 0), Hop::new(rate, Instant::EPOCH, bytes, bytes));
        assert_eq!(new.rate(), Rate::from_gbps(of), "{rate}");
        let (sent, queue) = (new.bytes_since(old) as f64, new.queue() as f64);
        let wanted = bytes as f64 * factor;
        assert!((sent / wanted - 1.0).abs() < 0.07, "{rate}: {sent}");
        assert!((queue / wanted - 1.0).abs() < 0.05, "{rate}: {queue}");
    }
}

#[test]
fn a_packet_has_room_for_five_hops() {
    let mut path = Telemetry::default();
    let added: Vec<_> = (0..7).map(|n| path.push(Hop::new(LINE, Instant::EPOCH, n, 0))).collect();
    assert_eq!(added, [true, true, true, true, true, false, false]);
    assert_eq!((path.hops().len(), HEADER_LEN), (5, 42));
    assert_eq!(Telemetry::of(path.hops()), Some(path));
    assert_eq!(Telemetry::of(&[Hop::default(); 6]), None);
}
