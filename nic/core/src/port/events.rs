//! How the program of a port learns of asynchronous events.

use super::{Datapath, Readiness};
use crate::engine::EventNews;
use crate::queue::Waiters;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use time::Instant;

/// The flag and the tasks that are told of events.
#[derive(Default)]
pub struct EventDesk {
    /// Raised while events are pending. Created on first use.
    flag: OnceLock<Arc<dyn Readiness>>,
    /// Tasks that await an event.
    pub waiters: Waiters,
}

impl EventDesk {
    /// The flag that is raised while events are pending, if it exists.
    pub fn flag(&self) -> Option<Arc<dyn Readiness>> {
        self.flag.get().map(Arc::clone)
    }

    /// The flag that is raised while events are pending, from now on this one if there is none yet. The caller holds the
    /// lock of the port.
    pub fn begin(&self, datapath: &Datapath, flag: Box<dyn Readiness>) -> Arc<dyn Readiness> {
        let flag = self.flag.get_or_init(|| Arc::from(flag));
        if !datapath.engine.has_no_events() {
            flag.raise();
        }
        Arc::clone(flag)
    }

    /// Called before the lock is released: tells what became of events and connections, and whose completion queues have
    /// news. `woken`: tasks to wake once no lock is held.
    pub fn tell(&self, datapath: &mut Datapath, now: impl FnOnce() -> Instant, woken: &mut Vec<Waker>) {
        if datapath.engine.has_connection_news() {
            datapath.engine.tell_connections(now(), woken);
        }
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

    fn show(&self, news: EventNews) {
        match (self.flag.get(), news) {
            (Some(flag), EventNews::Added) => flag.raise(),
            (Some(flag), EventNews::Empty) => flag.lower(),
            (None, _) => {}
        }
    }
}
