//! Header layouts: zero-copy views of bytes with no alignment requirement.
//!
//! Every struct here is exactly as long as its header and may be at any address. Reserved bits are read as received
//! and written as zero (IBTA C9-6). The `*Fields` structs hold the same headers as plain values.

#![allow(
    unnameable_types,
    reason = "zerocopy's derive makes a helper type inside the expansion of our own macro"
)]

use crate::ids::{PKey, Psn, QKey, Qpn};
use crate::wire::syndrome::Syndrome;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const fn u24(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

const fn u24_bytes(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

/// Base transport header, 12 bytes, in every packet (IBTA 9.2).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    /// Solicited event (1 bit), MigReq (1), pad count (2), transport header version (4).
    flags: u8,
    pkey: U16,
    /// FECN (1), BECN (1), reserved (6). Routers may change this byte, so the ICRC does not cover it.
    ecn: u8,
    dest_qpn: [u8; 3],
    /// AckReq (1), reserved (7).
    ack: u8,
    psn: [u8; 3],
}

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const PAD_MASK: u8 = 0x03;
const TVER_MASK: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

const fn flag(on: bool, bit: u8) -> u8 {
    if on { bit } else { 0 }
}

impl Bth {
    /// The opcode byte, which may be unknown.
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        self.opcode
    }

    /// Solicited event: whether the completion of this message requests an event at the receiver.
    #[must_use]
    pub const fn solicited(&self) -> bool {
        self.flags & SOLICITED != 0
    }

    /// The path migration state bit.
    #[must_use]
    pub const fn mig_req(&self) -> bool {
        self.flags & MIG_REQ != 0
    }

    /// Number of zero bytes after the payload, 0 to 3.
    #[must_use]
    pub const fn pad(&self) -> u8 {
        (self.flags >> PAD_SHIFT) & PAD_MASK
    }

    /// The transport header version; only 0 exists.
    #[must_use]
    pub const fn tver(&self) -> u8 {
        self.flags & TVER_MASK
    }

    /// The partition.
    #[must_use]
    pub fn pkey(&self) -> PKey {
        PKey(self.pkey.get())
    }

    /// Forward congestion notification. RoCEv2 uses the ECN bits of the IP header instead.
    #[must_use]
    pub const fn fecn(&self) -> bool {
        self.ecn & FECN != 0
    }

    /// Backward congestion notification, set in every CNP.
    #[must_use]
    pub const fn becn(&self) -> bool {
        self.ecn & BECN != 0
    }

    /// The destination queue pair.
    #[must_use]
    pub const fn dest_qpn(&self) -> Qpn {
        Qpn::new(u24(self.dest_qpn))
    }

    /// Whether the sender asks for an acknowledgement.
    #[must_use]
    pub const fn ack_req(&self) -> bool {
        self.ack & ACK_REQ != 0
    }

    /// The packet sequence number.
    #[must_use]
    pub const fn psn(&self) -> Psn {
        Psn::new(u24(self.psn))
    }
}

/// The values of a [`Bth`]; the transport header version is always 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct BthFields {
    pub(super) opcode: u8,
    pub(super) solicited: bool,
    pub(super) mig_req: bool,
    pub(super) pad: u8,
    pub(super) pkey: PKey,
    pub(super) fecn: bool,
    pub(super) becn: bool,
    pub(super) dest_qpn: Qpn,
    pub(super) ack_req: bool,
    pub(super) psn: Psn,
}

impl From<BthFields> for Bth {
    /// In words, which take a store each, and are loaded as such for the ICRC: after stores of bytes that would wait.
    fn from(f: BthFields) -> Self {
        let flags =
            flag(f.solicited, SOLICITED) | flag(f.mig_req, MIG_REQ) | ((f.pad & PAD_MASK) << PAD_SHIFT);
        let ecn = flag(f.fecn, FECN) | flag(f.becn, BECN);
        let words: [U32; 3] = [
            (u32::from(f.opcode) << 24 | u32::from(flags) << 16 | u32::from(f.pkey.0)).into(),
            (u32::from(ecn) << 24 | f.dest_qpn.value()).into(),
            (u32::from(flag(f.ack_req, ACK_REQ)) << 24 | f.psn.value()).into(),
        ];
        zerocopy::transmute!(words)
    }
}

/// RDMA extended transport header, 16 bytes: the destination of a WRITE or the source of a READ (IBTA 9.3).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Reth {
    va: U64,
    rkey: U32,
    length: U32,
}

/// The values of a [`Reth`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RethFields {
    /// First remote address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub length: u32,
}

impl Reth {
    /// The values.
    #[must_use]
    pub fn fields(&self) -> RethFields {
        RethFields { va: self.va.get(), rkey: self.rkey.get(), length: self.length.get() }
    }
}

impl From<RethFields> for Reth {
    fn from(f: RethFields) -> Self {
        Self { va: f.va.into(), rkey: f.rkey.into(), length: f.length.into() }
    }
}

/// Acknowledge extended transport header, 4 bytes (IBTA 9.3).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Aeth {
    syndrome: u8,
    msn: [u8; 3],
}

/// The values of an [`Aeth`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AethFields {
    /// The syndrome byte, see [`Syndrome`].
    pub syndrome: u8,
    /// Message sequence number: number of messages that the responder has completed, modulo 2^24.
    pub msn: u32,
}

impl AethFields {
    /// The decoded syndrome.
    #[must_use]
    pub const fn kind(self) -> Syndrome {
        Syndrome::from_u8(self.syndrome)
    }
}

impl Aeth {
    /// The values.
    #[must_use]
    pub const fn fields(&self) -> AethFields {
        AethFields { syndrome: self.syndrome, msn: u24(self.msn) }
    }
}

impl From<AethFields> for Aeth {
    fn from(f: AethFields) -> Self {
        Self { syndrome: f.syndrome, msn: u24_bytes(f.msn) }
    }
}

/// Datagram extended transport header, 8 bytes (IBTA 9.3).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Deth {
    qkey: U32,
    reserved: u8,
    src_qpn: [u8; 3],
}

/// The values of a [`Deth`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DethFields {
    /// The key that the receiving queue pair compares with its own.
    pub qkey: QKey,
    /// The sending queue pair.
    pub src_qpn: Qpn,
}

impl Deth {
    /// The values.
    #[must_use]
    pub fn fields(&self) -> DethFields {
        DethFields { qkey: QKey(self.qkey.get()), src_qpn: Qpn::new(u24(self.src_qpn)) }
    }
}

impl From<DethFields> for Deth {
    fn from(f: DethFields) -> Self {
        Self { qkey: f.qkey.0.into(), reserved: 0, src_qpn: u24_bytes(f.src_qpn.value()) }
    }
}

/// Atomic extended transport header, 28 bytes (IBTA 9.3). Operands are big-endian on the wire and in host byte
/// order in memory.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct AtomicEth {
    va: U64,
    rkey: U32,
    swap_add: U64,
    compare: U64,
}

/// The values of an [`AtomicEth`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomicFields {
    /// Remote address, a multiple of 8.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// The value to store, or to add.
    pub swap_add: u64,
    /// The value to compare with; unused in a fetch and add.
    pub compare: u64,
}

impl AtomicEth {
    /// The values.
    #[must_use]
    pub fn fields(&self) -> AtomicFields {
        AtomicFields {
            va: self.va.get(),
            rkey: self.rkey.get(),
            swap_add: self.swap_add.get(),
            compare: self.compare.get(),
        }
    }
}

impl From<AtomicFields> for AtomicEth {
    fn from(f: AtomicFields) -> Self {
        Self { va: f.va.into(), rkey: f.rkey.into(), swap_add: f.swap_add.into(), compare: f.compare.into() }
    }
}

/// Atomic acknowledge extended transport header, 8 bytes: the value before the operation (IBTA 9.3).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct AtomicAckEth {
    original: U64,
}

impl AtomicAckEth {
    /// A header with this original value.
    #[must_use]
    pub const fn new(original: u64) -> Self {
        Self { original: U64::new(original) }
    }

    /// The value before the operation.
    #[must_use]
    pub fn original(&self) -> u64 {
        self.original.get()
    }
}

/// Defines a header that consists of one 32-bit big-endian number.
macro_rules! word_header {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            word: U32,
        }

        impl $name {
            /// A header that carries `value`.
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self { word: U32::new(value) }
            }

            /// The 32 bits as a number.
            #[must_use]
            pub fn value(&self) -> u32 {
                self.word.get()
            }
        }
    };
}

word_header! {
    /// Immediate data, 4 bytes, as a big-endian number here. Programs that treat it as bytes get the bytes on the
    /// wire (IBTA 9.3).
    ImmDt
}
word_header! {
    /// Invalidate extended transport header, 4 bytes: the remote key to invalidate (IBTA 9.3).
    Ieth
}
word_header! {
    /// XRC extended transport header, 4 bytes: 8 reserved bits and the number of a shared receive queue
    /// (IBTA annex A14).
    XrcEth
}
word_header! {
    /// Flush extended transport header, 4 bytes (IBTA A19, memory placement extensions; Linux rxe_hdr.h).
    Feth
}

impl XrcEth {
    /// The bits of the queue number; the bits above are reserved.
    pub(crate) const SRQN_MASK: u32 = 0xff_ffff;

    /// The number of the shared receive queue, 24 bits.
    #[must_use]
    pub fn srqn(&self) -> u32 {
        self.value() & Self::SRQN_MASK
    }
}

/// The values of a [`Feth`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FethFields {
    /// Placement type, 4 bits: bit 0 asks for global visibility, bit 1 for persistence.
    pub placement: u8,
    /// Selectivity level, 2 bits: 0 flushes a range, 1 the whole memory region.
    pub selectivity: u8,
}

impl FethFields {
    /// Placement bit: earlier writes become visible to all observers.
    pub const GLOBAL: u8 = 1;
    /// Placement bit: earlier writes survive a loss of power.
    pub const PERSISTENT: u8 = 2;
}

impl Feth {
    /// The values.
    #[must_use]
    pub fn fields(&self) -> FethFields {
        let [.., low] = self.value().to_be_bytes();
        FethFields { placement: low & 0x0f, selectivity: (low >> 4) & 0x03 }
    }
}

impl From<FethFields> for Feth {
    fn from(f: FethFields) -> Self {
        Self::new(u32::from(f.placement & 0x0f) | u32::from(f.selectivity & 0x03) << 4)
    }
}

/// Global route header, 40 bytes, with the layout of an IPv6 header (IBTA 8.3). RoCEv2 does not send it, but puts
/// it in the first 40 bytes of every datagram that a UD queue pair receives.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Grh {
    /// Version (4 bits), traffic class (8), flow label (20).
    version_class_flow: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    sgid: [u8; 16],
    dgid: [u8; 16],
}

/// Length of a [`Grh`] in bytes.
pub const GRH_LEN: usize = size_of::<Grh>();

impl Grh {
    /// A header with version 6.
    #[must_use]
    pub fn new(
        traffic_class: u8,
        flow_label: u32,
        payload_len: u16,
        next_header: u8,
        hop_limit: u8,
        sgid: [u8; 16],
        dgid: [u8; 16],
    ) -> Self {
        let word = 6 << 28 | u32::from(traffic_class) << 20 | (flow_label & 0xf_ffff);
        Self {
            version_class_flow: word.into(),
            payload_len: payload_len.into(),
            next_header,
            hop_limit,
            sgid,
            dgid,
        }
    }

    /// The version: 6.
    #[must_use]
    pub fn version(&self) -> u8 {
        (self.version_class_flow.get() >> 28) as u8
    }

    /// Traffic class: DSCP (6 bits) and ECN (2).
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// Flow label, 20 bits.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0xf_ffff
    }

    /// Number of bytes after this header.
    #[must_use]
    pub fn payload_len(&self) -> u16 {
        self.payload_len.get()
    }

    /// The next protocol; 17 is UDP, 0x1b an InfiniBand transport header.
    #[must_use]
    pub const fn next_header(&self) -> u8 {
        self.next_header
    }

    /// The number of further routers that the packet may pass.
    #[must_use]
    pub const fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Source address.
    #[must_use]
    pub const fn sgid(&self) -> [u8; 16] {
        self.sgid
    }

    /// Destination address.
    #[must_use]
    pub const fn dgid(&self) -> [u8; 16] {
        self.dgid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_the_sizes_of_the_specification() {
        assert_eq!(size_of::<Bth>(), 12);
        assert_eq!(size_of::<Reth>(), 16);
        assert_eq!(size_of::<Aeth>(), 4);
        assert_eq!(size_of::<Deth>(), 8);
        assert_eq!(size_of::<AtomicEth>(), 28);
        assert_eq!(size_of::<AtomicAckEth>(), 8);
        assert_eq!(size_of::<ImmDt>(), 4);
        assert_eq!(size_of::<Ieth>(), 4);
        assert_eq!(size_of::<XrcEth>(), 4);
        assert_eq!(size_of::<Feth>(), 4);
        assert_eq!(GRH_LEN, 40);
    }

    #[test]
    fn every_bth_bit_has_its_place() {
        let bytes = [0x11, 0xf0, 0x12, 0x34, 0xc0, 0xab, 0xcd, 0xef, 0x80, 0x01, 0x02, 0x03];
        let bth = Bth::read_from_bytes(&bytes).unwrap();
        assert_eq!((bth.opcode(), bth.pad(), bth.tver()), (0x11, 3, 0));
        assert!(bth.solicited() && bth.mig_req() && bth.fecn() && bth.becn() && bth.ack_req());
        assert_eq!(bth.pkey(), PKey(0x1234));
        assert_eq!(bth.dest_qpn(), Qpn::new(0xab_cdef));
        assert_eq!(bth.psn(), Psn::new(0x01_0203));
    }

    #[test]
    fn feth_and_xrceth_ignore_reserved_bits() {
        let feth = Feth::new(0xffff_ff13).fields();
        assert_eq!((feth.placement, feth.selectivity), (FethFields::GLOBAL | FethFields::PERSISTENT, 1));
        assert_eq!(Feth::from(feth).value(), 0x13);
        assert_eq!(XrcEth::new(0xff00_0007).srqn(), 7);
    }

    #[test]
    fn grh_splits_its_first_word() {
        let grh = Grh::new(0xb9, 0x1_2345, 300, 17, 64, [7; 16], [9; 16]);
        assert_eq!(grh.as_bytes()[..8], [0x6b, 0x91, 0x23, 0x45, 0x01, 0x2c, 17, 64]);
        assert_eq!((grh.version(), grh.traffic_class(), grh.flow_label()), (6, 0xb9, 0x1_2345));
        assert_eq!((grh.payload_len(), grh.next_header(), grh.hop_limit()), (300, 17, 64));
        assert_eq!((grh.sgid(), grh.dgid()), ([7; 16], [9; 16]));
    }
}
