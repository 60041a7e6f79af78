//! Topologies: their sizes, and what files say.

mod builtin;
mod config;
mod emit;
mod htsim;
mod ns3;

use std::path::PathBuf;

/// A file among the examples.
fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}
