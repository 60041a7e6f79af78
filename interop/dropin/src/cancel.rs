//! Threads that are cancelled (`pthread_cancel`).
//!
//! A cancelled thread unwinds its stack at its next cancellation point. Most system calls are cancellation points; with
//! the asynchronous cancellation type the thread unwinds wherever it is. Unwinding aborts the process if it meets a
//! Rust frame that catches panics, and it leaves a lock held if it meets a frame that holds one. So a verb does its
//! work with cancellation disabled, and a verb that waits leaves its frames before it waits. When a thread is unwound,
//! the frames on its stack hold nothing and have nothing to clean up.

use crate::call::Reply;
use crate::errno::Errno;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The values in `pthread.h`.
const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// The cancellation state and type of a thread.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Before {
    state: c_int,
    kind: c_int,
}

// The crate libc declares the same functions with an ABI that does not unwind.
unsafe extern "C-unwind" {
    safe fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    fn read(fd: c_int, to: *mut c_void, room: usize) -> isize;
    fn pause() -> c_int;
}

/// Disables cancellation for this thread. Returns the value that [`restore`] takes.
///
/// For the asynchronous type, the state is not enough. The canceller checks it, announces a signal, and sends it, which
/// may be later, in the middle of the verb. Its handler in glibc 2.36 does not check the state again. It checks the type,
/// and each system call that is a cancellation point sets the asynchronous type while it lasts. At the end of such a call
/// the C library waits for a signal that was announced. So one such call is made here, where the thread may end.
#[inline]
pub(crate) extern "C-unwind" fn disable() -> Before {
    let mut before = Before { state: PTHREAD_CANCEL_ENABLE, kind: PTHREAD_CANCEL_DEFERRED };
    // SAFETY: both pointers are valid for writes.
    unsafe {
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &raw mut before.kind);
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before.state);
    }
    if before.kind == PTHREAD_CANCEL_ASYNCHRONOUS {
        // SAFETY: there are no descriptors, and the call does not wait.
        unsafe { poll(std::ptr::null_mut(), 0, 0) };
    }
    before
}

/// Restores cancellation as it was before [`disable`]. With the asynchronous type, this thread may be cancelled here.
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

/// The outcome of a verb that may have to wait.
pub(crate) enum Found {
    /// The verb found an event.
    Event,
    /// The verb found nothing: wait.
    Nothing(Wait),
}

/// What to wait for.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Wait {
    /// 0 if there is nothing to wait for: the verb found an event. -1: it failed.
    state: c_int,
    /// The program's descriptor, which becomes readable.
    shown: c_int,
    /// Where a byte that was read from it is written back; -1 if that is not possible.
    write_end: c_int,
}

impl Found {
    pub(crate) fn nothing_at(shown: BorrowedFd<'_>, write_end: Option<BorrowedFd<'_>>) -> Self {
        let (shown, write_end) = (shown.as_raw_fd(), write_end.map_or(-1, |fd| fd.as_raw_fd()));
        Self::Nothing(Wait { state: 1, shown, write_end })
    }
}

impl Wait {
    const fn over(state: c_int) -> Self {
        Self { state, shown: -1, write_end: -1 }
    }

    /// What the verb returns, unless it waits.
    pub(crate) const fn result(self) -> Option<c_int> {
        if self.state > 0 { None } else { Some(self.state) }
    }
}

impl Reply for Found {
    type Raw = Wait;

    fn reply(result: Result<Self, Errno>) -> Wait {
        match result {
            Ok(Self::Event) => Wait::over(0),
            Ok(Self::Nothing(wait)) => wait,
            Err(errno) => {
                errno.set();
                Wait::over(-1)
            }
        }
    }
}

/// Defines verbs that wait. Each is a cancellation point, like a read from the kernel's descriptor. The verb calls
/// `look`, and calls it again after each wait, until it [finds](Found) an event or fails.
macro_rules! waiting_verbs {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $look:ident;)*) => {$(
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> std::ffi::c_int {
            loop {
                $crate::cancel::point();
                // SAFETY: the caller's arguments are passed on unchanged.
                let found = unsafe { $look($($arg),*) };
                if let Some(result) = found.result() {
                    return result;
                }
                if $crate::cancel::wait_readable(found) != 0 {
                    return -1;
                }
            }
        }
    )*};
}
pub(crate) use waiting_verbs;

/// A cancellation point: a thread that was cancelled ends here.
#[inline]
pub(crate) extern "C-unwind" fn point() {
    pthread_testcancel();
}

/// Waits until a descriptor is readable, unless the program made it non-blocking. Returns 0, or -1 with `errno`: EAGAIN if there
/// is nothing to read and the descriptor is non-blocking, or EINTR.
///
/// The function waits by reading a byte, and then writes it back. So a signal ends the wait or restarts it, as the program chose
/// when it set the handler (`SA_RESTART`). Waiting by `poll` would not respect that choice. A C library before glibc 2.41 may
/// cancel a thread just after the read: the byte is then lost, and the next event makes the descriptor readable again.
pub(crate) extern "C-unwind" fn wait_readable(Wait { shown, write_end, .. }: Wait) -> c_int {
    // SAFETY: `fcntl` takes any number, and reports one that is no descriptor.
    let flags = unsafe { libc::fcntl(shown, libc::F_GETFL) };
    if flags == -1 {
        return -1;
    }
    let waits = flags & libc::O_NONBLOCK == 0;
    if !waits || write_end < 0 {
        let mut list = libc::pollfd { fd: shown, events: libc::POLLIN, revents: 0 };
        // SAFETY: the list has one element. An event may have arrived since `look`.
        return match unsafe { poll(&raw mut list, 1, if waits { -1 } else { 0 }) } {
            1 => 0,
            0 => {
                Errno::AGAIN.set();
                -1
            }
            _ => -1,
        };
    }
    let mut byte = 0u8;
    // SAFETY: `byte` has room for it.
    if unsafe { read(shown, (&raw mut byte).cast(), 1) } < 0 {
        return -1;
    }
    let before = disable();
    // SAFETY: `byte` is a byte that can be read. A pipe that is full is readable anyway.
    unsafe { libc::write(write_end, (&raw const byte).cast(), 1) };
    restore(before);
    0
}

/// Reads a byte. As the kernel decides, the thread waits, ends, or is interrupted. Returns what `read` returns, with
/// `errno`; at the end of the file, -1 with EBADF.
pub(crate) extern "C-unwind" fn read_byte(fd: c_int) -> isize {
    let mut byte = 0u8;
    // SAFETY: `byte` has room for it.
    let taken = unsafe { read(fd, (&raw mut byte).cast(), 1) };
    if taken == 0 {
        Errno(libc::EBADF).set();
        return -1;
    }
    taken
}

/// Waits until the thread is cancelled or the process ends.
pub(crate) extern "C-unwind" fn park() -> ! {
    loop {
        // SAFETY: the function has no conditions.
        unsafe { pause() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd as _, FromRawFd as _};

    #[test]
    fn nothing_is_written_where_there_is_no_end_to_write_to() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        let Found::Nothing(wait) = Found::nothing_at(file.as_fd(), None) else { panic!("an event") };
        assert_eq!((wait.state, wait.shown, wait.write_end), (1, file.as_raw_fd(), -1));
    }

    /// What is read is written back, and a program that does not want to wait is told at once.
    #[test]
    fn what_makes_a_descriptor_readable_stays_in_it() {
        for (flags, can_write) in [(0, true), (0, false), (libc::O_NONBLOCK, true), (libc::O_NONBLOCK, false)]
        {
            let mut ends = [0; 2];
            // SAFETY: the array has room for two descriptors.
            assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | flags) }, 0);
            // SAFETY: the descriptors are new.
            let [shown, write_end] = ends.map(|fd| unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) });
            let Found::Nothing(wait) = Found::nothing_at(shown.as_fd(), can_write.then(|| write_end.as_fd()))
            else {
                panic!("an event")
            };
            if flags != 0 {
                assert_eq!((wait_readable(wait), Errno::last()), (-1, Errno::AGAIN));
            }
            let byte = 7u8;
            // SAFETY: `byte` is a byte that can be read.
            assert_eq!(unsafe { libc::write(write_end.as_raw_fd(), (&raw const byte).cast(), 1) }, 1);
            assert_eq!([wait_readable(wait), wait_readable(wait)], [0, 0], "the byte is still there");
            assert_eq!(read_byte(shown.as_raw_fd()), 1);
        }
        assert_eq!(
            (wait_readable(Wait { state: 1, shown: -1, write_end: -1 }), Errno::last()),
            (-1, Errno(libc::EBADF))
        );
    }
}
