//! Linux, as the [platform](rnic_core::platform) of this process.

mod action;
pub(crate) mod ending;
pub(crate) mod fork;
mod kernel;
mod mapped;
mod signal;

use mapped::MappedFile;
use nix::fcntl::{FcntlArg, fcntl};
use rand::TryRng;
use rand::rngs::SysRng;
use rnic_core::memory::Fault;
use rnic_core::platform::{self, CopyError, MemoryPath, PageError, Platform};
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::fd::{FromRawFd, RawFd};
use std::path::Path;

struct Linux;

impl Platform for Linux {
    fn guard_memory(&self) -> bool {
        signal::install()
    }

    fn memory_path(&self) -> MemoryPath {
        signal::look()
    }

    fn unblocked(&self, access: &mut dyn FnMut()) {
        signal::unblocked(access);
    }

    fn copy_out(&self, src: usize, dst: &mut [u8]) -> Result<(), CopyError> {
        kernel::copy_out(src, dst)
    }

    #[expect(unsafe_code, reason = "as declared")]
    unsafe fn copy_in(&self, src: &[u8], dst: usize) -> Result<(), CopyError> {
        // SAFETY: passed on to the caller.
        unsafe { kernel::copy_in(src, dst) }
    }

    fn probe_write(&self, addr: usize) -> Result<(), Fault> {
        kernel::probe_write(addr)
    }

    fn page_in(&self, addr: usize, len: usize, write: bool) -> Result<(), PageError> {
        kernel::populate(addr, len, write).map_err(|errno| match errno {
            // Kernels before Linux 5.14, device memory, and memory without write permission.
            libc::EINVAL => PageError::Unsupported,
            // Not mapped; protected.
            libc::ENOMEM | libc::EFAULT => PageError::Fault,
            _ => PageError::Other,
        })
    }

    fn map_pages(&self, len: NonZeroUsize) -> Option<usize> {
        kernel::map_pages(len)
    }

    #[expect(unsafe_code, reason = "as declared")]
    unsafe fn unmap_pages(&self, addr: usize, len: NonZeroUsize) {
        // SAFETY: passed on to the caller.
        unsafe { kernel::unmap_pages(addr, len) };
    }

    fn page_size(&self) -> usize {
        kernel::page_size()
    }

    /// Not from the thread's generator: fork would copy its state, and two processes would generate equal numbers.
    fn fill_random(&self, bytes: &mut [u8]) {
        SysRng.try_fill_bytes(bytes).expect("the kernel gives random bytes from boot on");
    }

    fn create_capture(&self, path: &Path) -> io::Result<Box<dyn Write + Send>> {
        match path.metadata() {
            Ok(there) if !there.is_file() => Ok(Box::new(File::create(path)?)),
            _ => match MappedFile::create(path) {
                Ok(mapped) => Ok(Box::new(mapped)),
                // The file system does not support mapping or locking files.
                Err(_) => Ok(Box::new(File::create(path)?)),
            },
        }
    }
}

/// The same open file, at the first free descriptor from `least` on. An error: the process may not have so many.
#[expect(unsafe_code, reason = "the types do not tell who owns a number")]
pub(crate) fn copy_from(file: &File, least: RawFd) -> io::Result<File> {
    let fd = fcntl(file, FcntlArg::F_DUPFD_CLOEXEC(least))?;
    // SAFETY: the kernel has just made it, for us.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Runs when the program or library is loaded.
extern "C" fn install() {
    platform::install(&Linux);
}

#[used]
#[expect(unsafe_code, reason = "the platform is there before anything that needs it")]
// SAFETY: the section holds functions that are called when the object is loaded, with arguments that this one ignores.
// It stores to an atomic and does nothing else.
#[unsafe(link_section = ".init_array")]
static INSTALL: extern "C" fn() = install;
