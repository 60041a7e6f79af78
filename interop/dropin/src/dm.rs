//! Device memory: memory of the process that programs reach only through copies and work requests.

use crate::abi::*;
use crate::call::{Handle, InOut, Object, Owned, verbs};
use crate::context::Context;
use crate::errno::Errno;
use crate::handles::{self, Handled, Kind};
use crate::mr::{self, Mr};
use crate::pd::Pd;
use rnic::UserMemory;
use std::cell::UnsafeCell;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// The limit of device memory, in bytes.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

/// Device memory.
#[repr(C)]
pub(crate) struct Dm {
    c: UnsafeCell<ibv_dm>,
    handle: u32,
    memory: Arc<Block>,
    /// Whether this is another handle for imported memory.
    imported: bool,
}

impl Object for Dm {
    type C = ibv_dm;

    fn device(&self) -> Option<rnic::Device> {
        // SAFETY: the field never changes.
        crate::context::device_of(unsafe { (*self.c.get()).context })
    }

    fn handles(&self) -> (u32, u32) {
        // SAFETY: the program does not change the structure during a call.
        (self.handle, unsafe { (*self.c.get()).handle })
    }
}

impl Handled for Dm {
    const KIND: Kind = Kind::Dm;
}

/// A block of memory, in 8-byte words, because atomic operations need alignment.
struct Block {
    words: Box<[UnsafeCell<u64>]>,
    length: u64,
}

// SAFETY: no references into the block exist; every access is a copy, and copies may race.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// A part of the block.
    fn part(self: &Arc<Self>, offset: u64, length: usize) -> Result<UserMemory, Errno> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.length);
        end.ok_or_else(|| {
            Errno::INVALID
                .because(format_args!("{length} bytes at {offset} are not inside the device memory"))
        })?;
        let start = self.words.as_ptr() as usize + usize::try_from(offset).map_err(|_| Errno::INVALID)?;
        // SAFETY: no references into the block exist, and the registration keeps the block alive.
        Ok(unsafe { UserMemory::new(start, length as u64) }.keeping(Arc::clone(self) as _))
    }
}

fn new(context: &Context, memory: Arc<Block>, handle: u32, imported: bool) -> Box<Dm> {
    let (to, from) = (Some(to_dm as _), Some(from_dm as _));
    let c = ibv_dm { context: context.as_c(), memcpy_to_dm: to, memcpy_from_dm: from, comp_mask: 0, handle };
    Box::new(Dm { c: UnsafeCell::new(c), handle, memory, imported })
}

/// Imports the memory with this handle into another context.
pub(crate) fn import(context: &Context, handle: u32) -> Result<Handle<ibv_dm>, Errno> {
    let memory = handles::with(handle, |dm: &Dm| Arc::clone(&dm.memory))?;
    Ok(new(context, memory, handle, true).give())
}

/// Checks that a copy consists of whole words.
fn aligned(offset: u64, length: usize) -> Result<(), Errno> {
    const WORD: u64 = 4;
    let whole = offset.is_multiple_of(WORD) && (length as u64).is_multiple_of(WORD);
    if whole { Ok(()) } else { Err(Errno::INVALID.because("device memory is copied in words of 4 bytes")) }
}

verbs! {
    fn alloc_dm(context: &Context, attr: InOut<'_, ibv_alloc_dm_attr>) -> Handle<ibv_dm> {
        if attr.comp_mask != 0 || attr.length == 0 {
            return Err(Errno::INVALID.because("comp_mask is not 0, or length is 0"));
        }
        if attr.length as u64 > MAX_BYTES {
            return Err(Errno::NO_MEMORY.because(format_args!("device memory of more than {MAX_BYTES} bytes")));
        }
        let words = attr.length.div_ceil(size_of::<u64>());
        let words = (0..words).map(|_| UnsafeCell::new(0)).collect();
        let memory = Arc::new(Block { words, length: attr.length as u64 });
        Ok(handles::give(new(context, memory, handles::next(), false)))
    }

    fn free_dm(dm: Owned<Dm>) -> () {
        if dm.imported {
            return Err(Errno::INVALID);
        }
        // Regions in the block keep a reference to it.
        if Arc::strong_count(&dm.memory) > 1 {
            return Err(Errno::BUSY.because("memory regions are left in the device memory"));
        }
        handles::forget(&*dm);
        dm.free();
        Ok(())
    }

    /// Programs copy words of 4 bytes, as mlx5 requires.
    fn to_dm(dm: &Dm, offset: u64, from: *const c_void, length: usize) -> () {
        aligned(offset, length)?;
        // SAFETY: the program guarantees `length` bytes.
        let bytes = unsafe { crate::call::bytes(from.cast::<u8>(), length) };
        dm.memory.part(offset, length)?.write_at(0, bytes).map_err(|_| Errno(libc::EFAULT))
    }

    fn from_dm(to: *mut c_void, dm: &Dm, offset: u64, length: usize) -> () {
        aligned(offset, length)?;
        let memory = dm.memory.part(offset, length)?;
        if to.is_null() || length == 0 {
            return if length == 0 { Ok(()) } else { Err(Errno::INVALID) };
        }
        // SAFETY: the program lends `length` bytes for the call.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
        memory.read_at(0, bytes).map_err(|_| Errno(libc::EFAULT))
    }

    fn reg_dm_mr(pd: &Pd, dm: &Dm, offset: u64, length: usize, flags: c_uint) -> Handle<ibv_mr> {
        let access = mr::access(flags);
        // As in mlx5: device memory has no address by which a region could refer to it.
        if !access.contains(rnic::Access::ZERO_BASED) {
            return Err(Errno::INVALID.because("a region in device memory needs IBV_ACCESS_ZERO_BASED"));
        }
        let memory = dm.memory.part(offset, length)?;
        let inner = pd.inner.get()?.register_memory(memory, None, access)?;
        Mr::of_memory(inner, pd, std::ptr::null_mut(), length)
    }
}
