//! Pauses over a cable in the worst case: a peer that sends without a break into a queue that is not read, and
//! whose pause arrives as late as possible.
//!
//! The lossless flow has priority 3. Another flow with a higher priority, from a port as fast as the host, keeps
//! the receiver's port busy, so that nothing leaves the lossless queue. The forward delay includes the time of a
//! whole packet: the engine's packets leave when their port starts to send them, and arrive as a whole. The return
//! delay includes everything that a pause frame waits for: the end of a packet that the port is sending, the frame
//! itself, and the peer's permitted reaction time.

use crate::world::{Sender, Setup, World, packet_bytes};
use rnic::Mtu;
use rnic::cc::Rate;
use rnic::cc::pacer::TRAIN_TIME;
use rnic::cc::pfc::{PauseFrame, Span};
use rnic::link::LinkConfig;
use std::time::Duration;

const MTU: Mtu = Mtu::B4096;

/// The TOS bytes of the lossless and of the other flow: priorities 3 and 5.
const LOSSLESS: u8 = 3 << 5;
const LOSSY: u8 = 5 << 5;

/// The lossless flow joins first.
const FLOW: usize = 0;

/// Length of messages in bytes. Few packets are longer than the others, by a RETH; and the posted messages of the
/// other flow keep the port busy for longer than the longest round trip here.
const MESSAGE: usize = 2 << 20;

/// Number of packets in the posted messages of the other flow.
const POSTED: u32 = 8 * (MESSAGE / 4096) as u32;

/// The results of a run.
#[derive(Debug)]
struct Seen {
    dropped: u64,
    pauses: u64,
    obeyed: u64,
    waited: u64,
    repeated: u64,
}

/// The buffer has room for XOFF and `headroom` from one peer; `wait` is the time that the pause frame waits at this
/// port.
fn run(span: &Span, link: LinkConfig, wait: Duration) -> Seen {
    let packet = span.rate.time_for(span.peer_mtu.into());
    let frame = span.rate.time_for(PauseFrame::WIRE_LEN.into());
    let setup = Setup {
        there: span.propagation() + packet,
        back: span.propagation() + wait + frame + span.reaction,
        mtu: MTU,
        link: link.clone(),
        ..Setup::new(span.rate)
    };
    let mut world = World::new(&setup);
    world.join(&Sender { link, traffic_class: LOSSLESS, message: MESSAGE });
    // Both ports know each other, and the port carries everything that arrives.
    let round = setup.there + setup.back;
    world.run_for(round * 10);
    assert_eq!(world.received("tx_pause"), 0);
    world.join(&Sender { traffic_class: LOSSY, message: MESSAGE, ..Sender::default() });
    // XOFF is reached, and the pause takes effect.
    world.run_for(round * 4 + packet * 60);
    let (paused, before) = (world.received("tx_pause"), world.flows[FLOW].delivered());
    world.stop(FLOW + 1);
    world.run_for(round * 4 + packet * (POSTED + 400));
    assert!(world.flows[FLOW].delivered() > before + 100 * 4096, "it goes on");
    Seen {
        dropped: world.received("link_rx_dropped"),
        pauses: paused,
        obeyed: world.sent("rx_pause"),
        waited: world.sent("pause_stalls"),
        repeated: world.sent("retransmitted_pkts"),
    }
}

/// A port whose buffer ends at `headroom` beyond XOFF. A packet ends exactly at XOFF, so the next one is entirely
/// beyond it.
fn lossless(rate: Rate, headroom: u64) -> LinkConfig {
    LinkConfig {
        rate: Some(rate),
        buffer: Some(64 << 20),
        pfc: vec![3],
        xoff: Some(20 * u64::from(packet_bytes(MTU))),
        headroom: Some(headroom),
        ..LinkConfig::default()
    }
}

/// All phases of the packet that the port is sending, from just started to just ended.
fn phases(span: &Span) -> impl Iterator<Item = Duration> {
    let whole = span.rate.time_for(span.own_mtu.into());
    (0..=8).map(move |n| whole * n / 8)
}

#[test]
fn nothing_is_dropped_at_the_computed_headroom_and_something_a_packet_below_it() {
    // The first packet of a message has a RETH.
    let mtu = packet_bytes(MTU) + 16;
    for gbps in [10, 25, 100] {
        for metres in [2, 100, 300, 10_000] {
            let span = Span::new(Rate::from_gbps(gbps), metres, mtu);
            let headroom = span.headroom().bytes();
            for wait in phases(&span) {
                let seen = run(&span, lossless(span.rate, headroom), wait);
                assert_eq!((seen.dropped, seen.repeated), (0, 0), "{span:?}, {wait:?}: {seen:?}");
                assert!(
                    seen.pauses > 0 && seen.obeyed > 0 && seen.waited > 0,
                    "{span:?}, {wait:?}: {seen:?}"
                );
            }
            let short = lossless(span.rate, headroom - u64::from(mtu));
            let dropped: u64 = phases(&span).map(|wait| run(&span, short.clone(), wait).dropped).sum();
            println!("{} over {metres} m: headroom {headroom}, {dropped} dropped a packet below", span.rate);
            assert!(dropped > 0, "{span:?}");
        }
    }
}

/// Two senders, each as fast as the port that they share.
fn share(rate: Rate, link: &LinkConfig, train_time: Duration) -> Seen {
    let us = Duration::from_micros(1);
    let mut world = World::new(&Setup {
        link: link.clone(),
        mtu: MTU,
        // 200 m of cable, the default of the configuration.
        there: us,
        back: us,
        train_time,
        ..Setup::new(rate)
    });
    for _ in 0..2 {
        world.join(&Sender { link: link.clone(), traffic_class: LOSSLESS, message: MESSAGE });
    }
    // Longer than the acknowledgement timeout of 67 ms: packets lost at the end of the posted messages are
    // retransmitted.
    world.run_for(Duration::from_millis(100));
    Seen {
        dropped: world.received("link_rx_dropped"),
        pauses: world.received("tx_pause"),
        obeyed: world.sent("rx_pause"),
        waited: world.sent("pause_stalls"),
        repeated: world.sent("retransmitted_pkts"),
    }
}

/// The headroom that a link computes by default is sufficient for senders that send trains, as hosts do.
#[test]
fn the_headroom_that_a_link_has_by_itself_holds_trains() {
    for gbps in [5, 10, 40] {
        let rate = Rate::from_gbps(gbps);
        let link = LinkConfig { rate: Some(rate), pfc: vec![3], ..LinkConfig::default() };
        let seen = share(rate, &link, TRAIN_TIME);
        println!("{rate}: {seen:?}");
        assert_eq!((seen.dropped, seen.repeated), (0, 0), "{rate}: {seen:?}");
        assert!(seen.pauses > 0 && seen.obeyed > 0 && seen.waited > 0, "{rate}: {seen:?}");
    }
}

#[test]
fn without_pauses_the_buffer_overflows() {
    let rate = Rate::from_gbps(10);
    let with = LinkConfig { rate: Some(rate), pfc: vec![3], buffer: Some(200_000), ..LinkConfig::default() };
    let seen = share(rate, &with, Duration::ZERO);
    assert_eq!((seen.dropped, seen.repeated), (0, 0), "{seen:?}");
    assert!(seen.pauses > 0 && seen.obeyed > 0 && seen.waited > 0, "{seen:?}");
    let without = LinkConfig { pfc: Vec::new(), ..with };
    let seen = share(rate, &without, Duration::ZERO);
    assert_eq!((seen.pauses, seen.obeyed, seen.waited), (0, 0, 0), "{seen:?}");
    assert!(seen.dropped > 0 && seen.repeated > 0, "{seen:?}");
}

/// Senders without a rate of their own, each with the window that it has on a host, and a port with nothing set but its rate
/// and a lossless priority.
fn incast(rate: Rate, senders: usize, seed: u64, busy: bool) -> (Seen, f64) {
    let us = Duration::from_micros(1);
    let link = LinkConfig { rate: Some(rate), pfc: vec![3], ..LinkConfig::default() };
    let mut world = World::new(&Setup {
        link,
        mtu: MTU,
        there: us * 10,
        back: us * 10,
        train_time: TRAIN_TIME,
        peer_window: None,
        seed,
        ..Setup::new(rate)
    });
    for _ in 0..senders {
        // Any port that knows pauses, as fast as the host.
        let link = LinkConfig { rate: Some(rnic::link::HOST_RATE), pfc: vec![3], ..LinkConfig::default() };
        world.join(&Sender { link, traffic_class: LOSSLESS, message: MESSAGE });
    }
    let mut lots = crate::busy::Lots::new(seed);
    let mut run = |time: Duration| {
        if !busy {
            return world.run_for(time);
        }
        // One of them at a time does not run, the receiver or a sender.
        let mut left = time;
        while !left.is_zero() {
            let slice = (us * (100 + lots.below(4900) as u32)).min(left);
            match lots.below(1 + senders as u64) as usize {
                0 => world.preempt_receiver(slice),
                sender => world.preempt_sender(sender - 1, slice),
            }
            world.run_for(slice);
            left -= slice;
        }
    };
    run(Duration::from_millis(20));
    let bytes = || world.receiver.link_stats().expect("a link").dequeued_bytes;
    let before = bytes();
    let time = Duration::from_millis(100);
    run(time);
    let used = (bytes() - before) as f64 * 8.0 / time.as_secs_f64() / rate.as_f64();
    let seen = Seen {
        dropped: world.received("link_rx_dropped"),
        pauses: world.received("tx_prio3_pause"),
        obeyed: world.sent("rx_prio3_pause"),
        waited: world.sent("pause_stalls"),
        repeated: world.sent("retransmitted_pkts"),
    };
    (seen, used)
}

#[test]
fn with_defaults_an_incast_is_paused_and_nothing_is_lost() {
    for gbps in [1, 5, 10] {
        for senders in [2, 4, 16] {
            let (seen, used) = incast(Rate::from_gbps(gbps), senders, 1, false);
            println!("{senders} senders into {gbps} Gb/s: {used:.3} of the port, {seen:?}");
            assert_eq!((seen.dropped, seen.repeated), (0, 0), "{senders} senders, {gbps} Gb/s: {seen:?}");
            assert!(seen.pauses > 0 && seen.obeyed > 0 && seen.waited > 0, "{gbps} Gb/s: {seen:?}");
            assert!(used > 0.95, "{senders} senders, {gbps} Gb/s: {used} of the port");
        }
    }
}

#[test]
fn nothing_is_lost_when_those_who_pause_and_are_paused_have_to_wait_for_a_core() {
    for seed in crate::seeds(3) {
        for senders in [2, 4] {
            let (seen, used) = incast(Rate::from_gbps(5), senders, seed, true);
            println!("{senders} senders, seed {seed}: {used:.3} of the port, {seen:?}");
            assert_eq!(seen.dropped, 0, "{senders} senders, seed {seed}: {seen:?}");
            assert!(seen.pauses > 0 && seen.obeyed > 0, "{senders} senders, seed {seed}: {seen:?}");
        }
    }
}
