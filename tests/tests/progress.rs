//! The engine is driven by the program while it polls, and by the background thread while it does not.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic::{
    CompletionQueue, ConnectOptions, Gather, QpInit, RcEnd, SendFlags, SendWr, WcStatus, WorkCompletion,
};
use rnic_tests::peer::{Peer, Region, connect_local, register_pattern};
use rnic_tests::protocol::{Command, Connection, Reply, Traffic, Verb};
use rnic_tests::{counter, open, pattern};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_target_that_never_polls() {
    const LEN: usize = 100_001;
    const ROUNDS: u64 = 200;
    let device = open();
    // Between commands, a peer sleeps in a read of its standard input.
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

/// A peer is a program, and answers when its processor is free. So a program that asks for a timeout of 8 us does not get that.
#[test]
fn a_timeout_of_a_few_microseconds_leaves_the_peer_time_to_run() {
    let (a, b) = (open(), open());
    let options = ConnectOptions { timeout: 1, ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options).expect("connected");
    a.add_fault("tx data drop once").expect("a rule");
    let (source, target) =
        (left.register(&[1; 64]).expect("memory"), right.register_remote(64).expect("memory"));
    let begin = Instant::now();
    left.qp.write(1, source.all(), target.remote(0)).expect("posted");
    left.wait().expect("a completion");
    assert!(begin.elapsed() >= Duration::from_nanos(4096 << 10), "{:?}", begin.elapsed());
    assert!(counter(&a, "local_ack_timeout_err") >= 1);
}

/// How a program waits for an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// It sleeps on the descriptor.
    Descriptor,
    /// It calls.
    Call,
    /// It does what `ibv_get_cq_event` does: it looks, which may drive the device, and sleeps on the descriptor.
    LookAndSleep,
}

/// Waits until the completion queue has an event; false if nothing arrives.
fn sleep_on(channel: &rnic::CompletionChannel, cq: &CompletionQueue, way: Way) -> bool {
    let early = match way {
        Way::Descriptor => None,
        Way::Call => return channel.wait(PATIENCE).is_ok_and(|event| event.is_for(cq)),
        Way::LookAndSleep => channel.next_event_before_sleep(),
    };
    if let Some(event) = early {
        return event.is_for(cq);
    }
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::from(10_000u16)).expect("poll") == 0 {
        return false;
    }
    let event = channel.next_event().expect("a readable channel has an event");
    assert!(event.is_for(cq));
    true
}

/// A program that goes from one way of waiting to another is awake for every message, although the device expects it to wait
/// as before, and leaves the driving to it.
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
    qp.connect(&address, &ConnectOptions::default()).expect("connects");
    let source = peer.register(32, 1);
    for id in 0..128 {
        qp.recv(id, Gather::Empty).expect("posted");
    }
    // One at a time, so that the receiver repeatedly finds its queue empty.
    let verb = Verb::Send(None);
    let traffic = Traffic { verb, region: source.id, size: 0, count: MESSAGES, depth: 1, slots: 1 };
    peer.tell(&Command::Run(far, traffic));
    let (mut received, mut slept) = (0, 0_usize);
    while received < MESSAGES {
        if let Some(wc) = cq.poll_one() {
            assert_eq!(wc.status, WcStatus::Success);
            received += 1;
            qp.recv(received, Gather::Empty).expect("posted");
            continue;
        }
        cq.arm(false).expect("armed");
        // Completions that arrive before the queue is armed cause no event.
        if !cq.is_empty() {
            continue;
        }
        let way = [Way::Descriptor, Way::Call, Way::LookAndSleep, Way::Call][slept / 50 % 4];
        assert!(sleep_on(&channel, &cq, way), "{way:?}: no wake-up after {received} messages");
        slept += 1;
    }
    peer.ran(MESSAGES);
    assert!(slept > 200, "slept {slept} times only: the test did not test sleeping");
    assert_eq!(counter(&device, "rdma_recvs"), MESSAGES);
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

/// Work that is posted without any further call: the background thread alone sends it.
#[test]
fn posted_work_leaves_without_polling() {
    const LEN: usize = 1 << 20;
    let device = open();
    let mut peer = Peer::start();
    // 4.3 s: it times out only if something is lost, however busy the machine is.
    let (end, _) = connect_local(&device, &mut peer, Connection { timeout: 20, ..Connection::default() });
    let target = peer.register_zeroes(LEN);
    let source = register_pattern(end.pd(), LEN, 6);
    for id in 0..8 {
        let operation = rnic::Operation::Write { remote: target.place.into(), imm: None };
        let flags = if id == 7 { SendFlags::SIGNALED } else { SendFlags::empty() };
        end.qp.post_send(SendWr::new(id, operation, source.all()).flags(flags)).expect("posted");
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
