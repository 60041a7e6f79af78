//! Messages of netlink: a header (`struct nlmsghdr`), and attributes (`struct nlattr`), all in the byte order of the host
//! and at multiples of four bytes.

/// The length of the header.
pub(super) const HEADER: usize = 16;

/// The length of the header of an attribute.
pub(super) const ATTRIBUTE: usize = 4;

/// The bits of the type of an attribute that are its number; the others are flags.
const NUMBER: u16 = 0x3fff;

/// The flag of an attribute whose value is attributes (`NLA_F_NESTED`).
const NESTED: u16 = 0x8000;

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) len: u32,
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) seq: u32,
    pub(super) port: u32,
}

/// An attribute: its number and its value.
pub(super) type Attribute<'a> = (u16, &'a [u8]);

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Header {
    /// The header at the beginning of these bytes; `None` if they are too short.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            len: u32_at(bytes, 0)?,
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            seq: u32_at(bytes, 8)?,
            port: u32_at(bytes, 12)?,
        })
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&self.len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.seq.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.port.to_ne_bytes());
        bytes
    }

    /// A message with this header, whose length it corrects, and this body.
    pub(super) fn message(mut self, body: &[u8]) -> Vec<u8> {
        self.len = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
        [&self.bytes(), body].concat()
    }
}

/// A length rounded up to where the next message or attribute starts.
pub(super) fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// The attributes in these bytes. `None` if the length of one is wrong.
pub(super) fn attributes(mut bytes: &[u8]) -> Option<Vec<Attribute<'_>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let len = usize::from(u16_at(bytes, 0)?);
        let number = u16_at(bytes, 2)? & NUMBER;
        all.push((number, bytes.get(ATTRIBUTE..len)?));
        // The last one may end without its padding.
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
    }
    Some(all)
}

/// The attributes of an answer.
#[derive(Default)]
pub(super) struct Body(pub(super) Vec<u8>);

impl Body {
    fn put(mut self, number: u16, value: &[u8]) -> Self {
        let Ok(len) = u16::try_from(ATTRIBUTE + value.len()) else { return self };
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&number.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(aligned(self.0.len()), 0);
        self
    }

    pub(super) fn u8(self, number: u16, value: u8) -> Self {
        self.put(number, &[value])
    }

    pub(super) fn u32(self, number: u16, value: u32) -> Self {
        self.put(number, &value.to_ne_bytes())
    }

    pub(super) fn u64(self, number: u16, value: u64) -> Self {
        self.put(number, &value.to_ne_bytes())
    }

    /// A string, with the NUL that ends it.
    pub(super) fn text(self, number: u16, value: &str) -> Self {
        self.put(number, &[value.as_bytes(), &[0]].concat())
    }

    /// Attributes within an attribute.
    pub(super) fn nested(self, number: u16, inner: &Self) -> Self {
        self.put(number | NESTED, &inner.0)
    }

    /// An attribute that may be missing.
    pub(super) fn maybe<T>(self, value: Option<T>, put: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => put(self, value),
            None => self,
        }
    }
}
