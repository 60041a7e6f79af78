//! The AETH syndrome of an acknowledgement, and the two code tables that it uses (IBTA 9.7.5.2).

use time::Duration;

/// Why a request was rejected for good (IBTA 9.7.5.2, table of NAK codes).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing: retransmit from the PSN of this NAK.
    PsnSequenceError = 0,
    /// The request is invalid: opcode sequence, length, or an operation that the queue pair does not accept.
    InvalidRequest = 1,
    /// The key, the range or an access right is wrong.
    RemoteAccessError = 2,
    /// The responder could not complete the request because of an error on its side.
    RemoteOperationalError = 3,
    /// Reliable datagrams only, which RoCE does not have.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// The NAK with this 5-bit code.
    #[must_use]
    pub const fn from_u8(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            _ => return None,
        })
    }

    /// The name in lower case, as packet listings show it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PsnSequenceError => "psn-sequence-error",
            Self::InvalidRequest => "invalid-request",
            Self::RemoteAccessError => "remote-access-error",
            Self::RemoteOperationalError => "remote-operational-error",
            Self::InvalidRdRequest => "invalid-rd-request",
        }
    }
}

/// The syndrome byte of an AETH: bit 7 is 0, bits 6 and 5 select the kind, the low five bits hold its value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Acknowledged.
    Ack {
        /// End-to-end credits as a 5-bit code, see [`decode_credits`].
        credits: u8,
    },
    /// Receiver not ready: retry after a delay.
    Rnr {
        /// The delay as a 5-bit code, see [`rnr_delay`].
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// A byte without a meaning in the specification.
    Reserved(u8),
}

/// The low five bits of a syndrome.
const VALUE: u8 = 0x1f;
/// The upper three bits of an RNR NAK.
const RNR: u8 = 0x20;
/// The upper three bits of a NAK.
const NAK: u8 = 0x60;

impl Syndrome {
    /// An ACK that advertises no credits: the requester is not limited (code 31).
    pub const ACK_UNLIMITED: Self = Self::Ack { credits: CREDITS_UNLIMITED };

    /// Decodes the byte.
    #[must_use]
    pub const fn from_u8(byte: u8) -> Self {
        let value = byte & VALUE;
        match byte & !VALUE {
            0 => Self::Ack { credits: value },
            RNR => Self::Rnr { timer: value },
            NAK => match NakCode::from_u8(value) {
                Some(code) => Self::Nak(code),
                None => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire. Codes are truncated to five bits.
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & VALUE,
            Self::Rnr { timer } => RNR | (timer & VALUE),
            Self::Nak(code) => NAK | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

impl From<u8> for Syndrome {
    fn from(byte: u8) -> Self {
        Self::from_u8(byte)
    }
}

impl From<Syndrome> for u8 {
    fn from(syndrome: Syndrome) -> Self {
        syndrome.to_u8()
    }
}

/// RNR NAK timer codes in microseconds (IBTA 9.7.5.2.8): code 0 is the longest, not the shortest.
const RNR_MICROS: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120,
    7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680,
    491_520,
];

/// How long a requester waits after an RNR NAK with this timer code; only the low five bits are used.
#[must_use]
pub const fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(RNR_MICROS[(code & VALUE) as usize] as u64)
}

/// The credit code for "no credits advertised": the requester is not limited.
pub const CREDITS_UNLIMITED: u8 = 31;

/// End-to-end credit codes 0 to 30 in messages (IBTA 9.7.7.2).
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768,
];

/// The code of the largest table entry that does not exceed `available`: a responder never advertises too much.
#[must_use]
pub fn encode_credits(available: u32) -> u8 {
    // The first entry is 0, so at least one entry does not exceed `available`; the 31 entries fit into a byte.
    (CREDITS.partition_point(|&credits| credits <= available) - 1) as u8
}

/// The number of messages that a credit code grants; `None` if unlimited. Only the low five bits are used.
#[must_use]
pub fn decode_credits(code: u8) -> Option<u32> {
    CREDITS.get(usize::from(code & VALUE)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_keeps_its_value() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_u8(byte).to_u8(), byte);
            assert_eq!(u8::from(Syndrome::from(byte)), byte);
        }
    }

    #[test]
    fn kinds_of_syndrome() {
        assert_eq!(Syndrome::from_u8(0x1f), Syndrome::ACK_UNLIMITED);
        assert_eq!(Syndrome::from_u8(0x34), Syndrome::Rnr { timer: 20 });
        assert_eq!(Syndrome::from_u8(0x60), Syndrome::Nak(NakCode::PsnSequenceError));
        assert_eq!(Syndrome::from_u8(0x63), Syndrome::Nak(NakCode::RemoteOperationalError));
        for reserved in [0x40, 0x65, 0x7f, 0x80, 0xe0] {
            assert_eq!(Syndrome::from_u8(reserved), Syndrome::Reserved(reserved));
        }
    }

    #[test]
    fn rnr_codes_grow_but_for_code_0() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(14), Duration::from_micros(1_280));
        assert_eq!(rnr_delay(20), Duration::from_micros(10_240));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        assert!((2..32).all(|code| rnr_delay(code) > rnr_delay(code - 1)));
    }

    #[test]
    fn credits_round_down() {
        for code in 0..CREDITS_UNLIMITED {
            let credits = decode_credits(code).unwrap();
            assert_eq!(encode_credits(credits), code);
            if code > 0 {
                assert_eq!(encode_credits(credits - 1), code - 1);
            }
        }
        assert_eq!(encode_credits(u32::MAX), 30);
        assert_eq!(encode_credits(5), 4);
        assert_eq!(decode_credits(CREDITS_UNLIMITED), None);
    }
}
