//! Memory regions.

use crate::abi::*;
use crate::call::{Handle, Object, Owned, Value, list, verbs};
use crate::errno::Errno;
use crate::handles::{self, Handled, Kind};
use crate::pd::Pd;
use crate::post::sge;
use crate::slot::Slot;
use rnic::{Access, Advice, MemoryRegion, NullRegion, Rereg, UserMemory};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) c: UnsafeCell<ibv_mr>,
    handle: u32,
    inner: Slot<Region>,
}

/// `IBV_ADVISE_MR_FLAG_FLUSH`: the work must be done on return, which is always the case.
const FLUSH: u32 = 1;

/// The kind of a region.
enum Region {
    /// Memory of the program, or of the device.
    Memory(MemoryRegion),
    /// No memory: reads return zeros, and writes are discarded.
    Null(#[expect(dead_code, reason = "kept until the region goes")] NullRegion),
    /// Another handle for an imported region.
    Imported,
}

impl Object for Mr {
    type C = ibv_mr;

    fn device(&self) -> Option<rnic::Device> {
        // SAFETY: the field never changes.
        crate::context::device_of(unsafe { (*self.c.get()).context })
    }

    fn handles(&self) -> (u32, u32) {
        // SAFETY: the program does not change the structure during a call.
        (self.handle, unsafe { (*self.c.get()).handle })
    }
}

impl Handled for Mr {
    const KIND: Kind = Kind::Mr;
}

impl Mr {
    /// Creates a region in `pd` and gives it to the program.
    pub(crate) fn of_memory(
        inner: MemoryRegion,
        pd: &Pd,
        addr: *mut c_void,
        length: usize,
    ) -> Result<Handle<ibv_mr>, Errno> {
        let (lkey, rkey) = (inner.lkey(), inner.rkey());
        Self::give_as(Region::Memory(inner), pd, addr, length, (lkey, rkey))
    }

    fn give_as(
        inner: Region,
        pd: &Pd,
        addr: *mut c_void,
        length: usize,
        (lkey, rkey): (u32, u32),
    ) -> Result<Handle<ibv_mr>, Errno> {
        let (context, pd) = (pd.context()?.as_c(), pd.as_c());
        let c = ibv_mr { context, pd, addr, length, handle: handles::next(), lkey, rkey };
        Ok(handles::give(Self::new(c, inner)))
    }

    fn new(c: ibv_mr, inner: Region) -> Box<Self> {
        Box::new(Self { c: UnsafeCell::new(c), handle: c.handle, inner: Slot::new(inner) })
    }

    fn structure(&self) -> ibv_mr {
        // SAFETY: the structure changes only while the program reregisters the region.
        unsafe { *self.c.get() }
    }

    /// The key for local work requests.
    pub(crate) fn lkey(&self) -> u32 {
        self.structure().lkey
    }
}

/// Imports the region with this handle into another context.
pub(crate) fn import(pd: &Pd, handle: u32) -> Result<Handle<ibv_mr>, Errno> {
    let of = handles::with(handle, Mr::structure)?;
    let (context, pd) = (pd.context()?.as_c(), pd.as_c());
    // Programs know only the handle and the keys of the region.
    let c = ibv_mr { context, pd, addr: std::ptr::null_mut(), length: 0, ..of };
    Ok(Mr::new(c, Region::Imported).give())
}

/// Rights that a device may ignore: they are hints (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: u32 = 0x3ff0_0000;

/// Converts the rights that the program gives.
pub(crate) fn access(flags: c_uint) -> Access {
    let unknown = flags & OPTIONAL & !Access::all().bits();
    Access::from_bits_retain(flags & !unknown)
}

/// Memory of the program, to be registered.
pub(crate) fn memory(addr: *mut c_void, length: usize, access: Access) -> Result<UserMemory, Errno> {
    let addr = addr as usize;
    if addr == 0 && length == usize::MAX && access.contains(Access::ON_DEMAND) {
        // SAFETY: the program registers its whole address space, and takes responsibility for accesses to it.
        return Ok(unsafe { UserMemory::whole_address_space() });
    }
    // As the kernel, which pins whole pages and refuses to pin none.
    if length == 0 && addr.is_multiple_of(page_size()) {
        return Err(Errno::INVALID.because(format_args!("no bytes at the beginning of a page ({addr:#x})")));
    }
    if length > 0 && !access.contains(Access::ON_DEMAND) {
        page_in(addr, length, access)?;
    }
    // SAFETY: verbs require the program to keep the memory for this use while it is registered.
    Ok(unsafe { UserMemory::new(addr, length as u64) })
}

/// The rights that need a device to write to the memory (`ib_access_writable` of the kernel).
const WRITABLE: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC).union(Access::MW_BIND);

/// Faults the pages in, as the kernel does when registration pins them.
///
/// # Errors
/// EFAULT if some of the addresses are not mapped, if the program may not read the memory, or if `access` includes
/// writing and the program may not write it. EINVAL if the range extends beyond the last address.
fn page_in(addr: usize, length: usize, access: Access) -> Result<(), Errno> {
    let page = page_size();
    let start = addr / page * page;
    let end = addr.checked_add(length);
    let end = end.ok_or_else(|| {
        Errno::INVALID.because(format_args!("{length} bytes from {addr:#x} on end beyond all addresses"))
    })?;
    let writes = access.intersects(WRITABLE);
    let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    match populate(start, end - start, advice) {
        // The memory belongs to a device and cannot be pinned either, or the program lacks these rights to it.
        Err(Errno(libc::EINVAL)) if can_populate() => {
            let right = if writes { "written" } else { "read" };
            Err(Errno(libc::EFAULT)
                .because(format_args!("the memory at {addr:#x} may not be {right} by this program")))
        }
        Err(Errno(libc::ENOMEM | libc::EFAULT | libc::EHWPOISON)) => Err(Errno(libc::EFAULT)
            .because(format_args!("not all of {length} bytes from {addr:#x} on are mapped"))),
        _ => Ok(()),
    }
}

fn page_size() -> usize {
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    page.ok().flatten().and_then(|page| usize::try_from(page).ok()).unwrap_or(4096)
}

fn populate(start: usize, length: usize, advice: c_int) -> Result<(), Errno> {
    // SAFETY: the call faults pages in and changes no byte of them.
    let done = unsafe { libc::madvise(start as *mut c_void, length, advice) };
    if done == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Whether the kernel can be asked to fault pages in, as of Linux 5.14: a request for no pages tells.
fn can_populate() -> bool {
    populate(0, 0, libc::MADV_POPULATE_READ).is_ok()
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
    Mr::of_memory(inner, pd, addr, length)
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
        return Err(Errno::INVALID.because(format_args!(
            "flags are {flags:#x}; they name translation (1), protection domain (2) and access (4)"
        )));
    }
    let Region::Memory(inner) = mr.inner.get_mut()? else {
        return Err(Errno::INVALID.because("the region was not registered by ibv_reg_mr"));
    };
    let mut change = Rereg::new();
    let rights = if has(IBV_REREG_MR_CHANGE_ACCESS) { access(rights) } else { inner.access() };
    if has(IBV_REREG_MR_CHANGE_ACCESS) {
        change = change.access(rights);
    }
    let pd = pd.filter(|_| has(IBV_REREG_MR_CHANGE_PD));
    if has(IBV_REREG_MR_CHANGE_PD) {
        change = change.pd(pd.ok_or_else(|| Errno::INVALID.because("pd is NULL"))?.inner.get()?);
    }
    let moves = has(IBV_REREG_MR_CHANGE_TRANSLATION);
    if moves {
        change = change.memory(memory(addr, length, rights)?, None);
    }
    inner.rereg(change)?;
    // SAFETY: the program uses the region from one thread while it reregisters it.
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
        mr.inner.destroy(|region| match region {
            Region::Memory(region) => region.deregister_in_place(),
            // Nothing can keep these in use: they are dropped with the structure.
            Region::Null(_) | Region::Imported => Ok(()),
        })?;
        handles::forget(&*mr);
        mr.free();
        Ok(())
    }

    /// Reregisters a region. The call has its own error codes, from -1 down.
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
                crate::explain::failed("ibv_rereg_mr", errno, || None);
                // Every error is found before anything changes.
                IBV_REREG_MR_ERR_INPUT
            }
        }))
    }

    fn alloc_null_mr(pd: &Pd) -> Handle<ibv_mr> {
        let inner = pd.inner.get()?.alloc_null_mr()?;
        let lkey = inner.lkey();
        Mr::give_as(Region::Null(inner), pd, std::ptr::null_mut(), usize::MAX, (lkey, 0))
    }

    fn advise_mr(pd: &Pd, advice: c_uint, flags: u32, sges: *mut ibv_sge, count: u32) -> () {
        let advice = match advice {
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => Advice::Prefetch,
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => Advice::PrefetchWrite,
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Advice::PrefetchNoFault,
            _ => return Err(Errno::UNSUPPORTED),
        };
        if flags & !FLUSH != 0 || count == 0 || sges.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program guarantees `count` elements.
        let sges = unsafe { list(sges, count as usize) };
        let sges: Vec<_> = sges.iter().map(sge).collect();
        Ok(pd.inner.get()?.advise(advice, &sges)?)
    }

    /// Refused: there is no device whose memory could be shared.
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
