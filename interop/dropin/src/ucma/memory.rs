//! The program's memory, which a command names by its address.
//!
//! The kernel answers EFAULT for an address that the program does not have. So these copies go through the kernel,
//! which may not be allowed in a sandbox: then they are plain copies.

use crate::errno::Errno;
use nix::errno::Errno as Os;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use std::io::{IoSlice, IoSliceMut};

const FAULT: Errno = Errno(libc::EFAULT);

/// Stores bytes at an address of the program.
///
/// # Safety
/// The program provides the space, if it is its own.
pub(super) unsafe fn store(bytes: &[u8], at: u64) -> Result<(), Errno> {
    let base = usize::try_from(at).map_err(|_| FAULT)?;
    if bytes.is_empty() {
        return Ok(());
    }
    match process_vm_writev(Pid::this(), &[IoSlice::new(bytes)], &[RemoteIoVec { base, len: bytes.len() }]) {
        Ok(stored) if stored == bytes.len() => Ok(()),
        Ok(_) | Err(Os::EFAULT) => Err(FAULT),
        Err(_) if base == 0 => Err(FAULT),
        Err(_) => {
            // SAFETY: guaranteed by the caller.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base as *mut u8, bytes.len()) };
            Ok(())
        }
    }
}

/// Fills `bytes` from an address of the program.
///
/// # Safety
/// The memory there is the program's, if it exists, and does not change meanwhile.
pub(super) unsafe fn load(at: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    let (base, len) = (usize::try_from(at).map_err(|_| FAULT)?, bytes.len());
    if bytes.is_empty() {
        return Ok(());
    }
    match process_vm_readv(Pid::this(), &mut [IoSliceMut::new(bytes)], &[RemoteIoVec { base, len }]) {
        Ok(loaded) if loaded == len => Ok(()),
        Ok(_) | Err(Os::EFAULT) => Err(FAULT),
        Err(_) if base == 0 => Err(FAULT),
        Err(_) => {
            // SAFETY: guaranteed by the caller.
            unsafe { std::ptr::copy_nonoverlapping(base as *const u8, bytes.as_mut_ptr(), len) };
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_program_does_not_have_is_a_fault() {
        let mut place = [0u8; 4];
        // SAFETY: the space is that of this test, or none.
        unsafe {
            assert_eq!(store(&[1, 2, 3], place.as_mut_ptr() as u64), Ok(()));
            assert_eq!(place, [1, 2, 3, 0]);
            let mut read = [0; 2];
            assert_eq!(load(place.as_ptr() as u64 + 1, &mut read), Ok(()));
            assert_eq!(read, [2, 3]);
            for nowhere in [0, 8, u64::MAX] {
                assert_eq!(store(&[1], nowhere), Err(FAULT));
                assert_eq!(load(nowhere, &mut read), Err(FAULT));
            }
        }
    }
}
