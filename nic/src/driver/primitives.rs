//! The primitives of the hand-over: the standard library's atomics. The model in `model.rs` substitutes its own.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
