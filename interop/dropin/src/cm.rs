//! `librdmacm.so.1`: its symbols, so that programs linked against it start.
//!
//! Connections are made with verbs alone. A program that asks for the connection manager is told that
//! there is no connection manager.

use crate::abi::*;
use crate::call::{Handle, Out, Value, verbs};
use crate::errno::Errno;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::io::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

/// Records that the program asked for the connection manager. Some programs only probe for it and do without it, so the
/// reason is printed only if the program exits with a failure.
fn refuse(errno: Errno) -> Errno {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if !ASKED.swap(true, Ordering::Relaxed) {
        // SAFETY: `at_exit` is a function of this library, which is never unloaded. If registration fails for lack of
        // memory, no message is printed.
        unsafe { on_exit(at_exit, null_mut()) };
    }
    errno.set();
    errno
}

unsafe extern "C" {
    /// As declared in glibc's `stdlib.h`.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Runs when `main` returns or the program calls `exit`, with the exit status.
extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    if status != 0 {
        let text = "there is no RDMA connection manager (librdmacm), which this program asked for";
        // Not `eprintln!`, which panics if the stream is closed.
        let _ = writeln!(std::io::stderr(), "rnic: {text}; connect without it");
    }
}

/// Refuses a call that reports by -1.
pub(crate) extern "C" fn refuse_by_number() -> c_long {
    refuse(Errno::UNSUPPORTED);
    -1
}

/// `rdma_create_event_channel`, the first call of most programs. Its error is the one that a host without the kernel's
/// connection manager gives, which programs that only probe for it expect.
pub(crate) extern "C" fn refuse_channel() -> *mut c_void {
    refuse(Errno(libc::ENODEV));
    null_mut()
}

/// A call that releases what no other call has handed out.
pub(crate) extern "C" fn nothing() -> c_long {
    0
}

const EVENTS: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

verbs! {
    /// Returns no devices. Some programs read the count whatever the list is, so the count is always stored.
    fn rdma_get_devices(count: Option<Out<c_int>>) -> Handle<*mut ibv_context> {
        if let Some(count) = count {
            count.put(0);
        }
        Err(refuse(Errno::UNSUPPORTED))
    }

    fn rdma_free_devices(_list: *mut c_void) -> Value<()> {
        Ok(Value(()))
    }

    fn rdma_event_str(event: u32) -> Handle<c_char> {
        let name = EVENTS.get(event as usize).copied().unwrap_or(c"UNKNOWN EVENT");
        Ok(Handle(name.as_ptr().cast_mut()))
    }
}
