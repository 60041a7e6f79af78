//! The messages between client and server outside RDMA, and the data of the demo.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rnic::QpAddress;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// How both ends of a connection are set up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// Path MTU in bytes; `None` for the largest that both ports support.
    pub(super) mtu: Option<u32>,
    /// The RNR wait, as a code of IBTA table 45.
    pub(super) min_rnr_timer: u8,
    /// The size of the buffer of each side, in bytes.
    pub(super) buffer: usize,
}

/// A part of the server's buffer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) at: usize,
    pub(super) len: usize,
}

/// Services, and ways to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Service {
    /// RC with a shared receive queue.
    Srq,
    Xrc,
    Uc,
    Ud,
    /// UD to a multicast group.
    Multicast,
}

/// The server's side of a service.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Opened {
    /// Its number, from 0.
    pub(super) number: usize,
    pub(super) address: QpAddress,
    /// XRC: the shared receive queue.
    pub(super) srqn: u32,
    /// Multicast: the group.
    pub(super) group: [u8; 16],
}

/// A request of the client. `connection` is the number of a connection, from 0.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(super) enum Ask {
    /// Make a queue pair with a buffer and connect it to this one.
    Connect { peer: QpAddress, setup: Setup },
    /// Write this pattern to the buffer.
    Fill { connection: usize, piece: Piece, pattern: u64 },
    /// Compare a part of the buffer with a pattern, from its byte `from` on.
    Compare { connection: usize, piece: Piece, pattern: u64, from: usize },
    /// Store 8 bytes.
    Store { connection: usize, at: usize, value: u64 },
    /// Load 8 bytes.
    Load { connection: usize, at: usize },
    /// Post a receive.
    Receive { connection: usize, pieces: Vec<Piece> },
    /// Bind a memory window to a part of the buffer.
    Bind { connection: usize, piece: Piece },
    /// Open a service for this queue pair.
    Open { service: Service, peer: QpAddress },
    /// Wait for its message and compare it with a pattern.
    Hear { number: usize, len: usize, pattern: u64 },
    /// Listen for connections at a port.
    Listen,
    /// Accept the next connection, and post a receive.
    Accept,
    /// Wait for a message over it and compare it with a pattern.
    HearCaller { len: usize, pattern: u64 },
    /// Refuse the next connection.
    Refuse,
    /// Wait for a receive to complete.
    Await { connection: usize },
    /// Return the counters of the queue pair.
    Counters { connection: usize },
}

/// An answer of the server. It sends the first one without a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(super) enum Reply {
    Ready {
        process: u32,
    },
    Connected {
        address: QpAddress,
        addr: u64,
        rkey: u32,
    },
    Done,
    Listening {
        at: SocketAddr,
    },
    Value {
        value: u64,
    },
    /// The first byte that differs.
    Compared {
        difference: Option<usize>,
    },
    Received {
        bytes: u32,
        imm: Option<u32>,
        /// The key that the message invalidated.
        invalidated: Option<u32>,
    },
    Opened {
        opened: Opened,
    },
    Key {
        rkey: u32,
    },
    Counters {
        counters: BTreeMap<String, u64>,
    },
    Failed {
        what: String,
    },
}

/// Random bytes that depend on a seed and a number.
pub(super) fn pattern(seed: u64, number: u64, len: usize) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    let mut bytes = vec![0; len];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// The first byte at which two buffers differ; lengths count.
pub(super) fn difference(found: &[u8], wanted: &[u8]) -> Option<usize> {
    let shorter = found.len().min(wanted.len());
    let differs = found.iter().zip(wanted).position(|(a, b)| a != b);
    differs.or((found.len() != wanted.len()).then_some(shorter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_and_can_be_reproduced() {
        let one = pattern(1, 1, 1000);
        assert_eq!(one, pattern(1, 1, 1000));
        assert_eq!(one[..500], pattern(1, 1, 500));
        assert_ne!(one, pattern(1, 2, 1000));
        assert_ne!(one, pattern(2, 1, 1000));
    }

    #[test]
    fn one_byte_is_enough_to_differ() {
        assert_eq!(difference(b"abcd", b"abcd"), None);
        assert_eq!(difference(b"abcd", b"abXd"), Some(2));
        assert_eq!(difference(b"abc", b"abcd"), Some(3));
        assert_eq!(difference(b"", b""), None);
    }
}
