//! What a report says about losses, and to which client it attributes them.

use crate::rig::{Folder, Server, client, complaint, interrupt, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// One packet, whose acknowledgement comes after the timer of 67 ms has expired.
const LATE: [&str; 6] = ["-n", "1", "--size", "64", "--fault", "rx ack delay 300ms once"];

/// Ten packets, of which one is lost.
const LOST: [&str; 6] = ["-n", "10", "--size", "64", "--fault", "tx data psn=#3 drop once"];

#[test]
fn late_acknowledgements_are_not_called_losses() {
    let server = Server::start(&[]);
    let document = json(&server.client(&[&LATE[..], &["--json"]].concat()));
    assert_eq!(document["delivery"], "late-answers", "{document}");
    let losses = &document["losses"];
    assert!(losses["client"]["local_ack_timeout_err"].as_u64().unwrap() > 0, "{losses}");
    assert!(losses["server"]["duplicate_request"].as_u64().unwrap() > 0, "{losses}");
    let text = String::from_utf8(server.client(&LATE).stdout).unwrap();
    assert!(text.contains("No packet was lost, but acknowledgements came too late"), "{text}");
    assert!(!text.contains("Packets were lost"), "{text}");
}

#[test]
fn losses_are_called_losses() {
    let server = Server::start(&[]);
    let document = json(&server.client(&[&LOST[..], &["--json"]].concat()));
    assert_eq!(document["delivery"], "lost", "{document}");
    assert!(document["losses"]["server"]["out_of_seq_request"].as_u64().unwrap() > 0, "{document}");
    let text = String::from_utf8(server.client(&LOST).stdout).unwrap();
    assert!(text.contains("Packets were lost:\n  client: "), "{text}");
}

/// The last packet leaves no gap behind it: only the timer and the absence of a duplicate show that it was lost.
#[test]
fn the_loss_of_the_last_packet_is_a_loss() {
    let server = Server::start(&[]);
    let args = ["-n", "10", "--size", "64", "--fault", "tx data psn=#9 drop once", "--json"];
    let document = json(&server.client(&args));
    assert_eq!(document["delivery"], "lost", "{document}");
    assert!(document["losses"]["client"]["local_ack_timeout_err"].as_u64().unwrap() > 0, "{document}");
}

#[test]
fn unreliable_services_report_lost_messages_and_no_timers() {
    let server = Server::start(&[]);
    for service in ["uc", "ud"] {
        let faults = ["--fault", "tx data psn=#3 drop once", "--fault", "tx data psn=#7 drop once"];
        let args = [&["-c", service, "--op", "send", "-n", "10", "--size", "64"], &faults[..]].concat();
        let document = json(&server.client(&[&args[..], &["--json"]].concat()));
        assert_eq!(document["delivery"], "lost", "{document}");
        assert_eq!(document["results"][0]["lost"], 2, "{document}");
        assert!(document["losses"]["client"]["local_ack_timeout_err"].is_null(), "{document}");
        let text = String::from_utf8(server.client(&args).stdout).unwrap();
        assert!(text.contains("64 bytes: 2 of 10 messages were lost"), "{text}");
        assert!(!text.contains("too late"), "{text}");
    }
    let document = json(&server.client(&["-c", "ud", "--op", "send", "-n", "10", "--size", "64", "--json"]));
    assert_eq!(document["results"][0]["lost"], 0, "{document}");
    assert_ne!(document["delivery"], "late-answers", "{document}");
}

#[test]
fn a_server_keeps_its_clients_apart() {
    let mut server = Server::start(&[]);
    // One client loses packets all the time, and another loses none meanwhile. The losses are random: a rule for every
    // n-th packet may meet the first packet of every retransmission, if these are as long as a multiple of n.
    let lossy =
        ["--size", "64", "--duration", "600", "--fault", "tx data p=0.02 drop", "--bind", "127.86.1.1"];
    let mut lossy = server.command(&lossy).stdout(Stdio::piped()).spawn().unwrap();
    // It prints its title when it is connected.
    let mut title = String::new();
    let mut printed = BufReader::new(lossy.stdout.take().unwrap());
    printed.read_line(&mut title).unwrap();
    let clean = ["--size", "64", "-n", "200", "--bind", "127.86.1.2", "--json"];
    let document = json(&server.client(&clean));
    let losses = &document["losses"]["server"];
    assert!(losses["out_of_seq_request"].is_null(), "{losses}");
    let line = server.line();
    assert!(line.starts_with("client 127.86.1.2: RC RDMA WRITE bandwidth, "), "{line}");
    assert!(!line.contains("out_of_seq_request"), "{line}");
    interrupt(&lossy);
    assert!(lossy.wait().unwrap().success());
    let line = server.line();
    assert!(line.starts_with("client 127.86.1.1: RC RDMA WRITE bandwidth, "), "{line}");
    assert!(line.contains("out_of_seq_request"), "{line}");
}

#[test]
fn the_peak_is_at_least_the_average_and_not_measured_where_messages_get_lost() {
    let server = Server::start(&[]);
    let document = json(&server.client(&["--size", "4096", "-n", "2000", "--json"]));
    let result = &document["results"][0];
    let (peak, average) = (&result["bw_peak_mib_per_s"], &result["bw_average_mib_per_s"]);
    assert!(peak.as_f64().unwrap() >= 0.999 * average.as_f64().unwrap(), "{result}");
    let document = json(&server.client(&["-c", "uc", "--size", "64", "-n", "100", "--json"]));
    assert_eq!(document["results"][0]["bw_peak_mib_per_s"], 0.0);
}

#[test]
fn both_sides_inject_faults_and_write_captures() {
    let folder = Folder::new("perf-captures");
    let (ours, theirs) = (folder.path("client.pcapng"), folder.path("server.pcapng"));
    let server = Server::start(&[
        "--once",
        "--capture",
        &theirs,
        "--fault",
        "rx data psn=#1 drop once",
        "--seed",
        "5",
    ]);
    let args =
        ["-n", "5", "--size", "64", "--capture", &ours, "--fault", "tx data psn=#3 drop once", "--json"];
    assert_eq!(json(&server.client(&args))["delivery"], "lost");
    let mut server = server;
    assert!(server.child.wait().unwrap().success());
    for file in [ours, theirs] {
        let output = Command::new(env!("CARGO_BIN_EXE_rnic")).args(["decode", &file]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("fault f1: dropped"), "{text}");
    }
}

/// Runs a command in a pseudo-terminal.
fn on_a_terminal(command: &str) -> Option<String> {
    let output =
        Command::new("script").args(["-qec", command, "/dev/null"]).stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn progress_is_shown_on_a_terminal_only() {
    let server = Server::start(&[]);
    let args = ["--size", "64", "--duration", "2s"];
    let piped = server.client(&args);
    assert!(piped.stderr.is_empty(), "{piped:?}");
    let command = server.command(&args);
    let words: Vec<_> = command.get_args().map(|arg| arg.to_str().unwrap()).collect();
    let Some(shown) = on_a_terminal(&format!("{} {}", env!("CARGO_BIN_EXE_rnic"), words.join(" "))) else {
        eprintln!("SKIPPED: script(1) is not installed, so progress on a terminal was not checked");
        return;
    };
    assert!(shown.contains("64 bytes [") && shown.contains("left"), "{shown:?}");
}

#[test]
fn an_unreachable_network_is_not_taken_for_a_missing_server() {
    let args = ["-rn", env!("CARGO_BIN_EXE_rnic"), "perf", "client", "10.1.2.3"];
    let output = Command::new("unshare").args(args).output();
    let output = match output {
        Ok(output) if !String::from_utf8_lossy(&output.stderr).contains("unshare") => output,
        _ => {
            eprintln!("SKIPPED: no network namespace could be made, so an unreachable network was not tried");
            return;
        }
    };
    let error = complaint(&output);
    assert!(error.contains("10.1.2.3 is unreachable") && !error.contains("start one"), "{error}");
}

#[test]
fn spellings_of_quantities_are_those_of_the_documentation() {
    let server = Server::start(&["--link", "rate=5gbit,buffer=1MiB,delay=10us"]);
    let args = [
        "--size",
        "64KiB",
        "--size",
        "1 KB",
        "--duration",
        "50ms",
        "--link",
        "rate=5Gbps,buffer=64k",
        "--json",
    ];
    let document = json(&server.client(&args));
    assert_eq!(document["parameters"]["sizes"], serde_json::json!([65_536, 1000]));
    assert_eq!(document["parameters"]["limit"]["seconds"], 0.05);
    let wrong = |args: &[&str]| String::from_utf8(client(args).stderr).unwrap();
    for (args, says) in [
        (["--size", "64q"], "unknown unit `q`"),
        (["--duration", "5 fortnights"], "unknown unit `fortnights`"),
        (["--mtu", "9000"], "invalid MTU 9000; choose 256, 512, 1024, 2048 or 4096"),
        (["--link", "rate=5GB/s"], "rates count bits; write `40 Gb/s`"),
        (["--link", "ethernet:bufer=1MB"], "unknown setting `bufer`; did you mean `buffer`?"),
        (["--link", "etherent"], "did you mean `ethernet`?"),
        (["--cc", "dqcn"], "did you mean `dcqcn`?"),
        (["--fault", "tx data dorp"], "did you mean 'drop'?"),
        (["--depth", "many"], "write a whole number"),
    ] {
        let error = wrong(&[&["127.0.0.1"], &args[..]].concat());
        assert!(error.contains(says), "{error}");
    }
}
