//! Credits over a cable: one lane, one direction, a receiver that reads at once.

use cc::Rate;
use cc::credits::{CreditSender, Pool, PoolConfig, blocks};
use cc::vl::Vl;
use std::collections::VecDeque;
use time::{Duration, Instant};

/// A packet of 2 KiB with its headers: as many blocks of 64 bytes exactly, so that none is wasted.
const PACKET: u32 = 2112;

/// A flow control packet with its delimiters takes 8 bytes on a link of InfiniBand, as in Mellanox' model of one.
const MESSAGE: u64 = 8;

struct Cable {
    rate: Rate,
    propagation: Duration,
    /// One grant in this many is lost; 0 for none.
    lose_every: u64,
}

/// How soon a sender that waits asks again: several times the longest round trip here.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// Sends packets for `time` over a link with `window` blocks; the rate that arrives.
fn throughput(cable: &Cable, window: u32, time: Duration) -> f64 {
    let start = Instant::EPOCH;
    let vl = Vl::new(0).expect("a lane");
    let packet = blocks(PACKET);
    // A grant for each packet that was read; and nothing expires.
    let config =
        PoolConfig { blocks: window, packet_blocks: packet as u16, lag: packet, ..PoolConfig::default() };
    let config = PoolConfig { lease: Duration::from_secs(3600), idle: Duration::from_secs(1), ..config };
    let mut pool = Pool::new(config).expect("a pool");
    let member = pool.join(start, vl);
    let mut sender = CreditSender::new(Duration::from_secs(3600), Duration::ZERO);
    // What arrives when: packets and asks, in their order (`None` is a packet); grants the other way.
    let (mut up, mut down) = (VecDeque::new(), VecDeque::new());
    let (mut now, mut free_at, mut granted, mut asked_at) = (start, start, 0, None);
    let mut measured = 0;
    while now < start + time {
        while let Some((_, ask)) = up.pop_front_if(|(at, _)| *at <= now) {
            if let Some(ask) = ask {
                pool.handle_ask(now, member, &ask);
                continue;
            }
            pool.handle_packet(now, member, packet).expect("never more than there is room for");
            pool.release(member, packet);
            if now >= start + time / 2 {
                measured += u64::from(PACKET);
            }
        }
        while let Some((_, grant)) = pool.poll_grant(now) {
            granted += 1;
            if cable.lose_every == 0 || granted % cable.lose_every != 0 {
                down.push_back((now + cable.rate.time_for(MESSAGE) + cable.propagation, grant));
            }
        }
        while let Some((_, grant)) = down.pop_front_if(|(at, _)| *at <= now) {
            sender.handle_grant(now, &grant);
        }
        if free_at <= now {
            let goes = sender.try_take(now, packet);
            let asks = !goes && asked_at.is_none_or(|at| at + ASK_AGAIN <= now);
            if goes {
                (free_at, asked_at) = (now + cable.rate.time_for(PACKET.into()), None);
                up.push_back((free_at + cable.propagation, None));
            } else if asks {
                (free_at, asked_at) = (now + cable.rate.time_for(MESSAGE), Some(now));
                up.push_back((free_at + cable.propagation, Some(sender.ask(now, vl, packet))));
            }
        }
        let next = [
            down.front().map(|(at, _)| *at),
            up.front().map(|(at, _)| *at),
            (free_at > now).then_some(free_at),
            asked_at.map(|at| at + ASK_AGAIN),
            pool.poll_timeout(),
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
                let round = propagation * 2 + rate.time_for(PACKET.into()) + rate.time_for(MESSAGE);
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

/// With a window to spare a lost grant costs nothing: the next one says it all. With none to spare, a little, but no
/// credit stays lost.
#[test]
fn lost_grants_heal() {
    let rate = Rate::from_gbps(32);
    for (metres, least) in [(500, 0.99), (3_000, 0.99), (5_000, 0.9)] {
        let propagation = Duration::from_nanos(5 * metres);
        let with = |lose_every| {
            throughput(&Cable { rate, propagation, lose_every }, 2048, Duration::from_millis(20))
        };
        let (whole, lossy) = (with(0), with(3));
        println!("{metres} m: {:.2} Gb/s, with a third of the grants lost {:.2}", whole / 1e9, lossy / 1e9);
        assert!(lossy > least * whole, "{metres} m: {lossy} of {whole}");
        assert!(with(1) < 1.0, "without any grant nothing is sent");
    }
}
