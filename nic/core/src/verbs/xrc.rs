//! XRC domains.

use crate::engine::{Engine, ResourceError, XrcdId};
use crate::error::Result;
use crate::verbs::destroy::NotDestroyed;
use crate::verbs::device::DeviceInner;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An XRC domain: requests that arrive at an XRC_RECV queue pair reach the shared receive queues of its domain, and
/// no others (IBTA annex A14).
///
/// Clones are the same domain; without [`close`](Self::close) it lasts until the last clone and the last object in it
/// are gone.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::{QpInit, SrqInit};
///
/// let net = rnic::sim::Net::new();
/// let device = net.device();
/// let (pd, cq, xrcd) = (device.alloc_pd()?, device.create_cq(16)?, device.open_xrcd()?);
/// let srq = pd.create_xrc_srq(&SrqInit::default(), &xrcd, &cq)?;
/// let receiver = device.create_qp(&QpInit::xrc_recv(&xrcd))?;
/// assert!(xrcd.close().is_err(), "the queue pair and the shared receive queue are in it");
/// # let _ = (srq, receiver);
/// # Ok::<(), rnic::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_xrcd")]
pub struct XrcDomain {
    pub(crate) inner: Arc<XrcdInner>,
}

pub(crate) struct XrcdInner {
    device: Arc<DeviceInner>,
    pub(crate) id: XrcdId,
    closed: AtomicBool,
}

impl XrcdInner {
    fn close(&self) -> Result<()> {
        self.device.port()?.control(|e| {
            self.check(&self.device)?;
            e.close_xrcd(self.id)?;
            self.closed.store(true, Ordering::Release);
            Ok::<_, ResourceError>(())
        })?;
        Ok(())
    }

    /// Checks that it is an open domain of this device. Call it under the lock of the engine: once it is closed,
    /// another domain may get its number.
    pub(crate) fn check(&self, device: &Arc<DeviceInner>) -> std::result::Result<(), ResourceError> {
        if Arc::ptr_eq(&self.device, device) && !self.closed.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(ResourceError::Unknown { what: "XRC domain" })
        }
    }
}

impl Drop for XrcdInner {
    fn drop(&mut self) {
        // Objects in it keep it alive, so it is not in use. It may be closed already.
        let _ = self.close();
    }
}

impl XrcDomain {
    pub(crate) fn new(device: &Arc<DeviceInner>) -> Result<Self> {
        let id = device.port()?.control(Engine::open_xrcd)?;
        let inner = XrcdInner { device: Arc::clone(device), id, closed: AtomicBool::new(false) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Closes it. Other handles to it then become unusable.
    ///
    /// # Errors
    /// The domain, unchanged, with [`ResourceError::Busy`] while queue pairs or shared receive queues are in it.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(self) -> std::result::Result<(), NotDestroyed<Self>> {
        let closed = self.close_in_place();
        NotDestroyed::unless(self, closed)
    }

    /// As [`close`](Self::close), for a handle that threads share.
    ///
    /// # Errors
    /// Those of [`close`](Self::close).
    pub fn close_in_place(&self) -> Result<()> {
        self.inner.close()
    }
}

impl std::fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "XrcDomain({:?})", self.inner.id)
    }
}
