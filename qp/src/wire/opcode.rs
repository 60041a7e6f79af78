//! The opcodes of RoCEv2 and their properties (IBTA 9.2.1, table of BTH opcodes).

use bitflags::bitflags;

/// The transport service that an opcode belongs to: the upper three bits of the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// RoCEv2 congestion notification, which belongs to no queue pair service (IBTA A17.9.3).
    Cnp,
    /// Messages between rnic ports, and those between their queue pairs. Opcodes whose upper two bits are 11 are
    /// manufacturer-defined (IBTA 9.2.1): another manufacturer may give them a different meaning, and some receivers fail
    /// on them. These packets are therefore sent only to peers that have identified themselves (see
    /// [`hello`](super::mad::hello)). They belong to no queue pair service.
    Rnic,
}

impl Transport {
    /// The common bits of the service's opcodes.
    const fn base(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Cnp => 0x80,
            Self::Xrc => 0xa0,
            Self::Rnic => 0xc0,
        }
    }
}

/// The operation of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Part of a SEND.
    Send,
    /// Part of an RDMA WRITE.
    Write,
    /// Requests an RDMA READ.
    ReadRequest,
    /// Part of the response to an RDMA READ, or the response to a FLUSH or ATOMIC_WRITE.
    ReadResponse,
    /// ACK, NAK or RNR NAK.
    Acknowledge,
    /// The response to an atomic operation.
    AtomicAcknowledge,
    /// Atomic compare and swap of 8 bytes.
    CompareSwap,
    /// Atomic addition to 8 bytes.
    FetchAdd,
    /// Makes earlier writes visible or persistent.
    Flush,
    /// Writes 8 bytes atomically.
    AtomicWrite,
    /// Congestion notification.
    Cnp,
    /// Link credits, between rnic ports ([`control`](super::control)).
    FlowControl,
    /// Stops or resumes priorities, between rnic ports ([`control`](super::control)).
    Pause,
    /// What a responder holds beyond a gap ([`selective`](super::selective)).
    SelectiveAck,
    /// What the path of a packet said, between queue pairs of rnic ports ([`telemetry`](super::telemetry)).
    Telemetry,
}

impl Operation {
    const fn has_payload(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::Write
                | Self::ReadResponse
                | Self::AtomicWrite
                | Self::FlowControl
                | Self::Pause
                | Self::SelectiveAck
                | Self::Telemetry
        )
    }

    const fn is_request(self) -> bool {
        self.has_psn()
            && !matches!(
                self,
                Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge | Self::SelectiveAck
            )
    }

    /// Whether the PSN field holds a sequence number of a queue pair. It is 0 in congestion notifications, has
    /// another meaning in messages between ports, and repeats that of another packet in telemetry.
    #[must_use]
    pub const fn has_psn(self) -> bool {
        !matches!(self, Self::Cnp | Self::FlowControl | Self::Pause | Self::Telemetry)
    }
}

/// The position of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    /// The first of several packets.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several packets.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message starts with this packet.
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with this packet.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Additional content of the last packet of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data, delivered in the completion.
    Imm,
    /// A key for the receiver to invalidate.
    Inv,
}

bitflags! {
    /// Extension headers. The bits are in wire order, starting with the lowest.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct HeaderSet: u16 {
        /// XRC extended transport header: the shared receive queue.
        const XRCETH = 1;
        /// Datagram extended transport header: Q_Key and source.
        const DETH = 1 << 1;
        /// Flush extended transport header.
        const FETH = 1 << 2;
        /// RDMA extended transport header: address, key, length.
        const RETH = 1 << 3;
        /// Atomic extended transport header.
        const ATOMIC_ETH = 1 << 4;
        /// Acknowledge extended transport header.
        const AETH = 1 << 5;
        /// Atomic acknowledge extended transport header: the value before the operation.
        const ATOMIC_ACK_ETH = 1 << 6;
        /// Immediate data.
        const IMM_DT = 1 << 7;
        /// Invalidate extended transport header.
        const IETH = 1 << 8;
        /// The 16 reserved bytes of a congestion notification (IBTA A17.9.3). Zero when sent, ignored when
        /// received.
        const CNP_RESERVED = 1 << 9;
    }
}

/// Sizes of the extension headers in bytes, in the order of the bits of [`HeaderSet`].
const SIZES: [u8; 10] = [4, 8, 4, 16, 28, 4, 8, 4, 4, 16];

/// Size of the base transport header in bytes.
pub(super) const BTH_LEN: u8 = 12;

impl HeaderSet {
    /// The total length of these headers in bytes.
    #[must_use]
    pub const fn wire_len(self) -> usize {
        let mut sum = 0;
        let mut i = 0;
        while i < SIZES.len() {
            if self.bits() & (1 << i) != 0 {
                sum += SIZES[i] as usize;
            }
            i += 1;
        }
        sum
    }
}

/// The properties of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// Transport and name, such as "RC WRITE_ONLY_IMM".
    pub name: &'static str,
    /// The transport service.
    pub transport: Transport,
    /// The operation of the packet.
    pub operation: Operation,
    /// The position of the packet in its message; [`Position::Only`] for messages that are always a single packet.
    pub position: Position,
    /// The extension headers after the BTH.
    pub headers: HeaderSet,
    /// Length of the BTH and the extension headers in bytes.
    pub header_len: u8,
    /// Whether a payload may follow the headers.
    pub has_payload: bool,
    /// Whether the packet goes from requester to responder.
    pub is_request: bool,
    /// Offset of each extension header in the packet, in the order of [`SIZES`]; 0 if absent.
    offsets: [u8; SIZES.len()],
}

impl OpcodeInfo {
    const fn new(
        name: &'static str,
        transport: Transport,
        operation: Operation,
        position: Position,
        headers: HeaderSet,
    ) -> Self {
        let mut offsets = [0; SIZES.len()];
        let mut end = BTH_LEN;
        let mut i = 0;
        while i < SIZES.len() {
            if headers.bits() & (1 << i) != 0 {
                offsets[i] = end;
                end += SIZES[i];
            }
            i += 1;
        }
        Self {
            name,
            transport,
            operation,
            position,
            headers,
            header_len: end,
            has_payload: operation.has_payload(),
            is_request: operation.is_request(),
            offsets,
        }
    }

    /// Offset of an extension header in the packet; `None` if the opcode does not have it.
    #[must_use]
    pub(super) const fn offset_of(&self, header: HeaderSet) -> Option<usize> {
        let index = header.bits().trailing_zeros() as usize;
        if index >= SIZES.len() || self.offsets[index] == 0 {
            None
        } else {
            Some(self.offsets[index] as usize)
        }
    }
}

/// Generates the enum and the table of its properties from one list.
macro_rules! opcodes {
    ($($byte:literal $variant:ident $name:literal $transport:ident $operation:ident $position:ident
       $($header:ident)*;)*) => {
        /// The opcode of a packet: byte 0 of the BTH.
        ///
        /// Contains all opcodes that RoCEv2 can carry, and our own ([`Transport::Rnic`]). RoCE has no reliable
        /// datagrams (IBTA annex A16).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = $name] $variant = $byte,)*
        }

        impl Opcode {
            /// All opcodes in numerical order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
        }

        static INFO: [Option<(Opcode, OpcodeInfo)>; 256] = {
            let mut table = [None; 256];
            $(table[$byte] = Some((Opcode::$variant, OpcodeInfo::new(
                $name,
                Transport::$transport,
                Operation::$operation,
                Position::$position,
                HeaderSet::empty()$(.union(HeaderSet::$header))*,
            )));)*
            table
        };
    };
}

opcodes! {
    0x00 RcSendFirst         "RC SEND_FIRST"          Rc  Send First;
    0x01 RcSendMiddle        "RC SEND_MIDDLE"         Rc  Send Middle;
    0x02 RcSendLast          "RC SEND_LAST"           Rc  Send Last;
    0x03 RcSendLastImm       "RC SEND_LAST_IMM"       Rc  Send Last                IMM_DT;
    0x04 RcSendOnly          "RC SEND_ONLY"           Rc  Send Only;
    0x05 RcSendOnlyImm       "RC SEND_ONLY_IMM"       Rc  Send Only                IMM_DT;
    0x06 RcWriteFirst        "RC WRITE_FIRST"         Rc  Write First              RETH;
    0x07 RcWriteMiddle       "RC WRITE_MIDDLE"        Rc  Write Middle;
    0x08 RcWriteLast         "RC WRITE_LAST"          Rc  Write Last;
    0x09 RcWriteLastImm      "RC WRITE_LAST_IMM"      Rc  Write Last               IMM_DT;
    0x0a RcWriteOnly         "RC WRITE_ONLY"          Rc  Write Only               RETH;
    0x0b RcWriteOnlyImm      "RC WRITE_ONLY_IMM"      Rc  Write Only               RETH IMM_DT;
    0x0c RcReadRequest       "RC READ_REQ"            Rc  ReadRequest Only         RETH;
    0x0d RcReadResponseFirst "RC READ_RESP_FIRST"     Rc  ReadResponse First       AETH;
    0x0e RcReadResponseMiddle "RC READ_RESP_MIDDLE"   Rc  ReadResponse Middle;
    0x0f RcReadResponseLast  "RC READ_RESP_LAST"      Rc  ReadResponse Last        AETH;
    0x10 RcReadResponseOnly  "RC READ_RESP_ONLY"      Rc  ReadResponse Only        AETH;
    0x11 RcAcknowledge       "RC ACK"                 Rc  Acknowledge Only         AETH;
    0x12 RcAtomicAcknowledge "RC ATOMIC_ACK"          Rc  AtomicAcknowledge Only   AETH ATOMIC_ACK_ETH;
    0x13 RcCompareSwap       "RC CMP_SWAP"            Rc  CompareSwap Only         ATOMIC_ETH;
    0x14 RcFetchAdd          "RC FETCH_ADD"           Rc  FetchAdd Only            ATOMIC_ETH;
    0x16 RcSendLastInv       "RC SEND_LAST_INV"       Rc  Send Last                IETH;
    0x17 RcSendOnlyInv       "RC SEND_ONLY_INV"       Rc  Send Only                IETH;
    0x1c RcFlush             "RC FLUSH"               Rc  Flush Only               FETH RETH;
    0x1d RcAtomicWrite       "RC ATOMIC_WRITE"        Rc  AtomicWrite Only         RETH;

    0x20 UcSendFirst         "UC SEND_FIRST"          Uc  Send First;
    0x21 UcSendMiddle        "UC SEND_MIDDLE"         Uc  Send Middle;
    0x22 UcSendLast          "UC SEND_LAST"           Uc  Send Last;
    0x23 UcSendLastImm       "UC SEND_LAST_IMM"       Uc  Send Last                IMM_DT;
    0x24 UcSendOnly          "UC SEND_ONLY"           Uc  Send Only;
    0x25 UcSendOnlyImm       "UC SEND_ONLY_IMM"       Uc  Send Only                IMM_DT;
    0x26 UcWriteFirst        "UC WRITE_FIRST"         Uc  Write First              RETH;
    0x27 UcWriteMiddle       "UC WRITE_MIDDLE"        Uc  Write Middle;
    0x28 UcWriteLast         "UC WRITE_LAST"          Uc  Write Last;
    0x29 UcWriteLastImm      "UC WRITE_LAST_IMM"      Uc  Write Last               IMM_DT;
    0x2a UcWriteOnly         "UC WRITE_ONLY"          Uc  Write Only               RETH;
    0x2b UcWriteOnlyImm      "UC WRITE_ONLY_IMM"      Uc  Write Only               RETH IMM_DT;

    0x64 UdSendOnly          "UD SEND_ONLY"           Ud  Send Only                DETH;
    0x65 UdSendOnlyImm       "UD SEND_ONLY_IMM"       Ud  Send Only                DETH IMM_DT;

    0x81 Cnp                 "CNP"                    Cnp Cnp Only                 CNP_RESERVED;

    0xa0 XrcSendFirst        "XRC SEND_FIRST"         Xrc Send First               XRCETH;
    0xa1 XrcSendMiddle       "XRC SEND_MIDDLE"        Xrc Send Middle              XRCETH;
    0xa2 XrcSendLast         "XRC SEND_LAST"          Xrc Send Last                XRCETH;
    0xa3 XrcSendLastImm      "XRC SEND_LAST_IMM"      Xrc Send Last                XRCETH IMM_DT;
    0xa4 XrcSendOnly         "XRC SEND_ONLY"          Xrc Send Only                XRCETH;
    0xa5 XrcSendOnlyImm      "XRC SEND_ONLY_IMM"      Xrc Send Only                XRCETH IMM_DT;
    0xa6 XrcWriteFirst       "XRC WRITE_FIRST"        Xrc Write First              XRCETH RETH;
    0xa7 XrcWriteMiddle      "XRC WRITE_MIDDLE"       Xrc Write Middle             XRCETH;
    0xa8 XrcWriteLast        "XRC WRITE_LAST"         Xrc Write Last               XRCETH;
    0xa9 XrcWriteLastImm     "XRC WRITE_LAST_IMM"     Xrc Write Last               XRCETH IMM_DT;
    0xaa XrcWriteOnly        "XRC WRITE_ONLY"         Xrc Write Only               XRCETH RETH;
    0xab XrcWriteOnlyImm     "XRC WRITE_ONLY_IMM"     Xrc Write Only               XRCETH RETH IMM_DT;
    0xac XrcReadRequest      "XRC READ_REQ"           Xrc ReadRequest Only         XRCETH RETH;
    0xad XrcReadResponseFirst "XRC READ_RESP_FIRST"   Xrc ReadResponse First       AETH;
    0xae XrcReadResponseMiddle "XRC READ_RESP_MIDDLE" Xrc ReadResponse Middle;
    0xaf XrcReadResponseLast "XRC READ_RESP_LAST"     Xrc ReadResponse Last        AETH;
    0xb0 XrcReadResponseOnly "XRC READ_RESP_ONLY"     Xrc ReadResponse Only        AETH;
    0xb1 XrcAcknowledge      "XRC ACK"                Xrc Acknowledge Only         AETH;
    0xb2 XrcAtomicAcknowledge "XRC ATOMIC_ACK"        Xrc AtomicAcknowledge Only   AETH ATOMIC_ACK_ETH;
    0xb3 XrcCompareSwap      "XRC CMP_SWAP"           Xrc CompareSwap Only         XRCETH ATOMIC_ETH;
    0xb4 XrcFetchAdd         "XRC FETCH_ADD"          Xrc FetchAdd Only            XRCETH ATOMIC_ETH;
    0xb6 XrcSendLastInv      "XRC SEND_LAST_INV"      Xrc Send Last                XRCETH IETH;
    0xb7 XrcSendOnlyInv      "XRC SEND_ONLY_INV"      Xrc Send Only                XRCETH IETH;

    0xc0 RnicFlowControl     "RNIC FLOW_CONTROL"      Rnic FlowControl Only;
    0xc1 RnicPause           "RNIC PAUSE"             Rnic Pause Only;
    0xc2 RnicSelectiveAck    "RNIC SELECTIVE_ACK"     Rnic SelectiveAck Only       AETH;
    0xc3 RnicTelemetry       "RNIC TELEMETRY"         Rnic Telemetry Only;
}

impl Opcode {
    /// The opcode with this number; `None` if the number is neither a RoCEv2 opcode nor one of ours.
    #[must_use]
    pub const fn from_u8(byte: u8) -> Option<Self> {
        match &INFO[byte as usize] {
            Some((opcode, _)) => Some(*opcode),
            None => None,
        }
    }

    /// The properties of the opcode.
    #[must_use]
    pub const fn info(self) -> OpcodeInfo {
        *self.info_ref()
    }

    /// The properties of the opcode, by reference.
    pub(super) const fn info_ref(self) -> &'static OpcodeInfo {
        match &INFO[self as usize] {
            Some((_, info)) => info,
            // The table has an entry for every variant: one macro generates both from one list.
            None => unreachable!(),
        }
    }

    /// The opcode with the given properties; `None` if there is no such opcode, for example for a datagram of
    /// several packets or a READ on an unreliable connection.
    ///
    /// The opcodes of the connected services and of datagrams have the same low five bits.
    #[must_use]
    pub const fn compose(
        transport: Transport,
        operation: Operation,
        position: Position,
        extra: Extra,
    ) -> Option<Self> {
        use {Operation as Op, Position as Pos};
        let low = match (operation, position, extra) {
            (Op::Send, Pos::First, Extra::None) => 0x00,
            (Op::Send, Pos::Middle, Extra::None) => 0x01,
            (Op::Send, Pos::Last, Extra::None) => 0x02,
            (Op::Send, Pos::Last, Extra::Imm) => 0x03,
            (Op::Send, Pos::Only, Extra::None) => 0x04,
            (Op::Send, Pos::Only, Extra::Imm) => 0x05,
            (Op::Send, Pos::Last, Extra::Inv) => 0x16,
            (Op::Send, Pos::Only, Extra::Inv) => 0x17,
            (Op::Write, Pos::First, Extra::None) => 0x06,
            (Op::Write, Pos::Middle, Extra::None) => 0x07,
            (Op::Write, Pos::Last, Extra::None) => 0x08,
            (Op::Write, Pos::Last, Extra::Imm) => 0x09,
            (Op::Write, Pos::Only, Extra::None) => 0x0a,
            (Op::Write, Pos::Only, Extra::Imm) => 0x0b,
            (Op::ReadRequest, Pos::Only, Extra::None) => 0x0c,
            (Op::ReadResponse, Pos::First, Extra::None) => 0x0d,
            (Op::ReadResponse, Pos::Middle, Extra::None) => 0x0e,
            (Op::ReadResponse, Pos::Last, Extra::None) => 0x0f,
            (Op::ReadResponse, Pos::Only, Extra::None) => 0x10,
            (Op::Acknowledge, Pos::Only, Extra::None) => 0x11,
            (Op::AtomicAcknowledge, Pos::Only, Extra::None) => 0x12,
            (Op::CompareSwap, Pos::Only, Extra::None) => 0x13,
            (Op::FetchAdd, Pos::Only, Extra::None) => 0x14,
            (Op::Flush, Pos::Only, Extra::None) => 0x1c,
            (Op::AtomicWrite, Pos::Only, Extra::None) => 0x1d,
            (Op::Cnp | Op::Pause, Pos::Only, Extra::None) => 0x01,
            (Op::FlowControl, Pos::Only, Extra::None) => 0x00,
            (Op::SelectiveAck, Pos::Only, Extra::None) => 0x02,
            (Op::Telemetry, Pos::Only, Extra::None) => 0x03,
            _ => return None,
        };
        // Elsewhere these low bits mean SENDs: operations without a queue pair service only combine with their own
        // transport.
        let belongs = match operation {
            Op::Cnp => matches!(transport, Transport::Cnp),
            Op::FlowControl | Op::Pause | Op::SelectiveAck | Op::Telemetry => {
                matches!(transport, Transport::Rnic)
            }
            _ => !matches!(transport, Transport::Cnp | Transport::Rnic),
        };
        if !belongs {
            return None;
        }
        Self::from_u8(transport.base() | low)
    }
}

#[cfg(test)]
mod tests;
