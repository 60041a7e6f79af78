//! Memory regions, and the rules of registration.

use crate::memory::UserMemory;
use qp::{Access, AccessError, PdId};
use thiserror::Error;

/// The rights that peers use.
pub(super) const REMOTE: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// The remote rights that change memory: they need LOCAL_WRITE (IBTA 11.2.8.2, and C10-74 for memory windows).
pub(super) const REMOTE_CHANGE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// Why memory cannot be registered, or a region cannot be changed or deregistered. The table is unchanged then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RegisterError {
    /// The end of the region is not a valid address.
    #[error("{len} bytes at {addr:#x} reach beyond the address space")]
    Overflow {
        /// First address, in the program or as peers name it.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Peers may write only where the device itself may (both IBTA 11.2.8.2 and the kernel require this).
    #[error("the right {remote} also needs LOCAL_WRITE")]
    NeedsLocalWrite {
        /// The rights that need LOCAL_WRITE.
        remote: Access,
    },
    /// Ordinary memory does not survive a loss of power, so the device cannot promise persistence (IBTA annex A19).
    #[error("FLUSH_PERSISTENT needs memory that survives a loss of power, and this is ordinary memory")]
    NotPersistent,
    /// Bits that are not access rights.
    #[error("{bits:#x} are no rights that this device knows")]
    UnknownRights {
        /// The unknown bits.
        bits: u32,
    },
    /// A zero-based region was given a first address other than 0.
    #[error("a zero-based region begins at 0, not at {va:#x}")]
    ZeroBased {
        /// The requested address.
        va: u64,
    },
    /// The whole address space can be registered on demand only, and not as huge pages (as with verbs).
    #[error("the whole address space can only be registered with ON_DEMAND, and without HUGETLB")]
    WholeSpace,
    /// The device already holds its maximum of regions.
    #[error("the device has no room for another memory region: the maximum is {max}")]
    Full {
        /// The maximum (`max_mr` of the device).
        max: u32,
    },
    /// The device already holds its maximum of memory windows.
    #[error("the device has no room for another memory window: the maximum is {max}")]
    FullOfWindows {
        /// The maximum (`max_mw` of the device).
        max: u32,
    },
    /// No region has this key.
    #[error("key {key:#010x} names no memory region")]
    UnknownKey {
        /// The key as given.
        key: u32,
    },
    /// Memory windows are bound to the region. The memory that they open to peers must not go away, or change, while
    /// they are bound: `ibv_dereg_mr` fails then too.
    #[error("{windows} memory windows are bound to the region: unbind, invalidate or deallocate them first")]
    WindowsBound {
        /// The number of windows.
        windows: usize,
    },
    /// A null region has no memory that could be changed.
    #[error("a null region cannot be registered anew")]
    Null,
    /// A re-registration that changes nothing, as with the kernel.
    #[error("nothing to change: name memory, a protection domain or rights")]
    NothingToChange,
}

/// The keys of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Keys {
    /// For the program's own work requests.
    pub lkey: u32,
    /// For peers. The same number as `lkey`, whatever the rights: a region that grants peers no rights today may do
    /// so after re-registration.
    pub rkey: u32,
}

impl From<u32> for Keys {
    fn from(key: u32) -> Self {
        Self { lkey: key, rkey: key }
    }
}

/// The changes of a re-registration (`ibv_rereg_mr`); fields that are `None` stay.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Other memory.
    pub memory: Option<UserMemory>,
    /// With the memory: its first address for work requests and peers.
    pub va: Option<u64>,
    /// Another protection domain.
    pub pd: Option<PdId>,
    /// Other rights.
    pub access: Option<Access>,
}

/// A registered piece of memory.
#[derive(Clone, Debug)]
pub struct Region {
    memory: UserMemory,
    va: u64,
    pd: PdId,
    access: Access,
}

impl Region {
    /// A region of `memory`, addressed from `va` on; without `va`, by its own addresses, or from 0 on if `access` has
    /// `ZERO_BASED`.
    pub(super) fn new(
        pd: PdId,
        memory: UserMemory,
        va: Option<u64>,
        access: Access,
    ) -> Result<Self, RegisterError> {
        let zero_based = access.contains(Access::ZERO_BASED);
        let va = va.unwrap_or(if zero_based { 0 } else { memory.addr() as u64 });
        let len = memory.len();
        // The process has as many addresses as its processor has; work requests and peers have 64 bits of them.
        for (start, last) in [(memory.addr() as u64, usize::MAX as u64), (va, u64::MAX)] {
            if start.checked_add(len).is_none_or(|end| end > last) {
                return Err(RegisterError::Overflow { addr: start, len });
            }
        }
        if zero_based && va != 0 {
            return Err(RegisterError::ZeroBased { va });
        }
        check_rights(access)?;
        if memory.is_whole() && (!access.contains(Access::ON_DEMAND) || access.contains(Access::HUGETLB)) {
            return Err(RegisterError::WholeSpace);
        }
        Ok(Self { memory, va, pd, access })
    }

    /// The region without memory: all addresses, for the program itself only (`ibv_alloc_null_mr`).
    pub(super) fn null(pd: PdId) -> Self {
        Self { memory: UserMemory::none(), va: 0, pd, access: Access::LOCAL_WRITE }
    }

    /// Returns the region after `change`, and whether its addresses then refer to other memory.
    pub(super) fn changed(&self, change: Change) -> Result<(Self, bool), RegisterError> {
        if change.memory.is_none() && change.pd.is_none() && change.access.is_none() {
            return Err(RegisterError::NothingToChange);
        }
        let access = change.access.unwrap_or(self.access);
        let turned = (access ^ self.access).contains(Access::ZERO_BASED);
        let moved = change.memory.is_some() || turned;
        let va = if moved { change.va } else { Some(self.va) };
        let memory = change.memory.unwrap_or_else(|| self.memory.clone());
        Ok((Self::new(change.pd.unwrap_or(self.pd), memory, va, access)?, moved))
    }

    /// First address for work requests and peers: 0 for zero-based regions.
    #[must_use]
    pub fn va(&self) -> u64 {
        self.va
    }

    /// First address in this process.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.memory.addr()
    }

    /// Length in bytes. A region of 0 bytes serves operations without data.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.memory.len()
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

    /// Checks an access of `len` bytes at `va` under `key`, and returns its offset in the region.
    ///
    /// The order of the checks is: protection domain, rights, range. Reading by the program itself needs no right, so
    /// `access` may be empty.
    #[inline]
    pub(super) fn offset(
        &self,
        pd: PdId,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<u64, AccessError> {
        if self.pd != pd {
            return Err(AccessError::WrongDomain { key });
        }
        let missing = access - self.access;
        if !missing.is_empty() {
            return Err(AccessError::Denied { key, missing });
        }
        let size = self.memory.len();
        within(self.va, size, va, len).ok_or(AccessError::OutOfRange {
            key,
            va,
            len,
            start: self.va,
            end: self.va + size,
        })
    }
}

/// The offset from `start` of the `len` bytes at `va`, if all of them are among the `size` bytes from there.
#[inline]
pub(super) fn within(start: u64, size: u64, va: u64, len: u64) -> Option<u64> {
    let offset = va.checked_sub(start)?;
    let end = offset.checked_add(len)?;
    (end <= size).then_some(offset)
}

fn check_rights(access: Access) -> Result<(), RegisterError> {
    let unknown = access.difference(Access::all());
    if !unknown.is_empty() {
        return Err(RegisterError::UnknownRights { bits: unknown.bits() });
    }
    if access.contains(Access::FLUSH_PERSISTENT) {
        return Err(RegisterError::NotPersistent);
    }
    let remote = access & REMOTE_CHANGE;
    if !remote.is_empty() && !access.contains(Access::LOCAL_WRITE) {
        return Err(RegisterError::NeedsLocalWrite { remote });
    }
    Ok(())
}
