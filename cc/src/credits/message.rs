//! What the two ends of a lane say to each other.

use crate::vl::Vl;

/// What a message is for, and so which end sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The sending end asks for credit, or for the lease of what it has to go on, or says that it obeys a limit that
    /// was lowered.
    Ask,
    /// The receiving end grants credit up to a limit.
    Grant,
}

/// A flow control packet of a lane. Both ends number what they say, and repeat the number that they heard last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditMessage {
    /// Whether it asks or grants.
    pub kind: Kind,
    /// The virtual lane.
    pub vl: Vl,
    /// The blocks that the packet in front takes that waits for credit; 0 if none waits. Grants leave it 0.
    pub want: u16,
    /// The number of this message, counted by its sender.
    pub number: u16,
    /// The number of the last message that its sender heard from the other end; 0 if none.
    pub echo: u16,
    /// In an ask, the blocks sent so far (FCTBS); in a grant, those received so far (ABR).
    pub count: u32,
    /// In an ask, the limit that the sending end obeys; in a grant, the one that it is to obey (FCCL): the count up to
    /// which it may send.
    pub limit: u32,
}

/// Why bytes are not a message to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedMessage {
    /// The kind is reserved; ignore the message.
    #[error("flow control of kind {0} is reserved")]
    ReservedKind(u8),
    /// VL15, the management lane, has no credits (C7-18).
    #[error("VL15 has no flow control")]
    ManagementLane,
}

impl CreditMessage {
    /// Length of the output of [`encode`](Self::encode).
    pub const LEN: usize = 16;

    /// Encodes the message for the wire, big-endian: kind (4 bits) and lane (4), a zero byte, what is wanted (16), the
    /// two numbers (16 each), count and limit (32 each).
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::LEN] {
        let kind = match self.kind {
            Kind::Ask => 0,
            Kind::Grant => 1,
        };
        let [a, b] = self.want.to_be_bytes();
        let [c, d] = self.number.to_be_bytes();
        let [e, f] = self.echo.to_be_bytes();
        let [g, h, i, j] = self.count.to_be_bytes();
        let [k, l, m, n] = self.limit.to_be_bytes();
        [kind << 4 | self.vl.number(), 0, a, b, c, d, e, f, g, h, i, j, k, l, m, n]
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// The kind is reserved, or the lane is VL15.
    pub const fn decode(bytes: [u8; Self::LEN]) -> Result<Self, MalformedMessage> {
        let [first, _, a, b, c, d, e, f, g, h, i, j, k, l, m, n] = bytes;
        let kind = match first >> 4 {
            0 => Kind::Ask,
            1 => Kind::Grant,
            reserved => return Err(MalformedMessage::ReservedKind(reserved)),
        };
        match Vl::new(first & 0xf) {
            Some(vl) if !vl.is_management() => Ok(Self {
                kind,
                vl,
                want: u16::from_be_bytes([a, b]),
                number: u16::from_be_bytes([c, d]),
                echo: u16::from_be_bytes([e, f]),
                count: u32::from_be_bytes([g, h, i, j]),
                limit: u32::from_be_bytes([k, l, m, n]),
            }),
            _ => Err(MalformedMessage::ManagementLane),
        }
    }
}

/// Whether message `number` was sent after message `than`, however often the numbers have wrapped.
pub(super) const fn is_later(number: u16, than: u16) -> bool {
    (number.wrapping_sub(than) as i16) > 0
}

/// The number after this one. 0 is no number.
pub(super) const fn next(number: u16) -> u16 {
    match number.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_of_a_message() {
        let message = CreditMessage {
            kind: Kind::Grant,
            vl: Vl::new(3).expect("a lane"),
            want: 0x0102,
            number: 0x0304,
            echo: 0x0506,
            count: 0x0708_090a,
            limit: 0x0b0c_0d0e,
        };
        assert_eq!(message.encode(), [0x13, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!(CreditMessage::decode(message.encode()), Ok(message));
    }

    #[test]
    fn what_is_reserved_is_refused() {
        let with = |first| CreditMessage::decode([first, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(with(0x20), Err(MalformedMessage::ReservedKind(2)));
        assert_eq!(with(0x0f), Err(MalformedMessage::ManagementLane));
        assert!(with(0x0e).is_ok() && with(0x10).is_ok());
    }

    #[test]
    fn numbers_wrap_past_zero() {
        assert_eq!((next(1), next(u16::MAX)), (2, 1));
        assert!(is_later(1, u16::MAX) && !is_later(u16::MAX, 1) && !is_later(7, 7));
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_written_again(bytes: [u8; CreditMessage::LEN]) {
            if let Ok(message) = CreditMessage::decode(bytes) {
                let mut same = bytes;
                same[1] = 0;
                prop_assert_eq!(message.encode(), same);
            }
        }
    }
}
