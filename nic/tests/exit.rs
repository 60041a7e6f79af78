//! A program that exits without closing anything has acknowledged all messages that it received.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rnic::{ConnectOptions, QpAddress, RcEnd, WcStatus};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

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
