//! Labs whose task is a program: what its packets show.

use qp::wire::{NakCode, Opcode, Syndrome};
use rnic_core::capture::{Content, DecodedPacket};

/// What a program prints in front of the address of its remote region, in hexadecimal.
pub const BEGINS: &str = "the remote region begins at 0x";

/// Where the remote region of a program begins, by what it prints.
#[must_use]
pub fn begins(text: &str) -> Option<u64> {
    let rest = text.to_lowercase().split(BEGINS).nth(1)?.to_owned();
    let digits = rest.split(|digit: char| !digit.is_ascii_hexdigit()).next()?;
    u64::from_str_radix(digits, 16).ok()
}

/// What a program's capture shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// RDMA WRITEs of one packet: their remote addresses and lengths.
    pub writes: Vec<(u64, u32)>,
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
                (Opcode::RcWriteOnly, _) => seen.writes.push((headers.reth.va, headers.reth.length)),
                (Opcode::RcAcknowledge, Syndrome::Ack { .. }) => seen.acknowledged += 1,
                (Opcode::RcAcknowledge, Syndrome::Nak(NakCode::RemoteAccessError)) => seen.refused += 1,
                _ => {}
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_the_region_is_read_from_what_is_printed() {
        for (text, address) in [
            ("x\nthe remote region begins at 0x7f00a010\nSUCCESS", Some(0x7f00_a010)),
            ("The remote region begins at 0xAB", Some(0xab)),
            ("the remote region begins at 7f", None),
            ("the remote region begins at 0x", None),
            ("", None),
        ] {
            assert_eq!(begins(text), address, "{text}");
        }
    }
}
