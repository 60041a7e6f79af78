//! Programs at a daemon beside one that is hostile, or stopped, or killed at random.

use crate::daemon::Daemon;
use crate::lab::{self, LIMIT, Running, faults, has, installed_library};
use crate::rdma_cm::LIBRARY;
use bytes::BytesMut;
use rnic::daemon::protocol::{Hello, Request, VERSION, write_frame};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

#[test]
fn a_hostile_process_disturbs_nobody() {
    if !has("ib_write_bw") {
        return;
    }
    let _alone = lab::alone();
    let daemon = Daemon::start();
    let before = daemon.size();
    let connect = || UnixStream::connect(daemon.socket()).expect("it listens");
    // Garbage, from a fixed sequence.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for len in (1..2000).step_by(7) {
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        let _ = connect().write_all(&bytes);
    }
    // A frame that never ends, and one that would take all memory.
    let _ = connect().write_all(&[0, 0, 1, 0, 7]);
    let _ = connect().write_all(&u32::MAX.to_be_bytes());
    // Connections that say nothing: as many as this process has descriptors for.
    let silent: Vec<_> = std::iter::from_fn(|| UnixStream::connect(daemon.socket()).ok()).take(600).collect();
    assert!(silent.len() > 300, "{}", silent.len());
    let port = lab::free_port();
    let line = format!("ib_write_bw -p {port} -n 500");
    drop(silent);
    // Until it has seen that they are gone, they count for this user, whose next programs it would turn away.
    let begin = Instant::now();
    while daemon.size().1 > before.1 + 4 {
        assert!(begin.elapsed() < LIMIT, "descriptors: {before:?}, {:?}", daemon.size());
        sleep(Duration::from_millis(50));
    }
    // Askers that never read: what is sent to them holds descriptors.
    let watched = [daemon.begin("ibv_asyncwatch"), daemon.begin("ibv_asyncwatch")];
    sleep(Duration::from_millis(500));
    let asker = || {
        let hello = Hello { version: VERSION, pid: 1, program: "asker".to_owned() };
        let mut asked = BytesMut::new();
        write_frame(&Request::Hello(hello), &mut asked);
        (0..2000).for_each(|_| write_frame(&Request::Programs, &mut asked));
        let mut stream = connect();
        stream.set_nonblocking(true).expect("a socket");
        // As much as there is room for.
        let _ = stream.write(&asked).expect("room");
        stream
    };
    let askers: Vec<_> = (0..50).map(|_| asker()).collect();
    sleep(Duration::from_millis(500));
    assert!(daemon.size().1 < before.1 + 200, "descriptors: {before:?}, {:?}", daemon.size());
    let ends = daemon.pair(&line, &format!("{line} @"));
    assert_eq!(faults(&ends, |_, _| None), None);
    // In flight, where nobody sees them, there are at most some for each.
    let begin = Instant::now();
    let rows = daemon.shows(&["counters", "--running"]);
    assert!(rows.len() == 2 && begin.elapsed() < LIMIT / 4, "others are answered: {rows:?}");
    drop((askers, watched));
    let begin = Instant::now();
    while daemon.size().1 > before.1 + 4 {
        assert!(begin.elapsed() < LIMIT, "descriptors: {before:?}, {:?}", daemon.size());
        sleep(Duration::from_millis(50));
    }
    let after = daemon.size();
    assert!(after.0 < before.0 + 8 * 1024, "memory in KB: {before:?}, {after:?}");
}

/// A program that has a slot and a listener, and reads neither its packets nor its line.
#[test]
fn a_program_that_is_stopped_disturbs_nobody_and_goes_on_later() {
    if !installed_library(LIBRARY) || !has("rping") {
        return;
    }
    let _alone = lab::alone();
    let daemon = Daemon::start();
    let stopped = daemon.begin("rping -s -V -C 3 -p 7301");
    let other = daemon.begin("rping -s -V -C 3 -p 7302");
    sleep(Duration::from_millis(600));
    let signal = |signal| {
        let pid = nix::unistd::Pid::from_raw(stopped.id().cast_signed());
        nix::sys::signal::kill(pid, signal).expect("a process");
    };
    signal(nix::sys::signal::SIGSTOP);
    // Requests for the one that is stopped: each is repeated until it goes on.
    let waiting = daemon.begin("rping -c -V -C 3 -p 7301 -a @");
    let served = daemon.begin("rping -c -V -C 3 -p 7302 -a @").wait(LIMIT);
    assert_eq!(served.fault(), None, "{}", served.text);
    assert_eq!(other.wait(LIMIT).fault(), None);
    signal(nix::sys::signal::SIGCONT);
    let ends = [stopped.wait(LIMIT), waiting.wait(LIMIT)];
    assert_eq!(faults(&ends, |_, _| None), None);
}

/// How long programs are killed at random.
fn chaos() -> Duration {
    let long = std::env::var_os("RNIC_LONG").is_some();
    Duration::from_secs(if long { 120 } else { 12 })
}

/// Two programs that meet at a TCP port.
struct Pair {
    ends: [Running; 2],
    port: String,
}

/// Eight programs at once, of four kinds; one after the other is killed, and its pair begins anew.
#[test]
fn programs_that_are_killed_at_random_disturb_nobody_and_leave_nothing() {
    /// The servers and clients. A server of ib_send_bw would not notice that its client is gone, on hardware neither.
    const KINDS: [[&str; 2]; 4] = [
        ["rping -s -V -C 100000000 -p 7201", "rping -c -V -C 100000000 -p 7201 -a @"],
        ["rping -s -V -C 100000000 -p 7202", "rping -c -V -C 100000000 -p 7202 -a @"],
        ["ib_write_bw -p & -D 600 -s 4096", "ib_write_bw -p & -D 600 -s 4096 @"],
        ["ib_read_lat -p & -D 600", "ib_read_lat -p & -D 600 @"],
    ];
    if !installed_library(LIBRARY) || !has("ib_write_bw") || !has("rping") {
        return;
    }
    let _alone = lab::alone();
    let daemon = Daemon::start();
    let client = |[_, client]: [&str; 2], port: &str| daemon.begin(&client.replace('&', port));
    let start = |kind: [&str; 2]| {
        let port = lab::free_port().to_string();
        let server = daemon.begin(&kind[0].replace('&', &port));
        sleep(Duration::from_millis(400));
        Pair { ends: [server, client(kind, &port)], port }
    };
    let mut pairs: Vec<Pair> = KINDS.iter().map(|kind| start(*kind)).collect();
    sleep(Duration::from_secs(1));
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let (mut state, mut kills, mut first) = (seed, 0, None);
    let begin = Instant::now();
    while begin.elapsed() < chaos() {
        for pair in &mut pairs {
            let ended = pair.ends.iter_mut().any(Running::has_ended);
            assert!(!ended, "nobody else ends after {kills} kills");
        }
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (at, side) = ((state >> 40) as usize % pairs.len(), (state >> 50) as usize % 2);
        pairs[at].ends[side].kill();
        kills += 1;
        // Its peer learns of it. A server whose client had not come to connect yet awaits the next one.
        let (dead, mut asked, mut next) = (Instant::now(), Instant::now(), None);
        while !pairs[at].ends[1 - side].has_ended() {
            assert!(dead.elapsed() < LIMIT, "the peer of {:?} goes on", KINDS[at][side]);
            if side == 1 && asked.elapsed() > Duration::from_secs(3) {
                asked = Instant::now();
                // A program ends when it is dropped.
                next = if next.is_none() { Some(client(KINDS[at], &pairs[at].port)) } else { None };
            }
            sleep(Duration::from_millis(10));
        }
        drop(next);
        let new = start(KINDS[at]);
        drop(std::mem::replace(&mut pairs[at], new));
        sleep(Duration::from_millis(300));
        first.get_or_insert_with(|| daemon.size());
    }
    let last = daemon.size();
    drop(pairs);
    println!("{kills} kills; the daemon's memory in KB and descriptors: {first:?}, {last:?}");
    let first = first.expect("a size");
    assert!(last.0 < first.0 + 4 * 1024, "memory: {first:?}, {last:?}");
    // A slot rests for ten seconds, so that a few more are made.
    assert!(last.1 <= first.1 + 80, "descriptors: {first:?}, {last:?}");
    assert_eq!(daemon.counted("dropped_misrouted") + daemon.counted("dropped_bad_icrc"), 0);
}
