//! Which paths are led elsewhere.

use crate::symbol;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicPtr;

/// `rnic_map_path` of the drop-in library: stores where a path is led and returns 1, or returns 0 if it passes.
type MapPath = unsafe extern "C-unwind" fn(path: *const c_char, to: *mut c_char, room: usize) -> c_int;

/// Where paths can be led: these folders and what is in them.
const FOLDERS: [&[&[u8]]; 3] =
    [&[b"sys", b"class", b"infiniband"], &[b"sys", b"class", b"infiniband_verbs"], &[b"dev", b"infiniband"]];

/// Whether `path` may be one of ours. Two slashes are one, and a `.` is nothing; links and `..` are not followed.
fn is_ours(path: &[u8]) -> bool {
    // The price of all other paths.
    if path.first() != Some(&b'/')
        || !(path.starts_with(b"/sys/") || path.starts_with(b"/dev/i") || path.starts_with(b"//"))
    {
        return false;
    }
    let parts = || path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    FOLDERS.iter().any(|folder| parts().take(folder.len()).eq(folder.iter().copied()))
}

/// Whether a path may have to be led elsewhere.
///
/// # Safety
/// `path` is NULL or a string.
pub(crate) unsafe fn is_led(path: *const c_char) -> bool {
    // SAFETY: the caller's word.
    !path.is_null() && is_ours(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Calls `next` with the path that `path` is led to, or with `path` itself if it is not. Apart from the other calls, whose
/// stack is small in some signal handlers.
///
/// # Safety
/// `path` is a string.
#[cold]
#[inline(never)]
pub(crate) unsafe fn with_led<R>(path: *const c_char, next: impl FnOnce(*const c_char) -> R) -> R {
    let Some(map) = map_path() else { return next(path) };
    let mut room = [0; libc::PATH_MAX as usize];
    // SAFETY: `errno` is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: a string, and room of that length.
    let led = unsafe { map(path, room.as_mut_ptr(), room.len()) };
    // SAFETY: as above. What happened on the way is not the program's matter.
    unsafe { *libc::__errno_location() = errno };
    next(if led == 1 { room.as_ptr() } else { path })
}

/// A path that was resolved is given to the program as it would be in the kernel's file system, so that what it does with that
/// is led again: what comes before the folders is taken away, in place.
pub(crate) fn resolved(path: *mut c_void) {
    if path.is_null() {
        return;
    }
    let path: *mut c_char = path.cast();
    // SAFETY: the C library gives a string.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let at = |folder: &[u8]| bytes.windows(folder.len()).position(|window| window == folder);
    let Some(start) = at(b"/sys/class/infiniband").or_else(|| at(b"/dev/infiniband")) else { return };
    // SAFETY: the end of the string, with its zero, moves to its beginning.
    unsafe { std::ptr::copy(path.add(start), path, bytes.len() - start + 1) };
}

/// The function of the drop-in library, once that is loaded.
fn map_path() -> Option<MapPath> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let found = symbol(&FOUND, c"rnic_map_path");
    // SAFETY: the function of that name has this type.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, MapPath>(found) })
}
