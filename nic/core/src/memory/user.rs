//! Memory that a program lends to a device.
#![expect(unsafe_code, reason = "hands addresses of the program to the copies")]

use super::copy::{self, Fault};
use super::{BufferError, MemoryBuffer, install};
use std::any::Any;
use std::sync::Arc;

/// Memory of a program that may be registered: a range of its addresses, and optionally an owner that keeps them in
/// use.
///
/// Clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct UserMemory {
    addr: usize,
    len: u64,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl UserMemory {
    /// The `len` bytes at `addr` of this process.
    ///
    /// Unmapped or protected memory can be lent; accesses to it fail.
    ///
    /// # Safety
    ///
    /// While the bytes are registered with a device, it may read them at any time, and write them if the region has
    /// LOCAL_WRITE. So may any holder of the region. Rust code must not hold references to them that this would
    /// invalidate. The memory may be unmapped earlier, provided that its addresses are not reused for anything that
    /// such accesses would harm.
    #[must_use]
    pub unsafe fn new(addr: usize, len: u64) -> Self {
        Self { addr, len, owner: None }
    }

    /// All addresses: verbs register them with address 0 and the largest length, as implicit on-demand paging. The
    /// last address, which is of no use, is not part of it.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new), for all memory of the process: a peer, or a work request of the program itself, can
    /// access every object that it can name.
    #[must_use]
    pub unsafe fn whole_address_space() -> Self {
        Self { addr: 0, len: usize::MAX as u64, owner: None }
    }

    /// The memory of a null region: no bytes, with the largest length.
    pub(super) fn none() -> Self {
        Self { addr: 0, len: u64::MAX, owner: None }
    }

    /// Keeps `owner` alive while the memory is registered.
    #[must_use]
    pub fn keeping(self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { owner: Some(owner), ..self }
    }

    /// First address.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nothing asks, and registration refuses it")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is the whole address space.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.addr == 0 && self.len == usize::MAX as u64
    }

    /// The buffer, if the memory is one: its mapping is fully known.
    fn buffer(&self) -> Option<&MemoryBuffer> {
        self.owner.as_deref()?.downcast_ref()
    }

    /// Copies the bytes at `offset` into `out`.
    ///
    /// # Errors
    ///
    /// [`BufferError::OutOfRange`], or [`BufferError::Fault`] if the memory is not mapped or is protected.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), BufferError> {
        if let Some(buffer) = self.buffer() {
            return buffer.read_at(offset, out);
        }
        let addr = self.locate(offset, out.len())?;
        // SAFETY: the caller of `new` allowed reads of the bytes at any time.
        Ok(with_recovery(|| unsafe { copy::copy_out(addr, out) })?)
    }

    /// Copies `data` to `offset`; its last byte becomes visible last.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<(), BufferError> {
        if let Some(buffer) = self.buffer() {
            return buffer.write_at(offset, data);
        }
        let addr = self.locate(offset, data.len())?;
        // SAFETY: the caller of `new` allowed any holder of the region to write the bytes.
        Ok(with_recovery(|| unsafe { copy::copy_in(data, addr) })?)
    }

    /// Reads the 8 bytes at `offset` as one word in host order, with acquire order.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at), and [`BufferError::Misaligned`].
    pub fn load_u64(&self, offset: usize) -> Result<u64, BufferError> {
        if let Some(buffer) = self.buffer() {
            return buffer.load_u64(offset);
        }
        let mut word = [0; 8];
        self.read_at(self.aligned(offset)?, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Stores the 8 bytes at `offset` as one word in host order, with release order.
    ///
    /// # Errors
    ///
    /// As [`load_u64`](Self::load_u64).
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), BufferError> {
        if let Some(buffer) = self.buffer() {
            return buffer.store_u64(offset, value);
        }
        self.write_at(self.aligned(offset)?, &value.to_ne_bytes())
    }

    /// The address, which is arbitrary, determines the alignment.
    fn aligned(&self, offset: usize) -> Result<usize, BufferError> {
        let addr = self.addr.wrapping_add(offset);
        if addr.is_multiple_of(8) { Ok(offset) } else { Err(BufferError::Misaligned { offset }) }
    }

    fn locate(&self, offset: usize, len: usize) -> Result<usize, BufferError> {
        let size = usize::try_from(self.len).unwrap_or(usize::MAX);
        let error = BufferError::OutOfRange { offset, len, size };
        let end = offset.checked_add(len).filter(|end| *end <= size).ok_or(error)?;
        // Before registration, the end may lie beyond the address space.
        self.addr.checked_add(end).map(|end| end - len).ok_or(error)
    }
}

impl From<Arc<MemoryBuffer>> for UserMemory {
    fn from(buffer: Arc<MemoryBuffer>) -> Self {
        // No reference into a buffer exists, and the memory keeps it alive.
        Self { addr: buffer.addr(), len: buffer.len() as u64, owner: Some(buffer) }
    }
}

impl From<MemoryBuffer> for UserMemory {
    fn from(buffer: MemoryBuffer) -> Self {
        Self::from(Arc::new(buffer))
    }
}

/// Runs a copy with our handler in place: the memory may be used before any region is registered.
fn with_recovery(copy: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
    install();
    copy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_program_is_read_and_written() {
        let words = Box::leak(Box::new([0u64; 4]));
        let addr = std::ptr::from_mut(words).expose_provenance();
        // SAFETY: the words are not used any more.
        let memory = unsafe { UserMemory::new(addr, 32) };
        memory.write_at(29, b"end").expect("inside");
        let mut out = [0; 4];
        memory.read_at(28, &mut out).expect("inside");
        assert_eq!(&out, b"\0end");
        memory.store_u64(8, 77).expect("aligned");
        assert_eq!(memory.load_u64(8), Ok(77));
        assert_eq!(memory.load_u64(9), Err(BufferError::Misaligned { offset: 9 }));
        for offset in [30, usize::MAX - 1] {
            let error = BufferError::OutOfRange { offset, len: 3, size: 32 };
            assert_eq!(memory.write_at(offset, b"end"), Err(error));
        }
    }

    #[test]
    fn what_keeps_memory_alive_lives_as_long_as_the_memory() {
        let owner = Arc::new([0u64; 4]);
        let alive = Arc::downgrade(&owner);
        // SAFETY: nothing accesses it.
        let memory = unsafe { UserMemory::new(owner.as_ptr().expose_provenance(), 32) }.keeping(owner);
        assert!(alive.upgrade().is_some());
        drop(memory);
        assert!(alive.upgrade().is_none());
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        // SAFETY: no program has memory in the first page.
        let nowhere = unsafe { UserMemory::new(8, 16) };
        assert!(matches!(nowhere.read_at(0, &mut [0; 8]), Err(BufferError::Fault(_))));
        assert!(matches!(nowhere.store_u64(0, 1), Err(BufferError::Fault(_))));
        // SAFETY: no memory is mapped there either.
        let beyond = unsafe { UserMemory::new(usize::MAX - 3, 8) };
        assert!(matches!(beyond.read_at(0, &mut [0; 8]), Err(BufferError::OutOfRange { .. })));
    }

    #[test]
    fn a_buffer_is_used_as_one() {
        let buffer = Arc::new(MemoryBuffer::new(16).expect("memory"));
        let memory = UserMemory::from(Arc::clone(&buffer));
        assert!(memory.buffer().is_some());
        memory.store_u64(8, 5).expect("inside");
        assert_eq!(buffer.load_u64(8), Ok(5));
        assert_eq!((memory.addr(), memory.len(), memory.is_whole()), (buffer.addr(), 16, false));
    }
}
