//! Decides which paths are redirected.

use crate::symbol;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicPtr;

/// `rnic_map_path` of the drop-in library: stores the new location of a path and returns 1, or returns 0 if the path is
/// not redirected.
type MapPath = unsafe extern "C-unwind" fn(path: *const c_char, to: *mut c_char, room: usize) -> c_int;

/// The folders whose paths may be redirected, with everything in them.
const FOLDERS: [&[&[u8]]; 6] = [
    &[b"sys", b"class", b"infiniband"],
    &[b"sys", b"class", b"infiniband_verbs"],
    &[b"sys", b"class", b"infiniband_ucma"],
    &[b"sys", b"devices", b"virtual", b"rnic"],
    &[b"sys", b"class", b"misc", b"rdma_cm"],
    &[b"dev", b"infiniband"],
];

/// The device of the connection manager.
const CONNECTION_MANAGER: &[&[u8]] = &[b"dev", b"infiniband", b"rdma_cm"];

/// The parts of a path. Repeated slashes count as one, and a `.` is skipped; links and `..` are not resolved.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."))
}

/// Whether a path that [is led](is_led) is that of the connection manager's device.
pub(crate) fn is_connection_manager(path: &[u8]) -> bool {
    parts(path).eq(CONNECTION_MANAGER.iter().copied())
}

/// Whether `path` may be in one of these folders.
fn is_ours(path: &[u8]) -> bool {
    // This check is the only cost for all other paths.
    if path.first() != Some(&b'/')
        || !(path.starts_with(b"/sys/") || path.starts_with(b"/dev/i") || path.starts_with(b"//"))
    {
        return false;
    }
    FOLDERS.iter().any(|folder| parts(path).take(folder.len()).eq(folder.iter().copied()))
}

/// Whether a path may need redirection.
///
/// # Safety
/// `path` is NULL or a string.
pub(crate) unsafe fn is_led(path: *const c_char) -> bool {
    // SAFETY: guaranteed by the caller.
    !path.is_null() && is_ours(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Calls `next` with the new location of `path`, or with `path` itself if it is not redirected. This function is
/// separate because it needs stack space, which is scarce in some signal handlers.
///
/// # Safety
/// `path` is a string.
#[cold]
#[inline(never)]
pub(crate) unsafe fn with_led<R>(path: *const c_char, next: impl FnOnce(*const c_char) -> R) -> R {
    let Some(map) = map_path() else { return next(path) };
    let mut room = [0; libc::PATH_MAX as usize];
    // SAFETY: `errno` belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: `path` is a string, and `room` has the given length.
    let led = unsafe { map(path, room.as_mut_ptr(), room.len()) };
    // SAFETY: as above. Errors on the way do not concern the program.
    unsafe { *libc::__errno_location() = errno };
    next(if led == 1 { room.as_ptr() } else { path })
}

/// Converts a resolved path to its form in the kernel's file system, in place: removes the part in front of the
/// folders. When the program uses the result, it is redirected again.
pub(crate) fn resolved(path: *mut c_void) {
    if path.is_null() {
        return;
    }
    let path: *mut c_char = path.cast();
    // SAFETY: the C library returns a string.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let at = |folder: &[u8]| bytes.windows(folder.len()).position(|window| window == folder);
    let folders: [&[u8]; 4] = [
        b"/sys/devices/virtual/rnic",
        b"/sys/class/infiniband",
        b"/sys/class/misc/rdma_cm",
        b"/dev/infiniband",
    ];
    let Some(start) = folders.into_iter().find_map(at) else { return };
    // SAFETY: the end of the string, with its terminating NUL, moves to the beginning.
    unsafe { std::ptr::copy(path.add(start), path, bytes.len() - start + 1) };
}

/// The function of the drop-in library, or `None` until that library is loaded.
fn map_path() -> Option<MapPath> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let found = symbol(&FOUND, c"rnic_map_path");
    // SAFETY: the function of that name has this type.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, MapPath>(found) })
}
