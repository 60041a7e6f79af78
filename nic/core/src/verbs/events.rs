//! How programs receive asynchronous events.

use crate::engine::{AsyncEvent, Engine};
use crate::error::{Error, Result};
use crate::port::Readiness;
use crate::verbs::completion::step;
use crate::verbs::device::{Device, DeviceInner};
use std::future::poll_fn;
#[cfg(unix)]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use time::Duration;

impl Device {
    /// The oldest unread asynchronous event, if any. All clones of the device, and its [`events`](Self::events), take
    /// from one queue, and each event goes to one of them.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[doc(alias = "ibv_get_async_event")]
    pub fn poll_event(&self) -> Result<Option<AsyncEvent>> {
        self.inner.poll_event()
    }

    /// Sleeps until an asynchronous event arrives, and takes it. `None` if no event came in time; in virtual time,
    /// which only waiting advances, also as soon as nothing is in flight any more.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Os`] as [`events`](Self::events).
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>> {
        let port = self.inner.port()?;
        if port.sim().is_some() {
            return Ok(port.wait(timeout, || port.control(Engine::poll_event)));
        }
        let events = self.events()?;
        let deadline = port.deadline(timeout);
        loop {
            if let Some(event) = self.poll_event()? {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(port.now());
            if left.is_zero() {
                return Ok(None);
            }
            port.hand_over();
            port.sleep(&*events.flag, left);
        }
    }

    /// The asynchronous events as an object with a descriptor, for programs that wait on several sources.
    ///
    /// From this call on the background thread of the device runs, so that events arrive whether the program polls or
    /// not.
    ///
    /// # Errors
    /// [`Error::Os`] if the process has no descriptor or thread left; [`Error::Forked`].
    pub fn events(&self) -> Result<AsyncEvents> {
        let port = self.inner.port()?;
        let flag = port
            .event_flag()
            .map_err(|source| Error::Os { what: "cannot create a descriptor for events", source })?;
        self.inner.serve()?;
        Ok(AsyncEvents { device: Arc::clone(&self.inner), flag })
    }
}

impl Device {
    /// The oldest asynchronous event, for tasks of any runtime: a task sleeps until an event arrives. Several tasks
    /// may await events; each event goes to one of them. Dropping the future loses nothing.
    ///
    /// In virtual time it advances the simulation, as [`CompletionQueue::next`](crate::CompletionQueue::next) does.
    ///
    /// ```
    /// # use rnic_core as rnic;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), rnic::Error> {
    /// let device = rnic::sim::Net::new().device(); // or `rnic::open()?`, on the network
    /// device.inject_port_state(false)?;
    /// assert_eq!(device.next_event().await?, rnic::AsyncEvent::PortError);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Os`] if no thread can be started to serve the device; [`Error::Forked`]; in virtual time
    /// [`Error::Stalled`] when nothing is in flight and no other task changes that.
    #[doc(alias = "ibv_get_async_event")]
    pub async fn next_event(&self) -> Result<AsyncEvent> {
        let port = self.inner.port()?;
        self.inner.serve()?;
        let mut waiting = Waiting { device: &self.inner, place: port.event_waiters().place(), idle: 0 };
        poll_fn(|cx| waiting.poll(cx)).await
    }
}

/// A task that awaits an event.
struct Waiting<'a> {
    device: &'a DeviceInner,
    place: u64,
    /// In virtual time: consecutive checks during which nothing was in flight.
    idle: u32,
}

impl Waiting<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<AsyncEvent>> {
        if let Some(result) = self.device.poll_event().transpose() {
            return Poll::Ready(result);
        }
        let port = &self.device.port;
        if let Some(sim) = port.sim() {
            return step(sim.world(), &mut self.idle, cx, || self.device.poll_event().transpose());
        }
        port.event_waiters().sleep(self.place, cx.waker());
        port.hand_over();
        // An event from before the waker was registered wakes no task: check again.
        self.device.poll_event().transpose().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // In a forked child the lock of the list may never be released.
        if self.device.port.is_ours() {
            self.device.port.event_waiters().leave(self.place);
        }
    }
}

impl DeviceInner {
    fn poll_event(&self) -> Result<Option<AsyncEvent>> {
        let port = self.port()?;
        port.look_at_host();
        port.progress();
        Ok(port.control(Engine::poll_event))
    }
}

/// The asynchronous events of a device.
///
/// The descriptor is readable while there are events. It may be polled in any way, including edge-triggered epoll
/// (each event makes an edge) and tokio's `AsyncFd`, but must not be read: call [`poll`](Self::poll) instead. All
/// objects from one device share one queue and one descriptor.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::AsyncEvent;
///
/// let device = rnic::sim::Net::new().device(); // or `rnic::open()?`, on the network
/// let events = device.events()?;
/// device.inject_port_state(false)?;
/// assert_eq!(events.poll()?, Some(AsyncEvent::PortError));
/// # Ok::<(), rnic::Error>(())
/// ```
#[derive(Clone)]
pub struct AsyncEvents {
    device: Arc<DeviceInner>,
    flag: Arc<dyn Readiness>,
}

impl AsyncEvents {
    /// Takes the oldest event, if there is one. Never waits.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn poll(&self) -> Result<Option<AsyncEvent>> {
        self.device.poll_event()
    }
}

#[cfg(unix)]
impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.flag.as_fd()
    }
}

#[cfg(unix)]
impl AsRawFd for AsyncEvents {
    /// For code that watches descriptors by number, such as tokio's `AsyncFd`.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl std::fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AsyncEvents")
    }
}
