//! Links and congestion control in virtual time: whole devices with the engine that runs on sockets, and the port in front
//! of a receiver, where they meet.
//!
//! All bytes are those that a packet takes on Ethernet, with its preamble and the gap behind it (`rnic::link::wire_bytes`):
//! in rates, in queues, for RED, in the byte counter of DCQCN, against thresholds of pauses. A packet of 1 KiB is 1106 of
//! them. Where payload is meant, it says so. Only credits count otherwise, as on InfiniBand: blocks of 64 bytes of the
//! packet with its link headers.
//!
//! Packets leave one by one (a train time of 0), as NICs in hardware pace them, unless a test says otherwise.
//!
//! Seeds are printed; `RNIC_SEED=n cargo test -p rnic-tests --test sim NAME -- --nocapture` runs one alone (where a mean of
//! many runs is what counts, it may fail that). With `RNIC_SEEDS=n` every test that has seeds runs the first n of them. No
//! test has a parameter that was fitted to it. How long a run is settled and watched stands with its reason where it is
//! chosen; all together they take about 100 s of processor time in the development profile.

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

/// The seeds of a test: from 1 to `count`, or as the environment says.
fn seeds(count: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    match number("RNIC_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("RNIC_SEEDS").unwrap_or(count)).collect(),
    }
}
