//! The connections of an endpoint, and the indexes and sums that follow from their states.
//!
//! A connection changes only through [`Table::insert`], [`Table::enter`], [`Table::prove`] and [`Table::remove`],
//! which keep the indexes true. Each costs at most the logarithm of a bound.

use super::turns::Turns;
use crate::ListenerId;
use crate::config::Limits;
use crate::negotiated::Negotiated;
use crate::params::{Destination, Source};
use crate::state::{ConnectionState, State};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{CmTimeout, CommId, Subject};
use qp::{Gid, Qpn};
use siphasher::sip::SipHasher13;
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;
use time::{Duration, Instant};

/// Hashes with a key of the endpoint's seed, so that nobody can choose entries that collide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyed(pub(crate) [u8; 16]);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

pub(crate) type Map<K, V> = HashMap<K, V, Keyed>;

/// What a REQ is recognised by when it comes again: its source, the GUID of the device and its communication ID.
pub(crate) type RequestKey = (Gid, u64, CommId);

/// The message that a connection is to send next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// [`Connection::last`].
    Last,
    /// An MRA.
    Mra(Subject, CmTimeout),
}

/// What only a passive connection has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Passive {
    pub(crate) listener: ListenerId,
    pub(crate) key: RequestKey,
    /// Whether the REQ asked for an alternate path.
    pub(crate) alternate: bool,
    /// Whether the source was proven when the REQ came.
    pub(crate) proven: bool,
}

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) state: State,
    /// `None` on the active side.
    pub(crate) passive: Option<Passive>,
    /// When it began.
    pub(crate) created: Instant,
    pub(crate) to: Destination,
    /// The peer's ID; 0 until it is known.
    pub(crate) remote_comm_id: CommId,
    /// The transaction of REQ, REP and RTU.
    pub(crate) transaction_id: u64,
    pub(crate) local_qpn: Qpn,
    pub(crate) negotiated: Negotiated,
    /// Time between repetitions of this side's messages.
    pub(crate) interval: Duration,
    /// Number of repetitions.
    pub(crate) retries: u8,
    /// The message that this side sent last, MRA aside, for repetition.
    pub(crate) last: Option<Box<[u8; MAD_LEN]>>,
    /// What is to be sent, and since when: a number that grows with each.
    pub(crate) due: Option<(u64, Due)>,
    /// When the time of the state runs out.
    pub(crate) deadline: Option<Instant>,
    /// Whether the REQ waits for its turn to be sent.
    pub(crate) waits: bool,
    /// Whether the peer has named this side's ID, so that it receives at its address.
    pub(crate) verified: bool,
    /// Whether the program has been told that the connection may be stale.
    pub(crate) suspected: bool,
    /// Whether the program has given the connection back: it is told nothing more.
    pub(crate) released: bool,
}

impl Connection {
    pub(crate) fn is_from(&self, source: &Source) -> bool {
        self.to.remote == source.remote && self.to.local == source.local
    }

    pub(crate) const fn is_half_open(&self) -> bool {
        self.passive.is_some() && !self.verified
    }
}

/// Why there is no room for another half-open connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoRoom {
    Backlog,
    Total,
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Table {
    connections: Map<CommId, Connection>,
    by_request: Map<RequestKey, CommId>,
    /// Verified connections by the peer's queue pair.
    by_queue_pair: Map<(Gid, Qpn), CommId>,
    /// Half-open connections of each source.
    half_open: Map<Gid, usize>,
    half_open_total: usize,
    /// Half-open connections of unproven sources, oldest first.
    unproven: BTreeSet<(Instant, CommId)>,
    /// Requests that wait for the program, by listener and whether the source is proven; oldest first.
    pending: Map<(ListenerId, bool), BTreeSet<(Instant, CommId)>>,
    /// Verified connections of each source.
    verified: Map<Gid, usize>,
    /// Connections whose REP is sent, by this side's queue pair: its first packet says as much as the RTU.
    rep_sent: Map<Qpn, CommId>,
    /// Those in TIMEWAIT, in the order in which they may leave.
    time_wait: BTreeSet<(Instant, CommId)>,
    deadlines: BTreeSet<(Instant, CommId)>,
    turns: Turns,
    due: BTreeSet<(u64, CommId)>,
    next_due: u64,
}

fn add<K: std::hash::Hash + Eq>(sums: &mut Map<K, usize>, key: K) {
    *sums.entry(key).or_default() += 1;
}

/// Whether a half-open connection may make room for another one.
fn is_old(now: Instant, created: Instant, limits: &Limits) -> bool {
    now.saturating_duration_since(created) >= limits.half_open_grace
}

/// Takes one away, and removes the entry at 0, so that no key stays without a connection.
pub(super) fn subtract<K: std::hash::Hash + Eq>(sums: &mut Map<K, usize>, key: K) {
    if let std::collections::hash_map::Entry::Occupied(mut entry) = sums.entry(key) {
        *entry.get_mut() -= 1;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}

impl Table {
    pub(crate) fn new(keyed: Keyed) -> Self {
        Self {
            connections: Map::with_hasher(keyed),
            by_request: Map::with_hasher(keyed),
            by_queue_pair: Map::with_hasher(keyed),
            half_open: Map::with_hasher(keyed),
            half_open_total: 0,
            unproven: BTreeSet::new(),
            pending: Map::with_hasher(keyed),
            verified: Map::with_hasher(keyed),
            rep_sent: Map::with_hasher(keyed),
            time_wait: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            turns: Turns::new(keyed),
            due: BTreeSet::new(),
            next_due: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn get(&self, id: CommId) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// All IDs, in order.
    pub(crate) fn ids(&self) -> BTreeSet<CommId> {
        self.connections.keys().copied().collect()
    }

    pub(crate) fn by_request(&self, key: &RequestKey) -> Option<CommId> {
        self.by_request.get(key).copied()
    }

    pub(crate) fn by_queue_pair(&self, remote: Gid, qpn: Qpn) -> Option<CommId> {
        self.by_queue_pair.get(&(remote, qpn)).copied()
    }

    /// The connection of a queue pair of this side, while it waits for the RTU.
    pub(crate) fn waiting_for_rtu(&self, local_qpn: Qpn) -> Option<CommId> {
        self.rep_sent.get(&local_qpn).copied()
    }

    /// Whether any connection waits for the RTU.
    pub(crate) fn waits_for_rtu(&self) -> bool {
        !self.rep_sent.is_empty()
    }

    /// Whether a connection with this address is established, or was a moment ago.
    pub(crate) fn is_verified(&self, remote: Gid) -> bool {
        self.verified.contains_key(&remote)
    }

    /// All connections, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CommId, &Connection)> {
        self.connections.iter().map(|(id, connection)| (*id, connection))
    }

    /// The hasher of its maps.
    pub(crate) fn keyed(&self) -> Keyed {
        *self.connections.hasher()
    }

    pub(crate) fn half_open(&self) -> usize {
        self.half_open_total
    }

    pub(crate) fn time_wait(&self) -> usize {
        self.time_wait.len()
    }

    /// How many half-open connections a source has.
    pub(crate) fn half_open_of(&self, source: &Source) -> usize {
        self.half_open.get(&source.remote).copied().unwrap_or_default()
    }

    /// Room in the backlog of a listener: a request that must go first, if any.
    pub(crate) fn backlog_room(
        &self,
        now: Instant,
        listener: ListenerId,
        proven: bool,
        backlog: u32,
        limits: &Limits,
    ) -> Result<Option<CommId>, NoRoom> {
        let Some(pending) = self.pending.get(&(listener, proven)) else {
            return if backlog == 0 { Err(NoRoom::Backlog) } else { Ok(None) };
        };
        if pending.len() < backlog as usize {
            return Ok(None);
        }
        let oldest = pending.first().filter(|(created, _)| !proven && is_old(now, *created, limits));
        oldest.map(|(_, id)| Some(*id)).ok_or(NoRoom::Backlog)
    }

    /// Room for another half-open connection: an unproven one that must go first, if any.
    pub(crate) fn room(&self, now: Instant, proven: bool, limits: &Limits) -> Result<Option<CommId>, NoRoom> {
        let is_full = if proven {
            self.half_open_total >= limits.half_open
        } else {
            self.unproven.len() >= limits.half_open.saturating_sub(limits.half_open_proven)
        };
        if !is_full && self.half_open_total < limits.half_open {
            return Ok(None);
        }
        let (created, oldest) = self.unproven.first().copied().ok_or(NoRoom::Total)?;
        if proven || is_old(now, created, limits) { Ok(Some(oldest)) } else { Err(NoRoom::Total) }
    }

    /// The connection that leaves TIMEWAIT first of all, if there are more than `most`. It is not `newest`, whose
    /// last message is not sent yet.
    pub(crate) fn time_wait_beyond(&self, most: usize, newest: CommId) -> Option<CommId> {
        if self.time_wait.len() <= most {
            return None;
        }
        self.time_wait.iter().map(|(_, id)| *id).find(|id| *id != newest)
    }

    /// Adds a connection; the ID must be free.
    pub(crate) fn insert(&mut self, id: CommId, connection: Connection) {
        if let Some(passive) = &connection.passive {
            self.by_request.insert(passive.key, id);
        }
        self.connections.insert(id, connection);
        self.account(id, true);
    }

    /// Removes a connection.
    pub(crate) fn remove(&mut self, id: CommId) -> Option<Connection> {
        self.account(id, false);
        let connection = self.connections.remove(&id)?;
        if let Some(passive) = &connection.passive {
            self.by_request.remove(&passive.key);
        }
        if let Some(qpn) = connection.negotiated.remote_qpn {
            let key = (connection.to.remote, qpn);
            if self.by_queue_pair.get(&key) == Some(&id) {
                self.by_queue_pair.remove(&key);
            }
        }
        if let Some((order, _)) = connection.due {
            self.due.remove(&(order, id));
        }
        Some(connection)
    }

    /// Changes the state, the deadline and whatever else `change` changes, but not the due message.
    pub(crate) fn enter(&mut self, id: CommId, state: State, deadline: Option<Instant>) {
        self.update(id, |connection| {
            connection.state = state;
            connection.deadline = deadline;
        });
    }

    /// Changes a connection.
    pub(crate) fn update(&mut self, id: CommId, change: impl FnOnce(&mut Connection)) {
        self.account(id, false);
        if let Some(connection) = self.connections.get_mut(&id) {
            change(connection);
        }
        self.account(id, true);
    }

    /// The peer has named this side's ID: from now on, its queue pair identifies the connection.
    pub(crate) fn prove(&mut self, id: CommId) {
        self.update(id, |connection| connection.verified = true);
        if let Some(connection) = self.connections.get(&id)
            && let Some(qpn) = connection.negotiated.remote_qpn
        {
            self.by_queue_pair.insert((connection.to.remote, qpn), id);
        }
    }

    /// Sets the message to be sent next, in place of one that still waits.
    pub(crate) fn set_due(&mut self, id: CommId, due: Due) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let order = connection.due.map_or(self.next_due, |(order, _)| order);
        if order == self.next_due {
            self.next_due += 1;
            self.due.insert((order, id));
        }
        connection.due = Some((order, due));
    }

    /// The connection that has waited longest to send, and what it sends.
    pub(crate) fn take_due(&mut self) -> Option<(CommId, Due)> {
        let (_, id) = self.due.pop_first()?;
        let (_, due) = self.connections.get_mut(&id)?.due.take()?;
        Some((id, due))
    }

    /// Whether a new REQ to this peer has to wait for its turn.
    pub(crate) fn must_wait(&self, remote: Gid, limits: &Limits) -> bool {
        self.turns.must_wait(remote, limits.requests_per_peer)
    }

    /// The next connection whose REQ has its turn.
    pub(crate) fn next_turn(&mut self, now: Instant, limits: &Limits) -> Option<CommId> {
        self.turns.next(now, limits.requests_per_peer)
    }

    /// When a REQ to this peer last had its turn.
    pub(crate) fn last_turn(&self, remote: Gid) -> Option<Instant> {
        self.turns.last(remote)
    }

    /// The next deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// A connection whose deadline has passed.
    pub(crate) fn expired(&self, now: Instant) -> Option<CommId> {
        self.deadlines.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }

    /// Adds a connection to the sums and sets, or takes it away.
    fn account(&mut self, id: CommId, is_in: bool) {
        let Some(connection) = self.connections.get(&id) else { return };
        let set = |set: &mut BTreeSet<(Instant, CommId)>, at: Instant| {
            if is_in {
                set.insert((at, id))
            } else {
                set.remove(&(at, id))
            };
        };
        let remote = connection.to.remote;
        let sum = if is_in { add::<Gid> } else { subtract::<Gid> };
        if let Some(at) = connection.deadline {
            set(&mut self.deadlines, at);
            if connection.state.name() == ConnectionState::TimeWait {
                set(&mut self.time_wait, at);
            }
        }
        if connection.verified {
            sum(&mut self.verified, remote);
        }
        if matches!(connection.state, State::ReqSent(_) | State::RepReceived(_)) {
            let waits = connection.waits.then_some(connection.created);
            self.turns.account(remote, waits, id, is_in);
        }
        let Some(passive) = connection.passive else { return };
        if connection.is_half_open() {
            sum(&mut self.half_open, remote);
            self.half_open_total = self.half_open_total.wrapping_add_signed(if is_in { 1 } else { -1 });
            if !passive.proven {
                set(&mut self.unproven, connection.created);
            }
        }
        if connection.state.name() == ConnectionState::RepSent {
            if is_in {
                self.rep_sent.insert(connection.local_qpn, id);
            } else if self.rep_sent.get(&connection.local_qpn) == Some(&id) {
                self.rep_sent.remove(&connection.local_qpn);
            }
        }
        if connection.state.name() == ConnectionState::ReqReceived {
            let key = (passive.listener, passive.proven);
            let pending = self.pending.entry(key).or_default();
            set(pending, connection.created);
            if pending.is_empty() {
                self.pending.remove(&key);
            }
        }
    }
}
