//! InfiniBand's link-level flow control: the sender sends only what the receiver has room for.
//!
//! Room is counted in blocks of 64 bytes, separately for each virtual lane. The sender counts the blocks that it has
//! sent since the link came up (FCTBS). The receiver counts those that it has received (ABR). Both count modulo 4096.
//! The receiver advertises the count up to which the sender may go (FCCL): what it has received plus what it has room
//! for, at most 2048 blocks ahead. These are totals and not increments, so a lost update costs only time: the next
//! one carries the whole state. The sender's updates carry FCTBS, from which the receiver learns of lost data. (IBTA
//! volume 1, section 7.9. Public sources confirm the blocks, the counters, VL15's exemption (C7-18) and the packet.
//! Counting modulo 4096 with a window of 2048 is from memory, and is what this crate does.)
//!
//! [`CreditSender`] and [`CreditReceiver`] are the two ends of a lane. [`LinkCredits`] holds all lanes of a link to
//! one peer, with the exchange at its start and the periodic updates. [`Pool`] is a buffer that many peers share and
//! that no peer may take for itself.
//!
//! The network has to keep updates and data in order, as a cable does, and as two UDP sockets do between them: an
//! update that overtakes data counts that data twice, until the next update.

mod link;
mod packet;
mod pool;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use link::{Config, LinkCredits, LinkState};
pub use packet::{FlowControlPacket, MalformedUpdate, Op};
pub use pool::{Member, Pool, PoolConfig, PoolTooSmall};
pub use receiver::{CreditReceiver, Overrun};
pub use sender::{CreditSender, Stalls};

/// Bytes in a block.
pub const BLOCK: u32 = 64;

/// The most blocks by which the receiver lets the sender be ahead.
pub const WINDOW: u16 = 2048;

/// The bits of a count.
const MASK: u16 = 0x0FFF;

/// The blocks that `bytes` occupy.
#[must_use]
pub const fn blocks(bytes: u32) -> u32 {
    bytes.div_ceil(BLOCK)
}

/// Advances `count` by `n`.
const fn advanced(count: u16, n: u16) -> u16 {
    count.wrapping_add(n) & MASK
}

/// How far `to` is ahead of `from`.
const fn distance(from: u16, to: u16) -> u16 {
    to.wrapping_sub(from) & MASK
}
