//! Device contexts.

use crate::abi::{VerbsDevice, ibv_context, verbs_context};
use crate::call::{Handle, Object, Owned, Status, verbs};
use crate::errno::Errno;
use crate::events::Inbox;
use crate::hub::{Hub, locked};
use crate::{cq_ex, create, dm, mr, parent, poll, post, query, window, xrc};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use rnic::process::hold_forks;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// An open device, as a program sees it.
#[repr(C)]
pub(crate) struct Context {
    c: UnsafeCell<verbs_context>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) inbox: Arc<Inbox>,
    /// The descriptor that the program takes for that of the kernel's device. It identifies the context when the
    /// program passes it back.
    command: OwnedFd,
    opened: u32,
}

impl Object for Context {
    type C = ibv_context;

    const OFFSET: usize = offset_of!(verbs_context, context);

    fn device(&self) -> Option<rnic::Device> {
        Some(self.hub.device.clone())
    }
}

/// The addresses of the open contexts.
static CONTEXTS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The device of a context, unless the program has closed the context.
pub(crate) fn device_of(context: *mut ibv_context) -> Option<rnic::Device> {
    let _whole = hold_forks();
    let open = locked(&CONTEXTS);
    // SAFETY: the contexts in the list are open, and closing one waits for the lock of the list.
    let context = open.contains(&(context as usize)).then(|| unsafe { Context::of(context) }).flatten();
    context.and_then(Object::device)
}

fn open(device: *mut crate::abi::ibv_device, index: usize) -> Result<Box<Context>, Errno> {
    let hub = Hub::open(index)?;
    let inbox = Arc::new(Inbox::new()?);
    let command = memfd_create(c"rnic", MFdFlags::MFD_CLOEXEC)?;
    // SAFETY: the structure consists of numbers and pointers, for which zero and NULL are valid.
    let mut c: verbs_context = unsafe { std::mem::zeroed() };
    c.sz = size_of::<verbs_context>();
    offer(&mut c);
    c.context.device = device;
    c.context.cmd_fd = command.as_raw_fd();
    c.context.async_fd = inbox.flag.as_fd().as_raw_fd();
    c.context.num_comp_vectors = 1;
    // The marker that verbs_context.h calls __VERBS_ABI_IS_EXTENDED: a verbs_context surrounds this context.
    c.context.abi_compat = usize::MAX as *mut _;
    hub.join(&inbox);
    Ok(Box::new(Context { c: UnsafeCell::new(c), hub, inbox, command, opened: std::process::id() }))
}

/// Fills in the calls that are not exported symbols. For a NULL entry the headers themselves return EOPNOTSUPP.
fn offer(c: &mut verbs_context) {
    c.query_port = Some(query::query_port);
    c.query_device_ex = Some(query::query_device_ex);
    c.query_rt_values = Some(query::query_rt_values);
    c.create_cq_ex = Some(cq_ex::create_cq_ex);
    c.create_qp_ex = Some(create::create_qp_ex);
    c.create_srq_ex = Some(create::create_srq_ex);
    c.get_srq_num = Some(create::get_srq_num);
    c.open_xrcd = Some(xrc::open_xrcd);
    c.close_xrcd = Some(xrc::close_xrcd);
    c.advise_mr = Some(mr::advise_mr);
    c.alloc_null_mr = Some(mr::alloc_null_mr);
    c.alloc_dm = Some(dm::alloc_dm);
    c.free_dm = Some(dm::free_dm);
    c.reg_dm_mr = Some(dm::reg_dm_mr);
    c.alloc_td = Some(parent::alloc_td);
    c.dealloc_td = Some(parent::dealloc_td);
    c.alloc_parent_domain = Some(parent::alloc_parent_domain);
    let ops = &mut c.context.ops;
    ops.alloc_mw = Some(window::alloc_mw);
    ops.bind_mw = Some(window::bind_mw);
    ops.dealloc_mw = Some(window::dealloc_mw);
    ops.poll_cq = Some(poll::poll_cq);
    ops.req_notify_cq = Some(poll::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(post::post_srq_recv);
}

verbs! {
    fn ibv_open_device(device: &VerbsDevice) -> Handle<ibv_context> {
        let handle = open(device.as_c(), device.index)?.give();
        let _whole = hold_forks();
        locked(&CONTEXTS).push(handle.0 as usize);
        Ok(handle)
    }

    fn ibv_close_device(context: Owned<Context>) -> Status {
        let whole = hold_forks();
        locked(&CONTEXTS).retain(|address| *address != context.as_c() as usize);
        drop(whole);
        context.free();
        Ok(Status::OK)
    }

    fn ibv_import_device(command: c_int) -> Handle<ibv_context> {
        if command < 0 {
            return Err(Errno(libc::EBADF));
        }
        let _whole = hold_forks();
        // SAFETY: the program lends the descriptor.
        let given = fstat(unsafe { BorrowedFd::borrow_raw(command) })?;
        for address in locked(&CONTEXTS).iter() {
            // SAFETY: the contexts in the list are open, and closing one waits for the lock of the list.
            let Some(context) = (unsafe { Context::of(*address as *mut ibv_context) }) else { continue };
            let ours = fstat(&context.command)?;
            if (ours.st_dev, ours.st_ino) == (given.st_dev, given.st_ino)
                && context.opened == std::process::id()
            {
                // SAFETY: the structures of devices stay until the process ends.
                let device = unsafe { (*context.c.get()).context.device };
                // SAFETY: as above.
                let index = unsafe { VerbsDevice::of(device) }.ok_or(Errno::INVALID)?.index;
                return Ok(open(device, index)?.give());
            }
        }
        Err(Errno::INVALID)
    }
}
