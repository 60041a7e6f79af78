//! How the program of a port learns of asynchronous events.

use super::Datapath;
use crate::engine::EventNews;
use crate::queue::Waiters;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

/// The descriptor and the tasks that are told of events.
#[derive(Default)]
pub(crate) struct EventDesk {
    /// Readable while events are pending. Created on first use.
    event_fd: OnceLock<Arc<EventFd>>,
    /// Tasks that await an event.
    pub(crate) waiters: Waiters,
}

impl EventDesk {
    /// The descriptor that is readable while events are pending. `with`: runs a request under the lock of the port.
    pub(crate) fn event_fd(
        &self,
        with: impl FnOnce(&mut dyn FnMut(&mut Datapath)),
    ) -> nix::Result<Arc<EventFd>> {
        if self.event_fd.get().is_none() {
            let event = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
            with(&mut |datapath| {
                // Another thread may have been faster.
                if self.event_fd.set(Arc::clone(&event)).is_ok() && !datapath.engine.has_no_events() {
                    self.show(EventNews::Added);
                }
            });
        }
        self.event_fd.get().map(Arc::clone).ok_or(nix::Error::EBADF)
    }

    /// Called before the lock is released: tells what became of events, and whose completion queues have news. `woken`:
    /// tasks to wake once no lock is held.
    pub(crate) fn tell(&self, datapath: &mut Datapath, woken: &mut Vec<Waker>) {
        if let Some(news) = datapath.engine.take_event_news() {
            self.show(news);
            if news == EventNews::Added {
                self.waiters.take(woken);
            }
        }
        if datapath.engine.has_notifications() {
            datapath.engine.take_notifications().for_each(|cq| cq.deliver(woken));
        }
    }

    /// Sets whether the descriptor is readable.
    fn show(&self, news: EventNews) {
        let Some(event) = self.event_fd.get() else { return };
        // Errors mean that the descriptor is already in the desired state: full, or empty.
        let _ = match news {
            EventNews::Added => event.write(1).map(drop),
            EventNews::Empty => event.read().map(drop),
        };
    }
}
