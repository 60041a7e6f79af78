//! Fuzz targets: functions that accept any bytes, and must neither panic nor detect a violated guarantee.
//!
//! Each is a target of `cargo fuzz` (`fuzz/fuzz_targets`, run by `fuzz/run`) and an ordinary test over the inputs
//! in `tests/corpus/NAME` and seeded mutations of them (`tests/tests/fuzz.rs`). The targets need no special build:
//! they compute the ICRC of their packets, so the packets pass its check.

mod c_calls;
mod captures;
mod connections;
mod daemon;
mod datagrams;
mod packets;
mod partners;
mod rdma_cm;
mod rig;
mod settings;
mod subnet;
mod verbs;

pub use c_calls::c_calls;
pub use captures::captures;
pub use connections::connections;
pub use daemon::daemon;
pub use datagrams::datagrams;
pub use packets::packets;
pub use partners::partners;
pub use rdma_cm::rdma_cm;
pub use settings::settings;
pub use subnet::subnet;
pub use verbs::verbs;

use arbitrary::Unstructured;
use qp::wire::{Headers, IpHeader, icrc, pad_len};

/// A target: its name, which is also that of its input folder, and the function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("datagrams", datagrams),
    ("packets", packets),
    ("captures", captures),
    ("partners", partners),
    ("settings", settings),
    ("verbs", verbs),
    ("c_calls", c_calls),
    ("connections", connections),
    ("rdma_cm", rdma_cm),
    ("daemon", daemon),
    ("subnet", subnet),
];

/// The next byte; 0 at the end of the input.
fn byte(input: &mut Unstructured<'_>) -> u8 {
    input.arbitrary().unwrap_or_default()
}

/// The next `len` bytes, or fewer at the end of the input.
fn bytes<'a>(input: &mut Unstructured<'a>, len: usize) -> &'a [u8] {
    input.bytes(len.min(input.len())).unwrap_or_default()
}

/// A packet from BTH to ICRC, as sent by the host in `arrival`.
fn packet(arrival: &IpHeader, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; headers.wire_len()];
    headers.emit(&mut bytes, payload.len());
    bytes.extend(payload);
    bytes.resize(bytes.len() + pad_len(payload.len()), 0);
    sealed(arrival, bytes)
}

/// These bytes with a valid ICRC.
fn sealed(arrival: &IpHeader, mut bytes: Vec<u8>) -> Vec<u8> {
    let icrc = icrc::compute(&arrival.flow(), arrival.ident, &bytes);
    bytes.extend(icrc.to_le_bytes());
    bytes
}
