//! Memory regions.

use crate::abi::*;
use crate::call::{Handle, Object, Owned, Value, verbs};
use crate::errno::Errno;
use crate::pd::Pd;
use crate::slot::Slot;
use rnic::{Access, MemoryRegion, Rereg, UserMemory};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) c: UnsafeCell<ibv_mr>,
    pub(crate) inner: Slot<MemoryRegion>,
}

impl Object for Mr {
    type C = ibv_mr;
}

impl Mr {
    pub(crate) fn new(
        inner: MemoryRegion,
        pd: &Pd,
        addr: *mut c_void,
        length: usize,
    ) -> Result<Box<Self>, Errno> {
        let c = ibv_mr {
            context: pd.context()?.as_c(),
            pd: pd.as_c(),
            addr,
            length,
            handle: 0,
            lkey: inner.lkey(),
            rkey: inner.rkey(),
        };
        Ok(Box::new(Self { c: UnsafeCell::new(c), inner: Slot::new(inner) }))
    }
}

/// Rights that a device may do without: they are hints (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: u32 = 0x3ff0_0000;

/// Rights as the program gives them.
pub(crate) fn access(flags: c_uint) -> Access {
    let unknown = flags & OPTIONAL & !Access::all().bits();
    Access::from_bits_retain(flags & !unknown)
}

/// Memory of the program.
pub(crate) fn memory(addr: *mut c_void, length: usize, access: Access) -> Result<UserMemory, Errno> {
    let addr = addr as usize;
    if addr == 0 && length == usize::MAX && access.contains(Access::ON_DEMAND) {
        // SAFETY: the program registers its whole memory, and minds what is done with it.
        return Ok(unsafe { UserMemory::whole_address_space() });
    }
    if length > 0 && !access.contains(Access::ON_DEMAND) {
        page_in(addr, length, access)?;
    }
    // SAFETY: the program keeps the memory for this as long as it is registered; verbs ask it to.
    Ok(unsafe { UserMemory::new(addr, length as u64) })
}

/// Has the pages there, as registration does on hardware, which pins them: memory that is not there is EFAULT.
fn page_in(addr: usize, length: usize, access: Access) -> Result<(), Errno> {
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    let page = page.ok().flatten().and_then(|page| usize::try_from(page).ok()).unwrap_or(4096);
    let start = addr / page * page;
    let end = addr.checked_add(length).ok_or(Errno(libc::EINVAL))?;
    let advice = if access.contains(Access::LOCAL_WRITE) {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    // SAFETY: it brings pages in and changes no byte of them.
    match unsafe { libc::madvise(start as *mut c_void, end - start, advice) } {
        0 => Ok(()),
        _ => match Errno::last() {
            Errno(libc::ENOMEM | libc::EFAULT) => Err(Errno(libc::EFAULT)),
            // Memory that cannot be brought in so, and kernels before 5.14, which do not know this.
            _ => Ok(()),
        },
    }
}

fn register(
    pd: &Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<Handle<ibv_mr>, Errno> {
    let access = access(flags);
    let va = if access.contains(Access::ZERO_BASED) { None } else { Some(iova) };
    let memory = memory(addr, length, access)?;
    let whole = memory.is_whole();
    let inner = pd.inner.get()?.register_memory(memory, va.filter(|_| !whole), access)?;
    Ok(Mr::new(inner, pd, addr, length)?.give())
}

fn reregister(
    mr: &Mr,
    flags: u32,
    pd: Option<&Pd>,
    addr: *mut c_void,
    length: usize,
    rights: u32,
) -> Result<(), Errno> {
    const ALL: u32 = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    let has = |bit| flags & bit != 0;
    if flags & !ALL != 0 || flags == 0 {
        return Err(Errno::INVALID);
    }
    let inner = mr.inner.get_mut()?;
    let mut change = Rereg::new();
    let rights = if has(IBV_REREG_MR_CHANGE_ACCESS) { access(rights) } else { inner.access() };
    if has(IBV_REREG_MR_CHANGE_ACCESS) {
        change = change.access(rights);
    }
    let pd = pd.filter(|_| has(IBV_REREG_MR_CHANGE_PD));
    if has(IBV_REREG_MR_CHANGE_PD) {
        change = change.pd(pd.ok_or(Errno::INVALID)?.inner.get()?);
    }
    let moves = has(IBV_REREG_MR_CHANGE_TRANSLATION);
    if moves {
        change = change.memory(memory(addr, length, rights)?, None);
    }
    inner.rereg(change)?;
    // SAFETY: the program uses the region from one thread while it is registered anew.
    let c = unsafe { &mut *mr.c.get() };
    (c.lkey, c.rkey) = (inner.lkey(), inner.rkey());
    if moves {
        (c.addr, c.length) = (addr, length);
    }
    if let Some(pd) = pd {
        c.pd = pd.as_c();
    }
    Ok(())
}

verbs! {
    fn ibv_reg_mr(pd: &Pd, addr: *mut c_void, length: usize, flags: c_int) -> Handle<ibv_mr> {
        register(pd, addr, length, addr as u64, flags.cast_unsigned())
    }

    fn ibv_reg_mr_iova(pd: &Pd, addr: *mut c_void, length: usize, iova: u64, flags: c_int) -> Handle<ibv_mr> {
        register(pd, addr, length, iova, flags.cast_unsigned())
    }

    fn ibv_reg_mr_iova2(pd: &Pd, addr: *mut c_void, length: usize, iova: u64, flags: c_uint) -> Handle<ibv_mr> {
        register(pd, addr, length, iova, flags)
    }

    fn ibv_dereg_mr(mr: Owned<Mr>) -> () {
        mr.inner.destroy(MemoryRegion::deregister)?;
        mr.free();
        Ok(())
    }

    /// Registers a region anew. Errors are those of its own, -1 and on.
    fn ibv_rereg_mr(
        mr: &Mr,
        flags: c_int,
        pd: Option<&Pd>,
        addr: *mut c_void,
        length: usize,
        rights: c_int,
    ) -> Value<c_int> {
        Ok(Value(match reregister(mr, flags.cast_unsigned(), pd, addr, length, rights.cast_unsigned()) {
            Ok(()) => 0,
            Err(errno) => {
                errno.set();
                // All is found before anything changes.
                IBV_REREG_MR_ERR_INPUT
            }
        }))
    }

    /// There is no device whose memory could be shared.
    fn ibv_reg_dmabuf_mr(
        _pd: &Pd,
        _offset: u64,
        _length: usize,
        _iova: u64,
        _fd: c_int,
        _access: c_int,
    ) -> Handle<ibv_mr> {
        Err(Errno::UNSUPPORTED)
    }
}
