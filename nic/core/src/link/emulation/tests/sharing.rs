//! Which priority or lane leaves next.

use super::*;

/// Keeps a backlog of the given priorities until `packets` have left; returns the bytes sent of each.
fn shares(link: &str, backlog: &[(u8, usize)], packets: u32) -> [u64; PRIORITIES] {
    let mut bench = Bench::new(link);
    let mut sent = [0; PRIORITIES];
    for (priority, len) in backlog {
        for _ in 0..3 {
            bench.arrive(frame(1, of_priority(*priority), *len));
        }
    }
    let mut left = 0;
    while left < packets {
        let due = bench.due().expect("a backlog");
        bench.run_to(due);
        for (_, frame) in std::mem::take(&mut bench.out) {
            left += 1;
            sent[usize::from(priority_of(frame.ip.tos))] += u64::from(wire_bytes(frame.bytes.len(), false));
            bench.arrive(frame);
        }
    }
    assert_eq!(bench.link.stats().dequeued_packets, u64::from(left));
    sent
}

#[test]
fn priorities_share_the_port_as_ets_says() {
    let sent =
        shares("rate=10Gb/s,tsa=ets,ets,ets,tc_bw=50,30,20", &[(0, 4112), (1, 500), (2, 1040)], 20_000);
    let total: u64 = sent.iter().sum();
    for (priority, share) in [(0, 0.5), (1, 0.3), (2, 0.2)] {
        let off = sent[priority] as f64 - share * total as f64;
        // A round is five of the largest packets for priority 0 to 2 together.
        assert!(off.abs() < 5.0 * 4222.0, "priority {priority}: {off} bytes off");
    }
    // Unused shares go to the others.
    let sent = shares("rate=10Gb/s,tsa=ets,ets,ets,tc_bw=50,30,20", &[(1, 1000), (2, 1000)], 10_000);
    assert!((sent[1] as f64 / sent[2] as f64 - 1.5).abs() < 0.02, "{sent:?}");
}

#[test]
fn strict_priorities_go_first_and_never_interrupt_a_packet() {
    let mut bench = Bench::new("rate=8Gb/s");
    for priority in [0, 0, 3, 6] {
        bench.arrive(frame(1, of_priority(priority), KILOBYTE));
    }
    bench.run_to(MICROSECOND * 10);
    let order: Vec<u8> = bench.out.iter().map(|(_, f)| priority_of(f.ip.tos)).collect();
    assert_eq!(order, [0, 6, 3, 0], "the first was on the line already");
    assert_eq!(bench.times(), [1000, 2000, 3000, 4000]);
}

#[test]
fn queues_are_told_by_priority() {
    let mut bench = Bench::new("rate=8Gb/s");
    for priority in [0, 0, 3, 6] {
        bench.arrive(frame(1, of_priority(priority), KILOBYTE));
    }
    assert_eq!(bench.link.stats().queue, [2000, 0, 0, 1000, 0, 0, 1000, 0]);
    bench.run_to(MICROSECOND * 10);
    let stats = bench.link.stats();
    assert_eq!((stats.queue, stats.queue_bytes, stats.queue_bytes_max), ([0; PRIORITIES], 0, 4000));
    assert_eq!((stats.dequeued_packets, stats.dequeued_bytes), (4, 4000));
}

#[test]
fn lanes_share_the_port_as_their_table_says() {
    let link = "ib-credits:rate=10Gb/s,vls=2,sl2vl=0,1,0,1,vlarb_low=0:64,1:32,vlarb_high=";
    let sent = shares(link, &[(0, 1000), (1, 1000)], 9_000);
    assert!((sent[0] as f64 / sent[1] as f64 - 2.0).abs() < 0.02, "{sent:?}");
    // By default all service levels share one lane, first come, first served.
    let mut bench = Bench::new("ib-credits:rate=8Gb/s");
    for priority in [0, 6, 3, 7] {
        bench.arrive(frame(1, of_priority(priority), KILOBYTE));
    }
    bench.run_to(MICROSECOND * 10);
    let order: Vec<u8> = bench.out.iter().map(|(_, f)| priority_of(f.ip.tos)).collect();
    assert_eq!(order, [0, 6, 3, 7]);
}

#[test]
fn a_service_level_without_a_lane_is_dropped() {
    let mut bench = Bench::new("ib-credits:rate=8Gb/s,sl2vl=0,15");
    bench.arrive(frame(1, of_priority(0), KILOBYTE));
    bench.arrive(frame(1, of_priority(1), KILOBYTE));
    assert_eq!((bench.dropped(), bench.link.stats().dropped), (1, 1));
    assert_eq!(bench.out[0].1.notes, ["link: dropped: its service level has no lane"]);
    // What was dropped gives back the credit that it took.
    let dropped = std::iter::from_fn(|| bench.link.poll_entered()).map(|entered| entered.dropped);
    assert!(dropped.eq([false, true]));
}

#[test]
fn a_lane_that_no_table_has_waits_and_others_go_on() {
    let mut bench = Bench::new("ib-credits:rate=8Gb/s,vls=2,buffer=10KB,vlarb_low=0:1,vlarb_high=0:1");
    bench.arrive(frame(1, of_priority(1), KILOBYTE));
    assert_eq!(bench.link.poll_timeout(), None);
    bench.now = MICROSECOND * 5;
    bench.arrive(frame(1, of_priority(0), KILOBYTE));
    bench.run_to(MICROSECOND * 10);
    assert_eq!((bench.times(), bench.link.stats().queue_bytes), (vec![6000], 1000));
}
