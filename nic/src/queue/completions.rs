//! Completion queues and channels, as the engine and the program share them.

use super::ring::{Consumer, Producer, ring};
use nix::sys::eventfd::{EfdFlags, EventFd};
use qp::WorkCompletion;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Nobody waits for an event.
const IDLE: u8 = 0;
/// An event is wanted for the next solicited completion, or error.
const SOLICITED: u8 = 1;
/// An event is wanted for the next completion.
const ANY: u8 = 2;

/// Takes a lock whose holder cannot leave its data half changed.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program's side of a completion queue.
pub(crate) struct CqShared {
    consumer: Mutex<Consumer<WorkCompletion>>,
    capacity: u32,
    armed: AtomicU8,
    overrun: AtomicBool,
    channel: Option<Arc<ChannelShared>>,
    /// Events delivered and not acknowledged by the program.
    pub(crate) unacknowledged: AtomicU32,
}

/// The engine's side of a completion queue.
pub(crate) struct CqProducer {
    ring: Producer<WorkCompletion>,
    pub(crate) shared: Arc<CqShared>,
}

/// What became of a completion that was pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// Nobody waits.
    Quiet,
    /// The channel wants to be told.
    Notify,
    /// No room: the completion is lost and the queue is in error.
    Overrun,
}

/// A completion queue of `capacity` entries.
pub(crate) fn completion_queue(
    capacity: u32,
    channel: Option<Arc<ChannelShared>>,
) -> (CqProducer, Arc<CqShared>) {
    let (producer, consumer) = ring(capacity as usize);
    let shared = Arc::new(CqShared {
        consumer: Mutex::new(consumer),
        capacity,
        armed: AtomicU8::new(IDLE),
        overrun: AtomicBool::new(false),
        channel,
        unacknowledged: AtomicU32::new(0),
    });
    (CqProducer { ring: producer, shared: Arc::clone(&shared) }, shared)
}

impl CqProducer {
    /// Publishes a completion. `wakes`: it is solicited, or an error.
    pub(crate) fn push(&mut self, completion: WorkCompletion, wakes: bool) -> Pushed {
        let full = self.ring.len() >= self.shared.capacity as usize;
        if full || self.shared.overrun.load(Ordering::Relaxed) || !self.ring.push(completion) {
            self.shared.overrun.store(true, Ordering::Release);
            return Pushed::Overrun;
        }
        // Pairs with the fence in `arm`: either the program sees this entry, or we see that it waits.
        fence(Ordering::SeqCst);
        let armed = self.shared.armed.load(Ordering::Relaxed);
        if armed == IDLE || (armed == SOLICITED && !wakes) {
            return Pushed::Quiet;
        }
        self.shared.armed.store(IDLE, Ordering::Relaxed);
        Pushed::Notify
    }
}

impl CqShared {
    /// Takes up to `out.len()` completions; returns how many.
    pub(crate) fn take(&self, out: &mut [WorkCompletion]) -> usize {
        let mut consumer = locked(&self.consumer);
        let mut taken = 0;
        while let Some(slot) = out.get_mut(taken) {
            let Some(completion) = consumer.pop() else { break };
            *slot = completion;
            taken += 1;
        }
        taken
    }

    /// Whether there is nothing to take.
    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.consumer).is_empty()
    }

    /// Asks for an event at the next completion.
    pub(crate) fn arm(&self, solicited_only: bool) {
        // A wish for any completion is not weakened by a later one for solicited ones (IBTA 11.4.2.2).
        let wish = if solicited_only { SOLICITED } else { ANY };
        self.armed.fetch_max(wish, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    pub(crate) fn channel(&self) -> Option<&Arc<ChannelShared>> {
        self.channel.as_ref()
    }
}

/// A completion channel: events of completion queues, behind a descriptor that can be polled.
pub(crate) struct ChannelShared {
    event: EventFd,
    pending: Mutex<VecDeque<Weak<CqShared>>>,
}

impl ChannelShared {
    pub(crate) fn new() -> nix::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
        Ok(Self { event: EventFd::from_flags(flags)?, pending: Mutex::default() })
    }

    /// Delivers an event of `cq`.
    pub(crate) fn signal(&self, cq: &Arc<CqShared>) {
        cq.unacknowledged.fetch_add(1, Ordering::Relaxed);
        locked(&self.pending).push_back(Arc::downgrade(cq));
        // The one possible error is a counter at its maximum: the descriptor is readable then, which is all that
        // is wanted.
        let _ = self.event.write(1);
    }

    /// The next event, if there is one.
    pub(crate) fn next(&self) -> Option<Weak<CqShared>> {
        let event = locked(&self.pending).pop_front()?;
        // One count of the semaphore belongs to each event.
        let _ = self.event.read();
        Some(event)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(wr_id: u64) -> WorkCompletion {
        WorkCompletion { wr_id, ..WorkCompletion::default() }
    }

    #[test]
    fn the_bound_is_the_capacity_and_an_overrun_stays() {
        let (mut producer, shared) = completion_queue(3, None);
        for i in 0..3 {
            assert_eq!(producer.push(completion(i), false), Pushed::Quiet);
        }
        assert_eq!(producer.push(completion(3), false), Pushed::Overrun);
        assert!(shared.is_overrun());
        let mut out = [WorkCompletion::default(); 8];
        assert_eq!(shared.take(&mut out), 3);
        assert_eq!(producer.push(completion(4), false), Pushed::Overrun, "a queue in error takes nothing");
    }

    #[test]
    fn events_come_once_and_only_when_asked() {
        let (mut producer, shared) = completion_queue(16, None);
        assert_eq!(producer.push(completion(0), true), Pushed::Quiet);
        shared.arm(true);
        assert_eq!(producer.push(completion(1), false), Pushed::Quiet, "not solicited");
        assert_eq!(producer.push(completion(2), true), Pushed::Notify);
        assert_eq!(producer.push(completion(3), true), Pushed::Quiet, "disarmed");
        shared.arm(false);
        shared.arm(true);
        assert_eq!(producer.push(completion(4), false), Pushed::Notify, "the wider wish stands");
    }

    #[test]
    fn a_channel_hands_out_each_event_once() {
        let channel = Arc::new(ChannelShared::new().expect("an eventfd"));
        let (_producer, shared) = completion_queue(1, Some(Arc::clone(&channel)));
        assert!(channel.next().is_none());
        channel.signal(&shared);
        channel.signal(&shared);
        assert!(channel.next().is_some_and(|w| w.upgrade().is_some()));
        assert!(channel.next().is_some());
        assert!(channel.next().is_none());
        assert!(channel.event.read().is_err(), "the descriptor is not readable any more");
    }
}
