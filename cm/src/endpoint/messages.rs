//! Messages of peers, except requests.
//!
//! A message changes a connection only if it comes from the address of the connection's peer, and names the IDs of
//! the connection: both, where it carries both (IBTA 12.9). While this side's REQ is not answered, the peer's ID is
//! unknown; then the transaction ID must be that of the REQ.

use super::table::{Connection, Due};
use super::{Endpoint, build};
use crate::counters::DropReason;
use crate::error::CallError;
use crate::event::{DisconnectCause, Event, Rejection};
use crate::negotiated;
use crate::params::{Destination, Ece, Response, Source};
use crate::state::{ConnectionState, Input, State};
use qp::QpType;
use qp::Qpn;
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{
    Apr, AprStatus, Body, CommId, Drep, Dreq, Lap, Message, Mra, Rej, RejReason, Rep, Rtu, Subject,
};
use time::Instant;

/// Why a message was not processed; it is counted.
pub(super) type Outcome = Result<(), DropReason>;

impl Endpoint {
    /// Takes a management datagram of the connection management class that arrived on queue pair 1.
    pub fn handle_mad(&mut self, now: Instant, source: &Source, mad: &[u8]) {
        let outcome = match (Message::parse(mad), <&[u8; MAD_LEN]>::try_from(mad)) {
            (Ok(message), Ok(bytes)) => {
                self.counters.count_received(message.attribute());
                self.dispatch(now, source, &message, bytes)
            }
            _ => Err(DropReason::Malformed),
        };
        if let Err(reason) = outcome {
            self.drop_for(reason);
        }
    }

    fn dispatch(
        &mut self,
        now: Instant,
        source: &Source,
        message: &Message<'_>,
        bytes: &[u8; MAD_LEN],
    ) -> Outcome {
        let transaction = message.transaction_id;
        match &message.body {
            Body::Req(req) => self.on_req(now, source, message, req, bytes),
            Body::Mra(mra) => self.on_mra(now, source, transaction, mra),
            Body::Rej(rej) => self.on_rej(now, source, transaction, rej),
            Body::Rep(rep) => self.on_rep(now, source, message, rep),
            Body::Rtu(rtu) => self.on_rtu(now, source, rtu),
            Body::Dreq(dreq) => self.on_dreq(now, source, transaction, dreq),
            Body::Drep(drep) => self.on_drep(now, source, drep),
            Body::Lap(lap) => self.on_lap(source, transaction, lap),
            // This side never asks for an alternate path.
            Body::Apr(Apr { .. }) => Err(DropReason::WrongState),
            Body::SidrReq(req) => self.on_sidr_req(now, source, message, req, bytes),
            Body::SidrRep(rep) => self.on_sidr_rep(source, message, rep),
        }
    }

    /// The connection that a message names by this side's ID, if the message comes from its peer.
    fn named(&self, source: &Source, id: CommId) -> Result<&Connection, DropReason> {
        let connection = self.table.get(id).ok_or(DropReason::UnknownConnection)?;
        if connection.is_from(source) { Ok(connection) } else { Err(DropReason::NotThisConnection) }
    }

    /// The same for a message that carries both IDs.
    fn named_by_both(
        &self,
        source: &Source,
        local: CommId,
        remote: CommId,
    ) -> Result<&Connection, DropReason> {
        let connection = self.named(source, local)?;
        let is_known = !matches!(connection.state, State::ReqSent(_));
        if is_known && connection.remote_comm_id == remote {
            Ok(connection)
        } else {
            Err(DropReason::NotThisConnection)
        }
    }

    /// Queues an answer that belongs to no connection.
    pub(super) fn answer(&mut self, source: &Source, mad: Result<[u8; MAD_LEN], CallError>) -> Outcome {
        // Nothing in these answers is too long.
        let Ok(mad) = mad else { return Ok(()) };
        if self.answers.push(Destination::back_to(source), &mad, &self.config.limits) {
            Ok(())
        } else {
            Err(DropReason::AnswersFull)
        }
    }

    fn on_rep(&mut self, now: Instant, source: &Source, message: &Message<'_>, rep: &Rep<'_>) -> Outcome {
        let id = rep.remote_comm_id;
        let Ok(connection) = self.named(source, id) else {
            // A REP for a connection that was given up: the peer need not wait (IBTA 12.6.7, reason 6).
            let rej = Rej {
                local_comm_id: id,
                remote_comm_id: rep.local_comm_id,
                message: Subject::Rep,
                reason: RejReason::InvalidCommId,
                ..Rej::default()
            };
            self.answer(source, build::stateless_rej(message.transaction_id, rej))?;
            return Err(DropReason::UnknownConnection);
        };
        if !matches!(connection.state, State::ReqSent(_)) {
            return self.on_rep_again(now, id, rep);
        }
        if message.transaction_id != connection.transaction_id {
            return Err(DropReason::NotThisConnection);
        }
        let is_xrc = connection.negotiated.qp_type == QpType::XrcSend;
        let remote_qpn = if is_xrc { Qpn::new(rep.local_eecn) } else { rep.local_qpn };
        if remote_qpn.value() <= Qpn::GSI.value() || remote_qpn == Qpn::MULTICAST {
            return Err(DropReason::Malformed);
        }
        self.table.update(id, |connection| {
            connection.remote_comm_id = rep.local_comm_id;
            let negotiated = &mut connection.negotiated;
            negotiated.sq_psn = rep.starting_psn;
            negotiated.responder_resources = rep.initiator_depth;
            negotiated.initiator_depth = rep.responder_resources;
            negotiated.rnr_retry_count = rep.rnr_retry_count;
            negotiated.ack_timeout = negotiated::ack_timeout(rep.target_ack_delay, negotiated.path.lifetime);
        });
        if let Some(old) = self.table.by_queue_pair(source.remote, remote_qpn) {
            return self.on_stale_rep(now, id, old);
        }
        self.table.update(id, |connection| connection.negotiated.remote_qpn = Some(remote_qpn));
        self.advance(now, id, Input::Rep, None);
        let response = Response {
            remote_qpn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            rnr_retry_count: rep.rnr_retry_count,
            flow_control: rep.end_to_end_flow_control,
            srq: rep.srq,
            ece: Ece { vendor_id: rep.vendor_id(), options: message.attribute_modifier },
            private_data: rep.private_data.into(),
        };
        let response = Box::new(response);
        self.tell(id, |connection| Event::ConnectResponse { connection, response });
        Ok(())
    }

    /// The REP names a queue pair to which there is a connection already: the new one is refused, as packets of the
    /// old one may still be on their way (IBTA 12.9.8.3.1). The peer has just shown that it is there, so the old one
    /// is over.
    fn on_stale_rep(&mut self, now: Instant, id: CommId, old: CommId) -> Outcome {
        self.counters.stale += 1;
        self.end_stale(now, old);
        let rejection = Rejection {
            message: Subject::Rep,
            reason: RejReason::StaleConnection,
            info: Box::default(),
            private_data: Box::default(),
        };
        let rejection = Box::new(rejection);
        self.advance(now, id, Input::Rep, None);
        self.tell(id, |connection| Event::Rejected { connection, rejection });
        self.refuse(now, id, Input::Reject, RejReason::StaleConnection);
        Ok(())
    }

    fn on_rep_again(&mut self, now: Instant, id: CommId, rep: &Rep<'_>) -> Outcome {
        let Some(connection) = self.table.get(id) else { return Err(DropReason::UnknownConnection) };
        if connection.remote_comm_id != rep.local_comm_id {
            return Err(DropReason::NotThisConnection);
        }
        match connection.state {
            // RTU or REJ.
            State::Established | State::Refused if connection.passive.is_none() => {
                self.repeat(now, id);
                Ok(())
            }
            State::RepReceived(wait) => self.answer_wait(now, id, Subject::Rep, wait),
            _ => Err(DropReason::Duplicate),
        }
    }

    /// Tells a peer that repeats itself that the program has not answered yet. So a request lives at least as long as its
    /// peer waits then.
    pub(super) fn answer_wait(
        &mut self,
        now: Instant,
        id: CommId,
        message: Subject,
        wait: Option<qp::wire::mad::cm::CmTimeout>,
    ) -> Outcome {
        let timeout = wait.or(self.config.mra).ok_or(DropReason::Duplicate)?;
        self.counters.repeated += 1;
        self.table.set_due(id, Due::Mra(message, timeout));
        let promised = now + self.config.bounded(timeout.duration());
        let life = self.config.limits.half_open_life;
        self.table.update(id, |connection| {
            let latest = promised.min(connection.created + life);
            connection.deadline = connection.deadline.map(|deadline| deadline.max(latest));
        });
        Ok(())
    }

    fn on_rtu(&mut self, now: Instant, source: &Source, rtu: &Rtu<'_>) -> Outcome {
        let id = rtu.remote_comm_id;
        let connection = self.named_by_both(source, id, rtu.local_comm_id)?;
        match connection.state {
            // The peer believes in a connection that this side has given up. A REJ may be lost; DREQ is repeated.
            State::Refused if connection.passive.is_some() => {
                self.send_dreq(now, id, Input::Rtu, &[]).ok();
                return Ok(());
            }
            State::RepSent(_) => {}
            State::Established if connection.passive.is_some() => return Err(DropReason::Duplicate),
            _ => return Err(DropReason::WrongState),
        }
        self.established(now, id, Input::Rtu, rtu.private_data);
        Ok(())
    }

    /// The passive side learns that the active one is ready.
    pub(super) fn established(&mut self, now: Instant, id: CommId, input: Input, private_data: &[u8]) {
        let older = self.table.get(id).and_then(|connection| {
            self.table.by_queue_pair(connection.to.remote, connection.negotiated.remote_qpn?)
        });
        if self.advance(now, id, input, None) {
            self.tell(id, |connection| Event::Established { connection, private_data: private_data.into() });
            // Both were half-open at a time, from the same queue pair. The peer has confirmed the newer one.
            if let Some(older) = older {
                self.counters.stale += 1;
                self.end_stale(now, older);
            }
        }
    }

    fn on_mra(&mut self, now: Instant, source: &Source, transaction: u64, mra: &Mra<'_>) -> Outcome {
        let id = mra.remote_comm_id;
        let connection = self.named(source, id)?;
        let is_of = match (connection.state, mra.message) {
            (State::ReqSent(_), Subject::Req) => transaction == connection.transaction_id,
            (State::RepSent(_), Subject::Rep) => connection.remote_comm_id == mra.local_comm_id,
            _ => return Err(DropReason::WrongState),
        };
        if !is_of {
            return Err(DropReason::NotThisConnection);
        }
        let mut state = connection.state;
        let wait = mra.service_timeout.duration() + connection.negotiated.ack_timeout.duration();
        match state.retry() {
            Some(retry) if !retry.extended => retry.extended = true,
            _ => return Err(DropReason::Duplicate),
        }
        let deadline = now + self.config.bounded(wait);
        self.table.enter(id, state, Some(deadline));
        Ok(())
    }

    fn on_rej(&mut self, now: Instant, source: &Source, transaction: u64, rej: &Rej<'_>) -> Outcome {
        let id = self.rejected(source, transaction, rej)?;
        let Some(state) = self.table.get(id).map(|connection| connection.state.name()) else {
            return Err(DropReason::UnknownConnection);
        };
        let is_stale = rej.reason == RejReason::StaleConnection;
        let input = if is_stale { Input::RejStale } else { Input::Rej };
        if crate::state::next(state, input).is_none() {
            return Err(DropReason::WrongState);
        }
        match state {
            ConnectionState::Established | ConnectionState::DreqSent => {
                let cause = DisconnectCause::Rejected(rej.reason);
                self.tell(id, |connection| Event::Disconnected { connection, cause });
            }
            _ => {
                let rejection = Box::new(Rejection {
                    message: rej.message,
                    reason: rej.reason,
                    info: rej.info.into(),
                    private_data: rej.private_data.into(),
                });
                self.tell(id, |connection| Event::Rejected { connection, rejection });
                self.table.update(id, |connection| connection.released = true);
            }
        }
        self.advance(now, id, input, None);
        Ok(())
    }

    /// The connection that a REJ refuses.
    fn rejected(&self, source: &Source, transaction: u64, rej: &Rej<'_>) -> Result<CommId, DropReason> {
        // A peer that gives up its REQ may not know this side's ID. It says its GUID instead (IBTA 12.6.7).
        if rej.reason == RejReason::Timeout && rej.remote_comm_id == CommId(0) {
            let guid = rej.info.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            let key = (source.remote, guid.ok_or(DropReason::Malformed)?, rej.local_comm_id);
            let id = self.table.by_request(&key).ok_or(DropReason::UnknownConnection)?;
            let connection = self.named(source, id)?;
            let is_waiting = matches!(connection.state, State::ReqReceived(_) | State::RepSent(_));
            return match (is_waiting, connection.transaction_id == transaction) {
                (true, true) => Ok(id),
                (false, _) => Err(DropReason::WrongState),
                (true, false) => Err(DropReason::NotThisConnection),
            };
        }
        let connection = self.named(source, rej.remote_comm_id)?;
        let is_of = match connection.state {
            // Also of a REP that has not arrived.
            State::ReqSent(_) => transaction == connection.transaction_id,
            _ => connection.remote_comm_id == rej.local_comm_id,
        };
        if is_of { Ok(rej.remote_comm_id) } else { Err(DropReason::NotThisConnection) }
    }

    fn on_dreq(&mut self, now: Instant, source: &Source, transaction: u64, dreq: &Dreq<'_>) -> Outcome {
        let id = dreq.remote_comm_id;
        let ids = (id, dreq.local_comm_id);
        if self.table.get(id).is_none() {
            // The connection is long gone: its end is confirmed again (IBTA 12.9).
            self.answer(source, build::drep(ids, transaction, &[]))?;
            return Err(DropReason::UnknownConnection);
        }
        let connection = self.named_by_both(source, id, dreq.local_comm_id)?;
        if dreq.remote_qpn != connection.local_qpn {
            return Err(DropReason::NotThisConnection);
        }
        match connection.state {
            State::RepSent(_) | State::Established => {
                self.advance(now, id, Input::Dreq, None);
                self.remember_dreq(id, transaction);
                let cause = DisconnectCause::Peer;
                self.tell(id, |connection| Event::Disconnected { connection, cause });
                if self.table.get(id).is_some_and(|connection| connection.released) {
                    self.confirm_end(now, id, Input::Disconnect, &[]).ok();
                }
                Ok(())
            }
            // Both sides ask at the same time.
            State::DreqSent(_) => {
                let cause = DisconnectCause::Answered;
                self.tell(id, |connection| Event::Disconnected { connection, cause });
                let drep = build::drep(ids, transaction, &[]).ok();
                self.advance(now, id, Input::Dreq, drep);
                Ok(())
            }
            State::TimeWait => {
                self.counters.repeated += 1;
                self.answer(source, build::drep(ids, transaction, &[]))
            }
            State::DreqReceived(_) => {
                self.remember_dreq(id, transaction);
                Err(DropReason::Duplicate)
            }
            _ => Err(DropReason::WrongState),
        }
    }

    fn remember_dreq(&mut self, id: CommId, transaction: u64) {
        self.table.update(id, |connection| {
            if let State::DreqReceived(of) = &mut connection.state {
                *of = transaction;
            }
        });
    }

    /// Sends DREP for the DREQ that has arrived.
    pub(super) fn confirm_end(
        &mut self,
        now: Instant,
        id: CommId,
        input: Input,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        let Some(connection) = self.table.get(id) else { return Err(CallError::UnknownConnection) };
        let State::DreqReceived(transaction) = connection.state else {
            return Err(CallError::WrongState { call: "disconnect", state: connection.state.name() });
        };
        let drep = build::drep((id, connection.remote_comm_id), transaction, private_data)?;
        self.advance(now, id, input, Some(drep));
        Ok(())
    }

    fn on_drep(&mut self, now: Instant, source: &Source, drep: &Drep<'_>) -> Outcome {
        let id = drep.remote_comm_id;
        let connection = self.named_by_both(source, id, drep.local_comm_id)?;
        match connection.state {
            State::DreqSent(_) => {
                let cause = DisconnectCause::Answered;
                self.tell(id, |connection| Event::Disconnected { connection, cause });
            }
            State::DreqReceived(_) => {}
            State::TimeWait => return Err(DropReason::Duplicate),
            _ => return Err(DropReason::WrongState),
        }
        self.advance(now, id, Input::Drep, None);
        Ok(())
    }

    /// RoCE has no alternate paths.
    fn on_lap(&mut self, source: &Source, transaction: u64, lap: &Lap<'_>) -> Outcome {
        let status = match self.named_by_both(source, lap.remote_comm_id, lap.local_comm_id) {
            Ok(connection) if connection.local_qpn == lap.remote_qpn => AprStatus::Unsupported,
            Ok(_) => AprStatus::InvalidQpn,
            Err(_) => AprStatus::InvalidCommId,
        };
        self.answer(source, build::apr(transaction, lap, status))
    }
}
