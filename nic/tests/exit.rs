//! A program that exits without closing anything has acknowledged all messages that it received. One that a signal ends has told
//! its peers that it is gone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unsafe_code, reason = "kill and fork")]

use rnic::cm::ConnectionEvent;
use rnic::{ConnectOptions, QpAddress, RcEnd, WcStatus};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

const PEER: &str = "RNIC_TEST_PEER";

/// Enough rounds for the device to detect that the program polls and answers, and to delay acknowledgements until its
/// answers.
const ROUNDS: u64 = 3000;

fn connected(end: &RcEnd, peer: &str) {
    let peer: QpAddress = serde_json::from_str(peer).unwrap();
    // 8 ms between retries: a retransmission would come after the exit, too late to recover a held acknowledgement.
    end.qp.connect(&peer, &ConnectOptions { timeout: 11, ..ConnectOptions::default() }).unwrap();
}

/// The child: answers every message but the last, then exits at once.
#[test]
fn child() {
    let Ok(peer) = std::env::var(PEER) else { return };
    let end = RcEnd::new(&rnic::open().unwrap()).unwrap();
    let memory = end.register(&[0; 64]).unwrap();
    connected(&end, &peer);
    end.qp.recv(0, memory.all()).unwrap();
    println!("\n{}", serde_json::to_string(&end.qp.address()).unwrap());
    for round in 1.. {
        assert_eq!(end.wait().unwrap().status, WcStatus::Success);
        if round == ROUNDS {
            // No destructor runs.
            std::process::exit(0);
        }
        end.qp.recv(round, memory.all()).unwrap();
        end.qp.send(round, memory.all()).unwrap();
        assert_eq!(end.wait().unwrap().status, WcStatus::Success);
    }
}

#[test]
fn the_last_message_is_acknowledged() {
    let end = RcEnd::new(&rnic::open().unwrap()).unwrap();
    let memory = end.register(&[1; 64]).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(PEER, serde_json::to_string(&end.qp.address()).unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.by_ref().map(|line| line.unwrap()).find(|line| line.starts_with('{')).unwrap();
    connected(&end, &address);
    for round in 1..=ROUNDS {
        end.qp.recv(round, memory.all()).unwrap();
        end.qp.send(round, memory.all()).unwrap();
        // The completion of the send, and the answer. The last message gets no answer.
        for _ in 0..if round == ROUNDS { 1 } else { 2 } {
            assert_eq!(end.wait().unwrap().status, WcStatus::Success, "round {round}");
        }
    }
    assert!(child.wait().unwrap().success());
}

const SERVER: &str = "RNIC_TEST_SERVER";

/// The child: accepts a connection, and then does nothing more until a signal ends it.
#[test]
fn server() {
    let Ok(kind) = std::env::var(SERVER) else { return };
    // Whoever started the tests may ignore signals, as shells do for what they run in the background. And if the test fails,
    // this process ends all the same.
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the default action is restored, before anything else is set up.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the call takes a number.
    unsafe { libc::alarm(120) };
    let device = rnic::open().unwrap();
    let listener = device.listen(0).unwrap();
    println!("\n{}", serde_json::to_string(&listener.local()).unwrap());
    let end = listener.accept().unwrap().accept_end().unwrap();
    // A child of its own has no part in the connection: it ends by itself.
    if kind == "forks" {
        // SAFETY: the child only waits for a signal.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the call has no arguments.
            unsafe { libc::pause() };
            unreachable!("the signal ends the process");
        }
        let mut status = 0;
        std::thread::sleep(Duration::from_millis(10));
        // SAFETY: the process is a child of this one, and the status is written to.
        unsafe {
            libc::kill(child, libc::SIGTERM);
            libc::waitpid(child, &raw mut status, 0);
        }
        assert_eq!((libc::WIFSIGNALED(status), libc::WTERMSIG(status)), (true, libc::SIGTERM));
    }
    end.qp.send(1, rnic::Gather::Empty).unwrap();
    loop {
        std::thread::park();
    }
}

/// Kills a server with a connection; returns what its peer learns, and by which signal it ended.
fn killed(kind: &str, signal: i32) -> (Option<ConnectionEvent>, Option<i32>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server", "--nocapture"])
        .env(SERVER, kind)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.by_ref().map(|line| line.unwrap()).find(|line| line.starts_with('"')).unwrap();
    let server: SocketAddr = serde_json::from_str(&address).unwrap();
    let end = RcEnd::dial(&rnic::open().unwrap(), server).unwrap().wait().unwrap();
    end.qp.recv(1, rnic::Gather::Empty).unwrap();
    assert_eq!(end.wait().unwrap().status, WcStatus::Success);
    // SAFETY: the process is a child that was not waited for.
    unsafe { libc::kill(child.id().try_into().unwrap(), signal) };
    let status = child.wait().unwrap();
    let told = std::iter::from_fn(|| end.connection().wait_event(Duration::from_millis(200)).unwrap())
        .find(|event| matches!(event, ConnectionEvent::Disconnected(_)));
    (told, status.signal())
}

#[test]
fn peers_are_told_before_a_signal_ends_a_process() {
    for (kind, signal) in
        [("", libc::SIGTERM), ("", libc::SIGINT), ("", libc::SIGHUP), ("forks", libc::SIGTERM)]
    {
        let (told, ended_by) = killed(kind, signal);
        assert!(matches!(told, Some(ConnectionEvent::Disconnected(_))), "{told:?} after {signal}");
        assert_eq!(ended_by, Some(signal));
    }
    assert_eq!(killed("", libc::SIGKILL), (None, Some(libc::SIGKILL)), "nobody can tell");
}
