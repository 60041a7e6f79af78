//! The endpoint: what it owns, and how it is driven.

mod answers;
mod build;
mod calls;
mod ledger;
mod messages;
mod recipient;
mod requests;
mod resolve;
mod table;
mod turns;

use crate::config::Config;
use crate::counters::{Counters, DropReason};
use crate::error::CallError;
use crate::event::{DisconnectCause, Event, FailCause, Silence};
use crate::params::{Destination, Listen, Source, Transmit};
use crate::state::{ConnectionState, Input, Retry, State, next};
use crate::{ConnectionId, ListenerId};
use answers::{Answers, Held};
use ledger::Ledger;
pub use ledger::{Connected, Entry};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{Attribute, CommId, RejReason, ServiceId};
use qp::{Gid, Mtu, PKey, Psn};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
pub use recipient::Recipient;
use resolve::Resolutions;
use std::collections::VecDeque;
use table::{Connection, Due, Keyed, Map, Table};
use time::{Duration, Instant};

/// A connection manager for the addresses of one device.
///
/// It has four kinds of methods: calls of the program (`listen`, `connect`, ...), `handle_*` for what comes from
/// outside, `poll_*` for what goes there, and views. After a batch of calls and `handle_*`, drain `poll_transmit` and
/// `poll_event`, then wait until `poll_timeout`. A message that was not polled yet is replaced by the next one of the
/// same connection.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    /// The P_Key table of the port.
    pkeys: Box<[PKey]>,
    rng: ChaCha20Rng,
    table: Table,
    listeners: Map<ListenerId, Listen>,
    /// The listeners of each service: one for each address.
    services: Map<ServiceId, Vec<ListenerId>>,
    next_listener: u64,
    held: Held,
    answers: Answers,
    resolutions: Resolutions,
    events: VecDeque<Event>,
    silence: Option<Silence>,
    ledger: Option<Ledger>,
    counters: Counters,
}

impl Endpoint {
    /// An endpoint without connections. The seed must be random: IDs, transaction IDs and starting PSNs come from
    /// it, and it is all that protects a connection from strangers who forge its peer's address.
    #[must_use]
    pub fn new(config: Config, seed: [u8; 32]) -> Self {
        let mut rng = ChaCha20Rng::from_seed(seed);
        let mut key = [0; 16];
        rng.fill_bytes(&mut key);
        let keyed = Keyed(key);
        Self {
            config,
            pkeys: Box::new([PKey::DEFAULT]),
            rng,
            table: Table::new(keyed),
            listeners: Map::with_hasher(keyed),
            services: Map::with_hasher(keyed),
            next_listener: 1,
            held: Held::default(),
            answers: Answers::default(),
            resolutions: Resolutions::new(keyed),
            events: VecDeque::new(),
            silence: None,
            ledger: None,
            counters: Counters::default(),
        }
    }

    /// The next datagram to send, if any. Those of connections come first.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        while let Some(id) = self.table.next_turn(now, &self.config.limits) {
            self.table.update(id, |connection| {
                connection.waits = false;
                connection.deadline = Some(now + connection.interval);
            });
            self.table.set_due(id, Due::Last);
        }
        self.resolutions.grant_turns(now, self.config.limits.queries_per_source);
        while let Some((id, due)) = self.table.take_due() {
            let Some(connection) = self.table.get(id) else { continue };
            let to = connection.to;
            let mad = match due {
                Due::Last => connection.last.as_deref().copied(),
                Due::Mra(message, timeout) => Some(build::mra(id, connection, message, timeout)),
            };
            if let Some(mad) = mad {
                return Some(self.sent(to, mad));
            }
        }
        let (to, mad) = self.resolutions.take_due().or_else(|| self.answers.pop())?;
        Some(self.sent(to, mad))
    }

    fn sent(&mut self, to: Destination, mad: [u8; MAD_LEN]) -> Transmit {
        if let Some(attribute) = build::attribute(&mad) {
            self.counters.count_sent(attribute);
        }
        Transmit { to, mad }
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns whether [`poll_event`](Self::poll_event) has an event.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The last message that was sent again because nobody had answered it, once: for lines that tell what takes so long.
    pub const fn take_silence(&mut self) -> Option<Silence> {
        self.silence.take()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; `None` if nothing waits for the time.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.table.next_deadline(), self.held.next_deadline(), self.resolutions.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.table.expired(now) {
            self.expire(now, id);
        }
        self.release_held(now);
        self.resolution_timeout(now);
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Sets the largest path MTU that the device carries from now on.
    pub const fn set_max_mtu(&mut self, mtu: Mtu) {
        self.config.max_mtu = mtu;
    }

    /// Sets the P_Key table of the port. A REQ for another partition is refused with reason 12.
    pub fn set_pkeys(&mut self, pkeys: &[PKey]) {
        self.pkeys = pkeys.into();
    }

    /// Whether a connection with this address was established, and is not forgotten yet.
    #[must_use]
    pub fn knows(&self, remote: Gid) -> bool {
        self.table.is_verified(remote)
    }

    /// The state of a connection.
    #[must_use]
    pub fn state(&self, connection: ConnectionId) -> ConnectionState {
        self.table.get(connection.0).map_or(ConnectionState::Closed, |c| c.state.name())
    }

    /// Whether a communication ID or a request ID is one of this endpoint's.
    #[must_use]
    pub fn has(&self, id: CommId) -> bool {
        self.table.get(id).is_some() || self.resolutions.has(id)
    }

    /// How many connections there are: in all states, half-open, and in TIMEWAIT.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.table.len(), self.table.half_open(), self.table.time_wait())
    }

    /// Tells the program, if it still holds the connection.
    fn tell(&mut self, id: CommId, event: impl FnOnce(ConnectionId) -> Event) {
        if self.table.get(id).is_some_and(|connection| !connection.released) {
            self.events.push_back(event(ConnectionId(id)));
        }
    }

    fn drop_for(&mut self, reason: DropReason) {
        self.counters.count_dropped(reason);
    }

    /// A random ID of this endpoint.
    fn random_id(&mut self) -> CommId {
        let random = self.rng.next_u32();
        CommId(self.config.slot.map_or(random, |slot| u32::from(slot) << 24 | random & 0x00ff_ffff))
    }

    /// A communication ID that no connection has, also none in TIMEWAIT.
    fn fresh_id(&mut self) -> CommId {
        loop {
            let id = self.random_id();
            if id.0 != 0 && self.table.get(id).is_none() {
                return id;
            }
        }
    }

    fn fresh_psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u32())
    }

    /// Whether the sender is known to receive at its address.
    fn is_proven(&self, source: &Source) -> bool {
        source.proven || self.table.is_verified(source.remote)
    }

    /// Moves a connection to the state that follows, if the input means something in its state. The state of the
    /// connection and the message that it is to send, if any, are the caller's.
    fn advance(&mut self, now: Instant, id: CommId, input: Input, message: Option<[u8; MAD_LEN]>) -> bool {
        let Some(connection) = self.table.get(id) else { return false };
        let Some(after) = next(connection.state.name(), input) else { return false };
        let retry =
            Retry { left: connection.retries, silent: 0, interval: connection.interval, extended: false };
        let again = Some(now + connection.interval);
        let ack_timeout = connection.negotiated.ack_timeout.duration();
        let (state, deadline) = match after {
            // Connections begin in these two; nothing leads to them.
            ConnectionState::ReqSent | ConnectionState::ReqReceived => return false,
            ConnectionState::Closed => {
                self.note_state(id, after);
                self.table.remove(id);
                return true;
            }
            ConnectionState::RepReceived => (State::RepReceived(None), None),
            ConnectionState::RepSent => {
                let is_proven = connection.passive.is_none_or(|passive| passive.proven);
                let spoken = if is_proven { retry.left } else { self.config.limits.unproven_retries };
                let silent = retry.left.saturating_sub(spoken);
                (State::RepSent(Retry { silent, ..retry }), again)
            }
            ConnectionState::Established => (State::Established, None),
            ConnectionState::DreqSent => (State::DreqSent(retry), again),
            ConnectionState::DreqReceived => (State::DreqReceived(0), None),
            // As long as the peer may repeat the message that was refused, once.
            ConnectionState::Refused => (State::Refused, Some(now + self.linger(connection))),
            // The acknowledgement timeout is about twice the time that a packet takes (IBTA 12.9).
            ConnectionState::TimeWait => (State::TimeWait, Some(now + self.config.bounded(ack_timeout))),
        };
        self.note_state(id, after);
        self.table.enter(id, state, deadline);
        if let Some(mad) = message {
            self.table.update(id, |connection| connection.last = Some(Box::new(mad)));
            self.table.set_due(id, Due::Last);
        }
        if matches!(input, Input::Rtu | Input::Packet | Input::Rep | Input::Dreq)
            && self.table.get(id).is_some_and(|connection| !connection.verified)
        {
            self.table.prove(id);
        }
        while let Some(oldest) = self.table.time_wait_beyond(self.config.limits.time_wait, id) {
            self.counters.time_wait_overflow += 1;
            self.leave_time_wait(oldest);
        }
        true
    }

    /// How long a REJ is repeated after the peer was last heard of. Peers repeat a REQ or REP after about the same
    /// time as this side, so that several repetitions may be lost.
    fn linger(&self, connection: &Connection) -> Duration {
        self.config.bounded(connection.interval * 4 + connection.negotiated.ack_timeout.duration())
    }

    /// Sends the last message of a connection again, because the peer has not received it.
    fn repeat(&mut self, now: Instant, id: CommId) {
        self.counters.repeated += 1;
        self.table.set_due(id, Due::Last);
        if let Some(connection) = self.table.get(id)
            && connection.state == State::Refused
        {
            let deadline = Some(now + self.linger(connection));
            self.table.enter(id, State::Refused, deadline);
        }
    }

    fn leave_time_wait(&mut self, id: CommId) {
        self.tell(id, |connection| Event::TimeWaitExit { connection });
        self.table.remove(id);
    }

    /// The deadline of a connection has passed.
    fn expire(&mut self, now: Instant, id: CommId) {
        let Some(connection) = self.table.get(id) else { return };
        let (mut state, waits, peer) = (connection.state, connection.waits, connection.to.remote);
        if waits
            && let Some(last) = self.table.last_turn(connection.to.remote)
            && last + connection.interval > now
        {
            // The peer answers others: this one's turn will come.
            let deadline = Some(last + connection.interval);
            self.table.enter(id, state, deadline);
            return;
        }
        if let Some(retry) = state.retry()
            && let Some(left) = retry.left.checked_sub(1)
        {
            let is_silent = left < retry.silent;
            (retry.left, retry.extended) = (left, false);
            let deadline = Some(now + retry.interval);
            self.table.update(id, |connection| {
                connection.state = state;
                connection.deadline = deadline;
                // A peer that never answers must not hold up the requests to it for good.
                connection.waits = false;
            });
            if !is_silent {
                self.counters.retries += u64::from(!waits);
                self.table.set_due(id, Due::Last);
            }
            let message = match state {
                State::ReqSent(_) => Some(Attribute::Req),
                State::RepSent(_) => Some(Attribute::Rep),
                _ => None,
            };
            if let Some(message) = message.filter(|_| !waits) {
                self.silence = Some(Silence { peer, message, left });
            }
            return;
        }
        let unreachable = |message| {
            move |connection| Event::Failed { connection, cause: FailCause::Unreachable { message } }
        };
        match state {
            State::ReqSent(_) => {
                self.give_up_request(id);
                self.tell(id, unreachable(Attribute::Req));
                self.advance(now, id, Input::Expire, None);
            }
            State::RepSent(_) => {
                self.tell(id, unreachable(Attribute::Rep));
                self.refuse(now, id, Input::Expire, RejReason::Timeout);
            }
            State::ReqReceived(_) => {
                self.tell(id, |connection| Event::Failed { connection, cause: FailCause::Expired });
                self.refuse(now, id, Input::Expire, RejReason::Timeout);
            }
            State::DreqSent(_) => {
                let cause = DisconnectCause::Unanswered;
                self.tell(id, |connection| Event::Disconnected { connection, cause });
                self.advance(now, id, Input::Expire, None);
            }
            State::TimeWait => self.leave_time_wait(id),
            State::Refused => {
                self.advance(now, id, Input::Expire, None);
            }
            State::RepReceived(_) | State::Established | State::DreqReceived(_) => {
                self.table.enter(id, state, None);
            }
        }
    }

    /// Sends REJ, repeats it for a while, and tells the program nothing more.
    fn refuse(&mut self, now: Instant, id: CommId, input: Input, reason: RejReason) {
        let Some(connection) = self.table.get(id) else { return };
        let mad = build::rej(id, connection, reason, &[], &[]);
        self.advance(now, id, input, mad.ok());
        self.table.update(id, |connection| connection.released = true);
    }

    /// The program's view of a connection that it holds.
    fn held_by_program(&self, connection: ConnectionId) -> Result<&Connection, CallError> {
        self.table.get(connection.0).filter(|c| !c.released).ok_or(CallError::UnknownConnection)
    }
}
