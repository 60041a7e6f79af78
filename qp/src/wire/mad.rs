//! Management datagrams (MADs): what queue pair 1 sends and receives.
//!
//! ```text
//! | header 24 | data 232 |
//! ```
//!
//! Always 256 bytes (IBTA 13.4.2), as the payload of an unreliable datagram to queue pair 1. [`Mad`] is one of any
//! class; [`cm`] reads and writes those of connection management, by which two hosts agree on a connection, and
//! [`hello`] those by which a port finds out whether a peer is one of ours.

pub mod cm;
pub mod codes;
mod fields;
pub mod hello;
mod pretty;
pub mod service;
#[cfg(test)]
mod tests;

pub use fields::{Fields, Value};
pub use pretty::Summary;

use crate::ids::Qpn;
use crate::wire::opcode::Opcode;
use crate::wire::packet::Packet;
use fields::{Field, Place, group};
use thiserror::Error;

/// Length of a management datagram in bytes.
pub const MAD_LEN: usize = 256;
/// Length of its header in bytes.
pub const HEADER_LEN: usize = 24;
/// Length of what follows the header, in bytes.
pub const DATA_LEN: usize = MAD_LEN - HEADER_LEN;

group! {
    /// The header that all management datagrams have (IBTA 13.4.3).
    Header {
        /// Version of the header: 1.
        base_version: u8 = 0[0; 8],
        /// Management class: who is to handle it.
        class: u8 = 1[0; 8],
        /// Version of the class.
        class_version: u8 = 2[0; 8],
        /// What is to be done: the top bit says response.
        method: u8 = 3[0; 8],
        /// How it went; of responses.
        status: u16 = 4[0; 16],
        /// Free for the class.
        class_specific: u16 = 6[0; 16],
        /// Chosen by whoever asks, repeated by whoever answers.
        transaction_id: u64 = 8[0; 64],
        /// What it is done to.
        attribute_id: u16 = 16[0; 16],
        /// More about that.
        attribute_modifier: u32 = 20[0; 32],
    }
}

impl Header {
    /// The only version of the header.
    pub const BASE_VERSION: u8 = 1;
    /// The management class of connection management.
    pub const CLASS_CM: u8 = 0x07;
    /// The method of connection management: there is no other than to send.
    pub const METHOD_SEND: u8 = 0x03;

    const PLACE: Place = Place::new(0, 0, HEADER_LEN * 8);
}

/// Why bytes are not a management datagram, or not one of connection management. Such a datagram is dropped and
/// counted; only one of another class version may be answered, by a REJ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum MadError {
    /// Not the length of a management datagram.
    #[error("a management datagram of {len} bytes, where all have 256")]
    Length {
        /// Its length.
        len: usize,
    },
    /// A header of a version other than 1.
    #[error("management header version {0}, only 1 exists")]
    BaseVersion(u8),
    /// Of another class than connection management.
    #[error("management class {0:#04x} is not connection management (0x07)")]
    Class(u8),
    /// Another version of connection management than 2.
    #[error("connection management version {0}, only 2 is known")]
    ClassVersion(u8),
    /// Another method than "send".
    #[error("connection management method {0:#04x}, only 0x03 exists")]
    Method(u8),
    /// No message of connection management.
    #[error("unknown connection management attribute {0:#06x}")]
    Attribute(u16),
}

/// Why a management datagram cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum EmitError {
    /// The buffer is too short.
    #[error("a management datagram takes 256 bytes, the buffer has {len}")]
    NoRoom {
        /// Length of the buffer.
        len: usize,
    },
    /// Too many bytes for a field.
    #[error("{field} of {len} bytes, where {max} fit")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its length.
        len: usize,
        /// How many bytes fit.
        max: usize,
    },
}

/// A management datagram of any class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad<'a> {
    /// The header.
    pub header: Header,
    /// What the class makes of the rest.
    pub data: &'a [u8; DATA_LEN],
}

impl<'a> Mad<'a> {
    /// Takes a datagram apart.
    ///
    /// # Errors
    /// [`MadError::Length`] and [`MadError::BaseVersion`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MadError> {
        let length = MadError::Length { len: bytes.len() };
        let (header, data) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(length)?;
        let data = data.try_into().map_err(|_| length)?;
        let header = Header::get(header, Header::PLACE);
        if header.base_version != Header::BASE_VERSION {
            return Err(MadError::BaseVersion(header.base_version));
        }
        Ok(Self { header, data })
    }

    /// Writes the datagram to the front of `out`, reserved bits zero.
    ///
    /// # Errors
    /// [`EmitError::NoRoom`].
    pub fn emit(&self, out: &mut [u8]) -> Result<(), EmitError> {
        let (header, data) = split(out)?;
        self.header.put(header, Header::PLACE);
        *data = *self.data;
        Ok(())
    }
}

/// The header and the data of a datagram to be written at the front of `out`, zero.
fn split(out: &mut [u8]) -> Result<(&mut [u8; HEADER_LEN], &mut [u8; DATA_LEN]), EmitError> {
    let len = out.len();
    let (header, data) = out
        .split_first_chunk_mut::<HEADER_LEN>()
        .and_then(|(header, rest)| Some((header, rest.first_chunk_mut::<DATA_LEN>()?)))
        .ok_or(EmitError::NoRoom { len })?;
    header.fill(0);
    data.fill(0);
    Ok((header, data))
}

impl<'a> Packet<'a> {
    /// The management datagram that the packet carries, if it is for queue pair 1 and has the length of one. Processes that
    /// share an address have a queue pair 1 each, with their slot above it; elsewhere that is an ordinary number, so only a
    /// [`Hello`](hello::Hello), which is like nothing else, counts there.
    #[must_use]
    pub fn mad(&self) -> Option<&'a [u8; MAD_LEN]> {
        /// Of a queue pair number, what is below the slot.
        const NUMBER: u32 = 0xffff;
        let mad: &'a [u8; MAD_LEN] =
            self.payload().try_into().ok().filter(|_| self.opcode() == Opcode::UdSendOnly)?;
        let qpn = self.dest_qpn();
        let is_of_slot = || qpn.value() & NUMBER == Qpn::GSI.value() && hello::Hello::parse(mad).is_ok();
        (qpn == Qpn::GSI || is_of_slot()).then_some(mad)
    }
}
