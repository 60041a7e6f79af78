//! Completion channels.

use super::completions::{CqShared, locked};
use super::linger::Linger;
use crate::port::Readiness;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Events of one completion queue.
#[derive(Default)]
pub(crate) struct EventCounts {
    /// Events on the channel. Changed under the channel's lock.
    undelivered: AtomicU32,
    /// Events that the program has taken and not acknowledged yet.
    unacknowledged: AtomicU32,
}

impl EventCounts {
    /// Acknowledges this many events, or all if there are fewer.
    pub(crate) fn acknowledge(&self, count: u32) {
        let fewer = |events: u32| Some(events.saturating_sub(count));
        // This never fails: the closure returns a value for every number.
        let _ = self.unacknowledged.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
    }

    pub(crate) fn unacknowledged(&self) -> u32 {
        self.unacknowledged.load(Ordering::Acquire)
    }
}

/// A completion channel: events of completion queues, with a descriptor that can be polled.
pub(crate) struct ChannelShared {
    flag: Box<dyn Readiness>,
    /// Completion queues with events, each listed once, so that a program that never reads its events cannot exhaust
    /// memory.
    pending: Mutex<VecDeque<Weak<CqShared>>>,
    queues: AtomicUsize,
    pub(crate) linger: Linger,
}

impl ChannelShared {
    /// A channel that raises `flag` while it has events.
    pub(crate) fn new(flag: Box<dyn Readiness>) -> Self {
        Self { flag, pending: Mutex::default(), queues: AtomicUsize::new(0), linger: Linger::default() }
    }

    /// Adds a completion queue that delivers here.
    pub(super) fn attach(&self) {
        self.queues.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes `cq` and its events.
    pub(super) fn detach(&self, cq: &CqShared) {
        let mut pending = locked(&self.pending);
        pending.retain(|other| !std::ptr::eq(other.as_ptr(), cq));
        self.settle(&pending);
        drop(pending);
        self.queues.fetch_sub(1, Ordering::AcqRel);
    }

    /// The number of completion queues that deliver here.
    pub(crate) fn queues(&self) -> usize {
        self.queues.load(Ordering::Acquire)
    }

    /// Delivers events of `cq`.
    pub(super) fn signal(&self, cq: &Arc<CqShared>, count: u32) {
        let mut pending = locked(&self.pending);
        if cq.events.undelivered.fetch_add(count, Ordering::Relaxed) == 0 {
            pending.push_back(Arc::downgrade(cq));
        }
        // Each time, although the flag may be raised already: edge-triggered polling needs an edge.
        self.flag.raise();
    }

    /// Returns whether the channel has events, without a look at the flag.
    pub(crate) fn has_events(&self) -> bool {
        !locked(&self.pending).is_empty()
    }

    /// The next event, if the channel has one.
    pub(crate) fn next(&self) -> Option<Weak<CqShared>> {
        let mut pending = locked(&self.pending);
        let next = loop {
            let Some(first) = pending.pop_front() else { break None };
            // A queue that is being destroyed has no more events.
            let Some(cq) = first.upgrade() else { continue };
            cq.events.unacknowledged.fetch_add(1, Ordering::AcqRel);
            if cq.events.undelivered.fetch_sub(1, Ordering::Relaxed) > 1 {
                pending.push_back(Weak::clone(&first));
            }
            break Some(first);
        };
        self.settle(&pending);
        next
    }

    /// The flag is raised while there are events: both change under the lock.
    fn settle(&self, pending: &VecDeque<Weak<CqShared>>) {
        if pending.is_empty() {
            self.flag.lower();
        }
    }

    pub(crate) fn flag(&self) -> &dyn Readiness {
        &*self.flag
    }
}
