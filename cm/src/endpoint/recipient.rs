//! Who a message is for, without processing it.

use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{Body, CommId, Message, ServiceId};

/// Whom a message of connection management is for, where several endpoints share an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recipient {
    /// Whoever listens for this service: a REQ or SIDR_REQ.
    Service(ServiceId),
    /// The endpoint that made this communication ID or request ID. Its top byte is that of
    /// [`Config::slot`](crate::Config::slot).
    Holder(CommId),
    /// The message does not say: a REJ of a peer that gives a request up names only its own ID and GUID (IBTA 12.6.7).
    Anyone,
}

impl Recipient {
    /// Whom a datagram is for; `None` if it is not a message of connection management.
    #[must_use]
    pub fn of(mad: &[u8; MAD_LEN]) -> Option<Self> {
        let message = Message::parse(mad).ok()?;
        let id = match message.body {
            Body::Req(req) => return Some(Self::Service(req.service_id)),
            Body::SidrReq(req) => return Some(Self::Service(req.service_id)),
            Body::Mra(mra) => mra.remote_comm_id,
            Body::Rej(rej) => rej.remote_comm_id,
            Body::Rep(rep) => rep.remote_comm_id,
            Body::Rtu(rtu) => rtu.remote_comm_id,
            Body::Dreq(dreq) => dreq.remote_comm_id,
            Body::Drep(drep) => drep.remote_comm_id,
            Body::Lap(lap) => lap.remote_comm_id,
            Body::Apr(apr) => apr.remote_comm_id,
            Body::SidrRep(rep) => rep.request_id,
        };
        Some(if id.0 == 0 { Self::Anyone } else { Self::Holder(id) })
    }
}
