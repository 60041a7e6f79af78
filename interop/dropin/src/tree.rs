//! Where programs find the devices in the file system: what `rnic-shim` asks.

use crate::cancel;
use crate::devices::config;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where `path` is led, for `rnic-shim`: stores that in `to`, with a zero behind it, and returns 1. Returns 0 if `path` is
/// to be taken as it is.
///
/// # Safety
/// `path` is a string, and there are `room` bytes at `to`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rnic_map_path(path: *const c_char, to: *mut c_char, room: usize) -> c_int {
    let before = cancel::disable();
    // SAFETY: the caller's word.
    let mapped = unsafe { map(path, to, room) };
    cancel::restore(before);
    mapped
}

/// [`rnic_map_path`], in a thread that is not cancelled.
#[inline(never)]
unsafe extern "C" fn map(path: *const c_char, to: *mut c_char, room: usize) -> c_int {
    // SAFETY: the caller's word.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    // Nothing that may go wrong is the program's matter, and no panic may go through C.
    let mapped = std::panic::catch_unwind(|| config()?.map_path(path));
    let Ok(Some(mapped)) = mapped else { return 0 };
    let bytes = mapped.as_os_str().as_bytes();
    if bytes.len() >= room {
        return 0;
    }
    // SAFETY: there is room for them, and for the zero.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len());
        *to.add(bytes.len()) = 0;
    }
    1
}

/// Writes the file behind a descriptor anew, before it is read from its beginning, and returns 1; returns 0 if it is none
/// that changes.
#[unsafe(no_mangle)]
extern "C-unwind" fn rnic_refresh(file: c_int) -> c_int {
    let before = cancel::disable();
    let refreshed = refresh(file);
    cancel::restore(before);
    refreshed
}

/// [`rnic_refresh`], in a thread that is not cancelled.
#[inline(never)]
extern "C" fn refresh(file: c_int) -> c_int {
    if file < 0 {
        return 0;
    }
    let refreshed = std::panic::catch_unwind(|| {
        // SAFETY: the program lends it, while it reads from it or has just opened it. If it closes it at the same time, what
        // is asked of it fails.
        config().is_some_and(|config| config.refresh(unsafe { BorrowedFd::borrow_raw(file) }))
    });
    c_int::from(refreshed.unwrap_or(false))
}
