//! The flow control packet.

use super::MASK;
use crate::vl::Vl;

/// The operation of a flow control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The link is up.
    Normal,
    /// The link is coming up.
    Init,
    /// The link is up, and a packet waits for credit. InfiniBand reserves this value (2). It is our extension, for
    /// [`Pool`](super::Pool), between rnic peers only.
    Stalled,
    /// The link is up, and the sender obeys a limit that was lowered: it sent everything under the old limit before
    /// this packet. The FCCL of this packet repeats the lowered limit and sets no limit for the other direction.
    /// InfiniBand reserves this value (3). It is our extension, like [`Op::Stalled`].
    Yielded,
}

/// A flow control packet: the sender's count, and the limit for the other direction of the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControlPacket {
    /// The operation.
    pub op: Op,
    /// The virtual lane.
    pub vl: Vl,
    /// Flow Control Total Blocks Sent: the blocks that this end has sent.
    pub fctbs: u16,
    /// Flow Control Credit Limit: the count up to which the other end may go; in [`Op::Yielded`], the count up to
    /// which this end goes.
    pub fccl: u16,
}

/// Why four bytes are not a flow control packet to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedUpdate {
    /// The operation is reserved; ignore the packet.
    #[error("operation {0} of a flow control packet is reserved")]
    ReservedOp(u8),
    /// VL15 has no credits.
    #[error("VL15 has no flow control")]
    ManagementLane,
}

impl FlowControlPacket {
    /// Length of the output of [`FlowControlPacket::encode`]. On an InfiniBand link a CRC of two bytes follows; here
    /// that is left to the layer that carries the packet.
    pub const LEN: usize = 4;

    /// Encodes the packet for the wire: operation (4 bits) and FCTBS (12), lane (4) and FCCL (12), big-endian. (The
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
