//! The memory that work requests name: pages of all kinds, followed by unmapped address space.

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::num::NonZero;
use std::ptr::NonNull;

/// Size of a page in bytes.
const PAGE: usize = 4096;
/// Number of pages that are always readable and writable: inline data comes from these, because the library itself
/// reads it.
const PLAIN: usize = 12;
/// The read-only page, the hole, and the page whose protection changes.
const READ_ONLY: usize = 12;
const HOLE: usize = 13;
const FICKLE: usize = 14;
const PAGES: usize = 16;
/// More than a work request can reach from the last page: a region may be the whole address space.
const RESERVED: NonZero<usize> = NonZero::new(16 << 30).expect("not 0");

/// A piece of memory far from the fuzzer's own.
pub(super) struct Arena(NonNull<c_void>);

impl Arena {
    pub(super) fn new() -> Self {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping, which replaces nothing.
        let start = unsafe { mmap_anonymous(None, RESERVED, ProtFlags::PROT_NONE, flags) };
        let arena = Self(start.expect("address space"));
        arena.protect(0, PAGES, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        arena.protect(READ_ONLY, 1, ProtFlags::PROT_READ);
        arena.protect(HOLE, 1, ProtFlags::PROT_NONE);
        arena
    }

    fn protect(&self, page: usize, pages: usize, how: ProtFlags) {
        let start = self.0.as_ptr().wrapping_byte_add(page * PAGE);
        let start = NonNull::new(start).expect("inside");
        // SAFETY: these are pages of the arena, to which no references exist.
        unsafe { mprotect(start, pages * PAGE, how) }.expect("pages of the arena");
    }

    /// Revokes access to a page that may be registered, or restores it.
    pub(super) fn turn(&self, there: bool) {
        let all = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        self.protect(FICKLE, 1, if there { all } else { ProtFlags::PROT_NONE });
    }

    /// An address: in the arena, or one that is never mapped in a process (the lowest pages and the upper half).
    pub(super) fn address(&self, word: u32) -> u64 {
        match word >> 30 {
            0..=2 => self.0.as_ptr() as u64 + u64::from(word) % (PAGES * PAGE) as u64,
            _ if word & 1 == 0 => u64::from(word & 0xfff),
            _ => 1 << 63 | u64::from(word) << 20,
        }
    }

    /// Readable bytes, at most `len`.
    pub(super) fn readable(&self, word: u32, len: u32) -> (u64, u32) {
        let all = PLAIN * PAGE;
        let at = word as usize % all;
        let len = (len as usize).min(all - at);
        (self.0.as_ptr() as u64 + at as u64, u32::try_from(len).unwrap_or(0))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: nothing is registered any more, so nothing uses it.
        unsafe { munmap(self.0, RESERVED.get()) }.expect("the arena");
    }
}
