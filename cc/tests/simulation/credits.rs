//! Credits over a cable: one lane, one direction, a receiver that reads at once.

use cc::Rate;
use cc::credits::{Config, LinkCredits, blocks};
use cc::vl::Vl;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A packet of 2 KiB with its headers: as many blocks of 64 bytes exactly, so that none is wasted.
const PACKET: u32 = 2112;

/// A flow control packet with its delimiters takes 8 bytes, as in Mellanox' model of a link.
const UPDATE: u64 = 8;

struct Cable {
    rate: Rate,
    propagation: Duration,
    /// Every so manieth update is lost; 0 for none.
    lose_every: u64,
}

/// Sends packets for `time` over a link with `window` blocks; the rate that arrives.
fn throughput(cable: &Cable, window: u32, time: Duration) -> f64 {
    let start = Instant::now();
    let vl = Vl::new(0).expect("a lane");
    // An update for each packet that was read.
    let config = Config { blocks: window, fcp_on_free_blocks: blocks(PACKET) as u16, ..Config::default() };
    let (mut sender, mut receiver) = (LinkCredits::new(&config, start), LinkCredits::new(&config, start));
    // What arrives when: packets and, in their order, updates one way (`None` is a packet); updates the other way.
    let (mut up, mut down) = (VecDeque::new(), VecDeque::new());
    let (mut now, mut free_at, mut sent_updates) = (start, start, 0);
    let mut measured = 0;
    while now < start + time {
        while let Some((_, update)) = up.pop_front_if(|(at, _)| *at <= now) {
            if let Some(update) = update {
                receiver.handle_update(now, &update);
                continue;
            }
            receiver.handle_packet(vl, blocks(PACKET)).expect("never more than there is room for");
            receiver.release(vl, blocks(PACKET));
            if now >= start + time / 2 {
                measured += u64::from(PACKET);
            }
        }
        while let Some(update) = receiver.poll_update(now) {
            sent_updates += 1;
            if cable.lose_every == 0 || sent_updates % cable.lose_every != 0 {
                down.push_back((now + cable.rate.time_for(UPDATE) + cable.propagation, update));
            }
        }
        while let Some((_, update)) = down.pop_front_if(|(at, _)| *at <= now) {
            sender.handle_update(now, &update);
        }
        if free_at <= now {
            let update = sender.poll_update(now);
            if update.is_some() || sender.try_take(now, vl, blocks(PACKET)) {
                let bytes = if update.is_some() { UPDATE } else { PACKET.into() };
                free_at = now + cable.rate.time_for(bytes);
                up.push_back((free_at + cable.propagation, update));
            }
        }
        let next = [
            down.front().map(|(at, _)| *at),
            up.front().map(|(at, _)| *at),
            (free_at > now).then_some(free_at),
            sender.poll_timeout(),
            receiver.poll_timeout(),
        ];
        now = next.into_iter().flatten().filter(|at| *at > now).min().unwrap_or(start + time);
    }
    measured as f64 * 8.0 / (time / 2).as_secs_f64()
}

#[test]
fn throughput_is_the_lesser_of_rate_and_window_per_round_trip() {
    let mut limited = [0, 0];
    for gbps in [8, 32, 100, 400] {
        for window in [2048, 512] {
            for metres in [10, 100, 500, 1_000, 3_000, 10_000, 40_000] {
                let rate = Rate::from_gbps(gbps);
                // 5 ns for a metre.
                let propagation = Duration::from_nanos(5 * metres);
                let cable = Cable { rate, propagation, lose_every: 0 };
                // Whole packets only fit into the window; a block's credit is back when its packet has been sent and
                // has arrived, and the update too.
                let round = propagation * 2 + rate.time_for(PACKET.into()) + rate.time_for(UPDATE);
                let packets = f64::from(window / blocks(PACKET));
                let by_window = packets * f64::from(PACKET) * 8.0 / round.as_secs_f64();
                let wanted = rate.as_f64().min(by_window);
                let found = throughput(&cable, window, round * 400);
                let off = (found / wanted - 1.0).abs();
                assert!(
                    off < 0.03,
                    "{gbps} Gb/s, {metres} m, {window} blocks: {} Gb/s, not {}",
                    found / 1e9,
                    wanted / 1e9
                );
                limited[usize::from(by_window < rate.as_f64())] += 1;
            }
        }
    }
    println!("{} links limited by their rate, {} by their window", limited[0], limited[1]);
    assert!(limited[0] >= 10 && limited[1] >= 10, "both happen: {limited:?}");
}

/// A window of 2048 blocks is 131,072 bytes: 1.05 km at 100 Gb/s.
#[test]
fn the_largest_window_fills_a_cable_of_a_kilometre_at_100_gbps() {
    let rate = Rate::from_gbps(100);
    let at = |metres: u64| {
        let cable = Cable { rate, propagation: Duration::from_nanos(5 * metres), lose_every: 0 };
        throughput(&cable, 2048, Duration::from_millis(3)) / rate.as_f64()
    };
    assert!(at(950) > 0.97, "{}", at(950));
    assert!(at(2_000) < 0.7, "{}", at(2_000));
}

/// With a window to spare a lost update costs nothing: the next one says it all. With none to spare, a little, but no
/// credit stays lost.
#[test]
fn lost_updates_heal() {
    let rate = Rate::from_gbps(32);
    for (metres, least) in [(500, 0.99), (3_000, 0.99), (5_000, 0.9)] {
        let propagation = Duration::from_nanos(5 * metres);
        let with = |lose_every| {
            throughput(&Cable { rate, propagation, lose_every }, 2048, Duration::from_millis(20))
        };
        let (whole, lossy) = (with(0), with(3));
        println!("{metres} m: {:.2} Gb/s, with a third of the updates lost {:.2}", whole / 1e9, lossy / 1e9);
        assert!(lossy > least * whole, "{metres} m: {lossy} of {whole}");
        assert!(with(1) < 1.0, "without any update nothing is sent");
    }
}
