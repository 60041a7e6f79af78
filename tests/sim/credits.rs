//! Link credits over a cable: one sender and one lane, with packets of 4 KiB.

use crate::seeds;
use crate::world::{Sender, Setup, World, packet_bytes};
use rnic::Mtu;
use rnic::cc::Rate;
use rnic::cc::credits::blocks;
use rnic::link::{LinkConfig, Model};
use std::time::Duration;

/// Number of blocks in a packet: BTH, 4 KiB and ICRC, with the headers of an InfiniBand link (LRH 8 bytes, VCRC 2).
/// The last block also has room for a RETH.
fn packet_blocks() -> u32 {
    blocks(12 + 4096 + 4 + 8 + 2)
}

/// Five nanoseconds per metre of fibre.
fn propagation(metres: u32) -> Duration {
    Duration::from_nanos(5) * metres
}

/// A port with this rate and a buffer of `window` blocks, at the end of a cable, and a sender with an equally fast
/// port at the other end.
fn world(rate: Rate, window: u32, metres: u32, seed: u64) -> World {
    let link = LinkConfig {
        model: Model::IbCredits,
        rate: Some(rate),
        buffer: Some(u64::from(window) * 64),
        ..LinkConfig::default()
    };
    let (there, back) = (propagation(metres), propagation(metres));
    let setup = Setup { link: link.clone(), mtu: Mtu::B4096, there, back, seed, ..Setup::new(rate) };
    let mut world = World::new(&setup);
    world.join(&Sender { link, ..Sender::default() });
    world
}

/// The time from sending a packet until another can be sent in its place: the cable in both directions, and the
/// port's time for the packet.
fn round(rate: Rate, metres: u32) -> Duration {
    propagation(metres) * 2 + rate.time_for(packet_bytes(Mtu::B4096).into())
}

/// Only whole packets fit into a window.
fn by_window(rate: Rate, window: u32, metres: u32) -> f64 {
    let bytes = (window / packet_blocks()) * packet_bytes(Mtu::B4096);
    f64::from(bytes) * 8.0 / round(rate, metres).as_secs_f64()
}

/// Runs settle for 20 round trips: the first leaves in one burst, and each later one spreads it. They are measured
/// for 100 round trips, and for at least a millisecond, so that one packet more or less is below one percent.
#[test]
fn throughput_is_the_lesser_of_rate_and_window_per_round_trip() {
    let mut limited = [0, 0];
    for gbps in [8, 32, 100, 400] {
        // The furthest that a limit may be ahead of what was sent, less one; and a quarter of it.
        for window in [2047, 512] {
            for metres in [10, 100, 500, 1_000, 3_000, 10_000, 40_000] {
                let rate = Rate::from_gbps(gbps);
                let world = world(rate, window, metres, 1);
                let (round, allowed) = (round(rate, metres), by_window(rate, window, metres));
                world.run_for(round * 20 + Duration::from_micros(100));
                let found = world.watch_for((round * 100).max(Duration::from_millis(1))).rate();
                let wanted = rate.as_f64().min(allowed);
                let all = format!(
                    "{gbps} Gb/s, {metres} m, {window} blocks: {:.3} Gb/s, by theory {:.3}",
                    found / 1e9,
                    wanted / 1e9
                );
                println!("{all}");
                assert!((found / wanted - 1.0).abs() < 0.03, "{all}");
                assert_eq!(world.received("link_rx_dropped"), 0, "{all}");
                assert_eq!(world.received("excessive_buffer_overrun_errors"), 0, "{all}");
                if allowed < rate.as_f64() {
                    assert!(world.sent("credit_stalls") > 0, "{all}");
                }
                limited[usize::from(allowed < rate.as_f64())] += 1;
            }
        }
    }
    println!("{} links limited by their rate, {} by their window", limited[0], limited[1]);
    assert!(limited[0] >= 10 && limited[1] >= 10, "both happen: {limited:?}");
}

/// With a window to spare, a lost update costs nothing, because the next one replaces it. With none to spare it
/// costs some time, but no credit stays lost.
#[test]
fn lost_updates_heal() {
    let rate = Rate::from_gbps(32);
    for (metres, least) in [(500, 0.99), (3_000, 0.85), (5_000, 0.85)] {
        for seed in seeds(3) {
            let run = |fault: Option<&str>| {
                let world = world(rate, 2047, metres, seed);
                if let Some(rule) = fault {
                    world.receiver.add_fault(rule).expect("a rule");
                }
                // The first requests are lost too: a sender that waits for credit asks again after 40 ms, then
                // after 80 ms. The initial traffic consists of packets from before credits were agreed on.
                world.run_for(Duration::from_millis(100));
                let flows = || world.watch_for(Duration::from_millis(10)).packets > 0;
                assert!((0..100).any(|_| flows()), "seed {seed}: nothing is sent in a second");
                world.run_for(Duration::from_millis(20));
                // Until then, packets may have waited for credit longer than for an acknowledgement.
                let before = world.sent("retransmitted_pkts");
                let rate = world.watch_for(Duration::from_millis(10)).rate();
                let lost = world.receiver.faults().first().map_or(0, |fault| fault.hits);
                assert_eq!(world.received("excessive_buffer_overrun_errors"), 0, "seed {seed}");
                (rate, lost, world.sent("retransmitted_pkts") - before)
            };
            let (whole, ..) = run(None);
            let (lossy, lost, repeated) = run(Some("tx flow_control drop p=0.3"));
            println!(
                "{metres} m, seed {seed}: {:.2} Gb/s, without {lost} updates {:.2}",
                whole / 1e9,
                lossy / 1e9
            );
            assert!(lost > 100 && lossy > least * whole, "{metres} m, seed {seed}: {lossy} of {whole}");
            assert_eq!(repeated, 0, "{metres} m, seed {seed}");
        }
    }
}

#[test]
fn without_updates_nothing_is_sent() {
    let world = world(Rate::from_gbps(32), 2047, 500, 1);
    world.run_for(Duration::from_millis(1));
    assert!(world.watch_for(Duration::from_millis(1)).packets > 0);
    world.receiver.add_fault("tx flow_control drop").expect("a rule");
    // The remaining credit is used up first: less than a window.
    let rest = world.watch_for(Duration::from_millis(1)).packets;
    assert!(rest <= u64::from(2047 / packet_blocks()), "{rest} packets");
    assert_eq!(world.watch_for(Duration::from_millis(5)).packets, 0);
}

/// A sender with a faster port sends everything at once unless something holds it back.
#[test]
fn without_credits_the_buffer_overflows() {
    let run = |model| {
        let link = |rate| LinkConfig { model, rate, buffer: Some(512 * 64), ..LinkConfig::default() };
        let rate = Rate::from_gbps(8);
        let mut world = World::new(&Setup { link: link(Some(rate)), mtu: Mtu::B4096, ..Setup::new(rate) });
        world.join(&Sender { link: LinkConfig { buffer: None, ..link(None) }, ..Sender::default() });
        // Longer than the acknowledgement timeout of 67 ms, which recovers a loss at the end of the posted
        // messages.
        world.run_for(Duration::from_millis(200));
        let port = ["link_rx_dropped", "tx_flow_control"].map(|name| world.received(name));
        let sender = ["retransmitted_pkts", "credit_stalls"].map(|name| world.sent(name));
        println!("{model}: dropped, updates {port:?}; repeated, waited for credit {sender:?}");
        (port, sender)
    };
    let (port, sender) = run(Model::IbCredits);
    assert_eq!((port[0], sender[0]), (0, 0));
    assert!(port[1] > 0 && sender[1] > 0);
    let (port, sender) = run(Model::Ethernet);
    assert!(port[0] > 0 && sender[0] > 0);
    assert_eq!((port[1], sender[1]), (0, 0));
}
