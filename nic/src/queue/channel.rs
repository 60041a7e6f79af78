//! Completion channels.

use super::completions::{CqShared, locked};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
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
    event: EventFd,
    /// Completion queues with events, each listed once, so that a program that never reads its events cannot exhaust
    /// memory.
    pending: Mutex<VecDeque<Weak<CqShared>>>,
    queues: AtomicUsize,
}

impl ChannelShared {
    pub(crate) fn new() -> nix::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { event, pending: Mutex::default(), queues: AtomicUsize::new(0) })
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
        // Each time, although the descriptor may be readable already: edge-triggered polling needs an edge. The only
        // possible error is a counter at its maximum, and then the descriptor is readable too.
        let _ = self.event.write(1);
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

    /// The descriptor is readable while there are events: both change under the lock.
    fn settle(&self, pending: &VecDeque<Weak<CqShared>>) {
        if pending.is_empty() {
            // Takes the whole count. Polled first, because a program may make the descriptor blocking.
            let mut fds = [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
            if matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1)) {
                let _ = self.event.read();
            }
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
