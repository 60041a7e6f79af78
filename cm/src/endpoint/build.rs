//! The messages of a connection, written from its state.

use super::table::Connection;
use crate::error::CallError;
use crate::params::{Accept, Connect, Ece};
use qp::wire::mad::cm::{
    Apr, AprStatus, Attribute, Body, CmTimeout, CommId, Drep, Dreq, Failover, IpCm, Lap, Message, Mra, Path,
    Rej, RejReason, Rep, Req, Rtu, Subject, Transport,
};
use qp::wire::mad::{EmitError, MAD_LEN, Mad};
use qp::{Psn, QpType};

type Bytes = [u8; MAD_LEN];

/// Writes a message without options of a vendor.
fn plain(transaction_id: u64, body: Body<'_>) -> Result<Bytes, CallError> {
    write(&Message { transaction_id, attribute_modifier: 0, body })
}

/// Writes a message. Data that does not fit is the program's mistake.
pub(super) fn write(message: &Message<'_>) -> Result<Bytes, CallError> {
    let mut bytes = [0; MAD_LEN];
    match message.emit(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(EmitError::TooLong { len, max, .. }) => {
            Err(CallError::PrivateDataTooLong { message: message.attribute().name(), len, max })
        }
        // The buffer has the length of a datagram.
        Err(EmitError::NoRoom { .. }) => Ok(bytes),
    }
}

/// The type of a message that this crate wrote.
pub(super) fn attribute(mad: &Bytes) -> Option<Attribute> {
    Mad::parse(mad).ok().and_then(|mad| Attribute::from_u16(mad.header.attribute_id))
}

/// The program's data after the addresses, which take the start of the private data.
pub(super) fn with_addresses(
    addresses: Option<&IpCm>,
    private_data: &[u8],
    message: &'static str,
    capacity: usize,
) -> Result<Vec<u8>, CallError> {
    let mut all = addresses.map(|addresses| addresses.to_bytes().to_vec()).unwrap_or_default();
    let (len, max) = (private_data.len(), capacity - all.len());
    if len > max {
        return Err(CallError::PrivateDataTooLong { message, len, max });
    }
    all.extend_from_slice(private_data);
    Ok(all)
}

/// The transport of a REQ for this type of queue pair, with the extended transport type.
pub(super) const fn transport(qp_type: QpType) -> Option<(Transport, u8)> {
    match qp_type {
        QpType::Rc => Some((Transport::Rc, 0)),
        QpType::Uc => Some((Transport::Uc, 0)),
        QpType::XrcSend => Some((Transport::Extended, XRC)),
        _ => None,
    }
}

/// The extended transport type of XRC.
pub(super) const XRC: u8 = 1;

/// Identity of a connection to be requested.
pub(super) struct Identity {
    pub(super) id: CommId,
    pub(super) transaction_id: u64,
    pub(super) ca_guid: u64,
    pub(super) psn: Psn,
    pub(super) ack_timeout: CmTimeout,
}

pub(super) fn req(connect: &Connect<'_>, identity: &Identity) -> Result<Bytes, CallError> {
    let wrong = CallError::WrongType { call: "connect", qp_type: connect.qp_type };
    let (transport, extended_transport) = transport(connect.qp_type).ok_or(wrong)?;
    let private_data =
        with_addresses(connect.addresses.as_ref(), connect.private_data, "REQ", Req::PRIVATE_DATA_LEN)?;
    let path = &connect.path;
    // RoCE has no LIDs. Linux writes the permissive LID if there may be routers, else 0.
    let is_local = path.to.hop_limit <= 1;
    let lid = if is_local { 0 } else { 0xffff };
    // An XRC initiator serves nothing and has no receive queue; its retry counts are its own.
    let serves = connect.qp_type != QpType::XrcSend;
    let only = |value: u8| if serves { value } else { 0 };
    let body = Body::Req(Req {
        local_comm_id: identity.id,
        vendor_id: connect.ece.vendor_id,
        service_id: connect.service_id,
        local_ca_guid: identity.ca_guid,
        local_qpn: connect.qpn,
        responder_resources: only(connect.responder_resources),
        initiator_depth: connect.initiator_depth,
        remote_cm_response_timeout: connect.remote_response_timeout,
        transport,
        end_to_end_flow_control: connect.flow_control,
        starting_psn: identity.psn,
        local_cm_response_timeout: connect.local_response_timeout,
        retry_count: only(connect.retry_count),
        pkey: path.pkey,
        path_mtu: path.mtu.into(),
        rnr_retry_count: only(connect.rnr_retry_count),
        max_cm_retries: connect.max_cm_retries,
        srq: connect.srq && serves,
        extended_transport,
        primary: Path {
            local_lid: lid,
            remote_lid: lid,
            local_gid: path.to.local,
            remote_gid: path.to.remote,
            flow_label: path.to.flow_label,
            packet_rate: path.packet_rate,
            traffic_class: path.to.traffic_class,
            hop_limit: path.to.hop_limit,
            service_level: path.to.sl,
            subnet_local: is_local,
            local_ack_timeout: identity.ack_timeout,
        },
        private_data: &private_data,
        ..Req::default()
    });
    let Ece { options, .. } = connect.ece;
    write(&Message { transaction_id: identity.transaction_id, attribute_modifier: options, body })
}

pub(super) fn rep(
    id: CommId,
    connection: &Connection,
    accept: &Accept<'_>,
    ca_guid: u64,
    ack_delay: CmTimeout,
) -> Result<Bytes, CallError> {
    // Over RoCE there are no alternate paths.
    let asked = connection.passive.is_some_and(|passive| passive.alternate);
    let common = Rep {
        local_comm_id: id,
        remote_comm_id: connection.remote_comm_id,
        starting_psn: connection.negotiated.rq_psn,
        responder_resources: accept.responder_resources,
        target_ack_delay: ack_delay,
        failover: if asked { Failover::NotSupported } else { Failover::Accepted },
        rnr_retry_count: accept.rnr_retry_count,
        local_ca_guid: ca_guid,
        private_data: accept.private_data,
        ..Rep::default()
    }
    .with_vendor_id(accept.ece.vendor_id);
    let rep = if connection.negotiated.qp_type == QpType::XrcRecv {
        // As Linux does: the number is where an end-to-end context would be.
        Rep { local_eecn: accept.qpn.value(), srq: true, ..common }
    } else {
        Rep {
            local_qpn: accept.qpn,
            initiator_depth: accept.initiator_depth,
            end_to_end_flow_control: accept.flow_control,
            srq: accept.srq,
            ..common
        }
    };
    let (transaction_id, attribute_modifier) = (connection.transaction_id, accept.ece.options);
    write(&Message { transaction_id, attribute_modifier, body: Body::Rep(rep) })
}

pub(super) fn rtu(id: CommId, connection: &Connection, private_data: &[u8]) -> Result<Bytes, CallError> {
    let rtu = Rtu { local_comm_id: id, remote_comm_id: connection.remote_comm_id, private_data };
    plain(connection.transaction_id, Body::Rtu(rtu))
}

/// The REJ of a connection in its state. If this side has not sent an ID yet, it is 0 (IBTA 12.6.7).
pub(super) fn rej(
    id: CommId,
    connection: &Connection,
    reason: RejReason,
    info: &[u8],
    private_data: &[u8],
) -> Result<Bytes, CallError> {
    use crate::state::State;
    let (local_comm_id, message) = match connection.state {
        State::ReqReceived(_) => (CommId(0), Subject::Req),
        State::RepReceived(_) => (id, Subject::Rep),
        _ => (id, Subject::Other),
    };
    let remote_comm_id = connection.remote_comm_id;
    let rej = Rej { local_comm_id, remote_comm_id, message, reason, info, private_data };
    plain(connection.transaction_id, Body::Rej(rej))
}

/// The MRA of a connection; its length always fits.
pub(super) fn mra(
    id: CommId,
    connection: &Connection,
    message: Subject,
    service_timeout: CmTimeout,
) -> Bytes {
    let remote_comm_id = connection.remote_comm_id;
    let mra = Mra { local_comm_id: id, remote_comm_id, message, service_timeout, private_data: &[] };
    plain(connection.transaction_id, Body::Mra(mra)).unwrap_or([0; MAD_LEN])
}

pub(super) fn dreq(
    id: CommId,
    connection: &Connection,
    transaction_id: u64,
    private_data: &[u8],
) -> Result<Bytes, CallError> {
    let remote_qpn = connection.negotiated.remote_qpn.unwrap_or_default();
    let remote_comm_id = connection.remote_comm_id;
    plain(transaction_id, Body::Dreq(Dreq { local_comm_id: id, remote_comm_id, remote_qpn, private_data }))
}

pub(super) fn drep(
    (local_comm_id, remote_comm_id): (CommId, CommId),
    transaction_id: u64,
    private_data: &[u8],
) -> Result<Bytes, CallError> {
    plain(transaction_id, Body::Drep(Drep { local_comm_id, remote_comm_id, private_data }))
}

/// The answer to a request for an alternate path, with both IDs the other way round.
pub(super) fn apr(transaction_id: u64, lap: &Lap<'_>, status: AprStatus) -> Result<Bytes, CallError> {
    let (local_comm_id, remote_comm_id) = (lap.remote_comm_id, lap.local_comm_id);
    plain(transaction_id, Body::Apr(Apr { local_comm_id, remote_comm_id, status, ..Apr::default() }))
}

/// A REJ of a message for which there is no connection.
pub(super) fn stateless_rej(transaction_id: u64, rej: Rej<'_>) -> Result<Bytes, CallError> {
    plain(transaction_id, Body::Rej(rej))
}
