//! The credits of an InfiniBand link: what a sender may send on each virtual lane.
//!
//! Both ends count blocks of 64 bytes since the beginning: the sender what it has sent (FCTBS), the receiver what it has
//! received (ABR), and from it up to where the sender may go (FCCL). As absolute counts they heal when an update is lost.
//! (IBTA 1.4, section 7.9. The counts on the wire have 12 bits; ours do not wrap.)

/// The number of virtual lanes.
pub(crate) const LANES: usize = 16;

/// Bytes of a block.
const BLOCK: u32 = 64;

/// The most blocks that a lane can have outstanding: the counts on the wire have 12 bits, and half of their range tells ahead
/// from behind.
const MOST: u64 = 2048;

/// The blocks that a packet takes.
pub(crate) const fn blocks(bytes: u32) -> u64 {
    bytes.div_ceil(BLOCK) as u64
}

/// A lane at its sender.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sender {
    sent: u64,
    limit: u64,
}

impl Sender {
    /// Whether there is credit for a packet.
    pub(crate) const fn may_send(&self, bytes: u32) -> bool {
        self.sent + blocks(bytes) <= self.limit
    }

    /// A packet leaves.
    pub(crate) const fn send(&mut self, bytes: u32) {
        self.sent += blocks(bytes);
    }

    /// The receiver grants as much as this. It never takes anything back.
    pub(crate) fn grant(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// The blocks that it has sent, which it tells its receiver when the link comes up.
    pub(crate) const fn sent(&self) -> u64 {
        self.sent
    }

    /// The blocks that may still be sent.
    pub(crate) const fn credit(&self) -> u64 {
        self.limit.saturating_sub(self.sent)
    }
}

/// A lane at its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiver {
    /// Blocks of its buffer.
    capacity: u64,
    received: u64,
    held: u64,
}

impl Receiver {
    /// A lane with this many bytes of buffer, and what its sender is granted at the beginning.
    pub(crate) fn new(bytes: u64) -> (Self, u64) {
        let capacity = (bytes / u64::from(BLOCK)).min(MOST);
        (Self { capacity, received: 0, held: 0 }, capacity)
    }

    /// A packet comes in. False if there is no room for it: its sender had no credit.
    pub(crate) const fn receive(&mut self, bytes: u32) -> bool {
        let blocks = blocks(bytes);
        self.received += blocks;
        self.held += blocks;
        self.held <= self.capacity
    }

    /// A packet has left the buffer: the sender may go on up to the limit that is returned.
    pub(crate) const fn release(&mut self, bytes: u32) -> u64 {
        self.held -= blocks(bytes);
        self.limit()
    }

    /// Up to where the sender may go.
    const fn limit(&self) -> u64 {
        self.received + self.capacity - self.held
    }

    /// Takes over what the sender has sent: what was lost on the way counts as received. Returns up to where the sender may
    /// go.
    pub(crate) const fn agree(&mut self, sent: u64) -> u64 {
        self.received = sent;
        self.limit()
    }

    /// Bytes in the buffer, in whole blocks.
    #[cfg(test)]
    pub(crate) const fn held(&self) -> u64 {
        self.held * BLOCK as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However packets come and go, and however late updates are, the buffer is never overrun, and a lane whose buffer
        /// is empty has credit for as much as it holds.
        #[test]
        fn no_buffer_is_overrun_and_no_credit_is_lost(
            capacity in 66_u64..2048,
            steps in prop::collection::vec((0_u8..3, 64_u32..4200), 1..400),
        ) {
            let (mut receiver, first) = Receiver::new(capacity * 64);
            let mut sender = Sender::default();
            sender.grant(first);
            let (mut wire, mut held, mut updates) = (Vec::new(), Vec::new(), Vec::new());
            for (step, bytes) in steps {
                match step {
                    0 if sender.may_send(bytes) => {
                        sender.send(bytes);
                        wire.insert(0, bytes);
                    }
                    1 => if let Some(bytes) = wire.pop() {
                        prop_assert!(receiver.receive(bytes), "overrun");
                        held.push(bytes);
                    },
                    _ => {
                        if let Some(bytes) = held.pop() {
                            updates.push(receiver.release(bytes));
                        }
                        if updates.len() > 2 {
                            sender.grant(updates.remove(0));
                        }
                    }
                }
            }
            while let Some(bytes) = wire.pop() {
                prop_assert!(receiver.receive(bytes));
                held.push(bytes);
            }
            for bytes in held {
                updates.push(receiver.release(bytes));
            }
            updates.into_iter().for_each(|limit| sender.grant(limit));
            prop_assert_eq!(receiver.held(), 0);
            prop_assert_eq!(sender.credit(), capacity);
        }
    }
}
