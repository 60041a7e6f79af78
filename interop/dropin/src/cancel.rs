//! Threads that are cancelled (`pthread_cancel`).
//!
//! A cancelled thread unwinds its stack at its next cancellation point, which most calls of the operating system are; with
//! the asynchronous type it does so wherever it is. Frames of Rust that catch panics abort the process then, and those that
//! hold a lock would take it along. So a verb does its work with cancellation disabled, and a verb that waits leaves its
//! frames before it does: what is on the stack when a thread is unwound holds nothing, and has nothing to clean up.

use crate::call::Reply;
use crate::errno::Errno;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

/// As `pthread.h` has them.
const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// Whether a thread could be cancelled, and how.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Before {
    state: c_int,
    kind: c_int,
}

// The same functions as in the crate libc, which says of them that they return.
unsafe extern "C-unwind" {
    safe fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    fn read(fd: c_int, to: *mut c_void, room: usize) -> isize;
}

/// Keeps this thread from being cancelled. Returns what [`restore`] takes.
///
/// The type is changed too. The canceller looks at the state before it sends its signal, and glibc 2.36 does not look again
/// when the signal arrives, but at the type: a thread with the asynchronous type would be cancelled with cancellation disabled.
#[inline]
pub(crate) extern "C-unwind" fn disable() -> Before {
    let mut before = Before { state: PTHREAD_CANCEL_ENABLE, kind: PTHREAD_CANCEL_DEFERRED };
    // SAFETY: room for the type, and for the state.
    unsafe {
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &raw mut before.kind);
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before.state);
    }
    before
}

/// Lets this thread be cancelled again, if it could be before. With the asynchronous type that may happen here.
#[inline]
pub(crate) extern "C-unwind" fn restore(before: Before) {
    let mut unused = 0;
    if before.state == PTHREAD_CANCEL_ENABLE {
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &raw mut unused) };
    }
    if before.kind == PTHREAD_CANCEL_ASYNCHRONOUS {
        // SAFETY: as above.
        unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &raw mut unused) };
    }
}

/// What a verb that may have to wait comes to.
pub(crate) enum Found {
    /// What was asked for.
    Event,
    /// Nothing, until this descriptor is readable.
    Nothing(c_int),
}

impl Found {
    pub(crate) fn nothing_at(fd: BorrowedFd<'_>) -> Self {
        Self::Nothing(fd.as_raw_fd())
    }
}

/// As a number: 0 for an event, -1 for an error, and otherwise the descriptor and 1.
impl Reply for Found {
    type Raw = c_int;

    fn reply(result: Result<Self, Errno>) -> c_int {
        match result {
            Ok(Self::Event) => 0,
            Ok(Self::Nothing(fd)) => fd.saturating_add(1),
            Err(errno) => {
                errno.set();
                -1
            }
        }
    }
}

/// Defines verbs that wait: a cancellation point, as a call that reads from the kernel's descriptor is. `look` is asked,
/// and again after each wait, until it [finds](Found) an event or fails.
macro_rules! waiting_verbs {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $look:ident;)*) => {$(
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> std::ffi::c_int {
            loop {
                $crate::cancel::point();
                // SAFETY: the caller's arguments.
                let found = unsafe { $look($($arg),*) };
                if found <= 0 {
                    return found;
                }
                if $crate::cancel::wait_readable(found - 1) != 0 {
                    return -1;
                }
            }
        }
    )*};
}
pub(crate) use waiting_verbs;

/// A thread that was cancelled ends here.
#[inline]
pub(crate) extern "C-unwind" fn point() {
    pthread_testcancel();
}

/// Waits until a counter can be read, unless the program made its descriptor one that does not wait. Returns 0, or -1 with
/// `errno`: EAGAIN if there is nothing and the program does not want to wait, EINTR.
///
/// It waits by reading, and puts back what it read: that is how signals end it, or do not, as the program asked for when
/// it set their handlers (`SA_RESTART`). Waiting by poll would not. A C library before glibc 2.41 may cancel a thread in the
/// moment in which it has read: the count is lost then, and the next event makes the descriptor readable again.
pub(crate) extern "C-unwind" fn wait_readable(fd: c_int) -> c_int {
    // SAFETY: a number; it tells of a descriptor, if there is one.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags == -1 {
        return -1;
    }
    if flags & libc::O_NONBLOCK != 0 {
        let mut list = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: a list of one. Something may have come since the look.
        return match unsafe { poll(&raw mut list, 1, 0) } {
            1 => 0,
            0 => {
                Errno::AGAIN.set();
                -1
            }
            _ => -1,
        };
    }
    let mut count = 0u64;
    // SAFETY: room for the 8 bytes of a counter.
    if unsafe { read(fd, (&raw mut count).cast(), size_of::<u64>()) } < 0 {
        return -1;
    }
    let before = disable();
    // SAFETY: as many bytes as were read.
    let written = unsafe { libc::write(fd, (&raw const count).cast(), size_of::<u64>()) };
    restore(before);
    c_int::from(written >= 0) - 1
}
