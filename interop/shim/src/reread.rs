//! Files that are read again.
//!
//! A program may keep a counter open and read it from its beginning every now and then; the kernel writes it anew each time.
//! So which descriptors are of such files is kept, in a small table without a lock, and reads of those ask the drop-in
//! library to write the file anew before. Reads of all others cost a look at a number that is 0 in most programs.

use crate::symbol;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// How many such files are kept; more are read as they were when they were opened.
const MOST: usize = 256;

/// What stands where no file is.
const NONE: c_int = -1;

static FILES: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];

/// How many there are. It may be behind for a moment, as for a program that reads a file in one thread while it opens it in
/// another.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// `rnic_refresh` of the drop-in library: writes the file behind a descriptor anew, if it is read from its beginning, and
/// returns 1; or returns 0 if that is no file of its own that changes.
type Refresh = unsafe extern "C-unwind" fn(file: c_int) -> c_int;

/// A file of ours was opened, if the descriptor is none that says that it was not.
pub(crate) fn opened(file: c_int) {
    if file < 0 || !is_refreshed(file) || FILES.iter().any(|place| place.load(Ordering::Relaxed) == file) {
        return;
    }
    let free =
        |place: &&AtomicI32| place.compare_exchange(NONE, file, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if FILES.iter().find(free).is_some() {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// A descriptor is about to be read.
pub(crate) fn refresh(file: c_int) {
    if COUNT.load(Ordering::Relaxed) > 0 {
        look(file);
    }
}

#[cold]
fn look(file: c_int) {
    let Some(place) = FILES.iter().find(|place| place.load(Ordering::Relaxed) == file) else { return };
    // The number may be another file's by now.
    if !is_refreshed(file) && place.compare_exchange(file, NONE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a descriptor is of a file that is written anew. It is, now.
fn is_refreshed(file: c_int) -> bool {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let found = symbol(&FOUND, c"rnic_refresh");
    if found.is_null() {
        return false;
    }
    // SAFETY: the function of that name has this type.
    let ask = unsafe { std::mem::transmute::<*mut c_void, Refresh>(found) };
    // SAFETY: `errno` is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: any number will do.
    let refreshed = unsafe { ask(file) } == 1;
    // SAFETY: as above. What happened on the way is not the program's matter.
    unsafe { *libc::__errno_location() = errno };
    refreshed
}
