//! Connections of real queue pairs, each with a message, leave nothing behind: two thousand of them, or with `RNIC_LONG=1` ten
//! thousand. Alone in its process, whose memory and descriptors it counts.

use rnic::{Device, RcEnd, WcStatus};
use rnic_tests::{open, resident};

/// What may remain of thousands of connections: a device gives away a number of a queue pair again only after all the others, so
/// its table of them grows up to 65,536 entries.
const GROWTH: usize = 4 << 20;

/// The process's descriptors, and its resident memory in bytes.
fn used() -> (usize, usize) {
    (std::fs::read_dir("/proc/self/fd").expect("descriptors").count(), resident(std::process::id()))
}

/// Makes connections one after the other; the sides take turns in closing them.
fn churn(client: &Device, server: &Device, rounds: usize) {
    let listener = server.listen(7471).expect("a free port");
    for round in 0..rounds {
        let dialling = RcEnd::dial(client, listener.local()).expect("a queue pair");
        let right = listener.accept().and_then(|request| request.accept_end()).expect("a connection");
        let left = dialling.wait().expect("a connection");
        let message = left.register(&round.to_le_bytes()).expect("memory");
        let inbox = right.register(&[0; size_of::<usize>()]).expect("memory");
        right.qp.recv(1, inbox.all()).expect("a receive");
        left.qp.send(2, message.all()).expect("a message");
        for (name, end) in [("left", &left), ("right", &right)] {
            let done = end.wait().expect("a completion");
            let events: Vec<_> = std::iter::from_fn(|| end.connection().poll_event()).collect();
            assert_eq!(done.status, WcStatus::Success, "round {round}, {name}: {done:?}, events {events:?}");
        }
        assert_eq!(inbox.to_vec().expect("memory"), round.to_le_bytes());
        if round.is_multiple_of(2) {
            drop(left);
            drop(right);
        } else {
            drop(right);
            drop(left);
        }
    }
}

#[test]
fn thousands_of_connections_with_queue_pairs_leave_nothing_behind() {
    let rounds = if std::env::var_os("RNIC_LONG").is_some() { 10_000 } else { 2_000 };
    let (client, server) = (open(), open());
    // The tables of what is over fill up first; they are bounded.
    churn(&client, &server, rounds / 2);
    let before = used();
    churn(&client, &server, rounds / 2);
    let after = used();
    println!("descriptors and bytes after {} connections: {before:?}, after {rounds}: {after:?}", rounds / 2);
    assert_eq!(before.0, after.0, "descriptors");
    assert!(after.1.saturating_sub(before.1) < GROWTH, "memory: {} bytes, then {}", before.1, after.1);
}
