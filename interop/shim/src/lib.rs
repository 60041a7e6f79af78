//! Leads programs that look for RDMA devices in the file system to those of rnic.
//!
//! Loaded before the other libraries (`LD_PRELOAD`), this stands in front of those calls of the C library that take a
//! path. A path below `/sys/class/infiniband`, `/sys/class/infiniband_verbs` or `/dev/infiniband` is given to the
//! function `rnic_map_path` of the drop-in library, which says where such files are; all others pass as they are, for the price of a
//! look at their first bytes. Without that function everything does.
//!
//! Nothing here allocates, takes a lock or changes `errno`, so the calls may be made wherever those of the C library
//! may: before `main`, in threads, in a forked child, in a signal handler. That holds for all paths that pass; what the
//! drop-in library does about the others, it does once per call of a program that looks for a device. Many of the calls are
//! cancellation points: a thread that is cancelled in one unwinds through the functions here, which have nothing to clean up.

mod hooks;
mod path;
mod reread;

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the library behind this one, looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// NULL if this C library has no such function.
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: a name that ends with a zero. Whoever looks it up at the same time finds the same.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// A function of the drop-in library, looked up until that is loaded.
pub(crate) fn symbol(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let mut found = place.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: a name that ends with a zero.
        found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        place.store(found, Ordering::Relaxed);
    }
    found
}
