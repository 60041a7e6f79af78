//! Memory and completions of our side.

use qp::memory::{AtomicOp, Bind, BindError, NoSharedRecv, QpEvent, SharedRecv};
use qp::{Access, AccessError, Domain, Host, Memory, PdId, Qpn, WcStatus, WorkCompletion};
use std::collections::{BTreeMap, BTreeSet};

/// Memory by key, one byte per address: only what the packets of a capture touch.
#[derive(Default)]
pub(crate) struct ReplayHost {
    regions: BTreeMap<u32, BTreeMap<u64, u8>>,
    /// Keys that were invalidated.
    invalid: BTreeSet<u32>,
    pub(crate) sends: Vec<(u64, WcStatus)>,
    pub(crate) recvs: Vec<WorkCompletion>,
}

impl ReplayHost {
    /// Makes a range accessible; bytes without a value are zero.
    pub(crate) fn map(&mut self, key: u32, va: u64, len: usize) {
        let region = self.regions.entry(key).or_default();
        (va..va + len as u64).for_each(|at| _ = region.entry(at).or_insert(0));
    }

    /// Stores bytes in memory.
    pub(crate) fn store(&mut self, key: u32, va: u64, data: &[u8]) {
        self.regions.entry(key).or_default().extend((va..).zip(data.iter().copied()));
    }

    /// Loads bytes from memory.
    pub(crate) fn load(&self, key: u32, va: u64, len: usize) -> Option<Vec<u8>> {
        let region = self.regions.get(&key)?;
        (va..va + len as u64).map(|at| region.get(&at).copied()).collect()
    }

    fn get(&self, key: u32, va: u64, len: usize) -> Result<Vec<u8>, AccessError> {
        // The captures contain accesses that succeed, and accesses with an invalid key.
        let valid = Some(key).filter(|key| !self.invalid.contains(key));
        let found = || valid.and_then(|key| self.load(key, va, len)).ok_or(AccessError::UnknownKey { key });
        if len == 0 { Ok(Vec::new()) } else { found() }
    }
}

impl Memory for ReplayHost {
    fn check(&self, _: Domain, key: u32, va: u64, len: u64, _: Access) -> Result<(), AccessError> {
        self.get(key, va, usize::try_from(len).unwrap()).map(|_| ())
    }

    fn read(&self, _: Domain, key: u32, va: u64, _: Access, out: &mut [u8]) -> Result<(), AccessError> {
        out.copy_from_slice(&self.get(key, va, out.len())?);
        Ok(())
    }

    fn write(&mut self, _: Domain, key: u32, va: u64, _: Access, data: &[u8]) -> Result<(), AccessError> {
        self.get(key, va, data.len())?;
        self.store(key, va, data);
        Ok(())
    }

    fn atomic(&mut self, _: Domain, key: u32, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let old = u64::from_ne_bytes(self.get(key, va, 8)?.try_into().unwrap());
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } => {
                if old == compare {
                    swap
                } else {
                    old
                }
            }
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            AtomicOp::Store { value } => value,
        };
        self.store(key, va, &new.to_ne_bytes());
        Ok(old)
    }

    fn flush(&self, _: Domain, key: u32, _: Option<(u64, u64)>, _: Access) -> Result<(), AccessError> {
        // No capture contains one.
        Err(AccessError::UnknownKey { key })
    }

    fn bind(&mut self, _: Domain, bind: &Bind) -> Result<(), BindError> {
        Err(BindError::NoWindow { key: bind.window })
    }

    fn invalidate(&mut self, _: Domain, key: u32) -> Result<(), AccessError> {
        let is_valid = self.regions.contains_key(&key) && self.invalid.insert(key);
        if is_valid { Ok(()) } else { Err(AccessError::NotInvalidatable { key }) }
    }
}

impl Host for ReplayHost {
    fn complete_send(&mut self, completion: WorkCompletion) {
        self.sends.push((completion.wr_id, completion.status));
    }

    fn complete_recv(&mut self, _: Option<u32>, completion: WorkCompletion, _: bool) {
        self.recvs.push(completion);
    }

    fn event(&mut self, _: Qpn, _: QpEvent) {}

    fn take_shared_recv(&mut self, _: Option<u32>) -> Result<SharedRecv, NoSharedRecv> {
        Err(NoSharedRecv::Unknown)
    }

    fn xrc_pd(&self, _: u32) -> Option<PdId> {
        None
    }
}
