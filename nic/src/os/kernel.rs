//! Copies done by the kernel, which returns EFAULT where the processor would raise a signal.
//!
//! `process_vm_readv` and `process_vm_writev` respect page protection, unlike `/proc/self/mem`. A call costs
//! more than a microsecond.
#![expect(unsafe_code, reason = "system calls on registered memory")]

use libc::{c_void, iovec};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rnic_core::memory::Fault;
use rnic_core::platform::CopyError as Error;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::{Ordering, fence};

/// See [`Platform::copy_out`](rnic_core::platform::Platform::copy_out). Safe: the kernel reads the memory as another process would.
pub(super) fn copy_out(src: usize, dst: &mut [u8]) -> Result<(), Error> {
    transfer(libc::process_vm_readv, dst.as_mut_ptr().cast(), src, dst.len())
}

/// See [`Platform::copy_in`](rnic_core::platform::Platform::copy_in). A separate call stores the last byte.
///
/// # Safety
///
/// As for [`Platform::copy_in`](rnic_core::platform::Platform::copy_in).
pub(super) unsafe fn copy_in(src: &[u8], dst: usize) -> Result<(), Error> {
    let Some((last, bulk)) = src.split_last() else { return Ok(()) };
    // The kernel only reads the local side of a write, whatever the type of the pointer says.
    transfer(libc::process_vm_writev, bulk.as_ptr().cast_mut().cast(), dst, bulk.len())?;
    fence(Ordering::Release);
    transfer(
        libc::process_vm_writev,
        std::ptr::from_ref(last).cast_mut().cast(),
        dst.wrapping_add(bulk.len()),
        1,
    )
}

/// See [`Platform::map_pages`](rnic_core::platform::Platform::map_pages).
pub(super) fn map_pages(len: NonZeroUsize) -> Option<usize> {
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new private mapping at an address of the kernel's choice touches no memory in use.
    let start = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }.ok()?;
    Some(start.as_ptr().expose_provenance())
}

/// See [`Platform::unmap_pages`](rnic_core::platform::Platform::unmap_pages).
///
/// # Safety
///
/// As there.
pub(super) unsafe fn unmap_pages(addr: usize, len: NonZeroUsize) {
    if let Some(start) = NonNull::new(with_exposed_provenance_mut(addr)) {
        // SAFETY: passed on to the caller: a mapping of ours. It fails only for addresses that are not a page's.
        let _ = unsafe { munmap(start, len.get()) };
    }
}

/// Checks whether the page of `addr` can be written, without changing it.
///
/// MADV_POPULATE_WRITE does everything that a write does, except the write itself (Linux 5.14). It returns EINVAL for
/// memory without write permission; older kernels always return EINVAL. A page of our stack tells the two apart. On
/// older kernels a read is probed instead.
pub(super) fn probe_write(addr: usize) -> Result<(), Fault> {
    let on_stack = 0u8;
    match populate(addr, 1, true) {
        Ok(()) => Ok(()),
        Err(libc::EINVAL)
            if populate((&raw const on_stack).expose_provenance(), 1, true) == Err(libc::EINVAL) =>
        {
            match copy_out(addr, &mut [0; 8]) {
                Err(Error::Fault(fault)) => Err(fault),
                Ok(()) | Err(Error::Unavailable) => Ok(()),
            }
        }
        Err(_) => Err(Fault { addr }),
    }
}

/// Brings the pages of the `len` bytes at `addr` into the page table, writable if `write` is set; on failure returns
/// the errno.
pub(super) fn populate(addr: usize, len: usize, write: bool) -> Result<(), i32> {
    let start = addr & !(page_size() - 1);
    let page = with_exposed_provenance_mut(start);
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: the advice changes no byte of memory; the kernel checks the addresses.
    match unsafe { libc::madvise(page, len.saturating_add(addr - start), advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EFAULT)),
    }
}

/// Bytes of a page.
pub(super) fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions. POSIX requires this variable to exist.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

type ProcessVm = unsafe extern "C" fn(
    libc::pid_t,
    *const iovec,
    libc::c_ulong,
    *const iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Moves `len` bytes between our buffer `local` and registered memory at `remote`.
fn transfer(call: ProcessVm, local: *mut c_void, remote: usize, len: usize) -> Result<(), Error> {
    let mut done = 0;
    // A call ends early before an inaccessible page, and at 2 GiB.
    while done < len {
        let near = iovec { iov_base: local.wrapping_byte_add(done), iov_len: len - done };
        let addr = remote.wrapping_add(done);
        let far = iovec { iov_base: with_exposed_provenance_mut(addr), iov_len: len - done };
        // SAFETY: `near` lies in the buffer of a caller in this file, which has `len` bytes and may be written if the
        // call writes it; the kernel checks `far`. The process id is queried each time, because the process may have
        // forked.
        let moved = unsafe { call(libc::getpid(), &raw const near, 1, &raw const far, 1, 0) };
        match usize::try_from(moved) {
            Ok(0) => return Err(Error::Fault(Fault { addr })),
            Ok(moved) => done += moved,
            Err(_) => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EFAULT | libc::EINVAL) => return Err(Error::Fault(Fault { addr })),
                _ => return Err(Error::Unavailable),
            },
        }
    }
    Ok(())
}
