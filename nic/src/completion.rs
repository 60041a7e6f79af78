//! Completion queues and completion channels.

mod channel;
#[cfg(test)]
mod counted_tests;
mod stream;
#[cfg(test)]
mod tests;

pub use channel::{CompletionChannel, CompletionEvent};
pub use stream::Completions;
pub(crate) use stream::step;

use crate::destroy::{NotDestroyed, only_handle, unused};
use crate::device::DeviceInner;
use crate::engine::{CQ_USERS, CqId, completion_room};
use crate::error::{Error, Result};
use crate::port::Port;
use crate::queue::{CqShared, completion_queue};
use qp::WorkCompletion;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A completion queue. Clones are the same queue.
#[derive(Clone)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<CqInner>,
}

pub(crate) struct CqInner {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) id: CqId,
    shared: Arc<CqShared>,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if let Ok(port) = self.device.port() {
            // Queue pairs that complete here keep it alive, so it is not in use.
            let _ = port.control(|e| e.destroy_cq(self.id));
            self.shared.detach();
        }
    }
}

impl CompletionQueue {
    pub(crate) fn new(
        device: &Arc<DeviceInner>,
        cqe: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self> {
        let port = device.port()?;
        let channel = channel.map(|c| c.of(device)).transpose()?;
        let (producer, shared) = completion_queue(completion_room(cqe)?, channel);
        match port.control(|e| e.create_cq(producer)) {
            Ok(id) => Ok(Self { inner: Arc::new(CqInner { device: Arc::clone(device), id, shared }) }),
            Err(error) => {
                shared.detach();
                Err(error.into())
            }
        }
    }

    /// How many completions it holds.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.inner.shared.capacity()
    }

    /// Its number in the port, as [`AsyncEvent::CompletionQueueError`](crate::engine::AsyncEvent) tells it.
    #[must_use]
    pub fn number(&self) -> usize {
        self.inner.id.0
    }

    /// From now on completions say when they were delivered, by [`Device::clock`](crate::Device::clock). There is no way
    /// back: it costs each completion a look at the clock.
    pub fn stamp_completions(&self) {
        let clock = self.inner.device.port.clock.clone();
        // Asked for again, nothing changes.
        let _ = self.inner.shared.stamp.set(Box::new(move || clock.nanos()));
    }

    /// Whether queue pairs or shared receive queues complete to it; not in a forked child.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.inner.device.port.inspect(|e| e.cq_users(self.inner.id) > 0).unwrap_or(false)
    }

    /// Gives it a number of the program's own, which its [events](CompletionEvent::context) carry (`cq_context`).
    pub fn set_context(&self, context: u64) {
        self.inner.shared.context.store(context, Ordering::Release);
    }

    /// Events that were handed out and not acknowledged.
    #[must_use]
    pub fn unacknowledged_events(&self) -> u32 {
        self.inner.shared.events().unacknowledged()
    }

    /// Acknowledges so many events that were [kept](CompletionEvent::keep), or all that there are.
    pub fn acknowledge(&self, events: u32) {
        self.inner.shared.events().acknowledge(events);
    }

    /// Whether completions were lost because there was no room for them. The queue takes no more then, whatever its
    /// size, and its queue pairs go to ERR (IBTA C9-218, C11-37).
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.inner.shared.is_overrun()
    }

    /// Makes it hold `cqe` completions from now on. What waits to be polled stays, in order, while others poll and
    /// queue pairs complete.
    ///
    /// # Errors
    /// [`Error::Resource`]: the size is out of range, or more completions wait than it would hold; the queue is as it
    /// was then.
    pub fn resize(&self, cqe: u32) -> Result<()> {
        let port = self.inner.device.port()?;
        let mut room = completion_room(cqe)?;
        // What is not needed, old or new, is freed after the port's lock is let go.
        port.control(|e| e.resize_cq(self.inner.id, &mut room, cqe))?;
        Ok(())
    }

    /// Destroys it. Dropping the last handle does so too, once nothing completes to it.
    ///
    /// # Errors
    /// The queue as it was, with [`ResourceError::Busy`](crate::engine::ResourceError): queue pairs or shared receive
    /// queues complete to it (IBTA C11-17), events of it are not acknowledged, or there are other handles.
    /// [`Error::Forked`].
    pub fn destroy(self) -> std::result::Result<(), NotDestroyed<Self>> {
        let unused = self.destroy_in_place();
        NotDestroyed::unless(self, unused)
    }

    /// As [`destroy`](Self::destroy), for a handle that threads share: it may be dropped after that, and the queue is
    /// destroyed then.
    ///
    /// # Errors
    /// Those of [`destroy`](Self::destroy).
    pub fn destroy_in_place(&self) -> Result<()> {
        const WHAT: &str = "completion queue";
        let users = self.inner.device.port.inspect(|e| e.cq_users(self.inner.id)).ok_or(Error::Forked)?;
        unused(WHAT, users, CQ_USERS)?;
        unused(WHAT, self.inner.shared.events().unacknowledged() as usize, "unacknowledged events")?;
        only_handle(&self.inner, WHAT, "other handles")
    }

    /// Takes up to `out.len()` completions, oldest first; returns how many. Makes progress when there are none. A
    /// forked child gets none.
    pub fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        let Ok(port) = self.inner.device.port() else { return 0 };
        let taken = self.inner.shared.take(out);
        if taken > 0 {
            return taken;
        }
        port.progress();
        self.inner.shared.take(out)
    }

    /// The oldest completion, if there is one.
    #[must_use]
    pub fn poll_one(&self) -> Option<WorkCompletion> {
        let mut one = [WorkCompletion::default()];
        (self.poll(&mut one) == 1).then(|| one[0])
    }

    /// The oldest completion; an error if there will never be one.
    fn poll_result(&self) -> Option<Result<WorkCompletion>> {
        // Looked at first: what was taken in before the queue overran is polled before that is told.
        let overrun = self.is_overrun();
        match self.poll_one() {
            Some(completion) => Some(Ok(completion)),
            None => overrun.then_some(Err(Error::Overrun)),
        }
    }

    /// Waits for a completion, making progress meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`]; in virtual time [`Error::Stalled`] as soon as nothing can come any more;
    /// [`Error::Overrun`] when the queue is in error and empty.
    pub fn wait(&self, timeout: Duration) -> Result<WorkCompletion> {
        let port = self.inner.device.port()?;
        let before = port.now();
        port.wait(timeout, || self.poll_result()).unwrap_or_else(|| Err(in_vain(port, before, timeout)))
    }

    /// Asks for one event on the channel (`ibv_req_notify_cq`), when there is a completion to take, or one that is
    /// solicited or failed. A queue that holds such a completion already delivers the event at once, as mlx5 does, so
    /// a program may sleep right after arming. One that polls in between, as portable programs do, can find that an
    /// event was delivered for a completion that it has taken meanwhile.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        let port = self.inner.device.port()?;
        self.inner.shared.arm(solicited_only);
        port.hand_over();
        Ok(())
    }

    /// How many completions wait to be taken at this moment; none in a forked child. Makes no progress.
    #[must_use]
    pub fn len(&self) -> usize {
        if self.inner.device.port.is_ours() { self.inner.shared.len() } else { 0 }
    }

    /// Whether there is nothing to take at this moment. Makes no progress.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a wait that began at `before` ended with nothing.
fn in_vain(port: &Port, before: Instant, timeout: Duration) -> Error {
    if port.now().saturating_duration_since(before) >= timeout {
        Error::Timeout(timeout)
    } else {
        Error::Stalled
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompletionQueue({} entries)", self.capacity())
    }
}
