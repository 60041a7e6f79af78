//! What a port counts, and why it drops.

use qp::queue_pair::PacketDrop;
use qp::wire::WireError;

/// Declares the reasons once: the enum, its names and the counters.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// Why a packet from the wire had no effect. Every packet that arrives is either handled or counted under
        /// exactly one of these.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason { $($(#[doc = $doc])* $variant,)* }

        impl DropReason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name of its counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// Shorter than its headers say, or than any packet.
    BadLength = "dropped_bad_len",
    /// Transport version other than 0.
    BadVersion = "dropped_bad_tver",
    /// An opcode that RoCEv2 does not have.
    BadOpcode = "dropped_bad_opcode",
    /// The ICRC does not match, whatever the IPv4 identification.
    BadIcrc = "dropped_bad_icrc",
    /// No queue pair has the destination number.
    NoQp = "dropped_no_qp",
    /// A queue pair of another service than the opcode's.
    WrongService = "dropped_wrong_service",
    /// The queue pair is in a state that takes no packets.
    BadState = "dropped_bad_state",
    /// The packet's partition key does not match.
    BadPkey = "dropped_bad_pkey",
    /// The datagram's Q_Key does not match.
    BadQkey = "dropped_bad_qkey",
    /// The packet does not come from the address that the queue pair is connected to.
    BadAddress = "dropped_bad_addr",
    /// A duplicate of a READ or atomic whose answer is not kept any more.
    StaleDuplicate = "dropped_stale_duplicate",
    /// A request ahead of a gap, after the NAK for the gap was sent.
    OutOfSequence = "dropped_out_of_sequence",
    /// A response that no outstanding request explains.
    Ghost = "dropped_ghost_response",
    /// An acknowledgement with a reserved syndrome.
    ReservedSyndrome = "dropped_reserved_syndrome",
    /// A datagram that was cut short by the receive buffer.
    Truncated = "dropped_truncated",
}

impl From<WireError> for DropReason {
    fn from(error: WireError) -> Self {
        match error {
            WireError::UnsupportedVersion(_) => Self::BadVersion,
            WireError::UnknownOpcode(_) => Self::BadOpcode,
            _ => Self::BadLength,
        }
    }
}

impl From<PacketDrop> for DropReason {
    fn from(drop: PacketDrop) -> Self {
        match drop {
            PacketDrop::State => Self::BadState,
            PacketDrop::Service => Self::WrongService,
            PacketDrop::StaleDuplicate => Self::StaleDuplicate,
            PacketDrop::OutOfSequence => Self::OutOfSequence,
            PacketDrop::Ghost => Self::Ghost,
            PacketDrop::ReservedSyndrome => Self::ReservedSyndrome,
        }
    }
}

/// Counters of a port that belong to no queue pair.
#[derive(Clone, Debug)]
pub struct PortCounters {
    drops: [u64; DropReason::ALL.len()],
    /// Packets received, whatever became of them.
    pub rx_packets: u64,
    /// Bytes received, BTH to ICRC.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent, BTH to ICRC.
    pub tx_bytes: u64,
    /// Packets whose ICRC is right only for an IPv4 identification that had to be solved for: the check is then
    /// 16 bits strong.
    pub icrc_solved: u64,
    /// Packets that arrived with the ECN field saying "congestion experienced".
    pub rx_ce_packets: u64,
    /// Times that a queue pair waited because the peer's window was full.
    pub window_stalls: u64,
}

impl Default for PortCounters {
    fn default() -> Self {
        Self {
            drops: [0; DropReason::ALL.len()],
            rx_packets: 0,
            rx_bytes: 0,
            tx_packets: 0,
            tx_bytes: 0,
            icrc_solved: 0,
            rx_ce_packets: 0,
            window_stalls: 0,
        }
    }
}

impl PortCounters {
    /// Counts a dropped packet.
    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Packets dropped for one reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Packets dropped, for any reason.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Every counter with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("rx_packets", self.rx_packets),
            ("rx_bytes", self.rx_bytes),
            ("tx_packets", self.tx_packets),
            ("tx_bytes", self.tx_bytes),
            ("icrc_solved", self.icrc_solved),
            ("rx_ce_packets", self.rx_ce_packets),
            ("window_stalls", self.window_stalls),
        ];
        own.into_iter().chain(DropReason::ALL.iter().map(|r| (r.name(), self.dropped(*r))))
    }
}
