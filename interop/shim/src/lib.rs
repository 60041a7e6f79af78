//! Redirects programs that look for RDMA devices in the file system to the devices of rnic.
//!
//! This library is loaded before the others (`LD_PRELOAD`) and intercepts the calls of the C library that take a path.
//! It passes a path below `/sys/class/infiniband`, `/sys/class/infiniband_verbs`, `/sys/devices/virtual/rnic` or
//! `/dev/infiniband` to the function `rnic_map_path` of the drop-in library, which returns the location of the file. All
//! other paths pass unchanged, at the cost of a check of their first bytes. Without that function all paths pass unchanged.
//!
//! `/dev/infiniband/rdma_cm` is the device of the connection manager, which librdmacm opens and writes commands to. The
//! drop-in library gives a descriptor for it (`rnic_cm_open`), and a few calls on such a descriptor are passed to it as
//! well: see `channel`.
//!
//! A tool that asks the kernel about RDMA devices by netlink gets a socket at which the drop-in library answers
//! (`rnic_nldev`): see `netlink`.
//!
//! Nothing here allocates, takes a lock or changes `errno`, so a program may make these calls wherever it may call the
//! C library: before `main`, in threads, in a forked child, in a signal handler. That holds for all paths that pass
//! unchanged; for the others, the drop-in library does its work once per call of a program that looks for a device.
//! Many of the calls are cancellation points: a thread cancelled in one unwinds through the functions here, which have
//! nothing to clean up.

mod channel;
mod files;
mod hooks;
mod netlink;
mod next;
mod path;
mod reread;

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Looks up a function of the drop-in library, again on each call until that library is loaded.
pub(crate) fn symbol(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let mut found = place.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: the name is NUL-terminated.
        found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        place.store(found, Ordering::Relaxed);
    }
    found
}

/// Declares functions of the drop-in library. Each is looked up until that library is loaded.
macro_rules! of_dropin {
    ($($name:ident, $symbol:literal: $type:ty;)*) => { $(
        fn $name() -> Option<$type> {
            use std::sync::atomic::AtomicPtr;
            static FOUND: AtomicPtr<std::ffi::c_void> = AtomicPtr::new(std::ptr::null_mut());
            let found = $crate::symbol(&FOUND, $symbol);
            // SAFETY: the function of that name has this type.
            (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut std::ffi::c_void, $type>(found) })
        }
    )* };
}
pub(crate) use of_dropin;

/// `errno` of this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: `errno` belongs to this thread.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` of this thread.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
