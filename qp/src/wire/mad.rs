//! Management datagrams (MADs): the messages of queue pair 1.
//!
//! ```text
//! | header 24 | data 232 |
//! ```
//!
//! A MAD always has 256 bytes (IBTA 13.4.2) and is the payload of an unreliable datagram to queue pair 1. [`Mad`]
//! represents one of any class. [`cm`] reads and writes connection management messages, with which two hosts
//! establish a connection; [`hello`] those with which a port detects whether a peer is an rnic port.

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
/// Length of the header in bytes.
pub const HEADER_LEN: usize = 24;
/// Length of the data after the header, in bytes.
pub const DATA_LEN: usize = MAD_LEN - HEADER_LEN;

group! {
    /// The common header of all management datagrams (IBTA 13.4.3).
    Header {
        /// Version of the header: 1.
        base_version: u8 = 0[0; 8],
        /// Management class, which selects the handler.
        class: u8 = 1[0; 8],
        /// Version of the class.
        class_version: u8 = 2[0; 8],
        /// The method; the top bit marks a response.
        method: u8 = 3[0; 8],
        /// The outcome, in responses.
        status: u16 = 4[0; 16],
        /// Available to the class.
        class_specific: u16 = 6[0; 16],
        /// Chosen by the requester, repeated by the responder.
        transaction_id: u64 = 8[0; 64],
        /// The object of the method.
        attribute_id: u16 = 16[0; 16],
        /// Further selects the object.
        attribute_modifier: u32 = 20[0; 32],
    }
}

impl Header {
    /// The only version of the header.
    pub const BASE_VERSION: u8 = 1;
    /// The management class of connection management.
    pub const CLASS_CM: u8 = 0x07;
    /// The method of connection management: it only has Send.
    pub const METHOD_SEND: u8 = 0x03;

    const PLACE: Place = Place::new(0, 0, HEADER_LEN * 8);
}

/// Why bytes are not a management datagram, or not a connection management message. Such a datagram is dropped and
/// counted; only one with another class version may be answered, with a REJ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum MadError {
    /// The length is not that of a management datagram.
    #[error("management datagram of {len} bytes; the length must be 256")]
    Length {
        /// The length in bytes.
        len: usize,
    },
    /// The header version is not 1.
    #[error("management header version {0}, only 1 exists")]
    BaseVersion(u8),
    /// The class is not connection management.
    #[error("management class {0:#04x} is not connection management (0x07)")]
    Class(u8),
    /// The version of connection management is not 2.
    #[error("connection management version {0}, only 2 is known")]
    ClassVersion(u8),
    /// The method is not Send.
    #[error("connection management method {0:#04x} is unknown; only 0x03 exists")]
    Method(u8),
    /// The attribute is not a connection management message.
    #[error("unknown connection management attribute {0:#06x}")]
    Attribute(u16),
}

/// Why a management datagram cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum EmitError {
    /// The buffer is too short.
    #[error("a management datagram takes 256 bytes; the buffer has {len}")]
    NoRoom {
        /// Length of the buffer in bytes.
        len: usize,
    },
    /// The data is too long for a field.
    #[error("{field} has {len} bytes; at most {max} fit")]
    TooLong {
        /// Name of the field.
        field: &'static str,
        /// Length of the data in bytes.
        len: usize,
        /// Capacity of the field in bytes.
        max: usize,
    },
}

/// A management datagram of any class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad<'a> {
    /// The header.
    pub header: Header,
    /// The data, in the format of the class.
    pub data: &'a [u8; DATA_LEN],
}

impl<'a> Mad<'a> {
    /// Parses a datagram.
    ///
    /// # Errors
    ///
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

    /// Writes the datagram to the start of `out`, with reserved bits set to zero.
    ///
    /// # Errors
    ///
    /// [`EmitError::NoRoom`].
    pub fn emit(&self, out: &mut [u8]) -> Result<(), EmitError> {
        let (header, data) = split(out)?;
        self.header.put(header, Header::PLACE);
        *data = *self.data;
        Ok(())
    }
}

/// The zeroed header and data of a datagram at the start of `out`.
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
    /// The management datagram in the packet, if the packet is for queue pair 1 and has the right length. Processes
    /// that share an address each have their own queue pair 1, with their slot in the top byte. For other peers
    /// that is an ordinary queue pair number, so only an unmistakable [`Hello`](hello::Hello) is accepted there.
    #[must_use]
    pub fn mad(&self) -> Option<&'a [u8; MAD_LEN]> {
        /// The part of a queue pair number below the slot.
        const NUMBER: u32 = 0xffff;
        let mad: &'a [u8; MAD_LEN] =
            self.payload().try_into().ok().filter(|_| self.opcode() == Opcode::UdSendOnly)?;
        let qpn = self.dest_qpn();
        let is_of_slot = || qpn.value() & NUMBER == Qpn::GSI.value() && hello::Hello::parse(mad).is_ok();
        (qpn == Qpn::GSI || is_of_slot()).then_some(mad)
    }
}
