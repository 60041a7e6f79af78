//! Links and congestion control in virtual time: complete devices with the engine that runs on sockets, and the
//! shared port in front of a receiver.
//!
//! All bytes are those that a packet occupies on Ethernet, including its preamble and the gap after it
//! (`rnic::link::wire_bytes`): in rates, in queues, for RED, in the byte counter of DCQCN, and against pause
//! thresholds. A packet of 1 KiB is 1106 bytes. Where payload is meant, the text says so. Only credits use a
//! different unit, as on InfiniBand: blocks of 64 bytes of the packet with its link headers.
//!
//! Packets leave one by one (a train time of 0), as hardware NICs pace them, unless a test says otherwise.
//!
//! Seeds are printed; `RNIC_SEED=n cargo test -p rnic-tests --test sim NAME -- --nocapture` runs a single one
//! (which may fail if the test is about the mean of many runs). With `RNIC_SEEDS=n` every test with seeds runs the
//! first n of them. No test has a parameter that was fitted to it. The settling and measuring times of a run are
//! justified where they are chosen; all tests together take about 100 s of processor time in the development
//! profile.

mod busy;
mod credits;
mod dcqcn;
mod late;
mod pfc;
mod presets;
mod series;
mod shares;
mod world;
mod worlds;

/// The seeds of a test: from 1 to `count`, or as set in the environment.
fn seeds(count: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    match number("RNIC_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("RNIC_SEEDS").unwrap_or(count)).collect(),
    }
}
