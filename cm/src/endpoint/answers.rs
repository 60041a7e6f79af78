//! What an endpoint keeps for datagrams that belong to no connection: answers to be sent, and requests that came
//! before their listener. Both are small and bounded, also for each address.

use crate::config::Limits;
use crate::params::{Destination, Source};
use qp::Gid;
use qp::wire::mad::MAD_LEN;
use std::collections::VecDeque;
use time::Instant;

type Mad = [u8; MAD_LEN];

/// Answers that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Answers {
    queue: VecDeque<(Destination, Box<Mad>)>,
}

impl Answers {
    /// Adds an answer, unless there are too many, in all or for its address.
    #[must_use]
    pub(super) fn push(&mut self, to: Destination, mad: &Mad, limits: &Limits) -> bool {
        let for_same = self.queue.iter().filter(|(other, _)| other.remote == to.remote).count();
        let has_room = self.queue.len() < limits.answers && for_same < limits.answers_per_source;
        if has_room {
            self.queue.push_back((to, Box::new(*mad)));
        }
        has_room
    }

    pub(super) fn pop(&mut self) -> Option<(Destination, Mad)> {
        self.queue.pop_front().map(|(to, mad)| (to, *mad))
    }
}

/// A request for a service on which nobody listens yet.
#[derive(Debug)]
pub(super) struct HeldRequest {
    until: Instant,
    pub(super) source: Source,
    pub(super) mad: Box<Mad>,
}

/// Requests that wait for a listener, oldest first.
#[derive(Debug, Default)]
pub(super) struct Held {
    queue: VecDeque<HeldRequest>,
}

/// What became of a request that was to be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    /// It waits.
    Kept,
    /// It waits already.
    Known,
    /// There is no room.
    Full,
}

impl Held {
    /// Keeps a request. All are kept for the same time, so that the oldest one is the first whose time is over.
    pub(super) fn push(&mut self, until: Instant, source: &Source, mad: &Mad, limits: &Limits) -> Hold {
        if self.queue.iter().any(|held| held.source.remote == source.remote && *held.mad == *mad) {
            return Hold::Known;
        }
        let of_same = |gid: Gid| self.queue.iter().filter(|held| held.source.remote == gid).count();
        if self.queue.len() >= limits.held || of_same(source.remote) >= limits.held_per_source {
            return Hold::Full;
        }
        self.queue.push_back(HeldRequest { until, source: *source, mad: Box::new(*mad) });
        Hold::Kept
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.queue.front().map(|held| held.until)
    }

    /// The oldest request, if its time is over.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<HeldRequest> {
        self.queue.pop_front_if(|held| held.until <= now)
    }

    /// All requests. Those that still have no listener are pushed again.
    pub(super) fn take(&mut self) -> VecDeque<HeldRequest> {
        std::mem::take(&mut self.queue)
    }

    /// The requests of a kind; the others stay.
    pub(super) fn take_if(&mut self, mut is_of: impl FnMut(&Mad) -> bool) -> Vec<HeldRequest> {
        let (taken, rest): (Vec<_>, Vec<_>) = self.take().into_iter().partition(|held| is_of(&held.mad));
        self.queue = rest.into();
        taken
    }

    /// Puts a request back in its place; they come in their order.
    pub(super) fn put_back(&mut self, held: HeldRequest) {
        self.queue.push_back(held);
    }
}
