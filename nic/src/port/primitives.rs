//! What the hand-over is built of: the standard library's atomics. The model in `model.rs` puts its own in their place.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
