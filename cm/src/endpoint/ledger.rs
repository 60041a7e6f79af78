//! What an endpoint tells those who share its address: where it listens, and which connections it has.
//!
//! Several processes may share an address, and with it queue pair 1. Whoever receives the datagrams of the address has to
//! know which process a request is for, and which connections to close when a process ends without a word.

use super::table::{Connection, Keyed};
use super::{Endpoint, Recipient};
use crate::error::CallError;
use crate::negotiated::{Negotiated, ack_timeout};
use crate::params::{Destination, Path, Source};
use crate::state::{ConnectionState, State};
use crate::{CmTimeout, ConnectionId};
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::cm::{CommId, ServiceId};
use qp::{Mtu, Psn, QpType, Qpn};
use rand_chacha::rand_core::Rng;
use std::collections::{HashSet, VecDeque};
use time::Instant;

/// A change that those who share the address have to know of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Somebody listens for requests with this service ID now.
    Listens(ServiceId),
    /// Nobody listens for them any more.
    Silent(ServiceId),
    /// A connection is established.
    Connected(Connected),
    /// It is not established any more: its end is under way, or over.
    Ended(ConnectionId),
}

/// An established connection: what is needed to close it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connected {
    /// The local communication ID.
    pub local: CommId,
    /// The peer's communication ID.
    pub remote: CommId,
    /// The queue pair of this side.
    pub local_qpn: Qpn,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// Where the peer is.
    pub to: Destination,
}

impl Connected {
    fn of(id: CommId, connection: &Connection) -> Self {
        Self {
            local: id,
            remote: connection.remote_comm_id,
            local_qpn: connection.local_qpn,
            remote_qpn: connection.negotiated.remote_qpn.unwrap_or_default(),
            to: connection.to,
        }
    }
}

/// Entries that were not polled yet.
#[derive(Debug)]
pub(super) struct Ledger {
    entries: VecDeque<Entry>,
    /// The connections that the reader was told of, or will be.
    connected: HashSet<CommId, Keyed>,
}

impl Endpoint {
    /// Begins the ledger, or begins it anew, for a reader that knows nothing yet: with entries for everything that is
    /// listened for and connected now.
    pub fn open_ledger(&mut self) {
        let listens = self.services.keys().map(|service_id| Entry::Listens(*service_id));
        let established = |(id, connection): (CommId, &Connection)| {
            (connection.state == State::Established).then(|| Connected::of(id, connection))
        };
        let connected: Vec<_> = self.table.iter().filter_map(established).collect();
        let mut known = HashSet::with_hasher(self.table.keyed());
        known.extend(connected.iter().map(|connected| connected.local));
        let entries = listens.chain(connected.into_iter().map(Entry::Connected)).collect();
        self.ledger = Some(Ledger { entries, connected: known });
    }

    /// The next entry, if the ledger is open and has any.
    pub fn poll_ledger(&mut self) -> Option<Entry> {
        self.ledger.as_mut()?.entries.pop_front()
    }

    /// Whether [`poll_ledger`](Self::poll_ledger) has an entry.
    #[must_use]
    pub fn has_entries(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| !ledger.entries.is_empty())
    }

    /// Takes over an established connection of an endpoint that has ended: [`destroy`](Self::destroy) then tells its
    /// peer.
    ///
    /// # Errors
    ///
    /// [`CallError::Full`]; [`CallError::AddressInUse`] if this endpoint has a connection with the same local ID.
    pub fn adopt(&mut self, now: Instant, connected: &Connected) -> Result<ConnectionId, CallError> {
        let max = self.config.limits.connections;
        if self.table.len() >= max {
            return Err(CallError::Full { of: "connections", max });
        }
        let id = connected.local;
        if self.table.get(id).is_some() {
            return Err(CallError::AddressInUse);
        }
        let path =
            Path { to: connected.to, ..Path::new(connected.to.local, connected.to.remote, Mtu::B1024) };
        let negotiated = Negotiated {
            qp_type: QpType::Rc,
            path,
            remote_qpn: Some(connected.remote_qpn),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            ack_timeout: ack_timeout(self.config.ack_delay, path.lifetime),
        };
        let connection = Connection {
            state: State::Established,
            passive: None,
            created: now,
            to: connected.to,
            remote_comm_id: connected.remote,
            transaction_id: self.rng.next_u64(),
            local_qpn: connected.local_qpn,
            negotiated,
            interval: self.config.bounded(ADOPTED_INTERVAL.duration()),
            retries: ADOPTED_RETRIES,
            last: None,
            due: None,
            deadline: None,
            waits: false,
            verified: true,
            suspected: false,
            released: false,
        };
        self.table.insert(id, connection);
        self.note_state(id, ConnectionState::Established);
        Ok(ConnectionId(id))
    }

    /// Takes the requests that wait for a listener of this service: another endpoint listens for it now.
    pub fn take_held(&mut self, service_id: ServiceId) -> Vec<(Source, [u8; MAD_LEN])> {
        let is_for_it = |mad: &[u8; MAD_LEN]| Recipient::of(mad) == Some(Recipient::Service(service_id));
        let held = self.held.take_if(is_for_it).into_iter();
        held.map(|held| (held.source, *held.mad)).collect()
    }

    pub(super) fn note(&mut self, entry: Entry) {
        if let Some(ledger) = &mut self.ledger {
            ledger.entries.push_back(entry);
        }
    }

    /// A connection enters a state.
    pub(super) fn note_state(&mut self, id: CommId, state: ConnectionState) {
        let Self { ledger: Some(ledger), table, .. } = self else { return };
        if state == ConnectionState::Established {
            if let Some(connection) = table.get(id)
                && ledger.connected.insert(id)
            {
                ledger.entries.push_back(Entry::Connected(Connected::of(id, connection)));
            }
        } else if ledger.connected.remove(&id) {
            ledger.entries.push_back(Entry::Ended(ConnectionId(id)));
        }
    }
}

/// The DREQ of an adopted connection is repeated after half a second, three times: whoever adopted it has many.
const ADOPTED_INTERVAL: CmTimeout = CmTimeout::new(17);
const ADOPTED_RETRIES: u8 = 3;
