//! Two NICs and a cable, driven step by step: what the page of `rnic lab` shows.
//!
//! The engine is the one that runs on sockets. As a WebAssembly module (`cargo build -p rnic-page --target wasm32-unknown-unknown`)
//! this runs in a browser; natively the same calls give the same bytes.

mod bench;
mod packets;
#[cfg(test)]
mod tests;
mod wire;

pub use bench::{Action, Bench, Setup, Shown, Sliders, Told};

#[cfg(target_family = "wasm")]
mod exports;
