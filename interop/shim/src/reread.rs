//! Files whose content changes between reads.
//!
//! A program may keep a counter file open and read it repeatedly from the beginning; the kernel generates new content
//! each time. So the shim keeps the descriptors of such files in a small lock-free table, and asks the drop-in library
//! to rewrite the file before each read. A read of any other file costs a load of one number, which is 0 in most
//! programs.

use crate::symbol;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// The capacity of the table; further files keep the content that they had when they were opened.
const MOST: usize = 256;

/// The value of a free slot.
const NONE: c_int = -1;

static FILES: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];

/// The number of descriptors in the table. It may lag for a moment, as for a program that reads a file in one thread
/// while it opens it in another.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// `rnic_refresh` of the drop-in library: rewrites the file behind a descriptor if it is read from the beginning (`at` is 0, or
/// negative and the descriptor is there), and returns 1. Returns 0 if the file is not one of the library's changing files.
type Refresh = unsafe extern "C-unwind" fn(file: c_int, at: i64) -> c_int;

/// A place in a file: where its descriptor is.
const HERE: i64 = -1;

/// Adds the descriptor of a file that was just opened; a negative descriptor means that the open failed.
pub(crate) fn opened(file: c_int) {
    if file < 0
        || !is_refreshed(file, None)
        || FILES.iter().any(|place| place.load(Ordering::Relaxed) == file)
    {
        return;
    }
    let free =
        |place: &&AtomicI32| place.compare_exchange(NONE, file, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if FILES.iter().find(free).is_some() {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Refreshes a file before its descriptor is read: at a place, or where it is.
pub(crate) fn refresh(file: c_int, at: Option<i64>) {
    if COUNT.load(Ordering::Relaxed) > 0 {
        look(file, at);
    }
}

#[cold]
fn look(file: c_int, at: Option<i64>) {
    let Some(place) = FILES.iter().find(|place| place.load(Ordering::Relaxed) == file) else { return };
    // The descriptor may belong to another file by now.
    if !is_refreshed(file, at)
        && place.compare_exchange(file, NONE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the descriptor belongs to a file with changing content. If it does, the file is rewritten now.
fn is_refreshed(file: c_int, at: Option<i64>) -> bool {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let found = symbol(&FOUND, c"rnic_refresh");
    if found.is_null() {
        return false;
    }
    // SAFETY: the function of that name has this type.
    let ask = unsafe { std::mem::transmute::<*mut c_void, Refresh>(found) };
    // SAFETY: `errno` belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the function accepts any number.
    let refreshed = unsafe { ask(file, at.unwrap_or(HERE)) } == 1;
    // SAFETY: as above. Errors on the way do not concern the program.
    unsafe { *libc::__errno_location() = errno };
    refreshed
}
