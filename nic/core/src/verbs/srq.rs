//! Shared receive queues.

use crate::engine::{Engine, ResourceError, SrqId, XrcPart};
use crate::error::Result;
use crate::queue::SrqShared;
use crate::verbs::completion::{CompletionQueue, CqInner};
use crate::verbs::destroy::NotDestroyed;
use crate::verbs::device::DeviceInner;
use crate::verbs::domain::PdInner;
use crate::verbs::xrc::{XrcDomain, XrcdInner};
use qp::{Gather, RecvWr};
use std::sync::Arc;

/// The attributes with which a shared receive queue is created (`ibv_srq_init_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias("ibv_srq_init_attr", "ibv_srq_init_attr_ex"))]
pub struct SrqInit {
    /// The maximum number of work requests in the queue, from 1.
    pub max_wr: u32,
    /// Scatter/gather elements of a work request.
    pub max_sge: u32,
    /// The limit: when fewer work requests remain, an event is raised, once; 0 for no event.
    pub limit: u32,
}

impl Default for SrqInit {
    /// 1024 work requests of up to 4 elements, without a limit.
    fn default() -> Self {
        Self { max_wr: 1024, max_sge: 4, limit: 0 }
    }
}

/// The attributes of a shared receive queue (`ibv_srq_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqAttr {
    /// The maximum number of work requests in the queue.
    pub max_wr: u32,
    /// Scatter/gather elements of a work request.
    pub max_sge: u32,
    /// The limit below which an event is raised; 0 if no limit was set, or since the event was raised.
    pub limit: u32,
}

/// The attributes to change of a shared receive queue; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_srq_attr_mask")]
pub struct SrqModify {
    /// The maximum number of work requests (`IBV_SRQ_MAX_WR`). Work requests in the queue stay, in order.
    pub max_wr: Option<u32>,
    /// The limit (`IBV_SRQ_LIMIT`): when fewer work requests remain, an event is raised, once. It is raised at once
    /// if there are fewer now, because a message that takes one and would raise it may never arrive. 0 for no event.
    pub limit: Option<u32>,
}

impl SrqModify {
    /// Sets the limit.
    #[must_use]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    pub fn limit(limit: u32) -> Self {
        Self { limit: Some(limit), ..Self::default() }
    }

    /// Sets the size.
    #[must_use]
    #[doc(alias = "IBV_SRQ_MAX_WR")]
    pub fn max_wr(max_wr: u32) -> Self {
        Self { max_wr: Some(max_wr), ..Self::default() }
    }
}

/// A shared receive queue: any of several queue pairs takes its receives, in the order in which their messages
/// arrive.
///
/// Buffers are looked up in its own protection domain, whatever the domain of the queue pair (IBTA 10.2.9.3). Posting
/// never blocks and never touches the engine. Clones are the same queue; without [`destroy`](Self::destroy) it lasts
/// until the last clone and the last queue pair that uses it are gone.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::{Access, ConnectOptions, QpInit, SrqInit};
/// use std::time::Duration;
///
/// let net = rnic::sim::Net::new();
/// let (a, b) = (net.device(), net.device());
/// let (client, server) = (a.alloc_pd()?, b.alloc_pd()?);
/// let srq = server.create_srq(&SrqInit::default())?;
/// let inbox = server.register(64, Access::LOCAL_WRITE)?;
/// srq.recv(1, inbox.all())?;
///
/// // Any number of queue pairs take their receives from it.
/// let (sent, received) = (a.create_cq(16)?, b.create_cq(16)?);
/// let to = server.create_qp(&QpInit::rc(&received, &received).with_srq(&srq))?;
/// let from = client.create_qp(&QpInit::rc(&sent, &sent))?;
/// from.connect(&to.address(), &ConnectOptions::default())?;
/// to.connect(&from.address(), &ConnectOptions::default())?;
/// let message = client.register_bytes(b"hello", Access::LOCAL_WRITE)?;
/// from.send(2, message.all())?;
/// let wc = received.wait(Duration::from_secs(1))?;
/// assert_eq!((wc.wr_id, wc.byte_len), (1, 5));
/// # Ok::<(), rnic::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue {
    pub(crate) inner: Arc<SrqInner>,
}

pub(crate) struct SrqInner {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) id: SrqId,
    shared: Arc<SrqShared>,
    /// Kept alive while the queue may use them.
    _pd: Arc<PdInner>,
    _xrc: Option<(Arc<XrcdInner>, Arc<CqInner>)>,
}

impl SrqInner {
    /// Checks that it is a queue of this device that was not destroyed. Call it under the lock of the engine: a later
    /// queue may get its place.
    pub(crate) fn check(&self, device: &Arc<DeviceInner>) -> std::result::Result<(), ResourceError> {
        if Arc::ptr_eq(&self.device, device) && !self.shared.is_destroyed() {
            Ok(())
        } else {
            Err(ResourceError::Unknown { what: "shared receive queue" })
        }
    }

    /// Runs `act` on the engine, if the queue exists.
    fn control<R>(
        &self,
        act: impl FnOnce(&mut Engine, SrqId) -> std::result::Result<R, ResourceError>,
    ) -> Result<R> {
        let result = self.device.port()?.control(|e| {
            self.check(&self.device)?;
            act(e, self.id)
        });
        Ok(result?)
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // Queue pairs that receive through it keep it alive, so it is not in use here; it may already be destroyed.
        let _ = self.control(Engine::destroy_srq);
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(
        pd: &Arc<PdInner>,
        init: &SrqInit,
        xrc: Option<(&XrcDomain, &CompletionQueue)>,
    ) -> Result<Self> {
        let device = &pd.device;
        let (id, shared) = device.port()?.control(|e| {
            let part = match xrc {
                None => None,
                Some((_, cq)) if !Arc::ptr_eq(&cq.inner.device, device) => {
                    return Err(ResourceError::Unknown { what: "completion queue" });
                }
                Some((xrcd, cq)) => {
                    xrcd.inner.check(device)?;
                    Some(XrcPart { xrcd: xrcd.inner.id, cq: cq.inner.id })
                }
            };
            e.create_srq(pd.id, init, part)
        })?;
        let keep = xrc.map(|(xrcd, cq)| (Arc::clone(&xrcd.inner), Arc::clone(&cq.inner)));
        let (device, pd) = (Arc::clone(device), Arc::clone(pd));
        Ok(Self { inner: Arc::new(SrqInner { device, id, shared, _pd: pd, _xrc: keep }) })
    }

    /// Its number, by which XRC requests and [events](crate::engine::AsyncEvent) name it.
    #[must_use]
    #[doc(alias = "ibv_get_srq_num")]
    pub fn srqn(&self) -> u32 {
        self.inner.shared.number
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// [`Error::Post`](crate::Error::Post) if it is full, or the request has too many elements;
    /// [`Error::Resource`](crate::Error::Resource) if it was destroyed. Nothing was queued then.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, wr: RecvWr) -> Result<()> {
        self.inner.device.intact_port()?;
        self.inner.check(&self.inner.device)?;
        Ok(self.inner.shared.post(wr)?)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv).
    pub fn recv(&self, wr_id: u64, data: impl Into<Gather>) -> Result<()> {
        self.post_recv(RecvWr { wr_id, data: data.into() })
    }

    /// The number of posted work requests that no message has taken.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.inner.shared.outstanding()
    }

    /// Changes size and limit: both, or neither.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource): a size below the number of work requests in the queue, or beyond
    /// what the device has; a limit beyond the size.
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify(&self, change: SrqModify) -> Result<()> {
        self.inner.control(|e, id| e.modify_srq(id, &change))
    }

    /// Size and limit.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource) if it was destroyed.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        self.inner.control(|e, id| e.query_srq(id))
    }

    /// Destroys it. Work requests in it end without a completion, and other handles to it become unusable.
    ///
    /// # Errors
    /// The queue as it was, with [`ResourceError::Busy`] while queue pairs use it.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(self) -> std::result::Result<(), NotDestroyed<Self>> {
        let destroyed = self.destroy_in_place();
        NotDestroyed::unless(self, destroyed)
    }

    /// As [`destroy`](Self::destroy), for a handle that threads share.
    ///
    /// # Errors
    /// Those of [`destroy`](Self::destroy).
    pub fn destroy_in_place(&self) -> Result<()> {
        self.inner.control(Engine::destroy_srq)
    }
}

impl std::fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedReceiveQueue({:#08x} with {} receives)", self.srqn(), self.outstanding())
    }
}
