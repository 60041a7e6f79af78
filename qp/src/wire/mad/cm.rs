//! Connection management (IBTA 12.6): the messages with which two hosts establish and close a connection.
//!
//! ```text
//! active side              passive side
//!     REQ  ------------------->            queue pair, starting PSN, requested parameters
//!          <-------------------  REP       the same of the passive side (or REJ with a reason; or MRA: wait)
//!     RTU  ------------------->            data may flow
//!          <------------------>
//!     DREQ ------------------->            either side may close the connection
//!          <-------------------  DREP
//! ```
//!
//! SIDR_REQ and SIDR_REP resolve the queue pair that receives datagrams for a service. LAP and APR load an
//! alternate path, which RoCE does not have.
//!
//! Three messages carry the vendor's options of enhanced connection establishment (ECE): a vendor ID in what used to
//! be reserved bytes, and the options in the attribute modifier of the header.
//!
//! Structs hold plain values; private data is borrowed. As the specification requires, [`Message::parse`] ignores
//! reserved bits, and [`Message::emit`] writes them as zero. A value with more bits than its field is truncated.

pub use super::codes::{
    AprStatus, Attribute, CmTimeout, CommId, Failover, MtuCode, RejReason, SidrStatus, Subject, Transport,
};
pub use super::service::{IpCm, PortSpace, ServiceId};

use super::fields::{Field, Fields, Place, Value, group, message};
use super::{DATA_LEN, EmitError, Header, Mad, MadError, split};
use crate::ids::{Gid, PKey, Psn, QKey, Qpn};

/// The only supported version of connection management: that of release 1.1 and later of the specification.
pub const CLASS_VERSION: u8 = 2;

group! {
    /// A path as a request describes it: 44 bytes.
    Path {
        /// LID of the active side; 0xffff or 0 on RoCE, which has no LIDs.
        local_lid: u16 = 0[0; 16],
        /// LID of the passive side.
        remote_lid: u16 = 2[0; 16],
        /// Address of the active side.
        local_gid: Gid = 4[0; 128],
        /// Address of the passive side.
        remote_gid: Gid = 20[0; 128],
        /// Flow label, 20 bits.
        flow_label: u32 = 36[0; 20],
        /// Rate of the path, as a six-bit code (those of static rates, IBTA 9.11); 0 for the rate of the port.
        packet_rate: u8 = 39[2; 6],
        /// Traffic class.
        traffic_class: u8 = 40[0; 8],
        /// Hop limit.
        hop_limit: u8 = 41[0; 8],
        /// Service level, 4 bits.
        service_level: u8 = 42[0; 4],
        /// Whether both sides are in one subnet, with no router between them.
        subnet_local: bool = 42[4; 1],
        /// The acknowledgement timeout that the passive side uses.
        local_ack_timeout: CmTimeout = 43[0; 5],
    }
}

message! {
    /// Request for a connection (IBTA 12.6, table 106).
    Req {
        /// The active side's ID of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The vendor that the options in the attribute modifier belong to, 24 bits; 0 without options.
        vendor_id: u32 = 5[0; 24],
        /// The requested service.
        service_id: ServiceId = 8[0; 64],
        /// The GUID of the active side's device.
        local_ca_guid: u64 = 16[0; 64],
        /// Key of reliable datagrams; 0.
        local_qkey: QKey = 28[0; 32],
        /// The active side's queue pair.
        local_qpn: Qpn = 32[0; 24],
        /// Number of READs and atomics that the active side can have outstanding as responder.
        responder_resources: u8 = 35[0; 8],
        /// End-to-end context of reliable datagrams, 24 bits; 0.
        local_eecn: u32 = 36[0; 24],
        /// Number of READs and atomics that the active side wants to have outstanding as initiator.
        initiator_depth: u8 = 39[0; 8],
        /// The passive side's end-to-end context, 24 bits; 0.
        remote_eecn: u32 = 40[0; 24],
        /// Time that the passive side may take to answer.
        remote_cm_response_timeout: CmTimeout = 43[0; 5],
        /// The kind of connection.
        transport: Transport = 43[5; 2],
        /// Whether the active side implements end-to-end credits.
        end_to_end_flow_control: bool = 43[7; 1],
        /// The PSN that the passive side starts with.
        starting_psn: Psn = 44[0; 24],
        /// Time that the active side takes to answer.
        local_cm_response_timeout: CmTimeout = 47[0; 5],
        /// Retry count for the passive side; 3 bits.
        retry_count: u8 = 47[5; 3],
        /// The partition of the connection.
        pkey: PKey = 48[0; 16],
        /// The path MTU.
        path_mtu: MtuCode = 50[0; 4],
        /// Whether a reliable datagram channel exists; always false.
        rdc_exists: bool = 50[4; 1],
        /// RNR retry count for the passive side; 3 bits, 7 means without limit.
        rnr_retry_count: u8 = 50[5; 3],
        /// How often either side retries a connection management message; 4 bits.
        max_cm_retries: u8 = 51[0; 4],
        /// Whether the active side's queue pair uses a shared receive queue.
        srq: bool = 51[4; 1],
        /// The extended transport type, if the transport is [`Transport::Extended`]; 3 bits, 1 for XRC.
        extended_transport: u8 = 51[5; 3],
        /// The primary path.
        primary: Path = 52[0; 352],
        /// The alternate path; all zero if there is none.
        alternate: Path = 96[0; 352],
        @private 140
    }
}

message! {
    /// Message receipt acknowledgement: asks the sender of the acknowledged message to wait longer (IBTA 12.6,
    /// table 107).
    Mra {
        /// The sender's ID of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The receiver's ID of the connection.
        remote_comm_id: CommId = 4[0; 32],
        /// The message that has arrived.
        message: Subject = 8[0; 2],
        /// How long the answer will take.
        service_timeout: CmTimeout = 9[0; 5],
        @private 10
    }
}

message! {
    /// Reject: the connection is refused (IBTA 12.6, table 108).
    Rej {
        /// The sender's ID of the connection; 0 if none is assigned yet.
        local_comm_id: CommId = 0[0; 32],
        /// The receiver's ID of the connection.
        remote_comm_id: CommId = 4[0; 32],
        /// The rejected message.
        message: Subject = 8[0; 2],
        /// The reason.
        reason: RejReason = 10[0; 16],
        @info
        /// Additional information about the reason, at most 72 bytes, such as the value that would have been
        /// accepted.
        info = 12..84, length 9[0; 7],
        @private 84
    }
}

message! {
    /// Reply: the passive side's half of the connection (IBTA 12.6, table 110).
    Rep {
        /// The passive side's ID of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The active side's ID of the connection.
        remote_comm_id: CommId = 4[0; 32],
        /// Key of reliable datagrams; 0.
        local_qkey: QKey = 8[0; 32],
        /// The passive side's queue pair.
        local_qpn: Qpn = 12[0; 24],
        /// Bits 16 to 23 of the vendor ID; see [`Rep::vendor_id`].
        vendor_id_high: u8 = 15[0; 8],
        /// End-to-end context of reliable datagrams, 24 bits; 0. The queue pair of an XRC target.
        local_eecn: u32 = 16[0; 24],
        /// Bits 8 to 15 of the vendor ID.
        vendor_id_middle: u8 = 19[0; 8],
        /// The PSN that the active side starts with.
        starting_psn: Psn = 20[0; 24],
        /// Bits 0 to 7 of the vendor ID.
        vendor_id_low: u8 = 23[0; 8],
        /// Number of READs and atomics that the passive side can have outstanding as responder.
        responder_resources: u8 = 24[0; 8],
        /// Number of READs and atomics that the passive side wants to have outstanding as initiator.
        initiator_depth: u8 = 25[0; 8],
        /// Time that the passive side may take to acknowledge a packet.
        target_ack_delay: CmTimeout = 26[0; 5],
        /// Whether the alternate path is accepted.
        failover: Failover = 26[5; 2],
        /// Whether the passive side implements end-to-end credits.
        end_to_end_flow_control: bool = 26[7; 1],
        /// RNR retry count for the active side; 3 bits, 7 means without limit.
        rnr_retry_count: u8 = 27[0; 3],
        /// Whether the passive side's queue pair uses a shared receive queue.
        srq: bool = 27[3; 1],
        /// The GUID of the passive side's device.
        local_ca_guid: u64 = 28[0; 64],
        @private 36
    }
}

message! {
    /// Ready to use: the active side has received the reply (IBTA 12.6, table 111).
    Rtu {
        /// The active side's ID of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The passive side's ID of the connection.
        remote_comm_id: CommId = 4[0; 32],
        @private 8
    }
}

message! {
    /// Request to close a connection (IBTA 12.6, table 112).
    Dreq {
        /// The sender's ID of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The receiver's ID of the connection.
        remote_comm_id: CommId = 4[0; 32],
        /// The receiver's queue pair.
        remote_qpn: Qpn = 8[0; 24],
        @private 12
    }
}

message! {
    /// Reply to a request to close a connection (IBTA 12.6, table 113).
    Drep {
        /// The sender's ID of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The receiver's ID of the connection.
        remote_comm_id: CommId = 4[0; 32],
        @private 8
    }
}

group! {
    /// An alternate path as LAP describes it: 44 bytes. The fields are those of [`Path`], in other places.
    AlternatePath {
        /// LID of the sender; 0xffff or 0 on RoCE.
        local_lid: u16 = 0[0; 16],
        /// LID of the receiver.
        remote_lid: u16 = 2[0; 16],
        /// Address of the sender.
        local_gid: Gid = 4[0; 128],
        /// Address of the receiver.
        remote_gid: Gid = 20[0; 128],
        /// Flow label, 20 bits.
        flow_label: u32 = 36[0; 20],
        /// Traffic class.
        traffic_class: u8 = 39[0; 8],
        /// Hop limit.
        hop_limit: u8 = 40[0; 8],
        /// Rate of the path, as a six-bit code.
        packet_rate: u8 = 41[2; 6],
        /// Service level, 4 bits.
        service_level: u8 = 42[0; 4],
        /// Whether both sides are in one subnet.
        subnet_local: bool = 42[4; 1],
        /// The acknowledgement timeout that the receiver uses.
        local_ack_timeout: CmTimeout = 43[0; 5],
    }
}

message! {
    /// Load alternate path (IBTA 12.8, table 115).
    Lap {
        /// The sender's ID of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The receiver's ID of the connection.
        remote_comm_id: CommId = 4[0; 32],
        /// The receiver's queue pair.
        remote_qpn: Qpn = 12[0; 24],
        /// Time that the receiver may take to answer.
        remote_cm_response_timeout: CmTimeout = 15[0; 5],
        /// The path.
        alternate: AlternatePath = 20[0; 352],
        @private 64
    }
}

message! {
    /// Alternate path response (IBTA 12.8, table 116).
    Apr {
        /// The sender's ID of the connection.
        local_comm_id: CommId = 0[0; 32],
        /// The receiver's ID of the connection.
        remote_comm_id: CommId = 4[0; 32],
        /// Whether the path was loaded.
        status: AprStatus = 9[0; 8],
        @info
        /// Additional information about the status, at most 72 bytes.
        info = 12..84, length 8[0; 8],
        @private 84
    }
}

message! {
    /// Service ID resolution request (IBTA 12.11, table 119).
    SidrReq {
        /// The sender's ID of the request.
        request_id: CommId = 0[0; 32],
        /// The partition that it will send in.
        pkey: PKey = 4[0; 16],
        /// The service to resolve.
        service_id: ServiceId = 8[0; 64],
        @private 16
    }
}

message! {
    /// Service ID resolution reply (IBTA 12.11, table 120).
    SidrRep {
        /// The ID of the request.
        request_id: CommId = 0[0; 32],
        /// The outcome.
        status: SidrStatus = 4[0; 8],
        /// Bits 8 to 23 of the vendor ID; see [`SidrRep::vendor_id`].
        vendor_id_high: u16 = 6[0; 16],
        /// The queue pair of the service.
        qpn: Qpn = 8[0; 24],
        /// Bits 0 to 7 of the vendor ID.
        vendor_id_low: u8 = 11[0; 8],
        /// The service.
        service_id: ServiceId = 12[0; 64],
        /// The key that datagrams to it must carry.
        qkey: QKey = 20[0; 32],
        @info
        /// Additional information about the status, at most 72 bytes.
        info = 24..96, length 5[0; 8],
        @private 96
    }
}

impl<'a> Req<'a> {
    /// The addresses at the start of the private data, and the consumer's part of it. `None` if the service ID is
    /// not a port, or if there are no addresses in a known version.
    #[must_use]
    pub fn ip_cm(&self) -> Option<(IpCm, &'a [u8])> {
        self.service_id.port().and_then(|_| IpCm::parse(self.private_data))
    }
}

impl<'a> SidrReq<'a> {
    /// The addresses at the start of the private data, and the consumer's part of it, like [`Req::ip_cm`].
    #[must_use]
    pub fn ip_cm(&self) -> Option<(IpCm, &'a [u8])> {
        self.service_id.port().and_then(|_| IpCm::parse(self.private_data))
    }
}

impl Rep<'_> {
    /// The vendor that the options in the attribute modifier belong to, 24 bits; 0 without options.
    #[must_use]
    pub const fn vendor_id(&self) -> u32 {
        u32::from_be_bytes([0, self.vendor_id_high, self.vendor_id_middle, self.vendor_id_low])
    }

    /// The reply with this vendor ID, of which the low 24 bits are used.
    #[must_use]
    pub const fn with_vendor_id(self, id: u32) -> Self {
        let [_, vendor_id_high, vendor_id_middle, vendor_id_low] = id.to_be_bytes();
        Self { vendor_id_high, vendor_id_middle, vendor_id_low, ..self }
    }
}

impl SidrRep<'_> {
    /// The vendor that the options in the attribute modifier belong to, 24 bits; 0 without options.
    #[must_use]
    pub fn vendor_id(&self) -> u32 {
        u32::from(self.vendor_id_high) << 8 | u32::from(self.vendor_id_low)
    }

    /// The reply with this vendor ID, of which the low 24 bits are used.
    #[must_use]
    pub const fn with_vendor_id(self, id: u32) -> Self {
        Self { vendor_id_high: (id >> 8) as u16, vendor_id_low: id as u8, ..self }
    }
}

/// The content of a message.
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
    /// Request to close a connection.
    Dreq(Dreq<'a>),
    /// Reply to a request to close a connection.
    Drep(Drep<'a>),
    /// Service ID resolution request.
    SidrReq(SidrReq<'a>),
    /// Service ID resolution reply.
    SidrRep(SidrRep<'a>),
    /// Load alternate path.
    Lap(Lap<'a>),
    /// Alternate path response.
    Apr(Apr<'a>),
}

/// A connection management message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Chosen by the side that starts an exchange; all messages of the exchange carry it.
    pub transaction_id: u64,
    /// Options of the vendor in REQ, REP and SIDR_REP; 0 otherwise.
    pub attribute_modifier: u32,
    /// The content.
    pub body: Body<'a>,
}

impl<'a> Message<'a> {
    /// Parses a management datagram.
    ///
    /// # Errors
    ///
    /// The first reason why it is not a connection management message.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MadError> {
        Self::of(&Mad::parse(bytes)?)
    }

    /// Parses the data of a management datagram whose header is already parsed.
    ///
    /// # Errors
    ///
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
            Attribute::Lap => Body::Lap(Lap::read(data)),
            Attribute::Apr => Body::Apr(Apr::read(data)),
        };
        Ok(Self {
            transaction_id: header.transaction_id,
            attribute_modifier: header.attribute_modifier,
            body,
        })
    }

    /// The message type.
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
            attribute_modifier: self.attribute_modifier,
        }
    }

    /// Writes the datagram to the start of `out`: [`MAD_LEN`](super::MAD_LEN) bytes.
    ///
    /// # Errors
    ///
    /// [`EmitError::NoRoom`], and [`EmitError::TooLong`] for private data or additional information. The content of
    /// `out` is unspecified then.
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
            Body::Lap(lap) => lap.write(data),
            Body::Apr(apr) => apr.write(data),
        }
    }

    /// The addresses at the start of a request's private data, and the consumer's part of it.
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
    /// The fields of the body, followed by the addresses in the private data, if any.
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
            Body::Lap(lap) => lap.each(visit),
            Body::Apr(apr) => apr.each(visit),
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

/// Writes `bytes` starting at `from`; at most `to - from` fit.
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
