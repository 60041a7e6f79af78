//! The command `rnic decode`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// A file of one test.
fn scratch(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn decode(path: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic")).arg("decode").arg(path).args(more).output().unwrap()
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8(bytes.to_vec()).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_good_capture() {
    let output = decode(&golden("rg_loss_reqmiddle.pcap"), &[]);
    assert_eq!(output.status.code(), Some(0));
    let lines = lines(&output.stdout);
    assert_eq!(lines.len(), 23);
    assert_eq!(lines[22], "22 packets, 0 bad ICRC");
    assert!(
        lines[0].trim_start().starts_with("1    0.000000 10.77.0.2 > 10.77.0.1  RC WRITE_FIRST dqp="),
        "{}",
        lines[0]
    );
    assert!(lines[..22].iter().all(|line| line.ends_with(" icrc ok")));
    assert!(lines.iter().any(|line| line.contains(" NAK psn-sequence-error msn=0 ")));
}

#[test]
fn a_congestion_mark_is_shown() {
    let output = decode(&golden("rg_ce_marked.pcap"), &[]);
    assert!(lines(&output.stdout).iter().any(|line| line.ends_with(" ce icrc ok")));
}

#[test]
fn a_flipped_bit() {
    let mut bytes = fs::read(golden("rc_pp_64_m1024.pcap")).unwrap();
    *bytes.last_mut().unwrap() ^= 0x10;
    let path = scratch("flipped.pcap", &bytes);
    let output = decode(&path, &[]);
    assert_eq!(output.status.code(), Some(1));
    let lines = lines(&output.stdout);
    assert_eq!(lines.last().unwrap(), "20 packets, 1 bad ICRC");
    assert!(lines[19].contains(" icrc BAD computed 0x"));
    let output = decode(&path, &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema_version"], 1);
    assert_eq!(report["packets"].as_array().unwrap().len(), 20);
    assert_eq!(report["packets"][19]["icrc"]["ok"], false);
    assert_eq!(report["summary"]["bad_icrc"], 1);
}

#[test]
fn connection_management_is_read() {
    let path = golden("cm_rping.pcap");
    let output = decode(&path, &[]);
    assert_eq!(output.status.code(), Some(0));
    let lines = lines(&output.stdout);
    assert_eq!(
        lines[0].trim_start(),
        "1    0.000000 10.77.0.2 > 10.77.0.1  CM REQ comm=0xe1c2e0f5 svc=0x0000000001061c06(TCP 7174) qpn=0x000036 \
         psn=12258241 mtu=1024 rr=1 depth=1 retry=7 rnr=7 from=10.77.0.2:54818 to=10.77.0.1 icrc ok"
    );
    assert!(lines[40].ends_with("  CM DREP comm=0xabe8e3ee peer=0xe1c2e0f5 icrc ok"), "{}", lines[40]);
    let output = decode(&path, &["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mad = &report["packets"][1]["mad"];
    assert_eq!(mad["message"], "REP");
    assert_eq!(mad["header"]["transaction_id"], "0x00000002f5e0c2e1");
    assert_eq!(mad["cm"]["target_ack_delay"], serde_json::json!({ "code": 15, "ns": 4096 << 15 }));
    assert_eq!(report["packets"][3]["mad"], serde_json::Value::Null, "a packet of data");
}

#[test]
fn packets_are_filtered_by_queue_pair_psn_and_time() {
    let path = golden("rg_loss_reqmiddle.pcap");
    let shown = |args: &[&str]| lines(&decode(&path, args).stdout);
    let all = shown(&[]);
    let summary = |lines: &[String]| lines.last().unwrap().clone();
    let word = |line: &str, name: &str| {
        line.split_whitespace().find_map(|word| word.strip_prefix(name)).unwrap().to_owned()
    };
    let (qpn, psn) = (word(&all[0], "dqp="), word(&all[0], "psn="));
    // The capture has one connection: the requests to a queue pair, and the responses to them.
    let one = shown(&["--qpn", &qpn]);
    assert_eq!((one.len(), summary(&one)), (23, "22 packets, 0 bad ICRC of 22".to_owned()));
    assert_eq!(summary(&shown(&["--qpn", "0xfffff0"])), "0 packets, 0 bad ICRC of 22");
    let first = shown(&["--psn", &psn]);
    assert!(first.len() < 6 && first[0] == all[0], "{first:?}");
    assert_eq!(shown(&["--psn", "#0"]), first, "a request and what repeats or answers it");
    assert_eq!(shown(&["--from", "0", "--to", "100"]).len(), 23);
    let later = shown(&["--from", "100"]);
    assert_eq!(later, ["0 packets, 0 bad ICRC of 22"]);
    let time = all[5].split_whitespace().nth(1).unwrap().to_owned();
    assert_eq!(shown(&["--to", &time])[..6], all[..6]);
    let report = decode(&path, &["--psn", "#0", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["packets"].as_array().unwrap().len(), first.len() - 1);
    assert_eq!(report["summary"]["packets"], first.len() - 1);
    let wrong = decode(&path, &["--psn", "5-#9"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("PSNs are from 0 to 0xffffff"));
}

#[test]
fn a_ladder_of_a_capture_shows_who_sent_what() {
    let output = decode(&golden("rg_loss_reqmiddle.pcap"), &["--ladder", "--psn", "#0-#9"]);
    assert_eq!(output.status.code(), Some(0));
    let lines = lines(&output.stdout);
    assert!(lines[0].starts_with("from frame 1, 0.000000 s"), "{}", lines[0]);
    assert!(lines[2].contains("10.77.0.2") && lines[2].contains("10.77.0.1"), "{}", lines[2]);
    assert!(lines[3].contains("|-- WRITE_FIRST psn #0 "), "{}", lines[3]);
    assert!(lines.iter().any(|line| line.contains("NAK psn-sequence-error psn #") && line.contains("|<--")));
    assert!(lines.last().unwrap().ends_with(" 0 bad ICRC of 22"), "{lines:?}");
    let cm = decode(&golden("cm_rping.pcap"), &["--ladder"]);
    assert!(String::from_utf8_lossy(&cm.stdout).contains("|-- CM REQ"));
}

#[test]
fn a_capture_that_is_cut_off_is_shown_up_to_there() {
    let bytes = fs::read(golden("rc_pp_64_m1024.pcap")).unwrap();
    let path = scratch("cut-json.pcap", &bytes[..bytes.len() - 7]);
    let output = decode(&path, &["--json"]);
    assert_eq!(output.status.code(), Some(2));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["packets"].as_array().unwrap().len(), 19);
    let told = lines(&output.stderr);
    let end =
        format!("cut off behind frame 19: the file ends after {} bytes, inside frame 20", bytes.len() - 7);
    assert!(told.len() == 1 && told[0].ends_with(&end), "{told:?}");
}

#[test]
fn errors_are_one_line() {
    let not_a_capture = scratch("text.pcap", b"#!/bin/sh\nexit\n");
    let bytes = fs::read(golden("rc_pp_64_m1024.pcap")).unwrap();
    let cut_off = scratch("cut.pcap", &bytes[..bytes.len() - 7]);
    for (path, reason) in [
        (not_a_capture, "not a capture file"),
        (scratch("empty.pcap", b""), "the file is empty"),
        (cut_off, "cut off behind frame 19"),
        (PathBuf::from("/nonexistent/file.pcap"), "No such file"),
        (PathBuf::from(env!("CARGO_TARGET_TMPDIR")), "directory"),
    ] {
        let output = decode(&path, &[]);
        assert_eq!(output.status.code(), Some(2), "{reason}");
        let errors = lines(&output.stderr);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].starts_with("rnic: ") && errors[0].contains(reason), "{errors:?}");
    }
}
