//! The commands `rnic demo` and `rnic show`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock};

fn rnic(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic")).args(args).output().unwrap()
}

/// A file in the directory of this test.
fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The output of `show` depends on the addresses in use, so its tests run alone.
static ADDRESSES: RwLock<()> = RwLock::new(());

fn demo(capture: &Path, more: &[&str]) -> Output {
    let mut args = vec!["--capture", capture.to_str().unwrap()];
    args.extend(more);
    quick_demo(&args)
}

fn quick_demo(more: &[&str]) -> Output {
    let _others_may_run = ADDRESSES.read().unwrap_or_else(PoisonError::into_inner);
    rnic(&[&["demo", "--quick"], more].concat())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_demo_and_its_capture() {
    let capture = scratch("demo.pcapng");
    let output = demo(&capture, &[]);
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}{}", text(&output.stderr));
    assert!(story.contains("All checks passed."), "{story}");
    assert!(!story.contains('\x1b'), "no colours into a pipe");
    fits_80_columns(story, &["demo.pcapng", env!("CARGO_BIN_EXE_rnic")]);
    let ladders: Vec<_> = story.lines().filter(|line| line.contains('|')).collect();
    for part in [
        "x dropped by fault f1",
        "NAK psn-sequence-error",
        "NAK remote-access-error",
        "RNR NAK wait",
        "CM REQ",
        "CM RTU",
        "CM DREP",
        "CM REJ",
    ] {
        assert!(ladders.iter().any(|line| line.contains(part)), "{part}: {story}");
    }

    let output = rnic(&["decode", "--json", capture.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packets = report["packets"].as_array().unwrap();
    assert_eq!(report["summary"]["packets"], packets.len());
    for count in ["bad_icrc", "malformed", "truncated", "other_frames"] {
        assert_eq!(report["summary"][count], 0, "{count}");
    }
    assert!(packets.iter().any(|p| p["comments"][0] == "fault f1: dropped"));
    for opcode in [
        "SEND_FIRST",
        "SEND_ONLY_IMM",
        "WRITE_MIDDLE",
        "WRITE_ONLY_IMM",
        "READ_REQ",
        "READ_RESP_LAST",
        "CMP_SWAP",
        "FETCH_ADD",
        "ATOMIC_ACK",
        "ATOMIC_WRITE",
        "FLUSH",
        "SEND_ONLY_INV",
        "ACK",
    ] {
        let start = format!("RC {opcode} ");
        assert!(packets.iter().any(|p| p["text"].as_str().unwrap().starts_with(&start)), "{opcode}");
    }
    for start in ["XRC SEND_ONLY ", "UC SEND_ONLY ", "UD SEND_ONLY ", "UD SEND_ONLY dqp=0xffffff "] {
        assert!(packets.iter().any(|p| p["text"].as_str().unwrap().starts_with(start)), "{start}");
    }
    wireshark_agrees(&capture, packets.len());
}

/// No line is wider than a terminal, apart from those with a file name.
fn fits_80_columns(story: &str, files: &[&str]) {
    let wide = |line: &&str| line.chars().count() > 80 && !files.iter().any(|file| line.contains(file));
    let lines: Vec<_> = story.lines().filter(wide).collect();
    assert!(lines.is_empty(), "{lines:#?}");
}

/// Wireshark with its default settings dissects every packet as InfiniBand, takes no payload for another protocol, and
/// reports no error.
fn wireshark_agrees(capture: &Path, packets: usize) {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("SKIPPED: tshark is not installed, so the capture was not checked with Wireshark");
        return;
    }
    let matching = |filter: &str| {
        let mut tshark = Command::new("tshark");
        // A configuration of this user must not matter.
        tshark.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME");
        tshark.args(["-Y", filter, "-T", "fields", "-e", "frame.protocols", "-r"]).arg(capture);
        let output = tshark.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let dissected = matching("infiniband");
    assert_eq!(dissected.len(), packets);
    let strange: Vec<_> = dissected
        .iter()
        .filter(|layers| !layers.ends_with(":infiniband") && !layers.ends_with(":infiniband:data"))
        .collect();
    assert!(strange.is_empty(), "{strange:?}");
    let complaints = matching("_ws.malformed || _ws.expert.severity==error");
    assert!(complaints.is_empty(), "{complaints:?}");
}

/// The ladder shows credits, and nothing is lost with them.
#[test]
fn the_demo_of_link_credits() {
    let output = quick_demo(&["--link", "ib-credits"]);
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}{}", text(&output.stderr));
    for part in ["RNIC HELLO ask", "RNIC HELLO answer", "limit=", "(PortXmitWait)"] {
        assert!(story.contains(part), "{part}: {story}");
    }
    assert!(story.contains("none of 800 messages was lost"), "{story}");
    fits_80_columns(story, &[]);
}

/// DCQCN works, its charts are drawn, and its traces can be read.
#[test]
fn the_demo_of_congestion_control() {
    let stem = scratch("congestion");
    let more = ["--link", "ethernet", "--cc", "dcqcn", "--traces", stem.to_str().unwrap()];
    let output = quick_demo(&more);
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}{}", text(&output.stderr));
    assert!(story.contains("the port stays busy, the flows share it"), "{story}");
    assert!(story.contains("CNPs were obeyed") || story.contains("too busy to judge"), "{story}");
    assert!(scratch("congestion-story.svg").is_file());
    // Charts of the rates of both senders, and of the queue with and without DCQCN: in virtual time six, on the host four. None
    // need reach its top.
    let charts = story.lines().filter(|line| line.contains(|c| ('▁'..='█').contains(&c))).count();
    assert_eq!(charts, 10, "{story}");
    fits_80_columns(story, &["congestion-"]);
    for name in ["off-receiver", "dcqcn-receiver", "dcqcn-sender-1", "dcqcn-sender-2"] {
        let trace = rnic::trace::Trace::open(scratch(&format!("congestion-{name}.jsonl"))).unwrap();
        let last = trace.samples.last().unwrap();
        let (cnps, dcqcn) = (last.port.np_cnp_sent + last.port.rp_cnp_handled, name.starts_with("dcqcn"));
        assert!((cnps > 0) == dcqcn || story.contains("too busy to judge"), "{name}");
        assert_eq!(trace.header.cc.as_deref(), Some(if dcqcn { "dcqcn:preset=laptop" } else { "off" }));
    }
}

#[test]
fn invalid_links_are_refused() {
    for (words, part) in [
        (["--link", "token-ring"].as_slice(), "--link"),
        (&["--link", "ib-credits", "--cc", "dcqcn"], "--cc"),
        (&["--cc", "timely"], "`rnic perf`"),
        (&["--cc", "dcqcn:preset=none"], "--cc"),
    ] {
        let output = quick_demo(words);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(
            errors.lines().count() == 1 && errors.starts_with("rnic: ") && errors.contains(part),
            "{errors}"
        );
    }
}

/// A block for each device: its name, then its attributes, indented, one on each line.
fn attributes_fit_80_columns(text: &str, rows: &[Value]) {
    let heads = text.lines().filter(|line| !line.starts_with(' '));
    assert!(heads.clone().all(|line| line.starts_with("attr ")), "{text}");
    assert_eq!(heads.count(), rows.len(), "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    for name in ["max_qp_wr", "async_events"] {
        let lines = text.lines().filter(|line| line.starts_with(&format!("    {name} ")));
        assert_eq!(lines.count(), rows.len(), "{name}: {text}");
    }
}

/// Checks that a demo failed with one line that contains these parts.
fn fails_with(output: &Output, parts: &[&str]) {
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    for part in parts {
        assert!(errors.contains(part), "{errors}");
    }
    assert!(!text(&output.stdout).contains("All checks passed."));
}

#[test]
fn wrong_data_fails_the_demo() {
    let output = demo(&scratch("differ.pcapng"), &["--server-seed", "2"]);
    fails_with(
        &output,
        &["FAILED in 'Every operation'", "byte 0 of 2500 at the server differs from what was sent"],
    );
}

/// Retransmission hides a damaged packet from the programs, but not from the reader of the capture.
#[test]
fn a_bad_icrc_fails_the_demo() {
    let output = demo(&scratch("bad.pcapng"), &["--fault", "tx data nth=3 corrupt icrc"]);
    fails_with(&output, &["FAILED in 'The capture'", "1 bad ICRC"]);
}

#[test]
fn a_network_that_loses_everything_fails_the_demo() {
    let output = demo(&scratch("lost.pcapng"), &["--fault", "tx drop always"]);
    fails_with(&output, &["FAILED in 'Every operation'", "RETRY_EXC_ERR"]);
}

#[test]
fn a_capture_that_cannot_be_written_fails_the_demo() {
    let output = demo(Path::new("/nonexistent/demo.pcapng"), &[]);
    fails_with(&output, &["/nonexistent/demo.pcapng", "--capture"]);
}

fn show(object: &str) -> Vec<Value> {
    let output = rnic(&["show", object, "--json", "--pretty"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn show_prints_json_and_lines() {
    let _alone = ADDRESSES.write().unwrap_or_else(PoisonError::into_inner);
    for (object, key) in [
        ("dev", "node_type"),
        ("link", "state"),
        ("gid", "gid"),
        ("pkey", "pkeys"),
        ("attr", "async_events"),
        ("counter-names", "meaning"),
    ] {
        let rows = show(object);
        assert!(!rows.is_empty(), "{object}");
        assert!(rows.iter().all(|row| !row[key].is_null()), "{object}: {rows:?}");
        let output = rnic(&["show", object]);
        assert_eq!(output.status.code(), Some(0));
        if object == "attr" {
            attributes_fit_80_columns(text(&output.stdout), &rows);
        } else {
            assert_eq!(text(&output.stdout).lines().count(), rows.len(), "{object}: one line for each");
        }
    }
    let output = rnic(&["show"]);
    let first = text(&output.stdout).lines().next().unwrap_or_default();
    // Which address it has, and whether it is ACTIVE, depends on other programs that use addresses.
    assert!(first.starts_with("link rnic0/1 state "), "{first}");
    assert!(first.contains(" netdev lo address 127.0.0."), "{first}");
}

#[test]
fn show_names_the_program_that_uses_an_address() {
    let _alone = ADDRESSES.write().unwrap_or_else(PoisonError::into_inner);
    let device = rnic::open().unwrap();
    let address = device.address().to_string();
    let rows = show("link");
    let row = rows.iter().find(|row| row["address"] == *address).unwrap();
    assert_eq!(row["port_state"], "busy");
    assert_eq!(row["pid"], std::process::id());
    let names: Vec<_> = device.counters().iter().map(|(name, _)| name.to_owned()).collect();
    let listed: Vec<_> =
        show("counter-names").iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(listed, names);
}
