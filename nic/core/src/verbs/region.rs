//! The handles of memory regions.

use crate::engine::ResourceError;
use crate::error::{Error, Result};
use crate::memory::{Change, Keys, UserMemory};
use crate::verbs::destroy::NotDestroyed;
use crate::verbs::domain::{PdInner, ProtectionDomain};
use qp::{Access, Remote, Sge};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The changes of a re-registration (`ibv_rereg_mr`). Anything not named stays.
#[derive(Clone, Debug, Default)]
pub struct Rereg {
    memory: Option<(UserMemory, Option<u64>)>,
    pd: Option<ProtectionDomain>,
    access: Option<Access>,
}

impl Rereg {
    /// An empty change, to which the other methods add.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Other memory (`IBV_REREG_MR_CHANGE_TRANSLATION`); `va` as for
    /// [`register_memory`](ProtectionDomain::register_memory).
    #[must_use]
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    pub fn memory(self, memory: impl Into<UserMemory>, va: Option<u64>) -> Self {
        Self { memory: Some((memory.into(), va)), ..self }
    }

    /// Another protection domain (`IBV_REREG_MR_CHANGE_PD`).
    #[must_use]
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    pub fn pd(self, pd: &ProtectionDomain) -> Self {
        Self { pd: Some(pd.clone()), ..self }
    }

    /// Other rights (`IBV_REREG_MR_CHANGE_ACCESS`).
    #[must_use]
    #[doc(alias = "IBV_REREG_MR_CHANGE_ACCESS")]
    pub fn access(self, access: Access) -> Self {
        Self { access: Some(access), ..self }
    }
}

/// Registered memory.
///
/// A peer may write it at any time, so it is never borrowed as a slice: bytes are copied in and out. Dropping it
/// invalidates its keys and unbinds the memory windows that are bound to it. A work request that still names it ends
/// with LOC_PROT_ERR, and a request of a peer with a NAK.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::Access;
///
/// let net = rnic::sim::Net::new();
/// let pd = net.device().alloc_pd()?;
/// let region = pd.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// region.write_at(8, b"hello")?;
/// assert_eq!(&region.to_vec()?[8..13], b"hello");
/// let part = region.slice(8..13)?;     // for work requests of this side
/// let place = region.remote(8);        // for the peer: address and rkey
/// assert_eq!((part.lkey, place.rkey), (region.lkey(), region.rkey()));
/// # Ok::<(), rnic::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
pub struct MemoryRegion {
    pd: Arc<PdInner>,
    memory: UserMemory,
    va: u64,
    keys: Keys,
    access: Access,
    registered: AtomicBool,
}

impl MemoryRegion {
    pub(crate) fn new(
        pd: &Arc<PdInner>,
        memory: UserMemory,
        va: Option<u64>,
        access: Access,
    ) -> Result<Self> {
        let port = pd.device.port()?;
        let keys = port.control(|e| e.register(pd.id, memory.clone(), va, access))?;
        let va = address(&memory, va, access);
        Ok(Self { pd: Arc::clone(pd), memory, va, keys, access, registered: AtomicBool::new(true) })
    }

    /// The key for work requests of this side.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.keys.lkey
    }

    /// The key for the peer. The access rights determine what the peer may do with it.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.keys.rkey
    }

    /// The access rights.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The first address for work requests: that of the memory, or the one it was registered with, or 0 with
    /// `ZERO_BASED`.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.va
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.memory.len()).unwrap_or(usize::MAX)
    }

    /// Always false: a region of 0 bytes cannot be registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &UserMemory {
        &self.memory
    }

    /// Re-registers the region with other memory, in another protection domain, or with other rights.
    ///
    /// The keys change if the memory or its addresses do, and stay otherwise. A request in flight that names the old
    /// key, or that now lacks a right, fails in the same way as one with a wrong key.
    ///
    /// # Errors
    /// [`Error::Resource`] names the fault in the new registration; `Busy` means that memory windows are bound to the
    /// region. The region is unchanged then: all checks precede the first change.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg(&mut self, change: Rereg) -> Result<()> {
        let Rereg { memory, pd, access } = change;
        if pd.as_ref().is_some_and(|pd| !Arc::ptr_eq(&pd.inner.device, &self.pd.device)) {
            return Err(ResourceError::Unknown { what: "protection domain" }.into());
        }
        let (memory, va) = memory.map_or((None, None), |(memory, va)| (Some(memory), va));
        let new = Change { memory: memory.clone(), va, pd: pd.as_ref().map(|pd| pd.inner.id), access };
        let lkey = self.keys.lkey;
        let (keys, old) = self.pd.device.port()?.control(|e| e.reregister(lkey, new))?;
        let access = access.unwrap_or(self.access);
        let moved = memory.is_some() || (access ^ old.access()).contains(Access::ZERO_BASED);
        self.memory = memory.unwrap_or_else(|| self.memory.clone());
        if moved {
            self.va = address(&self.memory, va, access);
        }
        if let Some(pd) = pd {
            self.pd = pd.inner;
        }
        (self.keys, self.access) = (keys, access);
        Ok(())
    }

    /// Deregisters the region (`ibv_dereg_mr`). When this returns, no access to it is in progress, and none will
    /// start.
    ///
    /// # Errors
    /// [`ResourceError::Busy`] while memory windows are bound to it, because peers would lose their access. The error
    /// contains the region; dropping it unbinds the windows.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> std::result::Result<(), NotDestroyed<Self>> {
        let done = self.deregister_in_place();
        NotDestroyed::unless(self, done)
    }

    /// As [`deregister`](Self::deregister), for a region that threads share. Its keys are invalid from then on.
    ///
    /// # Errors
    /// Those of [`deregister`](Self::deregister).
    pub fn deregister_in_place(&self) -> Result<()> {
        let lkey = self.keys.lkey;
        drop(self.pd.device.port()?.control(|e| e.deregister(lkey))?);
        self.registered.store(false, Ordering::Release);
        Ok(())
    }

    /// The whole region, for a work request of this side.
    #[must_use]
    pub fn all(&self) -> Sge {
        Sge { addr: self.addr(), length: u32::try_from(self.len()).unwrap_or(u32::MAX), lkey: self.keys.lkey }
    }

    /// A part of the region, for a work request of this side.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn slice(&self, range: Range<usize>) -> Result<Sge> {
        let (addr, len) = self.part(&range)?;
        let error = Error::Range { start: range.start as u64, end: range.end as u64, len: self.len() as u64 };
        Ok(Sge { addr, length: u32::try_from(len).map_err(|_| error)?, lkey: self.keys.lkey })
    }

    /// The address and length of a part of the region.
    pub(crate) fn part(&self, range: &Range<usize>) -> Result<(u64, u64)> {
        if range.start > range.end || range.end > self.len() {
            let (start, end) = (range.start as u64, range.end as u64);
            return Err(Error::Range { start, end, len: self.len() as u64 });
        }
        Ok((self.addr() + range.start as u64, range.len() as u64))
    }

    /// A remote address in the region, for a work request of the peer. It is not checked here: a request of the peer
    /// for an invalid address is answered with a NAK.
    #[must_use]
    pub fn remote(&self, offset: u64) -> Remote {
        Remote { addr: self.addr().wrapping_add(offset), rkey: self.rkey() }
    }

    /// Reads the 8 bytes at `offset` in a single access: for memory that WRITEs and atomics of a peer change.
    ///
    /// # Errors
    /// [`Error::Memory`] if they are outside the region, or `offset` is not a multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        Ok(self.memory.load_u64(offset)?)
    }

    /// Stores 8 bytes at `offset` in a single access.
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        Ok(self.memory.store_u64(offset, value)?)
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// [`Error::Memory`] if they are outside the region, or the memory is no longer mapped.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        Ok(self.memory.read_at(offset, out)?)
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.write_at(offset, bytes)?)
    }

    /// Copies the whole region.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if *self.registered.get_mut()
            && let Ok(port) = self.pd.device.port()
        {
            let lkey = self.keys.lkey;
            drop(port.control(|e| e.remove_region(lkey)));
        }
    }
}

impl std::fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryRegion({} bytes at {:#x}, key {:#010x})", self.len(), self.addr(), self.keys.lkey)
    }
}

/// The first address of a region, by the rule of the region table.
fn address(memory: &UserMemory, va: Option<u64>, access: Access) -> u64 {
    va.unwrap_or(if access.contains(Access::ZERO_BASED) { 0 } else { memory.addr() as u64 })
}

/// A region without memory (`ibv_alloc_null_mr`): at any address it reads as zeroes and discards writes. It is only
/// for work requests of this side: peers get no right to it, and no window can be bound to it.
///
/// Dropping it invalidates the key.
pub struct NullRegion {
    pd: Arc<PdInner>,
    lkey: u32,
}

impl NullRegion {
    pub(crate) fn new(pd: &Arc<PdInner>) -> Result<Self> {
        let keys = pd.device.port()?.control(|e| e.register_null(pd.id))?;
        Ok(Self { pd: Arc::clone(pd), lkey: keys.lkey })
    }

    /// The key for work requests of this side.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// `length` bytes of the null region, for a work request of this side.
    #[must_use]
    pub fn bytes(&self, length: u32) -> Sge {
        Sge { addr: 0, length, lkey: self.lkey }
    }
}

impl Drop for NullRegion {
    fn drop(&mut self) {
        if let Ok(port) = self.pd.device.port() {
            drop(port.control(|e| e.remove_region(self.lkey)));
        }
    }
}

impl std::fmt::Debug for NullRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NullRegion(key {:#010x})", self.lkey)
    }
}
