//! Every example runs without arguments, terminates and prints its result.

use std::process::Command;

/// The output of a program without arguments, which must exit successfully.
fn run(program: &str) -> String {
    run_with(program, &[])
}

fn run_with(program: &str, arguments: &[&str]) -> String {
    run_in(program, arguments, &[])
}

/// With more in the environment.
fn run_in(program: &str, arguments: &[&str], more: &[(&str, &str)]) -> String {
    let output =
        Command::new(program).args(arguments).envs(more.iter().copied()).output().expect("it starts");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {said}{complained}", output.status);
    assert!(complained.is_empty(), "{complained}");
    said.into_owned()
}

/// Checks that the last line of the program's output contains all of `parts`; returns the whole output.
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
    let said = ends_with(env!("CARGO_BIN_EXE_kv"), &["the server did not take part", "4 connections"]);
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
    // Ticks to the group name it as their destination; the last datagram names the listener.
    assert_eq!((lines("ann", "to 239.255."), lines("ann", "to 127.0.0.")), (8, 1), "{said}");
    assert_eq!((lines("ticker", "\"ben leaves\""), lines("ticker", "\"ann leaves\"")), (1, 0), "{said}");
}

#[test]
fn srq_server() {
    let said = ends_with(
        env!("CARGO_BIN_EXE_srq_server"),
        &["ok: 2440 requests from 3 clients through one queue of 64 receives", "on its limit event"],
    );
    assert!(said.contains("limit event: "), "{said}");
    for (name, requests) in [("fast", 2000), ("steady", 400), ("slow", 40)] {
        assert!(said.contains(&format!("{name:<6} {requests:>5} requests, all answered")), "{said}");
    }
}

#[test]
fn connect() {
    let said = ends_with(env!("CARGO_BIN_EXE_connect"), &["ann is gone", "The peer closed the connection"]);
    for line in [
        "nobody listens on 127.0.0.",
        "refuses the connection",
        "ann connects from 127.0.0.",
        "ann says \"hello\"",
    ] {
        assert!(said.contains(line), "{line:?} is not in: {said}");
    }
}

#[test]
fn all_reduce() {
    let program = env!("CARGO_BIN_EXE_all_reduce");
    let said = ends_with(program, &["ok: all 3 ranks have the sum, by 4 algorithms"]);
    // What a rank of three sends is arithmetic: 2 x 2/3 of the vector in a ring, and in two trees on average.
    for (algorithm, bytes) in [("ring", 1_398_101), ("tree", 1_398_101)] {
        let line = said.lines().find(|line| line.starts_with(algorithm)).expect("a line of the table");
        assert_eq!(line.split_whitespace().nth(2), Some(bytes.to_string().as_str()), "{said}");
    }
    let four = ["--ranks", "4", "--bytes", "100KB", "--algorithm", "recursive-doubling"];
    let said = run_with(program, &four);
    assert!(said.contains("4 ranks add up vectors of 100000 bytes"), "{said}");
    assert!(said.ends_with("ok: all 4 ranks have the sum, by 1 algorithms\n"), "{said}");
}

/// Every rank loses packets that it sends. A sum is right however often its parts were sent.
#[test]
fn all_reduce_with_lost_packets() {
    for loss in ["0.01", "0.05"] {
        for selective in ["off", "on"] {
            let faults = format!("tx p={loss} drop");
            let arguments = ["--bytes", "2MB", "--fault", &faults, "--selective-repeat", selective];
            let said = run_with(env!("CARGO_BIN_EXE_all_reduce"), &arguments);
            assert!(
                said.ends_with("ok: all 3 ranks have the sum, by 4 algorithms\n"),
                "{arguments:?}: {said}"
            );
            let column = |line: &str| line.split_whitespace().nth(5)?.parse::<u64>().ok();
            let again: u64 = said.lines().filter_map(column).sum();
            assert!(again > 0, "nothing was lost: {said}");
        }
    }
}

/// A rank that is killed says nothing to its neighbours, and they then say nothing to the others. Still, no rank may hang.
#[test]
fn all_reduce_with_a_rank_that_dies() {
    for (algorithm, dead) in [("ring", "2"), ("tree", "0"), ("halving-doubling", "4")] {
        let said = run_in(
            env!("CARGO_BIN_EXE_all_reduce"),
            &["--ranks", "5", "--algorithm", algorithm, "--kill", dead],
            &[],
        );
        let end = format!("ok: rank {dead} died, and all 4 others have ended with an error\n");
        assert!(said.ends_with(&end), "{algorithm}: {said}");
        assert!(
            said.contains(&format!("rank {dead}: ")) && said.contains(&format!("rank {dead} is gone")),
            "{said}"
        );
    }
}
