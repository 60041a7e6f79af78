//! Asynchronous events.
//!
//! A device has one event queue, and each of its contexts has a descriptor. The thread that drives the device wakes the
//! listener when an event arrives. The listener delivers an event of an object to the context of that object, and an
//! event of the port to all contexts.

use crate::abi::*;
use crate::call::{InOut, Object, Out, Value, verbs};
use crate::cancel::{Found, waiting_verbs};
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::hub::{Hub, locked};
use crate::qp::Qp;
use crate::srq::Srq;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rnic::readiness::{self, Readiness};
use rnic::{AsyncEvent, EventSource, QpEvent};
use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError, Weak};
use std::task::{self, Poll, Wake, Waker};

/// The next event of a device, as a future.
pub(crate) type Listener = Pin<Box<dyn Future<Output = rnic::Result<AsyncEvent>> + Send>>;

/// The number of events that the program has read, and the number that it has acknowledged.
#[derive(Default)]
pub(crate) struct Acks {
    counts: Mutex<(u32, u32)>,
    changed: Condvar,
}

impl Acks {
    fn report(&self) {
        locked(&self.counts).0 += 1;
    }

    fn acknowledge(&self) {
        locked(&self.counts).1 += 1;
        self.changed.notify_all();
    }

    /// Waits until the program has acknowledged every event that it has read: no event may refer to a destroyed object.
    fn wait(&self) {
        let counts = locked(&self.counts);
        let open = |counts: &mut (u32, u32)| counts.1 < counts.0;
        drop(self.changed.wait_while(counts, open).unwrap_or_else(PoisonError::into_inner));
    }
}

/// The source of an event, as a key.
type Key = (u8, u64);

fn key(source: EventSource) -> Key {
    match source {
        EventSource::Port | EventSource::Device => (0, 0),
        EventSource::QueuePair(qpn) => (1, u64::from(qpn.value())),
        EventSource::CompletionQueue(number) => (2, number as u64),
        EventSource::SharedReceiveQueue(number) => (3, u64::from(number)),
    }
}

/// An object that may have events.
pub(crate) struct Target {
    source: EventSource,
    /// The address of its structure, which events point to.
    address: u64,
    inbox: Arc<Inbox>,
    acks: Arc<Acks>,
}

/// The objects and contexts that receive events.
#[derive(Default)]
pub(crate) struct Tables {
    objects: HashMap<Key, Target>,
    contexts: Vec<Weak<Inbox>>,
}

/// An event on its way to the program.
struct Entry {
    kind: ibv_event_type,
    key: Key,
    /// The address of the object, or the number of the port.
    element: u64,
    acks: Option<Arc<Acks>>,
}

/// The events of a context.
pub(crate) struct Inbox {
    waiting: Mutex<VecDeque<Entry>>,
    pub(crate) flag: Box<dyn Readiness>,
}

/// The limit of queued events, for a program that reads none.
const MAX_WAITING: usize = rnic::engine::MAX_EVENTS;

impl Inbox {
    pub(crate) fn new() -> Result<Self, Errno> {
        let flag = readiness::new()?;
        // The descriptor is blocking, as programs expect; programs that do not want to wait change that.
        fcntl(flag.as_fd(), FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(Self { waiting: Mutex::default(), flag })
    }

    fn add(&self, entry: Entry) {
        let mut waiting = locked(&self.waiting);
        if waiting.len() == MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back(entry);
        self.flag.raise();
    }

    fn take(&self) -> Option<Entry> {
        let mut waiting = locked(&self.waiting);
        let entry = waiting.pop_front();
        if waiting.is_empty() {
            self.flag.lower();
        }
        entry.inspect(|entry| entry.acks.iter().for_each(|acks| acks.report()))
    }

    fn forget(&self, key: Key) {
        let mut waiting = locked(&self.waiting);
        waiting.retain(|entry| entry.key != key);
        if waiting.is_empty() {
            self.flag.lower();
        }
    }
}

struct Alarm(Weak<Hub>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(hub) = self.0.upgrade() {
            hub.listen();
        }
    }
}

impl Hub {
    /// Delivers the pending events, and registers the waker for the next one.
    pub(crate) fn listen(self: &Arc<Self>) {
        self.news.store(true, Ordering::SeqCst);
        while self.news.load(Ordering::SeqCst) {
            // The thread that holds the lock checks `news` again: a wake may come from inside this loop.
            let mut listener = match self.listener.try_lock() {
                Ok(listener) => listener,
                Err(TryLockError::WouldBlock) => return,
                Err(TryLockError::Poisoned(left)) => {
                    // A panic ended a call in the middle of the loop: the future cannot go on, another one can.
                    self.listener.clear_poison();
                    let mut listener = left.into_inner();
                    *listener = None;
                    listener
                }
            };
            self.news.store(false, Ordering::SeqCst);
            let waker = Waker::from(Arc::new(Alarm(Arc::downgrade(self))));
            let mut cx = task::Context::from_waker(&waker);
            loop {
                let device = self.device.clone();
                let next = listener.get_or_insert_with(|| Box::pin(async move { device.next_event().await }));
                let Poll::Ready(event) = next.as_mut().poll(&mut cx) else { break };
                *listener = None;
                // Events need a thread that serves the device. The lack of one is reported where it matters.
                let Ok(event) = event else { break };
                self.hand_out(event);
            }
        }
    }

    fn hand_out(&self, event: AsyncEvent) {
        let (kind, key) = (kind(event), key(event.source()));
        let mut tables = locked(&self.tables);
        if let Some(target) = tables.objects.get(&key) {
            let acks = Some(Arc::clone(&target.acks));
            target.inbox.add(Entry { kind, key, element: target.address, acks });
        } else if key == (0, 0) {
            tables.contexts.retain(|inbox| inbox.strong_count() > 0);
            for inbox in tables.contexts.iter().filter_map(Weak::upgrade) {
                // The number of the port; other events of the device ignore it.
                inbox.add(Entry { kind, key, element: 1, acks: None });
            }
        }
    }

    /// Subscribes a context to events of the port.
    pub(crate) fn join(&self, inbox: &Arc<Inbox>) {
        locked(&self.tables).contexts.push(Arc::downgrade(inbox));
    }

    /// Starts to deliver events of this object to the program.
    pub(crate) fn watch<T: Object>(&self, source: EventSource, object: &T, context: &Context) -> Watch {
        let acks = Arc::new(Acks::default());
        let inbox = Arc::clone(&context.inbox);
        let address = object.as_c() as u64;
        let target = Target { source, address, inbox, acks: Arc::clone(&acks) };
        locked(&self.tables).objects.insert(key(source), target);
        Watch { source, acks }
    }

    /// Ends delivery for an object: drops its unread events, and waits until the program has acknowledged those that it
    /// has read.
    pub(crate) fn unwatch(&self, watch: &Watch) {
        if !self.is_ours() {
            return;
        }
        let target = locked(&self.tables).objects.remove(&key(watch.source));
        if let Some(target) = target {
            target.inbox.forget(key(target.source));
        }
        watch.acks.wait();
    }
}

/// An object whose events reach the program.
pub(crate) struct Watch {
    source: EventSource,
    acks: Arc<Acks>,
}

fn kind(event: AsyncEvent) -> ibv_event_type {
    match event {
        AsyncEvent::QueuePair(_, event) => match event {
            QpEvent::CommunicationEstablished => IBV_EVENT_COMM_EST,
            QpEvent::SendQueueDrained => IBV_EVENT_SQ_DRAINED,
            QpEvent::LastWqeReached => IBV_EVENT_QP_LAST_WQE_REACHED,
            QpEvent::Fatal => IBV_EVENT_QP_FATAL,
            QpEvent::RequestError => IBV_EVENT_QP_REQ_ERR,
            QpEvent::AccessError => IBV_EVENT_QP_ACCESS_ERR,
        },
        AsyncEvent::CompletionQueueError(_) => IBV_EVENT_CQ_ERR,
        AsyncEvent::SrqLimitReached(_) => IBV_EVENT_SRQ_LIMIT_REACHED,
        AsyncEvent::SrqError(_) => IBV_EVENT_SRQ_ERR,
        AsyncEvent::PortActive => IBV_EVENT_PORT_ACTIVE,
        AsyncEvent::PortError => IBV_EVENT_PORT_ERR,
        AsyncEvent::GidChange => IBV_EVENT_GID_CHANGE,
        AsyncEvent::DeviceFatal => IBV_EVENT_DEVICE_FATAL,
    }
}

verbs! {
    /// Stores the next event, if there is one.
    fn next_async_event(context: &Context, event: Out<ibv_async_event>) -> Found {
        let Some(entry) = context.inbox.take() else {
            let flag = &context.inbox.flag;
            return Ok(Found::nothing_at(flag.as_fd(), flag.write_end()));
        };
        let mut element = ibv_async_event__bindgen_ty_1 { cq: std::ptr::null_mut() };
        if entry.key == (0, 0) {
            element.port_num = 1;
        } else {
            element.cq = entry.element as *mut ibv_cq;
        }
        event.put(ibv_async_event { element, event_type: entry.kind });
        Ok(Found::Event)
    }

    fn ibv_ack_async_event(event: InOut<'_, ibv_async_event>) -> Value<()> {
        // SAFETY: the event type determines which pointer is valid. The program has not destroyed the object, because
        // destroying it waits for this acknowledgement.
        let watch = unsafe {
            match event.event_type {
                IBV_EVENT_CQ_ERR => Cq::of(event.element.cq).map(|cq| &cq.watch),
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                    Srq::of(event.element.srq).map(|srq| &srq.watch)
                }
                IBV_EVENT_QP_FATAL..=IBV_EVENT_SQ_DRAINED | IBV_EVENT_QP_LAST_WQE_REACHED => {
                    Qp::of(event.element.qp).map(|qp| &qp.watch)
                }
                _ => None,
            }
        };
        if let Some(watch) = watch.and_then(|watch| watch.get()) {
            watch.acks.acknowledge();
        }
        Ok(Value(()))
    }
}

waiting_verbs! {
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) = next_async_event;
}
