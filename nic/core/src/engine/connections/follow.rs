//! Queue pairs that follow their connection: set up, and stopped, by whoever drives the port.
//!
//! A program that connects a queue pair here need not be awake when the peer answers. The queue pair goes to RTS and RTU
//! leaves in the turn that takes in REP; a DREQ stops the queue pair, and is confirmed, in the turn that takes it in. The
//! other way round, a connection ends with its queue pair: if that fails or is destroyed, the peer is told.

use super::super::Engine;
use crate::error::ConnectError;
use cm::{Accept, Connect, ConnectionId, DisconnectCause, Endpoint, Event, Placement};
use qp::{Access, QpAttr, QpState, Qpn};
use std::collections::HashMap;
use time::Instant;

/// What a program sets on its own queue pair, whatever the peer says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) access: Access,
    /// Code of the acknowledgement timeout.
    pub(crate) timeout: u8,
    /// Code of the RNR timer.
    pub(crate) min_rnr_timer: u8,
    pub(crate) pkey_index: u16,
}

/// Queue pairs and their connections.
#[derive(Debug, Default)]
pub(super) struct Followers {
    by_connection: HashMap<ConnectionId, (Qpn, Terms)>,
    by_qpn: HashMap<Qpn, ConnectionId>,
    /// Connections whose queue pair is not usable any more.
    broken: Vec<ConnectionId>,
}

impl Followers {
    fn add(&mut self, connection: ConnectionId, qpn: Qpn, terms: Terms) {
        self.by_connection.insert(connection, (qpn, terms));
        self.by_qpn.insert(qpn, connection);
    }

    fn remove(&mut self, connection: ConnectionId) -> Option<Qpn> {
        let (qpn, _) = self.by_connection.remove(&connection)?;
        self.by_qpn.remove(&qpn);
        Some(qpn)
    }

    /// Returns whether [`Engine::end_broken`] has connections to end.
    pub(super) const fn have_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// A queue pair has changed its state; `None` if it is destroyed.
    fn note(&mut self, qpn: Qpn, state: Option<QpState>) {
        if let None | Some(QpState::Err | QpState::Reset) = state
            && let Some(connection) = self.by_qpn.remove(&qpn)
        {
            self.by_connection.remove(&connection);
            self.broken.push(connection);
        }
    }
}

impl Engine {
    /// Connects a queue pair in RESET or INIT: it goes to INIT, and REQ is sent.
    ///
    /// # Errors
    /// [`ConnectError::QueuePair`], [`ConnectError::Call`].
    pub(crate) fn connect_qp(
        &mut self,
        now: Instant,
        connect: &Connect<'_>,
        terms: Terms,
    ) -> Result<ConnectionId, ConnectError> {
        let init = QpAttr::to_init(PORT, terms.pkey_index, terms.access);
        self.modify_qp(connect.qpn, &init)?;
        let connection = self.call(now, |endpoint, now| endpoint.connect(now, connect))?;
        self.follow(connection, connect.qpn, terms);
        Ok(connection)
    }

    /// Accepts a request with a queue pair in RESET or INIT: it goes to RTS, and REP is sent. If that fails, the request
    /// can still be answered.
    ///
    /// # Errors
    /// As [`connect_qp`](Self::connect_qp).
    pub(crate) fn accept_qp(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        accept: &Accept<'_>,
        terms: Terms,
    ) -> Result<(), ConnectError> {
        self.set_up(
            (connection, accept.qpn),
            terms,
            Some(accept),
            &[QpState::Init, QpState::Rtr, QpState::Rts],
        )?;
        self.call(now, |endpoint, now| endpoint.accept(now, connection, accept))?;
        self.follow(connection, accept.qpn, terms);
        Ok(())
    }

    /// Closes an established connection: its queue pair goes to ERR, and DREQ is sent.
    ///
    /// # Errors
    /// [`ConnectError::Call`].
    pub(crate) fn disconnect_qp(
        &mut self,
        now: Instant,
        connection: ConnectionId,
    ) -> Result<(), ConnectError> {
        self.call(now, |endpoint, now| endpoint.disconnect(now, connection, &[]))?;
        self.stop_qp(connection);
        Ok(())
    }

    /// The program gives a connection back, in any state.
    pub(crate) fn give_up_qp(&mut self, now: Instant, connection: ConnectionId) {
        self.stop_qp(connection);
        self.with_endpoint(now, |endpoint, now| endpoint.destroy(now, connection).ok());
    }

    fn follow(&mut self, connection: ConnectionId, qpn: Qpn, terms: Terms) {
        if let Some(manager) = self.connections.manager.as_mut() {
            manager.followers.add(connection, qpn, terms);
        }
    }

    fn call<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Endpoint, Instant) -> Result<R, cm::CallError>,
    ) -> Result<R, ConnectError> {
        let result = self.with_endpoint(now, call);
        Ok(result.unwrap_or(Err(cm::CallError::UnknownConnection))?)
    }

    /// Brings a queue pair into these states, one after the other; `accept`: with what the program has just agreed to.
    fn set_up(
        &mut self,
        (connection, qpn): (ConnectionId, Qpn),
        terms: Terms,
        accept: Option<&Accept<'_>>,
        states: &[QpState],
    ) -> Result<(), ConnectError> {
        let Terms { pkey_index, min_rnr_timer, .. } = terms;
        let placement = Placement { port_num: PORT, sgid_index: 0, pkey_index, min_rnr_timer };
        for state in states {
            let attributes =
                self.endpoint().map(|endpoint| endpoint.attributes(connection, *state, &placement));
            let mut attr = attributes.unwrap_or(Err(cm::CallError::UnknownConnection))?;
            attr.qp_access_flags = attr.qp_access_flags.map(|_| terms.access);
            attr.timeout = attr.timeout.map(|_| terms.timeout);
            // The connection still has the depths that the peer asked for.
            if let Some(accept) = accept {
                attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.map(|_| accept.responder_resources);
                attr.max_rd_atomic = attr.max_rd_atomic.map(|_| accept.initiator_depth);
            }
            self.modify_qp(qpn, &attr)?;
        }
        Ok(())
    }

    /// A queue pair has changed its state; `None` if it is destroyed.
    #[inline]
    pub(in crate::engine) fn note_follower(&mut self, qpn: Qpn, state: Option<QpState>) {
        if let Some(manager) = self.connections.manager.as_mut() {
            manager.followers.note(qpn, state);
        }
    }

    /// Ends the connections whose queue pairs are not usable any more.
    pub(super) fn end_broken(&mut self, now: Instant) {
        let Some(manager) = self.connections.manager.as_mut() else { return };
        for connection in std::mem::take(&mut manager.followers.broken) {
            // It may be over already.
            self.with_endpoint(now, |endpoint, now| endpoint.fail(now, connection).ok());
        }
    }

    /// Lets the queue pair of a connection follow an event, before the program learns of it. Returns what it learns now.
    pub(super) fn lead(&mut self, now: Instant, event: Event) -> Option<Event> {
        match event {
            Event::ConnectResponse { connection, .. } => {
                if let Err(error) = self.establish_qp(now, connection) {
                    tracing::warn!(%error, "a connection fails: its queue pair does not go to RTS");
                    self.stop_qp(connection);
                    self.with_endpoint(now, |endpoint, now| endpoint.fail(now, connection).ok());
                    return None;
                }
            }
            Event::Disconnected { connection, cause } => {
                let is_followed = self.stop_qp(connection);
                if is_followed && cause == DisconnectCause::Peer {
                    self.with_endpoint(now, |endpoint, now| endpoint.disconnect(now, connection, &[]).ok());
                }
            }
            Event::Rejected { connection, .. } | Event::Failed { connection, .. } => {
                self.stop_qp(connection);
            }
            _ => {}
        }
        Some(event)
    }

    fn establish_qp(&mut self, now: Instant, connection: ConnectionId) -> Result<(), ConnectError> {
        let manager = self.connections.manager.as_ref();
        let Some((qpn, terms)) = manager.and_then(|m| m.followers.by_connection.get(&connection).copied())
        else {
            return Ok(());
        };
        self.set_up((connection, qpn), terms, None, &[QpState::Rtr, QpState::Rts])?;
        self.call(now, |endpoint, now| endpoint.establish(now, connection, &[]))
    }

    /// The connection is over: its queue pair flushes what was posted. Returns whether it has one.
    fn stop_qp(&mut self, connection: ConnectionId) -> bool {
        let manager = self.connections.manager.as_mut();
        let Some(qpn) = manager.and_then(|manager| manager.followers.remove(connection)) else {
            return false;
        };
        if let Some(index) = self.index(qpn) {
            self.fail_qp(index);
        }
        true
    }
}

/// The port of a device; it has one.
const PORT: u8 = 1;
