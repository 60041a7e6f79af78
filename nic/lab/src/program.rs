//! Labs whose task is a program: what its packets show.

use qp::wire::{NakCode, Opcode, Syndrome};
use rnic_core::capture::{Content, DecodedPacket};

/// What a program's capture shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// RDMA WRITEs of one packet.
    pub writes: usize,
    /// Acknowledgements.
    pub acknowledged: usize,
    /// NAKs that say "remote access error" (IBTA 9.7.5.2.4).
    pub refused: usize,
}

impl Seen {
    /// Looks at the packets of a capture.
    pub fn of<'a>(packets: impl IntoIterator<Item = &'a DecodedPacket>) -> Self {
        let mut seen = Self::default();
        for packet in packets {
            let Content::Packet { headers, .. } = &packet.content else { continue };
            match (headers.opcode, headers.aeth.kind()) {
                (Opcode::RcWriteOnly, _) => seen.writes += 1,
                (Opcode::RcAcknowledge, Syndrome::Ack { .. }) => seen.acknowledged += 1,
                (Opcode::RcAcknowledge, Syndrome::Nak(NakCode::RemoteAccessError)) => seen.refused += 1,
                _ => {}
            }
        }
        seen
    }
}
