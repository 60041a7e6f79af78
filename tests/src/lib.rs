//! Shared code of the integration tests: peers in separate processes, addresses, known data patterns.
//!
//! A test that needs a second process starts a [`Peer`]: the program `rnic-peer`, which reads commands from its
//! standard input, one JSON line each. It sleeps until the next command, which makes it a passive target. Every
//! wait has a limit, and a peer is killed when its [`Peer`] is dropped, so a failing test leaves nothing behind.

#![deny(unsafe_code)]

pub mod address;
pub mod datagram;
pub mod fuzz;
pub mod meetings;
pub mod namespace;
pub mod os;
pub mod pattern;
pub mod peer;
pub mod protocol;
pub mod serve;
pub mod worlds;

pub use address::{fresh_address, open, reopen};
pub use datagram::UdEnd;
pub use peer::Peer;

use std::io::Write;

/// Reports that a test was skipped, and why: on the terminal, whether the test's output is captured or not, and in
/// the file named by `RNIC_SKIP_LOG`, which the script that runs all tests counts.
pub fn skipped(reason: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("SKIPPED: {name}: {reason}\n");
    // Not eprintln!, whose output the test harness hides unless the test fails.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("RNIC_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(path);
        log.and_then(|mut log| log.write_all(line.as_bytes())).expect("the log of skipped tests");
    }
}

/// The value of a counter by name.
///
/// # Panics
///
/// Panics if there is no such counter: a misspelt name would otherwise always read as zero.
#[must_use]
pub fn counter(device: &rnic::Device, name: &str) -> u64 {
    let found = device.counters().iter().find(|(n, _)| *n == name).map(|(_, v)| v);
    found.unwrap_or_else(|| panic!("there is no counter {name}"))
}

/// Resident memory of a process in bytes (`VmRSS` in proc(5)).
///
/// # Panics
///
/// Panics if there is no such process.
#[must_use]
pub fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    1024 * kilobytes.and_then(|number| number.parse::<usize>().ok()).expect("resident memory")
}
