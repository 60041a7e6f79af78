//! Protection domains and the memory registered in them.

use crate::completion::CompletionQueue;
use crate::destroy::{NotDestroyed, destroy_last};
use crate::device::{Device, DeviceInner};
use crate::engine::ResourceError;
use crate::error::{Error, Result};
use crate::memory::{Keys, MemoryBuffer};
use crate::queue_pair::{QpInit, QueuePair};
use crate::srq::{SharedReceiveQueue, SrqInit};
use crate::xrc::XrcDomain;
use qp::attr::AddressVector;
use qp::{Access, PdId, Remote, Sge};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// A protection domain: keys of memory registered in it are valid for queue pairs made in it, and for no others.
///
/// Clones are the same domain.
#[derive(Clone)]
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
            // What was made in it keeps it alive, so it is not in use.
            let _ = port.control(|e| e.dealloc_pd(self.id));
        }
    }
}

impl ProtectionDomain {
    pub(crate) fn new(device: &Arc<DeviceInner>) -> Result<Self> {
        let id = device.port()?.control(crate::engine::Engine::alloc_pd)?;
        Ok(Self { inner: Arc::new(PdInner { device: Arc::clone(device), id }) })
    }

    /// The device that it belongs to.
    #[must_use]
    pub fn device(&self) -> Device {
        Device { inner: Arc::clone(&self.inner.device) }
    }

    /// Destroys it. Dropping the last handle does so too, once nothing that was made in it is left.
    ///
    /// # Errors
    /// The domain as it was, with [`ResourceError::Busy`]: something made in it is left, or there are other handles.
    /// [`Error::Forked`].
    pub fn destroy(self) -> std::result::Result<(), NotDestroyed<Self>> {
        if !self.inner.device.port.is_ours() {
            return Err(NotDestroyed::new(self, Error::Forked));
        }
        let by = "what was made in it, and other handles";
        destroy_last(self.inner, "protection domain", by, |inner| Self { inner })
    }

    /// Registers `len` bytes of fresh memory, all zero.
    ///
    /// # Errors
    /// [`Error::Resource`] names what is wrong with the length or the rights.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        let buffer = MemoryBuffer::new(len)?;
        let buffer = Arc::new(buffer);
        let keys = self.inner.device.port()?.control(|e| e.register(self.inner.id, &buffer, access))?;
        Ok(MemoryRegion { pd: Arc::clone(&self.inner), buffer, keys, access })
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
    /// [`Error::Resource`] names what is wrong with the address: no GID, a GID index or port that this device does not
    /// have, a flow label of more than 20 bits, or the other IP family than the port's.
    pub fn create_ah(&self, attr: &AddressVector) -> Result<AddressHandle> {
        let port = self.inner.device.port()?;
        let (ours, theirs) = (port.address, attr.dgid.ip());
        let wrong = if !attr.is_global || attr.dgid.is_zero() {
            Some("it has no GID, and RoCE has no other addresses")
        } else if attr.sgid_index != 0 {
            Some("its sgid_index is not in the GID table, which has one entry")
        } else if attr.port_num != 1 {
            Some("its port_num is not 1, the only port")
        } else if attr.flow_label >= 1 << 20 {
            Some("its flow_label has more than 20 bits")
        } else if ours.is_ipv4() != theirs.is_ipv4() {
            Some("its GID is of the other IP family than the port's")
        } else {
            None
        };
        match wrong {
            Some(why) => Err(ResourceError::Address { why }.into()),
            None => Ok(AddressHandle { _pd: Arc::clone(&self.inner), attr: *attr }),
        }
    }

    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// [`Error::Resource`] names the size that is out of range, the part that the type needs or does not have, or the
    /// type that this device does not have.
    pub fn create_qp(&self, init: &QpInit) -> Result<QueuePair> {
        QueuePair::new(&self.inner.device, Some(&self.inner), init)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Resource`] names the size that is out of range, or says that there is none left.
    pub fn create_srq(&self, init: &SrqInit) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new(&self.inner, init, None)
    }

    /// Creates a shared receive queue for XRC requests: any queue pair of the XRC domain reaches it by its number. What it
    /// receives completes to `cq`; peers use memory of its protection domain.
    ///
    /// # Errors
    /// As [`create_srq`](Self::create_srq); or the XRC domain was closed.
    pub fn create_xrc_srq(
        &self,
        init: &SrqInit,
        xrcd: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new(&self.inner, init, Some((xrcd, cq)))
    }
}

/// The way to a peer, checked once: for the `ah_attr` of connected queue pairs, and for datagrams.
///
/// Clones are the same handle; it keeps its protection domain.
#[derive(Clone)]
pub struct AddressHandle {
    _pd: Arc<PdInner>,
    attr: AddressVector,
}

impl AddressHandle {
    /// What it was created with.
    #[must_use]
    pub fn attr(&self) -> AddressVector {
        self.attr
    }

    /// The peer's address.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.attr.dgid.ip()
    }
}

impl std::fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AddressHandle({})", self.ip())
    }
}

impl std::fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProtectionDomain({})", self.inner.id.0)
    }
}

/// Registered memory.
///
/// A peer may write it at any time, so it is never lent out as a slice: bytes are copied in and out. Dropping it
/// takes the key away; a work request that still names it ends with LOC_PROT_ERR.
pub struct MemoryRegion {
    pd: Arc<PdInner>,
    buffer: Arc<MemoryBuffer>,
    keys: Keys,
    access: Access,
}

impl MemoryRegion {
    /// The key for work requests of this side.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.keys.lkey
    }

    /// The key for the peer; 0 if the region gives it no rights.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.keys.rkey
    }

    /// What the region allows.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// First address, as work requests name it: that of the memory, or 0 with `ZERO_BASED`.
    #[must_use]
    pub fn addr(&self) -> u64 {
        if self.access.contains(Access::ZERO_BASED) { 0 } else { self.buffer.addr() as u64 }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it has no bytes; never so, registration refuses that.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
        let error = Error::Range { start: range.start as u64, end: range.end as u64, len: self.len() as u64 };
        if range.start > range.end || range.end > self.len() {
            return Err(error);
        }
        let Ok(length) = u32::try_from(range.len()) else { return Err(error) };
        Ok(Sge { addr: self.addr() + range.start as u64, length, lkey: self.keys.lkey })
    }

    /// A place in the region, for a work request of the peer. Not checked: the peer may ask for anything, and is
    /// answered with a NAK where it is wrong.
    #[must_use]
    pub fn remote(&self, offset: u64) -> Remote {
        Remote { addr: self.addr().wrapping_add(offset), rkey: self.rkey() }
    }

    /// The 8 bytes at `offset`, read as one: for memory that a peer's WRITEs and atomics change.
    ///
    /// # Errors
    /// [`Error::Memory`]: outside the region, or `offset` is not a multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        Ok(self.buffer.load_u64(offset)?)
    }

    /// Stores 8 bytes at `offset` as one.
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        Ok(self.buffer.store_u64(offset, value)?)
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// [`Error::Memory`]: outside the region, or no longer mapped.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        Ok(self.buffer.read_at(offset, out)?)
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.buffer.write_at(offset, bytes)?)
    }

    /// A copy of the whole region.
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
        if let Ok(port) = self.pd.device.port() {
            // The key is ours, so it is there to be taken away.
            let _ = port.control(|e| e.deregister(self.pd.id, self.keys.lkey));
        }
    }
}

impl std::fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryRegion({} bytes at {:#x}, key {:#010x})", self.len(), self.addr(), self.keys.lkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qp::Gid;

    #[test]
    fn a_domain_in_use_is_not_destroyed_but_handed_back() -> Result<()> {
        let net = crate::sim::Net::new();
        let device = net.device();
        let pd = device.alloc_pd()?;
        let region = pd.register(1, Access::LOCAL_WRITE)?;
        let handle = pd.create_ah(&AddressVector::new(device.gid(), 0))?;
        let refused = pd.destroy().expect_err("in use");
        assert!(matches!(refused.error, Error::Resource(ResourceError::Busy { users: 2, .. })));
        drop((region, handle));
        Ok(refused.object.destroy()?)
    }

    #[test]
    fn address_handles_are_checked() -> Result<()> {
        let net = crate::sim::Net::new();
        let (device, peer) = (net.device(), net.device());
        let pd = device.alloc_pd()?;
        let good = AddressVector::new(peer.gid(), 0);
        let handle = pd.create_ah(&good)?;
        assert_eq!((handle.ip(), handle.attr()), (peer.address(), good));
        let v6 = Gid::from(std::net::Ipv6Addr::LOCALHOST);
        for (bad, why) in [
            (AddressVector { is_global: false, ..good }, "no GID"),
            (AddressVector { sgid_index: 1, ..good }, "sgid_index"),
            (AddressVector { port_num: 2, ..good }, "port_num"),
            (AddressVector { flow_label: 1 << 20, ..good }, "flow_label"),
            (AddressVector { dgid: v6, ..good }, "IP family"),
        ] {
            let error = pd.create_ah(&bad).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
        Ok(())
    }
}
