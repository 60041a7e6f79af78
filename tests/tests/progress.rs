//! Who makes progress: the program that polls, or the background thread when it does not.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic::{CompletionQueue, Gather, QpInit, RcEnd, SendFlags, SendWr, WcStatus, WorkCompletion};
use rnic_tests::peer::{Peer, Region, connect, connect_local, register_pattern};
use rnic_tests::protocol::{Command, Connection, Place, Reply, Traffic, Verb};
use rnic_tests::{counter, open, pattern};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_target_that_never_polls() {
    const LEN: usize = 100_001;
    const ROUNDS: u64 = 200;
    let device = open();
    // Between commands a peer sleeps in a read of its standard input.
    let mut peer = Peer::start();
    let (end, _) = connect_local(&device, &mut peer, Connection::default());
    let target = peer.register_zeroes(LEN);
    for round in 0..ROUNDS {
        let source = register_pattern(end.pd(), LEN, round);
        let back = end.register(&[0; LEN]).expect("memory");
        end.qp.write(round, source.all(), target.place.into()).expect("posted");
        end.qp.read(round, back.all(), target.place.into()).expect("posted");
        for _ in 0..2 {
            let wc = end.wait().expect("a completion");
            assert_eq!((wc.wr_id, wc.status), (round, WcStatus::Success));
        }
        assert_eq!(pattern::mismatch(round, 0, &back.to_vec().expect("mapped")), None);
    }
    let counters = peer.counters();
    assert_eq!(counters["rx_write_requests"], ROUNDS);
    assert!(counters["rx_read_requests"] >= ROUNDS);
    assert!(matches!(peer.ask(&Command::BackgroundTime), Reply::Time(millis) if millis > 0));
}

/// Sleeps on the channel until the completion queue has something; false if nothing comes.
fn sleep_on(channel: &rnic::CompletionChannel, cq: &CompletionQueue) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::from(10_000u16)).expect("poll") == 0 {
        return false;
    }
    let event = channel.next_event().expect("a readable channel has an event");
    assert!(event.is_for(cq));
    true
}

#[test]
fn sleeping_on_a_channel_misses_no_wake_up() {
    const MESSAGES: u64 = 10_000;
    let device = open();
    let mut peer = Peer::start();
    let channel = device.create_comp_channel().expect("a channel");
    let cq = device.create_cq_with_channel(1024, &channel).expect("a completion queue");
    let pd = device.alloc_pd().expect("a domain");
    let qp = pd.create_qp(&QpInit::rc(&cq, &cq)).expect("a queue pair");
    let (far, address) = peer.qp();
    peer.connect(far, &qp.address(), Connection::default());
    qp.connect(&address, &rnic::ConnectOptions::default()).expect("connects");
    let source = peer.register(32, 1);
    for id in 0..128 {
        qp.recv(id, Gather::Empty).expect("posted");
    }
    // One at a time, so that the receiver finds its queue empty again and again.
    let verb = Verb::Send(None);
    let traffic = Traffic { verb, region: source.id, size: 0, count: MESSAGES, depth: 1, slots: 1 };
    peer.tell(&Command::Run(far, traffic));
    let (mut received, mut slept) = (0, 0);
    while received < MESSAGES {
        if let Some(wc) = cq.poll_one() {
            assert_eq!(wc.status, WcStatus::Success);
            received += 1;
            qp.recv(received, Gather::Empty).expect("posted");
            continue;
        }
        cq.arm(false).expect("armed");
        // What came before the queue was armed makes no event.
        if !cq.is_empty() {
            continue;
        }
        assert!(sleep_on(&channel, &cq), "no wake-up after {received} messages");
        slept += 1;
    }
    peer.ran(MESSAGES);
    assert!(slept > 100, "slept {slept} times only: the test did not test sleeping");
    assert_eq!(counter(&device, "rdma_recvs"), MESSAGES);
}

#[test]
fn reads_are_answered_while_a_program_that_polled_sleeps() {
    let device = open();
    let mut peer = Peer::start();
    let (end, far) = connect_local(&device, &mut peer, Connection::default());
    let here = register_pattern(end.pd(), 8, 1);
    let there = peer.register_zeroes(8);
    let place = Place { addr: here.addr(), rkey: here.rkey() };
    let mut takeovers = Vec::new();
    for round in 0..11 {
        // The last is the long one.
        let sleep = Duration::from_millis(if round == 10 { 1000 } else { 100 });
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            assert_eq!(end.cq().poll_one(), None);
        }
        peer.tell(&Command::Probe(far, place, there.id, (sleep / 2).as_millis() as u64));
        let asleep = Instant::now();
        std::thread::sleep(sleep);
        let Reply::Probed(took) = peer.answer() else { panic!("no probe") };
        assert!(asleep.elapsed() < sleep + PATIENCE);
        assert!(!took.is_empty());
        takeovers.push(took[0]);
        if round == 10 {
            let mut sorted = took.clone();
            sorted.sort_unstable();
            let (median, max) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
            println!("{} READs while asleep: median {median} us, max {max} us", took.len());
            assert!(took.len() > 10 && median < 5000, "median {median} us of {}", took.len());
        }
    }
    takeovers.sort_unstable();
    println!("takeovers: {takeovers:?} us");
    // The thread has 1 ms; the rest is what a busy machine may take to run it.
    assert!(takeovers[takeovers.len() / 2] < 5000, "{takeovers:?}");
    assert!(counter(&device, "rx_read_requests") > 20);
}

/// Polls for one completion of `cq`, which must be a success.
fn success(cq: &CompletionQueue) -> WorkCompletion {
    let wc = cq.wait(PATIENCE).expect("a completion");
    assert_eq!(wc.status, WcStatus::Success);
    wc
}

#[test]
fn several_threads_on_several_devices() {
    const LEN: usize = 70_001;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let (a, b) = (open(), open());
                let (left, right) = RcEnd::pair(&a, &b).expect("a pair");
                let target = right.register_remote(LEN).expect("memory");
                for round in 0..100 {
                    let seed = thread * 1000 + round;
                    let source = register_pattern(left.pd(), LEN, seed);
                    left.qp.write(round, source.all(), target.remote(0)).expect("posted");
                    assert_eq!(success(left.cq()).wr_id, round);
                    assert_eq!(pattern::mismatch(seed, 0, &target.to_vec().expect("mapped")), None);
                }
                assert_eq!(counter(&b, "rx_write_requests"), 100);
            });
        }
    });
}

#[test]
fn many_threads_post_to_one_queue_pair_and_poll_one_queue() {
    const THREADS: u64 = 6;
    const EACH: u64 = 1000;
    let device = open();
    let mut peer = Peer::start();
    let (end, _) = connect_local(&device, &mut peer, Connection::default());
    let target: Region = peer.register_zeroes(64 * THREADS as usize);
    let seen: Vec<AtomicU64> = (0..THREADS * EACH).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicU64::new(0);
    let take = || {
        let mut out = [WorkCompletion::default(); 7];
        let taken = end.cq().poll(&mut out);
        for wc in &out[..taken] {
            assert_eq!(wc.status, WcStatus::Success);
            seen[wc.wr_id as usize].fetch_add(1, Ordering::Relaxed);
        }
        done.fetch_add(taken as u64, Ordering::Relaxed);
    };
    let deadline = Instant::now() + PATIENCE;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (end, take, done, target) = (&end, &take, &done, &target);
            scope.spawn(move || {
                let source = register_pattern(end.pd(), 64, thread);
                let place = target.place.plus(64 * thread);
                for i in 0..EACH {
                    let id = thread * EACH + i;
                    loop {
                        match end.qp.write(id, source.all(), place.into()) {
                            Ok(()) => break,
                            Err(rnic::Error::Post(rnic::PostError::QueueFull { .. })) => take(),
                            Err(error) => panic!("{error}"),
                        }
                        assert!(Instant::now() < deadline, "stuck");
                    }
                }
                while done.load(Ordering::Relaxed) < THREADS * EACH {
                    take();
                    assert!(Instant::now() < deadline, "stuck");
                }
            });
        }
    });
    assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1), "each completion comes once");
    for thread in 0..THREADS {
        peer.check(target.part(64 * thread as usize, 64), thread, 0);
    }
    assert_eq!(peer.counter("rx_write_requests"), THREADS * EACH);
}

/// Processor time of a peer's background thread, in milliseconds.
fn background_time(peer: &mut Peer) -> u64 {
    match peer.ask(&Command::BackgroundTime) {
        Reply::Time(millis) => millis,
        other => panic!("{other:?}"),
    }
}

#[test]
fn background_thread_costs_little_while_the_program_polls() {
    let (mut a, mut b) = (Peer::start(), Peer::start());
    let (left, right) = connect(&mut a, &mut b, Connection::default());
    let (source, target) = (b.register(1 << 20, 1), a.register_zeroes(1 << 20));
    // While the program sleeps the thread does all the work.
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
    // Packets all the time, for the rest of the peer's life.
    b.tell(&Command::Run(right, traffic(u64::MAX)));
    // What the thread does until it notices that the program polls does not count.
    a.ask(&Command::Poll(left, 50));
    let before = (background_time(&mut a), a.counter("rx_write_requests"));
    a.ask(&Command::Poll(left, 3000));
    let after = (background_time(&mut a), a.counter("rx_write_requests"));
    let spent = after.0 - before.0;
    let served = after.1 - before.1;
    println!("background thread while polling: {:.1} %, {served} MiB served", spent as f64 / 30.0);
    assert!(served > 0);
    assert!(spent < 300, "{spent} ms of 3000");
}

#[test]
fn a_fifo_scheduled_poller_does_not_livelock() {
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;
    const ROUNDS: u64 = 500;
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).expect("a set of processors");
    let core = (0..CpuSet::count()).find(|c| allowed.is_set(*c).unwrap_or(false)).expect("a processor");
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
    let (end, _) = connect_local(&device, &mut peer, Connection::default());
    let target = peer.register_zeroes(64);
    let source = register_pattern(end.pd(), 64, 1);
    let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Holds the engine most of the time, and is preempted in the middle of that by the other.
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
                assert_eq!(success(end.cq()).wr_id, id);
                rounds.push(start.elapsed());
                // Lets the other thread run, and take the lock.
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
        // In a livelock the kernel takes the processor away once a second, and each round takes so long.
        assert!(rounds.iter().sum::<Duration>() < PATIENCE, "{rounds:?}");
    });
    peer.check(target.all(), 1, 0);
}

/// A queue pair's worth of work left behind without any further call: the background thread alone sends it.
#[test]
fn posted_work_leaves_without_polling() {
    const LEN: usize = 1 << 20;
    let device = open();
    let mut peer = Peer::start();
    let (end, _) = connect_local(&device, &mut peer, Connection::default());
    let target = peer.register_zeroes(LEN);
    let source = register_pattern(end.pd(), LEN, 6);
    for id in 0..8 {
        let operation = rnic::Operation::Write { remote: target.place.into(), imm: None };
        let flags = if id == 7 { SendFlags::SIGNALED } else { SendFlags::empty() };
        end.qp.post_send(SendWr { wr_id: id, operation, data: source.all().into(), flags }).expect("posted");
    }
    let deadline = Instant::now() + PATIENCE;
    while end.cq().is_empty() {
        assert!(Instant::now() < deadline, "nobody sends");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(success(end.cq()).wr_id, 7);
    peer.check(target.all(), 6, 0);
    assert_eq!(counter(&device, "local_ack_timeout_err"), 0);
}
