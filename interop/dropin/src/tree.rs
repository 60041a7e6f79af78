//! The device files that programs see in the file system, for `rnic-shim`.

use crate::cancel;
use crate::devices::config;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Maps `path` to another path, for `rnic-shim`: stores that path in `to`, with a terminating NUL, and returns 1.
/// Returns 0 if `path` needs no mapping.
///
/// # Safety
/// `path` is a string, and `to` has room for `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rnic_map_path(path: *const c_char, to: *mut c_char, room: usize) -> c_int {
    let before = cancel::disable();
    // SAFETY: guaranteed by the caller.
    let mapped = unsafe { map(path, to, room) };
    cancel::restore(before);
    mapped
}

/// [`rnic_map_path`], with cancellation of the thread disabled.
#[inline(never)]
unsafe extern "C" fn map(path: *const c_char, to: *mut c_char, room: usize) -> c_int {
    // SAFETY: guaranteed by the caller.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    // No failure here concerns the program, and no panic may unwind through C.
    let mapped = std::panic::catch_unwind(|| config()?.map_path(path));
    let Ok(Some(mapped)) = mapped else { return 0 };
    let bytes = mapped.as_os_str().as_bytes();
    if bytes.len() >= room {
        return 0;
    }
    // SAFETY: `to` has room for the bytes and the terminating NUL.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len());
        *to.add(bytes.len()) = 0;
    }
    1
}

/// Rewrites the file behind a descriptor before the program reads it from the beginning, and returns 1. Returns 0 if
/// the file is not one whose content changes. `at`: where it reads; if negative, where the descriptor is.
#[unsafe(no_mangle)]
extern "C-unwind" fn rnic_refresh(file: c_int, at: i64) -> c_int {
    let before = cancel::disable();
    let refreshed = refresh(file, at);
    cancel::restore(before);
    refreshed
}

/// [`rnic_refresh`], with cancellation of the thread disabled.
#[inline(never)]
extern "C" fn refresh(file: c_int, at: i64) -> c_int {
    if file < 0 {
        return 0;
    }
    let refreshed = std::panic::catch_unwind(|| {
        // SAFETY: the program lends the descriptor while it reads from it or has just opened it. If the program closes
        // it at the same time, the system calls on it fail.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        config().is_some_and(|config| config.refresh(file, u64::try_from(at).ok()))
    });
    c_int::from(refreshed.unwrap_or(false))
}
