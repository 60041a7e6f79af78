//! A program forks in the middle of its traffic.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork as fork_process};
use rnic::DeviceConfig;
use rnic::daemon::Desk;
use rnic_tests::peer::{Peer, connect};
use rnic_tests::protocol::{Command, Connection, Reply, Traffic, Verb};
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

const SIZE: usize = 64 << 10;
const SLOTS: u64 = 16;
const LEN: usize = SIZE * SLOTS as usize;

/// Tells the peer to fork, and checks that the child found no problems and that the parent continued; they answer
/// in any order.
fn fork(peer: &mut Peer, stay: bool) {
    peer.tell(&Command::Fork(stay));
    let mut answers = [peer.answer(), peer.answer()];
    answers.sort_by_key(|a| matches!(a, Reply::Child(_)));
    let [Reply::Done, Reply::Child(wrong)] = &answers else { panic!("{answers:?}") };
    assert!(wrong.is_empty(), "in the child: {wrong:#?}");
}

#[test]
fn parent_goes_on_and_children_are_refused() {
    let (mut forker, mut other) = (Peer::start(), Peer::start());
    let (left, right) = connect(&mut forker, &mut other, Connection::default());
    // Continuous traffic into the parent, so that its background thread is active whenever it forks.
    let into = forker.register_zeroes(LEN);
    let from = other.register(LEN, 1);
    let target = other.register_zeroes(LEN);
    let source = forker.register(LEN, 2);
    let count = 20_000;
    let verb = Verb::Write(into.place, None);
    other.tell(&Command::Run(
        right,
        Traffic { verb, region: from.id, size: SIZE, count, depth: SLOTS, slots: SLOTS },
    ));
    for round in 0..20 {
        for id in 0..16 {
            forker.post(left, id, Verb::Write(target.place, None), &[source.part(0, 100 * (round + 1))]);
        }
        fork(&mut forker, false);
        match forker.ask(&Command::Reap) {
            Reply::Reaped(how) => assert!(how.starts_with("Exited") && how.ends_with(", 0)"), "{how}"),
            other => panic!("{other:?}"),
        }
        forker.succeed(left, 16);
    }
    other.ran(count);
    forker.check(into.all(), 1, 0);
    other.check(target.part(0, 2000), 2, 0);
    let counters = forker.counters();
    assert_eq!(counters["rx_write_requests"], count);
    assert_eq!((counters["dropped_no_qp"], counters["retry_exceeded_err"]), (0, 0));
    assert!(counters["tx_packets"] > 0);
}

#[test]
fn address_is_free_once_the_parent_is_gone() {
    let (mut forker, mut other) = (Peer::start(), Peer::start());
    let _ = connect(&mut forker, &mut other, Connection::default());
    fork(&mut forker, true);
    let address = forker.address();
    assert!(DeviceConfig::at(address).open().is_err(), "the parent has the address");
    forker.kill();
    DeviceConfig::at(address).open().expect("the address is free although the child lives");
    // The child answers in place of its parent.
    assert!(matches!(forker.try_ask(&Command::Counters), Reply::Done));
}

/// The desk of the parent is locked while a thread waits for the daemon's answer; in the child that thread does not exist.
#[test]
fn a_child_asks_the_daemon_although_a_thread_of_its_parent_was_asking() {
    let path = std::env::temp_dir().join(format!("rnic-fork-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).expect("a socket");
    // A daemon that answers nobody.
    let asking = std::thread::spawn({
        let path = path.clone();
        move || Desk::at(&path).addresses().is_err()
    });
    let (mut question, _) = listener.accept().expect("the parent");
    question.read_exact(&mut [0; 8]).expect("a question");
    std::thread::sleep(Duration::from_millis(100));
    #[expect(unsafe_code, reason = "the test forks")]
    // SAFETY: the child does what a program under librdmacm may do after a fork, and leaves without unwinding.
    let child = match unsafe { fork_process() }.expect("a child") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let refused = Desk::at(&path).addresses().is_err();
            // SAFETY: it ends the child.
            #[expect(unsafe_code, reason = "no destructor of the parent's objects may run in the child")]
            unsafe {
                libc::_exit(i32::from(!refused))
            }
        }
    };
    listener.set_nonblocking(true).expect("a socket");
    let begin = Instant::now();
    let status = loop {
        // The child's connection is closed at once.
        drop(listener.accept());
        match waitpid(child, Some(WaitPidFlag::WNOHANG)).expect("a child") {
            WaitStatus::StillAlive if begin.elapsed() > Duration::from_secs(60) => {
                kill(child, Signal::SIGKILL).expect("a child");
                panic!("the child hangs");
            }
            WaitStatus::StillAlive => {}
            ended => break ended,
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(status, WaitStatus::Exited(child, 0));
    drop(question);
    assert!(asking.join().expect("no panic"), "the parent got no answer");
    std::fs::remove_file(&path).expect("the socket");
}
