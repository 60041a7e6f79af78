//! Whole packets: a view of received ones, and the headers of those to send.

use crate::ids::{PKey, Psn, Qpn};
use crate::wire::headers::{
    Aeth, AethFields, AtomicAckEth, AtomicEth, AtomicFields, Bth, BthFields, Deth, DethFields, Feth,
    FethFields, Ieth, ImmDt, Reth, RethFields, XrcEth,
};
use crate::wire::opcode::{BTH_LEN, HeaderSet, Opcode, OpcodeInfo};
use thiserror::Error;
use zerocopy::network_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the invariant CRC at the end of every packet, in bytes.
pub const ICRC_LEN: usize = 4;

/// Number of zero bytes after a payload of this length, so that the packet is a multiple of 4 bytes.
#[must_use]
pub const fn pad_len(payload: usize) -> usize {
    payload.wrapping_neg() & 3
}

/// Why bytes are not a RoCEv2 packet. Such a packet is dropped and counted, never answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WireError {
    /// The packet is too short for the headers of its opcode and the ICRC.
    #[error("a packet of {len} bytes is too short; its headers and the ICRC take {needed}")]
    TooShort {
        /// Length of the packet in bytes.
        len: usize,
        /// Minimum length of the packet in bytes.
        needed: usize,
    },
    /// The packet length is not a multiple of 4 bytes.
    #[error("packet length of {len} bytes is not a multiple of 4")]
    Misaligned {
        /// Length of the packet in bytes.
        len: usize,
    },
    /// The transport header version is not 0.
    #[error("transport header version {0} is not supported; only 0 exists")]
    UnsupportedVersion(u8),
    /// The opcode does not exist in RoCEv2.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// The pad count exceeds the number of bytes between the headers and the ICRC.
    #[error("{pad} pad bytes, but only {available} bytes between the headers and the ICRC")]
    PadExceedsPayload {
        /// The pad count of the BTH.
        pad: u8,
        /// Bytes between the headers and the ICRC.
        available: usize,
    },
    /// The opcode carries no payload, but there are bytes between the headers and the ICRC.
    #[error("{len} bytes of payload in a packet whose opcode carries none")]
    PayloadNotAllowed {
        /// Number of bytes.
        len: usize,
    },
}

/// A checked view of a UDP payload: the bytes from the BTH to the ICRC.
///
/// The version, the opcode, the lengths and the padding are checked, so that no accessor can fail. The ICRC (see
/// [`icrc`](crate::wire::icrc)) and rules that depend on a queue pair are not checked.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    bth: &'a Bth,
    payload: &'a [u8],
    opcode: Opcode,
    info: &'static OpcodeInfo,
}

impl<'a> Packet<'a> {
    /// Checks the bytes and creates the view.
    ///
    /// # Errors
    ///
    /// The first rule that the bytes break. An unknown version or opcode is reported before lengths, because it
    /// makes the rest meaningless.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let too_short = |needed: usize| WireError::TooShort { len: bytes.len(), needed };
        let Ok((bth, behind_bth)) = Bth::ref_from_prefix(bytes) else {
            return Err(too_short(usize::from(BTH_LEN) + ICRC_LEN));
        };
        if bth.tver() != 0 {
            return Err(WireError::UnsupportedVersion(bth.tver()));
        }
        let opcode = Opcode::from_u8(bth.opcode()).ok_or(WireError::UnknownOpcode(bth.opcode()))?;
        let info = opcode.info_ref();
        let header_len = usize::from(info.header_len);
        let extensions = header_len - usize::from(BTH_LEN);
        let body = behind_bth
            .get(extensions..)
            .and_then(|rest| rest.split_last_chunk::<ICRC_LEN>())
            .map(|(body, _icrc)| body)
            .ok_or_else(|| too_short(header_len + ICRC_LEN))?;
        if !bytes.len().is_multiple_of(4) {
            return Err(WireError::Misaligned { len: bytes.len() });
        }
        let pad = bth.pad();
        let payload = body
            .len()
            .checked_sub(usize::from(pad))
            .map(|len| &body[..len])
            .ok_or(WireError::PadExceedsPayload { pad, available: body.len() })?;
        if !info.has_payload && !body.is_empty() {
            return Err(WireError::PayloadNotAllowed { len: body.len() });
        }
        Ok(Self { bytes, bth, payload, opcode, info })
    }

    /// The opcode.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The properties of the opcode.
    #[must_use]
    pub const fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    /// The base transport header.
    #[must_use]
    pub const fn bth(&self) -> &'a Bth {
        self.bth
    }

    /// Solicited event: whether the completion of this message requests an event at the receiver.
    #[must_use]
    pub const fn solicited(&self) -> bool {
        self.bth.solicited()
    }

    /// The path migration state bit.
    #[must_use]
    pub const fn mig_req(&self) -> bool {
        self.bth.mig_req()
    }

    /// Number of pad bytes after the payload.
    #[must_use]
    pub const fn pad(&self) -> u8 {
        self.bth.pad()
    }

    /// The transport header version: always 0 in a valid packet.
    #[must_use]
    pub const fn tver(&self) -> u8 {
        self.bth.tver()
    }

    /// The partition.
    #[must_use]
    pub fn pkey(&self) -> PKey {
        self.bth.pkey()
    }

    /// Forward congestion notification.
    #[must_use]
    pub const fn fecn(&self) -> bool {
        self.bth.fecn()
    }

    /// Backward congestion notification.
    #[must_use]
    pub const fn becn(&self) -> bool {
        self.bth.becn()
    }

    /// The destination queue pair.
    #[must_use]
    pub const fn dest_qpn(&self) -> Qpn {
        self.bth.dest_qpn()
    }

    /// Whether the sender asks for an acknowledgement.
    #[must_use]
    pub const fn ack_req(&self) -> bool {
        self.bth.ack_req()
    }

    /// The packet sequence number.
    #[must_use]
    pub const fn psn(&self) -> Psn {
        self.bth.psn()
    }

    /// The view of an extension header; `None` if the opcode does not have it.
    fn extension<T>(&self, which: HeaderSet) -> Option<&'a T>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let offset = self.info.offset_of(which)?;
        let (header, _) = T::ref_from_prefix(self.bytes.get(offset..)?).ok()?;
        Some(header)
    }

    /// The RDMA header of a WRITE, a READ request, a FLUSH or an ATOMIC_WRITE.
    #[must_use]
    pub fn reth(&self) -> Option<RethFields> {
        self.extension::<Reth>(HeaderSet::RETH).map(Reth::fields)
    }

    /// The acknowledge header of a response.
    #[must_use]
    pub fn aeth(&self) -> Option<AethFields> {
        self.extension::<Aeth>(HeaderSet::AETH).map(Aeth::fields)
    }

    /// The datagram header.
    #[must_use]
    pub fn deth(&self) -> Option<DethFields> {
        self.extension::<Deth>(HeaderSet::DETH).map(Deth::fields)
    }

    /// The operands of an atomic operation.
    #[must_use]
    pub fn atomic_eth(&self) -> Option<AtomicFields> {
        self.extension::<AtomicEth>(HeaderSet::ATOMIC_ETH).map(AtomicEth::fields)
    }

    /// The value before an atomic operation.
    #[must_use]
    pub fn atomic_ack(&self) -> Option<u64> {
        self.extension::<AtomicAckEth>(HeaderSet::ATOMIC_ACK_ETH).map(AtomicAckEth::original)
    }

    /// Immediate data, as the big-endian number on the wire.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        self.extension::<ImmDt>(HeaderSet::IMM_DT).map(ImmDt::value)
    }

    /// The remote key to invalidate.
    #[must_use]
    pub fn ieth(&self) -> Option<u32> {
        self.extension::<Ieth>(HeaderSet::IETH).map(Ieth::value)
    }

    /// The shared receive queue of an XRC request.
    #[must_use]
    pub fn xrc_srqn(&self) -> Option<u32> {
        self.extension::<XrcEth>(HeaderSet::XRCETH).map(XrcEth::srqn)
    }

    /// The placement type and selectivity of a FLUSH.
    #[must_use]
    pub fn feth(&self) -> Option<FethFields> {
        self.extension::<Feth>(HeaderSet::FETH).map(Feth::fields)
    }

    /// The first half of the reserved bytes of a congestion notification, where rnic ports put a token
    /// ([`control`](super::control)).
    pub(super) fn cnp_token(&self) -> Option<u64> {
        self.extension::<U64>(HeaderSet::CNP_RESERVED).map(|token| token.get())
    }

    /// The payload without its padding.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The invariant CRC that the packet carries; little-endian on the wire.
    #[must_use]
    pub fn icrc(&self) -> u32 {
        self.bytes.last_chunk().map_or(0, |icrc| u32::from_le_bytes(*icrc))
    }

    /// All bytes, from the BTH to the ICRC.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The headers of a packet, as values.
///
/// Only the extension headers of the opcode are written; the other fields are ignored and should keep their
/// defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The opcode.
    pub opcode: Opcode,
    /// Solicited event: whether the completion of this message requests an event at the receiver.
    pub solicited: bool,
    /// The path migration state bit.
    pub mig_req: bool,
    /// The partition.
    pub pkey: PKey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// The destination queue pair.
    pub dest_qpn: Qpn,
    /// Whether to ask for an acknowledgement.
    pub ack_req: bool,
    /// The packet sequence number.
    pub psn: Psn,
    /// The datagram header.
    pub deth: DethFields,
    /// Remote address, key and length.
    pub reth: RethFields,
    /// Operands of an atomic operation.
    pub atomic: AtomicFields,
    /// The acknowledge header.
    pub aeth: AethFields,
    /// The value before an atomic operation.
    pub atomic_ack: u64,
    /// Immediate data, as the big-endian number on the wire.
    pub imm: u32,
    /// The remote key to invalidate.
    pub ieth: u32,
    /// The shared receive queue of an XRC request, 24 bits.
    pub xrc_srqn: u32,
    /// The placement type and selectivity of a FLUSH.
    pub feth: FethFields,
    /// The token in a congestion notification between rnic ports ([`control`](super::control)); 0 for all others.
    pub token: u64,
}

impl Headers {
    /// Headers in the default partition, with all flags cleared and the extension headers zero.
    #[must_use]
    pub fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            psn,
            deth: DethFields::default(),
            reth: RethFields::default(),
            atomic: AtomicFields::default(),
            aeth: AethFields::default(),
            atomic_ack: 0,
            imm: 0,
            ieth: 0,
            xrc_srqn: 0,
            feth: FethFields::default(),
            token: 0,
        }
    }

    /// A congestion notification for the peer's queue pair: PSN 0 and BECN (IBTA A17.9.3).
    #[must_use]
    pub fn cnp(dest_qpn: Qpn) -> Self {
        Self { becn: true, ..Self::new(Opcode::Cnp, dest_qpn, Psn::new(0)) }
    }

    /// The headers of a received packet.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Self {
        Self {
            opcode: packet.opcode(),
            solicited: packet.solicited(),
            mig_req: packet.mig_req(),
            pkey: packet.pkey(),
            fecn: packet.fecn(),
            becn: packet.becn(),
            dest_qpn: packet.dest_qpn(),
            ack_req: packet.ack_req(),
            psn: packet.psn(),
            deth: packet.deth().unwrap_or_default(),
            reth: packet.reth().unwrap_or_default(),
            atomic: packet.atomic_eth().unwrap_or_default(),
            aeth: packet.aeth().unwrap_or_default(),
            atomic_ack: packet.atomic_ack().unwrap_or_default(),
            imm: packet.imm().unwrap_or_default(),
            ieth: packet.ieth().unwrap_or_default(),
            xrc_srqn: packet.xrc_srqn().unwrap_or_default(),
            feth: packet.feth().unwrap_or_default(),
            token: packet.cnp_token().unwrap_or_default(),
        }
    }

    /// Length of the BTH and the extension headers in bytes.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        usize::from(self.opcode.info_ref().header_len)
    }

    /// Writes the headers of a packet with a payload of `payload_len` bytes to the start of `out`, with reserved
    /// bits set to zero, and returns their length. The caller adds the payload, its padding ([`pad_len`]) and the
    /// ICRC.
    ///
    /// # Panics
    ///
    /// Panics if `out` is shorter than [`wire_len`](Self::wire_len).
    pub fn emit(&self, out: &mut [u8], payload_len: usize) -> usize {
        let info = self.opcode.info_ref();
        let out = &mut out[..usize::from(info.header_len)];
        let bth = Bth::from(BthFields {
            opcode: self.opcode as u8,
            solicited: self.solicited,
            mig_req: self.mig_req,
            pad: pad_len(payload_len) as u8,
            pkey: self.pkey,
            fecn: self.fecn,
            becn: self.becn,
            dest_qpn: self.dest_qpn,
            ack_req: self.ack_req,
            psn: self.psn,
        });
        let at = put(out, 0, bth);
        match info.headers {
            HeaderSet::RETH => put(out, at, Reth::from(self.reth)),
            HeaderSet::AETH => put(out, at, Aeth::from(self.aeth)),
            headers if headers.is_empty() => at,
            headers => self.emit_others(headers, out, at),
        }
    }

    /// Writes extension headers at an offset, and returns the offset behind them. Few packets have others than the two that
    /// are written without this loop, in which the compiler prepares all of them first.
    #[inline(never)]
    fn emit_others(&self, headers: HeaderSet, out: &mut [u8], mut at: usize) -> usize {
        // The bits are in wire order.
        for header in headers.iter() {
            at = match header {
                HeaderSet::XRCETH => put(out, at, XrcEth::new(self.xrc_srqn & XrcEth::SRQN_MASK)),
                HeaderSet::DETH => put(out, at, Deth::from(self.deth)),
                HeaderSet::FETH => put(out, at, Feth::from(self.feth)),
                HeaderSet::RETH => put(out, at, Reth::from(self.reth)),
                HeaderSet::ATOMIC_ETH => put(out, at, AtomicEth::from(self.atomic)),
                HeaderSet::AETH => put(out, at, Aeth::from(self.aeth)),
                HeaderSet::ATOMIC_ACK_ETH => put(out, at, AtomicAckEth::new(self.atomic_ack)),
                HeaderSet::IMM_DT => put(out, at, ImmDt::new(self.imm)),
                HeaderSet::IETH => put(out, at, Ieth::new(self.ieth)),
                HeaderSet::CNP_RESERVED => put::<[U64; 2]>(out, at, [self.token.into(), 0.into()]),
                _ => at,
            };
        }
        at
    }
}

/// Writes a header at an offset, and returns the offset behind it. The length is known where it is compiled, so that this
/// is a store or two, and not a call of `memcpy`.
#[inline(always)]
fn put<H: IntoBytes + Immutable>(out: &mut [u8], at: usize, header: H) -> usize {
    let end = at + size_of::<H>();
    out[at..end].copy_from_slice(header.as_bytes());
    end
}

#[cfg(test)]
mod tests;
