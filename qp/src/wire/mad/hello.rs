//! The hello: how a port finds out whether a peer is one of ours, and what it can do.
//!
//! ```text
//! port that asks               its peer
//!     Get      ------------------->            this is who I am; who are you?
//!              <-------------------  GetResp   this is who I am, and a token for you
//!     Get      ------------------->            the token proves my address; here is one for you
//!              <-------------------  GetResp   I know you
//! ```
//!
//! The peer keeps nothing until the third datagram: it computes the token from the address, slot and instance of the port
//! that asks and from a secret of its own, and computes it again to check the proof. The transaction ID of a question plays
//! the same part for the port that asks. Both ends put the token that they were given into everything that they say to the
//! other end later on ([`control`](crate::wire::control), congestion notifications), so that nobody who does not see their
//! packets can speak in their name.
//!
//! A management datagram of a vendor's class with an OUI (IBTA 16.5), sent to queue pair 1 as any other: a receiver that
//! does not know it drops it, or answers that it does not know it. Linux does the latter, and sends the question back
//! with a status for that: what is a hello is decided by the status too ([`HelloError::Status`]).
//!
//! rnic has no OUI. [`OUI`] is one of those that are locally administered, which everybody may use; that it is ours is
//! our choice, and so are the class, the attribute and all that follows. Bytes from the start of the datagram,
//! big-endian:
//!
//! | bytes    | what                                                                                   |
//! |----------|----------------------------------------------------------------------------------------|
//! | 0..24    | header: class 0x3f, class version 1, method 0x01 or 0x81, status 0, attribute 0x0001     |
//! | 24..36   | header of segmentation (RMPP), which is not used: zero                                 |
//! | 36       | reserved                                                                               |
//! | 37..40   | OUI 02-72-6e                                                                           |
//! | 40..42   | version of what follows: 2                                                             |
//! | 42       | slot: the top byte of the queue pair numbers of the port                               |
//! | 43       | number of data lanes, 1 to 15; 0 without credits                                       |
//! | 44..48   | features: bit 0 obeys CNPs, bit 1 speaks link credits, bit 2 obeys pauses              |
//! | 48..56   | instance                                                                               |
//! | 56..58   | bytes that a block of credit stands for; 0 without credits                             |
//! | 58       | what is counted: 0 bytes, 1 the kernel's charge of datagrams, 2 that of trains         |
//! | 59       | number of source ports, 0 to 16                                                        |
//! | 60..92   | source ports, 16 bits each                                                             |
//! | 92..100  | token: what the receiver is to show to the sender from now on; 0 for none yet           |
//! | 100..108 | proof: the token that the receiver gave the sender; 0 for none                          |
//! | 108..256 | reserved                                                                               |
//!
//! Reserved bytes are zero, and ignored. A later version keeps all of this where it is and what it means, and adds to it
//! in the reserved bytes, or as features, or as things that are counted: so a hello of any version from 2 on is read, as
//! far as this table goes. What could not be kept that way would get another attribute. Version 1 had no tokens, and is
//! refused.

use super::fields::{Field, Fields, Place, Value, field, group};
use super::{Header, MAD_LEN, Mad, MadError};
use bitflags::bitflags;
use std::fmt;
use thiserror::Error;

/// The OUI of our management datagrams, locally administered: see above.
pub const OUI: [u8; 3] = [0x02, 0x72, 0x6e];

/// The most source ports that a hello names.
pub const MAX_PORTS: usize = 16;

/// The version of hellos that this is.
pub const VERSION: u16 = 2;

/// The most data lanes that a link has (IBTA 7.6).
const MAX_LANES: u8 = 15;

/// The bit of the segmentation header that says that it means something (IBTA 13.6.2).
const RMPP_ACTIVE: Place = Place::new(26, 7, 1);
const OUI_PLACE: Place = Place::new(37, 0, 24);
const VERSION_PLACE: Place = Place::new(40, 0, 16);
const PORT_COUNT_PLACE: Place = Place::new(59, 0, 8);

impl Header {
    /// The management class of hellos: one of those for vendors with an OUI, 0x30 to 0x4f (IBTA 16.5).
    pub const CLASS_HELLO: u8 = 0x3f;
    /// The only version of that class.
    pub const HELLO_CLASS_VERSION: u8 = 1;
    /// The attribute of a hello; the class has no other.
    pub const HELLO_ATTRIBUTE: u16 = 0x0001;
    /// The method that asks (IBTA 13.4.5).
    pub const METHOD_GET: u8 = 0x01;
    /// The method that answers.
    pub const METHOD_GET_RESP: u8 = 0x81;
}

/// Whether a hello asks for one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Kind {
    /// It does: the receiver is to answer with its own.
    #[default]
    Ask = Header::METHOD_GET,
    /// It is the answer, with the transaction ID of the question.
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
    /// What a port understands. Bits that are not known here are kept.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Features: u32 {
        /// Slows down a queue pair for which it gets a congestion notification.
        const CNP = 1;
        /// Speaks link credits: sends nothing without, and gives some.
        const CREDITS = 1 << 1;
        /// Obeys pauses.
        const PAUSE = 1 << 2;
    }
}

/// `cnp+credits+pause`, unknown bits as a number; `none` without any.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let names = [(Self::CNP, "cnp"), (Self::CREDITS, "credits"), (Self::PAUSE, "pause")];
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

/// What credits of a port count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Counting {
    /// The bytes of a packet, as on a cable.
    #[default]
    PacketBytes,
    /// What the kernel charges a socket buffer for a packet that comes in a datagram of its own.
    DatagramCharge,
    /// What the kernel charges a socket buffer for a packet that comes in a train.
    TrainCharge,
    /// Something that only later versions know: no credits can be agreed on.
    Other(u8),
}

impl Counting {
    /// What stands for this number.
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

    /// The name in lower case, `None` where there is none.
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

/// The UDP ports from which a port sends: as many as [`MAX_PORTS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SourcePorts {
    len: u8,
    /// Zero behind the first `len`, so that equal ones are equal.
    all: [u16; MAX_PORTS],
}

impl SourcePorts {
    /// These ports, in this order; `None` for more than [`MAX_PORTS`].
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

    /// Where the port with this index stands, behind the count at `place`.
    const fn place(place: Place, index: usize) -> Place {
        Place::new(1 + 2 * index, 0, 16).moved(place.start())
    }
}

impl Field for SourcePorts {
    /// A count that is too large is cut; [`Hello::parse`] has refused it before.
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
    /// What a port says of itself.
    Hello {
        /// Whether it asks.
        kind: Kind = 3[0; 8],
        /// Chosen by whoever asks, repeated by whoever answers.
        transaction_id: u64 = 8[0; 64],
        /// [`VERSION`], or what a later one says.
        version: u16 = 40[0; 16],
        /// The top byte of its queue pair numbers.
        slot: u8 = 42[0; 8],
        /// How many data lanes it has, 0 without credits.
        lanes: u8 = 43[0; 8],
        /// What it understands.
        features: Features = 44[0; 32],
        /// A random number of this engine's life: another one means that the peer has started anew, and knows nothing
        /// of what was agreed on.
        instance: u64 = 48[0; 64],
        /// How many bytes of what is counted one block of credit stands for, 0 without credits.
        block: u16 = 56[0; 16],
        /// What its credits count.
        counting: Counting = 58[0; 8],
        /// Where its packets come from, so that the receiver knows its sender by its address.
        ports: SourcePorts = 59[0; 264],
        /// What the receiver is to show to the sender from now on; 0 where the sender has none for it yet.
        token: u64 = 92[0; 64],
        /// The token that the receiver gave to the sender; 0 where it gave none.
        proof: u64 = 100[0; 64],
    }
}

/// Why a management datagram is no hello. It is dropped and counted, or somebody else's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HelloError {
    /// No management datagram: of these, [`MadError::Length`] and [`MadError::BaseVersion`].
    #[error(transparent)]
    Mad(#[from] MadError),
    /// Of another class.
    #[error("management class {0:#04x} is not that of hellos (0x3f)")]
    Class(u8),
    /// Of another vendor, who may mean anything by the rest.
    #[error("OUI {:02x}-{:02x}-{:02x} is not that of rnic (02-72-6e)", .0[0], .0[1], .0[2])]
    Oui([u8; 3]),
    /// Another version of the class than 1.
    #[error("hello class version {0}, only 1 exists")]
    ClassVersion(u8),
    /// Another method than Get and GetResp.
    #[error("hello method {0:#04x}, only 0x01 and 0x81 exist")]
    Method(u8),
    /// Another attribute.
    #[error("unknown hello attribute {0:#06x}")]
    Attribute(u16),
    /// The peer does not know hellos. What it sends back may be our own, which says nothing of it.
    #[error("refused with status {0:#06x}")]
    Status(u16),
    /// One segment of several, where a hello needs one.
    #[error("a hello in segments")]
    Segmented,
    /// A version from before there were tokens.
    #[error("hello version {0} is not supported, only 2 and later")]
    Version(u16),
    /// More source ports than there is room for.
    #[error("{0} source ports, 16 at most")]
    TooManyPorts(u8),
    /// Credits on no lane or on more than there are, or of blocks of nothing.
    #[error(
        "credits on {lanes} lanes in blocks of {block} bytes, where 1 to 15 lanes and 1 byte are the least"
    )]
    Credits {
        /// The number of lanes.
        lanes: u8,
        /// The length of a block.
        block: u16,
    },
}

impl Hello {
    const PLACE: Place = Place::new(0, 0, MAD_LEN * 8);

    /// Reads a hello.
    ///
    /// # Errors
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

    /// Writes the datagram, reserved bits zero. One that breaks a rule of [`parse`](Self::parse) is written all the same.
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
