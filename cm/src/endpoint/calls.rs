//! The calls of the program.

use super::ledger::Entry;
use super::requests::answer_time;
use super::table::{Connection, Due};
use super::{Endpoint, build};
use crate::error::CallError;
use crate::event::{Event, FailCause};
use crate::negotiated::{self, Negotiated, Placement};
use crate::params::{Accept, Connect, Listen};
use crate::state::{ConnectionState, Input, Retry, State, next};
use crate::{ConnectionId, ListenerId};
use qp::wire::mad::cm::{CmTimeout, CommId, Rej, RejReason, Subject};
use qp::{Gid, Psn, QpAttr, QpState, QpType, Qpn};
use rand_chacha::rand_core::Rng;
use time::Instant;

impl Endpoint {
    /// Listens for requests. Those that came a moment before are delivered now.
    ///
    /// # Errors
    ///
    /// [`CallError::WrongType`] for a queue pair that cannot be at the passive side; [`CallError::AddressInUse`];
    /// [`CallError::Full`].
    pub fn listen(&mut self, now: Instant, listen: &Listen) -> Result<ListenerId, CallError> {
        let Listen { qp_type, service_id, .. } = *listen;
        if !matches!(qp_type, QpType::Rc | QpType::Uc | QpType::XrcRecv | QpType::Ud) {
            return Err(CallError::WrongType { call: "listen", qp_type });
        }
        let max = self.config.limits.listeners;
        if self.listeners.len() >= max {
            return Err(CallError::Full { of: "listeners", max });
        }
        let ids = self.services.entry(service_id).or_default();
        let is_same = |id: &ListenerId| self.listeners.get(id).is_some_and(|l| l.address == listen.address);
        if ids.iter().any(is_same) {
            return Err(CallError::AddressInUse);
        }
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        ids.push(id);
        let is_first = ids.len() == 1;
        self.listeners.insert(id, *listen);
        if is_first {
            self.note(Entry::Listens(service_id));
        }
        self.offer_held(now);
        Ok(id)
    }

    /// Stops listening. Requests that the program has been told of stay.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownListener`].
    pub fn unlisten(&mut self, listener: ListenerId) -> Result<(), CallError> {
        let listen = self.listeners.remove(&listener).ok_or(CallError::UnknownListener)?;
        if let Some(ids) = self.services.get_mut(&listen.service_id) {
            ids.retain(|id| *id != listener);
            if ids.is_empty() {
                self.services.remove(&listen.service_id);
                self.note(Entry::Silent(listen.service_id));
            }
        }
        Ok(())
    }

    /// Asks a peer for a connection.
    ///
    /// # Errors
    ///
    /// [`CallError::WrongType`], [`CallError::PrivateDataTooLong`], [`CallError::Full`].
    pub fn connect(&mut self, now: Instant, connect: &Connect<'_>) -> Result<ConnectionId, CallError> {
        let max = self.config.limits.connections;
        if self.table.len() >= max {
            return Err(CallError::Full { of: "connections", max });
        }
        let lifetime = connect.path.lifetime;
        let identity = build::Identity {
            id: self.fresh_id(),
            transaction_id: self.rng.next_u64(),
            ca_guid: self.config.ca_guid,
            psn: self.fresh_psn(),
            ack_timeout: negotiated::ack_timeout(self.config.ack_delay, lifetime),
        };
        let req = build::req(connect, &identity)?;
        let interval = answer_time(connect.remote_response_timeout, lifetime);
        let retries = connect.max_cm_retries & 0x0f;
        let negotiated = Negotiated {
            qp_type: connect.qp_type,
            path: connect.path,
            remote_qpn: None,
            rq_psn: identity.psn,
            sq_psn: Psn::default(),
            responder_resources: connect.responder_resources,
            initiator_depth: connect.initiator_depth,
            retry_count: connect.retry_count.min(7),
            rnr_retry_count: connect.rnr_retry_count.min(7),
            ack_timeout: identity.ack_timeout,
        };
        let retry = Retry { left: retries, silent: 0, interval, extended: false };
        let waits = self.table.must_wait(connect.path.to.remote, &self.config.limits);
        let connection = Connection {
            state: State::ReqSent(retry),
            passive: None,
            created: now,
            to: connect.path.to,
            remote_comm_id: CommId(0),
            transaction_id: identity.transaction_id,
            local_qpn: connect.qpn,
            negotiated,
            interval,
            retries,
            last: Some(Box::new(req)),
            due: None,
            deadline: Some(now + interval),
            waits,
            verified: false,
            suspected: false,
            released: false,
        };
        self.table.insert(identity.id, connection);
        if !waits {
            self.table.set_due(identity.id, Due::Last);
        }
        Ok(ConnectionId(identity.id))
    }

    /// Accepts a request: sends REP.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`], [`CallError::WrongState`], [`CallError::PrivateDataTooLong`].
    pub fn accept(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        accept: &Accept<'_>,
    ) -> Result<(), CallError> {
        let id = connection.0;
        let found = self.in_state(connection, "accept", Input::Accept)?;
        let rep = build::rep(id, found, accept, self.config.ca_guid, self.config.ack_delay)?;
        self.table.update(id, |connection| {
            connection.local_qpn = accept.qpn;
            connection.negotiated.responder_resources = accept.responder_resources;
            connection.negotiated.initiator_depth = accept.initiator_depth;
        });
        self.advance(now, id, Input::Accept, Some(rep));
        Ok(())
    }

    /// Rejects a request, or the peer's answer to one: sends REJ. The connection is gone for the program.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`], [`CallError::WrongState`], [`CallError::PrivateDataTooLong`].
    pub fn reject(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        reason: RejReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), CallError> {
        let id = connection.0;
        let found = self.in_state(connection, "reject", Input::Reject)?;
        let rej = build::rej(id, found, reason, info, private_data)?;
        self.advance(now, id, Input::Reject, Some(rej));
        self.table.update(id, |connection| connection.released = true);
        Ok(())
    }

    /// Asks the peer to wait for the answer to its REQ or REP: sends MRA.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`], [`CallError::WrongState`].
    pub fn wait(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        service_timeout: CmTimeout,
    ) -> Result<(), CallError> {
        let id = connection.0;
        let state = self.held_by_program(connection)?.state;
        let (state, message, deadline) = match state {
            State::ReqReceived(_) => {
                let life = self.config.bounded(service_timeout.duration());
                (State::ReqReceived(Some(service_timeout)), Subject::Req, Some(now + life))
            }
            State::RepReceived(_) => (State::RepReceived(Some(service_timeout)), Subject::Rep, None),
            other => return Err(CallError::WrongState { call: "wait", state: other.name() }),
        };
        // A request lives at least as long as it would have.
        let before = self.table.get(id).and_then(|connection| connection.deadline);
        self.table.enter(id, state, deadline.max(before));
        self.table.set_due(id, Due::Mra(message, service_timeout));
        Ok(())
    }

    /// On the active side: the queue pair is ready. Sends RTU.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`], [`CallError::WrongState`], [`CallError::PrivateDataTooLong`].
    pub fn establish(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        let id = connection.0;
        let found = self.in_state(connection, "establish", Input::Establish)?;
        let rtu = build::rtu(id, found, private_data)?;
        self.advance(now, id, Input::Establish, Some(rtu));
        Ok(())
    }

    /// On the passive side: a packet of the peer has arrived on the queue pair, before the RTU. The connection is
    /// established (COMM_EST).
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`], [`CallError::WrongState`], [`CallError::AlreadyEstablished`].
    pub fn communication_established(
        &mut self,
        now: Instant,
        connection: ConnectionId,
    ) -> Result<(), CallError> {
        if self.held_by_program(connection)?.state == State::Established {
            return Err(CallError::AlreadyEstablished);
        }
        self.in_state(connection, "communication_established", Input::Packet)?;
        self.established(now, connection.0, Input::Packet, &[]);
        Ok(())
    }

    /// A connected queue pair took a packet of its peer: if the connection waits for the RTU, it is established. While
    /// [`awaits_packets`](Self::awaits_packets) is false, there is nothing to tell.
    pub fn handle_packet(&mut self, now: Instant, remote: Gid, remote_qpn: Qpn, local_qpn: Qpn) {
        let Some(id) = self.table.waiting_for_rtu(local_qpn) else { return };
        let is_of = |c: &Connection| c.to.remote == remote && c.negotiated.remote_qpn == Some(remote_qpn);
        if self.table.get(id).is_some_and(is_of) {
            self.established(now, id, Input::Packet, &[]);
        }
    }

    /// Whether a connection waits for the RTU, or for a packet that says as much.
    #[must_use]
    pub fn awaits_packets(&self) -> bool {
        self.table.waits_for_rtu()
    }

    /// Closes a connection, or confirms that the peer has closed it. The queue pair must be in the error state
    /// already.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`], [`CallError::WrongState`], [`CallError::PrivateDataTooLong`].
    pub fn disconnect(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        let found = self.in_state(connection, "disconnect", Input::Disconnect)?;
        match found.state {
            State::DreqReceived(_) => self.confirm_end(now, connection.0, Input::Disconnect, private_data),
            _ => self.send_dreq(now, connection.0, Input::Disconnect, private_data),
        }
    }

    /// The driver has made sure, by a handshake with the peer, that the peer has lost this connection: closes it.
    /// The program learns of it by [`Event::Disconnected`](crate::Event::Disconnected).
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`], [`CallError::WrongState`].
    pub fn confirm_stale(&mut self, now: Instant, connection: ConnectionId) -> Result<(), CallError> {
        let state = self.held_by_program(connection)?.state;
        if state != State::Established {
            return Err(CallError::WrongState { call: "confirm_stale", state: state.name() });
        }
        self.send_dreq(now, connection.0, Input::Disconnect, &[])
    }

    /// The driver has heard of the suspicion that the peer has lost this connection: the next REQ that says so is
    /// reported again.
    pub fn suspect_again(&mut self, connection: ConnectionId) {
        self.table.update(connection.0, |connection| connection.suspected = false);
    }

    /// Gives a connection back in any state. Its peer is told; the program is told nothing more.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`].
    pub fn destroy(&mut self, now: Instant, connection: ConnectionId) -> Result<(), CallError> {
        let id = connection.0;
        match self.held_by_program(connection)?.state {
            State::ReqSent(_) => {
                self.give_up_request(id);
                self.advance(now, id, Input::Destroy, None);
            }
            State::ReqReceived(_) | State::RepReceived(_) | State::RepSent(_) => {
                self.refuse(now, id, Input::Destroy, RejReason::ConsumerDefined);
            }
            State::Established => self.send_dreq(now, id, Input::Destroy, &[])?,
            State::DreqReceived(_) => self.confirm_end(now, id, Input::Destroy, &[])?,
            State::DreqSent(_) | State::Refused | State::TimeWait => {}
        }
        self.table.update(id, |connection| connection.released = true);
        Ok(())
    }

    /// The end of a program: gives all connections and queries back, stops listening, and gives up resolutions. Events
    /// that were not polled yet are discarded.
    pub fn close(&mut self, now: Instant) {
        self.listeners.clear();
        let services: Vec<_> = self.services.drain().map(|(service_id, _)| service_id).collect();
        services.into_iter().for_each(|service_id| self.note(Entry::Silent(service_id)));
        self.held.take();
        self.destroy_all(now);
        self.close_resolutions(now);
        self.events.clear();
    }

    /// The queue pair of a connection cannot be used any more: the peer is told. Unless the end of the connection was
    /// under way already, the program is told too.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`].
    pub fn fail(&mut self, now: Instant, connection: ConnectionId) -> Result<(), CallError> {
        let id = connection.0;
        match self.held_by_program(connection)?.state {
            State::Established => self.send_dreq(now, id, Input::Disconnect, &[]),
            State::DreqReceived(_) => self.confirm_end(now, id, Input::Disconnect, &[]),
            State::DreqSent(_) | State::Refused | State::TimeWait => Ok(()),
            State::ReqSent(_) | State::ReqReceived(_) | State::RepSent(_) | State::RepReceived(_) => {
                self.tell(id, |connection| Event::Failed { connection, cause: FailCause::QueuePair });
                self.destroy(now, connection)
            }
        }
    }

    /// [Gives back](Self::destroy) all connections of the endpoint, as at the end of a program.
    pub fn destroy_all(&mut self, now: Instant) {
        for id in self.table.ids() {
            // One that was given back already is unknown.
            self.destroy(now, ConnectionId(id)).ok();
        }
    }

    /// What both sides agreed on so far.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`].
    pub fn negotiated(&self, connection: ConnectionId) -> Result<&Negotiated, CallError> {
        Ok(&self.held_by_program(connection)?.negotiated)
    }

    /// The attributes that bring the connection's queue pair into a state: INIT, RTR or RTS.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownConnection`]; [`CallError::NoAttributes`] for another state, if the peer's queue pair is
    /// not known yet, or if the connection is ending.
    pub fn attributes(
        &self,
        connection: ConnectionId,
        state: QpState,
        placement: &Placement,
    ) -> Result<QpAttr, CallError> {
        let found = self.held_by_program(connection)?;
        let is_live = !matches!(
            found.state.name(),
            ConnectionState::DreqSent
                | ConnectionState::DreqReceived
                | ConnectionState::Refused
                | ConnectionState::TimeWait
        );
        let attributes = found.negotiated.attributes(state, placement);
        attributes.filter(|_| is_live).ok_or(CallError::NoAttributes)
    }

    /// The connection, if the call means something in its state.
    fn in_state(
        &self,
        connection: ConnectionId,
        call: &'static str,
        input: Input,
    ) -> Result<&Connection, CallError> {
        let found = self.held_by_program(connection)?;
        let state = found.state.name();
        next(state, input).map(|_| found).ok_or(CallError::WrongState { call, state })
    }

    pub(super) fn send_dreq(
        &mut self,
        now: Instant,
        id: CommId,
        input: Input,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        let transaction_id = self.rng.next_u64();
        let connection = self.table.get(id).ok_or(CallError::UnknownConnection)?;
        let dreq = build::dreq(id, connection, transaction_id, private_data)?;
        self.advance(now, id, input, Some(dreq));
        Ok(())
    }

    /// Tells the peer that the REQ is given up: REJ with reason 4 and this side's GUID, by which the peer finds the
    /// request although it may not have sent its ID yet (IBTA 12.6.7).
    pub(super) fn give_up_request(&mut self, id: CommId) {
        let Some(connection) = self.table.get(id).filter(|connection| !connection.waits) else { return };
        let guid = self.config.ca_guid.to_be_bytes();
        let rej = Rej {
            local_comm_id: id,
            reason: RejReason::Timeout,
            message: Subject::Other,
            info: &guid,
            ..Rej::default()
        };
        let to = connection.to;
        if let Ok(mad) = build::stateless_rej(connection.transaction_id, rej) {
            // If there is no room for it, the peer finds out when its REP is answered.
            let _ = self.answers.push(to, &mad, &self.config.limits);
        }
    }
}
