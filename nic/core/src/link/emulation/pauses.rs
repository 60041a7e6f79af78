//! The pauses that the port asks its peers for.
//!
//! A switch accounts for waiting packets by their ingress port, and tells that port's peer to pause. Here each peer
//! is such a port: a peer that floods the queue is stopped, and others are not stopped for it.

use cc::Rate;
use cc::pfc::{Full, Ingress, PRIORITIES, PauseFrame, Quanta, Thresholds};
use std::collections::BTreeMap;
use std::net::IpAddr;
use time::Instant;

/// The maximum number of peers with an account; packets of others are lossy. A switch has tens of ports.
const MAX_PEERS: usize = 1024;

/// The accounts of all peers.
pub(super) struct Pauses {
    rate: Rate,
    thresholds: [Option<Thresholds>; PRIORITIES],
    peers: BTreeMap<IpAddr, Ingress>,
    /// A pause may be due.
    changed: bool,
    /// When the port asks for a pause again.
    refresh: Option<Instant>,
    pub(super) sent: u64,
}

impl Pauses {
    /// `None` if no priority is lossless.
    pub(super) fn new(rate: Rate, thresholds: [Option<Thresholds>; PRIORITIES]) -> Option<Self> {
        let peers = BTreeMap::new();
        let any = thresholds.iter().any(Option::is_some);
        any.then_some(Self { rate, thresholds, peers, changed: false, refresh: None, sent: 0 })
    }

    /// Admits a packet to the queue. `None` if its priority is lossy.
    pub(super) fn admit(&mut self, from: IpAddr, priority: u8, bytes: u32) -> Option<Result<(), Full>> {
        (*self.thresholds.get(usize::from(priority))?)?;
        if !self.peers.contains_key(&from) {
            if self.peers.len() >= MAX_PEERS {
                let idle =
                    |peer: &Ingress| (0..8).all(|p| peer.occupancy(p) == 0) && peer.poll_timeout().is_none();
                self.peers.retain(|_, peer| !idle(peer));
            }
            if self.peers.len() >= MAX_PEERS {
                return None;
            }
            self.peers.insert(from, Ingress::new(self.rate, Quanta::MAX, self.thresholds));
        }
        let peer = self.peers.get_mut(&from)?;
        let before = peer.pauses(priority);
        let result = peer.handle_packet(priority, u64::from(bytes));
        self.changed |= peer.pauses(priority) != before;
        Some(result)
    }

    /// Accounts for an admitted packet that has left.
    pub(super) fn release(&mut self, from: IpAddr, priority: u8, bytes: u32) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let before = peer.pauses(priority);
        peer.release(priority, u64::from(bytes));
        self.changed |= peer.pauses(priority) != before;
    }

    /// The next frame to send, and the peer to send it to.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(IpAddr, PauseFrame)> {
        if !self.changed && self.refresh.is_none_or(|at| at > now) {
            return None;
        }
        let due = self.peers.iter_mut().find_map(|(peer, ingress)| Some((*peer, ingress.poll_frame(now)?)));
        if due.is_some() {
            self.sent += 1;
        } else {
            self.changed = false;
        }
        self.refresh = self.peers.values().filter_map(Ingress::poll_timeout).min();
        due
    }

    /// When the port has to ask for a pause again.
    pub(super) const fn refreshes(&self) -> Option<Instant> {
        self.refresh
    }
}
