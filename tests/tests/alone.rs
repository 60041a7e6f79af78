//! Tests that occupy a processor; they run one after the other. The times that they print depend on the machine, and
//! nothing is judged by them.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use rnic::WcStatus;
use rnic_tests::peer::{Peer, connect, connect_local, register_pattern};
use rnic_tests::protocol::{Command, Connection, Place, Reply, Traffic, Verb};
use rnic_tests::{counter, open};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine. It only ends tests that hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// Held by the test that is running.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_fifo_scheduled_poller_does_not_livelock() {
    let _turn = alone();
    const ROUNDS: u64 = 500;
    let this = Pid::from_raw(0);
    let mut others = sched_getaffinity(this).expect("a set of processors");
    let core = (0..CpuSet::count()).find(|c| others.is_set(*c).unwrap_or(false)).expect("a processor");
    others.unset(core).expect("a processor number");
    if (0..CpuSet::count()).all(|c| !others.is_set(c).unwrap_or(false)) {
        return rnic_tests::skipped("one processor only: the peer would never run");
    }
    let pin = || {
        let mut one = CpuSet::new();
        one.set(core).expect("a processor number");
        sched_setaffinity(this, &one).expect("an allowed processor");
    };
    if let Err(errno) = std::thread::spawn(rnic_tests::os::become_fifo).join().expect("no panic") {
        return rnic_tests::skipped(&format!("SCHED_FIFO is not allowed here: {errno}"));
    }
    let device = open();
    let mut peer = Peer::start();
    // The polling thread uses all of its processor. The peer's background thread does the same on another one.
    let pid = Pid::from_raw(i32::try_from(peer.pid()).expect("a process number"));
    sched_setaffinity(pid, &others).expect("allowed processors");
    // 1 s: the remaining processors may be busy.
    let patient = Connection { timeout: 18, ..Connection::default() };
    let (end, _) = connect_local(&device, &mut peer, patient);
    let target = peer.register_zeroes(64);
    let source = register_pattern(end.pd(), 64, 1);
    let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Holds the engine most of the time, and is preempted by the other thread while it does.
        let ordinary = scope.spawn(|| {
            pin();
            while !stop.load(Ordering::Relaxed) {
                device.progress();
                let _ = device.counters();
                turns.fetch_add(1, Ordering::Relaxed);
            }
        });
        let poller = scope.spawn(|| {
            pin();
            let deadline = Instant::now() + PATIENCE;
            while turns.load(Ordering::Relaxed) == 0 {
                assert!(Instant::now() < deadline, "the ordinary thread does not run");
                std::thread::sleep(Duration::from_millis(1));
            }
            rnic_tests::os::become_fifo().expect("allowed a moment ago");
            let mut rounds = Vec::new();
            for id in 0..ROUNDS {
                let start = Instant::now();
                end.qp.write(id, source.all(), target.place.into()).expect("posted");
                let wc = end.cq().wait(PATIENCE).expect("a completion");
                assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
                rounds.push(start.elapsed());
                // In a livelock, the kernel takes the processor away once a second, and each round takes that long.
                assert!(rounds.iter().sum::<Duration>() < PATIENCE, "a livelock: {rounds:?}");
                // Lets the other thread run and take the lock.
                std::thread::sleep(Duration::from_micros(200));
            }
            rounds.sort_unstable();
            rounds
        });
        let rounds = poller.join();
        stop.store(true, Ordering::Relaxed);
        ordinary.join().expect("no panic");
        let rounds = rounds.expect("no panic");
        let (median, max) = (rounds[rounds.len() / 2], rounds[rounds.len() - 1]);
        println!("{ROUNDS} rounds of a FIFO-scheduled poller: median {median:?}, longest {max:?}");
    });
    peer.check(target.all(), 1, 0);
}

#[test]
fn reads_are_answered_while_a_program_that_polled_sleeps() {
    let _turn = alone();
    let device = open();
    let mut peer = Peer::start();
    let (end, far) = connect_local(&device, &mut peer, Connection::default());
    let here = register_pattern(end.pd(), 8, 1);
    let there = peer.register_zeroes(8);
    let place = Place { addr: here.addr(), rkey: here.rkey() };
    let mut takeovers = Vec::new();
    for round in 0..11 {
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            assert_eq!(end.cq().poll_one(), None);
        }
        let count = if round == 10 { 200 } else { 1 };
        peer.tell(&Command::Probe(far, place, there.id, count));
        // This thread sleeps until the peer has its answers, so nobody but the background thread can have given them.
        let Reply::Probed(took) = peer.answer() else { panic!("no probe") };
        assert_eq!(took.len() as u64, count);
        takeovers.push(took[0]);
        if round == 10 {
            let mut sorted = took.clone();
            sorted.sort_unstable();
            let (median, max) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
            println!("{} READs while asleep: median {median} us, max {max} us", took.len());
        }
    }
    takeovers.sort_unstable();
    println!("takeovers: {takeovers:?} us");
    assert!(counter(&device, "rx_read_requests") >= 210);
}

/// Processor time of a peer's background thread, in milliseconds.
fn background_time(peer: &mut Peer) -> u64 {
    match peer.ask(&Command::BackgroundTime) {
        Reply::Time(millis) => millis,
        other => panic!("{other:?}"),
    }
}

/// Whether the thread stands aside then is a matter of rules, which `port::background` tests by themselves: on a busy
/// machine a thread that polls naps, and the background thread stands in for it.
#[test]
fn a_program_that_polls_is_served_with_and_without_the_background_thread() {
    let _turn = alone();
    let (mut a, mut b) = (Peer::start(), Peer::start());
    let (left, right) = connect(&mut a, &mut b, Connection::default());
    let (source, target) = (b.register(1 << 20, 1), a.register_zeroes(1 << 20));
    // While the program sleeps, the thread does all the work.
    let traffic = |count| Traffic {
        verb: Verb::Write(target.place, None),
        region: source.id,
        size: 1 << 20,
        count,
        depth: 8,
        slots: 1,
    };
    b.run(right, traffic(200));
    let passive = background_time(&mut a);
    assert!(passive > 0);
    // Traffic for the rest of the peer's life.
    b.tell(&Command::Run(right, traffic(u64::MAX)));
    // The thread's work before it notices that the program polls does not count.
    a.ask(&Command::Poll(left, 50));
    let before = (background_time(&mut a), a.counter("rx_write_requests"));
    a.ask(&Command::Poll(left, 3000));
    let after = (background_time(&mut a), a.counter("rx_write_requests"));
    let spent = after.0 - before.0;
    let served = after.1 - before.1;
    println!("background thread while polling: {:.1} %, {served} MiB served", spent as f64 / 30.0);
    assert!(served > 0);
}
