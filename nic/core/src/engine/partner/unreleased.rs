//! Packets that were read from a socket but may still occupy its buffer.
//!
//! A kernel need not free buffer space with each packet that is read: while more packets wait, Linux frees it only once
//! a quarter of the buffer was read (`udp_rmem_release` of net/ipv4/udp.c). Credit for the packets that were read last
//! must wait for that. When no more packets wait, all space is free.

use cc::credits::Member;
use std::collections::VecDeque;

/// The packets that were read last, oldest first.
#[derive(Debug)]
pub(super) struct Unreleased {
    /// Upper bound of the space that read packets may still occupy, in the counted unit of bytes.
    held_back: u64,
    /// For each read: the member, its blocks and its bytes.
    read: VecDeque<(Member, u32, u32)>,
    bytes: u64,
}

impl Unreleased {
    pub(super) const fn new(held_back: u32) -> Self {
        Self { held_back: held_back as u64, read: VecDeque::new(), bytes: 0 }
    }

    /// Records that packets of a member were read: this many blocks and bytes.
    pub(super) fn read(&mut self, member: Member, blocks: u32, bytes: u32) {
        self.bytes += u64::from(bytes);
        self.read.push_back((member, blocks, bytes));
    }

    /// Packets whose space is certainly free: the kernel holds back less than what was read since, including them.
    pub(super) fn poll(&mut self) -> Option<(Member, u32)> {
        let (member, blocks, bytes) = self.read.pop_front_if(|_| self.bytes >= self.held_back)?;
        self.bytes -= u64::from(bytes);
        Some((member, blocks))
    }

    /// No more packets wait: the space of all packets is free.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Member, u32)> {
        self.bytes = 0;
        self.read.drain(..).map(|(member, blocks, _)| (member, blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc::credits::{Pool, PoolConfig};
    use time::Instant;

    fn member() -> Member {
        Pool::new(PoolConfig::default())
            .expect("a pool")
            .join(Instant::EPOCH, cc::vl::Vl::new(0).expect("a lane"))
    }

    #[test]
    fn room_is_free_once_as_much_was_read_as_may_be_held_back() {
        let (mut unreleased, member) = (Unreleased::new(100), member());
        unreleased.read(member, 1, 60);
        assert_eq!(unreleased.poll(), None);
        unreleased.read(member, 2, 39);
        assert_eq!(unreleased.poll(), None, "99 of less than 100");
        unreleased.read(member, 3, 1);
        assert_eq!(unreleased.poll(), Some((member, 1)));
        assert_eq!(unreleased.poll(), None);
        unreleased.read(member, 4, 500);
        assert_eq!(
            [(); 4].map(|()| unreleased.poll().map(|(_, blocks)| blocks)),
            [Some(2), Some(3), Some(4), None]
        );
    }

    #[test]
    fn all_is_free_when_nothing_waits() {
        let (mut unreleased, member) = (Unreleased::new(100), member());
        unreleased.read(member, 1, 60);
        unreleased.read(member, 2, 39);
        assert_eq!(unreleased.drain().map(|(_, blocks)| blocks).collect::<Vec<_>>(), [1, 2]);
        unreleased.read(member, 3, 60);
        assert_eq!(unreleased.poll(), None, "what was before is forgotten");
    }

    #[test]
    fn where_nothing_is_held_back_room_is_free_at_once() {
        let (mut unreleased, member) = (Unreleased::new(0), member());
        unreleased.read(member, 7, 60);
        assert_eq!(unreleased.poll(), Some((member, 7)));
    }
}
