//! What the engine and the objects of the API need of a platform, and what they do without one.
//!
//! Nothing here, in the engine, or in the simulator makes a system call. A process on a host installs its
//! [`Platform`] when it is loaded. Without one, memory that is not mapped ends the program, as in any program; captures
//! are complete when they end; and random numbers are only as good as those of the standard library's hash tables, which
//! is no matter in simulations, whose numbers follow from seeds.

use crate::memory::Fault;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::with_exposed_provenance_mut;
use std::sync::OnceLock;

/// How a thread may access registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryPath {
    /// By our routines: faults are recovered, or do not happen.
    Direct,
    /// By our routines, [unblocked](Platform::unblocked).
    Blocked,
    /// [Through the platform](Platform::copy_out): faults in our routines would not be recovered.
    Platform,
}

/// Why the platform did not copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyError {
    /// The memory cannot be accessed.
    Fault(Fault),
    /// The platform has no such call, or a sandbox forbids it.
    Unavailable,
}

/// Why the platform did not page memory in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageError {
    /// The memory cannot be accessed.
    Fault,
    /// The platform cannot do that with this memory, or at all.
    Unsupported,
    /// Another reason, which a later access may not meet.
    Other,
}

/// An operating system.
pub trait Platform: Sync {
    /// Makes faults in our routines recoverable. Returns whether that is new.
    fn guard_memory(&self) -> bool;

    /// How this thread may access registered memory now.
    fn memory_path(&self) -> MemoryPath;

    /// Runs `access` so that faults in it are recovered, although this thread blocks them.
    fn unblocked(&self, access: &mut dyn FnMut());

    /// Copies registered memory at `src`, which need not be mapped.
    fn copy_out(&self, src: usize, dst: &mut [u8]) -> Result<(), CopyError>;

    /// Copies to registered memory at `dst`, which need not be mapped. The last byte is stored last.
    ///
    /// # Safety
    ///
    /// The program said that the device may write this memory.
    #[expect(unsafe_code, reason = "writes memory of the program")]
    unsafe fn copy_in(&self, src: &[u8], dst: usize) -> Result<(), CopyError>;

    /// Checks whether the page of `addr` can be written, without changing it.
    fn probe_write(&self, addr: usize) -> Result<(), Fault>;

    /// Pages in the `len` bytes at `addr`, writable if `write` is set.
    fn page_in(&self, addr: usize, len: usize, write: bool) -> Result<(), PageError>;

    /// Allocates pages for `len` bytes, all 0, that share no page with other memory of the program. Returns their
    /// address, exposed, or `None` if there is not as much memory.
    fn map_pages(&self, len: NonZeroUsize) -> Option<usize>;

    /// Frees pages.
    ///
    /// # Safety
    ///
    /// [`Self::map_pages`] returned `addr` for `len`, and nothing refers to these pages.
    #[expect(unsafe_code, reason = "frees memory")]
    unsafe fn unmap_pages(&self, addr: usize, len: NonZeroUsize);

    /// Bytes of a page.
    fn page_size(&self) -> usize;

    /// Unpredictable bytes.
    fn fill_random(&self, bytes: &mut [u8]);

    /// Creates a file for a capture.
    fn create_capture(&self, path: &Path) -> io::Result<Box<dyn Write + Send>>;
}

static PLATFORM: OnceLock<&'static dyn Platform> = OnceLock::new();

/// Installs the platform of this process. Only the first one counts.
pub fn install(platform: &'static dyn Platform) {
    let _ = PLATFORM.set(platform);
}

/// The platform of this process.
pub fn get() -> &'static dyn Platform {
    PLATFORM.get().copied().unwrap_or(&Bare)
}

/// Unpredictable bytes.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    get().fill_random(&mut bytes);
    bytes
}

/// An unpredictable number.
pub fn random() -> u64 {
    u64::from_ne_bytes(random_bytes())
}

/// No operating system.
struct Bare;

/// The smallest page size.
const PAGE: usize = 4096;

/// The allocation for the pages of `len` bytes.
fn pages(len: NonZeroUsize) -> Option<Layout> {
    Layout::from_size_align(len.get().checked_next_multiple_of(PAGE)?, PAGE).ok()
}

impl Platform for Bare {
    fn guard_memory(&self) -> bool {
        false
    }

    fn memory_path(&self) -> MemoryPath {
        MemoryPath::Direct
    }

    fn unblocked(&self, access: &mut dyn FnMut()) {
        access();
    }

    fn copy_out(&self, _: usize, _: &mut [u8]) -> Result<(), CopyError> {
        Err(CopyError::Unavailable)
    }

    #[expect(unsafe_code, reason = "as declared")]
    unsafe fn copy_in(&self, _: &[u8], _: usize) -> Result<(), CopyError> {
        Err(CopyError::Unavailable)
    }

    fn probe_write(&self, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    fn page_in(&self, _: usize, _: usize, _: bool) -> Result<(), PageError> {
        Err(PageError::Other)
    }

    #[expect(unsafe_code, reason = "allocates")]
    fn map_pages(&self, len: NonZeroUsize) -> Option<usize> {
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(pages(len)?) };
        (!start.is_null()).then(|| start.expose_provenance())
    }

    #[expect(unsafe_code, reason = "as declared")]
    unsafe fn unmap_pages(&self, addr: usize, len: NonZeroUsize) {
        if let Some(layout) = pages(len) {
            // SAFETY: passed on to the caller: `map_pages` made this allocation with the same layout.
            unsafe { dealloc(with_exposed_provenance_mut(addr), layout) };
        }
    }

    fn page_size(&self) -> usize {
        PAGE
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let random = RandomState::new().hash_one(part.len()).to_ne_bytes();
            part.copy_from_slice(&random[..part.len()]);
        }
    }

    fn create_capture(&self, path: &Path) -> io::Result<Box<dyn Write + Send>> {
        Ok(Box::new(File::create(path)?))
    }
}
