//! A capture file that is complete at any moment, however the process ends.
//!
//! A buffer of the process dies with it, and a fatal signal truncates a write in progress. So the file is mapped:
//! bytes stored in the mapping belong to the kernel. The file is longer than the capture, and the rest of it is one
//! block that readers skip. Packets are written into that block, where they are invisible. They become visible when
//! the block is cut to the space behind them: by two consecutive stores, to its end and to its beginning. The file
//! grows by pages that are such blocks by themselves, each with one write: the kernel does not interrupt a write
//! within a page.
//!
//! Another program may truncate the file: the stores are those of registered memory, which survive that.

#![expect(unsafe_code, reason = "maps the file")]

use nix::fcntl::{Flock, FlockArg};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use rnic_core::memory::{BufferError, UserMemory};
use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;

/// The growth increment of the file: a multiple of all page sizes, and less than readers accept as a block.
const GROWTH: u64 = 1 << 20;

/// The size of one write that extends the file: the smallest page size.
const PAGE: usize = 4096;

/// The type of the block at the end: one of those that the draft leaves to each program (its section 11.1), and that
/// others skip.
const FILLER: u32 = 0x8000_0000;

/// Type and length of a block, which make it visible.
const HEAD: usize = 8;

/// The unit of a block: its type, its lengths, and everything else together consist of words.
const WORD: u64 = 4;

/// The shortest block: type, length, and length again.
const SHORTEST: u64 = 12;

/// A file of pcapng blocks. Written bytes become part of it with the next flush, which must follow a whole block.
pub(super) struct MappedFile {
    file: Flock<File>,
    /// The mapped part of the file, up to its end.
    window: Window,
    /// The end of the last visible block.
    visible: u64,
    /// The end of the written bytes.
    written: u64,
    /// The first bytes written since the last flush.
    head: Vec<u8>,
}

impl MappedFile {
    /// Creates the file anew. If another process captures to it, that process keeps the file, without its name.
    ///
    /// # Errors
    /// The file cannot be created, or cannot be mapped.
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

    /// The length of the block at the end if it begins at `from`.
    fn rest(&self, from: u64) -> io::Result<u32> {
        // At most two growths and a block, far below 4 GiB.
        u32::try_from(self.window.end - from).map_err(|_| io::ErrorKind::FileTooLarge.into())
    }

    /// Makes the bytes behind the visible part a block of this type and length, and the last block of the file one of
    /// length `last`.
    fn show(&self, kind: u32, length: u32, last: u32) -> io::Result<()> {
        // Rewriting the present bytes brings the pages in, and checks that they exist: then the stores follow one
        // another directly.
        let end = self.window.touch(self.window.end - WORD)?;
        let [begin, begin_length] =
            [self.window.touch(self.visible)?, self.window.touch(self.visible + WORD)?];
        // SAFETY: inside the mapping, and aligned: blocks consist of words. A page could be gone only if another
        // program truncated the file since the touch.
        unsafe {
            end.write_volatile(last.to_le());
            // With the length alone it is complete, and skipped.
            begin_length.write_volatile(length.to_le());
            begin.write_volatile(kind.to_le());
        }
        Ok(())
    }

    /// Makes room for `more` bytes and the block at the end.
    fn reserve(&mut self, more: u64) -> io::Result<()> {
        let wanted = self.written + more + SHORTEST;
        if wanted <= self.window.end {
            return Ok(());
        }
        let end = wanted.next_multiple_of(GROWTH);
        extend(&self.file, self.window.end, end)?;
        // From the end of the visible part, in whole pages.
        self.window = Window::new(&self.file, self.visible / GROWTH * GROWTH, end)?;
        // The block that hides written bytes reaches to the new end.
        let length = self.rest(self.visible)?;
        self.show(FILLER, length, length)
    }
}

/// Extends the file by blocks that readers skip.
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

/// The error for pages of the file that are gone.
fn lost(_: BufferError) -> io::Error {
    io::Error::other("the file was cut short, or its disk is full")
}

/// A mapping of the file.
struct Window {
    addr: NonNull<c_void>,
    len: NonZeroUsize,
    memory: UserMemory,
    /// Its offset in the file.
    start: u64,
    end: u64,
}

// SAFETY: nothing is borrowed from the mapping; it is only stored to and unmapped.
unsafe impl Send for Window {}

impl Window {
    fn new(file: &File, start: u64, end: u64) -> io::Result<Self> {
        let len = usize::try_from(end - start)
            .ok()
            .and_then(NonZeroUsize::new)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        let offset = i64::try_from(start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, to which nothing refers.
        let addr = unsafe { mmap(None, len, rights, MapFlags::MAP_SHARED, file, offset) }?;
        // SAFETY: the mapping just made. A child that could write to it would interfere.
        let _ = unsafe { madvise(addr, len.get(), MmapAdvise::MADV_DONTFORK) };
        // SAFETY: nothing but the stores below accesses it.
        let memory = unsafe { UserMemory::new(addr.as_ptr() as usize, len.get() as u64) };
        Ok(Self { addr, len, memory, start, end })
    }

    /// Stores bytes at an offset of the file.
    fn store(&self, at: u64, data: &[u8]) -> io::Result<()> {
        let at = usize::try_from(at - self.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.memory.write_at(at, data).map_err(lost)
    }

    /// Brings the page of a word in, for writing. Returns the address of the word.
    fn touch(&self, at: u64) -> io::Result<*mut u32> {
        let at = usize::try_from(at - self.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut word = [0; 4];
        self.memory.read_at(at, &mut word).and_then(|()| self.memory.write_at(at, &word)).map_err(lost)?;
        Ok(self.addr.as_ptr().wrapping_byte_add(at).cast())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and is not used again.
        let _ = unsafe { munmap(self.addr, self.len.get()) };
    }
}

#[cfg(test)]
mod tests;
