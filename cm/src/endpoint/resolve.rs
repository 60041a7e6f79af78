//! Service ID resolution (IBTA 12.11): which queue pair receives the datagrams of a service.
//!
//! ```text
//! asking side                         answering side
//!     SIDR_REQ ------------------->   the program is asked
//!              <-------------------   SIDR_REP: queue pair and key, or the reason for a refusal
//! ```
//!
//! The asking side repeats its request until it is answered. The answering side keeps its answer for a while, and
//! repeats it if the request comes again.

use super::messages::Outcome;
use super::requests::{answer_time, take_addresses};
use super::table::{Keyed, Map, subtract};
use super::turns::Turns;
use super::{Endpoint, build};
use crate::counters::DropReason;
use crate::error::CallError;
use crate::event::{Event, Silence};
use crate::params::{Destination, Ece, Listen, Path, Query, Reply, Resolve, Resolved, Source};
use crate::{ListenerId, QueryId, ResolutionId};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{Attribute, Body, CommId, Message, ServiceId, SidrRep, SidrReq, SidrStatus};
use qp::{Gid, QKey, QpType, Qpn};
use rand_chacha::rand_core::Rng;
use std::collections::BTreeSet;
use time::{Duration, Instant};

/// How long an answer is repeated: two repetitions of a request by Linux, which come every 4.1 s.
const LINGER: Duration = Duration::from_secs(10);

/// A request of this side.
#[derive(Debug)]
struct Own {
    path: Path,
    service_id: ServiceId,
    transaction_id: u64,
    mad: Box<[u8; MAD_LEN]>,
    interval: Duration,
    left: u8,
    deadline: Instant,
    /// Since when it waits for its turn to be sent, if it does.
    waits: Option<Instant>,
}

/// A request of a peer.
#[derive(Debug)]
struct Asked {
    to: Destination,
    request_id: CommId,
    transaction_id: u64,
    service_id: ServiceId,
    answer: Option<Box<[u8; MAD_LEN]>>,
    deadline: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Own(CommId),
    Asked(u64),
}

#[derive(Debug)]
pub(super) struct Resolutions {
    own: Map<CommId, Own>,
    asked: Map<u64, Asked>,
    by_request: Map<(Gid, CommId), u64>,
    /// Queries of each source that are not answered.
    of_source: Map<Gid, usize>,
    turns: Turns,
    next_query: u64,
    deadlines: BTreeSet<(Instant, Key)>,
    /// Answered queries, oldest first: they make room for new ones.
    answered: BTreeSet<(Instant, u64)>,
    due: BTreeSet<Key>,
}

impl Resolutions {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self {
            own: Map::with_hasher(keyed),
            asked: Map::with_hasher(keyed),
            by_request: Map::with_hasher(keyed),
            of_source: Map::with_hasher(keyed),
            turns: Turns::new(keyed),
            next_query: 1,
            deadlines: BTreeSet::new(),
            answered: BTreeSet::new(),
            due: BTreeSet::new(),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub(super) fn take_due(&mut self) -> Option<(Destination, [u8; MAD_LEN])> {
        while let Some(key) = self.due.pop_first() {
            let found = match key {
                Key::Own(id) => self.own.get(&id).map(|own| (own.path.to, *own.mad)),
                Key::Asked(number) => self
                    .asked
                    .get(&number)
                    .and_then(|asked| asked.answer.as_ref().map(|answer| (asked.to, **answer))),
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Gives requests their turn to be sent.
    pub(super) fn grant_turns(&mut self, now: Instant, most: usize) {
        while let Some(id) = self.turns.next(now, most) {
            let Some(own) = self.remove_own(id) else { continue };
            self.insert_own(id, Own { deadline: now + own.interval, waits: None, ..own });
        }
    }

    /// Adds a request of this side, which is sent unless it waits.
    /// Whether a resolution of this side has this request ID.
    pub(super) fn has(&self, id: CommId) -> bool {
        self.own.contains_key(&id)
    }

    fn insert_own(&mut self, id: CommId, own: Own) {
        self.turns.account(own.path.to.remote, own.waits, id, true);
        self.deadlines.insert((own.deadline, Key::Own(id)));
        if own.waits.is_none() {
            self.due.insert(Key::Own(id));
        }
        self.own.insert(id, own);
    }

    fn remove_own(&mut self, id: CommId) -> Option<Own> {
        let own = self.own.remove(&id)?;
        self.turns.account(own.path.to.remote, own.waits, id, false);
        self.deadlines.remove(&(own.deadline, Key::Own(id)));
        self.due.remove(&Key::Own(id));
        Some(own)
    }

    fn remove_asked(&mut self, number: u64) {
        let Some(asked) = self.asked.remove(&number) else { return };
        self.by_request.remove(&(asked.to.remote, asked.request_id));
        self.deadlines.remove(&(asked.deadline, Key::Asked(number)));
        self.answered.remove(&(asked.deadline, number));
        self.due.remove(&Key::Asked(number));
        if asked.answer.is_none() {
            subtract(&mut self.of_source, asked.to.remote);
        }
    }
}

impl Endpoint {
    /// Asks a peer for the queue pair of a service.
    ///
    /// # Errors
    ///
    /// [`CallError::PrivateDataTooLong`], [`CallError::Full`].
    pub fn resolve(&mut self, now: Instant, resolve: &Resolve<'_>) -> Result<ResolutionId, CallError> {
        let max = self.config.limits.resolutions;
        if self.resolutions.own.len() >= max {
            return Err(CallError::Full { of: "resolutions", max });
        }
        let (addresses, data) = (resolve.addresses.as_ref(), resolve.private_data);
        let private_data = build::with_addresses(addresses, data, "SIDR_REQ", SidrReq::PRIVATE_DATA_LEN)?;
        let id = loop {
            let id = self.random_id();
            if !self.resolutions.has(id) {
                break id;
            }
        };
        let transaction_id = self.rng.next_u64();
        let body = Body::SidrReq(SidrReq {
            request_id: id,
            pkey: resolve.path.pkey,
            service_id: resolve.service_id,
            private_data: &private_data,
        });
        let mad = build::write(&Message { transaction_id, attribute_modifier: 0, body })?;
        let interval = answer_time(resolve.response_timeout, resolve.path.lifetime);
        let most = self.config.limits.queries_per_source;
        let waits = self.resolutions.turns.must_wait(resolve.path.to.remote, most).then_some(now);
        let own = Own {
            path: resolve.path,
            service_id: resolve.service_id,
            transaction_id,
            mad: Box::new(mad),
            interval,
            left: resolve.max_cm_retries & 0x0f,
            deadline: now + interval,
            waits,
        };
        self.resolutions.insert_own(id, own);
        Ok(ResolutionId(id))
    }

    /// Gives a resolution up; `false` if it is unknown or over.
    pub fn cancel(&mut self, resolution: ResolutionId) -> bool {
        self.resolutions.remove_own(resolution.0).is_some()
    }

    /// Answers a query: sends SIDR_REP.
    ///
    /// # Errors
    ///
    /// [`CallError::UnknownQuery`], [`CallError::PrivateDataTooLong`].
    pub fn reply(&mut self, now: Instant, query: QueryId, reply: &Reply<'_>) -> Result<(), CallError> {
        let number = query.0;
        let unanswered = self.resolutions.asked.get_mut(&number).filter(|asked| asked.answer.is_none());
        let asked = unanswered.ok_or(CallError::UnknownQuery)?;
        let rep = SidrRep {
            request_id: asked.request_id,
            status: reply.status,
            qpn: reply.qpn,
            service_id: asked.service_id,
            qkey: reply.qkey,
            private_data: reply.private_data,
            ..SidrRep::default()
        };
        let body = Body::SidrRep(rep.with_vendor_id(reply.ece.vendor_id));
        let attribute_modifier = reply.ece.options;
        let message = Message { transaction_id: asked.transaction_id, attribute_modifier, body };
        asked.answer = Some(Box::new(build::write(&message)?));
        subtract(&mut self.resolutions.of_source, asked.to.remote);
        let before = std::mem::replace(&mut asked.deadline, now + LINGER);
        self.resolutions.deadlines.remove(&(before, Key::Asked(number)));
        self.resolutions.deadlines.insert((now + LINGER, Key::Asked(number)));
        self.resolutions.answered.insert((now + LINGER, number));
        self.resolutions.due.insert(Key::Asked(number));
        Ok(())
    }

    /// Gives up all resolutions, and refuses the queries that were not answered.
    pub(super) fn close_resolutions(&mut self, now: Instant) {
        let own: BTreeSet<_> = self.resolutions.own.keys().copied().collect();
        own.into_iter().for_each(|id| drop(self.resolutions.remove_own(id)));
        let asked: BTreeSet<_> = self.resolutions.asked.keys().copied().collect();
        let refusal = Reply {
            status: SidrStatus::Rejected,
            qpn: Qpn::default(),
            qkey: QKey(0),
            ece: Ece::default(),
            private_data: &[],
        };
        for number in asked {
            // Those that were answered are unknown.
            self.reply(now, QueryId(number), &refusal).ok();
        }
    }

    pub(super) fn on_sidr_req(
        &mut self,
        now: Instant,
        source: &Source,
        message: &Message<'_>,
        req: &SidrReq<'_>,
        bytes: &[u8; MAD_LEN],
    ) -> Outcome {
        let key = (source.remote, req.request_id);
        if let Some(&number) = self.resolutions.by_request.get(&key) {
            let is_same = self.resolutions.asked.get(&number).is_some_and(|asked| {
                asked.transaction_id == message.transaction_id && asked.answer.is_some()
            });
            if !is_same {
                return Err(DropReason::Duplicate);
            }
            self.counters.repeated += 1;
            self.resolutions.due.insert(Key::Asked(number));
            return Ok(());
        }
        let Some((listener, listen)) = self.resolver(req.service_id, source.local) else {
            return self.hold(now, source, message, bytes);
        };
        let Ok((addresses, private_data)) = take_addresses(&listen, source, req.private_data) else {
            return self.no_service(source, message, req, SidrStatus::Rejected);
        };
        self.room_for_query(source)?;
        let to = Destination::back_to(source);
        let request = Query {
            listener,
            service_id: req.service_id,
            addresses,
            to,
            pkey: req.pkey,
            private_data: private_data.into(),
        };
        let number = self.resolutions.next_query;
        self.resolutions.next_query += 1;
        let deadline = now + self.config.limits.half_open_life;
        let asked = Asked {
            to,
            request_id: req.request_id,
            transaction_id: message.transaction_id,
            service_id: req.service_id,
            answer: None,
            deadline,
        };
        self.resolutions.asked.insert(number, asked);
        self.resolutions.by_request.insert(key, number);
        *self.resolutions.of_source.entry(source.remote).or_default() += 1;
        self.resolutions.deadlines.insert((deadline, Key::Asked(number)));
        self.events.push_back(Event::ResolveRequest { query: QueryId(number), request: Box::new(request) });
        Ok(())
    }

    /// Makes room for a query: the answer that has been kept longest goes.
    fn room_for_query(&mut self, source: &Source) -> Outcome {
        let limits = self.config.limits;
        if self.events.len() >= limits.events {
            return Err(DropReason::EventsFull);
        }
        let of_source = self.resolutions.of_source.get(&source.remote).copied().unwrap_or_default();
        if of_source >= limits.queries_per_source {
            return Err(DropReason::SourceQuota);
        }
        if self.resolutions.asked.len() >= limits.queries {
            let (_, oldest) = self.resolutions.answered.first().copied().ok_or(DropReason::QueriesFull)?;
            self.resolutions.remove_asked(oldest);
        }
        Ok(())
    }

    /// The listener that resolves a service at an address.
    pub(super) fn resolver(&self, service_id: ServiceId, local: Gid) -> Option<(ListenerId, Listen)> {
        self.listener(service_id, local).filter(|(_, listen)| listen.qp_type == QpType::Ud)
    }

    pub(super) fn no_service(
        &mut self,
        source: &Source,
        message: &Message<'_>,
        req: &SidrReq<'_>,
        status: SidrStatus,
    ) -> Outcome {
        let (request_id, service_id) = (req.request_id, req.service_id);
        let body = Body::SidrRep(SidrRep { request_id, service_id, status, ..SidrRep::default() });
        let transaction_id = message.transaction_id;
        self.answer(source, build::write(&Message { transaction_id, attribute_modifier: 0, body }))
    }

    pub(super) fn on_sidr_rep(
        &mut self,
        source: &Source,
        message: &Message<'_>,
        rep: &SidrRep<'_>,
    ) -> Outcome {
        let id = rep.request_id;
        let own = self.resolutions.own.get(&id).ok_or(DropReason::UnknownConnection)?;
        if own.path.to.remote != source.remote
            || own.path.to.local != source.local
            || own.transaction_id != message.transaction_id
            || own.service_id != rep.service_id
        {
            return Err(DropReason::NotThisConnection);
        }
        let path = own.path;
        self.resolutions.remove_own(id);
        let resolution = ResolutionId(id);
        self.events.push_back(if rep.status == SidrStatus::Valid {
            let resolved = Resolved {
                qpn: rep.qpn,
                qkey: rep.qkey,
                path,
                ece: Ece { vendor_id: rep.vendor_id(), options: message.attribute_modifier },
                private_data: rep.private_data.into(),
            };
            Event::Resolved { resolution, resolved: Box::new(resolved) }
        } else {
            let private_data = rep.private_data.into();
            Event::NotResolved { resolution, status: Some(rep.status), private_data }
        });
        Ok(())
    }

    pub(super) fn resolution_timeout(&mut self, now: Instant) {
        while let Some((at, key)) = self.resolutions.deadlines.first().copied()
            && at <= now
        {
            match key {
                Key::Asked(number) => self.resolutions.remove_asked(number),
                Key::Own(id) => self.repeat_resolution(now, id),
            }
        }
    }

    fn repeat_resolution(&mut self, now: Instant, id: CommId) {
        let Some(own) = self.resolutions.remove_own(id) else { return };
        let last = self.resolutions.turns.last(own.path.to.remote);
        if let Some(last) = last.filter(|last| own.waits.is_some() && *last + own.interval > now) {
            // The peer answers others: this one's turn will come.
            self.resolutions.insert_own(id, Own { deadline: last + own.interval, ..own });
            return;
        }
        let Some(left) = own.left.checked_sub(1) else {
            let resolution = ResolutionId(id);
            self.events.push_back(Event::NotResolved {
                resolution,
                status: None,
                private_data: Box::default(),
            });
            return;
        };
        if own.waits.is_none() {
            self.counters.retries += 1;
            self.silence = Some(Silence { peer: own.path.to.remote, message: Attribute::SidrReq, left });
        }
        // A peer that never answers must not hold up the requests to it for good.
        let own = Own { left, deadline: now + own.interval, waits: None, ..own };
        self.resolutions.insert_own(id, own);
    }
}
