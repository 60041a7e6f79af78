//! Redirects programs that look for RDMA devices in the file system to the devices of rnic.
//!
//! This library is loaded before the others (`LD_PRELOAD`) and intercepts the calls of the C library that take a path.
//! It passes a path below `/sys/class/infiniband`, `/sys/class/infiniband_verbs` or `/dev/infiniband` to the function
//! `rnic_map_path` of the drop-in library, which returns the location of the file. All other paths pass unchanged, at
//! the cost of a check of their first bytes. Without that function all paths pass unchanged.
//!
//! Nothing here allocates, takes a lock or changes `errno`, so a program may make these calls wherever it may call the
//! C library: before `main`, in threads, in a forked child, in a signal handler. That holds for all paths that pass
//! unchanged; for the others, the drop-in library does its work once per call of a program that looks for a device.
//! Many of the calls are cancellation points: a thread cancelled in one unwinds through the functions here, which have
//! nothing to clean up.

mod hooks;
mod path;
mod reread;

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library in search order, looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The function's address, or NULL if this C library does not have it.
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name is NUL-terminated. Concurrent lookups find the same function.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

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
