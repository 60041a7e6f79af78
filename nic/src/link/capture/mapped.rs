//! A capture file that is whole at any moment, however the process ends.
//!
//! A buffer of the process dies with it, and a write that a deadly signal meets is cut short. So the file is mapped: what
//! is stored there is the kernel's. It is longer than what was captured, and the rest of it is one block that readers pass
//! over. Packets are put into that block, where nobody sees them, and become visible when the block is cut to what is behind
//! them: by two stores, to its end and to its beginning, one upon the other. The file grows by pages that are such
//! blocks by themselves, each with one write: the kernel does not interrupt what stays within a page.
//!
//! Another program may cut the file short: the stores are those of registered memory, which survive that.

#![expect(unsafe_code, reason = "maps the file")]

use crate::memory::{BufferError, UserMemory};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;

/// By how much the file grows: a multiple of all page sizes, and less than readers take for a block.
const GROWTH: u64 = 1 << 20;

/// What one write adds to the file: the smallest page that there is.
const PAGE: usize = 4096;

/// The type of the block at the end: one of those that the draft leaves to each program (its section 11.1), and that others
/// pass over.
const FILLER: u32 = 0x8000_0000;

/// Type and length of a block, which make it visible.
const HEAD: usize = 8;

/// Of what a block consists: its type, its lengths, and all else together.
const WORD: u64 = 4;

/// The shortest block: type, length, and length again.
const SHORTEST: u64 = 12;

/// A file of pcapng blocks. What is written becomes part of it with the next flush, which must come behind a whole block.
pub(super) struct MappedFile {
    file: Flock<File>,
    /// The part of the file that is mapped, to its end.
    window: Window,
    /// Behind the last block that is visible.
    visible: u64,
    /// Behind what was written.
    written: u64,
    /// The first bytes that were written since the last flush.
    head: Vec<u8>,
}

impl MappedFile {
    /// Makes the file anew. One that another process captures to is left to it, without its name.
    ///
    /// # Errors
    /// It cannot be made, or is not one that can be mapped.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let lock = |file| Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno);
        let file = match lock(open()?) {
            Err(nix::Error::EWOULDBLOCK) => {
                tracing::warn!(path = %path.display(), "another process captures to this file: it loses its name");
                fs::remove_file(path)?;
                lock(open()?)?
            }
            locked => locked?,
        };
        file.set_len(0)?;
        extend(&file, 0, GROWTH)?;
        let window = Window::new(&file, 0, GROWTH)?;
        let mapped = Self { file, window, visible: 0, written: 0, head: Vec::with_capacity(HEAD) };
        let length = mapped.rest(0)?;
        mapped.show(FILLER, length, length)?;
        Ok(mapped)
    }

    /// How long the block at the end is if it begins at `from`.
    fn rest(&self, from: u64) -> io::Result<u32> {
        // At most two growths and a block, far below 4 GiB.
        u32::try_from(self.window.end - from).map_err(|_| io::ErrorKind::FileTooLarge.into())
    }

    /// Makes what begins behind the visible part a block of this type and length, and the last block of the file one of
    /// length `last`.
    fn show(&self, kind: u32, length: u32, last: u32) -> io::Result<()> {
        // Writing what is there already brings the pages in, and tells whether they are there: the stores follow one upon
        // the other then.
        let end = self.window.touch(self.window.end - WORD)?;
        let [begin, begin_length] =
            [self.window.touch(self.visible)?, self.window.touch(self.visible + WORD)?];
        // SAFETY: inside the mapping, and aligned: blocks consist of words. The file would have to be cut short by another
        // program since the touch for a page to be gone.
        unsafe {
            end.write_volatile(last.to_le());
            // With the length alone it is whole, and passed over.
            begin_length.write_volatile(length.to_le());
            begin.write_volatile(kind.to_le());
        }
        Ok(())
    }

    /// Makes room for so many bytes more and the block at the end.
    fn reserve(&mut self, more: u64) -> io::Result<()> {
        let wanted = self.written + more + SHORTEST;
        if wanted <= self.window.end {
            return Ok(());
        }
        let end = wanted.next_multiple_of(GROWTH);
        extend(&self.file, self.window.end, end)?;
        // From where the visible part ends, in whole pages.
        self.window = Window::new(&self.file, self.visible / GROWTH * GROWTH, end)?;
        // The block that hides what was written reaches to the new end.
        let length = self.rest(self.visible)?;
        self.show(FILLER, length, length)
    }
}

/// Makes the file longer, by blocks that readers pass over.
fn extend(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut page = [0; PAGE];
    let length = (PAGE as u32).to_le_bytes();
    page[..4].copy_from_slice(&FILLER.to_le_bytes());
    page[4..HEAD].copy_from_slice(&length);
    page[PAGE - length.len()..].copy_from_slice(&length);
    (from..to).step_by(PAGE).try_for_each(|at| file.write_all_at(&page, at))
}

impl Write for MappedFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.reserve(data.len() as u64)?;
        let (head, rest) = data.split_at(data.len().min(HEAD - self.head.len()));
        self.head.extend_from_slice(head);
        self.window.store(self.written + head.len() as u64, rest)?;
        self.written += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.written == self.visible {
            return Ok(());
        }
        let rest = self.rest(self.written)?;
        // Not visible yet.
        self.window.store(self.written, &[FILLER.to_le_bytes(), rest.to_le_bytes()].concat())?;
        let word = |at: usize| {
            let bytes = self.head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_le_bytes).ok_or(io::ErrorKind::InvalidData)
        };
        self.show(word(0)?, word(4)?, rest)?;
        self.head.clear();
        self.visible = self.written;
        Ok(())
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // Without the block at the end. If that fails, readers pass over it.
        let _ = self.file.set_len(self.visible);
    }
}

/// The pages of the file are gone.
fn lost(_: BufferError) -> io::Error {
    io::Error::other("the file was cut short, or its disk is full")
}

/// A mapping of the file.
struct Window {
    addr: NonNull<c_void>,
    len: NonZeroUsize,
    memory: UserMemory,
    /// Its place in the file.
    start: u64,
    end: u64,
}

// SAFETY: nothing is borrowed from the mapping; all that is done with it is to store and to unmap it.
unsafe impl Send for Window {}

impl Window {
    fn new(file: &File, start: u64, end: u64) -> io::Result<Self> {
        let len = usize::try_from(end - start)
            .ok()
            .and_then(NonZeroUsize::new)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        let offset = i64::try_from(start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, which nothing refers to.
        let addr = unsafe { mmap(None, len, rights, MapFlags::MAP_SHARED, file, offset) }?;
        // SAFETY: the mapping that was just made. A child that could write to it would be in the way.
        let _ = unsafe { madvise(addr, len.get(), MmapAdvise::MADV_DONTFORK) };
        // SAFETY: nothing but the stores below accesses it.
        let memory = unsafe { UserMemory::new(addr.as_ptr() as usize, len.get() as u64) };
        Ok(Self { addr, len, memory, start, end })
    }

    /// Stores bytes at a place of the file.
    fn store(&self, at: u64, data: &[u8]) -> io::Result<()> {
        let at = usize::try_from(at - self.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.memory.write_at(at, data).map_err(lost)
    }

    /// Brings the page of a word in, for writing. Returns where the word is.
    fn touch(&self, at: u64) -> io::Result<*mut u32> {
        let at = usize::try_from(at - self.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut word = [0; 4];
        self.memory.read_at(at, &mut word).and_then(|()| self.memory.write_at(at, &word)).map_err(lost)?;
        Ok(self.addr.as_ptr().wrapping_byte_add(at).cast())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and is not used again.
        let _ = unsafe { munmap(self.addr, self.len.get()) };
    }
}

#[cfg(test)]
mod tests;
