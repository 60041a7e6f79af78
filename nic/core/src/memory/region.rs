//! Library-owned memory that may be registered: page-aligned, zeroed, with safe access.
#![expect(unsafe_code, reason = "owns an allocation")]

use super::copy::{self, Fault};
use crate::platform;
use std::num::NonZeroUsize;
use thiserror::Error;

/// Why a buffer could not be created or accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BufferError {
    /// A buffer needs at least one byte.
    #[error("a memory buffer needs a length of at least 1")]
    Empty,
    /// There is not as much memory.
    #[error("no memory for a buffer of {len} bytes")]
    OutOfMemory {
        /// The requested length.
        len: usize,
    },
    /// The access goes beyond the end.
    #[error("{len} bytes at offset {offset} are not inside a buffer of {size} bytes")]
    OutOfRange {
        /// Offset of the access.
        offset: usize,
        /// Number of bytes.
        len: usize,
        /// Size of the buffer.
        size: usize,
    },
    /// A word access at an offset that is not a multiple of 8.
    #[error("offset {offset} is not a multiple of 8")]
    Misaligned {
        /// Offset of the access.
        offset: usize,
    },
    /// Other code unmapped or protected the buffer.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Page-aligned memory, zeroed at first, that peers may write while the program reads.
///
/// Its bytes cannot be borrowed: all access copies. An access of 8 aligned bytes reads or writes a whole word; a
/// longer access that races with a write may see a mixture of old and new bytes. The last bytes of a write become
/// visible last, see the module documentation.
///
/// **fork**: the child gets its own snapshot, copied on write. The engine lives in the parent, so peers' writes
/// appear in the parent only. (With hardware such pages must be kept out of the child, because the adapter writes to
/// physical pages; our writes go through the parent's page tables.)
#[derive(Debug)]
pub struct MemoryBuffer {
    /// The first page, exposed. An integer, because it must never be dereferenced.
    addr: usize,
    len: NonZeroUsize,
}

impl MemoryBuffer {
    /// Allocates `len` bytes, all 0, in pages of their own. On a host they take memory when they are first touched.
    ///
    /// # Errors
    ///
    /// [`BufferError::Empty`] for a length of 0, [`BufferError::OutOfMemory`] if there is not as much.
    pub fn new(len: usize) -> Result<Self, BufferError> {
        let len = NonZeroUsize::new(len).ok_or(BufferError::Empty)?;
        let addr = platform::get().map_pages(len).ok_or(BufferError::OutOfMemory { len: len.get() })?;
        Ok(Self { addr, len })
    }

    /// The address of the first byte, a multiple of the page size: the address for work requests and peers.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// The length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// Copies the bytes at `offset` into `out`.
    ///
    /// # Errors
    ///
    /// [`BufferError::OutOfRange`] if they are not all inside the buffer.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), BufferError> {
        let addr = self.locate(offset, out.len())?;
        // SAFETY: the bytes belong to this allocation, which lives as long as `self`.
        Ok(unsafe { copy::copy_out_owned(addr, out) }?)
    }

    /// Copies `data` to `offset`; its last byte becomes visible last.
    ///
    /// # Errors
    ///
    /// [`BufferError::OutOfRange`] if it does not fit.
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<(), BufferError> {
        let addr = self.locate(offset, data.len())?;
        // SAFETY: the bytes belong to this allocation, which lives as long as `self`.
        Ok(unsafe { copy::copy_in_owned(data, addr) }?)
    }

    /// Copies the whole buffer.
    ///
    /// # Errors
    ///
    /// [`BufferError::Fault`] only.
    pub fn to_vec(&self) -> Result<Vec<u8>, BufferError> {
        let mut bytes = vec![0; self.len()];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Sets every byte to `value`.
    ///
    /// # Errors
    ///
    /// [`BufferError::Fault`] only.
    pub fn fill(&self, value: u8) -> Result<(), BufferError> {
        let block = [value; 4096];
        for offset in (0..self.len()).step_by(block.len()) {
            self.write_at(offset, &block[..block.len().min(self.len() - offset)])?;
        }
        Ok(())
    }

    /// Reads the 8 bytes at `offset` as one word in host order, with acquire order: after the program sees a value
    /// that a peer wrote, everything that the peer wrote before it is visible.
    ///
    /// # Errors
    ///
    /// [`BufferError::Misaligned`] or [`BufferError::OutOfRange`].
    pub fn load_u64(&self, offset: usize) -> Result<u64, BufferError> {
        let mut word = [0; 8];
        self.read_at(Self::aligned(offset)?, &mut word)?;
        // The copy is one load. On x86-64 it is in assembly, across which the compiler moves nothing, and loads of
        // that processor acquire. Elsewhere it is an atomic load.
        Ok(u64::from_ne_bytes(word))
    }

    /// Stores the 8 bytes at `offset` as one word in host order, with release order.
    ///
    /// # Errors
    ///
    /// [`BufferError::Misaligned`] or [`BufferError::OutOfRange`].
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), BufferError> {
        self.write_at(Self::aligned(offset)?, &value.to_ne_bytes())
    }

    fn aligned(offset: usize) -> Result<usize, BufferError> {
        if offset.is_multiple_of(8) { Ok(offset) } else { Err(BufferError::Misaligned { offset }) }
    }

    /// The address of `len` bytes at `offset`.
    fn locate(&self, offset: usize, len: usize) -> Result<usize, BufferError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(self.addr + offset),
            _ => Err(BufferError::OutOfRange { offset, len, size: self.len() }),
        }
    }
}

impl Drop for MemoryBuffer {
    fn drop(&mut self) {
        // SAFETY: the platform made this allocation with the same length, and no reference into it exists.
        unsafe { platform::get().unmap_pages(self.addr, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn is_zeroed_and_page_aligned() {
        let buffer = MemoryBuffer::new(10_000).unwrap();
        assert_eq!(buffer.addr() % 4096, 0);
        assert_eq!(buffer.to_vec().unwrap(), vec![0; 10_000]);
        buffer.fill(7).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), vec![7; 10_000]);
    }

    #[test]
    fn checks_ranges() {
        assert_eq!(MemoryBuffer::new(0).unwrap_err(), BufferError::Empty);
        assert!(matches!(MemoryBuffer::new(usize::MAX), Err(BufferError::OutOfMemory { .. })));
        let buffer = MemoryBuffer::new(100).unwrap();
        buffer.write_at(96, b"tail").unwrap();
        buffer.write_at(100, b"").unwrap();
        let mut out = [0; 4];
        buffer.read_at(96, &mut out).unwrap();
        assert_eq!(&out, b"tail");
        let error = buffer.write_at(97, b"tail").unwrap_err();
        assert_eq!(error, BufferError::OutOfRange { offset: 97, len: 4, size: 100 });
        assert!(buffer.read_at(usize::MAX, &mut out).is_err());
        assert_eq!(buffer.load_u64(4), Err(BufferError::Misaligned { offset: 4 }));
        assert!(buffer.store_u64(96, 1).is_err());
    }

    #[test]
    fn words_are_never_torn() {
        let buffer = MemoryBuffer::new(64).unwrap();
        thread::scope(|s| {
            s.spawn(|| {
                for i in 0..200_000u64 {
                    buffer.store_u64(8, (i & 0xff) * 0x0101_0101_0101_0101).unwrap();
                }
            });
            for _ in 0..200_000 {
                let value = buffer.load_u64(8).unwrap();
                assert_eq!(value, (value & 0xff) * 0x0101_0101_0101_0101);
            }
        });
    }
}
