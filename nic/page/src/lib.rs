//! Two NICs and a cable, a small fabric, and the experiments of the labs: what the page of `rnic lab` shows.
//!
//! The engine is the one that runs on sockets. As a WebAssembly module (`cargo build -p rnic-page --target wasm32-unknown-unknown`)
//! this runs in a browser; natively the same calls give the same bytes.

mod bench;
mod fabric;
mod lab;
mod packets;
#[cfg(test)]
mod tests;
mod wire;

pub use bench::{Action, Bench, Setup, Shown, Sliders, Told};
pub use fabric::{FabricBench, FabricSetup, FabricTold, Parts, PortSample, Sample, Scene};
pub use lab::{LabEntry, LabFile, LabSetup, LabShown, lab_file, lab_run, labs};

/// The message of an error.
fn words(error: impl ToString) -> String {
    error.to_string()
}

#[cfg(target_family = "wasm")]
mod exports;
