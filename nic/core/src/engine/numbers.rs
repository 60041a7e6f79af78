//! Numbers of queue pairs, and of shared receive queues.
//!
//! A number is `slot(8) | scrambled index(16)`: the top byte steers a packet to the process that owns the number, the
//! rest identifies the object there. A keyed bijection scrambles the index, so that numbers cannot be guessed. Freed
//! indices go to the end of a queue, so that a late packet for a destroyed queue pair does not reach a new one.

use super::Share;
use qp::Qpn;
use std::collections::VecDeque;

/// Largest number of objects of one kind in a slot: 2^16, less the queue pair numbers 0 and 1, which are reserved, and
/// less the number that means multicast.
pub(crate) const MAX_NUMBERS: usize = (1 << 16) - 3;

/// Allocates 24-bit numbers, and maps them to table indices.
#[derive(Debug)]
pub(crate) struct Numbers {
    slot: u8,
    /// Keys of the rounds of the bijection; `None` in a simulation, where numbers count up from 2.
    rounds: Option<[u8; 4]>,
    /// The index whose number is handed out first.
    first: u16,
    next: u32,
    free: VecDeque<u16>,
}

impl Numbers {
    pub(crate) fn new(slot: u8, rounds: Option<[u8; 4]>) -> Self {
        Self { slot, rounds, first: 0, next: 0, free: VecDeque::new() }
    }

    /// The numbers of a user of a slot that had users before.
    pub(crate) fn shared(slot: u8, Share { rounds, first }: Share) -> Self {
        Self { first, ..Self::new(slot, Some(rounds)) }
    }

    /// Allocates a number; returns it and its table index.
    pub(crate) fn allocate(&mut self) -> Option<(u32, usize)> {
        loop {
            let index = if self.next < 1 << 16 {
                self.next += 1;
                u16::try_from(self.next - 1).ok()?
            } else {
                self.free.pop_front()?
            };
            let number = self.number(index);
            // 0 and 1 are the management queue pairs; in each slot they stand for the process itself. 0xFFFFFF means
            // multicast.
            if number & 0xffff > 1 && number != Qpn::MULTICAST.value() {
                return Some((number, usize::from(index)));
            }
        }
    }

    pub(crate) fn release(&mut self, index: usize) {
        if let Ok(index) = u16::try_from(index) {
            self.free.push_back(index);
        }
    }

    /// The table index of a number; `None` if the number belongs to another slot.
    pub(crate) fn index(&self, value: u32) -> Option<usize> {
        if value >> 16 != u32::from(self.slot) {
            return None;
        }
        let mut left = (value >> 8) as u8;
        let mut right = value as u8;
        for key in self.rounds.iter().flatten().rev() {
            (left, right) = (right ^ mix(left, *key), left);
        }
        Some(usize::from(u16::from_be_bytes([left, right]).wrapping_sub(self.first)))
    }

    fn number(&self, index: u16) -> u32 {
        let [mut left, mut right] = index.wrapping_add(self.first).to_be_bytes();
        for key in self.rounds.iter().flatten() {
            (left, right) = (right, left ^ mix(right, *key));
        }
        u32::from(self.slot) << 16 | u32::from(u16::from_be_bytes([left, right]))
    }
}

/// The round function: the rounds form a bijection with any function; this one spreads every bit.
fn mix(half: u8, key: u8) -> u8 {
    let x = u32::from(half) ^ u32::from(key);
    // 2^32 divided by the golden ratio: the multiplier of Knuth's multiplicative hash.
    (x.wrapping_mul(0x9e37_79b1) >> 16) as u8 ^ key.rotate_left(3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_distinct_and_lead_back() {
        for rounds in [None, Some([1, 2, 3, 4]), Some([0xff, 0, 0x5a, 9])] {
            let mut numbers = Numbers::new(7, rounds);
            let mut seen = HashSet::new();
            while let Some((number, index)) = numbers.allocate() {
                assert!(seen.insert(number));
                assert_eq!(numbers.index(number), Some(index));
                assert_eq!(number >> 16, 7);
            }
            // Only slot 0xff contains the number that means multicast.
            assert_eq!(seen.len(), MAX_NUMBERS + 1);
            assert_eq!(numbers.index(0x08_0000), None, "another slot");
        }
    }

    #[test]
    fn users_of_a_slot_get_different_numbers_one_after_the_other() {
        let mut seen = HashSet::new();
        for first in (0..16).map(|user| user * 4096) {
            let mut numbers = Numbers::shared(3, Share { rounds: [7, 8, 9, 10], first });
            for _ in 0..4000 {
                let (number, index) = numbers.allocate().expect("a number");
                assert!(seen.insert(number), "{number:#x} was used before");
                assert!(index <= 4002, "the table of queue pairs stays small: {index}");
                assert_eq!(numbers.index(number), Some(index));
            }
        }
        assert_eq!(seen.len(), 64_000);
    }

    #[test]
    fn reserved_numbers_are_not_handed_out() {
        let mut numbers = Numbers::new(0, None);
        assert_eq!(numbers.allocate().map(|(q, _)| q), Some(2));
        let mut all = Numbers::new(0xff, None);
        assert!(std::iter::from_fn(|| all.allocate()).all(|(q, _)| q != Qpn::MULTICAST.value()));
    }

    #[test]
    fn a_freed_number_is_reused_last() {
        let mut numbers = Numbers::new(1, None);
        let (first, index) = numbers.allocate().expect("a number");
        numbers.release(index);
        for _ in 0..MAX_NUMBERS {
            assert_ne!(numbers.allocate().map(|(q, _)| q), Some(first));
        }
        assert_eq!(numbers.allocate().map(|(q, _)| q), Some(first));
        assert_eq!(numbers.allocate(), None, "no number is left");
    }
}
