//! The flow control packet.

use super::MASK;
use crate::vl::Vl;

/// What a flow control packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The link is up.
    Normal,
    /// The link is coming up.
    Init,
    /// The link is up, and a packet waits for credit. InfiniBand reserves this value (2): our extension, for
    /// [`Pool`](super::Pool), between rnic peers only.
    Stalled,
    /// The link is up, and the sender obeys a limit that was lowered: all that it sent before it did was sent before this
    /// packet, whose FCCL repeats that limit and is none for the other direction. InfiniBand reserves this value (3):
    /// our extension, as [`Op::Stalled`].
    Yielded,
}

/// A flow control packet: the sender's count, and the limit for the other direction of the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControlPacket {
    /// What it is for.
    pub op: Op,
    /// The virtual lane.
    pub vl: Vl,
    /// Flow Control Total Blocks Sent: what this end has sent.
    pub fctbs: u16,
    /// Flow Control Credit Limit: up to which count the other end may go; of [`Op::Yielded`], up to which this end goes.
    pub fccl: u16,
}

/// Why four bytes are no flow control packet to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedUpdate {
    /// An operation that is reserved; to be ignored.
    #[error("operation {0} of a flow control packet is reserved")]
    ReservedOp(u8),
    /// VL15 has no credits.
    #[error("VL15 has no flow control")]
    ManagementLane,
}

impl FlowControlPacket {
    /// Length of what [`FlowControlPacket::encode`] gives. On an InfiniBand link a CRC of two bytes follows; here that
    /// is left to what carries the packet.
    pub const LEN: usize = 4;

    /// The packet as it goes on the wire: operation (4 bits) and FCTBS (12), lane (4) and FCCL (12), big-endian. (The
    /// order of the fields is that of Wireshark's dissector.)
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::LEN] {
        let op = match self.op {
            Op::Normal => 0,
            Op::Init => 1 << 12,
            Op::Stalled => 2 << 12,
            Op::Yielded => 3 << 12,
        };
        let [a, b] = (op | (self.fctbs & MASK)).to_be_bytes();
        let [c, d] = (((self.vl.number() as u16) << 12) | (self.fccl & MASK)).to_be_bytes();
        [a, b, c, d]
    }

    /// Reads a packet.
    ///
    /// # Errors
    ///
    /// The operation is reserved, or the lane is VL15.
    pub const fn decode(bytes: [u8; Self::LEN]) -> Result<Self, MalformedUpdate> {
        let [a, b, c, d] = bytes;
        let op = match a >> 4 {
            0 => Op::Normal,
            1 => Op::Init,
            2 => Op::Stalled,
            3 => Op::Yielded,
            reserved => return Err(MalformedUpdate::ReservedOp(reserved)),
        };
        match Vl::new(c >> 4) {
            Some(vl) if !vl.is_management() => Ok(Self {
                op,
                vl,
                fctbs: u16::from_be_bytes([a, b]) & MASK,
                fccl: u16::from_be_bytes([c, d]) & MASK,
            }),
            _ => Err(MalformedUpdate::ManagementLane),
        }
    }
}
