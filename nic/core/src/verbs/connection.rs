//! Connected ends in a few lines: for tests, labs and first steps.

use crate::error::Result;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::device::Device;
use crate::verbs::domain::ProtectionDomain;
use crate::verbs::queue_pair::{ConnectOptions, QpInit, QueuePair};
use crate::verbs::region::MemoryRegion;
use qp::{Access, WorkCompletion};
use time::Duration;

/// One end of a reliable connection, with its own protection domain and completion queue.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::{RcEnd, WcStatus};
///
/// let net = rnic::sim::Net::new();
/// let (left, right) = RcEnd::pair(&net.device(), &net.device())?;
/// let (message, inbox) = (left.register(b"hello")?, right.register(&[0; 5])?);
/// right.qp.recv(1, inbox.all())?;
/// left.qp.send(2, message.all())?;
/// assert_eq!(right.wait()?.status, WcStatus::Success);
/// assert_eq!(inbox.to_vec()?, b"hello");
/// # Ok::<(), rnic::Error>(())
/// ```
#[derive(Debug)]
pub struct RcEnd {
    /// The queue pair.
    pub qp: QueuePair,
    cq: CompletionQueue,
    pd: ProtectionDomain,
}

impl RcEnd {
    /// Creates an end that is not connected yet.
    ///
    /// # Errors
    /// Those of creating its parts.
    pub fn new(device: &Device) -> Result<Self> {
        Self::in_domain(&device.alloc_pd()?)
    }

    /// Creates an end that is not connected yet, in an existing protection domain: memory registered there serves all
    /// of its connections.
    ///
    /// # Errors
    /// Those of creating its parts.
    pub fn in_domain(pd: &ProtectionDomain) -> Result<Self> {
        let cq = pd.device().create_cq(1024)?;
        let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
        Ok(Self { qp, cq, pd: pd.clone() })
    }

    /// Two ends, connected to each other. They may be of one device or of two.
    ///
    /// # Errors
    /// Those of creating and connecting.
    pub fn pair(a: &Device, b: &Device) -> Result<(Self, Self)> {
        Self::pair_with(a, b, &ConnectOptions::default())
    }

    /// As [`pair`](Self::pair), with options for both ends.
    ///
    /// # Errors
    /// Those of creating and connecting.
    pub fn pair_with(a: &Device, b: &Device, options: &ConnectOptions) -> Result<(Self, Self)> {
        let (a, b) = (Self::new(a)?, Self::new(b)?);
        a.qp.connect(&b.qp.address(), options)?;
        b.qp.connect(&a.qp.address(), options)?;
        Ok((a, b))
    }

    /// The completion queue of both directions.
    #[must_use]
    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Registers memory that holds a copy of `bytes`, for this side to send from and receive into.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register`].
    pub fn register(&self, bytes: &[u8]) -> Result<MemoryRegion> {
        self.pd.register_bytes(bytes, Access::LOCAL_WRITE)
    }

    /// Registers `len` bytes that the peer may read, write and use for atomics.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register`].
    pub fn register_remote(&self, len: usize) -> Result<MemoryRegion> {
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        self.pd.register(len, Access::LOCAL_WRITE | remote)
    }

    /// Waits for a completion, up to 10 s.
    ///
    /// # Errors
    /// As [`CompletionQueue::wait`].
    pub fn wait(&self) -> Result<WorkCompletion> {
        // Longer than the retries of a default connection take: 8 x 67 ms.
        self.cq.wait(Duration::from_secs(10))
    }
}
