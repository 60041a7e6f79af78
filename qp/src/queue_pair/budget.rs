//! How much may leave.

/// What a queue pair may send: what whoever drives it knows about room at the peer, on the way, and in time.
/// Acknowledgements need none of it. The default is without bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Packets that may be brought in flight: request packets, and the READ responses that are asked for.
    pub requests: u32,
    /// READ response packets that may be sent.
    pub responses: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self { requests: u32::MAX, responses: u32::MAX }
    }
}

impl Budget {
    /// Nothing but acknowledgements.
    #[must_use]
    pub const fn none() -> Self {
        Self { requests: 0, responses: 0 }
    }

    /// So many requests, and whatever has to be answered.
    #[must_use]
    pub const fn requests(requests: u32) -> Self {
        Self { requests, responses: u32::MAX }
    }
}
