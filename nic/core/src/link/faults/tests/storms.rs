//! Pause storms: which pauses a layer sends to which peers, and when.

use super::*;
use cc::Rate;
use cc::pfc::{PRIORITIES, PauseFrame, Quanta};
use std::net::IpAddr;

const RATE: Rate = Rate::from_gbps(10);

/// Priorities 3 and 4 with this time.
fn of_3_and_4(time: Quanta) -> PauseFrame {
    let mut times = [None; PRIORITIES];
    (times[3], times[4]) = (Some(time), Some(time));
    PauseFrame::Priorities(times)
}

/// All pauses of a layer between two instants, with the time of each since the first, and its peer.
fn pauses(layer: &mut FaultLayer, start: Instant, end: Instant) -> Vec<(Duration, IpAddr, PauseFrame)> {
    let (mut now, mut seen) = (start, Vec::new());
    loop {
        while let Some((peer, frame)) = layer.poll_pause(now, RATE) {
            seen.push((now - start, peer, frame));
        }
        match layer.poll_timeout().filter(|at| *at < end) {
            Some(at) => now = at.max(now),
            None => return seen,
        }
    }
}

#[test]
fn a_storm_repeats_its_pause_until_the_window_is_over_and_then_ends_it() {
    let start = Instant::EPOCH;
    let mut layer = layer(start, &["rx pause=3,4 for 5ms"]);
    let out = run(&mut layer, start, [received(send(1)), received(send(2))]);
    assert_eq!(out.len(), 2, "the packets go on");
    let half = Quanta::MAX.time(RATE) / 2;
    let seen = pauses(&mut layer, start, start + Duration::from_secs(1));
    let peer = IpAddr::from(PEER);
    let wanted = [
        (Duration::ZERO, peer, of_3_and_4(Quanta::MAX)),
        (half, peer, of_3_and_4(Quanta::MAX)),
        (half * 2, peer, of_3_and_4(Quanta::MAX)),
        (Duration::from_millis(5), peer, of_3_and_4(Quanta(0))),
    ];
    assert_eq!(seen, wanted, "one storm, whatever the number of packets");
    let later = start + Duration::from_secs(1);
    run(&mut layer, later, [received(send(3))]);
    assert_eq!(pauses(&mut layer, later, later + Duration::from_secs(1)), [], "the window is over");
}

#[test]
fn a_rule_that_acts_a_number_of_times_sends_as_many_pauses() {
    let start = Instant::EPOCH;
    let mut layer = layer(start, &["tx pause=3,4 2 times"]);
    run(&mut layer, start, (0..5).map(send));
    let seen = pauses(&mut layer, start, start + Duration::from_secs(1));
    let once = (Duration::ZERO, IpAddr::from(PEER), of_3_and_4(Quanta::MAX));
    assert_eq!(seen, [once, once]);
}

#[test]
fn a_storm_ends_when_its_rule_is_taken_out() {
    let start = Instant::EPOCH;
    let mut layer = layer(start, &["stop: rx pause=3,4"]);
    run(&mut layer, start, [received(send(1))]);
    let soon = start + Duration::from_millis(10);
    assert_eq!(pauses(&mut layer, start, soon).len(), 6, "at once, and five times after 1.7 ms each");
    assert!(layer.remove("stop"));
    let seen = pauses(&mut layer, soon, soon + Duration::from_secs(1));
    assert_eq!(seen, [(Duration::ZERO, IpAddr::from(PEER), of_3_and_4(Quanta(0)))]);
}
