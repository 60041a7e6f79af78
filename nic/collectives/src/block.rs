//! The packets of an in-network reduction: what hosts and switches write in front of the numbers of a block.
//!
//! ```text
//! bytes 0-1    0x5243
//! byte 2       1: a contribution, on its way up; 2: a result, on its way down
//! byte 3       bytes of a number, 4 or 8
//! bytes 4-7    group
//! bytes 8-11   block
//! bytes 12-13  numbers
//! bytes 14-15  operation; 1: a sum
//! ```
//!
//! All fields are big-endian. The numbers follow, little-endian. The format is our own: switches that do this have others,
//! which are not published.

use crate::plan::Element;

/// The bytes of the header.
pub const BLOCK_HEADER: usize = 16;

const MAGIC: [u8; 2] = [0x52, 0x43];
const SUM: u16 = 1;

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Numbers of a host, or the sum of those of several, on their way to the root.
    Contribution,
    /// The sum of all, on its way to the hosts.
    Result,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// What the packet carries.
    pub kind: BlockKind,
    /// Its numbers.
    pub element: Element,
    /// The group that computes together.
    pub group: u32,
    /// The number of the block: all blocks of a group are counted, from the first operation on.
    pub block: u32,
    /// How many numbers there are.
    pub count: u16,
}

impl BlockHeader {
    /// The header in front of a payload, and the numbers. `None`: it is no packet of a reduction, or a broken one.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (header, numbers) = payload.split_first_chunk::<BLOCK_HEADER>()?;
        let [m0, m1, kind, size, g0, g1, g2, g3, b0, b1, b2, b3, c0, c1, o0, o1] = *header;
        let kind = match kind {
            1 => BlockKind::Contribution,
            2 => BlockKind::Result,
            _ => return None,
        };
        let element = match size {
            4 => Element::U32,
            8 => Element::U64,
            _ => return None,
        };
        let count = u16::from_be_bytes([c0, c1]);
        let is_ours = [m0, m1] == MAGIC && u16::from_be_bytes([o0, o1]) == SUM;
        let header = Self {
            kind,
            element,
            group: u32::from_be_bytes([g0, g1, g2, g3]),
            block: u32::from_be_bytes([b0, b1, b2, b3]),
            count,
        };
        (is_ours && numbers.len() == usize::from(count) * element.size()).then_some((header, numbers))
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; BLOCK_HEADER] {
        let mut bytes = [0; BLOCK_HEADER];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2] = if self.kind == BlockKind::Contribution { 1 } else { 2 };
        bytes[3] = self.element.size() as u8;
        bytes[4..8].copy_from_slice(&self.group.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.block.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.count.to_be_bytes());
        bytes[14..].copy_from_slice(&SUM.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_nothing_else_is() {
        let header = BlockHeader {
            kind: BlockKind::Result,
            element: Element::U32,
            group: 7,
            block: 0x0102_0304,
            count: 2,
        };
        let mut bytes = header.emit().to_vec();
        assert_eq!(bytes, [0x52, 0x43, 2, 4, 0, 0, 0, 7, 1, 2, 3, 4, 0, 2, 0, 1]);
        bytes.extend([9; 8]);
        assert_eq!(BlockHeader::parse(&bytes), Some((header, &[9; 8][..])));
        assert_eq!(BlockHeader::parse(&bytes[..23]), None, "a number is missing");
        for at in [0, 1, 2, 3, 12, 13, 14, 15] {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            assert_eq!(BlockHeader::parse(&other), None, "byte {at}");
        }
        assert_eq!(BlockHeader::parse(&[]), None);
    }
}
