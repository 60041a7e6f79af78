//! The few fields of packets that the oracle needs, parsed here: it shares no parser with the engine.

use std::time::Duration;

/// PSNs have 24 bits.
const PSNS: u32 = 1 << 24;

/// A packet on a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// The queue pair that it is for.
    pub(super) qpn: u32,
    pub(super) psn: u32,
    pub(super) said: Said,
}

/// The meaning of a packet for the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A packet of a SEND or a WRITE: any later acknowledgement answers it.
    Request,
    /// A READ, with its length in bytes. Only its data answers it; each packet of the data uses a PSN.
    Read(u32),
    /// An atomic, an ATOMIC_WRITE or a FLUSH: only its own response answers it.
    Question,
    /// A response to a READ, an atomic, an ATOMIC_WRITE or a FLUSH.
    Answer,
    /// An acknowledgement.
    Ack,
    /// A NAK: packets from this one on are missing.
    Missing,
    /// A NAK that refuses a request.
    Refused,
    /// An RNR NAK, with the code of the wait that it asks for.
    NotReady(u8),
}

impl Packet {
    /// Parses a packet from its BTH on; `None` if it is of another service (IBTA 9.2 and 9.3).
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let opcode = *bytes.first()?;
        // XRC requests have an extended header between the BTH and the rest.
        let extra = match opcode >> 5 {
            0 => 0,
            5 => 4,
            _ => return None,
        };
        let said = match opcode & 0x1f {
            // The length is the last word of the RETH.
            0x0c => Said::Read(word(12 + extra + 12)?),
            0x13 | 0x14 | 0x1c | 0x1d => Said::Question,
            0x0d..=0x10 | 0x12 => Said::Answer,
            0x11 => {
                let syndrome = *bytes.get(12)?;
                match (syndrome >> 5, syndrome & 0x1f) {
                    (0, _) => Said::Ack,
                    (1, code) => Said::NotReady(code),
                    (3, 0) => Said::Missing,
                    (3, _) => Said::Refused,
                    _ => return None,
                }
            }
            _ => Said::Request,
        };
        Some(Self { qpn: word(4)? % PSNS, psn: word(8)? % PSNS, said })
    }

    /// Whether a requester sends it.
    pub(super) const fn is_request(&self) -> bool {
        matches!(self.said, Said::Request | Said::Read(_) | Said::Question)
    }
}

/// The PSN `count` after this one.
pub(super) const fn plus(psn: u32, count: u32) -> u32 {
    (psn.wrapping_add(count)) % PSNS
}

/// How far `psn` is ahead of `from`; negative if it is before it (IBTA 9.7.2).
pub(super) const fn ahead(psn: u32, from: u32) -> i32 {
    let distance = (psn.wrapping_sub(from) % PSNS) as i32;
    if distance < (PSNS / 2) as i32 { distance } else { distance - PSNS as i32 }
}

/// The waits of IBTA table 45, in units of 10 us.
const RNR_DELAYS: [u64; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The RNR wait for this code.
pub(crate) fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(RNR_DELAYS[usize::from(code & 31)] * 10)
}
