//! OpenSM and the diagnostic programs of InfiniBand, unmodified, on a fabric that `rnic fabric serve` serves.
//!
//! `tests/run` installs the programs (opensm, ibsim-utils, infiniband-diags). Where one is missing, its tests say SKIPPED. What
//! the tests judge by is computed here from what the programs print and from the saved tables, and shares no code with the
//! fabric.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod congestion;
mod fabric;
mod graph;
