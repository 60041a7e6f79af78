//! Memory windows, as programs hold them.

use crate::engine::ResourceError;
use crate::error::Result;
use crate::memory::MwType;
use crate::queue::locked;
use crate::verbs::destroy::NotDestroyed;
use crate::verbs::domain::PdInner;
use crate::verbs::queue_pair::QueuePair;
use crate::verbs::region::MemoryRegion;
use qp::memory::Bind;
use qp::{Access, Gather, Operation, Remote};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A memory window: a part of a region that work requests open to peers and close again, without a registration.
///
/// Dropping it deallocates it and closes what it opened.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::{Access, MwType, RcEnd, WcStatus};
///
/// let net = rnic::sim::Net::new();
/// let (a, b) = (net.device(), net.device());
/// let (left, right) = RcEnd::pair(&a, &b)?;
/// let memory = right.pd().register(64, Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let window = right.pd().alloc_mw(MwType::Type2)?;
/// right.qp.bind_mw(1, &window, &memory, 16..48, Access::REMOTE_WRITE)?;
/// assert_eq!(right.wait()?.status, WcStatus::Success);
///
/// let source = left.register(b"hello")?;
/// left.qp.write(2, source.all(), window.remote(&memory, 16))?;
/// assert_eq!(left.wait()?.status, WcStatus::Success);
/// left.qp.write(3, source.all(), window.remote(&memory, 15))?; // in front of the window
/// assert_eq!(left.wait()?.status, WcStatus::RemAccessErr);
/// assert_eq!(memory.to_vec()?[16..21], *b"hello");
/// # Ok::<(), rnic::Error>(())
/// ```
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::{Access, MwType, RcEnd, WcStatus};
///
/// let net = rnic::sim::Net::new();
/// let (left, right) = RcEnd::pair(&net.device(), &net.device())?;
/// let access = Access::LOCAL_WRITE | Access::MW_BIND;
/// let region = right.pd().register(4096, access)?;
/// let window = right.pd().alloc_mw(MwType::Type1)?;
/// right.qp.bind_mw(1, &window, &region, 0..64, Access::REMOTE_WRITE)?;
/// assert_eq!(right.wait()?.status, WcStatus::Success);
///
/// // The peer may write these 64 bytes now, and no others.
/// let source = left.register(b"through the window")?;
/// left.qp.write(2, source.all(), window.remote(&region, 0))?;
/// assert_eq!(left.wait()?.status, WcStatus::Success);
/// # Ok::<(), rnic::Error>(())
/// ```
#[doc(alias = "ibv_mw")]
pub struct MemoryWindow {
    pd: Arc<PdInner>,
    mw_type: MwType,
    /// The key after all posted work requests are done. The upper 24 bits stay.
    rkey: Mutex<u32>,
    allocated: AtomicBool,
}

impl MemoryWindow {
    pub(crate) fn new(pd: &Arc<PdInner>, mw_type: MwType) -> Result<Self> {
        let rkey = pd.device.port()?.control(|e| e.alloc_mw(pd.id, mw_type))?;
        Ok(Self { pd: Arc::clone(pd), mw_type, rkey: Mutex::new(rkey), allocated: AtomicBool::new(true) })
    }

    /// Its type.
    #[must_use]
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// The key for the peer, once the posted binds are done. A program may send it behind the bind on the same queue
    /// pair. On any other path it must first wait for the completion.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        *locked(&self.rkey)
    }

    /// Queries the device's key of the window: for use after a failed bind, and after a bind that the program posted
    /// as its own work request. From now on [`rkey`](Self::rkey) returns it.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn query_rkey(&self) -> Result<u32> {
        let port = self.pd.device.port()?;
        let mut rkey = locked(&self.rkey);
        let gone = ResourceError::Unknown { what: "memory window" };
        *rkey = port.control(|e| e.window_key(*rkey)).ok_or(gone)?;
        Ok(*rkey)
    }

    /// The operands of a bind to `range` of `region`, with the next key: the low byte one up (`ibv_inc_rkey`). A
    /// program that posts it as [`Operation::BindWindow`] takes the new key from it.
    ///
    /// # Errors
    /// [`Error::Range`](crate::Error::Range).
    #[doc(alias = "ibv_inc_rkey")]
    pub fn bind_to(&self, region: &MemoryRegion, range: Range<usize>, access: Access) -> Result<Bind> {
        operands(self.rkey(), region, &range, access)
    }

    /// A remote address in the window, for a work request of the peer: `offset` bytes behind the start of `region`.
    /// For a window that is not zero-based. Not checked.
    #[must_use]
    pub fn remote(&self, region: &MemoryRegion, offset: u64) -> Remote {
        Remote { addr: region.addr().wrapping_add(offset), rkey: self.rkey() }
    }

    /// Deallocates the window, bound or not (`ibv_dealloc_mw`).
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked), which returns the window.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(self) -> std::result::Result<(), NotDestroyed<Self>> {
        let done = self.dealloc_in_place();
        NotDestroyed::unless(self, done)
    }

    /// As [`dealloc`](Self::dealloc), for a window that threads share.
    ///
    /// # Errors
    /// Those of [`dealloc`](Self::dealloc).
    pub fn dealloc_in_place(&self) -> Result<()> {
        let (id, rkey) = (self.pd.id, self.rkey());
        self.pd.device.port()?.control(|e| e.dealloc_mw(id, rkey))?;
        self.allocated.store(false, Ordering::Release);
        Ok(())
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if *self.allocated.get_mut() {
            // The window exists; only a forked child, which does not own it, cannot deallocate it.
            let _ = self.dealloc_in_place();
        }
    }
}

impl std::fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryWindow({:?}, key {:#010x})", self.mw_type, self.rkey())
    }
}

/// The operands of a bind of the window with key `window` to `range` of `region`.
fn operands(window: u32, region: &MemoryRegion, range: &Range<usize>, access: Access) -> Result<Bind> {
    let (addr, len) = region.part(range)?;
    Ok(Bind { window, key: next_key(window), lkey: region.lkey(), access, addr, len })
}

/// The key with the next low byte.
fn next_key(key: u32) -> u32 {
    key & !0xff | u32::from((key as u8).wrapping_add(1))
}

impl QueuePair {
    /// Posts a signalled bind of `window` to `range` of `region` (`ibv_bind_mw`; for type 2 a work request), with a
    /// new key. From now on [`MemoryWindow::rkey`] returns the new key. If the bind fails,
    /// [`MemoryWindow::query_rkey`] restores the correct one.
    ///
    /// # Errors
    /// [`Error::Range`](crate::Error::Range), and as [`post_send`](Self::post_send): the key has not changed then.
    #[doc(alias("ibv_bind_mw", "ibv_wr_bind_mw"))]
    pub fn bind_mw(
        &self,
        wr_id: u64,
        window: &MemoryWindow,
        region: &MemoryRegion,
        range: Range<usize>,
        access: Access,
    ) -> Result<()> {
        // Held while posting: two threads that bind the same window must not use one key twice.
        let mut rkey = locked(&window.rkey);
        let bind = operands(*rkey, region, &range, access)?;
        self.post_bind(wr_id, &mut rkey, bind)
    }

    /// Posts a signalled request that closes `window`: a bind to no bytes for type 1, an invalidation for type 2.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "ibv_wr_local_inv")]
    pub fn unbind_mw(&self, wr_id: u64, window: &MemoryWindow) -> Result<()> {
        match window.mw_type {
            MwType::Type1 => {
                let mut rkey = locked(&window.rkey);
                let (window, key) = (*rkey, next_key(*rkey));
                let nothing = Bind { window, key, lkey: 0, access: Access::empty(), addr: 0, len: 0 };
                self.post_bind(wr_id, &mut rkey, nothing)
            }
            MwType::Type2 => {
                self.post(wr_id, Operation::LocalInvalidate { key: window.rkey() }, Gather::Empty)
            }
        }
    }

    fn post_bind(&self, wr_id: u64, rkey: &mut u32, bind: Bind) -> Result<()> {
        self.post(wr_id, Operation::BindWindow(bind), Gather::Empty)?;
        *rkey = bind.key;
        Ok(())
    }
}
