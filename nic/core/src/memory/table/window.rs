//! Memory windows: parts of regions that work requests open to peers and close again (IBTA 10.6.7.2).
//!
//! A window of **type 1** can be bound any number of times, also while it is bound; binding it to no bytes closes it.
//! It serves every queue pair of its protection domain.
//!
//! A window of **type 2** serves the one queue pair that bound it. That queue pair or its peer closes it by
//! invalidating it, and it must be closed before it is bound again. Here it is of subtype 2B, as with Linux rxe and
//! mlx5: the protection domain is checked as well as the queue pair. When the queue pair is destroyed or reset the
//! window is unbound: otherwise a later queue pair of the same number, or the next peer of the same queue pair, would
//! inherit access that was opened for another peer.
//!
//! All queue pairs and regions know their windows by lists that run through the slots, so closing all windows of one
//! takes time in proportion to their number.

use super::RegionTable;
use super::region::{REMOTE, REMOTE_CHANGE, Region, RegisterError, within};
use super::slots::{Entry, NONE, Slot};
use qp::memory::{Bind, BindError};
use qp::{Access, AccessError, Domain, PdId, Qpn};

/// The kind of a memory window; the numbers are those of the verbs (`IBV_MW_TYPE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
#[doc(alias = "ibv_mw_type")]
pub enum MwType {
    /// For all queue pairs of the protection domain; unbound by binding it to no bytes.
    #[doc(alias = "IBV_MW_TYPE_1")]
    Type1 = 1,
    /// For the queue pair that bound it; unbound by invalidating it. Of subtype 2B.
    #[doc(alias = "IBV_MW_TYPE_2")]
    Type2 = 2,
}

impl MwType {
    /// The type with this number; `None` if the number is unknown.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Type1),
            2 => Some(Self::Type2),
            _ => None,
        }
    }
}

/// The neighbours of a window in a list.
#[derive(Clone, Copy, Debug)]
struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    const LOOSE: Self = Self { prev: NONE, next: NONE };
}

/// A list of windows: those of one region, and those of type 2 that one queue pair bound.
#[derive(Clone, Copy, Debug)]
enum List {
    Region(u32),
    QueuePair(Qpn),
}

/// A memory window.
#[derive(Debug)]
pub(super) struct Window {
    /// The offset in the region.
    offset: u64,
    /// Its length in bytes; 0 while it is not bound.
    len: u64,
    pd: PdId,
    access: Access,
    /// The slot of the region.
    region: u32,
    /// The queue pair that bound it, for type 2.
    qpn: Qpn,
    of_region: Links,
    of_qp: Links,
}

impl Window {
    fn new(pd: PdId) -> Self {
        Self {
            offset: 0,
            len: 0,
            pd,
            access: Access::empty(),
            region: NONE,
            qpn: Qpn::default(),
            of_region: Links::LOOSE,
            of_qp: Links::LOOSE,
        }
    }

    /// Its first address for peers.
    fn va(&self, region: &Region) -> u64 {
        if self.access.contains(Access::ZERO_BASED) { 0 } else { region.va() + self.offset }
    }
}

impl RegionTable {
    /// Allocates a memory window, bound to nothing, and returns its key.
    ///
    /// # Errors
    ///
    /// [`RegisterError::FullOfWindows`].
    pub fn alloc_mw(&mut self, pd: PdId, mw_type: MwType) -> Result<u32, RegisterError> {
        let full = RegisterError::FullOfWindows { max: self.max };
        if self.windows >= self.max {
            return Err(full);
        }
        let (_, key) = self.slots.insert(Entry::Window(mw_type, Window::new(pd))).ok_or(full)?;
        self.windows += 1;
        Ok(key)
    }

    /// Deallocates a memory window, bound or not. The upper 24 bits of `key`, which never change, identify it.
    /// Returns whether it existed.
    pub fn dealloc_mw(&mut self, key: u32) -> bool {
        let index = self.slots.family(key);
        if self.window(index).is_none() {
            return false;
        }
        self.unbind(index);
        self.slots.remove(index);
        self.windows -= 1;
        true
    }

    /// The current key of a memory window. The upper 24 bits of `key` identify it.
    #[must_use]
    pub fn window_key(&self, key: u32) -> Option<u32> {
        let index = self.slots.family(key);
        self.window(index)?;
        self.slots.key(index)
    }

    /// The number of memory windows.
    #[must_use]
    pub fn windows(&self) -> usize {
        self.windows as usize
    }

    /// How many memory windows are bound to the region of `key`.
    #[must_use]
    pub fn windows_of(&self, key: u32) -> usize {
        let mut next = self.slots.find(key).map_or(NONE, |slot| slot.windows);
        let mut count = 0;
        while let Some((_, window)) = self.window(next) {
            count += 1;
            next = window.of_region.next;
        }
        count
    }

    /// Unbinds the memory windows of type 2 that a queue pair bound. Any queue pair can bind them again.
    pub fn unbind_all_of(&mut self, qpn: Qpn) {
        while self.unbind(self.first(List::QueuePair(qpn))) {}
    }

    /// Unbinds the memory windows of a region.
    pub(super) fn unbind_all_from(&mut self, region: u32) {
        while self.unbind(self.first(List::Region(region))) {}
    }

    /// Checks an access through a memory window, of `len` bytes, not 0, and returns their address in this process.
    ///
    /// The order of the checks is: protection domain, whether it is bound, rights, queue pair, range. Errors name the
    /// window, not the region behind it.
    pub(super) fn resolve_window(
        &self,
        (mw_type, window): (MwType, &Window),
        domain: Domain,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<usize, AccessError> {
        if !access.intersects(REMOTE) {
            return Err(AccessError::RemoteOnly { key });
        }
        // IBTA C10-76.2.1.
        if window.pd != domain.pd {
            return Err(AccessError::WrongDomain { key });
        }
        let region = self.region_at(window.region).filter(|_| window.len > 0);
        let region = region.ok_or(AccessError::Unbound { key })?;
        // IBTA C10-77.
        let missing = access - window.access;
        if !missing.is_empty() {
            return Err(AccessError::Denied { key, missing });
        }
        // IBTA o10-37.2.43.
        if mw_type == MwType::Type2 && window.qpn != domain.qpn {
            return Err(AccessError::WrongQueuePair { key });
        }
        let start = window.va(region);
        let offset = within(start, window.len, va, len).ok_or(AccessError::OutOfRange {
            key,
            va,
            len,
            start,
            end: start + window.len,
        })?;
        // Both lie inside the region, whose end is an address.
        Ok(region.addr() + (window.offset + offset) as usize)
    }

    /// The addresses of a bound memory window.
    pub(super) fn window_range(&self, window: &Window) -> Option<(u64, u64)> {
        let region = self.region_at(window.region).filter(|_| window.len > 0)?;
        Some((window.va(region), window.len))
    }

    /// Binds a memory window, see [`qp::Memory::bind`]. All checks precede the first change.
    pub(super) fn bind_window(&mut self, domain: Domain, bind: &Bind) -> Result<(), BindError> {
        let no_window = BindError::NoWindow { key: bind.window };
        // By the bits that never change: the rest may have changed since the bind was posted.
        let index = self.slots.family(bind.window);
        let (mw_type, window) = self.window(index).ok_or(no_window)?;
        // IBTA C10-72.
        if window.pd != domain.pd {
            return Err(no_window);
        }
        let bound = window.len > 0;
        match mw_type {
            MwType::Type1 if bind.access.contains(Access::ZERO_BASED) => {
                return Err(BindError::ZeroBasedWindow { key: bind.window });
            }
            MwType::Type2 if bound => return Err(BindError::Bound { key: bind.window }),
            MwType::Type2 if bind.len == 0 => return Err(BindError::Empty { key: bind.window }),
            _ => {}
        }
        // Binding a window of type 1 to no bytes closes it; the region is not checked.
        let target = if bind.len == 0 { None } else { Some(self.bindable(domain.pd, bind)?) };
        self.unbind(index);
        if let Some((region, offset)) = target {
            let qpn = (mw_type == MwType::Type2).then_some(domain.qpn);
            self.open(index, region, offset, bind, qpn);
        }
        if let Some(slot) = self.slots.get_mut(index) {
            // The consumer chooses the low byte of the key, and the device keeps the rest (IBTA 10.6.7.2).
            slot.tag = bind.key as u8;
        }
        Ok(())
    }

    /// Revokes the key of a window, see [`qp::Memory::invalidate`].
    pub(super) fn invalidate_window(&mut self, domain: Domain, key: u32) -> Result<(), AccessError> {
        let unknown = AccessError::UnknownKey { key };
        let index = self.slots.index(key).ok_or(unknown)?;
        let (pd, window) = match self.slots.get(index).map(|slot| &slot.entry) {
            // IBTA o10-37.2.13.
            Some(Entry::Region(region) | Entry::Null(region)) => (region.pd(), None),
            Some(Entry::Window(MwType::Type1, window)) => (window.pd, None),
            Some(Entry::Window(MwType::Type2, window)) => (window.pd, Some(window)),
            _ => return Err(unknown),
        };
        if pd != domain.pd {
            return Err(AccessError::WrongDomain { key });
        }
        // IBTA o10-37.2.26.
        let window = window.ok_or(AccessError::NotInvalidatable { key })?;
        if window.len == 0 {
            return Err(AccessError::Unbound { key });
        }
        if window.qpn != domain.qpn {
            return Err(AccessError::WrongQueuePair { key });
        }
        self.unbind(index);
        Ok(())
    }

    /// The slot of the region to which a window is to be bound, and the window's offset in it.
    fn bindable(&self, pd: PdId, bind: &Bind) -> Result<(u32, u64), BindError> {
        let lkey = bind.lkey;
        let index = self.slots.index(lkey).ok_or(AccessError::UnknownKey { key: lkey })?;
        let region = match self.slots.get(index).map(|slot| &slot.entry) {
            Some(Entry::Region(region) | Entry::Null(region)) => region,
            Some(Entry::Window(..)) => return Err(BindError::NotARegion { lkey }),
            _ => return Err(AccessError::UnknownKey { key: lkey }.into()),
        };
        // IBTA C10-72: the queue pair, the window and the region share one protection domain.
        if region.pd() != pd {
            return Err(AccessError::WrongDomain { key: lkey }.into());
        }
        if region.access().contains(Access::ZERO_BASED) {
            return Err(BindError::ZeroBasedRegion { lkey });
        }
        // IBTA C10-73.
        if !region.access().contains(Access::MW_BIND) {
            return Err(BindError::NotBindable { lkey });
        }
        // IBTA C10-74. Reading needs no right of the region: the device may always read.
        let changes = bind.access & REMOTE_CHANGE;
        let flushes = bind.access & (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
        let needed = if changes.is_empty() { flushes } else { flushes | Access::LOCAL_WRITE };
        let missing = needed - region.access();
        if !missing.is_empty() {
            let access = bind.access & REMOTE;
            return Err(BindError::NeedsRight { lkey, access, missing });
        }
        // IBTA C10-75, for zero-based windows too.
        let offset = region.offset(pd, lkey, bind.addr, bind.len, Access::empty())?;
        Ok((index, offset))
    }

    /// Opens a window that is closed.
    fn open(&mut self, index: u32, region: u32, offset: u64, bind: &Bind, qpn: Option<Qpn>) {
        let Some(window) = self.window_mut(index) else { return };
        (window.offset, window.len, window.region) = (offset, bind.len, region);
        window.access = bind.access & (REMOTE | Access::ZERO_BASED);
        window.qpn = qpn.unwrap_or_default();
        self.enlist(List::Region(region), index);
        if let Some(qpn) = qpn {
            self.enlist(List::QueuePair(qpn), index);
        }
    }

    /// Closes a window; false if it does not exist or is already closed.
    fn unbind(&mut self, index: u32) -> bool {
        let Some((mw_type, window)) = self.window(index).filter(|(_, window)| window.len > 0) else {
            return false;
        };
        let (region, qpn) = (window.region, window.qpn);
        self.strike(List::Region(region), index);
        if mw_type == MwType::Type2 {
            self.strike(List::QueuePair(qpn), index);
        }
        if let Some(window) = self.window_mut(index) {
            (window.len, window.region, window.access) = (0, NONE, Access::empty());
        }
        true
    }

    fn region_at(&self, index: u32) -> Option<&Region> {
        match self.slots.get(index)?.entry {
            Entry::Region(ref region) => Some(region),
            _ => None,
        }
    }

    fn window(&self, index: u32) -> Option<(MwType, &Window)> {
        match &self.slots.get(index)?.entry {
            Entry::Window(mw_type, window) => Some((*mw_type, window)),
            _ => None,
        }
    }

    fn window_mut(&mut self, index: u32) -> Option<&mut Window> {
        match self.slots.get_mut(index) {
            Some(Slot { entry: Entry::Window(_, window), .. }) => Some(window),
            _ => None,
        }
    }

    fn links(&mut self, list: List, index: u32) -> Option<&mut Links> {
        let window = self.window_mut(index)?;
        Some(match list {
            List::Region(_) => &mut window.of_region,
            List::QueuePair(_) => &mut window.of_qp,
        })
    }

    fn first(&self, list: List) -> u32 {
        match list {
            List::Region(region) => self.slots.get(region).map_or(NONE, |slot| slot.windows),
            List::QueuePair(qpn) => self.bound_by.get(&qpn).copied().unwrap_or(NONE),
        }
    }

    fn set_first(&mut self, list: List, first: u32) {
        match list {
            List::Region(region) => {
                if let Some(slot) = self.slots.get_mut(region) {
                    slot.windows = first;
                }
            }
            List::QueuePair(qpn) if first == NONE => drop(self.bound_by.remove(&qpn)),
            List::QueuePair(qpn) => drop(self.bound_by.insert(qpn, first)),
        }
    }

    /// Puts a window at the front of a list.
    fn enlist(&mut self, list: List, index: u32) {
        let next = self.first(list);
        if let Some(links) = self.links(list, next) {
            links.prev = index;
        }
        if let Some(links) = self.links(list, index) {
            *links = Links { prev: NONE, next };
        }
        self.set_first(list, index);
    }

    /// Removes a window from a list.
    fn strike(&mut self, list: List, index: u32) {
        let Some(links) = self.links(list, index) else { return };
        let Links { prev, next } = std::mem::replace(links, Links::LOOSE);
        match self.links(list, prev) {
            Some(links) => links.next = next,
            None => self.set_first(list, next),
        }
        if let Some(links) = self.links(list, next) {
            links.prev = prev;
        }
    }
}
