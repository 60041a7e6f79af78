//! The part of completion queues that the engine and the program share.

use super::channel::{ChannelShared, EventCounts};
use super::ring::{Apart, Consumer, Producer, ring};
use super::waiters::Waiters;
use super::wishes::{Wish, Wishes};
use qp::{Qpn, WorkCompletion};
use std::collections::TryReserveError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

/// Takes a lock whose data is consistent even if a holder panicked.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A clock that counts nanoseconds.
pub(crate) type Stamp = Box<dyn Fn() -> u64 + Send + Sync>;

/// The program's side of a completion queue.
pub(crate) struct CqShared {
    taking: Mutex<Taking>,
    /// Fields that the engine reads for each completion, on a separate cache line from the lock that the program
    /// takes for each poll.
    wishes: Apart<Wishes>,
    /// The position of the last completion that was solicited, or an error, among all that were ever pushed, counted
    /// from 1; 0 before the first one. Written before the completion is published.
    last_waking: AtomicU64,
    /// The position of the last completion in the queue when an event was last granted: the event announced it, and
    /// all before it.
    announced: AtomicU64,
    overrun: AtomicBool,
    capacity: AtomicU32,
    channel: Option<Arc<ChannelShared>>,
    pub(super) events: EventCounts,
    /// The clock, if completions are to be stamped with the time of delivery.
    pub(crate) stamp: OnceLock<Stamp>,
    /// The number that the program gave it.
    pub(crate) context: AtomicU64,
    /// Tasks that await a completion.
    pub(crate) waiters: Waiters,
    /// Events that are due on the channel, until the engine's driver delivers them.
    due: AtomicU32,
    /// Whether delivery wakes the waiting tasks.
    wakes: AtomicBool,
}

/// The consuming side of the queue.
struct Taking {
    consumer: Consumer<WorkCompletion>,
    /// The number of completions ever taken.
    taken: u64,
}

/// The engine's side of a completion queue.
pub(crate) struct CqProducer {
    ring: Producer<WorkCompletion>,
    /// The number of completions ever pushed.
    pushed: u64,
    overrun: bool,
    pub(crate) shared: Arc<CqShared>,
}

/// The result of a push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// No waiters to notify.
    Quiet,
    /// Notify the waiters.
    Notify,
    /// The queue was full: the completion is lost, and the queue is in error.
    Overrun,
}

/// A buffer for completions, to which a queue is resized. Allocated before any lock is taken, because it may be large.
pub(crate) struct CqRoom {
    producer: Producer<WorkCompletion>,
    consumer: Consumer<WorkCompletion>,
    capacity: u32,
}

impl CqRoom {
    /// A buffer for `capacity` completions.
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        let (producer, consumer) = ring(capacity as usize)?;
        Ok(Self { producer, consumer, capacity })
    }
}

/// A completion queue with this buffer.
pub(crate) fn completion_queue(
    room: CqRoom,
    channel: Option<Arc<ChannelShared>>,
) -> (CqProducer, Arc<CqShared>) {
    if let Some(channel) = &channel {
        channel.attach();
    }
    let shared = Arc::new(CqShared {
        taking: Mutex::new(Taking { consumer: room.consumer, taken: 0 }),
        wishes: Apart(Wishes::new()),
        last_waking: AtomicU64::new(0),
        announced: AtomicU64::new(0),
        overrun: AtomicBool::new(false),
        capacity: AtomicU32::new(room.capacity),
        channel,
        events: EventCounts::default(),
        stamp: OnceLock::new(),
        context: AtomicU64::new(0),
        waiters: Waiters::default(),
        due: AtomicU32::new(0),
        wakes: AtomicBool::new(false),
    });
    (CqProducer { ring: room.producer, pushed: 0, overrun: false, shared: Arc::clone(&shared) }, shared)
}

impl CqProducer {
    /// Publishes a completion. `wakes`: the completion is solicited, or an error.
    pub(crate) fn push(&mut self, mut completion: WorkCompletion, wakes: bool) -> Pushed {
        if let Some(now) = self.shared.stamp.get() {
            completion.timestamp = now();
        }
        if wakes {
            self.shared.last_waking.store(self.pushed + 1, Ordering::Relaxed);
        }
        if self.overrun || !self.ring.push(completion) {
            return self.fail();
        }
        self.pushed += 1;
        let granted = self.shared.wishes.0.grant(wakes);
        if granted.is_empty() {
            return Pushed::Quiet;
        }
        if granted.intersects(Wish::EVENT) {
            self.shared.announced.store(self.pushed, Ordering::Release);
        }
        self.shared.note(granted);
        Pushed::Notify
    }

    /// Notes that a completion was lost, and wakes all waiters, because no completion will follow.
    #[cold]
    fn fail(&mut self) -> Pushed {
        if !self.overrun {
            self.overrun = true;
            self.shared.overrun.store(true, Ordering::Release);
            let granted = self.shared.wishes.0.grant(true);
            self.shared.note(granted);
        }
        Pushed::Overrun
    }

    /// Moves to another buffer, with all completions that wait to be polled. `room` then holds the old one.
    ///
    /// # Errors
    /// The number of waiting completions, if they do not fit.
    pub(crate) fn resize(&mut self, room: &mut CqRoom) -> Result<(), usize> {
        let mut taking = locked(&self.shared.taking);
        let consumer = &mut taking.consumer;
        let waiting = consumer.len();
        if waiting > room.capacity as usize {
            return Err(waiting);
        }
        let mut some = [WorkCompletion::default(); 32];
        loop {
            let taken = consumer.take(&mut some);
            if taken == 0 {
                break;
            }
            // All waiting completions fit, and none are added meanwhile, because this is the only producer.
            some.iter().take(taken).for_each(|completion| _ = room.producer.push(*completion));
        }
        std::mem::swap(consumer, &mut room.consumer);
        std::mem::swap(&mut self.ring, &mut room.producer);
        room.capacity = self.shared.capacity.swap(room.capacity, Ordering::Release);
        Ok(())
    }
}

impl CqProducer {
    /// Removes the unpolled completions of a queue pair and returns their number.
    pub(crate) fn discard(&mut self, qpn: Qpn) -> usize {
        let mut taking = locked(&self.shared.taking);
        let mut waiting = vec![WorkCompletion::default(); taking.consumer.len()];
        let taken = taking.consumer.take(&mut waiting);
        waiting.truncate(taken);
        waiting.retain(|completion| completion.qpn != qpn);
        // They fit: they were in this buffer, and none are added meanwhile.
        waiting.iter().for_each(|completion| _ = self.ring.push(*completion));
        let discarded = taken - waiting.len();
        // The remaining completions have moved up. Which of them was solicited is no longer known, so the last one
        // counts as solicited if any was: a surplus event does no harm.
        if self.shared.last_waking.load(Ordering::Relaxed) > taking.taken {
            self.shared.last_waking.store(self.pushed, Ordering::Relaxed);
        }
        taking.taken += discarded as u64;
        discarded
    }
}

impl CqShared {
    /// Takes up to `out.len()` completions; returns how many.
    pub(crate) fn take(&self, out: &mut [WorkCompletion]) -> usize {
        let mut taking = locked(&self.taking);
        let count = taking.consumer.take(out);
        taking.taken += count as u64;
        count
    }

    /// The number of completions to take.
    pub(crate) fn len(&self) -> usize {
        locked(&self.taking).consumer.len()
    }

    /// Requests a notification for the next completion.
    pub(crate) fn wish(&self, wish: Wish) {
        self.wishes.0.make(wish);
    }

    /// Asks for an event. If the queue holds a completion of the requested kind that no event has announced, the
    /// event is due at once. UCX sleeps right after arming and relies on that, as on mlx5. A completion that was
    /// announced causes no second event: perftest arms between the event and the poll, and takes each event for a
    /// completion.
    pub(crate) fn arm(self: &Arc<Self>, solicited_only: bool) {
        let wish = if solicited_only { Wish::SOLICITED } else { Wish::ANY };
        self.wish(wish);
        if let Some(last) = self.unannounced(solicited_only)
            && !self.wishes.0.withdraw(Wish::EVENT).is_empty()
            && let Some(channel) = &self.channel
        {
            self.announced.fetch_max(last, Ordering::Release);
            channel.signal(self, 1);
        }
    }

    /// The position of the last completion, if the queue holds one that no event has announced: any, or one that is
    /// solicited or an error.
    fn unannounced(&self, solicited_only: bool) -> Option<u64> {
        let mut taking = locked(&self.taking);
        // Read the length first: this makes writes before the publication of the completions visible.
        let last = taking.taken + taking.consumer.len() as u64;
        let known = taking.taken.max(self.announced.load(Ordering::Acquire));
        let newest = if solicited_only { self.last_waking.load(Ordering::Relaxed).min(last) } else { last };
        (newest > known).then_some(last)
    }

    fn note(&self, granted: Wish) {
        if granted.intersects(Wish::EVENT) {
            self.due.fetch_add(1, Ordering::Relaxed);
        }
        if granted.contains(Wish::AWAITED) {
            self.wakes.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the thread that waits at its channel will probably drive the port for a while before it sleeps.
    pub(crate) fn lingers(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.linger.is_worth_it())
    }

    /// Notifies about completions for which the push returned [`Pushed::Notify`]: events go to the channel, and
    /// `woken` gets the waiting tasks. Only the engine's driver calls this, as it does the push.
    pub(crate) fn deliver(self: &Arc<Self>, woken: &mut Vec<Waker>) {
        let due = self.due.swap(0, Ordering::Relaxed);
        if let Some(channel) = &self.channel
            && due > 0
        {
            channel.signal(self, due);
        }
        if self.wakes.swap(false, Ordering::Relaxed) {
            self.waiters.take(woken);
        }
    }

    /// Notes that the queue is gone, and removes its events.
    pub(crate) fn detach(&self) {
        if let Some(channel) = &self.channel {
            channel.detach(self);
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Acquire)
    }

    pub(crate) fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    pub(crate) fn events(&self) -> &EventCounts {
        &self.events
    }
}
