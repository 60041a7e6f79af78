//! Connections: connect, accept, reject, disconnect, and the attributes of their queue pairs.

use super::abi;
use super::abi::ConnParam;
use super::name::Name;
use super::nic::Nic;
use super::pipe::PipeId;
use super::state::{Id, Link, Stage, State};
use super::{Ucma, refused};
use crate::abi::kernel::QpAttr as KernelAttr;
use crate::abi::*;
use crate::ah::kernel_attributes;
use crate::errno::Errno;
use crate::hub::locked;
use rnic::cm::protocol::{
    Accept, CallError, Connect, Ece, Endpoint, IpCm, Placement, RejReason, Reply, Resolve, SidrStatus,
    UDP_QKEY, unconnected,
};
use rnic::time::Instant;
use rnic::{PKey, QKey, QpAttr, QpState, QpType, Qpn};
use zerocopy::{FromZeros, IntoBytes};

/// The private data that a command carries.
fn private(of: &ConnParam) -> &[u8] {
    of.private_data.get(..of.private_data_len.into()).unwrap_or_default()
}

const fn ece(of: abi::Ece) -> Ece {
    Ece { vendor_id: of.vendor_id, options: of.attr_mod }
}

impl Ucma {
    /// Carries out a command about a connection, under the lock of its port, which comes first, and that of the state.
    fn at_port<R>(
        &self,
        channel: PipeId,
        id: u32,
        act: impl FnOnce(&mut Endpoint, Instant, &mut State, &Nic) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let device = locked(&self.state).id(channel, id)?.device.ok_or(Errno::INVALID)?;
        let nic = self.nics.get(device)?;
        let result = nic.manager.call(|endpoint, now| {
            let mut state = locked(&self.state);
            // The program may have destroyed it meanwhile.
            state.id(channel, id)?;
            act(endpoint, now, &mut state, &nic)
        });
        result.map_err(Errno::from).flatten()
    }

    pub(super) fn connect(&self, channel: PipeId, command: &abi::Connect) -> Result<(), Errno> {
        if command.param.valid == 0 {
            return Err(Errno::INVALID);
        }
        self.at_port(channel, command.id, |endpoint, now, state, nic| {
            let id = state.id(channel, command.id)?;
            if id.stage != Stage::RouteResolved {
                let text =
                    "connecting needs an identifier whose route was resolved, and which has no connection";
                return Err(Errno::INVALID.because(text));
            }
            let link = if id.qp_type == QpType::Ud {
                Link::Resolution(ask(endpoint, now, id, command)?)
            } else {
                Link::Connection(request(endpoint, now, id, command)?)
            };
            id.stage = Stage::Connecting;
            state.tie(command.id, nic.index, link);
            Ok(())
        })
    }

    pub(super) fn accept(&self, channel: PipeId, command: &abi::Accept) -> Result<(), Errno> {
        self.at_port(channel, command.id, |endpoint, now, state, nic| {
            let id = state.id(channel, command.id)?;
            if id.stage != Stage::Connecting {
                return Err(Errno::INVALID.because("the identifier has no connection"));
            }
            let param = &command.param;
            let done = match id.link {
                Some(Link::Connection(connection)) if param.valid == 0 => {
                    endpoint.establish(now, connection, &[])
                }
                Some(Link::Connection(connection)) => {
                    let accept = Accept {
                        qpn: Qpn::new(param.qp_num),
                        srq: param.srq != 0,
                        responder_resources: param.responder_resources,
                        initiator_depth: param.initiator_depth,
                        rnr_retry_count: param.rnr_retry_count.min(7),
                        flow_control: param.flow_control != 0,
                        ece: ece(command.ece),
                        private_data: private(param),
                    };
                    endpoint.accept(now, connection, &accept)
                }
                Some(Link::Query(query)) => {
                    let qkey = own_qkey(id, param.qkey);
                    let (qpn, ece) = (Qpn::new(param.qp_num), ece(command.ece));
                    let status = SidrStatus::Valid;
                    endpoint.reply(
                        now,
                        query,
                        &Reply { status, qpn, qkey, ece, private_data: private(param) },
                    )
                }
                Some(Link::Resolution(_)) | None => return Err(Errno::INVALID),
            };
            let link = id.link;
            match (done, link) {
                (Ok(()), _) => {
                    if param.valid != 0 {
                        id.uid = command.uid;
                    }
                    if let Some(link @ Link::Query(_)) = link {
                        state.untie(nic.index, link);
                    }
                    Ok(())
                }
                (Err(error), Some(Link::Connection(connection))) => {
                    // As the kernel does, whose peer would wait for nothing.
                    let consumer = RejReason::ConsumerDefined;
                    if endpoint.reject(now, connection, consumer, &[], &[]).is_ok() {
                        state.untie(nic.index, Link::Connection(connection));
                    }
                    Err(refused(error))
                }
                (Err(error), _) => Err(refused(error)),
            }
        })
    }

    pub(super) fn reject(&self, channel: PipeId, command: &abi::Reject) -> Result<(), Errno> {
        let reason = match command.reason {
            0 => RejReason::ConsumerDefined,
            code => RejReason::from_code(code.into()),
        };
        // IB_CM_REJ_CONSUMER_DEFINED and IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED.
        if !matches!(reason.code(), 28 | 35) {
            return Err(Errno::INVALID.because("programs reject with reason 28 or 35"));
        }
        let private_data = command.private_data.get(..command.private_data_len.into()).unwrap_or_default();
        self.at_port(channel, command.id, |endpoint, now, state, nic| {
            let link = state.id(channel, command.id)?.link.ok_or(Errno::INVALID)?;
            match link {
                Link::Connection(connection) => {
                    endpoint.reject(now, connection, reason, &[], private_data).map_err(refused)?;
                }
                Link::Query(query) => {
                    let reply = Reply { private_data, ..no_queue_pair() };
                    endpoint.reply(now, query, &reply).map_err(refused)?;
                }
                Link::Resolution(_) => return Err(Errno::INVALID),
            }
            state.untie(nic.index, link);
            Ok(())
        })
    }

    pub(super) fn disconnect(&self, channel: PipeId, command: &abi::Disconnect) -> Result<(), Errno> {
        self.at_port(channel, command.id, |endpoint, now, state, _| {
            let id = state.id(channel, command.id)?;
            match (id.link, id.stage) {
                // `rdma_disconnect` of the kernel does not say whether there was anything to end.
                (Some(Link::Connection(connection)), _) => drop(endpoint.disconnect(now, connection, &[])),
                (_, Stage::Connecting | Stage::Listening) => {}
                _ => return Err(Errno::INVALID.because("the identifier has no connection")),
            }
            Ok(())
        })
    }

    pub(super) fn notify(&self, channel: PipeId, command: &abi::Notify) -> Result<(), Errno> {
        self.at_port(channel, command.id, |endpoint, now, state, _| {
            let link = state.id(channel, command.id)?.link;
            let Some(Link::Connection(connection)) = link else { return Err(Errno::INVALID) };
            // There is no alternate path that IBV_EVENT_PATH_MIG could mean.
            if command.event != IBV_EVENT_COMM_EST {
                return Err(Errno::INVALID);
            }
            endpoint.communication_established(now, connection).map_err(refused)
        })
    }

    pub(super) fn init_qp_attr(
        &self,
        channel: PipeId,
        command: &abi::InitQpAttr,
    ) -> Result<KernelAttr, Errno> {
        let state = QpState::from_code(command.qp_state).ok_or(Errno::INVALID)?;
        let (own, device, is_tied) = {
            let mut state = locked(&self.state);
            let id = state.id(channel, command.id)?;
            let device = id.device.ok_or(Errno::INVALID)?;
            ((id.qp_type, id.options.ack_timeout), device, id.stage == Stage::Connecting)
        };
        let (qp_type, ack_timeout) = own;
        let nic = self.nics.get(device)?;
        let pkeys = nic.hub.device.pkeys();
        let placement = |pkey: PKey| Placement {
            sgid_index: nic.hub.address_index() as u8,
            pkey_index: pkeys.iter().position(|own| pkey.matches(*own)).unwrap_or(0) as u16,
            ..Placement::default()
        };
        if qp_type == QpType::Ud || !is_tied {
            return Ok(kernel_attr(&unconnected(qp_type, &placement(PKey::DEFAULT)), command.qp_state));
        }
        let link = locked(&self.state).id(channel, command.id)?.link;
        let Some(Link::Connection(connection)) = link else { return Err(Errno::INVALID) };
        let found = nic.manager.look(|endpoint| {
            let pkey = endpoint.negotiated(connection)?.path.pkey;
            endpoint.attributes(connection, state, &placement(pkey))
        })?;
        let mut attr = found.map_err(refused)?;
        if let (Some(timeout), Some(_)) = (ack_timeout, attr.timeout) {
            attr.timeout = Some(timeout);
        }
        Ok(kernel_attr(&attr, command.qp_state))
    }
}

/// The answer to a query that the program rejects.
pub(super) fn no_queue_pair() -> Reply<'static> {
    let status = SidrStatus::Rejected;
    Reply { status, qpn: Qpn::default(), qkey: QKey(0), ece: Ece::default(), private_data: &[] }
}

/// The key of an identifier's datagrams. Only a program that uses addresses of InfiniBand may choose it.
fn own_qkey(id: &Id, qkey: u32) -> QKey {
    if matches!(id.src, Some(Name::Ib(_))) && qkey != 0 { QKey(qkey) } else { UDP_QKEY }
}

/// The addresses that a request carries. Those of InfiniBand name a service instead.
fn addresses(id: &Id) -> Result<Option<IpCm>, Errno> {
    let (Some(src), Some(dst)) = (id.src, id.dst) else { return Err(Errno::INVALID) };
    let is_ip = !matches!(dst, Name::Ib(_));
    Ok(is_ip.then(|| IpCm { src_port: src.port(), src: src.ip(), dst: dst.ip() }))
}

/// The service that an identifier connects to.
fn service(id: &Id) -> Result<rnic::cm::protocol::ServiceId, Errno> {
    match id.dst.ok_or(Errno::INVALID)? {
        Name::Ib(name) => Ok(rnic::cm::protocol::ServiceId(u64::from_be(name.sid))),
        dst => Ok(id.space.service(dst.port())),
    }
}

fn request(
    endpoint: &mut Endpoint,
    now: Instant,
    id: &Id,
    command: &abi::Connect,
) -> Result<rnic::cm::protocol::ConnectionId, Errno> {
    let param = &command.param;
    let connect = Connect {
        addresses: addresses(id)?,
        qp_type: id.qp_type,
        srq: param.srq != 0,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        flow_control: param.flow_control != 0,
        ece: ece(command.ece),
        private_data: private(param),
        ..Connect::new(service(id)?, id.path.ok_or(Errno::INVALID)?, Qpn::new(param.qp_num))
    };
    endpoint.connect(now, &connect).map_err(refused)
}

/// Asks for the queue pair of a service of datagrams.
fn ask(
    endpoint: &mut Endpoint,
    now: Instant,
    id: &Id,
    command: &abi::Connect,
) -> Result<rnic::cm::protocol::ResolutionId, Errno> {
    let resolve = Resolve {
        addresses: addresses(id)?,
        private_data: private(&command.param),
        ..Resolve::new(service(id)?, id.path.ok_or(Errno::INVALID)?)
    };
    endpoint.resolve(now, &resolve).map_err(refused)
}

/// The attributes as the kernel's interface has them, with the bits of those that are set.
fn kernel_attr(attr: &QpAttr, state: u32) -> KernelAttr {
    let mut to = KernelAttr::new_zeroed();
    (to.qp_state, to.qp_attr_mask) = (state, IBV_QP_STATE);
    macro_rules! set {
        ($($field:ident, $bit:ident, $value:expr;)*) => {$(
            if let Some(value) = attr.$field {
                to.$field = $value(value);
                to.qp_attr_mask |= $bit;
            }
        )*};
    }
    set! {
        qp_access_flags, IBV_QP_ACCESS_FLAGS, |flags: rnic::Access| flags.bits();
        pkey_index, IBV_QP_PKEY_INDEX, |index| index;
        port_num, IBV_QP_PORT, |port| port;
        qkey, IBV_QP_QKEY, |key: QKey| key.0;
        path_mtu, IBV_QP_PATH_MTU, |mtu| mtu as u32;
        rq_psn, IBV_QP_RQ_PSN, |psn: rnic::Psn| psn.value();
        sq_psn, IBV_QP_SQ_PSN, |psn: rnic::Psn| psn.value();
        max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC, |count| count;
        max_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC, |count| count;
        min_rnr_timer, IBV_QP_MIN_RNR_TIMER, |timer| timer;
        timeout, IBV_QP_TIMEOUT, |timeout| timeout;
        retry_cnt, IBV_QP_RETRY_CNT, |count| count;
        rnr_retry, IBV_QP_RNR_RETRY, |count| count;
        ah_attr, IBV_QP_AV, |way| kernel_attributes(&way);
    }
    if let Some(qpn) = attr.dest_qp_num {
        to.dest_qp_num = qpn.value();
        to.qp_attr_mask |= IBV_QP_DEST_QPN;
    }
    debug_assert_eq!(to.as_bytes().len(), 144);
    to
}

/// The number that the kernel answers to a call which the endpoint refuses.
pub(super) fn errno_of(error: CallError) -> Errno {
    let number = match error {
        CallError::AlreadyEstablished => libc::EISCONN,
        CallError::AddressInUse => libc::EADDRINUSE,
        CallError::Full { .. } => libc::ENOMEM,
        _ => libc::EINVAL,
    };
    Errno(number).because(error)
}
