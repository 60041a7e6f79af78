//! Labs whose task is a program: what its packets show.

use qp::Psn;
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

/// An RDMA WRITE of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its remote address.
    pub va: u64,
    /// Its length.
    pub length: u32,
    psn: Psn,
    icrc: u32,
}

impl Write {
    /// Whether it carries a text, by the bytes of the capture that it is in: a payload, which is padded to a multiple of 4
    /// (IBTA 9.4.3), stands in front of the ICRC of its packet.
    #[must_use]
    pub fn carries(&self, text: &[u8], capture: &[u8]) -> bool {
        let mut end = text.to_vec();
        end.resize(text.len().next_multiple_of(4), 0);
        end.extend(self.icrc.to_le_bytes());
        self.length as usize == text.len() && capture.windows(end.len()).any(|window| window == end)
    }
}

/// What a program's capture shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// RDMA WRITEs of one packet.
    pub writes: Vec<Write>,
    /// Acknowledgements.
    pub acknowledged: usize,
    /// The PSNs of NAKs that say "remote access error" (IBTA 9.7.5.2.4): those of the requests that they refuse.
    refused: Vec<Psn>,
}

impl Seen {
    /// Looks at the packets of a capture.
    pub fn of<'a>(packets: impl IntoIterator<Item = &'a DecodedPacket>) -> Self {
        let mut seen = Self::default();
        for packet in packets {
            let Content::Packet { headers, .. } = &packet.content else { continue };
            match (headers.opcode, headers.aeth.kind()) {
                (Opcode::RcWriteOnly, _) => seen.writes.push(Write {
                    va: headers.reth.va,
                    length: headers.reth.length,
                    psn: headers.psn,
                    icrc: packet.icrc.map_or(0, |icrc| icrc.found),
                }),
                (Opcode::RcAcknowledge, Syndrome::Ack { .. }) => seen.acknowledged += 1,
                (Opcode::RcAcknowledge, Syndrome::Nak(NakCode::RemoteAccessError)) => {
                    seen.refused.push(headers.psn);
                }
                _ => {}
            }
        }
        seen
    }

    /// The WRITEs that were refused because of their key.
    pub fn refused(&self) -> impl Iterator<Item = &Write> {
        self.writes.iter().filter(|write| self.refused.contains(&write.psn))
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

    #[test]
    fn a_write_carries_what_stands_in_front_of_its_icrc() {
        let write = Write { va: 0, length: 5, psn: Psn::new(1), icrc: 0x0403_0201 };
        let capture = b"hello\0\0\0\x01\x02\x03\x04 howdy\0\0\0\x05\x02\x03\x04";
        assert!(write.carries(b"hello", capture));
        assert!(!write.carries(b"howdy", capture), "another packet carries it");
        assert!(!write.carries(b"hell", capture) && !write.carries(b"hello", b""));
    }
}
