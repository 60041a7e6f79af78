//! Pauses, and the losses that they prevent.

use super::*;
use cc::pfc::{PauseFrame, Span, response_quanta};
use std::collections::VecDeque;

const LOSSLESS: u8 = of_priority(3);

fn quanta(frame: &PauseFrame) -> [Option<Quanta>; PRIORITIES] {
    match frame {
        PauseFrame::Priorities(times) => *times,
        PauseFrame::Link(_) => panic!("a pause of all traffic"),
    }
}

fn only_3(time: Quanta) -> [Option<Quanta>; PRIORITIES] {
    let mut times = [None; PRIORITIES];
    times[3] = Some(time);
    times
}

#[test]
fn the_peer_that_fills_the_queue_is_paused_and_no_other() {
    let mut bench = Bench::new("rate=8Gb/s,pfc=3,xoff=5000,xon=3000,headroom=5000");
    let pause = |bench: &mut Bench| {
        let now = bench.start + bench.now;
        bench.link.poll_pause(now).map(|(peer, frame)| (peer, quanta(&frame)))
    };
    bench.arrive(frame(2, LOSSLESS, KILOBYTE));
    for _ in 0..5 {
        bench.arrive(frame(1, LOSSLESS, KILOBYTE));
        assert_eq!(pause(&mut bench), None);
    }
    bench.arrive(frame(1, LOSSLESS, KILOBYTE));
    let peer = IpAddr::from([10, 0, 0, 1]);
    assert_eq!(pause(&mut bench), Some((peer, only_3(Quanta::MAX))));
    assert_eq!(pause(&mut bench), None, "once");
    // The packet of the other peer leaves first, then three of the paused one.
    bench.now = MICROSECOND * 3;
    bench.look();
    assert_eq!(pause(&mut bench), None);
    bench.now = MICROSECOND * 4;
    bench.look();
    assert_eq!(pause(&mut bench), Some((peer, only_3(Quanta(0)))));
    assert_eq!((pause(&mut bench), bench.link.stats().pauses_sent), (None, 2));
}

#[test]
fn a_pause_that_goes_on_is_asked_for_again() {
    // A queue that takes 8 s to drain.
    let mut bench = Bench::new("rate=1Mb/s,buffer=1MB,pfc=3,xoff=5000,xon=0");
    for _ in 0..10 {
        bench.arrive(frame(1, LOSSLESS, KILOBYTE));
    }
    let start = bench.start;
    assert!(bench.link.poll_pause(start).is_some());
    let half = Quanta::MAX.time(Rate::from_mbps(1)) / 2;
    assert_eq!(bench.link.poll_pause(start + half - NANOSECOND), None);
    assert!(bench.link.poll_pause(start + half).is_some());
    assert_eq!(bench.link.egress.as_ref().and_then(Egress::refreshes), Some(start + half * 2));
    assert_eq!(bench.link.stats().pauses_sent, 2);
}

#[test]
fn lossy_and_lossless_priorities_do_not_take_each_other_s_room() {
    let mut bench = Bench::new("rate=8Gb/s,buffer=5000,pfc=3,xoff=3000,headroom=2000");
    for _ in 0..8 {
        bench.arrive(frame(1, PLAIN, KILOBYTE));
        bench.arrive(frame(1, LOSSLESS, KILOBYTE));
    }
    // Five packets of each fit.
    assert_eq!((bench.dropped(), bench.link.stats().queue_bytes), (6, 10_000));
    let why =
        |text: &str| bench.out.iter().filter(|(_, f)| f.notes == [format!("link: dropped: {text}")]).count();
    assert_eq!((why("buffer full"), why("headroom full")), (3, 3));
}

#[test]
fn more_peers_than_fit_are_lossy() {
    let mut bench = Bench::new("rate=8Gb/s,buffer=5000,pfc=3,xoff=3000,headroom=2000");
    let from = |n: u32| {
        let mut packet = frame(0, LOSSLESS, KILOBYTE);
        packet.ip.src = std::net::Ipv4Addr::from(0x0a00_0000 + n).into();
        packet
    };
    for n in 0..1024 {
        bench.arrive(from(n));
    }
    assert_eq!(bench.dropped(), 0, "each has a buffer of its own");
    for n in 1024..1034 {
        bench.arrive(from(n));
    }
    assert_eq!(bench.dropped(), 5, "these share the buffer");
    // Once some have nothing in the queue, others take their places.
    bench.run_to(Duration::from_millis(2));
    for n in 2000..2010 {
        bench.arrive(from(n));
    }
    assert_eq!(bench.dropped(), 5);
}

/// A peer at the other end of a cable, as bad as the standard allows: it sends at the rate of the port, reacts to a
/// pause as late as it may, and finishes the train that it has begun, of which `begun` packets have already left.
/// Returns how many packets were dropped.
fn drops(headroom: u64, begun: u64) -> u64 {
    let rate = Rate::from_gbps(10);
    let (packet, cable_m) = (4222 - 86, 200);
    let link = format!("rate=10Gb/s,buffer=1MB,pfc=3,xoff=42220,xon=30000,headroom={headroom}");
    let mut bench = Bench::new(&link);
    let wire = u64::from(wire_bytes(packet, true));
    let train = cc::train_bytes(rate, 4096) / 4096;
    let span = Span::new(rate, cable_m, wire as u32);
    assert_eq!(span.reaction, Quanta(response_quanta(rate)).time(rate));
    let each = rate.time_for(wire);
    // Packets on the cable, and pauses that take effect at the peer.
    let mut flying: VecDeque<Duration> = VecDeque::new();
    let mut paused_from: Option<Duration> = None;
    // The other priority keeps the port busy, so no packet of this one leaves. Ten packets fill the buffer to XOFF
    // exactly, so that all of the next packet lies beyond.
    let mut busy = Duration::ZERO;
    let (mut sent, mut at) = (0, Duration::ZERO);
    while sent < 100 {
        if (sent + begun).is_multiple_of(train) && paused_from.is_some_and(|from| from <= at) {
            break;
        }
        at += each;
        flying.push_back(at + span.propagation());
        sent += 1;
        while let Some(lands) = flying.front().copied().filter(|lands| *lands <= at) {
            flying.pop_front();
            bench.run_quietly(lands, &mut busy);
            land(&mut bench, packet, &mut paused_from, &span, rate);
        }
    }
    for lands in flying {
        bench.run_quietly(lands, &mut busy);
        land(&mut bench, packet, &mut paused_from, &span, rate);
    }
    assert!(paused_from.is_some());
    bench.link.stats().dropped
}

/// A packet arrives; if that causes a pause, the pause frame waits for a packet of this port and travels back.
fn land(bench: &mut Bench, packet: usize, paused_from: &mut Option<Duration>, span: &Span, rate: Rate) {
    let mut lossless = frame(1, LOSSLESS, packet);
    lossless.ip.src = [0xfd00, 0, 0, 0, 0, 0, 0, 1].into();
    bench.arrive(lossless);
    let now = bench.start + bench.now;
    if bench.link.poll_pause(now).is_some() {
        let waits = rate.time_for(u64::from(span.own_mtu) + u64::from(PauseFrame::WIRE_LEN));
        *paused_from = Some(bench.now + waits + span.propagation() + span.reaction);
    }
}

impl Bench {
    /// Lets time pass while a higher priority fills the port.
    fn run_quietly(&mut self, end: Duration, busy: &mut Duration) {
        while *busy <= end {
            self.now = self.now.max(*busy);
            self.arrive(frame(9, of_priority(7), 9000 - 66));
            *busy += Rate::from_gbps(10).time_for(9000);
        }
        self.now = self.now.max(end);
        self.look();
    }
}

#[test]
fn the_computed_headroom_is_enough_and_a_packet_less_is_not() {
    let link: LinkConfig = "rate=10Gb/s,pfc=3".parse().expect("a link");
    let profile = link.at(&Algorithm::Off, Mtu::B4096).expect("in order");
    let headroom = link.cable_headroom(profile.largest_packet, Mtu::B4096);
    assert!(
        profile.thresholds[3].expect("lossless").headroom > headroom,
        "room for what is sent at once, too"
    );
    // The worst case is a train that begins right before the pause takes effect.
    let worst = |headroom| (0..6).map(|begun| drops(headroom, begun)).max();
    assert_eq!(worst(headroom), Some(0));
    assert_eq!(worst(headroom - u64::from(profile.largest_packet)), Some(1));
}
