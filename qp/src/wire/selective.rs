//! Selective acknowledgements: what a responder holds beyond a gap.
//!
//! A responder that keeps packets which came out of order says so to a requester that understands it, so that only what is
//! missing is sent again (selective repeat). RoCEv2 has no such packet; this one has an opcode from the manufacturer-defined
//! range, and goes only to peers that announced it in a [`hello`](super::mad::hello). Data packets stay as they are.
//!
//! ```text
//! BTH      opcode 0xc2, destination QPN: the requester, PSN: the next one that the responder expects
//! AETH     an acknowledgement of everything before that PSN, with the responder's credits and MSN
//! payload  | duplicates 32 | held 64 | ... |     1 to 16 words
//! ```
//!
//! Bit *i* of word *w* (bit 0 is the lowest) tells that the packet with PSN + 1 + 64 *w* + *i* is here. A READ request has
//! one bit, that of its own PSN. `duplicates` counts the packets that came again though they were held or executed: a
//! requester that sees it rise has sent something again without need.

use crate::ids::{Psn, Qpn};
use crate::wire::opcode::{Opcode, Operation};
use crate::wire::packet::{Headers, Packet};

/// The greatest number of words of a bitmap.
pub const MAX_WORDS: usize = 16;

/// How far behind the expected PSN a bitmap reaches, in PSNs.
pub const MAX_SPAN: usize = MAX_WORDS * 64;

/// The longest payload, in bytes.
pub const MAX_LEN: usize = 4 + 8 * MAX_WORDS;

/// What a selective acknowledgement says, apart from its AETH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SelectiveAck {
    /// The next PSN that the responder expects.
    pub expected: Psn,
    /// Packets that came again without need, since the queue pair was set up. It wraps.
    pub duplicates: u32,
    words: [u64; MAX_WORDS],
    len: usize,
}

impl SelectiveAck {
    /// One that tells of nothing held.
    #[must_use]
    pub const fn new(expected: Psn, duplicates: u32) -> Self {
        Self { expected, duplicates, words: [0; MAX_WORDS], len: 1 }
    }

    /// Adds the packet that is this many PSNs beyond the expected one. What the bitmap does not reach is left out.
    pub fn add(&mut self, ahead: usize) {
        let Some(bit) = ahead.checked_sub(1).filter(|bit| *bit < MAX_SPAN) else { return };
        self.words[bit / 64] |= 1 << (bit % 64);
        self.len = self.len.max(bit / 64 + 1);
    }

    /// How many PSNs beyond the expected one each packet is that is held, in ascending order.
    pub fn held(&self) -> impl Iterator<Item = usize> + '_ {
        self.words[..self.len].iter().enumerate().flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit + 1)
        })
    }

    /// The headers, without the AETH, for this queue pair.
    #[must_use]
    pub fn headers(&self, dest_qpn: Qpn) -> Headers {
        Headers::new(Opcode::RnicSelectiveAck, dest_qpn, self.expected)
    }

    /// The length of the payload in bytes.
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        4 + 8 * self.len
    }

    /// Writes the payload, which is [`payload_len`](Self::payload_len) bytes long.
    pub fn emit(&self, out: &mut [u8]) {
        let Some((duplicates, words)) = out.split_first_chunk_mut::<4>() else { return };
        *duplicates = self.duplicates.to_be_bytes();
        for (place, word) in words.as_chunks_mut::<8>().0.iter_mut().zip(&self.words) {
            *place = word.to_be_bytes();
        }
    }
}

impl Packet<'_> {
    /// What it says, if it is a selective acknowledgement with a payload of a length that one can have.
    #[must_use]
    pub fn selective_ack(&self) -> Option<SelectiveAck> {
        if self.info().operation != Operation::SelectiveAck {
            return None;
        }
        let (duplicates, rest) = self.payload().split_first_chunk::<4>()?;
        let (words, []) = rest.as_chunks::<8>() else { return None };
        if !(1..=MAX_WORDS).contains(&words.len()) {
            return None;
        }
        let mut ack = SelectiveAck::new(self.psn(), u32::from_be_bytes(*duplicates));
        ack.len = words.len();
        for (place, word) in ack.words.iter_mut().zip(words) {
            *place = u64::from_be_bytes(*word);
        }
        Some(ack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(ack: &SelectiveAck, payload: Option<&[u8]>) -> Vec<u8> {
        let headers = ack.headers(Qpn::new(0x11_0203));
        let mut said = vec![0; ack.payload_len()];
        ack.emit(&mut said);
        let said = payload.unwrap_or(&said);
        let mut bytes = vec![0xee; headers.wire_len()];
        headers.emit(&mut bytes, said.len());
        bytes.extend(said);
        bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
        bytes
    }

    #[test]
    fn bytes_of_a_selective_acknowledgement() {
        let mut ack = SelectiveAck::new(Psn::new(0xff_fffe), 7);
        [1, 3, 64, 65].into_iter().for_each(|ahead| ack.add(ahead));
        let bytes = packet(&ack, None);
        assert_eq!(bytes[..12], [0xc2, 0, 0xff, 0xff, 0, 0x11, 2, 3, 0, 0xff, 0xff, 0xfe]);
        assert_eq!(bytes[16..20], [0, 0, 0, 7], "behind the AETH");
        assert_eq!(bytes[20..36], [0x80, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(bytes.len(), 36 + 4);
        let parsed = Packet::parse(&bytes).expect("a packet");
        assert_eq!(parsed.selective_ack(), Some(ack));
        assert!(!parsed.info().is_request && parsed.info().operation.has_psn());
        assert_eq!(parsed.port_message(), None, "it is for a queue pair");
    }

    #[test]
    fn a_payload_of_another_length_says_nothing() {
        let ack = SelectiveAck::new(Psn::new(1), 0);
        for len in [0, 4, 8, 16, 4 + 8 * 17] {
            let bytes = packet(&ack, Some(&vec![0; len]));
            let said = Packet::parse(&bytes).expect("a packet").selective_ack();
            assert_eq!(said, None, "{len}");
        }
        let bytes = packet(&ack, Some(&[0; MAX_LEN]));
        assert!(Packet::parse(&bytes).expect("a packet").selective_ack().is_some());
    }

    proptest! {
        #[test]
        fn what_is_held_survives_the_wire(ahead in prop::collection::btree_set(1usize..1200, 0..50)) {
            let mut ack = SelectiveAck::new(Psn::new(5), 0);
            ahead.iter().for_each(|ahead| ack.add(*ahead));
            let bytes = packet(&ack, None);
            let parsed = Packet::parse(&bytes).expect("a packet").selective_ack().expect("one");
            let reached: Vec<usize> = ahead.into_iter().filter(|ahead| *ahead <= MAX_SPAN).collect();
            prop_assert_eq!(parsed.held().collect::<Vec<_>>(), reached);
        }
    }
}
