//! Pauses over a cable, at their worst: a peer that sends without a break into a port that reads nothing, and that is
//! sending a packet of its own whenever it wants to ask for a pause.

use cc::Rate;
use cc::pfc::{Ingress, PRIORITIES, PauseFrame, Paused, Quanta, Span, Thresholds};
use std::collections::VecDeque;
use time::{Duration, Instant};

const PRIORITY: u8 = 3;

/// What a run has seen.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    drops: u32,
    largest: u64,
}

/// The peer sends packets of `sizes`, over and over; this port's own packet ends `wait` after the pause was wanted.
/// The buffer takes `xoff` and `headroom`, and the port reads nothing. The run ends when the pause has taken effect.
fn run(span: &Span, headroom: u64, sizes: &[u32], xoff: u64, wait: Duration) -> Seen {
    let start = Instant::EPOCH;
    let mut thresholds = [None; PRIORITIES];
    thresholds[usize::from(PRIORITY)] = Some(Thresholds { xoff, xon: xoff / 2, headroom });
    let mut ingress = Ingress::new(span.rate, Quanta::MAX, thresholds);
    let mut peer = Paused::new(span.rate);
    let (mut begins, mut sent, mut seen) = (start, 0, Seen { drops: 0, largest: 0 });
    // Pause frames, by the time at which they take effect at the peer.
    let mut pauses = VecDeque::new();
    for size in sizes.iter().cycle() {
        while let Some((at, frame)) = pauses.pop_front_if(|(at, _)| *at <= begins) {
            peer.handle_frame(at, &frame);
        }
        if !peer.may_send(begins, PRIORITY) {
            break;
        }
        // The sum is rounded to a nanosecond, not each packet.
        sent += u64::from(*size);
        begins = start + span.rate.time_for(sent);
        let arrives = begins + span.propagation();
        match ingress.handle_packet(PRIORITY, u64::from(*size)) {
            Ok(()) => seen.largest = seen.largest.max(ingress.occupancy(PRIORITY)),
            Err(_) => seen.drops += 1,
        }
        if let Some(frame) = ingress.poll_frame(arrives) {
            let gone = arrives + wait + span.rate.time_for(PauseFrame::WIRE_LEN.into());
            pauses.push_back((gone + span.propagation() + span.reaction, frame));
        }
        assert!(begins < start + Duration::from_millis(10), "no pause took effect");
    }
    seen
}

/// All phases of the port's own packet, from just begun to just ended.
fn phases(span: &Span) -> impl Iterator<Item = Duration> {
    let whole = span.rate.time_for(span.own_mtu.into());
    (0..=16).map(move |n| whole * n / 16)
}

fn spans() -> impl Iterator<Item = Span> {
    [10, 25, 40, 100, 400].into_iter().flat_map(|gbps| {
        [(2, 1024), (100, 4096), (300, 9216), (10_000, 4096)]
            .into_iter()
            .map(move |(metres, mtu)| Span::new(Rate::from_gbps(gbps), metres, mtu))
    })
}

#[test]
fn nothing_is_dropped_at_the_computed_headroom_and_something_a_packet_below_it() {
    for span in spans() {
        let headroom = span.headroom().bytes();
        let mtu = u64::from(span.peer_mtu);
        let full = [span.peer_mtu];
        // Packets end just at XOFF, so that the next one lies beyond it altogether.
        let xoff = 20 * mtu;
        let mut largest = 0;
        for wait in phases(&span) {
            let seen = run(&span, headroom, &full, xoff, wait);
            assert_eq!(seen.drops, 0, "{span:?}, {wait:?}: {seen:?}");
            largest = largest.max(seen.largest - xoff);
        }
        println!("{} over {} m, MTU {mtu}: headroom {headroom}, used {largest}", span.rate, span.cable_m);
        let drops: u32 = phases(&span).map(|wait| run(&span, headroom - mtu, &full, xoff, wait).drops).sum();
        assert!(drops > 0, "{span:?}: {largest} of {headroom} bytes were used");
    }
}

#[test]
fn nothing_is_dropped_whatever_the_sizes_of_packets() {
    for span in spans() {
        let headroom = span.headroom().bytes();
        let mtu = span.peer_mtu;
        for sizes in [vec![64], vec![mtu, 64], vec![mtu / 2 + 1, mtu, 65, 64], vec![mtu - 1]] {
            for (n, wait) in phases(&span).enumerate() {
                let seen = run(&span, headroom, &sizes, 20 * u64::from(mtu) + 7 * n as u64, wait);
                assert_eq!(seen.drops, 0, "{span:?}, {sizes:?}, {wait:?}: {seen:?}");
            }
        }
    }
}

/// The whole cycle: pause, read, go on, for long. Nothing is lost, and the port is not idle once it reads.
#[test]
fn a_slow_reader_pauses_its_peer_and_loses_nothing() {
    let span = Span::new(Rate::from_gbps(100), 100, 4096);
    let headroom = span.headroom().bytes();
    let mut thresholds = [None; PRIORITIES];
    thresholds[usize::from(PRIORITY)] = Some(Thresholds { xoff: 100_000, xon: 80_000, headroom });
    let mut ingress = Ingress::new(span.rate, Quanta(1000), thresholds);
    let mut peer = Paused::new(span.rate);
    let start = Instant::EPOCH;
    let tick = span.rate.time_for(4096);
    let mut frames = VecDeque::new();
    let (mut now, mut buffered, mut read) = (start, 0u32, 0u64);
    for n in 0..200_000u64 {
        now += tick;
        while let Some((at, frame)) = frames.pop_front_if(|(at, _)| *at <= now) {
            peer.handle_frame(at, &frame);
        }
        if peer.may_send(now, PRIORITY) {
            assert_eq!(ingress.handle_packet(PRIORITY, 4096), Ok(()));
            buffered += 1;
        }
        // A tenth of the rate of the port.
        if n.is_multiple_of(10) && buffered > 0 {
            buffered -= 1;
            read += 1;
            ingress.release(PRIORITY, 4096);
        }
        if let Some(frame) = ingress.poll_frame(now) {
            frames.push_back((now + span.propagation() * 2 + span.reaction, frame));
        }
    }
    peer.handle_timeout(now);
    let counters = peer.counters(PRIORITY);
    println!("{read} packets read, {counters:?}");
    assert!(read > 19_990, "{read} of 20,000 turns to read were used");
    assert!(counters.pause_transition > 100 && counters.pause > counters.pause_transition);
    let paused = counters.pause_duration.as_secs_f64() / (now - start).as_secs_f64();
    assert!((0.88..0.92).contains(&paused), "paused for {paused} of the time");
}
