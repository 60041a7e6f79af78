//! Which packets are marked.

use super::*;

/// Runs a queue that is `length` packets long when each of `packets` leaves; returns how many were marked.
fn marked(link: &str, length: u64, packets: u32, tos: u8, seed: u64) -> u64 {
    let mut bench = Bench::with(link, "off", seed);
    for _ in 0..length {
        bench.arrive(frame(1, tos, KILOBYTE));
    }
    for n in 1..=packets {
        bench.run_to(MICROSECOND * n);
        bench.arrive(frame(1, tos, KILOBYTE));
    }
    bench.link.stats().marked
}

#[test]
fn marks_follow_the_length_of_the_queue_at_departure() {
    let red = "rate=8Gb/s,buffer=1MB,kmin=10000,kmax=30000,pmax=0.1";
    assert_eq!(marked(red, 10, 10_000, ECT, 1), 0, "at kmin");
    assert_eq!(marked(red, 31, 10_000, ECT, 1), 10_000, "above kmax");
    // Half way, and at kmax: 5 % and 10 %, within four standard deviations (22 and 30).
    for (length, wanted, off) in [(20, 500, 88), (30, 1000, 120)] {
        for seed in 1..4 {
            let marked = marked(red, length, 10_000, ECT, seed);
            assert!(marked.abs_diff(wanted) < off, "seed {seed}: {marked} of 10,000 at {length} packets");
        }
    }
    assert_eq!(marked(red, 20, 10_000, ECT, 5), marked(red, 20, 10_000, ECT, 5), "the seed decides");
    assert_ne!(
        [6, 7, 8].map(|seed| marked(red, 20, 10_000, ECT, seed)),
        [marked(red, 20, 10_000, ECT, 5); 3]
    );
}

#[test]
fn only_what_says_so_is_marked_and_captures_tell() {
    let red = "rate=8Gb/s,kmin=0,kmax=1,pmax=1";
    for (tos, after) in [(0x60, 0x60), (0x61, 0x63), (0x62, 0x63), (0x63, 0x63)] {
        let mut bench = Bench::new(red);
        bench.arrive(frame(1, tos, KILOBYTE));
        bench.arrive(frame(1, tos, KILOBYTE));
        bench.run_to(MICROSECOND * 10);
        let by_us = tos != after;
        assert_eq!(bench.out.iter().map(|(_, f)| f.ip.tos).collect::<Vec<_>>(), [after; 2]);
        assert_eq!(bench.link.stats().marked, if by_us { 2 } else { 0 });
        let notes = bench.out.iter().map(|(_, f)| f.notes.join("")).collect::<Vec<_>>();
        let told = ["link: marked CE at queue 2 KB", "link: marked CE at queue 1 KB"];
        assert_eq!(notes, if by_us { told } else { ["", ""] });
    }
}

#[test]
fn each_priority_marks_by_its_own_queue() {
    let mut bench = Bench::new("rate=8Gb/s,kmin=2500,kmax=2500,pmax=1");
    for _ in 0..10 {
        bench.arrive(frame(1, of_priority(1) | ECT, KILOBYTE));
    }
    bench.arrive(frame(1, of_priority(5) | ECT, KILOBYTE));
    bench.run_to(MICROSECOND * 100);
    // Those of priority 1 that leave ten, nine, ... three of their kind; the one of priority 5 leaves none.
    assert_eq!(bench.link.stats().marked, 8);
    assert!(bench.out.iter().all(|(_, f)| priority_of(f.ip.tos) == 1 || f.notes.is_empty()));
}

#[test]
fn without_congestion_control_or_words_nothing_is_marked() {
    assert_eq!(marked("rate=8Gb/s,buffer=1MB", 500, 100, ECT, 1), 0);
    let mut bench = Bench::with("rate=10Gb/s,buffer=1MB", "dcqcn:preset=paper", 1);
    for _ in 0..300 {
        bench.arrive(frame(1, ECT, KILOBYTE));
    }
    bench.run_to(Duration::from_millis(1));
    // Above 200 KB all 100 are, below 1 % at the most.
    assert!((100..110).contains(&bench.link.stats().marked), "{:?}", bench.link.stats());
}
