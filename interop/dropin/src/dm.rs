//! Device memory.

/// Bytes of device memory.
pub(crate) const MAX_BYTES: u64 = 0;
