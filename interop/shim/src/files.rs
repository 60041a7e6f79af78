//! Hooks for calls on descriptors: those that mean something else on the device of the connection manager, and those on
//! sockets by which programs ask the kernel about RDMA devices.

use crate::next::next;
use crate::{channel, netlink};
use std::ffi::{c_int, c_long, c_uint, c_void};

/// `NETLINK_RDMA`. A host with InfiniBand modules answers there about devices of its own: librdmacm, for one, with the
/// number of a device file, which it then compares to that of the descriptor.
const NETLINK_RDMA: c_int = 20;

/// `write` of the C library.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(file: c_int, from: *const c_void, len: usize) -> c_long {
    let next = next!(write: unsafe extern "C-unwind" fn(c_int, *const c_void, usize) -> c_long, -1);
    // SAFETY: the caller's arguments are passed on unchanged.
    let written = unsafe { next(file, from, len) };
    if written == -1 && netlink::refused() {
        // SAFETY: as above.
        return unsafe { netlink::sent_to(file, from, len, std::ptr::null(), 0) };
    }
    if written == -1 {
        // SAFETY: as above.
        return unsafe { channel::command(file, from, len) };
    }
    written
}

/// `close` of the C library.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(file: c_int) -> c_int {
    let next = next!(close: unsafe extern "C-unwind" fn(c_int) -> c_int, -1);
    let of = if channel::any() { channel::closing(file) } else { 0 };
    // SAFETY: the caller's argument is passed on unchanged.
    let result = unsafe { next(file) };
    if of != 0 {
        channel::closed(of);
    }
    result
}

/// `socket` of the C library.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let next = next!(socket: unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int, -1);
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return netlink::opened(next, kind);
    }
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { next(domain, kind, protocol) }
}

/// `send` of the C library.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(file: c_int, from: *const c_void, len: usize, flags: c_int) -> c_long {
    let next = next!(send: unsafe extern "C-unwind" fn(c_int, *const c_void, usize, c_int) -> c_long, -1);
    // SAFETY: the caller's arguments are passed on unchanged.
    let sent = unsafe { next(file, from, len, flags) };
    if sent == -1 && netlink::refused() {
        // SAFETY: as above.
        return unsafe { netlink::sent_to(file, from, len, std::ptr::null(), 0) };
    }
    sent
}

/// `sendto` of the C library.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    file: c_int,
    from: *const c_void,
    len: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    to_len: libc::socklen_t,
) -> c_long {
    let next = next!(sendto: SendTo, -1);
    // SAFETY: the caller's arguments are passed on unchanged.
    let sent = unsafe { next(file, from, len, flags, to, to_len) };
    if sent == -1 && netlink::refused() {
        // SAFETY: as above.
        return unsafe { netlink::sent_to(file, from, len, to, to_len) };
    }
    sent
}

/// `sendto`.
type SendTo = unsafe extern "C-unwind" fn(
    c_int,
    *const c_void,
    usize,
    c_int,
    *const libc::sockaddr,
    libc::socklen_t,
) -> c_long;

/// `sendmsg` of the C library.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(file: c_int, message: *const libc::msghdr, flags: c_int) -> c_long {
    let next = next!(sendmsg: unsafe extern "C-unwind" fn(c_int, *const libc::msghdr, c_int) -> c_long, -1);
    // SAFETY: the caller's arguments are passed on unchanged.
    let sent = unsafe { next(file, message, flags) };
    if sent == -1 && netlink::refused() {
        // SAFETY: as above.
        return unsafe { netlink::sent(file, message) };
    }
    sent
}

/// The status of a channel is that of a character device. Its number is that of a misc device, which has no fixed minor
/// number; librdmacm compares it only if the kernel told it one.
const MODE: u32 = libc::S_IFCHR | 0o666;
const MISC_MAJOR: c_uint = 10;
const MISC_MINOR: c_uint = 255;

/// Makes the status of a channel that of a device.
macro_rules! as_device {
    ($result:expr, $file:expr, $status:expr) => {{
        let result = $result;
        if result == 0 && channel::any() {
            // SAFETY: the call has filled it in.
            let status = unsafe { &mut *$status };
            if status.st_mode & libc::S_IFMT == libc::S_IFIFO && channel::find($file) != 0 {
                status.st_mode = MODE;
                status.st_rdev = libc::makedev(MISC_MAJOR, MISC_MINOR);
            }
        }
        result
    }};
}

macro_rules! statuses {
    ($($name:ident, $old:ident: $status:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As for the function of the C library.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(file: c_int, status: *mut libc::$status) -> c_int {
            let next = next!($name: unsafe extern "C-unwind" fn(c_int, *mut libc::$status) -> c_int, -1);
            // SAFETY: the caller's arguments are passed on unchanged.
            as_device!(unsafe { next(file, status) }, file, status)
        }

        #[doc = concat!("`", stringify!($old), "` of the C library, for programs built before glibc 2.33.")]
        ///
        /// # Safety
        /// As for the function of the C library.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $old(version: c_int, file: c_int, status: *mut libc::$status) -> c_int {
            let next = next!($old: unsafe extern "C-unwind" fn(c_int, c_int, *mut libc::$status) -> c_int, -1);
            // SAFETY: the caller's arguments are passed on unchanged.
            as_device!(unsafe { next(version, file, status) }, file, status)
        }
    )* };
}

statuses! {
    fstat, __fxstat: stat;
    fstat64, __fxstat64: stat64;
}
