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

use crate::engine::{CQ_USERS, CqId, ResourceError, completion_room};
use crate::error::{Error, Result};
use crate::port::Port;
use crate::queue::{CqShared, completion_queue};
use crate::verbs::destroy::{NotDestroyed, only_handle, unused};
use crate::verbs::device::DeviceInner;
use qp::WorkCompletion;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use time::{Duration, Instant};

/// A completion queue. Clones are the same queue.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::{RcEnd, WorkCompletion};
///
/// let net = rnic::sim::Net::new();
/// let (left, right) = RcEnd::pair(&net.device(), &net.device())?;
/// let source = left.register(&[7; 100])?;
/// let target = right.register_remote(100)?;
/// for wr_id in 0..3 {
///     left.qp.write(wr_id, source.all(), target.remote(0))?;
/// }
/// net.run_until_idle(std::time::Duration::from_secs(1));
/// let mut completions = [WorkCompletion::default(); 8];
/// let count = left.cq().poll(&mut completions);
/// let ids: Vec<u64> = completions[..count].iter().map(|wc| wc.wr_id).collect();
/// assert_eq!(ids, [0, 1, 2]);
/// # Ok::<(), rnic::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias("ibv_cq", "ibv_cq_ex"))]
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
            // Queue pairs that complete here keep it alive, so it is not in use here.
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

    /// The number of completions that it can hold.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.inner.shared.capacity()
    }

    /// Its number in the port, which [`AsyncEvent::CompletionQueueError`](crate::engine::AsyncEvent) names.
    #[must_use]
    pub fn number(&self) -> usize {
        self.inner.id.0
    }

    /// Records the time of delivery in each completion from now on, by [`Device::clock`](crate::Device::clock). This
    /// costs one clock read per completion and cannot be disabled again.
    pub fn stamp_completions(&self) {
        // A second call changes nothing.
        let _ = self.inner.shared.stamp.set(self.inner.device.port.clock());
    }

    /// Whether queue pairs or shared receive queues complete to it. Always false in a forked child.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.inner.device.port.inspect(|e| e.cq_users(self.inner.id) > 0).unwrap_or(false)
    }

    /// Sets a number of the program's choice, which its [events](CompletionEvent::context) carry (`cq_context`).
    #[doc(alias = "cq_context")]
    pub fn set_context(&self, context: u64) {
        self.inner.shared.context.store(context, Ordering::Release);
    }

    /// The number of delivered events that are not acknowledged yet.
    #[must_use]
    pub fn unacknowledged_events(&self) -> u32 {
        self.inner.shared.events().unacknowledged()
    }

    /// Acknowledges this many [kept](CompletionEvent::keep) events, or all of them if there are fewer.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn acknowledge(&self, events: u32) {
        self.inner.shared.events().acknowledge(events);
    }

    /// Whether completions were lost because the queue was full. The queue then takes no more completions, whatever
    /// its size, and its queue pairs go to ERR (IBTA C9-218, C11-37).
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.inner.shared.is_overrun()
    }

    /// Changes its size to `cqe` completions. Completions that wait to be polled stay, in order. Meanwhile other
    /// threads may poll, and queue pairs may complete.
    ///
    /// # Errors
    /// [`Error::Resource`] if the size is out of range, or if more completions wait than would fit. In both cases the
    /// queue is unchanged.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, cqe: u32) -> Result<()> {
        let port = self.inner.device.port()?;
        let mut room = completion_room(cqe)?;
        // The unused buffer, old or new, is freed after the port's lock is released.
        port.control(|e| e.resize_cq(self.inner.id, &mut room, cqe))?;
        Ok(())
    }

    /// Destroys it. Dropping the last handle does so too, once no object completes to it.
    ///
    /// # Errors
    /// The queue as it was, with [`ResourceError::Busy`](crate::engine::ResourceError): queue pairs or shared receive
    /// queues complete to it (IBTA C11-17), events of it are not acknowledged, or there are other handles.
    /// [`Error::Forked`].
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(self) -> std::result::Result<(), NotDestroyed<Self>> {
        let unused = self.destroy_in_place();
        NotDestroyed::unless(self, unused)
    }

    /// As [`destroy`](Self::destroy), for a handle that threads share: dropping the handle later then destroys the
    /// queue.
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

    /// Takes up to `out.len()` completions, oldest first, and returns their number. Drives the device if the queue is
    /// empty. In a forked child it returns 0.
    #[doc(alias("ibv_poll_cq", "ibv_start_poll"))]
    pub fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        let Ok(port) = self.inner.device.port() else { return 0 };
        let taken = self.inner.shared.take(out);
        if taken > 0 {
            return taken;
        }
        port.progress();
        self.inner.shared.take(out)
    }

    /// Takes the oldest completion, if the queue holds any.
    #[must_use]
    pub fn poll_one(&self) -> Option<WorkCompletion> {
        let mut one = [WorkCompletion::default()];
        (self.poll(&mut one) == 1).then(|| one[0])
    }

    /// Takes the oldest completion; an error if no completion will ever come.
    fn poll_result(&self) -> Option<Result<WorkCompletion>> {
        // Read first: completions from before the overrun are polled before the overrun is reported.
        let overrun = self.is_overrun();
        let wrecked = self.inner.device.port.is_wrecked();
        match self.poll_one() {
            Some(completion) => Some(Ok(completion)),
            None if overrun => Some(Err(Error::Overrun)),
            None => wrecked.then(|| Err(ResourceError::DeviceFailed.into())),
        }
    }

    /// Waits for a completion, and drives the device meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`]; in virtual time [`Error::Stalled`] as soon as no completion can come any more;
    /// [`Error::Overrun`] when the queue is in error and empty, and [`Error::Resource`] when it is empty after a panic
    /// made the device unusable.
    pub fn wait(&self, timeout: Duration) -> Result<WorkCompletion> {
        let port = self.inner.device.port()?;
        let before = port.now();
        port.wait(timeout, || self.poll_result()).unwrap_or_else(|| Err(in_vain(&**port, before, timeout)))
    }

    /// Requests an event on the channel when a completion is available, or only for a solicited or failed one. If the
    /// queue already holds such a completion that no event has announced, it delivers the event at once, so a program
    /// may sleep right after arming. A program that polls in between, as portable programs do, may find that the
    /// event was for a completion that it has already taken.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Resource`] after a panic made the device unusable.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        let port = self.inner.device.intact_port()?;
        self.inner.shared.arm(solicited_only);
        // A thread that is about to linger drives the port itself, and hands it over afterwards.
        if !self.inner.shared.lingers() {
            port.hand_over();
        }
        Ok(())
    }

    /// The number of completions that wait to be polled; 0 in a forked child. Does not drive the device.
    #[must_use]
    pub fn len(&self) -> usize {
        if self.inner.device.port.is_ours() { self.inner.shared.len() } else { 0 }
    }

    /// Whether no completion waits to be polled. Does not drive the device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The error for a wait that began at `before` and ended without a completion.
fn in_vain(port: &dyn Port, before: Instant, timeout: Duration) -> Error {
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
