//! Requests for connections: what a REQ must pass before a program hears of it.
//!
//! In this order, as Linux does: whether the address is genuine; whether the REQ came before; whether it names the
//! queue pair of a connection that exists; whether somebody listens; whether this side can do what it asks.

use super::answers::Hold;
use super::messages::Outcome;
use super::table::{Connection, NoRoom, Passive, RequestKey};
use super::{Endpoint, build};
use crate::config::{Config, StalePolicy};
use crate::counters::DropReason;
use crate::event::{Event, FailCause};
use crate::negotiated::Negotiated;
use crate::params::{Destination, Ece, Listen, Path, Request, Source};
use crate::state::{Input, State};
use crate::{ConnectionId, ListenerId};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{
    self, Body, CmTimeout, CommId, IpCm, Message, Rej, RejReason, Req, ServiceId, SidrStatus, Transport,
};
use qp::{Gid, Mtu, QpType, Qpn};
use time::{Duration, Instant};

/// A REQ that is not for a program, and why.
enum Verdict {
    /// Answer with REJ.
    Reject(RejReason),
    /// Answer nothing.
    Drop(DropReason),
}

impl From<DropReason> for Verdict {
    fn from(reason: DropReason) -> Self {
        Self::Drop(reason)
    }
}

impl Endpoint {
    pub(super) fn on_req(
        &mut self,
        now: Instant,
        source: &Source,
        message: &Message<'_>,
        req: &Req<'_>,
        bytes: &[u8; MAD_LEN],
    ) -> Outcome {
        // Otherwise a REQ could send REPs, and later data, to somebody else.
        if req.primary.local_gid != source.remote {
            return Err(DropReason::ForgedAddress);
        }
        if req.local_qpn.value() <= Qpn::GSI.value() || req.local_qpn == Qpn::MULTICAST {
            return Err(DropReason::Malformed);
        }
        let key = (source.remote, req.local_ca_guid, req.local_comm_id);
        if let Some(id) = self.table.by_request(&key) {
            return self.on_req_again(now, id, source, message, req);
        }
        match self.admit(now, source, message, req, key) {
            Ok(()) => Ok(()),
            Err(Verdict::Drop(reason)) => Err(reason),
            Err(Verdict::Reject(RejReason::InvalidServiceId)) => self.hold(now, source, message, bytes),
            Err(Verdict::Reject(reason)) => self.reject_request(source, message, req, reason),
        }
    }

    /// The REQ has arrived before.
    fn on_req_again(
        &mut self,
        now: Instant,
        id: CommId,
        source: &Source,
        message: &Message<'_>,
        req: &Req<'_>,
    ) -> Outcome {
        let Some(connection) = self.table.get(id) else { return Err(DropReason::UnknownConnection) };
        if !connection.is_from(source) {
            return Err(DropReason::NotThisConnection);
        }
        if connection.negotiated.remote_qpn != Some(req.local_qpn)
            || connection.transaction_id != message.transaction_id
        {
            // The peer uses its ID for two connections.
            return self.reject_request(source, message, req, RejReason::DuplicateLocalCommId);
        }
        match connection.state {
            State::ReqReceived(wait) => self.answer_wait(now, id, cm::Subject::Req, wait),
            // REP or REJ.
            State::RepSent(_) | State::Refused => {
                self.repeat(now, id);
                Ok(())
            }
            State::TimeWait => self.reject_request(source, message, req, RejReason::StaleConnection),
            _ => Err(DropReason::Duplicate),
        }
    }

    /// Answers a REQ that has no connection.
    fn reject_request(
        &mut self,
        source: &Source,
        message: &Message<'_>,
        req: &Req<'_>,
        reason: RejReason,
    ) -> Outcome {
        self.counters.rejected += 1;
        // A GID that would do (IBTA 12.6.7).
        let info: &[u8] = if reason == RejReason::InvalidGid { &source.local.0 } else { &[] };
        let rej = Rej { remote_comm_id: req.local_comm_id, reason, info, ..Rej::default() };
        self.answer(source, build::stateless_rej(message.transaction_id, rej))
    }

    /// Keeps a REQ or SIDR_REQ for which nobody listens yet, if there is room.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        source: &Source,
        message: &Message<'_>,
        bytes: &[u8; MAD_LEN],
    ) -> Outcome {
        let Config { hold, limits, .. } = self.config;
        let kept =
            if hold.is_zero() { Hold::Full } else { self.held.push(now + hold, source, bytes, &limits) };
        match kept {
            Hold::Kept => {
                self.counters.held += 1;
                Ok(())
            }
            Hold::Known => Err(DropReason::Duplicate),
            Hold::Full => self.refuse_service(source, message),
        }
    }

    /// Answers a REQ or SIDR_REQ for which nobody listens.
    fn refuse_service(&mut self, source: &Source, message: &Message<'_>) -> Outcome {
        match &message.body {
            Body::Req(req) => self.reject_request(source, message, req, RejReason::InvalidServiceId),
            Body::SidrReq(req) => self.no_service(source, message, req, SidrStatus::Unsupported),
            // Nothing else is held.
            _ => Ok(()),
        }
    }

    /// Refuses the requests that were held long enough.
    pub(super) fn release_held(&mut self, now: Instant) {
        while let Some(held) = self.held.pop_expired(now) {
            let Ok(message) = Message::parse(&held.mad[..]) else { continue };
            if let Err(reason) = self.refuse_service(&held.source, &message) {
                self.drop_for(reason);
            }
        }
    }

    /// Gives the held requests for a new listener to it.
    pub(super) fn offer_held(&mut self, now: Instant) {
        for held in self.held.take() {
            let local = held.source.local;
            let has_listener = match Message::parse(&held.mad[..]).map(|message| message.body) {
                Ok(Body::Req(req)) => self.listener(req.service_id, local).is_some(),
                Ok(Body::SidrReq(req)) => self.resolver(req.service_id, local).is_some(),
                _ => false,
            };
            if has_listener {
                self.handle_again(now, &held.source, &held.mad);
            } else {
                self.held.put_back(held);
            }
        }
    }

    fn handle_again(&mut self, now: Instant, source: &Source, mad: &[u8; MAD_LEN]) {
        let Ok(message) = Message::parse(&mad[..]) else { return };
        let outcome = match &message.body {
            Body::Req(req) => self.on_req(now, source, &message, req, mad),
            Body::SidrReq(req) => self.on_sidr_req(now, source, &message, req, mad),
            _ => return,
        };
        if let Err(reason) = outcome {
            self.drop_for(reason);
        }
    }

    /// The listener for a service at an address: one for this very address before one for any.
    pub(super) fn listener(&self, service_id: ServiceId, local: Gid) -> Option<(ListenerId, Listen)> {
        let of = |address: Option<Gid>| {
            let ids = self.services.get(&service_id)?;
            let found = ids.iter().filter_map(|id| Some((*id, *self.listeners.get(id)?)));
            found.into_iter().find(|(_, listen)| listen.address == address)
        };
        of(Some(local)).or_else(|| of(None))
    }

    fn admit(
        &mut self,
        now: Instant,
        source: &Source,
        message: &Message<'_>,
        req: &Req<'_>,
        key: RequestKey,
    ) -> Result<(), Verdict> {
        if let Some(old) = self.table.by_queue_pair(source.remote, req.local_qpn) {
            self.suspect(now, old);
            return Err(Verdict::Reject(RejReason::StaleConnection));
        }
        let (listener, listen) = self
            .listener(req.service_id, source.local)
            .filter(|(_, listen)| listen.qp_type != QpType::Ud)
            .ok_or(Verdict::Reject(RejReason::InvalidServiceId))?;
        let mtu = self.check(source, req, &listen).map_err(Verdict::Reject)?;
        let (addresses, private_data) =
            take_addresses(&listen, source, req.private_data).map_err(Verdict::Reject)?;
        let proven = self.is_proven(source);
        self.make_room(now, source, proven, listener, &listen)?;

        let path = path_back(source, req, mtu);
        let request = Request {
            listener,
            service_id: req.service_id,
            addresses,
            path,
            qp_type: listen.qp_type,
            remote_qpn: req.local_qpn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            flow_control: req.end_to_end_flow_control,
            srq: req.srq,
            ece: Ece { vendor_id: req.vendor_id, options: message.attribute_modifier },
            private_data: private_data.into(),
        };
        let passive = Passive { listener, key, alternate: req.alternate != cm::Path::default(), proven };
        let id = self.fresh_id();
        let rq_psn = self.fresh_psn();
        let connection = self.passive(now, message.transaction_id, req, passive, &request, rq_psn);
        self.table.insert(id, connection);
        self.events
            .push_back(Event::ConnectRequest { connection: ConnectionId(id), request: Box::new(request) });
        Ok(())
    }

    fn passive(
        &self,
        now: Instant,
        transaction_id: u64,
        req: &Req<'_>,
        passive: Passive,
        request: &Request,
        rq_psn: qp::Psn,
    ) -> Connection {
        let negotiated = Negotiated {
            qp_type: request.qp_type,
            path: request.path,
            remote_qpn: Some(req.local_qpn),
            rq_psn,
            sq_psn: req.starting_psn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ack_timeout: req.primary.local_ack_timeout,
        };
        // How long the peer waits for an answer, with all its repetitions.
        let wait = self.config.bounded(answer_time(req.remote_cm_response_timeout, request.path.lifetime));
        let patience = wait * (u32::from(req.max_cm_retries) + 1);
        Connection {
            state: State::ReqReceived(None),
            passive: Some(passive),
            created: now,
            to: request.path.to,
            remote_comm_id: req.local_comm_id,
            transaction_id,
            local_qpn: Qpn::default(),
            negotiated,
            interval: self.config.bounded(req.local_cm_response_timeout.duration()),
            retries: req.max_cm_retries,
            last: None,
            due: None,
            deadline: Some(now + patience.min(self.config.limits.half_open_life)),
            waits: false,
            verified: false,
            suspected: false,
            released: false,
        }
    }

    /// Whether this side can do what the REQ asks; if so, the path MTU.
    fn check(&self, source: &Source, req: &Req<'_>, listen: &Listen) -> Result<Mtu, RejReason> {
        if req.primary.remote_gid != source.local {
            return Err(RejReason::InvalidGid);
        }
        // No reason names the partition. Linux answers with this one as well, because the path cannot be used from here.
        if !self.pkeys.iter().any(|own| req.pkey.matches(*own)) {
            return Err(RejReason::InvalidGid);
        }
        let wanted = match (req.transport, req.extended_transport) {
            (Transport::Rc, _) => QpType::Rc,
            (Transport::Uc, _) => QpType::Uc,
            (Transport::Extended, build::XRC) => QpType::XrcRecv,
            _ => return Err(RejReason::InvalidTransportType),
        };
        if wanted != listen.qp_type {
            return Err(RejReason::InvalidTransportType);
        }
        req.path_mtu.mtu().filter(|mtu| *mtu <= self.config.max_mtu).ok_or(RejReason::InvalidMtu)
    }

    /// Whether the REQ may have a connection; makes room for it if need be.
    fn make_room(
        &mut self,
        now: Instant,
        source: &Source,
        proven: bool,
        listener: ListenerId,
        listen: &Listen,
    ) -> Result<(), DropReason> {
        let limits = self.config.limits;
        if self.events.len() >= limits.events {
            return Err(DropReason::EventsFull);
        }
        if self.table.half_open_of(source) >= limits.half_open_per_source {
            return Err(DropReason::SourceQuota);
        }
        let backlog = listen.backlog.min(limits.backlog);
        let in_backlog = self.table.backlog_room(now, listener, proven, backlog, &limits);
        let in_all = || self.table.room(now, proven, &limits);
        // One that leaves the backlog makes room in all.
        let oldest = in_backlog.and_then(|oldest| if oldest.is_some() { Ok(oldest) } else { in_all() });
        let oldest = oldest.map_err(|no| match no {
            NoRoom::Backlog => DropReason::BacklogFull,
            NoRoom::Total => DropReason::HalfOpenFull,
        })?;
        if oldest.is_none() && self.table.len() >= limits.connections {
            return Err(DropReason::ConnectionsFull);
        }
        if let Some(oldest) = oldest {
            self.counters.evicted += 1;
            self.tell(oldest, |connection| Event::Failed { connection, cause: FailCause::Evicted });
            self.advance(now, oldest, Input::Evict, None);
        }
        Ok(())
    }

    /// A REQ names the queue pair of a connection that exists.
    fn suspect(&mut self, now: Instant, old: CommId) {
        self.counters.stale += 1;
        let Some(connection) = self.table.get(old) else { return };
        if connection.state != State::Established {
            // It is ending already.
            return;
        }
        if self.config.stale == StalePolicy::Believe {
            return self.end_stale(now, old);
        }
        if let (false, Some(remote_qpn)) = (connection.suspected, connection.negotiated.remote_qpn) {
            let remote = connection.to.remote;
            self.table.update(old, |connection| connection.suspected = true);
            self.tell(old, |connection| Event::StaleSuspected { connection, remote, remote_qpn });
        }
    }

    /// Ends a connection that the peer has lost. The peer answers the DREQ if it has.
    pub(super) fn end_stale(&mut self, now: Instant, old: CommId) {
        if self.table.get(old).is_some_and(|connection| connection.state == State::Established) {
            self.send_dreq(now, old, Input::Disconnect, &[]).ok();
        }
    }
}

/// The time in which the answer to a message should arrive: the peer's time, and the way there and back.
pub(super) fn answer_time(response_timeout: CmTimeout, lifetime: CmTimeout) -> Duration {
    response_timeout.duration() + lifetime.duration() * 2
}

/// Takes the addresses off the private data, if the listener wants them. They must be those of the packet: programs
/// take them for the peer's address.
pub(super) fn take_addresses<'a>(
    listen: &Listen,
    source: &Source,
    private_data: &'a [u8],
) -> Result<(Option<IpCm>, &'a [u8]), RejReason> {
    if !listen.with_addresses {
        return Ok((None, private_data));
    }
    // Linux answers with this reason as well.
    let (addresses, rest) = IpCm::parse(private_data).ok_or(RejReason::ConsumerDefined)?;
    if Gid::from(addresses.src) != source.remote || Gid::from(addresses.dst) != source.local {
        return Err(RejReason::ConsumerDefined);
    }
    Ok((Some(addresses), rest))
}

/// The path of a REQ, from the passive side. It has the flow label, traffic class and hop limit of the active side.
fn path_back(source: &Source, req: &Req<'_>, mtu: Mtu) -> Path {
    let to = Destination {
        remote: source.remote,
        local: source.local,
        flow_label: req.primary.flow_label,
        traffic_class: req.primary.traffic_class,
        // Packets with a hop limit of 0 cannot be sent.
        hop_limit: req.primary.hop_limit.max(1),
        sl: req.primary.service_level,
    };
    // The acknowledgement timeout is about twice the lifetime.
    let lifetime = CmTimeout::new(req.primary.local_ack_timeout.code().saturating_sub(1));
    Path { to, mtu, pkey: req.pkey, packet_rate: req.primary.packet_rate, lifetime }
}
