//! Keys to regions, and every check of an access.
#![expect(unsafe_code, reason = "hands registered addresses to the copies")]

mod key;
#[cfg(test)]
mod tests;

pub use key::KeySource;

use super::copy;
use super::{MemoryBuffer, install};
use key::{KeyMaker, MAX_SLOTS};
use qp::memory::{Bind, BindError};
use qp::{Access, AccessError, AtomicOp, Domain, Memory, PdId};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use thiserror::Error;

/// How many free slots wait before the one that has waited longest is used again. With 256 tags to a slot, a
/// dead key stays dead for a quarter of a million registrations at least. Costs 64 KiB at most.
const QUARANTINE: u32 = 1024;

/// The end of the list of free slots.
const NONE: u32 = u32::MAX;

/// The rights that concern peers. A region without any has no rkey.
const REMOTE: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// Why memory cannot be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RegisterError {
    /// A region needs at least one byte, as with the kernel.
    #[error("a memory region needs a length of at least 1")]
    Empty,
    /// The end of the region is no address.
    #[error("{len} bytes at {addr:#x} reach beyond the address space")]
    Overflow {
        /// First address, the program's or the one that peers use.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Peers may write only where the device itself may (IBTA 11.2.8.2 and the kernel ask for both).
    #[error("the right {remote:?} also needs LOCAL_WRITE")]
    NeedsLocalWrite {
        /// The rights that need it.
        remote: Access,
    },
    /// The device holds as many regions as it may.
    #[error("the device has no room for another memory region: the maximum is {max}")]
    Full {
        /// The maximum (`max_mr` of the device).
        max: u32,
    },
}

/// The keys of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Keys {
    /// For the program's own work requests.
    pub lkey: u32,
    /// For peers; equal to `lkey`, or 0 if the region gives no right to peers.
    pub rkey: u32,
}

/// A registered piece of memory.
#[derive(Clone, Debug)]
pub struct Region {
    va: u64,
    addr: usize,
    len: u64,
    pd: PdId,
    access: Access,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl Region {
    /// First address as work requests and peers name it: 0 for zero-based regions.
    #[must_use]
    pub fn va(&self) -> u64 {
        self.va
    }

    /// First address in this process.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Length in bytes, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// The rights.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// What the region keeps alive.
    #[must_use]
    pub fn owner(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.owner.as_ref()
    }

    /// The address in this process of `len` bytes at `va`, if all of them are inside.
    fn locate(&self, va: u64, len: u64) -> Option<usize> {
        let offset = va.checked_sub(self.va)?;
        let end = offset.checked_add(len)?;
        // An offset inside the region fits an address: `register` made sure that the end of the region does.
        (end <= self.len).then(|| self.addr + offset as usize)
    }
}

/// What a slot of the table holds.
#[derive(Debug)]
enum Entry {
    /// Nothing; `next` links the free slots in the order in which they became free.
    Free { next: u32 },
    /// A memory region.
    Region(Region),
}

#[derive(Debug)]
struct Slot {
    entry: Entry,
    /// The low byte of the key that the slot has now, or had last.
    tag: u8,
}

/// The memory regions of a device, by key.
///
/// A lookup is a few instructions and one array access, whether there are ten regions or a million. The table
/// is the transport's [`Memory`].
///
/// Whoever removes a region must do so where no access of the table is running: accesses borrow the table, so
/// one owner (the engine's lock) is enough.
#[derive(Debug)]
pub struct RegionTable {
    slots: Vec<Slot>,
    keys: KeyMaker,
    /// The free slot that has waited longest, and the youngest.
    oldest_free: u32,
    youngest_free: u32,
    free: u32,
    live: u32,
    max: u32,
}

impl RegionTable {
    /// An empty table for up to `max` regions (at most 2^24 minus the slots that rest).
    #[must_use]
    pub fn new(max: u32, source: KeySource) -> Self {
        Self {
            slots: Vec::new(),
            keys: KeyMaker::new(source),
            oldest_free: NONE,
            youngest_free: NONE,
            free: 0,
            live: 0,
            max: max.min(MAX_SLOTS - QUARANTINE),
        }
    }

    /// Registers `len` bytes at `addr` of this process, which work requests and peers address from `va` on.
    /// `owner` is kept alive as long as the region.
    ///
    /// Memory that is not mapped, or is protected, can be registered; accesses to it fail.
    ///
    /// # Safety
    ///
    /// Until the region is deregistered, the device may read the bytes at any time, and write them if `access`
    /// has `LOCAL_WRITE`. Rust code must not hold references to them that this would invalidate. The memory
    /// may be unmapped before, as long as nothing else that minds is put in its place.
    ///
    /// # Errors
    ///
    /// [`RegisterError`] says which rule was broken; nothing is registered then.
    pub unsafe fn register(
        &mut self,
        pd: PdId,
        va: u64,
        addr: usize,
        len: u64,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Keys, RegisterError> {
        if len == 0 {
            return Err(RegisterError::Empty);
        }
        for start in [addr as u64, va] {
            if start.checked_add(len).is_none_or(|end| usize::try_from(end).is_err()) {
                return Err(RegisterError::Overflow { addr: start, len });
            }
        }
        let remote = access & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !remote.is_empty() && !access.contains(Access::LOCAL_WRITE) {
            return Err(RegisterError::NeedsLocalWrite { remote });
        }
        install();
        let lkey = self.insert(Region { va, addr, len, pd, access, owner })?;
        Ok(Keys { lkey, rkey: if access.intersects(REMOTE) { lkey } else { 0 } })
    }

    /// Registers all of `buffer` at its own address, or at offset 0 if `access` has `ZERO_BASED`.
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register).
    pub fn register_buffer(
        &mut self,
        pd: PdId,
        buffer: Arc<MemoryBuffer>,
        access: Access,
    ) -> Result<Keys, RegisterError> {
        let (addr, len) = (buffer.addr(), buffer.len() as u64);
        let va = if access.contains(Access::ZERO_BASED) { 0 } else { addr as u64 };
        // SAFETY: no reference into a buffer exists, and the region keeps it alive.
        unsafe { self.register(pd, va, addr, len, access, Some(buffer)) }
    }

    /// Removes the region of `key` and returns it; dropping it may free its memory. `None`: no such region.
    pub fn deregister(&mut self, key: u32) -> Option<Region> {
        let (index, tag) = self.keys.slot(key);
        let slot = self.slots.get_mut(index as usize).filter(|s| s.tag == tag)?;
        if let Entry::Free { .. } = slot.entry {
            return None;
        }
        let Entry::Region(region) = std::mem::replace(&mut slot.entry, Entry::Free { next: NONE }) else {
            return None;
        };
        match self.slots.get_mut(self.youngest_free as usize) {
            Some(Slot { entry: Entry::Free { next }, .. }) => *next = index,
            _ => self.oldest_free = index,
        }
        self.youngest_free = index;
        self.free += 1;
        self.live -= 1;
        Some(region)
    }

    /// The region of `key`.
    #[must_use]
    pub fn get(&self, key: u32) -> Option<&Region> {
        let (index, tag) = self.keys.slot(key);
        match self.slots.get(index as usize) {
            Some(Slot { entry: Entry::Region(region), tag: current }) if *current == tag => Some(region),
            _ => None,
        }
    }

    /// All regions with their keys, in no meaningful but a repeatable order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.slots.iter().zip(0u32..).filter_map(|(slot, index)| match &slot.entry {
            Entry::Region(region) => Some((self.keys.key(index, slot.tag), region)),
            Entry::Free { .. } => None,
        })
    }

    /// The number of regions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// Whether there are no regions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The largest number of regions.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Checks an access of `len` bytes, not 0, and returns where they are in this process.
    ///
    /// The checks come in this order: key, protection domain, rights, range. Reading by the program itself
    /// needs no right, so `access` may be empty.
    fn resolve(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<usize, AccessError> {
        let region = self.get(key).ok_or(AccessError::UnknownKey { key })?;
        if region.pd != domain.pd {
            return Err(AccessError::WrongDomain { key });
        }
        let missing = access - region.access;
        if !missing.is_empty() {
            return Err(AccessError::Denied { key, missing });
        }
        region.locate(va, len).ok_or(AccessError::OutOfRange {
            key,
            va,
            len,
            start: region.va,
            end: region.va + region.len,
        })
    }

    /// Puts `region` into a slot and returns its key.
    fn insert(&mut self, region: Region) -> Result<u32, RegisterError> {
        if self.live >= self.max {
            return Err(RegisterError::Full { max: self.max });
        }
        let limit = self.max + QUARANTINE;
        let reused = (self.free >= QUARANTINE || self.slots.len() as u64 >= u64::from(limit))
            .then(|| self.slots.get_mut(self.oldest_free as usize))
            .flatten();
        let index = match reused {
            Some(slot) => {
                let index = self.oldest_free;
                if let Entry::Free { next } = slot.entry {
                    self.oldest_free = next;
                }
                if self.oldest_free == NONE {
                    self.youngest_free = NONE;
                }
                self.free -= 1;
                *slot = Slot { entry: Entry::Region(region), tag: slot.tag.wrapping_add(1) };
                index
            }
            None => {
                // Below `limit`, which is at most 2^24: otherwise a slot is free, because `live < max`.
                let index = self.slots.len() as u32;
                self.slots.push(Slot { entry: Entry::Region(region), tag: self.keys.first_tag(index) });
                index
            }
        };
        self.live += 1;
        let slot = &mut self.slots[index as usize];
        // 0 means "no key" to programs, and all ones is a usual marker: the two slots concerned skip a tag.
        if matches!(self.keys.key(index, slot.tag), 0 | u32::MAX) {
            slot.tag = slot.tag.wrapping_add(1);
        }
        Ok(self.keys.key(index, slot.tag))
    }
}

impl Memory for RegionTable {
    fn check(&self, domain: Domain, key: u32, va: u64, len: u64, access: Access) -> Result<(), AccessError> {
        match len {
            0 => Ok(()),
            _ => self.resolve(domain, key, va, len, access).map(drop),
        }
    }

    fn read(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        if out.is_empty() {
            return Ok(());
        }
        let addr = self.resolve(domain, key, va, out.len() as u64, access)?;
        // SAFETY: the bytes lie inside a region, whose registration allows reading.
        unsafe { copy::copy_out(addr, out) }.map_err(|_| AccessError::Fault { va })
    }

    fn write(
        &mut self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        data: &[u8],
    ) -> Result<(), AccessError> {
        if data.is_empty() {
            return Ok(());
        }
        // REMOTE_WRITE implies LOCAL_WRITE, see `register`. A caller that names neither must not get to write
        // memory that was lent for reading.
        let named = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let access = if named { access } else { access | Access::LOCAL_WRITE };
        let addr = self.resolve(domain, key, va, data.len() as u64, access)?;
        // SAFETY: the bytes lie inside a region, which was registered for writing.
        unsafe { copy::copy_in(data, addr) }.map_err(|_| AccessError::Fault { va })
    }

    fn atomic(&mut self, domain: Domain, key: u32, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let addr = self.resolve(domain, key, va, 8, op.access())?;
        // The address in this process differs in its low bits where a region is given another virtual address.
        if !va.is_multiple_of(8) || !addr.is_multiple_of(8) {
            return Err(AccessError::Misaligned { va });
        }
        // SAFETY: the bytes lie inside a region, which was registered for writing (REMOTE_ATOMIC and REMOTE_WRITE need it).
        unsafe { copy::fetch_update(addr, op) }.map_err(|_| AccessError::Fault { va })
    }

    /// A processor did the writes, so they are visible to all already, once ordered: what is left is to check.
    fn flush(
        &self,
        domain: Domain,
        key: u32,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), AccessError> {
        match range {
            Some((va, len)) => self.check(domain, key, va, len, access)?,
            None => self.resolve(domain, key, self.get(key).map_or(0, Region::va), 1, access).map(drop)?,
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn bind(&mut self, _: Domain, bind: &Bind) -> Result<(), BindError> {
        Err(BindError::NoWindow { key: bind.window })
    }

    fn invalidate(&mut self, _: Domain, key: u32) -> Result<(), AccessError> {
        Err(AccessError::NotInvalidatable { key })
    }
}
