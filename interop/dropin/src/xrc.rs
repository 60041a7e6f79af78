//! XRC domains.

use crate::abi::*;
use crate::call::{Handle, InOut, Object, Owned, verbs};
use crate::context::Context;
use crate::errno::Errno;
use crate::hub::{Hub, locked};
use crate::slot::Slot;
use nix::sys::stat::fstat;
use rnic::XrcDomain;
use std::cell::UnsafeCell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// An XRC domain.
#[repr(C)]
pub(crate) struct Xrcd {
    c: UnsafeCell<ibv_xrcd>,
    pub(crate) inner: Slot<XrcDomain>,
    hub: Arc<Hub>,
    file: Option<File>,
}

impl Object for Xrcd {
    type C = ibv_xrcd;

    fn device(&self) -> Option<rnic::Device> {
        Some(self.hub.device.clone())
    }
}

/// The identity of a domain's file: device and inode.
pub(crate) type File = (u64, u64);

/// A domain that belongs to a file: all programs that open the file share it.
pub(crate) struct Shared {
    file: File,
    domain: XrcDomain,
    handles: usize,
}

/// The attributes that a program must set for a domain.
const PARTS: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;

/// Opens the domain of a file, by the kernel's rules.
fn share(hub: &Hub, file: File, oflags: i32) -> Result<XrcDomain, Errno> {
    let mut all = locked(&hub.xrcds);
    if let Some(shared) = all.iter_mut().find(|shared| shared.file == file) {
        if oflags & libc::O_EXCL != 0 {
            return Err(Errno::INVALID.because("O_EXCL: the file has an XRC domain already"));
        }
        shared.handles += 1;
        return Ok(shared.domain.clone());
    }
    if oflags & libc::O_CREAT == 0 {
        return Err(Errno::AGAIN);
    }
    let domain = hub.device.open_xrcd()?;
    all.push(Shared { file, domain: domain.clone(), handles: 1 });
    Ok(domain)
}

verbs! {
    fn open_xrcd(context: &Context, init: InOut<'_, ibv_xrcd_init_attr>) -> Handle<ibv_xrcd> {
        if init.comp_mask & PARTS != PARTS {
            return Err(Errno::INVALID.because("comp_mask lacks the descriptor or the open flags"));
        }
        let hub = Arc::clone(&context.hub);
        let (inner, file) = if init.fd == -1 {
            (hub.device.open_xrcd()?, None)
        } else if init.fd < 0 {
            return Err(Errno(libc::EBADF));
        } else {
            // SAFETY: the program lends the descriptor.
            let stat = fstat(unsafe { BorrowedFd::borrow_raw(init.fd) })?;
            let file = (stat.st_dev, stat.st_ino);
            (share(&hub, file, init.oflags)?, Some(file))
        };
        let c = UnsafeCell::new(ibv_xrcd { context: context.as_c() });
        Ok(Box::new(Xrcd { c, inner: Slot::new(inner), hub, file }).give())
    }

    fn close_xrcd(xrcd: Owned<Xrcd>) -> () {
        if !xrcd.hub.is_ours() {
            xrcd.free();
            return Ok(());
        }
        let mut all = locked(&xrcd.hub.xrcds);
        match all.iter_mut().find(|shared| Some(shared.file) == xrcd.file) {
            Some(shared) if shared.handles > 1 => shared.handles -= 1,
            _ => {
                xrcd.inner.destroy(XrcDomain::close_in_place)?;
                all.retain(|shared| Some(shared.file) != xrcd.file);
            }
        }
        drop(all);
        xrcd.free();
        Ok(())
    }
}
