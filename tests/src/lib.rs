//! What the integration tests share: peers in processes of their own, addresses, known bytes.
//!
//! A test that needs a second process starts a [`Peer`]: the program `rnic-peer`, told over its standard input what
//! to do, one JSON line a command. While it waits for the next command it sleeps, which makes it a passive
//! target. Every wait has a limit, and a peer is killed when its [`Peer`] goes, so a failing test leaves nothing
//! behind.

#![deny(unsafe_code)]

pub mod address;
pub mod forked;
pub mod namespace;
pub mod pattern;
pub mod peer;
pub mod protocol;
pub mod serve;

pub use address::{fresh_address, open};
pub use peer::Peer;

/// Says that a test was not run, and why. A test calls it and returns: the line appears whether the test is captured
/// or not, because it goes to the terminal's error output directly.
pub fn skipped(reason: &str) {
    use std::io::Write;
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not eprintln!, which the test harness keeps to itself unless the test fails.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: {reason} ({count} skipped in this program)");
}

/// The value of one counter by name.
///
/// # Panics
/// If there is no such counter: a name that does not exist would always read as zero.
#[must_use]
pub fn counter(device: &rnic::Device, name: &str) -> u64 {
    let found = device.counters().iter().find(|(n, _)| *n == name).map(|(_, v)| v);
    found.unwrap_or_else(|| panic!("there is no counter {name}"))
}
