//! How often acknowledgements are asked for, how READs are cut, how long to wait, and what is sent again.

/// Choices that the protocol leaves to an implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The requester asks for an acknowledgement at least once in this many request packets, and at the end of each
    /// message.
    pub ack_interval: u32,
    /// A READ is requested in pieces of at most this many bytes, so that the responses in flight fit into a socket
    /// buffer. Responses are not acknowledged, so only the requester can bound them. The peer sees each piece as a
    /// separate READ. 0: never split. Where the buffer is known to be larger than a stock one, pieces are
    /// [larger](super::QueuePair::set_read_doublings).
    pub read_chunk: u32,
    /// The MigReq bit of outgoing packets. Linux rxe sends 0, hardware 1; both accept either.
    pub mig_req: bool,
    /// Whether acknowledgements advertise the number of posted receives, and the peer's advertisements are obeyed
    /// (end-to-end credits, IBTA 9.7.7.2). A peer that advertises none (code 31, used by Linux rxe and by queue
    /// pairs with a shared receive queue) is not limited.
    pub e2e_credits: bool,
    /// Whether the acknowledgement timeout follows from how long answers take. The attribute `timeout` is then the longest wait
    /// and not the only one; waits that are shorter cost no retry. Hardware has this as an option, too (NVIDIA: adaptive
    /// retransmission).
    pub adaptive_timeout: bool,
    /// Whether lost packets are repeated alone. The port has to offer it; towards peers that do not, the queue pair goes on as
    /// without ([`set_selective_peer`](super::QueuePair::set_selective_peer)). The acknowledgement timeout is then adaptive, too.
    pub selective_repeat: bool,
    /// The greatest number of PSNs in flight; a READ may exceed it. IRN bounds it by the bandwidth-delay product (SIGCOMM
    /// 2018). 0: as many as the protocol allows, and with selective repeat 1024.
    pub max_in_flight: u32,
    /// With selective repeat, a packet counts as lost when more than so many that were sent later have arrived. 0 suits a network
    /// that keeps the order, where the number grows for a while if packets are found to overtake one another; one that sprays
    /// packets over its paths needs as many as overtake one.
    pub reorder_tolerance: u32,
}

impl Tuning {
    /// The default size of the pieces of a READ, where nothing is known of the buffer that the responses need: 32 packets of
    /// 4 KiB, so that two pieces in flight fill less than a stock socket buffer.
    pub const READ_CHUNK: u32 = 128 << 10;
}

impl Default for Tuning {
    fn default() -> Self {
        // 32 packets are two full trains of 4 KiB packets and 2/5 of a stock socket buffer. Acknowledging every
        // train would cost the sender more than it gains from the window opening earlier.
        Self {
            ack_interval: 32,
            read_chunk: Self::READ_CHUNK,
            mig_req: false,
            e2e_credits: true,
            adaptive_timeout: false,
            selective_repeat: true,
            max_in_flight: 0,
            reorder_tolerance: 0,
        }
    }
}
