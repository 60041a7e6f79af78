//! Wire formats of RoCEv2: everything between the UDP header and the end of the datagram.
//!
//! ```text
//! | BTH 12 | extension headers, as the opcode says | payload | pad 0..3 | ICRC 4 |
//! ```
//!
//! There is one type for each direction. [`Packet`] is a checked view of received bytes: once created, its
//! accessors cannot fail. [`Headers`] holds the values of a packet to be sent, and writes exactly the headers that
//! its opcode requires. Both use the table of opcode properties ([`OpcodeInfo`]).

pub mod control;
pub mod headers;
pub mod icrc;
pub mod ip_header;
pub mod mad;
pub mod opcode;
pub mod packet;
pub mod pretty;
pub mod selective;
pub mod syndrome;
pub mod telemetry;

pub use control::{PauseTimes, PortMessage};
pub use headers::{
    Aeth, AethFields, AtomicAckEth, AtomicEth, AtomicFields, Bth, Deth, DethFields, Feth, FethFields, Grh,
    Ieth, ImmDt, Reth, RethFields, XrcEth,
};
pub use icrc::{Flow, IcrcVerdict, IdentSolver};
pub use ip_header::IpHeader;
pub use opcode::{Extra, HeaderSet, Opcode, OpcodeInfo, Operation, Position, Transport};
pub use packet::{Headers, ICRC_LEN, Packet, WireError, pad_len};
pub use syndrome::{CREDITS_UNLIMITED, NakCode, Syndrome, decode_credits, encode_credits, rnr_delay};

/// The UDP destination port of RoCEv2, assigned by IANA (IBTA annex A17).
pub const UDP_PORT: u16 = 4791;
