//! Protection domains, and how objects are created in them.

use crate::error::Result;
use crate::memory::{Advice, MemoryBuffer, MwType, UserMemory};
use crate::verbs::address_handle::AddressHandle;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::destroy::{NotDestroyed, only_handle};
use crate::verbs::device::{Device, DeviceInner};
use crate::verbs::queue_pair::{QpInit, QueuePair};
use crate::verbs::region::{MemoryRegion, NullRegion};
use crate::verbs::srq::{SharedReceiveQueue, SrqInit};
use crate::verbs::window::MemoryWindow;
use crate::verbs::xrc::XrcDomain;
use qp::attr::AddressVector;
use qp::{Access, PdId, Sge, WorkCompletion};
use std::sync::Arc;

/// The number of bytes paged in before other threads get the engine: some 50 us for fresh pages.
const PREFETCH_BYTES: u32 = 1 << 20;

/// A protection domain: keys of memory registered in it are valid only for queue pairs created in it.
///
/// Clones are the same domain.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::{Access, QpInit};
///
/// let net = rnic::sim::Net::new();
/// let device = net.device();
/// let pd = device.alloc_pd()?;
/// let region = pd.register(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// let cq = device.create_cq(64)?;
/// let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
/// assert!(pd.destroy().is_err(), "the region and the queue pair are still in it");
/// # let _ = (region, qp);
/// # Ok::<(), rnic::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_pd")]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<PdInner>,
}

pub(crate) struct PdInner {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) id: PdId,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if let Ok(port) = self.device.port() {
            // Objects in it keep it alive, so it is not in use here.
            let _ = port.control(|e| e.dealloc_pd(self.id));
        }
    }
}

impl ProtectionDomain {
    pub(crate) fn new(device: &Arc<DeviceInner>) -> Result<Self> {
        let id = device.port()?.control(crate::engine::Engine::alloc_pd)?;
        Ok(Self { inner: Arc::new(PdInner { device: Arc::clone(device), id }) })
    }

    /// The device of this domain.
    #[must_use]
    pub fn device(&self) -> Device {
        Device { inner: Arc::clone(&self.inner.device) }
    }

    /// Destroys it. Dropping the last handle does so too, once the domain is empty.
    ///
    /// # Errors
    /// The domain, unchanged, with [`ResourceError::Busy`](crate::engine::ResourceError::Busy): objects are left in
    /// it, or there are other handles. [`Error::Forked`](crate::Error::Forked).
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn destroy(self) -> std::result::Result<(), NotDestroyed<Self>> {
        let unused = self.destroy_in_place();
        NotDestroyed::unless(self, unused)
    }

    /// As [`destroy`](Self::destroy), for a handle that threads share: dropping the handle later then destroys the
    /// domain.
    ///
    /// # Errors
    /// Those of [`destroy`](Self::destroy).
    pub fn destroy_in_place(&self) -> Result<()> {
        self.inner.device.port()?;
        only_handle(&self.inner, "protection domain", "what was made in it, and other handles")
    }

    /// Registers `len` bytes of fresh memory, all zero. In virtual time its address follows from the order of
    /// registrations, so that it is the same in every run; see [`sim`](crate::sim).
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource) names what is wrong with the length or the rights.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        self.register_placed(MemoryBuffer::new(len)?, access)
    }

    /// As [`register`](Self::register), of memory that is there already: several devices of a simulation may share it.
    ///
    /// # Errors
    /// Those of [`register`](Self::register).
    pub fn register_placed(&self, memory: impl Into<UserMemory>, access: Access) -> Result<MemoryRegion> {
        let memory = memory.into();
        let zero_based = access.contains(Access::ZERO_BASED);
        let len = usize::try_from(memory.len()).unwrap_or(usize::MAX);
        let va = if zero_based { None } else { self.inner.device.place(len) };
        self.register_memory(memory, va, access)
    }

    /// Registers memory of the program (`ibv_reg_mr_iova`): work requests and peers address it from `va` on; without
    /// `va`, by its own addresses, or from 0 on if `access` has `ZERO_BASED`.
    ///
    /// The memory is not pinned. ON_DEMAND, HUGETLB and RELAXED_ORDERING are accepted and change nothing; only
    /// [`advise`](Self::advise), and the whole address space, require ON_DEMAND.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource) names the broken rule.
    #[doc(alias("ibv_reg_mr", "ibv_reg_mr_iova", "ibv_reg_mr_iova2"))]
    pub fn register_memory(
        &self,
        memory: impl Into<UserMemory>,
        va: Option<u64>,
        access: Access,
    ) -> Result<MemoryRegion> {
        MemoryRegion::new(&self.inner, memory.into(), va, access)
    }

    /// Allocates a null region (`ibv_alloc_null_mr`), for parts of messages that the program does not need.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource) if the device already holds its maximum of regions.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn alloc_null_mr(&self) -> Result<NullRegion> {
        NullRegion::new(&self.inner)
    }

    /// Allocates a memory window, bound to nothing.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource) if the device already holds its maximum of memory windows.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<MemoryWindow> {
        MemoryWindow::new(&self.inner, mw_type)
    }

    /// Gives advice on the use of parts of on-demand regions (`ibv_advise_mr`). No byte changes, and the work is done
    /// when the call returns. It stops at the first invalid element.
    ///
    /// # Errors
    /// [`Error::Access`](crate::Error::Access): a key that is unknown, of another protection domain, or of a window;
    /// a region without ON_DEMAND, or, for writing, without LOCAL_WRITE; a range that is not inside the region;
    /// memory that is not mapped, or protected.
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, advice: Advice, sges: &[Sge]) -> Result<()> {
        let port = self.inner.device.port()?;
        for sge in sges {
            let (id, lkey, mut done) = (self.inner.id, sge.lkey, 0);
            // The whole element is checked first, so that an error names the element.
            port.control(|e| e.advise(id, Advice::PrefetchNoFault, lkey, sge.addr, u64::from(sge.length)))?;
            while done < sge.length {
                let (at, len) = (sge.addr + u64::from(done), PREFETCH_BYTES.min(sge.length - done));
                port.control(|e| e.advise(id, advice, lkey, at, u64::from(len)))?;
                done += len;
            }
        }
        Ok(())
    }

    /// Registers memory that holds a copy of `bytes`.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_bytes(&self, bytes: &[u8], access: Access) -> Result<MemoryRegion> {
        let region = self.register(bytes.len(), access)?;
        region.write_at(0, bytes)?;
        Ok(region)
    }

    /// Creates an address handle.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource) names what is wrong with the address: no GID, a GID index or port
    /// that this device does not have, a flow label of more than 20 bits, or the other IP family than the port's; or
    /// says that the device has no more address handles.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, attr: &AddressVector) -> Result<AddressHandle> {
        AddressHandle::new(&self.inner, attr)
    }

    /// Creates an address handle for the sender of a datagram (`ibv_create_ah_from_wc`). `grh` is the network header in
    /// front of the datagram: the first 40 bytes of the receive buffer.
    ///
    /// The handle takes over the DSCP and the flow label. Of the ECN bits it keeps only whether the transport
    /// supports ECN: congestion on the path here does not indicate congestion on the path back. Its hop limit is the
    /// remaining one of the datagram, but at least 64: otherwise the last datagram of a long exchange of answers
    /// would not arrive.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource): `wc` is not a datagram's, `grh` is too short, or holds no address
    /// that the port can reach.
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah_from_wc(&self, wc: &WorkCompletion, grh: &[u8]) -> Result<AddressHandle> {
        AddressHandle::back(&self.inner, wc, grh)
    }

    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource) names the size that is out of range, the part that the type needs or
    /// does not have, or the type that this device does not have.
    #[doc(alias("ibv_create_qp", "ibv_create_qp_ex"))]
    pub fn create_qp(&self, init: &QpInit) -> Result<QueuePair> {
        QueuePair::new(&self.inner.device, Some(&self.inner), init)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Resource`](crate::Error::Resource) names the size that is out of range, or says that the device has
    /// no room for another.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, init: &SrqInit) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new(&self.inner, init, None)
    }

    /// Creates a shared receive queue for XRC requests: any queue pair of the XRC domain reaches it by its number. Its
    /// receives complete to `cq`, and peers access memory of its protection domain.
    ///
    /// # Errors
    /// As [`create_srq`](Self::create_srq); or the XRC domain was closed.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_xrc_srq(
        &self,
        init: &SrqInit,
        xrcd: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new(&self.inner, init, Some((xrcd, cq)))
    }
}

impl std::fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProtectionDomain({})", self.inner.id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ResourceError;

    #[test]
    fn a_domain_in_use_is_not_destroyed_but_handed_back() -> Result<()> {
        let net = crate::sim::Net::new();
        let device = net.device();
        let pd = device.alloc_pd()?;
        let region = pd.register(1, Access::LOCAL_WRITE)?;
        let handle = pd.create_ah(&AddressVector::new(device.gid(), 0))?;
        let refused = pd.destroy().expect_err("in use");
        assert!(matches!(refused.error, crate::Error::Resource(ResourceError::Busy { users: 2, .. })));
        drop((region, handle));
        Ok(refused.object.destroy()?)
    }

    /// The engine counts what is in a domain. Nothing shows its count as long as the handles keep the domain, but a
    /// count that never falls to zero uses up the device's domains.
    #[test]
    fn a_domain_that_everything_left_is_empty() -> Result<()> {
        let net = crate::sim::Net::new();
        let device = net.device();
        let users = |pd: &ProtectionDomain| match device.inner.port.control(|e| e.dealloc_pd(pd.inner.id)) {
            Ok(()) => 0,
            Err(ResourceError::Busy { users, .. }) => users,
            Err(other) => panic!("{other}"),
        };
        let (home, away) = (device.alloc_pd()?, device.alloc_pd()?);
        let mut region = home.register(64, Access::LOCAL_WRITE)?;
        let (window, null) = (home.alloc_mw(MwType::Type1)?, home.alloc_null_mr()?);
        let kept = away.alloc_mw(MwType::Type2)?;
        assert_eq!((users(&home), users(&away)), (3, 1));
        for to in [&away, &home, &away] {
            region.rereg(crate::Rereg::new().pd(to))?;
        }
        assert_eq!((users(&home), users(&away)), (2, 2), "the region has moved");
        window.dealloc()?;
        drop(null);
        assert_eq!((users(&home), users(&away)), (0, 2));
        // The region has a handle of the other domain now.
        home.destroy()?;
        drop(kept);
        region.deregister()?;
        assert_eq!(users(&away), 0);
        Ok(())
    }
}
