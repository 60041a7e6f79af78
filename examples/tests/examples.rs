//! Every example runs without arguments, ends by itself and says what came of it.

use std::process::Command;

/// What a program without arguments prints, if it ends well.
fn run(program: &str) -> String {
    let output = Command::new(program).output().expect("it starts");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {said}{complained}", output.status);
    assert!(complained.is_empty(), "{complained}");
    said.into_owned()
}

/// The last line of what a program prints, which holds all of `parts`.
fn ends_with(program: &str, parts: &[&str]) -> String {
    let said = run(program);
    let last = said.lines().last().expect("a line");
    for part in parts {
        assert!(last.contains(part), "{part:?} is not in the last line of: {said}");
    }
    said
}

#[test]
fn pingpong() {
    ends_with(env!("CARGO_BIN_EXE_pingpong"), &["1000 rounds of 64 bytes", "each way"]);
}

#[test]
fn kv() {
    let said = ends_with(env!("CARGO_BIN_EXE_kv"), &["the server took no part in it", "4 connections"]);
    assert!(said.contains("3 clients, 600 puts: the counter says 300"), "{said}");
}

#[test]
fn multicast() {
    let said = ends_with(env!("CARGO_BIN_EXE_multicast"), &["ok: 8 datagrams sent", "3 ticks"]);
    let lines = |name: &str, text: &str| {
        said.lines().filter(|line| line.contains(&format!("{name} |")) && line.contains(text)).count()
    };
    assert_eq!((lines("ann", "\"tick "), lines("ben", "\"tick ")), (8, 3), "{said}");
    assert_eq!((lines("ben", "left the group"), lines("ann", "left the group")), (1, 0), "{said}");
    // Those of the group name it as their destination, the last one names the listener.
    assert_eq!((lines("ann", "to 239.255."), lines("ann", "to 127.0.0.")), (8, 1), "{said}");
    assert_eq!((lines("ticker", "\"ben leaves\""), lines("ticker", "\"ann leaves\"")), (1, 0), "{said}");
}

#[test]
fn srq_server() {
    let said = ends_with(
        env!("CARGO_BIN_EXE_srq_server"),
        &["ok: 2440 requests of 3 clients through one queue of 64 receives", "on its limit event"],
    );
    assert!(said.contains("limit event: "), "{said}");
    for (name, requests) in [("fast", 2000), ("steady", 400), ("slow", 40)] {
        assert!(said.contains(&format!("{name:<6} {requests:>5} requests, each answered")), "{said}");
    }
}
