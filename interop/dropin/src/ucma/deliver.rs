//! Events of the endpoints become events of the channels.
//!
//! An endpoint delivers with the lock of its port held, so nothing here calls a port.

use super::Ucma;
use super::abi::{ConnParam, Ece, event};
use super::name::Name;
use super::nic::News;
use super::state::{Id, Link, Stage, State, Waiting, answer, conn_param, ud_param};
use crate::ah::kernel_attributes;
use crate::hub::locked;
use rnic::AddressVector;
use rnic::cm::ConnectError;
use rnic::cm::protocol::{
    self, ConnectionId, Destination, DisconnectCause, Event, FailCause, IpCm, ListenerId, RejReason, Request,
    Resolved, Response, ServiceId,
};
use std::net::{IpAddr, SocketAddr};
use zerocopy::IntoBytes;

/// The status of events about peers that did not answer.
const TIMED_OUT: i32 = -libc::ETIMEDOUT;

/// The private data of a REJ, in bytes.
const REJ_PRIVATE: usize = 148;

impl Ucma {
    /// Takes what a device tells.
    pub(super) fn deliver(&self, device: usize, news: News) {
        let mut state = locked(&self.state);
        match news {
            News::Event(event) => state.on_event(device, event),
            News::Failed => state.on_removal(device),
        }
    }
}

/// The sender of a request, and the service that it wants.
struct Peer {
    addresses: Option<IpCm>,
    to: Destination,
    service: ServiceId,
    pkey: u16,
}

impl Peer {
    /// The local and the remote address of the new identifier, of the listener's family.
    fn names(&self, listener: &Name) -> (Name, Name) {
        let (local, remote) = (self.to.local, self.to.remote);
        if let Name::Ib(_) = listener {
            let name = |gid, service| Name::of_gid(gid, self.pkey, service);
            return (name(local, self.service), name(remote, ServiceId(0)));
        }
        let port = self.service.0 as u16;
        // The addresses of the request, if there are any: those of the packet may be written differently.
        let (src, src_port, dst) = match self.addresses {
            Some(IpCm { src, src_port, dst }) => (src, src_port, dst),
            None => (remote.ip(), 0, local.ip()),
        };
        let name = |ip: IpAddr, port| {
            let mut name = match ip {
                IpAddr::V4(_) => Name::V4(std::net::SocketAddrV4::new([0; 4].into(), 0)),
                IpAddr::V6(_) => {
                    Name::V6(std::net::SocketAddrV6::new([0; 16].into(), 0, 0, listener.scope_id()))
                }
            };
            name = name.at(ip, listener.scope_id());
            name.set_port(port);
            name
        };
        (name(dst, port), name(src, src_port))
    }
}

impl State {
    fn on_event(&mut self, device: usize, happened: Event) {
        self.explain(device, &happened);
        match happened {
            Event::ConnectRequest { connection, request } => {
                self.on_request(device, connection, &request);
            }
            Event::ResolveRequest { query, request } => {
                let link = Link::Query(query);
                let peer = Peer {
                    addresses: request.addresses,
                    to: request.to,
                    service: request.service_id,
                    pkey: request.pkey.0,
                };
                let param = ud_param(&request.private_data);
                self.announce(device, request.listener, link, &peer, None, param.as_bytes(), Ece::default());
            }
            Event::ConnectResponse { connection, response } => {
                let (param, ece) = response_param(&response);
                self.of_link(device, Link::Connection(connection), |state, id| {
                    state.tell_with(id, event::CONNECT_RESPONSE, 0, param.as_bytes(), ece);
                });
            }
            Event::Established { connection, .. } => {
                self.of_link(device, Link::Connection(connection), |state, id| {
                    state.tell(id, event::ESTABLISHED, 0);
                });
            }
            Event::Rejected { connection, rejection } => {
                let status = i32::from(rejection.reason.code());
                self.refused(device, connection, status, &rejection.private_data);
            }
            Event::Failed { connection, cause } => self.on_failure(device, connection, cause),
            Event::Disconnected { connection, cause } => self.on_end(device, connection, cause),
            Event::TimeWaitExit { connection } => {
                let link = Link::Connection(connection);
                self.of_link(device, link, |state, id| state.tell(id, event::TIMEWAIT_EXIT, 0));
                self.untie(device, link);
            }
            Event::Resolved { resolution, resolved } => {
                let link = Link::Resolution(resolution);
                let sgid_index = crate::devices::layout().address_index();
                self.of_link(device, link, |state, id| state.on_resolved(id, &resolved, sgid_index));
                self.untie(device, link);
            }
            Event::NotResolved { resolution, status, private_data } => {
                let link = Link::Resolution(resolution);
                let status = status.map_or(TIMED_OUT, |status| i32::from(status.code()));
                let param = ud_param(&private_data);
                self.of_link(device, link, |state, id| {
                    state.tell_with(id, event::UNREACHABLE, status, param.as_bytes(), Ece::default());
                });
                self.untie(device, link);
            }
            // The port finds out itself whether it is so.
            Event::StaleSuspected { .. } => {}
        }
    }

    /// Says why a connection is not made, or a service not resolved: the program sees a number.
    fn explain(&self, device: usize, happened: &Event) {
        if !rnic::explain::is_on() {
            return;
        }
        let link = match happened {
            Event::Rejected { connection, .. } | Event::Failed { connection, .. } => {
                Link::Connection(*connection)
            }
            Event::NotResolved { resolution, .. } => Link::Resolution(*resolution),
            _ => return,
        };
        let id = self.links.get(&(device, link)).and_then(|id| self.ids.get(id));
        let Some(peer) = id.and_then(|id| id.dst.as_ref()) else { return };
        let to = SocketAddr::new(peer.ip(), peer.port());
        let why = match happened {
            Event::Rejected { rejection, .. } => ConnectError::rejected(to, rejection.clone()),
            Event::Failed { cause, .. } => ConnectError::failed(to, *cause),
            Event::NotResolved { status, .. } => ConnectError::not_resolved(to, *status),
            _ => return,
        };
        rnic::explain::say("connections", format_args!("rdma_cm: {why}"));
    }

    /// A device has failed: its identifiers are told, as if it had been removed. Listeners at all addresses stay, as they
    /// belong to none.
    fn on_removal(&mut self, device: usize) {
        let of_device = self.ids.iter().filter(|(_, id)| id.device == Some(device));
        let ids: Vec<u32> = of_device.map(|(number, _)| *number).collect();
        for id in ids {
            self.tell(id, event::DEVICE_REMOVAL, 0);
        }
    }

    /// Does something for the identifier of a link, if the program has one.
    fn of_link(&mut self, device: usize, link: Link, act: impl FnOnce(&mut Self, u32)) {
        if let Some(id) = self.links.get(&(device, link)).copied() {
            act(self, id);
        }
    }

    fn on_request(&mut self, device: usize, connection: ConnectionId, request: &Request) {
        let peer = Peer {
            addresses: request.addresses,
            to: request.path.to,
            service: request.service_id,
            pkey: request.path.pkey.0,
        };
        let mut param = conn_param(&request.private_data);
        param.qp_num = request.remote_qpn.value();
        param.srq = request.srq.into();
        param.responder_resources = request.responder_resources;
        param.initiator_depth = request.initiator_depth;
        param.flow_control = request.flow_control.into();
        param.retry_count = request.retry_count;
        param.rnr_retry_count = request.rnr_retry_count;
        let (link, path) = (Link::Connection(connection), Some(request.path));
        self.announce(device, request.listener, link, &peer, path, param.as_bytes(), ece(request.ece));
    }

    /// A listener's event about a new identifier. It is counted for the listener, and bears its name.
    #[expect(clippy::too_many_arguments, reason = "the parts of one event")]
    fn announce(
        &mut self,
        device: usize,
        listener: ListenerId,
        link: Link,
        peer: &Peer,
        path: Option<protocol::Path>,
        param: &[u8],
        ece: Ece,
    ) {
        let number = self.listeners.get(&(device, listener)).copied();
        let Some((number, listening)) = number.and_then(|number| Some((number, self.ids.get(&number)?)))
        else {
            self.orphans.push((device, link));
            return;
        };
        let Some(bound) = listening.src else { return };
        let mut id = Id::new(listening.channel, 0, listening.space, listening.qp_type);
        let (uid, options) = (listening.uid, listening.options);
        let (src, dst) = peer.names(&bound);
        (id.src, id.dst, id.path) = (Some(src), Some(dst), path);
        (id.stage, id.options) = (Stage::Connecting, options);
        let new = self.add_id(id);
        self.tie(new, device, link);
        let answer = answer(uid, new, event::CONNECT_REQUEST, 0, param, ece);
        self.queue(number, Waiting { announces: Some(new), ..Waiting::new(number, answer) });
    }

    fn refused(&mut self, device: usize, connection: ConnectionId, status: i32, private_data: &[u8]) {
        let link = Link::Connection(connection);
        let param = conn_param(private_data);
        self.of_link(device, link, |state, id| {
            state.tell_with(id, event::REJECTED, status, param.as_bytes(), Ece::default());
        });
        self.untie(device, link);
    }

    fn on_failure(&mut self, device: usize, connection: ConnectionId, cause: FailCause) {
        match cause {
            FailCause::Unreachable { .. } => {
                let link = Link::Connection(connection);
                self.of_link(device, link, |state, id| state.tell(id, event::UNREACHABLE, TIMED_OUT));
                self.untie(device, link);
            }
            // The kernel waits as long as the peer does, which then says so by this reason.
            FailCause::Expired | FailCause::Evicted | FailCause::QueuePair => {
                self.refused(device, connection, RejReason::Timeout.code().into(), &[0; REJ_PRIVATE]);
            }
        }
    }

    fn on_end(&mut self, device: usize, connection: ConnectionId, cause: DisconnectCause) {
        self.of_link(device, Link::Connection(connection), |state, id| match cause {
            DisconnectCause::Peer | DisconnectCause::Answered => state.tell(id, event::DISCONNECTED, 0),
            DisconnectCause::Unanswered => state.tell(id, event::DISCONNECTED, TIMED_OUT),
            // As in the kernel, a REJ is told as a REJ, whenever it comes.
            DisconnectCause::Rejected(reason) => {
                let (status, param) = (i32::from(reason.code()), conn_param(&[0; REJ_PRIVATE]));
                state.tell_with(id, event::REJECTED, status, param.as_bytes(), Ece::default());
            }
        });
    }

    /// The peer has named its queue pair for datagrams.
    fn on_resolved(&mut self, id: u32, resolved: &Resolved, sgid_index: u32) {
        let mut param = ud_param(&resolved.private_data);
        (param.qp_num, param.qkey) = (resolved.qpn.value(), resolved.qkey.0);
        let to = resolved.path.to;
        param.ah_attr = kernel_attributes(&AddressVector {
            dgid: to.remote,
            sgid_index: sgid_index as u8,
            hop_limit: to.hop_limit,
            traffic_class: to.traffic_class,
            flow_label: to.flow_label,
            sl: to.sl,
            port_num: 1,
            is_global: true,
        });
        self.tell_with(id, event::ESTABLISHED, 0, param.as_bytes(), ece(resolved.ece));
    }
}

fn response_param(response: &Response) -> (ConnParam, Ece) {
    let mut param = conn_param(&response.private_data);
    param.qp_num = response.remote_qpn.value();
    param.srq = response.srq.into();
    param.responder_resources = response.responder_resources;
    param.initiator_depth = response.initiator_depth;
    param.flow_control = response.flow_control.into();
    param.rnr_retry_count = response.rnr_retry_count;
    (param, ece(response.ece))
}

const fn ece(of: protocol::Ece) -> Ece {
    Ece { vendor_id: of.vendor_id, attr_mod: of.options }
}
