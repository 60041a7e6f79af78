//! InfiniBand's link-level flow control: nothing is sent that the receiver has no room for.
//!
//! Room is counted in blocks of 64 bytes, for each virtual lane apart. The sender counts the blocks that it has sent
//! since the link came up (FCTBS), the receiver those that it has received (ABR), both modulo 4096. The receiver says
//! up to which count the sender may go (FCCL): what it has received, and what it has room for, at most 2048 blocks
//! ahead. Because these are totals and not increments, a lost update costs time only: the next one says it all. The
//! sender's updates carry FCTBS, from which the receiver learns of lost data. (IBTA volume 1, section 7.9; the blocks,
//! the counters, VL15's exemption (C7-18) and the packet are confirmed by public sources; that counting is modulo 4096
//! with a window of 2048 is from memory, and is what this crate does.)
//!
//! Both ends of a lane: [`CreditSender`] and [`CreditReceiver`]. All lanes of a link to one peer, with the exchange at
//! its start and the periodic updates: [`LinkCredits`]. A buffer that many peers share, none of which may take it for
//! itself: [`Pool`].
//!
//! Updates and data have to stay in order on their way, as they do on a cable and between two UDP sockets: an update that
//! overtakes data counts that data twice, until the next update.

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

/// Bytes of a block.
pub const BLOCK: u32 = 64;

/// The most blocks that the receiver lets the sender be ahead.
pub const WINDOW: u16 = 2048;

/// The bits of a count.
const MASK: u16 = 0x0FFF;

/// The blocks that `bytes` occupy.
#[must_use]
pub const fn blocks(bytes: u32) -> u32 {
    bytes.div_ceil(BLOCK)
}

/// `count` and `n` more.
const fn advanced(count: u16, n: u16) -> u16 {
    count.wrapping_add(n) & MASK
}

/// How far `to` is ahead of `from`.
const fn distance(from: u16, to: u16) -> u16 {
    to.wrapping_sub(from) & MASK
}
