//! Whose turn it is to send a REQ or SIDR_REQ. A peer gets a bounded number of them at a time, because more than it has
//! room for are lost, and repeated only seconds later.

use super::table::{Keyed, Map};
use qp::Gid;
use qp::wire::mad::cm::CommId;
use std::collections::{BTreeSet, VecDeque};
use time::Instant;

/// The requests to one peer.
#[derive(Debug, Default)]
struct Peer {
    /// How many were sent, and take a place at the peer: until the answer; for a connection, until this side has
    /// confirmed it.
    asked: usize,
    /// Those that wait, oldest first.
    waiting: BTreeSet<(Instant, CommId)>,
    /// When one of them was last given its turn.
    last: Option<Instant>,
    /// Whether it is among those that changed.
    changed: bool,
}

/// The requests of the active side that are not answered.
#[derive(Debug)]
pub(super) struct Turns {
    peers: Map<Gid, Peer>,
    /// Peers for which a request may have its turn, or may not.
    changed: VecDeque<Gid>,
}

impl Turns {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self { peers: Map::with_hasher(keyed), changed: VecDeque::new() }
    }

    /// Whether a new request to this peer has to wait.
    pub(super) fn must_wait(&self, remote: Gid, most: usize) -> bool {
        self.peers.get(&remote).is_some_and(|peer| peer.asked >= most || !peer.waiting.is_empty())
    }

    /// Adds a request, or takes it away.
    pub(super) fn account(&mut self, remote: Gid, waits: Option<Instant>, id: CommId, is_in: bool) {
        let peer = self.peers.entry(remote).or_default();
        match (waits, is_in) {
            (Some(since), true) => {
                peer.waiting.insert((since, id));
            }
            (Some(since), false) => {
                peer.waiting.remove(&(since, id));
            }
            (None, true) => peer.asked += 1,
            (None, false) => {
                peer.asked -= 1;
                if !peer.waiting.is_empty() && !std::mem::replace(&mut peer.changed, true) {
                    self.changed.push_back(remote);
                }
            }
        }
        if peer.asked == 0 && peer.waiting.is_empty() {
            self.peers.remove(&remote);
        }
    }

    /// The next request that may be sent. The caller takes it out of those that wait.
    pub(super) fn next(&mut self, now: Instant, most: usize) -> Option<CommId> {
        while let Some(remote) = self.changed.pop_front() {
            let Some(peer) = self.peers.get_mut(&remote) else { continue };
            if peer.asked < most
                && let Some((_, id)) = peer.waiting.first().copied()
            {
                peer.last = Some(now);
                // There may be room for another one.
                self.changed.push_front(remote);
                return Some(id);
            }
            peer.changed = false;
        }
        None
    }

    /// When a request to this peer was last given its turn.
    pub(super) fn last(&self, remote: Gid) -> Option<Instant> {
        self.peers.get(&remote).and_then(|peer| peer.last)
    }
}
