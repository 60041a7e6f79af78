//! The posted work requests and their possible outcomes; and the errors that calls may return.

use rnic_dropin::abi::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::io;

/// The queue that a work request was posted to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// A queue pair: its address, and its number.
    Qp(*mut ibv_qp, u32),
    /// A shared receive queue.
    Srq(*mut ibv_srq),
    /// A destroyed shared receive queue: completions that it left may still be polled.
    Gone,
}

/// Work requests that may complete, each once.
#[derive(Default)]
pub(super) struct Book {
    posted: BTreeMap<u64, (Owner, bool)>,
    next: u64,
    /// Completion queues that may have overrun.
    tight: BTreeSet<*mut ibv_cq>,
    /// Number of completions so far, by status: empty if nothing ever flows.
    pub(super) seen: BTreeMap<ibv_wc_status, u32>,
}

impl Book {
    /// A unique work request ID.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Records a posted work request. `owed`: it must complete in any case.
    pub(super) fn post(&mut self, wr_id: u64, owner: Owner, owed: bool) {
        self.posted.insert(wr_id, (owner, owed));
    }

    /// Checks a completion against the posted work requests.
    pub(super) fn complete(&mut self, wr_id: u64, status: u32, qpn: u32) {
        let of = self.posted.remove(&wr_id);
        let Some((owner, _)) = of else { panic!("a completion of nothing that is posted: {wr_id}") };
        assert!(status <= IBV_WC_TM_RNDV_INCOMPLETE, "status {status}");
        *self.seen.entry(status).or_default() += 1;
        if let Owner::Qp(_, ours) = owner {
            assert_eq!(qpn, ours, "a completion of another queue pair");
        }
    }

    /// The queue pair was reset or destroyed: its work requests complete no more.
    pub(super) fn forget(&mut self, qp: *mut ibv_qp) {
        self.posted.retain(|_, (owner, _)| !matches!(owner, Owner::Qp(of, _) if *of == qp));
    }

    /// The shared receive queue was destroyed.
    pub(super) fn orphan(&mut self, srq: *mut ibv_srq) {
        for (owner, _) in self.posted.values_mut().filter(|(owner, _)| *owner == Owner::Srq(srq)) {
            *owner = Owner::Gone;
        }
    }

    /// A queue of this size receives completions, either newly or from more work requests than before.
    pub(super) fn watch(&mut self, cq: *mut ibv_cq, cqe: c_int) {
        if self.posted.len() > usize::try_from(cqe).unwrap_or(0) {
            self.tight.insert(cq);
        }
    }

    /// Whether a queue has always had room.
    pub(super) fn had_room(&self, cq: *mut ibv_cq) -> bool {
        !self.tight.contains(&cq)
    }

    /// The queue was destroyed; another may get its address.
    pub(super) fn forget_queue(&mut self, cq: *mut ibv_cq) {
        self.tight.remove(&cq);
    }

    /// The outstanding work requests of a queue pair in ERR.
    pub(super) fn owed(&self, qp: *mut ibv_qp) -> Vec<u64> {
        let ours = |owner: &Owner| matches!(owner, Owner::Qp(of, _) if *of == qp);
        let owed = self.posted.iter().filter(|(_, (owner, owed))| *owed && ours(owner));
        owed.map(|(wr_id, _)| *wr_id).collect()
    }
}

/// Errors that the manual pages of rdma-core name for calls that create something: invalid argument, out of memory,
/// not supported by the device.
pub(super) const MAKE: &[c_int] = &[libc::EINVAL, libc::ENOMEM, libc::EOPNOTSUPP];
/// The same for registration, plus memory that is not mapped.
pub(super) const REGISTER: &[c_int] = &[libc::EINVAL, libc::ENOMEM, libc::EOPNOTSUPP, libc::EFAULT];
/// For calls that change something.
pub(super) const CHANGE: &[c_int] = &[libc::EINVAL, libc::ENOMEM, libc::EOPNOTSUPP];
/// For calls that destroy something: it is in use, or does not exist where NULL is accepted.
pub(super) const END: &[c_int] = &[libc::EBUSY, libc::EINVAL];
/// For posting: a full queue is ENOMEM.
pub(super) const POST: &[c_int] = &[libc::EINVAL, libc::ENOMEM, libc::EFAULT];

fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Whether a call that returns an error number succeeded.
#[track_caller]
pub(super) fn done(code: c_int, allowed: &[c_int]) -> bool {
    assert!(code == 0 || allowed.contains(&code), "error {code}");
    code == 0
}

/// Whether a call that returns -1 and sets `errno` succeeded.
#[track_caller]
pub(super) fn went(code: c_int, allowed: &[c_int]) -> bool {
    let errno = errno();
    assert!(code == 0 || code == -1 && allowed.contains(&errno), "{code} with error {errno}");
    code == 0
}

/// The result of a call that returns NULL and sets `errno` on failure.
#[track_caller]
pub(super) fn made<T>(pointer: *mut T, allowed: &[c_int]) -> Option<*mut T> {
    let errno = errno();
    assert!(!pointer.is_null() || allowed.contains(&errno), "error {errno}");
    (!pointer.is_null()).then_some(pointer)
}
