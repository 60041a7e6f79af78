//! The copies: the only place that dereferences registered memory.
//!
//! No function here makes a reference into registered memory. On x86-64 assembly does the work, which Rust's memory
//! model does not see: a race with the application, or with another copy, yields mixed bytes and nothing worse.
#![expect(unsafe_code, reason = "touches memory that others write and unmap")]

#[cfg(any(not(target_arch = "x86_64"), test))]
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
use portable as direct;
#[cfg(target_arch = "x86_64")]
use x86_64 as direct;

#[cfg(target_arch = "x86_64")]
pub use x86_64::recovery_point;

use super::path;
use crate::platform::{self, CopyError, MemoryPath, PageError};
use qp::AtomicOp;
use qp::wire::icrc;
use thiserror::Error;

/// Registered memory could not be accessed: it is not mapped, protected, or beyond the end of a mapped file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("memory at {addr:#x} is not mapped, or protected against this access")]
pub struct Fault {
    /// The address that failed, as the processor or the kernel reports it: exact to the page at least. Where
    /// the processor reports none (a non-canonical address), the first address of the access.
    pub addr: usize,
}

/// How a program expects to use a part of an on-demand region (`IBV_ADVISE_MR_ADVICE_*`). The work is done when the
/// call returns, with or without `IBV_ADVISE_MR_FLAG_FLUSH`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_advise_mr_advice")]
pub enum Advice {
    /// The program will read it: page it in.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH")]
    Prefetch,
    /// The program will write it: page it in, and make it writable where the memory is.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE")]
    PrefetchWrite,
    /// Make pages that are already in memory known to the device: here they always are, so only the key and the range
    /// are checked.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT")]
    PrefetchNoFault,
}

/// Copies the `dst.len()` bytes at `src` into our own buffer. After a fault `dst` may be filled in part.
///
/// # Safety
///
/// The bytes at `src` are registered: the program said that the device may read them. They need not be mapped.
pub(super) unsafe fn copy_out(src: usize, dst: &mut [u8]) -> Result<(), Fault> {
    match path::path() {
        // SAFETY: passed on to the caller; faults are recovered on this path.
        MemoryPath::Direct => unsafe { direct::copy_out(src, dst) },
        // SAFETY: as above.
        MemoryPath::Blocked => path::unblocked(|| unsafe { direct::copy_out(src, dst) }),
        MemoryPath::Platform => match platform::get().copy_out(src, dst) {
            Ok(()) => Ok(()),
            Err(CopyError::Fault(fault)) => Err(fault),
            // SAFETY: passed on to the caller. A sandbox forbids the system call and the program replaced the
            // handler: a fault now takes the course that the program chose.
            Err(CopyError::Unavailable) => unsafe { direct::copy_out(src, dst) },
        },
    }
}

/// Like [`copy_out`]. Also extends the CRC-32 `crc` by the bytes copied, and returns it: in one pass where the processor
/// can, for copies that are long enough.
///
/// # Safety
///
/// As for [`copy_out`].
pub(super) unsafe fn copy_out_summed(src: usize, dst: &mut [u8], crc: u32) -> Result<u32, Fault> {
    if path::path() == MemoryPath::Direct {
        // SAFETY: passed on to the caller; faults are recovered on this path.
        return unsafe { direct::copy_out_summed(src, dst, crc) };
    }
    // SAFETY: passed on to the caller.
    unsafe { copy_out(src, dst) }?;
    Ok(icrc::extend(crc, dst))
}

/// Copies `src` to the registered bytes at `dst`. The last aligned word is stored last, as one, with release
/// order; on the kernel's path the last byte. After a fault some bytes before the fault may have been written.
///
/// # Safety
///
/// The bytes at `dst` are registered for writing: the program said that the device may write them, at any
/// time. They need not be mapped.
pub(super) unsafe fn copy_in(src: &[u8], dst: usize) -> Result<(), Fault> {
    match path::path() {
        // SAFETY: passed on to the caller; faults are recovered on this path.
        MemoryPath::Direct => unsafe { direct::copy_in(src, dst) },
        // SAFETY: as above.
        MemoryPath::Blocked => path::unblocked(|| unsafe { direct::copy_in(src, dst) }),
        // SAFETY: passed on to the caller.
        MemoryPath::Platform => match unsafe { platform::get().copy_in(src, dst) } {
            Ok(()) => Ok(()),
            Err(CopyError::Fault(fault)) => Err(fault),
            // SAFETY: as in `copy_out`.
            Err(CopyError::Unavailable) => unsafe { direct::copy_in(src, dst) },
        },
    }
}

/// Runs `op` on the 8 bytes at `addr`, a multiple of 8, as one processor atomic with sequentially consistent order,
/// and returns the previous value.
///
/// The kernel has no atomic operation on 8 bytes of user memory. On the kernel's path the page is probed for writing
/// first (without changing it), then the processor does the operation. If another thread unmaps the memory in the
/// nanoseconds between, the signal reaches the handler with which the program replaced ours.
///
/// # Safety
///
/// As for [`copy_in`].
pub(super) unsafe fn fetch_update(addr: usize, op: AtomicOp) -> Result<u64, Fault> {
    debug_assert!(addr.is_multiple_of(8), "the caller checks alignment");
    match path::path() {
        // SAFETY: passed on to the caller; faults are recovered on this path.
        MemoryPath::Direct => unsafe { direct::fetch_update(addr, op) },
        // SAFETY: as above.
        MemoryPath::Blocked => path::unblocked(|| unsafe { direct::fetch_update(addr, op) }),
        MemoryPath::Platform => {
            platform::get().probe_write(addr)?;
            // SAFETY: passed on to the caller; the page was just found writable.
            unsafe { direct::fetch_update(addr, op) }
        }
    }
}

/// Pages in the `len` bytes at `addr`, for reading or for writing, without changing them.
///
/// # Safety
///
/// As for [`copy_out`].
pub(super) unsafe fn prefetch(addr: usize, len: usize, write: bool) -> Result<(), Fault> {
    let platform = platform::get();
    match platform.page_in(addr, len, write) {
        Ok(()) => Ok(()),
        Err(PageError::Unsupported) => {
            (addr..addr + len).step_by(platform.page_size()).try_for_each(|at| {
                if write {
                    platform.probe_write(at)
                } else {
                    // SAFETY: passed on to the caller.
                    unsafe { copy_out(at, &mut [0]) }
                }
            })
        }
        Err(PageError::Fault) => Err(Fault { addr }),
        // Advice is best effort.
        Err(PageError::Other) => Ok(()),
    }
}

/// [`copy_out`] for memory that this crate owns and keeps mapped: no fault is expected, and no path is chosen.
///
/// # Safety
///
/// The bytes at `src` are mapped and readable, and nothing but these functions accesses them.
pub(super) unsafe fn copy_out_owned(src: usize, dst: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: passed on to the caller.
    unsafe { direct::copy_out(src, dst) }
}

/// [`copy_in`] for memory that this crate owns and keeps mapped.
///
/// # Safety
///
/// The bytes at `dst` are mapped and writable, and nothing but these functions accesses them.
pub(super) unsafe fn copy_in_owned(src: &[u8], dst: usize) -> Result<(), Fault> {
    // SAFETY: passed on to the caller.
    unsafe { direct::copy_in(src, dst) }
}

/// The size of the word that is stored last in a write of `len` bytes (not 0) that ends before `end`: the
/// largest power of two up to 8 that divides `end` and fits into `len`.
fn last_word(end: usize, len: usize) -> usize {
    // `end | 8` has a lowest set bit of at most 8.
    let aligned = 1usize << (end | 8).trailing_zeros();
    aligned.min(1 << len.ilog2())
}
