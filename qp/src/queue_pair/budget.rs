//! How many packets a queue pair may send.

/// How many packets a queue pair may send. The caller sets it from the room at the peer, the packets in flight and
/// the pacing rate. Acknowledgements need no budget. The default is unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Packets that may be put in flight: request packets, and the READ responses that they request.
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
    /// Permits acknowledgements only.
    #[must_use]
    pub const fn none() -> Self {
        Self { requests: 0, responses: 0 }
    }

    /// Permits `requests` requests and any number of responses.
    #[must_use]
    pub const fn requests(requests: u32) -> Self {
        Self { requests, responses: u32::MAX }
    }
}
