//! Registration of memory regions, and allocation of memory windows.
//!
//! All of this happens between two batches: no copy is in progress.

use super::{Engine, ResourceError};
use crate::memory::{Advice, Change, Keys, MwType, Region, RegisterError, UserMemory};
use qp::{Access, AccessError, PdId};

impl From<RegisterError> for ResourceError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::UnknownKey { .. } => Self::Unknown { what: "memory region" },
            RegisterError::WindowsBound { windows } => {
                Self::Busy { what: "memory region", users: windows, by: "memory windows" }
            }
            other => Self::Register(other),
        }
    }
}

impl Engine {
    /// Registers memory.
    pub(crate) fn register(
        &mut self,
        pd: PdId,
        memory: UserMemory,
        va: Option<u64>,
        access: Access,
    ) -> Result<Keys, ResourceError> {
        self.usable()?;
        self.pds.users(pd)?;
        let keys = self.host.regions.register(pd, memory, va, access)?;
        self.join(pd);
        Ok(keys)
    }

    /// Registers a null region.
    pub(crate) fn register_null(&mut self, pd: PdId) -> Result<Keys, ResourceError> {
        self.usable()?;
        self.pds.users(pd)?;
        let keys = self.host.regions.register_null(pd)?;
        self.join(pd);
        Ok(keys)
    }

    /// Reregisters a region.
    pub(crate) fn reregister(&mut self, key: u32, change: Change) -> Result<(Keys, Region), ResourceError> {
        self.usable()?;
        let pd = change.pd;
        if let Some(pd) = pd {
            self.pds.users(pd)?;
        }
        let (keys, old) = self.host.regions.reregister(key, change)?;
        if let Some(pd) = pd {
            self.join(pd);
            self.leave(old.pd());
        }
        Ok((keys, old))
    }

    /// Invalidates the key of a region, unless memory windows are bound to it.
    pub(crate) fn deregister(&mut self, key: u32) -> Result<Region, ResourceError> {
        let region = self.host.regions.deregister(key)?;
        self.leave(region.pd());
        Ok(region)
    }

    /// Invalidates the key of a region, and of the windows bound to it.
    pub(crate) fn remove_region(&mut self, key: u32) -> Option<Region> {
        let region = self.host.regions.remove(key)?;
        self.leave(region.pd());
        Some(region)
    }

    /// Allocates a memory window.
    pub(crate) fn alloc_mw(&mut self, pd: PdId, mw_type: MwType) -> Result<u32, ResourceError> {
        self.usable()?;
        self.pds.users(pd)?;
        let key = self.host.regions.alloc_mw(pd, mw_type)?;
        self.join(pd);
        Ok(key)
    }

    /// Deallocates a memory window.
    pub(crate) fn dealloc_mw(&mut self, pd: PdId, key: u32) -> Result<(), ResourceError> {
        if !self.host.regions.dealloc_mw(key) {
            return Err(ResourceError::Unknown { what: "memory window" });
        }
        self.leave(pd);
        Ok(())
    }

    /// The current key of a memory window.
    pub(crate) fn window_key(&self, key: u32) -> Option<u32> {
        self.host.regions.window_key(key)
    }

    /// Pages in memory of an on-demand region.
    pub(crate) fn advise(
        &self,
        pd: PdId,
        advice: Advice,
        lkey: u32,
        va: u64,
        len: u64,
    ) -> Result<(), AccessError> {
        self.host.regions.advise(pd, advice, lkey, va, len)
    }

    fn join(&mut self, pd: PdId) {
        if let Ok(users) = self.pds.users(pd) {
            *users += 1;
        }
    }

    fn leave(&mut self, pd: PdId) {
        if let Ok(users) = self.pds.users(pd) {
            *users = users.saturating_sub(1);
        }
    }
}
