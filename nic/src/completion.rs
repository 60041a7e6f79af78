//! Completion queues and completion channels.

use crate::device::DeviceInner;
use crate::engine::CqId;
use crate::error::{Error, Result};
use crate::port::generation;
use crate::queue::{ChannelShared, CqShared};
use qp::WorkCompletion;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

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
        }
    }
}

impl CompletionQueue {
    pub(crate) fn new(
        device: &Arc<DeviceInner>,
        cqe: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self> {
        let channel = channel.map(|c| Arc::clone(&c.shared));
        let (id, shared) = device.port()?.control(|e| e.create_cq(cqe, channel))?;
        Ok(Self { inner: Arc::new(CqInner { device: Arc::clone(device), id, shared }) })
    }

    /// How many completions it holds.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.inner.shared.capacity()
    }

    /// Whether completions were lost because there was no room for them. The queue takes no more then.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.inner.shared.is_overrun()
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

    /// Waits for a completion, making progress meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`]; in virtual time [`Error::Stalled`] as soon as nothing can come any more.
    pub fn wait(&self, timeout: Duration) -> Result<WorkCompletion> {
        let port = self.inner.device.port()?;
        let before = port.now();
        port.wait(timeout, || self.poll_one()).ok_or_else(|| {
            if port.now() >= before + timeout { Error::Timeout(timeout) } else { Error::Stalled }
        })
    }

    /// Asks for an event on the channel at the next completion, or at the next solicited or failed one. Completions
    /// that are there already make none: poll once more after arming, then sleep.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        let port = self.inner.device.port()?;
        self.inner.shared.arm(solicited_only);
        port.hand_over();
        Ok(())
    }

    /// Whether there is nothing to take at this moment. Makes no progress.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.inner.device.port.is_ours() || self.inner.shared.is_empty()
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompletionQueue({} entries)", self.capacity())
    }
}

/// A completion channel: tells of completions through a descriptor that can be polled.
///
/// Clones are the same channel.
#[derive(Clone)]
pub struct CompletionChannel {
    shared: Arc<ChannelShared>,
    /// Which process it is of, as [`generation`] counts them.
    generation: u32,
}

impl CompletionChannel {
    pub(crate) fn new() -> Result<Self> {
        let shared = ChannelShared::new()
            .map_err(|e| Error::Os { what: "cannot create a completion channel", source: e.into() })?;
        Ok(Self { shared: Arc::new(shared), generation: generation() })
    }

    /// The next event; `None` if there is none. Never waits: the descriptor is readable while there are events. A
    /// forked child gets none: it would take them from its parent.
    #[must_use]
    pub fn next_event(&self) -> Option<CompletionEvent> {
        if self.generation != generation() {
            return None;
        }
        self.shared.next().map(|cq| CompletionEvent { cq })
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }
}

/// The news that a completion queue which was armed has a completion.
pub struct CompletionEvent {
    cq: Weak<CqShared>,
}

impl CompletionEvent {
    /// Whether the event is of this completion queue.
    #[must_use]
    pub fn is_for(&self, cq: &CompletionQueue) -> bool {
        std::ptr::eq(self.cq.as_ptr(), Arc::as_ptr(&cq.inner.shared))
    }
}
