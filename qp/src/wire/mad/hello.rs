//! The hello: how a port detects whether a peer is an rnic port, and what the peer supports.
//!
//! ```text
//! asking port                  its peer
//!     Get      ------------------->            my properties; what are yours?
//!              <-------------------  GetResp   my properties
//! ```
//!
//! A management datagram of a vendor class with an OUI (IBTA 16.5), sent to queue pair 1 like any other. A receiver
//! that does not know the class drops the datagram, or answers that it is not supported. Linux does the latter: it
//! returns the question with an error status, so the status also decides whether a datagram is a hello
//! ([`HelloError::Status`]).
//!
//! rnic has no assigned OUI. [`OUI`] is a locally administered one, which anybody may use; its use for rnic is our
//! choice, and so are the class, the attribute and everything after them. Bytes from the start of the datagram,
//! big-endian:
//!
//! | bytes    | content                                                                                |
//! |----------|----------------------------------------------------------------------------------------|
//! | 0..24    | header: class 0x3f, class version 1, method 0x01 or 0x81, status 0, attribute 0x0001     |
//! | 24..36   | segmentation header (RMPP), not used: zero                                             |
//! | 36       | reserved                                                                               |
//! | 37..40   | OUI 02-72-6e                                                                           |
//! | 40..42   | version of the following fields: 1                                                     |
//! | 42       | slot: the top byte of the port's queue pair numbers                                    |
//! | 43       | number of data lanes, 1 to 15; 0 without credits                                       |
//! | 44..48   | features: bit 0 obeys CNPs, 1 supports link credits, 2 obeys pauses, 3 understands     |
//! |          | selective acknowledgements, 4 returns telemetry                                        |
//! | 48..56   | instance                                                                               |
//! | 56..58   | bytes per block of credit; 0 without credits                                           |
//! | 58       | what credits count: 0 bytes, 1 the kernel's charge for datagrams, 2 that for trains    |
//! | 59       | number of source ports, 0 to 16                                                        |
//! | 60..92   | source ports, 16 bits each                                                             |
//! | 92..100  | token: what the receiver is to show to the sender from now on; 0 for none yet           |
//! | 100..108 | proof: the token that the receiver gave the sender; 0 for none                          |
//! | 108..256 | reserved                                                                               |
//!
//! Reserved bytes are sent as zero and ignored on reception. A later version keeps these fields, with their places
//! and meanings, and only adds to them: in reserved bytes, as features, or as things that credits count. A hello of any
//! version from 1 on can therefore be read as far as this table goes. An incompatible change would use another
//! attribute.

use super::fields::{Field, Fields, Place, Value, field, group};
use super::{Header, MAD_LEN, Mad, MadError};
use bitflags::bitflags;
use std::fmt;
use thiserror::Error;

/// The locally administered OUI of our management datagrams; see the module documentation.
pub const OUI: [u8; 3] = [0x02, 0x72, 0x6e];

/// Maximum number of source ports in a hello.
pub const MAX_PORTS: usize = 16;

/// The version of hellos that this is.
pub const VERSION: u16 = 2;

/// Maximum number of data lanes of a link (IBTA 7.6).
const MAX_LANES: u8 = 15;

/// The bit that marks the segmentation header as active (IBTA 13.6.2).
const RMPP_ACTIVE: Place = Place::new(26, 7, 1);
const OUI_PLACE: Place = Place::new(37, 0, 24);
const VERSION_PLACE: Place = Place::new(40, 0, 16);
const PORT_COUNT_PLACE: Place = Place::new(59, 0, 8);

impl Header {
    /// The management class of hellos, from the range for vendors with an OUI, 0x30 to 0x4f (IBTA 16.5).
    pub const CLASS_HELLO: u8 = 0x3f;
    /// The only version of this class.
    pub const HELLO_CLASS_VERSION: u8 = 1;
    /// The attribute of a hello; the class has no other.
    pub const HELLO_ATTRIBUTE: u16 = 0x0001;
    /// The method of a question (IBTA 13.4.5).
    pub const METHOD_GET: u8 = 0x01;
    /// The method of an answer.
    pub const METHOD_GET_RESP: u8 = 0x81;
}

/// Whether a hello asks for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Kind {
    /// A question: the receiver answers with its own hello.
    #[default]
    Ask = Header::METHOD_GET,
    /// The answer, with the transaction ID of the question.
    Answer = Header::METHOD_GET_RESP,
}

impl Kind {
    /// The name in lower case, as packet listings show it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Answer => "answer",
        }
    }
}

field!(
    Kind,
    n => if n as u8 == Header::METHOD_GET_RESP { Self::Answer } else { Self::Ask },
    this => *this as u8,
    Value::Code { code: *this as u16, name: Some(this.name()), meaning: None }
);

bitflags! {
    /// Features that a port supports. Unknown bits are preserved.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Features: u32 {
        /// Obeys congestion notifications: slows down the queue pair that they name.
        const CNP = 1;
        /// Supports link credits: sends nothing without credits, and grants credits.
        const CREDITS = 1 << 1;
        /// Obeys pauses.
        const PAUSE = 1 << 2;
        /// Understands selective acknowledgements ([`selective`](crate::wire::selective)).
        const SELECTIVE = 1 << 3;
        /// Returns the telemetry of packets, and uses what is returned.
        const TELEMETRY = 1 << 4;
    }
}

/// `cnp+credits+pause+selective+telemetry`, unknown bits as a number, or `none`.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let names = [
            (Self::CNP, "cnp"),
            (Self::CREDITS, "credits"),
            (Self::PAUSE, "pause"),
            (Self::SELECTIVE, "selective"),
            (Self::TELEMETRY, "telemetry"),
        ];
        for (_, name) in names.into_iter().filter(|(feature, _)| self.contains(*feature)) {
            write!(f, "{separator}{name}")?;
            separator = "+";
        }
        let unknown = self.bits() & !Self::all().bits();
        if unknown != 0 {
            return write!(f, "{separator}{unknown:#x}");
        }
        f.write_str(if self.is_empty() { "none" } else { "" })
    }
}

field!(
    Features,
    n => Self::from_bits_retain(n as u32),
    this => this.bits(),
    Value::Hex { value: u64::from(this.bits()), digits: 8 }
);

/// What a port's credits count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Counting {
    /// The bytes of a packet, as on a cable.
    #[default]
    PacketBytes,
    /// The kernel's charge to a socket buffer for a packet that arrives in a datagram of its own.
    DatagramCharge,
    /// The kernel's charge to a socket buffer for a packet that arrives in a train.
    TrainCharge,
    /// A value that only later versions know: no credits can be agreed on.
    Other(u8),
}

impl Counting {
    /// The variant with this number.
    #[must_use]
    pub const fn from_u8(number: u8) -> Self {
        match number {
            0 => Self::PacketBytes,
            1 => Self::DatagramCharge,
            2 => Self::TrainCharge,
            other => Self::Other(other),
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::PacketBytes => 0,
            Self::DatagramCharge => 1,
            Self::TrainCharge => 2,
            Self::Other(other) => other,
        }
    }

    /// The name in lower case; `None` for an unknown value.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::PacketBytes => Some("packet-bytes"),
            Self::DatagramCharge => Some("datagram-charge"),
            Self::TrainCharge => Some("train-charge"),
            Self::Other(_) => None,
        }
    }
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "unknown({})", self.to_u8()),
        }
    }
}

field!(
    Counting,
    n => Self::from_u8(n as u8),
    this => this.to_u8(),
    Value::Code { code: u16::from(this.to_u8()), name: this.name(), meaning: None }
);

/// The UDP source ports of a port: at most [`MAX_PORTS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SourcePorts {
    len: u8,
    /// Zero after the first `len`, so that equal values compare equal.
    all: [u16; MAX_PORTS],
}

impl SourcePorts {
    /// These ports, in this order; `None` if there are more than [`MAX_PORTS`].
    #[must_use]
    pub fn new(ports: &[u16]) -> Option<Self> {
        let mut all = [0; MAX_PORTS];
        all.get_mut(..ports.len())?.copy_from_slice(ports);
        Some(Self { len: u8::try_from(ports.len()).ok()?, all })
    }

    /// The ports.
    #[must_use]
    pub fn as_slice(&self) -> &[u16] {
        self.all.get(..usize::from(self.len)).unwrap_or(&self.all)
    }

    /// The place of the port with this index, after the count at `place`.
    const fn place(place: Place, index: usize) -> Place {
        Place::new(1 + 2 * index, 0, 16).moved(place.start())
    }
}

impl Field for SourcePorts {
    /// Truncates a count that is too large; [`Hello::parse`] has already refused it.
    fn get(bytes: &[u8], place: Place) -> Self {
        let count: u8 = Field::get(bytes, Place::new(0, 0, 8).moved(place.start()));
        let mut ports = Self { len: count.min(MAX_PORTS as u8), ..Self::default() };
        for (index, port) in ports.all.iter_mut().enumerate().take(usize::from(ports.len)) {
            *port = Field::get(bytes, Self::place(place, index));
        }
        ports
    }

    fn put(&self, bytes: &mut [u8], place: Place) {
        self.len.put(bytes, Place::new(0, 0, 8).moved(place.start()));
        for (index, port) in self.as_slice().iter().enumerate() {
            port.put(bytes, Self::place(place, index));
        }
    }

    fn show(&self) -> Value<'_> {
        Value::Numbers(self.as_slice())
    }
}

group! {
    /// The properties that a port announces.
    Hello {
        /// Whether this is a question or an answer.
        kind: Kind = 3[0; 8],
        /// Chosen by the asking port, repeated in the answer.
        transaction_id: u64 = 8[0; 64],
        /// [`VERSION`], or a later version.
        version: u16 = 40[0; 16],
        /// The top byte of the port's queue pair numbers.
        slot: u8 = 42[0; 8],
        /// Number of data lanes; 0 without credits.
        lanes: u8 = 43[0; 8],
        /// Supported features.
        features: Features = 44[0; 32],
        /// A random number for the lifetime of the engine. A different number means that the peer has restarted and
        /// lost all agreements.
        instance: u64 = 48[0; 64],
        /// Number of bytes, counted as `counting` says, in a block of credit; 0 without credits.
        block: u16 = 56[0; 16],
        /// What its credits count.
        counting: Counting = 58[0; 8],
        /// The source ports of the port's packets, so that the receiver can identify the sender by its address.
        ports: SourcePorts = 59[0; 264],
        /// What the receiver is to show to the sender from now on; 0 where the sender has none for it yet.
        token: u64 = 92[0; 64],
        /// The token that the receiver gave to the sender; 0 where it gave none.
        proof: u64 = 100[0; 64],
    }
}

/// Why a management datagram is not a hello. Such a datagram is dropped and counted, or belongs to another handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HelloError {
    /// Not a management datagram: [`MadError::Length`] or [`MadError::BaseVersion`].
    #[error(transparent)]
    Mad(#[from] MadError),
    /// Another class.
    #[error("management class {0:#04x} is not the hello class (0x3f)")]
    Class(u8),
    /// Another vendor's OUI, so the rest may have any meaning.
    #[error("OUI {:02x}-{:02x}-{:02x} is not the OUI of rnic (02-72-6e)", .0[0], .0[1], .0[2])]
    Oui([u8; 3]),
    /// The class version is not 1.
    #[error("hello class version {0} is not supported; only 1 exists")]
    ClassVersion(u8),
    /// The method is neither Get nor GetResp.
    #[error("hello method {0:#04x} is unknown; only 0x01 and 0x81 exist")]
    Method(u8),
    /// Another attribute.
    #[error("unknown hello attribute {0:#06x}")]
    Attribute(u16),
    /// The peer does not support hellos. It may have returned our own datagram, which says nothing about the peer.
    #[error("refused with status {0:#06x}")]
    Status(u16),
    /// One segment of several; a hello is never segmented.
    #[error("the hello is segmented")]
    Segmented,
    /// A version from before there were tokens.
    #[error("hello version {0} is not supported, only 2 and later")]
    Version(u16),
    /// More source ports than there is room for.
    #[error("{0} source ports; the maximum is 16")]
    TooManyPorts(u8),
    /// Credits with an invalid number of lanes, or with blocks of zero bytes.
    #[error(
        "credits on {lanes} lanes in blocks of {block} bytes; valid are 1 to 15 lanes and blocks of at least 1 byte"
    )]
    Credits {
        /// The number of lanes.
        lanes: u8,
        /// The size of a block.
        block: u16,
    },
}

impl Hello {
    const PLACE: Place = Place::new(0, 0, MAD_LEN * 8);

    /// Parses a hello.
    ///
    /// # Errors
    ///
    /// The first rule that the bytes break, in the order of [`HelloError`]'s variants.
    pub fn parse(bytes: &[u8]) -> Result<Self, HelloError> {
        let Header { class, class_version, method, status, attribute_id, .. } = Mad::parse(bytes)?.header;
        if class != Header::CLASS_HELLO {
            return Err(HelloError::Class(class));
        }
        let [.., a, b, c] = (OUI_PLACE.get(bytes) as u32).to_be_bytes();
        if [a, b, c] != OUI {
            return Err(HelloError::Oui([a, b, c]));
        }
        if class_version != Header::HELLO_CLASS_VERSION {
            return Err(HelloError::ClassVersion(class_version));
        }
        if !matches!(method, Header::METHOD_GET | Header::METHOD_GET_RESP) {
            return Err(HelloError::Method(method));
        }
        if attribute_id != Header::HELLO_ATTRIBUTE {
            return Err(HelloError::Attribute(attribute_id));
        }
        if status != 0 {
            return Err(HelloError::Status(status));
        }
        if RMPP_ACTIVE.get(bytes) != 0 {
            return Err(HelloError::Segmented);
        }
        let version = VERSION_PLACE.get(bytes) as u16;
        if version < VERSION {
            return Err(HelloError::Version(version));
        }
        let count = PORT_COUNT_PLACE.get(bytes) as u8;
        if usize::from(count) > MAX_PORTS {
            return Err(HelloError::TooManyPorts(count));
        }
        let hello = Self::get(bytes, Self::PLACE);
        let Self { features, lanes, block, .. } = hello;
        if features.contains(Features::CREDITS) && (!(1..=MAX_LANES).contains(&lanes) || block == 0) {
            return Err(HelloError::Credits { lanes, block });
        }
        Ok(hello)
    }

    /// Writes the datagram, with reserved bits set to zero. Does not check the rules of [`parse`](Self::parse).
    pub fn emit(&self, out: &mut [u8; MAD_LEN]) {
        out.fill(0);
        let header = Header {
            base_version: Header::BASE_VERSION,
            class: Header::CLASS_HELLO,
            class_version: Header::HELLO_CLASS_VERSION,
            attribute_id: Header::HELLO_ATTRIBUTE,
            // Method and transaction ID are fields of the hello.
            ..Header::default()
        };
        header.put(out, Header::PLACE);
        let [a, b, c] = OUI;
        OUI_PLACE.put(out, u32::from_be_bytes([0, a, b, c]).into());
        self.put(out, Self::PLACE);
    }
}

#[cfg(test)]
mod tests;
