//! Where the events of a device's connections go: to the listener, connection or resolution that each is for.

use super::bell::Bell;
use super::connection::Progress;
use super::datagrams::Answer;
use super::office::Rooms;
use crate::engine::EventSink;
use crate::error::Result;
use crate::port::Readiness;
use crate::queue::locked;
use crate::verbs::device::DeviceInner;
use ::cm::{ConnectionId, Event, ListenerId, QueryId, ResolutionId};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use time::Duration;

/// Something that changes step by step, and those who wait for it.
#[derive(Default)]
pub(super) struct Mailbox<T> {
    content: Mutex<T>,
    bell: Bell,
}

impl<T> Mailbox<T> {
    /// Changes the content and rings.
    fn put(&self, woken: &mut Vec<Waker>, change: impl FnOnce(&mut T)) {
        let mut content = locked(&self.content);
        change(&mut content);
        self.bell.ring(woken);
    }

    /// Looks at the content. `take` also says whether there is news left.
    pub(super) fn take<R>(&self, take: impl FnOnce(&mut T) -> (R, bool)) -> R {
        let mut content = locked(&self.content);
        let (taken, has_news) = take(&mut content);
        if !has_news {
            self.bell.silence();
        }
        taken
    }

    /// A flag that is raised while there is news.
    pub(super) fn flag(
        &self,
        device: &DeviceInner,
        has_news: impl Fn(&T) -> bool,
    ) -> Result<Arc<dyn Readiness>> {
        self.bell.flag(device, |raise| {
            let content = locked(&self.content);
            if has_news(&content) {
                raise();
            }
        })
    }

    /// Waits for what `take` takes, as [`Bell::wait`].
    pub(super) fn wait<R>(
        &self,
        device: &DeviceInner,
        timeout: Duration,
        has_news: impl Fn(&T) -> bool,
        mut take: impl FnMut(&mut T) -> (Option<R>, bool),
    ) -> Result<Option<R>> {
        self.bell.wait(device, timeout, || self.flag(device, has_news), || self.take(&mut take))
    }

    /// The same for a task.
    pub(super) async fn listen<R>(
        &self,
        device: &DeviceInner,
        mut take: impl FnMut(&mut T) -> (Option<R>, bool),
    ) -> Result<R> {
        self.bell.listen(device, || self.take(&mut take)).await
    }
}

/// A request that waits for its program.
pub(super) enum Incoming {
    Connection(ConnectionId, Box<::cm::Request>),
    Query(QueryId, Box<::cm::Query>),
}

pub(super) type Requests = Mailbox<VecDeque<Incoming>>;

/// The mailboxes of a device.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) listeners: HashMap<ListenerId, Arc<Requests>>,
    pub(super) connections: HashMap<ConnectionId, Arc<Mailbox<Progress>>>,
    pub(super) resolutions: HashMap<ResolutionId, Arc<Mailbox<Answer>>>,
}

/// The desk as its port sees it. Its lock is taken under that of the port.
pub(super) struct Clerk(pub(super) Arc<Rooms>);

impl EventSink for Clerk {
    fn take(&mut self, event: Event, woken: &mut Vec<Waker>) {
        let desk = &mut *locked(&self.0.desk);
        match event {
            Event::ConnectRequest { connection, request } => {
                let listener = request.listener;
                desk.ask(listener, Incoming::Connection(connection, request), woken);
            }
            Event::ResolveRequest { query, request } => {
                let listener = request.listener;
                desk.ask(listener, Incoming::Query(query, request), woken);
            }
            Event::ConnectResponse { connection, response } => {
                desk.progress(connection, Progress::established(response.private_data), woken);
            }
            Event::Established { connection, private_data } => {
                desk.progress(connection, Progress::established(private_data), woken);
            }
            Event::Rejected { connection, rejection } => {
                desk.progress(connection, Progress::rejected(rejection), woken);
            }
            Event::Failed { connection, cause } => {
                desk.progress(connection, Progress::failed(cause), woken);
            }
            Event::Disconnected { connection, cause } => {
                desk.progress(connection, Progress::disconnected(cause), woken);
            }
            Event::Resolved { resolution, resolved } => {
                desk.answer(resolution, Answer::Resolved(resolved), woken);
            }
            Event::NotResolved { resolution, status, .. } => {
                desk.answer(resolution, Answer::NotResolved(status), woken);
            }
            // The port deals with suspicions itself. Queue pairs are not used for another connection.
            Event::TimeWaitExit { .. } | Event::StaleSuspected { .. } => {}
        }
    }
}

impl Desk {
    fn ask(&mut self, listener: ListenerId, incoming: Incoming, woken: &mut Vec<Waker>) {
        if let Some(mailbox) = self.listeners.get(&listener) {
            mailbox.put(woken, |requests| requests.push_back(incoming));
        }
    }

    fn progress(&mut self, connection: ConnectionId, step: Progress, woken: &mut Vec<Waker>) {
        if let Some(mailbox) = self.connections.get(&connection) {
            mailbox.put(woken, |progress| progress.advance(step));
        }
    }

    fn answer(&mut self, resolution: ResolutionId, answer: Answer, woken: &mut Vec<Waker>) {
        if let Some(mailbox) = self.resolutions.remove(&resolution) {
            mailbox.put(woken, |before| *before = answer);
        }
    }
}
