//! What was posted, and what may come of it; and the errors that calls may give.

use rnic_dropin::abi::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::io;

/// Where a work request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// A queue pair: its address, and its number.
    Qp(*mut ibv_qp, u32),
    /// A shared receive queue.
    Srq(*mut ibv_srq),
    /// A shared receive queue that is gone: completions that it left behind may still be read.
    Gone,
}

/// Work requests that may complete, each once.
#[derive(Default)]
pub(super) struct Book {
    posted: BTreeMap<u64, (Owner, bool)>,
    next: u64,
    /// Queues that may have had more to take than they have room for.
    tight: BTreeSet<*mut ibv_cq>,
    /// Completions so far, by status: none, if nothing ever flows.
    pub(super) seen: BTreeMap<ibv_wc_status, u32>,
}

impl Book {
    /// A number that no other work request has.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// It was posted. `owed`: it must complete, whatever happens.
    pub(super) fn post(&mut self, wr_id: u64, owner: Owner, owed: bool) {
        self.posted.insert(wr_id, (owner, owed));
    }

    /// What a completion may be of.
    pub(super) fn complete(&mut self, wr_id: u64, status: u32, qpn: u32) {
        let of = self.posted.remove(&wr_id);
        let Some((owner, _)) = of else { panic!("a completion of nothing that is posted: {wr_id}") };
        assert!(status <= IBV_WC_TM_RNDV_INCOMPLETE, "status {status}");
        *self.seen.entry(status).or_default() += 1;
        if let Owner::Qp(_, ours) = owner {
            assert_eq!(qpn, ours, "a completion of another queue pair");
        }
    }

    /// The queue pair was reset or destroyed: nothing of it completes any more.
    pub(super) fn forget(&mut self, qp: *mut ibv_qp) {
        self.posted.retain(|_, (owner, _)| !matches!(owner, Owner::Qp(of, _) if *of == qp));
    }

    /// The shared receive queue was destroyed.
    pub(super) fn orphan(&mut self, srq: *mut ibv_srq) {
        for (owner, _) in self.posted.values_mut().filter(|(owner, _)| *owner == Owner::Srq(srq)) {
            *owner = Owner::Gone;
        }
    }

    /// A queue of this size takes completions, from now on or of more than before.
    pub(super) fn watch(&mut self, cq: *mut ibv_cq, cqe: c_int) {
        if self.posted.len() > usize::try_from(cqe).unwrap_or(0) {
            self.tight.insert(cq);
        }
    }

    /// Whether a queue has always had room.
    pub(super) fn had_room(&self, cq: *mut ibv_cq) -> bool {
        !self.tight.contains(&cq)
    }

    /// The queue is gone; another may get its address.
    pub(super) fn forget_queue(&mut self, cq: *mut ibv_cq) {
        self.tight.remove(&cq);
    }

    /// What a queue pair in ERR has left.
    pub(super) fn owed(&self, qp: *mut ibv_qp) -> Vec<u64> {
        let ours = |owner: &Owner| matches!(owner, Owner::Qp(of, _) if *of == qp);
        let owed = self.posted.iter().filter(|(_, (owner, owed))| *owed && ours(owner));
        owed.map(|(wr_id, _)| *wr_id).collect()
    }
}

/// What the manual pages of rdma-core name for calls that make something: a wrong argument, no memory, something that
/// the device does not have.
pub(super) const MAKE: &[c_int] = &[libc::EINVAL, libc::ENOMEM, libc::EOPNOTSUPP];
/// Likewise for registration: there is also memory that is not there.
pub(super) const REGISTER: &[c_int] = &[libc::EINVAL, libc::ENOMEM, libc::EOPNOTSUPP, libc::EFAULT];
/// For calls that change something.
pub(super) const CHANGE: &[c_int] = &[libc::EINVAL, libc::ENOMEM, libc::EOPNOTSUPP];
/// For calls that end something: somebody uses it; or there is none, where NULL is taken.
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

/// Whether a call that returns -1 with `errno` succeeded.
#[track_caller]
pub(super) fn went(code: c_int, allowed: &[c_int]) -> bool {
    let errno = errno();
    assert!(code == 0 || code == -1 && allowed.contains(&errno), "{code} with error {errno}");
    code == 0
}

/// What a call made that returns NULL with `errno` if it cannot.
#[track_caller]
pub(super) fn made<T>(pointer: *mut T, allowed: &[c_int]) -> Option<*mut T> {
    let errno = errno();
    assert!(!pointer.is_null() || allowed.contains(&errno), "error {errno}");
    (!pointer.is_null()).then_some(pointer)
}
