//! `rnic run` and `rnic env` themselves.

use crate::lab::{self, Ended, Folder, LIMIT, Running, built, has, rnic};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

fn end(folder: &Folder, command: &mut Command) -> Ended {
    Running::start(folder, command).wait(LIMIT)
}

fn sh(script: &str) -> Ended {
    let folder = Folder::new();
    end(&folder, lab::run(&folder, &[], "sh").args(["-c", script]))
}

#[test]
fn exit_status_signals_and_arguments_are_those_of_the_program() {
    assert_eq!(sh("exit 0").status.and_then(|status| status.code()), Some(0));
    assert_eq!(sh("exit 77").status.and_then(|status| status.code()), Some(77));
    assert_eq!(sh("kill -TERM $$").status.and_then(|status| status.signal()), Some(15));
    let folder = Folder::new();
    let printed = end(&folder, lab::run(&folder, &[], "printf").args(["%s|", "--mtu", "a b", "-- 'x'"]));
    assert_eq!(printed.text, "--mtu|a b|-- 'x'|");
    // The program replaces the rnic process: a signal to one reaches the other.
    let mut pid = lab::run(&folder, &[], "sh");
    let running = Running::start(&folder, pid.args(["-c", "echo $$"]));
    let id = running.id();
    assert_eq!(running.wait(LIMIT).text.trim(), id.to_string());
}

#[test]
fn what_cannot_be_is_said_in_one_line() {
    let folder = Folder::new();
    let cases: [(&[&str], &str, i32, &str); 10] = [
        (&[], "no-such-program", 127, "no-such-program: program not found"),
        (&[], "/etc/passwd", 126, "/etc/passwd cannot be run"),
        (&["--mtu", "1500"], "true", 125, "--mtu: "),
        (&["--addr", "here"], "true", 125, "--addr: "),
        (&["--device-name", "mlx5/0"], "true", 125, "--device-name: "),
        (&["--devices", "17"], "true", 125, "--devices: "),
        (&["--link", "ethernet:speed=1"], "true", 125, "--link: "),
        (&["--fault", "tx data drop", "--fault", "tx data dorp"], "true", 125, "--fault: in `tx data dorp`"),
        (&["--gid-table", "mlx4"], "true", 125, "--gid-table: "),
        (&["--config", "/nowhere/at.toml"], "true", 125, "--config: /nowhere/at.toml"),
    ];
    for (options, program, code, says) in cases {
        let ended = end(&folder, &mut lab::run(&folder, options, program));
        assert_eq!(ended.status.and_then(|status| status.code()), Some(code), "{}", ended.text);
        assert!(ended.text.starts_with("rnic: ") && ended.text.contains(says), "{}", ended.text);
        assert_eq!(ended.text.lines().count(), 1, "{}", ended.text);
    }
    let bad = end(&folder, lab::run(&folder, &[], "true").env("RNIC_MTU", "1500"));
    assert!(bad.text.starts_with("rnic: RNIC_MTU: "), "{}", bad.text);
}

#[test]
fn an_interface_or_a_host_name_stands_for_its_address() {
    let folder = Folder::new();
    for name in ["localhost", "lo"] {
        let mut shell = lab::run(&folder, &["--addr", name, "--no-gso"], "sh");
        let ended = end(&folder, shell.args(["-c", "echo \"$RNIC_ADDR $RNIC_GSO\""]));
        assert_eq!((ended.fault(), &*ended.text), (None, "127.0.0.1 0\n"), "{name}");
    }
}

#[test]
fn a_program_without_its_libraries_says_where_it_looked() {
    let folder = Folder::new();
    let copy = folder.path().join("bin/rnic");
    fs::create_dir_all(folder.path().join("bin")).expect("a folder");
    // A separate `cp` makes the copy. A child that another test starts meanwhile would inherit a descriptor of this
    // process that is open for writing, and a file that is open for writing cannot be executed.
    assert!(Command::new("cp").arg(built().join("rnic")).arg(&copy).status().expect("cp").success());
    let ended = end(&folder, Command::new(&copy).args(["run", "--", "true"]));
    assert_eq!(ended.status.and_then(|status| status.code()), Some(125), "{}", ended.text);
    assert!(ended.text.contains("libibverbs.so.1") && ended.text.contains("bin/dropin"), "{}", ended.text);
    // In an installation the libraries are in lib/rnic.
    let library = folder.path().join("lib/rnic");
    fs::create_dir_all(&library).expect("a folder");
    for name in ["libibverbs.so.1", "librnic_shim.so"] {
        std::os::unix::fs::symlink(built().join("dropin").join(name), library.join(name)).expect("a link");
    }
    let ended = end(&folder, Command::new(&copy).args(["run", "--", "printenv", "LD_LIBRARY_PATH"]));
    let library = library.canonicalize().expect("a folder");
    assert!(ended.text.trim().starts_with(&*library.to_string_lossy()), "{}", ended.text);
}

#[test]
fn a_shell_takes_the_environment_that_is_printed() {
    let folder = Folder::new();
    let odd = folder.path().join("it's here");
    fs::create_dir_all(&odd).expect("a folder");
    let script =
        "eval \"$(\"$0\" env --mtu 1024 --explain --capture \"$1/%p.pcapng\" --fault 'tx data psn=#3 drop')\" &&
                  printf '%s\\n' \"$RNIC_MTU\" \"$RNIC_CAPTURE\" \"$RNIC_FAULT\" \"$RNIC_EXPLAIN\" && ls /sys/class/infiniband";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(built().join("rnic")).arg(&odd);
    shell.env("RNIC_RUN_DIR", folder.path().join("run"));
    let ended = end(&folder, &mut shell);
    let expected = format!("1024\n{}/%p.pcapng\ntx data psn=#3 drop\n1\nrnic0\n", odd.display());
    assert_eq!((ended.fault(), ended.text), (None, expected));
}

#[test]
fn devices_are_as_the_options_say() {
    if !has("ibv_devinfo") {
        return;
    }
    let folder = Folder::new();
    let options =
        ["--addr", "127.90.2.1,127.90.2.2", "--mtu", "1024", "--gid-table", "mlx5", "--link", "rate=10Gb/s"];
    let ended = end(&folder, lab::run(&folder, &options, "ibv_devinfo").arg("-v"));
    assert_eq!(ended.fault(), None, "{}", ended.text);
    for expected in
        ["rnic0", "rnic1", "1024 (3)", "::ffff:127.90.2.2, RoCE v2", "fe80::504e:7fff:fe5a:201, RoCE v2"]
    {
        assert!(ended.text.contains(expected), "{expected} in:\n{}", ended.text);
    }
}

#[test]
fn faults_captures_and_counters_reach_programs() {
    if !has("ib_write_bw") {
        return;
    }
    let folder = Folder::new();
    let capture = folder.path().join("%p.pcapng");
    let port = lab::free_port().to_string();
    let program = |options: &[&str], address: &[&str], iterations: &str| {
        let mut command = lab::run(&folder, options, "ib_write_bw");
        command.args(["-F", "-s", "65536", "-n", iterations, "-p", &port]).args(address);
        command
    };
    let faulty = ["--fault", "tx data psn=#40 drop", "--capture", capture.to_str().expect("a path in UTF-8")];
    // It runs long enough to be inspected.
    let server = Running::start(&folder, &mut program(&[], &[], "4000"));
    std::thread::sleep(Duration::from_millis(500));
    let mut client = Running::start(&folder, &mut program(&faulty, &["127.0.0.1"], "4000"));
    let shown = || -> Vec<serde_json::Value> {
        let show = rnic(&folder).args(["show", "counters", "--json"]).output().expect("rnic");
        serde_json::from_slice(&show.stdout).expect("JSON")
    };
    let of = |pid: u32| shown().into_iter().find(|row| row["pid"] == pid);
    let id = client.id();
    let live = Instant::now();
    let seen = loop {
        if let Some(row) =
            of(id).filter(|row| row["program"] == "running" && row["sent_pkts"].as_u64() > Some(0))
        {
            break row;
        }
        assert!(!client.has_ended() && live.elapsed() < LIMIT, "never shown while it ran");
        std::thread::sleep(Duration::from_millis(20));
    };
    let client = client.wait(LIMIT);
    let server = server.wait(2 * LIMIT);
    assert_eq!((client.fault(), server.fault()), (None, None), "{}{}", client.text, server.text);
    let last = of(id).expect("kept");
    assert_eq!((&last["program"], &last["comm"]), (&"ended".into(), &"ib_write_bw".into()));
    assert!(last["sent_pkts"].as_u64() >= seen["sent_pkts"].as_u64(), "{seen} then {last}");
    // 4,000 messages of 16 packets, plus the retransmissions from the lost one on.
    assert!(last["sent_pkts"].as_u64() > Some(64_000), "{last}");
    assert!(last["retransmitted_pkts"].as_u64() > Some(0), "{last}");
    let written = fs::metadata(folder.path().join(format!("{id}.pcapng"))).expect("a capture").len();
    assert!(written > 1_000_000, "{written}");
}

/// A packet-by-packet list of what a program lost and retransmitted.
#[test]
fn a_capture_of_a_program_shows_what_was_lost_and_sent_again() {
    if !has("ib_write_bw") {
        return;
    }
    let folder = Folder::new();
    let capture = folder.path().join("client.pcapng");
    let options =
        ["--fault", "tx data psn=#40 drop", "--capture", capture.to_str().expect("a path in UTF-8")];
    let port = lab::free_port().to_string();
    let arguments = ["-F", "-s", "65536", "-n", "20", "-p", &port];
    let server = Running::start(&folder, lab::run(&folder, &[], "ib_write_bw").args(arguments));
    std::thread::sleep(Duration::from_millis(500));
    let client =
        Running::start(&folder, lab::run(&folder, &options, "ib_write_bw").args(arguments).arg("127.0.0.1"));
    let (client, server) = (client.wait(LIMIT), server.wait(LIMIT));
    assert_eq!((client.fault(), server.fault()), (None, None), "{}{}", client.text, server.text);
    let decoded = rnic(&folder).args(["decode", "--json"]).arg(&capture).output().expect("rnic");
    let document: serde_json::Value = serde_json::from_slice(&decoded.stdout).expect("JSON");
    let packets: Vec<String> = document["packets"]
        .as_array()
        .expect("packets")
        .iter()
        .map(|packet| format!("{} {}", packet["text"].as_str().expect("a text"), packet["comments"][0]))
        .collect();
    let lost: Vec<usize> =
        (0..packets.len()).filter(|at| packets[*at].ends_with("\"fault f1: dropped\"")).collect();
    let &[lost] = lost.as_slice() else { panic!("{lost:?}, not one packet, was lost") };
    let psn = packets[lost].split_whitespace().find(|word| word.starts_with("psn=")).expect("a PSN");
    let later: Vec<&str> =
        packets[lost + 1..].iter().filter(|packet| packet.contains(psn)).map(String::as_str).collect();
    let [nak, again] = later.as_slice() else { panic!("{psn}: {later:?}") };
    assert!(nak.contains("NAK psn-sequence-error"), "{nak}");
    assert!(again.contains("RC WRITE_MIDDLE") && again.ends_with(" null"), "{again}");
}

/// The text form lists the counters that changed, each with its meaning, and the rest on request.
#[test]
fn counters_are_shown_that_moved() {
    if !has("ibv_rc_pingpong") {
        return;
    }
    let folder = Folder::new();
    let port = lab::free_port().to_string();
    let server =
        Running::start(&folder, lab::run(&folder, &[], "ibv_rc_pingpong").args(["-g", "0", "-p", &port]));
    std::thread::sleep(Duration::from_millis(500));
    let mut client = lab::run(&folder, &[], "ibv_rc_pingpong");
    let client = end(&folder, client.args(["-g", "0", "-p", &port, "127.0.0.1"]));
    let server = server.wait(LIMIT);
    assert_eq!((client.fault(), server.fault()), (None, None), "{}{}", client.text, server.text);
    let text = |options: &[&str]| {
        let shown = rnic(&folder).args(["show", "counters"]).args(options).output().expect("rnic");
        String::from_utf8(shown.stdout).expect("UTF-8")
    };
    let (moved, all) = (text(&[]), text(&["--all"]));
    assert_eq!(moved.matches("of ibv_rc_pingpong (pid ").count(), 2, "{moved}");
    let line = |text: &str, name: &str| text.lines().any(|line| line.trim_start().starts_with(name));
    assert!(line(&moved, "rdma_recvs                           1000  "), "{moved}");
    // Without losses, `--all` is needed to list the loss counters.
    assert!(!line(&moved, "dropped_bad_icrc") && line(&all, "dropped_bad_icrc"), "{all}");
}
