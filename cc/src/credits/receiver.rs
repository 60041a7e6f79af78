//! The receiving end of a lane, with its own buffer.

use super::{FlowControlPacket, WINDOW, advanced, distance};

/// More blocks arrived than had credit: `excessive_buffer_overrun_errors` counts this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet of {blocks} blocks arrived where there was room for {free}")]
pub struct Overrun {
    /// The blocks of the packet.
    pub blocks: u32,
    /// The blocks that were free.
    pub free: u32,
}

/// The receiving end of a lane: the room in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditReceiver {
    /// Blocks received (ABR, Adjusted Blocks Received).
    received: u16,
    free: u32,
    capacity: u32,
    /// Blocks that were sent and did not arrive.
    lost: u64,
}

impl CreditReceiver {
    /// A buffer of `capacity` blocks. It has to hold one packet of the largest size, or such a packet waits
    /// indefinitely.
    #[must_use]
    pub const fn new(capacity: u32) -> Self {
        Self { received: 0, free: capacity, capacity, lost: 0 }
    }

    /// Accounts for a packet of `blocks` that arrived and occupies the buffer.
    ///
    /// # Errors
    ///
    /// The buffer has no room: the caller must drop the packet.
    pub fn handle_packet(&mut self, blocks: u32) -> Result<(), Overrun> {
        let overrun = Overrun { blocks, free: self.free };
        let n = u16::try_from(blocks).map_err(|_| overrun)?;
        self.free = self.free.checked_sub(blocks).ok_or(overrun)?;
        self.received = advanced(self.received, n);
        Ok(())
    }

    /// Accounts for a packet of `blocks` that has left the buffer.
    pub fn release(&mut self, blocks: u32) {
        self.free = self.free.saturating_add(blocks).min(self.capacity);
    }

    /// Handles an update: its count replaces the one kept here, which lacks the blocks that were lost.
    pub fn handle_update(&mut self, update: &FlowControlPacket) {
        self.lost += u64::from(distance(self.received, update.fctbs));
        self.received = update.fctbs;
    }

    /// The limit to advertise to the sender.
    #[must_use]
    pub fn fccl(&self) -> u16 {
        let free = u16::try_from(self.free).unwrap_or(WINDOW).min(WINDOW);
        advanced(self.received, free)
    }

    /// The blocks that are free.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// Blocks that were sent and did not arrive, according to the updates.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}
