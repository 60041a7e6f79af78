//! Link-level flow control: the sender sends only what the receiver has room for.
//!
//! InfiniBand counts room in blocks, separately for each virtual lane. The sender counts the blocks that it has sent
//! (FCTBS), the receiver those that it has received (ABR), and the receiver grants the count up to which the sender may
//! go (FCCL). These are totals and not increments, so a lost message costs only time: the next one carries the whole
//! state. (IBTA volume 1, section 7.9. There the counts have 12 bits and blocks have 64 bytes; between rnic peers, the
//! counts have 32 bits.)
//!
//! # The law
//!
//! An InfiniBand port has one peer and a buffer for each lane. Here one buffer serves many peers, of which few send at
//! any time. So a [`Pool`] lends its blocks to the lanes that [ask](Kind::Ask), and [grants](Kind::Grant) hold for a
//! time only, the lease. Four rules make that safe:
//!
//! 1. A sender sends up to the limit of its latest grant, and only while the lease of that lasts.
//! 2. The pool never grants more than it has: the blocks that may still arrive on all lanes, up to the highest limit
//!    that each sender may obey, and those that have arrived and were not read, are never more than the buffer.
//! 3. An ask carries the sender's count, and follows everything that was sent before it. So it tells what was lost.
//! 4. A limit may be lowered. The old one counts until the sender has said, in an ask, that it has heard of the new one,
//!    or until the lease of the old one is over and everything sent under it has arrived.
//!
//! By 1 and 2 nothing overruns the buffer: what a sender may have in flight has been set aside for it. 3 and 4 bring
//! everything back: what was granted is used, lost (the next ask says so), given back (the answer to a lowered limit
//! says so) or void (its time is over). A sender that waits repeats its ask, so a lost message delays it and no more.
//! Nobody starves: lanes that wait are served in turn, and each is lent at least what its first packet takes; if there
//! is not enough, lanes that do nothing, that have more than an equal share, or that themselves wait for more than they
//! have, give back first.
//!
//! The network has to keep the asks and data of a lane in order, as a cable does, and as two UDP sockets do between
//! them. An ask that overtakes data counts that data twice, until the next ask.
//!
//! # What it costs
//!
//! Asks and grants are packets, and between processes each costs both of them a system call. So a pool lets limits
//! [lag](PoolConfig::lag), and a sender that has [little left](CreditSender::is_low) waits a moment for more rather than
//! send a part of a train.
//!
//! How much that matters was measured between two processes, each on a core of its own, in interleaved runs: 1 MiB WRITEs
//! over loopback into a receive buffer of 416 KiB, which is what Linux grants for its default limit of 208 KiB. Compared
//! with no credits, whose window is as large:
//!
//! | limits lag by | trains | grants for 1 MiB | bandwidth |
//! |---|---|---|---|
//! | half a train | any | 18 | 92 to 95 % |
//! | half a train | whole | 17 | 92 to 98 % |
//! | half of the share | whole | 8.5 | 97 to 98 % |
//! | two thirds of the share | any | 8.6 | 95 to 96 % |
//! | two thirds of the share | whole, where little is left | 5.7 | 98 % |
//!
//! What changed nothing: to lag more than that, to let grants wait for more or less than a train, and to lend the quarter
//! of the buffer for which the kernel may still charge although it was read. That quarter costs no bandwidth: what is left
//! holds four trains, two that are read while two are sent.

mod message;
mod pool;
mod sender;

pub use message::{CreditMessage, Kind, MalformedMessage};
pub use pool::{Member, Pool, PoolConfig, PoolTooSmall};
pub use sender::{CreditSender, Stalls};

/// More blocks arrived than were granted: `excessive_buffer_overrun_errors` counts this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet of {blocks} blocks arrived where {free} were granted")]
pub struct Overrun {
    /// The blocks of the packet.
    pub blocks: u32,
    /// The blocks that were granted, and had not arrived.
    pub free: u32,
}

/// Bytes in a block of InfiniBand.
pub const BLOCK: u32 = 64;

/// The blocks that `bytes` occupy.
#[must_use]
pub const fn blocks(bytes: u32) -> u32 {
    bytes.div_ceil(BLOCK)
}

/// How far `to` is ahead of `from`, however often counts have wrapped; 0 if it is behind.
const fn ahead(from: u32, to: u32) -> u32 {
    let distance = to.wrapping_sub(from);
    if distance <= i32::MAX as u32 { distance } else { 0 }
}
