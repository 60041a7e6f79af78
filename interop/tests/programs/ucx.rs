//! UCX: `ucx_perftest` over both of its layers (UCP, and UCT below it) and both of its verbs transports.
//!
//! Settings are the defaults, except those that choose the device and the transport: within one host UCX would use
//! shared memory.

use crate::lab::{self, Folder, has};
use std::fs;

/// Measurements that both ends make in sequence, read from a file.
struct Batch {
    /// `UCX_TLS`, which chooses transports for UCP. For UCT an option chooses one.
    transports: &'static str,
    /// Options of each row.
    options: &'static str,
    /// Test, message size and iterations.
    rows: &'static [(&'static str, u64, u64)],
}

/// Every operation of UCP, and messages from one byte to 16 MiB.
const UCP: &[(&str, u64, u64)] = &[
    ("tag_lat", 8, 100),
    ("tag_bw", 1, 100),
    ("tag_bw", 100, 100),
    ("tag_bw", 4096, 100),
    ("tag_bw", 70_000, 50),
    ("tag_bw", 1 << 20, 20),
    ("tag_bw", 16 << 20, 3),
    ("tag_sync_lat", 2000, 50),
    ("ucp_put_lat", 8, 100),
    ("ucp_put_bw", 16 << 20, 3),
    ("ucp_get", 8, 100),
    ("ucp_get", 16 << 20, 3),
    ("ucp_add", 8, 100),
    ("ucp_fadd", 8, 100),
    ("ucp_swap", 8, 100),
    ("ucp_cswap", 8, 100),
    ("stream_bw", 5000, 100),
    ("stream_lat", 8, 100),
    ("ucp_am_lat", 8, 100),
    ("ucp_am_bw", 100_000, 50),
];

/// The ends sleep until an event wakes them. The target of an RDMA WRITE or READ sees no completion on any NIC, and
/// would sleep forever.
const SLEEP: &[(&str, u64, u64)] = &[
    ("tag_lat", 8, 200),
    ("tag_bw", 4096, 200),
    ("tag_lat", 1 << 20, 10),
    ("stream_lat", 8, 200),
    ("ucp_am_lat", 8, 200),
    ("ucp_am_bw", 5000, 200),
];

const THREADS: &[(&str, u64, u64)] =
    &[("tag_lat", 8, 100), ("tag_bw", 70_000, 20), ("ucp_put_bw", 4096, 100), ("ucp_get", 4096, 100)];

const RC: &str = "rc_v,self";
const UD: &str = "ud_v,self";

fn batches() -> Vec<Batch> {
    let ucp = |transports, options, rows| Batch { transports, options, rows };
    let uct = |options, rows| Batch { transports: "all", options, rows };
    vec![
        ucp(RC, "", UCP),
        ucp(UD, "", UCP),
        ucp(RC, "-E sleep", SLEEP),
        ucp(UD, "-E sleep", SLEEP),
        ucp(RC, "-T 2 -M multi", THREADS),
        ucp(UD, "-T 2 -M multi", THREADS),
        uct(
            "-d rnic0:1 -x rc_verbs -D short",
            &[("am_lat", 8, 200), ("put_lat", 8, 200), ("put_bw", 8, 200)],
        ),
        uct(
            "-d rnic0:1 -x rc_verbs -D bcopy",
            &[("am_bw", 4096, 200), ("put_bw", 4096, 200), ("get", 8, 200)],
        ),
        uct(
            "-d rnic0:1 -x rc_verbs -D zcopy",
            &[("am_bw", 4096, 200), ("put_bw", 16 << 20, 3), ("get", 16 << 20, 3)],
        ),
        uct("-d rnic0:1 -x rc_verbs", &[("fadd", 8, 200), ("cswap", 8, 200)]),
        uct("-d rnic0:1 -x ud_verbs -D short", &[("am_lat", 8, 200), ("am_bw", 8, 200)]),
        uct("-d rnic0:1 -x ud_verbs -D bcopy", &[("am_bw", 3000, 200)]),
        uct("-d rnic0:1 -x ud_verbs -D zcopy", &[("am_bw", 3000, 200)]),
    ]
}

/// Runs a batch; returns what is wrong with it, if anything.
fn fault(batch: &Batch) -> Option<String> {
    let folder = Folder::new();
    let name = |(test, size, _): &(&str, u64, u64)| format!("{test}/{size}");
    let line = |row @ (test, size, count): &(&str, u64, u64)| {
        format!("{} -t {test} -s {size} -n {count} -w 2 {}\n", name(row), batch.options)
    };
    let file = folder.path().join("batch");
    fs::write(&file, batch.rows.iter().map(line).collect::<String>()).expect("a file");
    let ends = lab::meet(&folder, [&(), &()], |port, ()| {
        let mut command = lab::run(&folder, &[], "ucx_perftest");
        command.env("UCX_TLS", batch.transports).env("UCX_NET_DEVICES", "rnic0:1");
        // Print rows of numbers only, with the names of their tests.
        command.args(["-f", "-v", "-p", port, "-b"]).arg(&file);
        command
    });
    let measured = |at, text: &str| {
        let told = |row: &&(_, _, _)| text.lines().any(|line| line.starts_with(&format!("{},", name(row))));
        let missing: Vec<_> = batch.rows.iter().filter(|row| at == 1 && !told(row)).map(name).collect();
        (!missing.is_empty()).then(|| format!("measured no {}", missing.join(", ")))
    };
    lab::faults(&ends, measured).or_else(|| {
        // All data went over the devices, whichever end sent it.
        let least: u64 = batch.rows.iter().map(|(_, size, count)| size * count).sum();
        let (sent, devices) = lab::counted(&folder, "tx_bytes");
        (sent < least || devices < 2).then(|| format!("{devices} devices sent {sent} bytes, not {least}"))
    })
}

#[test]
fn ucx_perftest_runs_over_rc_and_ud() {
    if !has("ucx_perftest") {
        return;
    }
    let name = |batch: &Batch| format!("UCX_TLS={} {}", batch.transports, batch.options);
    lab::matrix("ucx_perftest", batches().iter().map(|batch| (name(batch), fault(batch))));
}

#[test]
fn ucx_info_finds_the_device() {
    if !has("ucx_info") {
        return;
    }
    let folder = Folder::new();
    let ended = lab::Running::start(&folder, lab::run(&folder, &[], "ucx_info").arg("-d")).wait(lab::LIMIT);
    assert_eq!(ended.fault(), None, "{}", ended.text);
    for transport in ["rc_verbs", "ud_verbs"] {
        let found = ended.text.split("#      Transport: ").any(|part| {
            part.starts_with(transport)
                && part.lines().nth(1).is_some_and(|line| line.ends_with("Device: rnic0:1"))
        });
        assert!(found, "{transport} over rnic0:1 in:\n{}", ended.text);
    }
}
