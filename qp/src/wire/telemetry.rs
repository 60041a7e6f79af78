//! Telemetry: what the ports on the way of a packet said, which its receiver returns to its sender.
//!
//! The network collects it beside the packet. It returns in a packet of its own, with an opcode from the
//! manufacturer-defined range ([`Transport::Rnic`](super::Transport::Rnic)), and only to peers that announced support in a
//! [`hello`](super::mad::hello).
//!
//! ```text
//! BTH  opcode 0xc3, partition of the queue pair
//!      destination QPN  the queue pair that sent the packet
//!      PSN              that of the packet
//! payload               | token 64 | number of hops 16 | 0 16 | hop words of 64 bits each |
//! ```
//!
//! There are 1 to 5 hops, in the order in which the packet passed them. Congestion control defines the content of a hop word;
//! this module treats it as a number. Reserved bits are sent as zero and ignored on reception.

use super::control::TOKEN_LEN;
use super::opcode::{Opcode, Operation};
use super::packet::{Headers, Packet};
use crate::ids::{Psn, Qpn};

/// Maximum number of hops.
pub const MAX_HOPS: usize = 5;

/// Length of what precedes the hop words.
const FRONT_LEN: usize = TOKEN_LEN + 4;

/// Maximum length of the payload.
pub const MAX_LEN: usize = FRONT_LEN + 8 * MAX_HOPS;

impl Headers {
    /// Telemetry of the packet with this PSN, for the queue pair that sent it; [`emit`] creates its payload. Send it only to
    /// rnic peers that use telemetry.
    #[must_use]
    pub fn telemetry(dest_qpn: Qpn, psn: Psn) -> Self {
        Self::new(Opcode::RnicTelemetry, dest_qpn, psn)
    }
}

impl<'a> Packet<'a> {
    /// The hop words, if it is telemetry of 1 to 5 hops and as long as their number says.
    #[must_use]
    pub fn telemetry(&self) -> Option<impl ExactSizeIterator<Item = u64> + use<'a>> {
        let ([high, low, _, _], words) = self.said().split_first_chunk()?;
        let (words, rest) = words.as_chunks::<8>();
        let count = usize::from(u16::from_be_bytes([*high, *low]));
        let is_whole = rest.is_empty() && words.len() == count && (1..=MAX_HOPS).contains(&count);
        (is_whole && self.info().operation == Operation::Telemetry)
            .then(|| words.iter().map(|word| u64::from_be_bytes(*word)))
    }
}

/// Writes the payload of telemetry into `out` and returns its length; `None` if there are not 1 to 5 hops.
#[must_use]
pub fn emit(token: u64, hops: impl ExactSizeIterator<Item = u64>, out: &mut [u8; MAX_LEN]) -> Option<usize> {
    let count = hops.len();
    if !(1..=MAX_HOPS).contains(&count) {
        return None;
    }
    let (front, words) = out.split_first_chunk_mut::<FRONT_LEN>()?;
    *front = [0; FRONT_LEN];
    front[..TOKEN_LEN].copy_from_slice(&token.to_be_bytes());
    front[TOKEN_LEN..TOKEN_LEN + 2].copy_from_slice(&u16::try_from(count).ok()?.to_be_bytes());
    for (place, word) in words.as_chunks_mut::<8>().0.iter_mut().zip(hops) {
        *place = word.to_be_bytes();
    }
    Some(FRONT_LEN + 8 * count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(payload: &[u8]) -> Vec<u8> {
        let headers = Headers::telemetry(Qpn::new(0x12_3456), Psn::new(0x78_9abc));
        let mut bytes = vec![0xee; headers.wire_len()];
        headers.emit(&mut bytes, payload.len());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
        bytes
    }

    fn words(payload: &[u8]) -> Option<Vec<u64>> {
        Packet::parse(&packet(payload)).unwrap().telemetry().map(Iterator::collect)
    }

    #[test]
    fn bytes_of_telemetry() {
        let mut payload = [0xee; MAX_LEN];
        let hops = [0x0102_0304_0506_0708, 0x1112_1314_1516_1718];
        assert_eq!(emit(0xa1a2_a3a4_a5a6_a7a8, hops.into_iter(), &mut payload), Some(28));
        let bytes = packet(&payload[..28]);
        let expected = [
            [0xc3, 0, 0xff, 0xff, 0, 0x12, 0x34, 0x56].as_slice(),
            &[0, 0x78, 0x9a, 0xbc],
            &[0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8],
            &[0, 2, 0, 0],
            &[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
        ];
        assert_eq!(bytes[..40], expected.concat());
        let parsed = Packet::parse(&bytes).unwrap();
        assert_eq!((parsed.token(), parsed.port_message()), (0xa1a2_a3a4_a5a6_a7a8, None));
        assert_eq!(parsed.telemetry().map(Iterator::collect), Some(hops.to_vec()));
        let mut reserved = payload;
        (reserved[10], reserved[11]) = (0xff, 0xff);
        assert_eq!(words(&reserved[..28]), Some(hops.to_vec()), "reserved bits have no effect");
        assert_eq!(emit(1, std::iter::empty(), &mut payload), None);
        assert_eq!(emit(1, [0; 6].into_iter(), &mut payload), None);
    }

    #[test]
    fn payloads_of_another_length_or_number_are_not_parsed() {
        for len in 0..80_usize {
            for count in 0..8_usize {
                let mut payload = vec![0; len];
                if let Some(place) = payload.get_mut(TOKEN_LEN + 1) {
                    *place = count as u8;
                }
                let is_right = (1..=5).contains(&count) && len == 12 + 8 * count;
                assert_eq!(words(&payload).is_some(), is_right, "{len} bytes, {count} hops");
            }
        }
        let headers = Headers::pause(1, 2, 3);
        let mut bytes = vec![0; headers.wire_len()];
        headers.emit(&mut bytes, 20);
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0; 4]);
        assert!(Packet::parse(&bytes).unwrap().telemetry().is_none(), "it is the wrong kind of message");
    }

    proptest! {
        #[test]
        fn emitted_words_parse_back(token: u64, hops in prop::collection::vec(any::<u64>(), 1..=MAX_HOPS)) {
            let mut payload = [0xee; MAX_LEN];
            let len = emit(token, hops.iter().copied(), &mut payload).unwrap();
            prop_assert_eq!(words(&payload[..len]), Some(hops));
        }
    }
}
