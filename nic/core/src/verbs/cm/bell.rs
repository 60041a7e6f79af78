//! Waiting for something that whoever drives the port reports: a thread that sleeps, a task, or a descriptor.

use crate::engine::ResourceError;
use crate::error::{Error, Result};
use crate::port::{Port, Readiness};
use crate::queue::Waiters;
use crate::verbs::completion::step;
use crate::verbs::device::DeviceInner;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use time::Duration;

/// Tells those who wait. What they wait for is in the mailbox of whoever owns the bell.
#[derive(Default)]
pub(super) struct Bell {
    /// Raised while there is news. Created on first use.
    flag: OnceLock<Arc<dyn Readiness>>,
    waiters: Waiters,
}

impl Bell {
    /// There is news. The caller holds the lock of the mailbox.
    pub(super) fn ring(&self, woken: &mut Vec<Waker>) {
        if let Some(flag) = self.flag.get() {
            flag.raise();
        }
        self.waiters.take(woken);
    }

    /// There is no news any more. The caller holds the lock of the mailbox.
    pub(super) fn silence(&self) {
        if let Some(flag) = self.flag.get() {
            flag.lower();
        }
    }

    /// The flag. `has_news` looks whether it is to be raised at first, under the lock of the mailbox.
    pub(super) fn flag(
        &self,
        device: &DeviceInner,
        has_news: impl FnOnce(&dyn Fn()),
    ) -> Result<Arc<dyn Readiness>> {
        if let Some(flag) = self.flag.get() {
            return Ok(Arc::clone(flag));
        }
        let what = "cannot create a descriptor for connections";
        let new = device.port()?.new_flag().map_err(|source| Error::Os { what, source })?;
        let flag = Arc::clone(self.flag.get_or_init(|| Arc::from(new)));
        has_news(&|| flag.raise());
        Ok(flag)
    }

    /// Sleeps until `look` finds something, or for `timeout`. `None` if nothing came in time; in virtual time, which only
    /// waiting advances, also as soon as nothing is under way any more.
    pub(super) fn wait<R>(
        &self,
        device: &DeviceInner,
        timeout: Duration,
        flag: impl FnOnce() -> Result<Arc<dyn Readiness>>,
        mut look: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>> {
        let port = device.port()?;
        if port.sim().is_some() {
            return Ok(port.wait(timeout, look));
        }
        let flag = flag()?;
        let deadline = port.deadline(timeout);
        loop {
            if let Some(found) = look() {
                return Ok(Some(found));
            }
            if port.is_wrecked() {
                return Err(ResourceError::DeviceFailed.into());
            }
            let left = deadline.saturating_duration_since(port.now());
            if left.is_zero() {
                return Ok(None);
            }
            port.hand_over();
            if let Some(found) = look() {
                return Ok(Some(found));
            }
            port.sleep(&*flag, left);
        }
    }

    /// The same for a task.
    pub(super) async fn listen<R>(
        &self,
        device: &DeviceInner,
        mut look: impl FnMut() -> Option<R>,
    ) -> Result<R> {
        let port = device.port()?;
        let mut listening = Listening { bell: self, port: &**port, place: self.waiters.place(), idle: 0 };
        poll_fn(|cx| listening.poll(cx, &mut look)).await
    }
}

/// A task that listens to a bell.
struct Listening<'a> {
    bell: &'a Bell,
    port: &'a dyn Port,
    place: u64,
    /// In virtual time: consecutive checks during which nothing was in flight.
    idle: u32,
}

impl Listening<'_> {
    fn poll<R>(&mut self, cx: &Context<'_>, look: &mut impl FnMut() -> Option<R>) -> Poll<Result<R>> {
        if let Some(found) = look() {
            return Poll::Ready(Ok(found));
        }
        if let Some(sim) = self.port.sim() {
            return step(sim.world(), &mut self.idle, cx, || look().map(Ok));
        }
        self.bell.waiters.sleep(self.place, cx.waker());
        self.port.hand_over();
        // What came before the waker was registered wakes no task: look again.
        match look() {
            Some(found) => Poll::Ready(Ok(found)),
            None if self.port.is_wrecked() => Poll::Ready(Err(ResourceError::DeviceFailed.into())),
            None => Poll::Pending,
        }
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        // In a forked child the lock of the list may never be released.
        if self.port.is_ours() {
            self.bell.waiters.leave(self.place);
        }
    }
}
