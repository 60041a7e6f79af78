//! Connection management (IBTA 12.6): the messages by which two hosts make a connection and end it.
//!
//! ```text
//! active side              passive side
//!     REQ  ------------------->            my queue pair, the PSN to begin with, what I want to do
//!          <-------------------  REP       the same of mine (or REJ: no, because...; or MRA: wait)
//!     RTU  ------------------->            data may flow
//!          <------------------>
//!     DREQ ------------------->            either side may end it
//!          <-------------------  DREP
//! ```
//!
//! SIDR_REQ and SIDR_REP ask which queue pair takes datagrams for a service. LAP and APR load another path, which
//! RoCE does not have: they are known by name only.
//!
//! Structs hold plain values; private data is borrowed. [`Message::parse`] ignores reserved bits, and
//! [`Message::emit`] writes them as zero, as the specification wants. A value that has more bits than its field is
//! cut to them.

pub use super::codes::{
    Attribute, CmTimeout, CommId, Failover, MtuCode, RejReason, SidrStatus, Subject, Transport,
};
pub use super::service::{IpCm, PortSpace, ServiceId};

use super::fields::{Field, Fields, Place, Value, group, message};
use super::{DATA_LEN, EmitError, Header, Mad, MadError, split};
use crate::ids::{Gid, PKey, Psn, QKey, Qpn};

/// The version of connection management that there is: that of release 1.1 and later of the specification.
pub const CLASS_VERSION: u8 = 2;

group! {
    /// A path as a request describes it: 44 bytes.
    Path {
        /// LID of the active side; 0xffff or 0 over RoCE, which has none.
        local_lid: u16 = 0[0; 16],
        /// LID of the passive side.
        remote_lid: u16 = 2[0; 16],
        /// Address of the active side.
        local_gid: Gid = 4[0; 128],
        /// Address of the passive side.
        remote_gid: Gid = 20[0; 128],
        /// Flow label, 20 bits.
        flow_label: u32 = 36[0; 20],
        /// How fast the path is, as a code of six bits (those of static rates, IBTA 9.11); 0 for the rate of the port.
        packet_rate: u8 = 39[2; 6],
        /// Traffic class.
        traffic_class: u8 = 40[0; 8],
        /// Hop limit.
        hop_limit: u8 = 41[0; 8],
        /// Service level, 4 bits.
        service_level: u8 = 42[0; 4],
        /// Whether no router lies between the two.
        subnet_local: bool = 42[4; 1],
        /// After which time without an acknowledgement the passive side is to send again.
        local_ack_timeout: CmTimeout = 43[0; 5],
    }
}

message! {
    /// Request for a connection (IBTA 12.6, table 106).
    Req {
        /// The active side's number of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// What it wants to talk to.
        service_id: ServiceId = 8[0; 64],
        /// The GUID of the active side's device.
        local_ca_guid: u64 = 16[0; 64],
        /// Key of reliable datagrams; 0.
        local_qkey: QKey = 28[0; 32],
        /// The active side's queue pair.
        local_qpn: Qpn = 32[0; 24],
        /// How many READs and atomics the active side can answer at a time.
        responder_resources: u8 = 35[0; 8],
        /// End-to-end context of reliable datagrams, 24 bits; 0.
        local_eecn: u32 = 36[0; 24],
        /// How many READs and atomics the active side wants to have outstanding.
        initiator_depth: u8 = 39[0; 8],
        /// The passive side's end-to-end context, 24 bits; 0.
        remote_eecn: u32 = 40[0; 24],
        /// How long the passive side may take to answer.
        remote_cm_response_timeout: CmTimeout = 43[0; 5],
        /// The kind of connection.
        transport: Transport = 43[5; 2],
        /// Whether the active side keeps to end-to-end credits.
        end_to_end_flow_control: bool = 43[7; 1],
        /// The PSN with which the passive side is to begin.
        starting_psn: Psn = 44[0; 24],
        /// How long the active side will take to answer.
        local_cm_response_timeout: CmTimeout = 47[0; 5],
        /// How often the passive side is to send again without an acknowledgement; 3 bits.
        retry_count: u8 = 47[5; 3],
        /// The partition of the connection.
        pkey: PKey = 48[0; 16],
        /// How long packets may be.
        path_mtu: MtuCode = 50[0; 4],
        /// Whether there is a reliable datagram channel; no.
        rdc_exists: bool = 50[4; 1],
        /// How often the passive side is to send again to a receiver that is not ready; 3 bits, 7 for without end.
        rnr_retry_count: u8 = 50[5; 3],
        /// How often either side sends a message of connection management again; 4 bits.
        max_cm_retries: u8 = 51[0; 4],
        /// Whether the active side's queue pair receives from a shared queue.
        srq: bool = 51[4; 1],
        /// More on the kind of connection, where [`Transport::Extended`] says so; 3 bits, 1 for XRC.
        extended_transport: u8 = 51[5; 3],
        /// The path.
        primary: Path = 52[0; 352],
        /// Another path, all zero where there is none.
        alternate: Path = 96[0; 352],
        @private 140
    }
}

message! {
    /// Message receipt acknowledgement: the sender of the acknowledged message is to wait longer (IBTA 12.6, table 107).
    Mra {
        /// The sender's number of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The receiver's number of the connection.
        remote_comm_id: CommId = 4[0; 32],
        /// Which message has arrived.
        message: Subject = 8[0; 2],
        /// How long the answer will take.
        service_timeout: CmTimeout = 9[0; 5],
        @private 10
    }
}

message! {
    /// Reject: there will be no connection (IBTA 12.6, table 108).
    Rej {
        /// The sender's number of the connection; 0 if it has given none.
        local_comm_id: CommId = 0[0; 32],
        /// The receiver's number of the connection.
        remote_comm_id: CommId = 4[0; 32],
        /// Which message is rejected.
        message: Subject = 8[0; 2],
        /// Why.
        reason: RejReason = 10[0; 16],
        @info
        /// More on the reason: at most 72 bytes, such as the value that would have been accepted.
        info = 12..84, length 9[0; 7],
        @private 84
    }
}

message! {
    /// Reply: the passive side's half of the connection (IBTA 12.6, table 110).
    Rep {
        /// The passive side's number of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The active side's number of the connection.
        remote_comm_id: CommId = 4[0; 32],
        /// Key of reliable datagrams; 0.
        local_qkey: QKey = 8[0; 32],
        /// The passive side's queue pair.
        local_qpn: Qpn = 12[0; 24],
        /// End-to-end context of reliable datagrams, 24 bits; 0.
        local_eecn: u32 = 16[0; 24],
        /// The PSN with which the active side is to begin.
        starting_psn: Psn = 20[0; 24],
        /// How many READs and atomics the passive side can answer at a time.
        responder_resources: u8 = 24[0; 8],
        /// How many READs and atomics the passive side wants to have outstanding.
        initiator_depth: u8 = 25[0; 8],
        /// How long the passive side may take to acknowledge a packet.
        target_ack_delay: CmTimeout = 26[0; 5],
        /// What it makes of the alternate path.
        failover: Failover = 26[5; 2],
        /// Whether the passive side keeps to end-to-end credits.
        end_to_end_flow_control: bool = 26[7; 1],
        /// How often the active side is to send again to a receiver that is not ready; 3 bits, 7 for without end.
        rnr_retry_count: u8 = 27[0; 3],
        /// Whether the passive side's queue pair receives from a shared queue.
        srq: bool = 27[3; 1],
        /// The GUID of the passive side's device.
        local_ca_guid: u64 = 28[0; 64],
        @private 36
    }
}

message! {
    /// Ready to use: the active side has the reply (IBTA 12.6, table 111).
    Rtu {
        /// The active side's number of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The passive side's number of the connection.
        remote_comm_id: CommId = 4[0; 32],
        @private 8
    }
}

message! {
    /// Request for the end of a connection (IBTA 12.6, table 112).
    Dreq {
        /// The sender's number of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The receiver's number of the connection.
        remote_comm_id: CommId = 4[0; 32],
        /// The receiver's queue pair.
        remote_qpn: Qpn = 8[0; 24],
        @private 12
    }
}

message! {
    /// Reply to the request for the end (IBTA 12.6, table 113).
    Drep {
        /// The sender's number of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The receiver's number of the connection.
        remote_comm_id: CommId = 4[0; 32],
        @private 8
    }
}

message! {
    /// Service ID resolution request (IBTA 12.11, table 119).
    SidrReq {
        /// The sender's number of the request.
        request_id: CommId = 0[0; 32],
        /// The partition in which it will send.
        pkey: PKey = 4[0; 16],
        /// The service whose queue pair it wants to know.
        service_id: ServiceId = 8[0; 64],
        @private 16
    }
}

message! {
    /// Service ID resolution reply (IBTA 12.11, table 120).
    SidrRep {
        /// The number of the request.
        request_id: CommId = 0[0; 32],
        /// How it went.
        status: SidrStatus = 4[0; 8],
        /// The queue pair of the service.
        qpn: Qpn = 8[0; 24],
        /// The service.
        service_id: ServiceId = 12[0; 64],
        /// The key that datagrams to it must carry.
        qkey: QKey = 20[0; 32],
        @info
        /// More on the status: at most 72 bytes.
        info = 24..96, length 5[0; 8],
        @private 96
    }
}

impl<'a> Req<'a> {
    /// The addresses with which the private data begins, and the consumer's part of it. `None` if the service is no
    /// port, or where there are no addresses of a version that is known.
    #[must_use]
    pub fn ip_cm(&self) -> Option<(IpCm, &'a [u8])> {
        self.service_id.port().and_then(|_| IpCm::parse(self.private_data))
    }
}

impl<'a> SidrReq<'a> {
    /// The addresses with which the private data begins, and the consumer's part of it; as [`Req::ip_cm`].
    #[must_use]
    pub fn ip_cm(&self) -> Option<(IpCm, &'a [u8])> {
        self.service_id.port().and_then(|_| IpCm::parse(self.private_data))
    }
}

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// Request for a connection.
    Req(Req<'a>),
    /// Message receipt acknowledgement.
    Mra(Mra<'a>),
    /// Reject.
    Rej(Rej<'a>),
    /// Reply.
    Rep(Rep<'a>),
    /// Ready to use.
    Rtu(Rtu<'a>),
    /// Request for the end of a connection.
    Dreq(Dreq<'a>),
    /// Reply to that.
    Drep(Drep<'a>),
    /// Service ID resolution request.
    SidrReq(SidrReq<'a>),
    /// Service ID resolution reply.
    SidrRep(SidrRep<'a>),
    /// Load alternate path: not read any further.
    Lap(&'a [u8; DATA_LEN]),
    /// Alternate path response: not read any further.
    Apr(&'a [u8; DATA_LEN]),
}

/// A message of connection management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Chosen by whoever begins an exchange, and the same in all messages of it.
    pub transaction_id: u64,
    /// What it says.
    pub body: Body<'a>,
}

impl<'a> Message<'a> {
    /// Reads a management datagram.
    ///
    /// # Errors
    /// The first thing that makes it no message of connection management.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MadError> {
        Self::of(&Mad::parse(bytes)?)
    }

    /// Reads the data of a management datagram whose header was read.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn of(mad: &Mad<'a>) -> Result<Self, MadError> {
        let Mad { header, data } = *mad;
        if header.class != Header::CLASS_CM {
            return Err(MadError::Class(header.class));
        }
        if header.class_version != CLASS_VERSION {
            return Err(MadError::ClassVersion(header.class_version));
        }
        if header.method != Header::METHOD_SEND {
            return Err(MadError::Method(header.method));
        }
        let attribute =
            Attribute::from_u16(header.attribute_id).ok_or(MadError::Attribute(header.attribute_id))?;
        let body = match attribute {
            Attribute::Req => Body::Req(Req::read(data)),
            Attribute::Mra => Body::Mra(Mra::read(data)),
            Attribute::Rej => Body::Rej(Rej::read(data)),
            Attribute::Rep => Body::Rep(Rep::read(data)),
            Attribute::Rtu => Body::Rtu(Rtu::read(data)),
            Attribute::Dreq => Body::Dreq(Dreq::read(data)),
            Attribute::Drep => Body::Drep(Drep::read(data)),
            Attribute::SidrReq => Body::SidrReq(SidrReq::read(data)),
            Attribute::SidrRep => Body::SidrRep(SidrRep::read(data)),
            Attribute::Lap => Body::Lap(data),
            Attribute::Apr => Body::Apr(data),
        };
        Ok(Self { transaction_id: header.transaction_id, body })
    }

    /// Which message it is.
    #[must_use]
    pub const fn attribute(&self) -> Attribute {
        match self.body {
            Body::Req(_) => Attribute::Req,
            Body::Mra(_) => Attribute::Mra,
            Body::Rej(_) => Attribute::Rej,
            Body::Rep(_) => Attribute::Rep,
            Body::Rtu(_) => Attribute::Rtu,
            Body::Dreq(_) => Attribute::Dreq,
            Body::Drep(_) => Attribute::Drep,
            Body::SidrReq(_) => Attribute::SidrReq,
            Body::SidrRep(_) => Attribute::SidrRep,
            Body::Lap(_) => Attribute::Lap,
            Body::Apr(_) => Attribute::Apr,
        }
    }

    /// The header of the datagram that carries it.
    #[must_use]
    pub const fn header(&self) -> Header {
        Header {
            base_version: Header::BASE_VERSION,
            class: Header::CLASS_CM,
            class_version: CLASS_VERSION,
            method: Header::METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction_id: self.transaction_id,
            attribute_id: self.attribute() as u16,
            attribute_modifier: 0,
        }
    }

    /// Writes the datagram to the front of `out`: [`MAD_LEN`](super::MAD_LEN) bytes.
    ///
    /// # Errors
    /// [`EmitError::NoRoom`], and [`EmitError::TooLong`] for private data or additional information; what stands in
    /// `out` then means nothing.
    pub fn emit(&self, out: &mut [u8]) -> Result<(), EmitError> {
        let (header, data) = split(out)?;
        self.header().put(header, Header::PLACE);
        match &self.body {
            Body::Req(req) => req.write(data),
            Body::Mra(mra) => mra.write(data),
            Body::Rej(rej) => rej.write(data),
            Body::Rep(rep) => rep.write(data),
            Body::Rtu(rtu) => rtu.write(data),
            Body::Dreq(dreq) => dreq.write(data),
            Body::Drep(drep) => drep.write(data),
            Body::SidrReq(req) => req.write(data),
            Body::SidrRep(rep) => rep.write(data),
            Body::Lap(bytes) | Body::Apr(bytes) => {
                *data = **bytes;
                Ok(())
            }
        }
    }

    /// The addresses with which a request for a port begins its private data, and the consumer's part of that.
    #[must_use]
    pub fn ip_cm(&self) -> Option<(IpCm, &'a [u8])> {
        match &self.body {
            Body::Req(req) => req.ip_cm(),
            Body::SidrReq(req) => req.ip_cm(),
            _ => None,
        }
    }
}

impl Fields for Message<'_> {
    /// The fields of the body; addresses that a request has in its private data come last.
    fn each(&self, visit: &mut dyn FnMut(&'static str, Value<'_>)) {
        match &self.body {
            Body::Req(req) => req.each(visit),
            Body::Mra(mra) => mra.each(visit),
            Body::Rej(rej) => rej.each(visit),
            Body::Rep(rep) => rep.each(visit),
            Body::Rtu(rtu) => rtu.each(visit),
            Body::Dreq(dreq) => dreq.each(visit),
            Body::Drep(drep) => drep.each(visit),
            Body::SidrReq(req) => req.each(visit),
            Body::SidrRep(rep) => rep.each(visit),
            Body::Lap(bytes) | Body::Apr(bytes) => visit("data", Value::Bytes(&bytes[..])),
        }
        if let Some((ip_cm, _)) = self.ip_cm() {
            visit("ip_cm", Value::Group(&ip_cm));
        }
    }
}

/// The bytes from `from` to `to`.
fn part(data: &[u8; DATA_LEN], from: usize, to: usize) -> &[u8] {
    data.get(from..to).unwrap_or(&[])
}

/// Writes `bytes` from `from` on, where `to - from` fit.
fn fill(
    data: &mut [u8; DATA_LEN],
    from: usize,
    to: usize,
    bytes: &[u8],
    field: &'static str,
) -> Result<(), EmitError> {
    let room = data.get_mut(from..to).unwrap_or(&mut []);
    let max = room.len();
    let target = room.get_mut(..bytes.len()).ok_or(EmitError::TooLong { field, len: bytes.len(), max })?;
    target.copy_from_slice(bytes);
    Ok(())
}
