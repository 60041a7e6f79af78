//! The enumerated codes of connection management.

use super::fields::{Value, field};
use crate::ids::Mtu;
use std::fmt;
use time::Duration;

/// The type of a connection management message: its attribute (IBTA 12.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum Attribute {
    /// Request for a connection.
    Req = 0x0010,
    /// Message receipt acknowledgement: the answer takes longer.
    Mra = 0x0011,
    /// Reject.
    Rej = 0x0012,
    /// Reply to a request.
    Rep = 0x0013,
    /// Ready to use.
    Rtu = 0x0014,
    /// Request to close a connection.
    Dreq = 0x0015,
    /// Reply to a request to close a connection.
    Drep = 0x0016,
    /// Service ID resolution request: asks for the queue pair that receives datagrams for a service.
    SidrReq = 0x0017,
    /// Service ID resolution reply.
    SidrRep = 0x0018,
    /// Load alternate path.
    Lap = 0x0019,
    /// Alternate path response.
    Apr = 0x001a,
}

impl Attribute {
    /// All message types in numerical order.
    pub const ALL: [Self; 11] = [
        Self::Req,
        Self::Mra,
        Self::Rej,
        Self::Rep,
        Self::Rtu,
        Self::Dreq,
        Self::Drep,
        Self::SidrReq,
        Self::SidrRep,
        Self::Lap,
        Self::Apr,
    ];

    /// The message type with this attribute ID.
    #[must_use]
    pub fn from_u16(id: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|a| *a as u16 == id)
    }

    /// The name in the specification.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Req => "REQ",
            Self::Mra => "MRA",
            Self::Rej => "REJ",
            Self::Rep => "REP",
            Self::Rtu => "RTU",
            Self::Dreq => "DREQ",
            Self::Drep => "DREP",
            Self::SidrReq => "SIDR_REQ",
            Self::SidrRep => "SIDR_REP",
            Self::Lap => "LAP",
            Self::Apr => "APR",
        }
    }
}

/// Defines an enum for a two-bit field whose four values all have names.
macro_rules! two_bits {
    (
        $(#[$doc:meta])*
        $name:ident { $( $(#[$variant_doc:meta])* $variant:ident = $code:literal $text:literal, )* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        #[repr(u8)]
        pub enum $name {
            $( $(#[$variant_doc])* $variant = $code, )*
        }

        impl $name {
            /// The name in lower case, as packet listings show it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $text, )* }
            }
        }

        field!(
            $name,
            n => [$( Self::$variant ),*][(n & 3) as usize],
            this => *this as u8,
            Value::Code { code: *this as u16, name: Some(this.name()), meaning: None }
        );
    };
}

two_bits! {
    /// The transport service of the requested connection (IBTA 12.6, table 106).
    Transport {
        /// Reliable connection.
        #[default]
        Rc = 0 "rc",
        /// Unreliable connection.
        Uc = 1 "uc",
        /// Reliable datagram, which RoCE does not have.
        Rd = 2 "rd",
        /// The transport is given by the extended transport type; 1 there is XRC.
        Extended = 3 "extended",
    }
}

two_bits! {
    /// The message that an MRA or a REJ refers to (IBTA 12.6.6, 12.6.7).
    Subject {
        /// A REQ.
        #[default]
        Req = 0 "req",
        /// A REP.
        Rep = 1 "rep",
        /// In an MRA, a LAP; in a REJ, no particular message.
        Other = 2 "other",
        /// Reserved.
        Reserved = 3 "reserved",
    }
}

two_bits! {
    /// The passive side's answer about the alternate path (IBTA 12.6, table 110).
    Failover {
        /// Accepted; also used if no alternate path was requested.
        #[default]
        Accepted = 0 "accepted",
        /// The passive side does not support path migration.
        NotSupported = 1 "not-supported",
        /// The passive side supports path migration, but not to this path.
        Rejected = 2 "rejected",
        /// Reserved.
        Reserved = 3 "reserved",
    }
}

/// Defines an enum of codes with names and explanations, and a variant for all other codes.
macro_rules! explained {
    (
        $(#[$doc:meta])*
        $name:ident($wire:ty) { $( $variant:ident = $code:literal $text:literal $meaning:literal, )* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name {
            $(
                #[doc = $meaning]
                $variant,
            )*
            /// A code without a defined meaning.
            Other($wire),
        }

        impl $name {
            /// All codes with a defined meaning.
            pub const ALL: &[Self] = &[$( Self::$variant ),*];

            /// Decodes the code.
            #[must_use]
            pub const fn from_code(code: $wire) -> Self {
                match code { $( $code => Self::$variant, )* other => Self::Other(other) }
            }

            /// The code on the wire.
            #[must_use]
            pub const fn code(self) -> $wire {
                match self { $( Self::$variant => $code, )* Self::Other(code) => code }
            }

            /// The name in lower case, as packet listings show it; `None` for an undefined code.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self { $( Self::$variant => Some($text), )* Self::Other(_) => None }
            }

            /// The meaning, in one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $( Self::$variant => $meaning, )*
                    Self::Other(_) => "A code to which no meaning was given.",
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::from_code(0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{name}({})", self.code()),
                    None => write!(f, "reserved({})", self.code()),
                }
            }
        }

        field!(
            $name,
            n => Self::from_code(n as $wire),
            this => this.code(),
            Value::Code { code: u16::from(this.code()), name: this.name(), meaning: Some(this.meaning()) }
        );
    };
}

explained! {
    /// Why a connection was rejected (IBTA 12.6.7; 35 is from Linux's `ib_cm.h`).
    RejReason(u16) {
        NoQp = 1 "no-qp" "There is no queue pair left for the connection.",
        NoEec = 2 "no-eec" "There is no end-to-end context left for the connection (reliable datagrams only).",
        NoResources = 3 "no-resources" "Something other than queue pairs has run out.",
        Timeout = 4 "timeout" "The sender of the rejection has waited too long for the answer to its message.",
        Unsupported = 5 "unsupported" "The request asks for something that the receiver cannot do.",
        InvalidCommId = 6 "invalid-comm-id" "No connection has the communication IDs of the message.",
        InvalidCommInstance = 7 "invalid-comm-instance"
            "The connection with these communication IDs has another queue pair than the message says.",
        InvalidServiceId = 8 "invalid-service-id" "Nobody listens for this service ID.",
        InvalidTransportType = 9 "invalid-transport-type"
            "The service is there, but not over the transport that was asked for.",
        StaleConnection = 10 "stale-connection"
            "The receiver still has a connection with this queue pair, which must be left over from an earlier one.",
        RdcNotExist = 11 "rdc-not-exist" "The reliable datagram channel that the request names does not exist.",
        InvalidGid = 12 "invalid-gid" "The receiver does not accept the remote GID of the primary path.",
        InvalidLid = 13 "invalid-lid" "The receiver does not accept the remote LID of the primary path.",
        InvalidSl = 14 "invalid-sl" "The receiver does not accept the service level of the primary path.",
        InvalidTrafficClass = 15 "invalid-traffic-class"
            "The receiver does not accept the traffic class of the primary path.",
        InvalidHopLimit = 16 "invalid-hop-limit" "The receiver does not accept the hop limit of the primary path.",
        InvalidPacketRate = 17 "invalid-packet-rate"
            "The receiver does not accept the packet rate of the primary path.",
        InvalidAltGid = 18 "invalid-alt-gid" "The receiver does not accept the remote GID of the alternate path.",
        InvalidAltLid = 19 "invalid-alt-lid" "The receiver does not accept the remote LID of the alternate path.",
        InvalidAltSl = 20 "invalid-alt-sl" "The receiver does not accept the service level of the alternate path.",
        InvalidAltTrafficClass = 21 "invalid-alt-traffic-class"
            "The receiver does not accept the traffic class of the alternate path.",
        InvalidAltHopLimit = 22 "invalid-alt-hop-limit"
            "The receiver does not accept the hop limit of the alternate path.",
        InvalidAltPacketRate = 23 "invalid-alt-packet-rate"
            "The receiver does not accept the packet rate of the alternate path.",
        PortCmRedirect = 24 "port-cm-redirect"
            "The request is to be sent again to another connection manager, which the additional information names.",
        PortRedirect = 25 "port-redirect"
            "The request is to be sent again for another port, which the additional information names.",
        InvalidMtu = 26 "invalid-mtu" "The path MTU is larger than the receiver can take.",
        InsufficientRespResources = 27 "insufficient-resp-resources"
            "The receiver has fewer responder resources than the sender needs for its READs and atomics.",
        ConsumerDefined = 28 "consumer-defined"
            "The program at the other end does not want the connection; its private data may say why.",
        InvalidRnrRetry = 29 "invalid-rnr-retry" "The receiver does not accept the RNR retry count.",
        DuplicateLocalCommId = 30 "duplicate-local-comm-id"
            "The sender already uses its communication ID for another connection.",
        InvalidClassVersion = 31 "invalid-class-version"
            "The receiver speaks another version of connection management.",
        InvalidFlowLabel = 32 "invalid-flow-label" "The receiver does not accept the flow label of the primary path.",
        InvalidAltFlowLabel = 33 "invalid-alt-flow-label"
            "The receiver does not accept the flow label of the alternate path.",
        VendorOptionNotSupported = 35 "vendor-option-not-supported"
            "The receiver does not have an option of the vendor that the request insists on.",
    }
}

explained! {
    /// The result of a service ID resolution (IBTA 12.11).
    SidrStatus(u8) {
        Valid = 0 "valid" "The reply names the queue pair of the service and its key.",
        Unsupported = 1 "unsupported" "Nobody offers this service.",
        Rejected = 2 "rejected" "The program that offers the service does not want to say where.",
        NoQp = 3 "no-qp" "There is no queue pair left for the service.",
        Redirect = 4 "redirect" "The request is to be sent again to where the additional information says.",
        UnsupportedVersion = 5 "unsupported-version" "The receiver speaks another version of connection management.",
    }
}

explained! {
    /// The answer to LAP (IBTA 12.8; the codes are those of Linux's `ib_cm.h`).
    AprStatus(u8) {
        Loaded = 0 "loaded" "The alternate path is loaded.",
        InvalidCommId = 1 "invalid-comm-id" "No connection has the communication IDs of the message.",
        Unsupported = 2 "unsupported" "The receiver does not support alternate paths.",
        Rejected = 3 "rejected" "The receiver does not want this alternate path.",
        Redirect = 4 "redirect" "The request is to be sent again to where the additional information says.",
        IsCurrent = 5 "is-current" "The path is already the alternate path.",
        InvalidQpn = 6 "invalid-qpn" "The connection has another queue pair than the message says.",
        InvalidLid = 7 "invalid-lid" "The receiver does not accept the LID of the path.",
        InvalidGid = 8 "invalid-gid" "The receiver does not accept the GID of the path.",
        InvalidFlowLabel = 9 "invalid-flow-label" "The receiver does not accept the flow label of the path.",
        InvalidTrafficClass = 10 "invalid-traffic-class" "The receiver does not accept the traffic class of the path.",
        InvalidHopLimit = 11 "invalid-hop-limit" "The receiver does not accept the hop limit of the path.",
        InvalidPacketRate = 12 "invalid-packet-rate" "The receiver does not accept the packet rate of the path.",
        InvalidSl = 13 "invalid-sl" "The receiver does not accept the service level of the path.",
    }
}

/// A time encoded in five bits: 4.096 us * 2^code (IBTA 12.7, 9.7.6.1.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct CmTimeout(u8);

impl CmTimeout {
    /// The longest time: almost two and a half hours.
    pub const MAX: Self = Self(31);
    /// The time of code 0 in nanoseconds.
    const UNIT_NANOS: u64 = 4096;

    /// The time with this code; only the low five bits are used.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & Self::MAX.0)
    }

    /// The shortest time that is at least `time`; [`MAX`](Self::MAX) if `time` is longer than that.
    #[must_use]
    pub fn at_least(time: Duration) -> Self {
        (0..Self::MAX.0).map(Self).find(|t| t.duration() >= time).unwrap_or(Self::MAX)
    }

    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(Self::UNIT_NANOS << self.0)
    }
}

impl fmt::Display for CmTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3?}", self.duration())
    }
}

field!(CmTimeout, n => Self::new(n as u8), this => this.0, Value::Time(*this));

/// The path MTU in a request, in four bits. A request with a reserved code can be parsed, and is then rejected
/// ([`RejReason::InvalidMtu`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MtuCode(u8);

impl MtuCode {
    /// The MTU with this code; only the low four bits are used.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x0f)
    }

    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The MTU; `None` if the code is reserved.
    #[must_use]
    pub fn mtu(self) -> Option<Mtu> {
        Mtu::from_code(self.0)
    }
}

impl From<Mtu> for MtuCode {
    fn from(mtu: Mtu) -> Self {
        Self(mtu as u8)
    }
}

impl fmt::Display for MtuCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mtu() {
            Some(mtu) => mtu.bytes().fmt(f),
            None => write!(f, "reserved({})", self.0),
        }
    }
}

field!(MtuCode, n => Self::new(n as u8), this => this.0, Value::Mtu(*this));

/// One side's ID of a connection (IBTA 12.7). 0 means that none is assigned yet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CommId(pub u32);

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

field!(CommId, n => Self(n as u32), this => this.0, Value::Hex { value: u64::from(this.0), digits: 8 });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_their_value() {
        for code in 0..=u16::MAX {
            assert_eq!(RejReason::from_code(code).code(), code);
        }
        for code in 0..=u8::MAX {
            assert_eq!(SidrStatus::from_code(code).code(), code);
        }
        for attribute in Attribute::ALL {
            assert_eq!(Attribute::from_u16(attribute as u16), Some(attribute));
        }
        assert_eq!((Attribute::from_u16(0x000f), Attribute::from_u16(0x001b)), (None, None));
    }

    #[test]
    fn every_reason_is_explained_in_one_sentence() {
        let known: Vec<u16> = RejReason::ALL.iter().map(|r| r.code()).collect();
        assert_eq!(known, (1..=33).chain([35]).collect::<Vec<_>>());
        for reason in RejReason::ALL {
            assert!(reason.name().is_some_and(|name| !name.is_empty()), "{reason:?}");
            let meaning = reason.meaning();
            assert!(meaning.ends_with('.') && !meaning.contains(". "), "{reason:?}: {meaning}");
        }
        assert_eq!(RejReason::InvalidServiceId.to_string(), "invalid-service-id(8)");
        assert_eq!(RejReason::from_code(34).to_string(), "reserved(34)");
    }

    #[test]
    fn times_double() {
        assert_eq!(CmTimeout::new(0).duration(), Duration::from_nanos(4096));
        // How long Linux waits for an answer.
        assert_eq!(CmTimeout::new(20).duration(), Duration::from_nanos(4_294_967_296));
        assert_eq!(CmTimeout::new(20).to_string(), "4.295s");
        assert_eq!(CmTimeout::MAX.duration().as_secs(), 8_796);
        assert_eq!(CmTimeout::new(32), CmTimeout::new(0));
    }

    #[test]
    fn times_are_rounded_up() {
        assert_eq!(CmTimeout::at_least(Duration::ZERO), CmTimeout::new(0));
        for code in 1..=31 {
            let time = CmTimeout::new(code).duration();
            assert_eq!(CmTimeout::at_least(time).code(), code);
            assert_eq!(CmTimeout::at_least(time - Duration::from_nanos(1)).code(), code);
        }
        assert_eq!(CmTimeout::at_least(Duration::MAX), CmTimeout::MAX);
    }

    #[test]
    fn mtus_of_the_wire() {
        for mtu in Mtu::ALL {
            assert_eq!(MtuCode::from(mtu).mtu(), Some(mtu));
        }
        assert_eq!(MtuCode::new(3).to_string(), "1024");
        assert_eq!((MtuCode::new(0).mtu(), MtuCode::new(6).mtu(), MtuCode::new(16).code()), (None, None, 0));
        assert_eq!((MtuCode::new(0x15).code(), MtuCode::new(0x15).mtu()), (5, Some(Mtu::B4096)));
        assert_eq!(MtuCode::new(9).to_string(), "reserved(9)");
    }
}
