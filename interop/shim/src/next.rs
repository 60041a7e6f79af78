//! The functions that the hooks stand in front of.

use std::ffi::{CStr, c_int, c_long, c_void};
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

/// The return value of a call that the C library lacks.
pub(crate) trait Missing {
    const MISSING: Self;
}

impl Missing for c_int {
    const MISSING: Self = -1;
}

impl Missing for c_long {
    const MISSING: Self = -1;
}

impl Missing for *mut c_void {
    const MISSING: Self = std::ptr::null_mut();
}

/// The next function of this name and type. If the C library lacks it, the surrounding function returns `missing`.
macro_rules! next {
    ($name:ident: $type:ty, $missing:expr) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new(match std::ffi::CStr::from_bytes_with_nul(
            concat!(stringify!($name), "\0").as_bytes(),
        ) {
            Ok(name) => name,
            Err(_) => c"",
        });
        let next = NEXT.get();
        if next.is_null() {
            // SAFETY: `errno` belongs to this thread.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
            return $missing;
        }
        // SAFETY: the C library's function of that name has this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, $type>(next) }
    }};
}
pub(crate) use next;
