//! A test host: memory in vectors, and a record of everything that a queue pair reports. It shares no code with the
//! product, so that it can serve as an oracle.

use crate::ids::{PdId, Qpn};
use crate::memory::{
    Access, AccessError, AtomicOp, Bind, BindError, Domain, Host, Memory, NoSharedRecv, QpEvent, SharedRecv,
};
use crate::work::{RecvWr, Sge, WcOpcode, WcStatus, WorkCompletion};
use std::cell::Cell;
use std::collections::VecDeque;

/// Registered memory.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) key: u32,
    pub(super) pd: PdId,
    pub(super) start: u64,
    pub(super) access: Access,
    pub(super) bytes: Vec<u8>,
}

/// A report from the queue pair, in the order of the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A send work request with this ID completed.
    Sent(u64, WcStatus),
    /// A receive work request with this ID completed.
    Received(u64, WcStatus),
    Event(QpEvent),
    /// A memory window was bound to this key.
    Bound(u32),
    /// This key was revoked.
    Invalidated(u32),
}

/// The number of the host's shared receive queue, as named by XRC requests.
pub(super) const XRC_SRQ: u32 = 0x51;

/// A memory window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) key: u32,
    pub(super) bound_by: Option<Qpn>,
}

/// Memory, notes and a shared receive queue.
#[derive(Debug, Default)]
pub(super) struct TestHost {
    pub(super) regions: Vec<Region>,
    pub(super) notes: Vec<Note>,
    /// The completions that the notes summarise.
    pub(super) sends: Vec<WorkCompletion>,
    pub(super) recvs: Vec<(WorkCompletion, bool)>,
    pub(super) shared: VecDeque<RecvWr>,
    /// Protection domain of the shared receive queue, if it differs from the queue pair's.
    pub(super) shared_pd: Option<PdId>,
    /// Number of receives that completed for an XRC request.
    pub(super) xrc_completions: u32,
    pub(super) windows: Vec<Window>,
    /// Number of executed FLUSHes.
    pub(super) flushes: Cell<u32>,
}

impl TestHost {
    /// Registers `len` zeroed bytes at `start`.
    pub(super) fn register(&mut self, key: u32, start: u64, len: usize, access: Access) {
        self.regions.push(Region { key, pd: super::PD, start, access, bytes: vec![0; len] });
    }

    /// Deregisters the region.
    pub(super) fn deregister(&mut self, key: u32) {
        self.regions.retain(|r| r.key != key);
    }

    /// The bytes of a region, for direct access by the test.
    pub(super) fn bytes(&mut self, key: u32) -> &mut Vec<u8> {
        &mut self.regions.iter_mut().find(|r| r.key == key).unwrap().bytes
    }

    /// The bytes that a scatter/gather element refers to.
    pub(super) fn behind(&self, sge: Sge) -> &[u8] {
        let region = self.regions.iter().find(|r| r.key == sge.lkey).unwrap();
        let start = usize::try_from(sge.addr - region.start).unwrap();
        &region.bytes[start..start + sge.length as usize]
    }

    /// All notes since the last call.
    pub(super) fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// The index of the region and the offset in it, or the rule that forbids the access.
    fn find(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(usize, usize), AccessError> {
        let index = self.regions.iter().position(|r| r.key == key).ok_or(AccessError::UnknownKey { key })?;
        let region = &self.regions[index];
        if region.pd != domain.pd {
            return Err(AccessError::WrongDomain { key });
        }
        if !region.access.contains(access) {
            return Err(AccessError::Denied { key, missing: access - region.access });
        }
        let (start, size) = (u128::from(region.start), region.bytes.len() as u128);
        if u128::from(va) < start || u128::from(va) + u128::from(len) > start + size {
            let end = region.start + region.bytes.len() as u64;
            return Err(AccessError::OutOfRange { key, va, len, start: region.start, end });
        }
        Ok((index, usize::try_from(va - region.start).unwrap()))
    }
}

impl Memory for TestHost {
    fn check(&self, domain: Domain, key: u32, va: u64, len: u64, access: Access) -> Result<(), AccessError> {
        if len == 0 {
            return Ok(());
        }
        self.find(domain, key, va, len, access).map(|_| ())
    }

    fn read(
        &self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        if !out.is_empty() {
            let (region, at) = self.find(domain, key, va, out.len() as u64, access)?;
            out.copy_from_slice(&self.regions[region].bytes[at..at + out.len()]);
        }
        Ok(())
    }

    fn write(
        &mut self,
        domain: Domain,
        key: u32,
        va: u64,
        access: Access,
        data: &[u8],
    ) -> Result<(), AccessError> {
        if !data.is_empty() {
            let (region, at) = self.find(domain, key, va, data.len() as u64, access)?;
            self.regions[region].bytes[at..at + data.len()].copy_from_slice(data);
        }
        Ok(())
    }

    fn atomic(&mut self, domain: Domain, key: u32, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let (region, at) = self.find(domain, key, va, 8, op.access())?;
        if !va.is_multiple_of(8) {
            return Err(AccessError::Misaligned { va });
        }
        let place = &mut self.regions[region].bytes[at..at + 8];
        let old = u64::from_ne_bytes((&*place).try_into().unwrap());
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            AtomicOp::Store { value } => value,
        };
        place.copy_from_slice(&new.to_ne_bytes());
        Ok(old)
    }

    fn flush(
        &self,
        domain: Domain,
        key: u32,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), AccessError> {
        let Some((va, len)) = range else {
            let region = self.regions.iter().find(|r| r.key == key).ok_or(AccessError::UnknownKey { key })?;
            self.check(domain, key, region.start, region.bytes.len() as u64, access)?;
            self.flushes.set(self.flushes.get() + 1);
            return Ok(());
        };
        self.check(domain, key, va, len, access)?;
        self.flushes.set(self.flushes.get() + 1);
        Ok(())
    }

    fn bind(&mut self, domain: Domain, bind: &Bind) -> Result<(), BindError> {
        let Some(window) = self.windows.iter_mut().find(|w| w.key == bind.window) else {
            return Err(BindError::NoWindow { key: bind.window });
        };
        (window.key, window.bound_by) = (bind.key, Some(domain.qpn));
        self.notes.push(Note::Bound(bind.key));
        Ok(())
    }

    fn invalidate(&mut self, domain: Domain, key: u32) -> Result<(), AccessError> {
        let window = self.windows.iter_mut().find(|w| w.key == key);
        let window = window.ok_or(AccessError::UnknownKey { key })?;
        if window.bound_by != Some(domain.qpn) {
            return Err(AccessError::WrongQueuePair { key });
        }
        window.bound_by = None;
        self.notes.push(Note::Invalidated(key));
        Ok(())
    }
}

impl Host for TestHost {
    fn complete_send(&mut self, completion: WorkCompletion) {
        assert_eq!(completion.qpn, super::OURS, "{completion:?}");
        self.notes.push(Note::Sent(completion.wr_id, completion.status));
        self.sends.push(completion);
    }

    fn complete_recv(&mut self, xrc_srq: Option<u32>, completion: WorkCompletion, solicited: bool) {
        // A program that serves many queue pairs with one shared queue identifies a failed receive by these fields
        // alone.
        let received = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
        assert!(received && completion.qpn == super::OURS, "{completion:?}");
        self.xrc_completions += u32::from(xrc_srq.is_some());
        self.notes.push(Note::Received(completion.wr_id, completion.status));
        self.recvs.push((completion, solicited));
    }

    fn event(&mut self, qpn: Qpn, event: QpEvent) {
        assert_eq!(qpn, super::OURS);
        self.notes.push(Note::Event(event));
    }

    fn take_shared_recv(&mut self, xrc_srq: Option<u32>) -> Result<SharedRecv, NoSharedRecv> {
        if xrc_srq.is_some_and(|srqn| srqn != XRC_SRQ) {
            return Err(NoSharedRecv::Unknown);
        }
        let wr = self.shared.pop_front().ok_or(NoSharedRecv::Empty)?;
        Ok(SharedRecv { wr, pd: self.shared_pd.unwrap_or(super::PD) })
    }

    fn xrc_pd(&self, xrc_srq: u32) -> Option<PdId> {
        (xrc_srq == XRC_SRQ).then_some(self.shared_pd.unwrap_or(super::PD))
    }
}
