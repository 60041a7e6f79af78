//! The handles of completion channels.

use super::{CompletionQueue, in_vain};
use crate::engine::ResourceError;
use crate::error::{Error, Result};
use crate::port::Port;
use crate::queue::{ChannelShared, CqShared, LINGER};
use crate::verbs::destroy::{NotDestroyed, only_handle, unused};
use crate::verbs::device::DeviceInner;
#[cfg(unix)]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use time::Duration;

/// The name of these objects in errors.
const WHAT: &str = "completion channel";

/// A completion channel: reports completions through a file descriptor that can be polled.
///
/// The descriptor is readable while there are events. It may be polled in any way, including edge-triggered epoll,
/// but must not be read: call [`next_event`](Self::next_event) instead. The program may make it blocking or not.
/// Clones are the same channel.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::QpInit;
/// use std::time::Duration;
///
/// let net = rnic::sim::Net::new();
/// let device = net.device();
/// let channel = device.create_comp_channel()?;
/// let cq = device.create_cq_with_channel(16, &channel)?;
/// let pd = device.alloc_pd()?;
/// let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
/// qp.connect(&qp.address(), &Default::default())?; // to itself
/// let data = pd.register_bytes(b"a message", rnic::Access::LOCAL_WRITE)?;
/// qp.recv(1, data.all())?;
///
/// cq.arm(false)?;
/// qp.send(2, data.all())?;
/// let event = channel.wait(Duration::from_secs(1))?;
/// assert!(event.is_for(&cq));
/// assert!(cq.poll_one().is_some());
/// # Ok::<(), rnic::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    inner: Arc<ChannelInner>,
}

struct ChannelInner {
    device: Arc<DeviceInner>,
    shared: Arc<ChannelShared>,
}

impl CompletionChannel {
    pub(crate) fn new(device: &Arc<DeviceInner>) -> Result<Self> {
        let flag = device
            .port()?
            .new_flag()
            .map_err(|source| Error::Os { what: "cannot create a completion channel", source })?;
        let shared = Arc::new(ChannelShared::new(flag));
        Ok(Self { inner: Arc::new(ChannelInner { device: Arc::clone(device), shared }) })
    }

    /// The channel as seen by a completion queue of `device`.
    pub(super) fn of(&self, device: &Arc<DeviceInner>) -> Result<Arc<ChannelShared>> {
        if Arc::ptr_eq(device, &self.inner.device) {
            Ok(Arc::clone(&self.inner.shared))
        } else {
            Err(ResourceError::Unknown { what: WHAT }.into())
        }
    }

    /// The next event, if the channel has one. Never waits: the descriptor is readable while there are events. A
    /// forked child gets no events, because it would take them from its parent.
    #[must_use]
    #[doc(alias = "ibv_get_cq_event")]
    pub fn next_event(&self) -> Option<CompletionEvent> {
        let port = self.inner.device.port().ok()?;
        self.take(&**port)
    }

    fn take(&self, port: &dyn Port) -> Option<CompletionEvent> {
        let cq = self.inner.shared.next()?;
        self.inner.shared.linger.takes(|| port.now());
        Some(CompletionEvent { cq })
    }

    /// Like [`next_event`](Self::next_event), for a thread that will sleep on the descriptor if this returns `None`. If the
    /// latest wait was short, it first drives the device for some microseconds, because an event that comes soon is handled
    /// sooner without a sleep. In virtual time it does not wait.
    #[must_use]
    pub fn next_event_before_sleep(&self) -> Option<CompletionEvent> {
        let port = self.inner.device.port().ok()?;
        self.linger(&**port, LINGER)
    }

    /// Returns the next event. If waits are short, drives the port for up to `longest` until one arrives; if none does,
    /// hands the port over.
    fn linger(&self, port: &dyn Port, longest: Duration) -> Option<CompletionEvent> {
        if let Some(event) = self.take(port) {
            return Some(event);
        }
        if port.sim().is_some() {
            return None;
        }
        let now = port.now();
        let ChannelShared { linger, .. } = &*self.inner.shared;
        linger.waits(now);
        if !linger.is_worth_it() {
            return None;
        }
        port.wait_until(now + longest, &mut || self.inner.shared.has_events());
        let event = self.take(port);
        if event.is_none() {
            port.hand_over();
        }
        event
    }

    /// Sleeps until an event arrives. Programs that also wait for other things poll the descriptor instead.
    ///
    /// # Errors
    /// [`Error::Timeout`]; in virtual time [`Error::Stalled`] as soon as no event can come any more;
    /// [`Error::Forked`].
    pub fn wait(&self, timeout: Duration) -> Result<CompletionEvent> {
        let port = self.inner.device.port()?;
        let before = port.now();
        if port.sim().is_some() {
            return port.wait(timeout, || self.next_event()).ok_or_else(|| in_vain(&**port, before, timeout));
        }
        let deadline = port.deadline(timeout);
        loop {
            if let Some(event) = self.linger(&**port, timeout.min(LINGER)) {
                return Ok(event);
            }
            let left = deadline.saturating_duration_since(port.now());
            if left.is_zero() {
                return Err(Error::Timeout(timeout));
            }
            port.hand_over();
            port.sleep(self.inner.shared.flag(), left);
        }
    }

    /// Destroys it. Dropping the last handle does so too, once no completion queue uses it.
    ///
    /// # Errors
    /// The channel as it was, with [`ResourceError::Busy`]: completion queues deliver to it, or there are other
    /// handles. [`Error::Forked`].
    #[doc(alias = "ibv_destroy_comp_channel")]
    pub fn destroy(self) -> std::result::Result<(), NotDestroyed<Self>> {
        let unused = self.destroy_in_place();
        NotDestroyed::unless(self, unused)
    }

    /// As [`destroy`](Self::destroy), for a handle that threads share: dropping the handle later then destroys the
    /// channel.
    ///
    /// # Errors
    /// Those of [`destroy`](Self::destroy).
    pub fn destroy_in_place(&self) -> Result<()> {
        self.inner.device.port()?;
        unused(WHAT, self.inner.shared.queues(), "completion queues")?;
        only_handle(&self.inner, WHAT, "other handles")
    }
}

#[cfg(unix)]
impl CompletionChannel {
    /// Where a byte that was read from the descriptor is written back, for bindings of other languages: see
    /// [`Readiness::write_end`](crate::port::Readiness::write_end).
    #[must_use]
    pub fn write_end(&self) -> Option<BorrowedFd<'_>> {
        self.inner.shared.flag().write_end()
    }
}

#[cfg(unix)]
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.shared.flag().as_fd()
    }
}

#[cfg(unix)]
impl AsRawFd for CompletionChannel {
    /// For code that watches descriptors by number, such as tokio's `AsyncFd`.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl std::fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompletionChannel({} completion queues)", self.inner.shared.queues())
    }
}

/// The event that an armed completion queue has a completion.
///
/// Dropping it acknowledges the event: until then the completion queue cannot be [destroyed](CompletionQueue::destroy).
#[must_use = "an event that is dropped is acknowledged"]
pub struct CompletionEvent {
    cq: Weak<CqShared>,
}

impl CompletionEvent {
    /// Whether the event belongs to this completion queue.
    #[must_use]
    pub fn is_for(&self, cq: &CompletionQueue) -> bool {
        std::ptr::eq(self.cq.as_ptr(), Arc::as_ptr(&cq.inner.shared))
    }

    /// The [context](CompletionQueue::set_context) of its completion queue; `None` if the queue is gone.
    #[must_use]
    pub fn context(&self) -> Option<u64> {
        self.cq.upgrade().map(|cq| cq.context.load(Ordering::Acquire))
    }

    /// Acknowledges the event (`ibv_ack_cq_events`).
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn acknowledge(self) {}

    /// Leaves the event to be acknowledged later by [`CompletionQueue::acknowledge`], for programs that count events.
    pub fn keep(mut self) {
        self.cq = Weak::new();
    }
}

impl Drop for CompletionEvent {
    fn drop(&mut self) {
        if let Some(cq) = self.cq.upgrade() {
            cq.events().acknowledge(1);
        }
    }
}

impl std::fmt::Debug for CompletionEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompletionEvent")
    }
}
