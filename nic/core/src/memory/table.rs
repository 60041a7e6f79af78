//! The table from keys to regions and windows, with every access check.
#![expect(unsafe_code, reason = "hands registered addresses to the copies")]

mod key;
mod region;
#[cfg(test)]
mod region_tests;
mod slots;
#[cfg(test)]
mod tests;
mod window;
#[cfg(test)]
mod window_tests;

pub use key::KeySource;
pub use region::{Change, Keys, Region, RegisterError};
pub use window::MwType;

use super::{Advice, UserMemory, copy, install};
use qp::memory::{Bind, BindError};
use qp::wire::icrc;
use qp::{Access, AccessError, AtomicOp, Domain, Memory, PdId, Qpn};
use slots::{Entry, MAX_LIVE, Slots};
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};

/// The address of the bytes of a null region. No byte of any other region has this address.
const NOWHERE: usize = usize::MAX;

/// The memory regions and memory windows of a device, by key.
///
/// A lookup is a few instructions and one access to memory, whether there are ten regions or a million. The table
/// is the transport's [`Memory`].
///
/// A region must not be removed while an access to the table is running. Accesses borrow the table, so one owner (the
/// engine's lock) is enough.
#[derive(Debug)]
pub struct RegionTable {
    slots: Slots,
    regions: u32,
    windows: u32,
    max: u32,
    /// The first of the windows of type 2 that a queue pair bound. No entry if it bound none.
    bound_by: HashMap<Qpn, u32>,
}

impl RegionTable {
    /// Creates an empty table for up to `max` regions and as many windows (at most some 2^23 of each: keys
    /// distinguish 2^24).
    #[must_use]
    pub fn new(max: u32, source: KeySource) -> Self {
        let max = max.min(MAX_LIVE / 2);
        Self { slots: Slots::new(2 * max, source), regions: 0, windows: 0, max, bound_by: HashMap::new() }
    }

    /// Registers `memory`. Work requests and peers address it from `va` on; without `va`, by its own addresses, or
    /// from 0 on if `access` has `ZERO_BASED`.
    ///
    /// Unmapped or protected memory can be registered; accesses to it fail.
    ///
    /// # Errors
    ///
    /// [`RegisterError`] names the broken rule; nothing is registered then.
    pub fn register(
        &mut self,
        pd: PdId,
        memory: impl Into<UserMemory>,
        va: Option<u64>,
        access: Access,
    ) -> Result<Keys, RegisterError> {
        let region = Region::new(pd, memory.into(), va, access)?;
        install();
        self.insert(Entry::Region(region))
    }

    /// Registers a null region: it has all addresses, reads as zeroes and discards writes. It is for the program's
    /// own work requests only.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Full`].
    pub fn register_null(&mut self, pd: PdId) -> Result<Keys, RegisterError> {
        self.insert(Entry::Null(Region::null(pd)))
    }

    /// Re-registers a region with other memory, another protection domain, or other rights. Returns its keys and the
    /// region as it was before.
    ///
    /// The keys stay if the memory and its addresses do, as with Linux rxe and mlx5: programs hand out the rkey
    /// before they extend its rights. If the memory changes, the keys change: a request in flight that names the old
    /// key must not reach the new memory.
    ///
    /// # Errors
    ///
    /// [`RegisterError`]; the region is as it was then.
    pub fn reregister(&mut self, key: u32, change: Change) -> Result<(Keys, Region), RegisterError> {
        let index = self.free_of_windows(key)?;
        let (new, moved) = match self.slots.get(index).map(|slot| &slot.entry) {
            Some(Entry::Region(region)) => region.changed(change)?,
            _ => return Err(RegisterError::Null),
        };
        let unknown = RegisterError::UnknownKey { key };
        if !moved {
            let Some(Entry::Region(region)) = self.slots.get_mut(index).map(|slot| &mut slot.entry) else {
                return Err(unknown);
            };
            return Ok((key.into(), std::mem::replace(region, new)));
        }
        let old = self.remove(key).ok_or(unknown)?;
        // The slot just freed leaves room.
        Ok((self.insert(Entry::Region(new))?, old))
    }

    /// Removes the region of `key` and returns it; dropping it may free its memory.
    ///
    /// # Errors
    ///
    /// [`RegisterError::UnknownKey`], and [`RegisterError::WindowsBound`] while memory windows are bound to it.
    pub fn deregister(&mut self, key: u32) -> Result<Region, RegisterError> {
        self.free_of_windows(key)?;
        self.remove(key).ok_or(RegisterError::UnknownKey { key })
    }

    /// Unbinds the memory windows of the region of `key`, removes the region and returns it; `None` if the region
    /// does not exist.
    pub fn remove(&mut self, key: u32) -> Option<Region> {
        self.get(key)?;
        let index = self.slots.index(key)?;
        self.unbind_all_from(index);
        let (Entry::Region(region) | Entry::Null(region)) = self.slots.remove(index)? else { return None };
        self.regions -= 1;
        Some(region)
    }

    /// The region of `key`.
    #[must_use]
    pub fn get(&self, key: u32) -> Option<&Region> {
        match &self.slots.find(key)?.entry {
            Entry::Region(region) | Entry::Null(region) => Some(region),
            _ => None,
        }
    }

    /// All regions with their keys, in an arbitrary but repeatable order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.slots.iter().filter_map(|(key, slot)| match &slot.entry {
            Entry::Region(region) | Entry::Null(region) => Some((key, region)),
            _ => None,
        })
    }

    /// The number of regions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regions as usize
    }

    /// Whether the table has no regions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions == 0
    }

    /// The largest number of regions, and of windows.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.max
    }

    /// The memory that the table itself takes in bytes, without registered memory.
    #[must_use]
    pub fn footprint(&self) -> usize {
        self.slots.footprint()
    }

    /// Pages in `len` bytes at `va` of an on-demand region (`ibv_advise_mr`). Never changes a byte.
    ///
    /// # Errors
    ///
    /// [`AccessError`]: as for an access of the program, for reading or, with [`Advice::PrefetchWrite`], for writing;
    /// [`AccessError::Denied`] also if the region lacks ON_DEMAND; [`AccessError::Fault`] if the memory is not mapped
    /// or protected against that.
    pub fn advise(&self, pd: PdId, advice: Advice, lkey: u32, va: u64, len: u64) -> Result<(), AccessError> {
        if len == 0 {
            return Ok(());
        }
        let write = advice == Advice::PrefetchWrite;
        let right = if write { Access::LOCAL_WRITE } else { Access::empty() };
        // Regions ignore the queue pair, and windows are not for the program itself.
        let domain = Domain { pd, qpn: Qpn::default() };
        let addr = self.resolve(domain, lkey, va, len, right | Access::ON_DEMAND)?;
        if advice == Advice::PrefetchNoFault {
            return Ok(());
        }
        // SAFETY: the bytes lie inside a region that was registered for this.
        unsafe { copy::prefetch(addr, len as usize, write) }.map_err(|_| AccessError::Fault { va })
    }

    /// Checks an access of `len` bytes, not 0, and returns their address in this process.
    #[inline]
    fn resolve(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<usize, AccessError> {
        let Some(slot) = self.slots.find(key) else { return Err(AccessError::UnknownKey { key }) };
        let Entry::Region(region) = &slot.entry else {
            return self.resolve_other(&slot.entry, domain, key, va, len, access);
        };
        let offset = region.offset(domain.pd, key, va, len, access)?;
        // It fits an address: `Region::new` checked that the end of the region does.
        Ok(region.addr() + offset as usize)
    }

    /// Handles keys of anything but a region. Separate, so that accesses to regions are short.
    #[inline(never)]
    fn resolve_other(
        &self,
        entry: &Entry,
        domain: Domain,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<usize, AccessError> {
        match entry {
            Entry::Window(mw_type, window) => {
                self.resolve_window((*mw_type, window), domain, key, va, len, access)
            }
            Entry::Null(region) => region.offset(domain.pd, key, va, len, access).map(|_| NOWHERE),
            Entry::Region(_) | Entry::Free { .. } => Err(AccessError::UnknownKey { key }),
        }
    }

    /// The first address and the length of a region or window; `None` for other keys.
    fn extent(&self, key: u32) -> Option<(u64, u64)> {
        match &self.slots.find(key)?.entry {
            Entry::Region(region) | Entry::Null(region) => Some((region.va(), region.len())),
            Entry::Window(_, window) => self.window_range(window),
            Entry::Free { .. } => None,
        }
    }

    /// The slot of a region without bound windows.
    fn free_of_windows(&self, key: u32) -> Result<u32, RegisterError> {
        let unknown = RegisterError::UnknownKey { key };
        self.get(key).ok_or(unknown)?;
        match self.windows_of(key) {
            0 => self.slots.index(key).ok_or(unknown),
            windows => Err(RegisterError::WindowsBound { windows }),
        }
    }

    /// Puts a region into a slot.
    fn insert(&mut self, entry: Entry) -> Result<Keys, RegisterError> {
        let full = RegisterError::Full { max: self.max };
        if self.regions >= self.max {
            return Err(full);
        }
        let (_, key) = self.slots.insert(entry).ok_or(full)?;
        self.regions += 1;
        Ok(key.into())
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
        if addr == NOWHERE {
            out.fill(0);
            return Ok(());
        }
        // SAFETY: the bytes lie inside a region, whose registration allows reading.
        unsafe { copy::copy_out(addr, out) }.map_err(|_| AccessError::Fault { va })
    }

    fn read_summed(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        out: &mut [u8],
        crc: u32,
    ) -> Result<u32, AccessError> {
        if out.is_empty() {
            return Ok(crc);
        }
        let addr = self.resolve(domain, key, va, out.len() as u64, access)?;
        if addr == NOWHERE {
            out.fill(0);
            return Ok(icrc::extend(crc, out));
        }
        // SAFETY: as in `read`.
        unsafe { copy::copy_out_summed(addr, out, crc) }.map_err(|_| AccessError::Fault { va })
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
        // REMOTE_WRITE implies LOCAL_WRITE, see `Region::new` and `bindable`. A caller that names neither must not get
        // to write memory that was lent for reading.
        let named = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let access = if named { access } else { access | Access::LOCAL_WRITE };
        let addr = self.resolve(domain, key, va, data.len() as u64, access)?;
        if addr == NOWHERE {
            return Ok(());
        }
        // SAFETY: the bytes lie inside a region, which was registered for writing.
        unsafe { copy::copy_in(data, addr) }.map_err(|_| AccessError::Fault { va })
    }

    fn atomic(&mut self, domain: Domain, key: u32, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        // A null region grants peers no rights, so the bytes have an address.
        let addr = self.resolve(domain, key, va, 8, op.access())?;
        // The address in this process differs in its low bits if the region has another virtual address.
        if !va.is_multiple_of(8) || !addr.is_multiple_of(8) {
            return Err(AccessError::Misaligned { va });
        }
        // SAFETY: the bytes lie inside a region that was registered for writing, which REMOTE_ATOMIC and
        // REMOTE_WRITE require.
        unsafe { copy::fetch_update(addr, op) }.map_err(|_| AccessError::Fault { va })
    }

    /// A processor did the writes, so they are already visible to all, once ordered: only the checks remain. For a
    /// window the whole extent is the window, not the region behind it.
    fn flush(
        &self,
        domain: Domain,
        key: u32,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), AccessError> {
        match range {
            Some((va, len)) => self.check(domain, key, va, len, access)?,
            None => {
                let (va, len) = self.extent(key).unwrap_or((0, 1));
                self.resolve(domain, key, va, len, access).map(drop)?;
            }
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn bind(&mut self, domain: Domain, bind: &Bind) -> Result<(), BindError> {
        self.bind_window(domain, bind)
    }

    fn invalidate(&mut self, domain: Domain, key: u32) -> Result<(), AccessError> {
        self.invalidate_window(domain, key)
    }
}
