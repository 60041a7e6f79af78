//! `librdmacm.so.1` for hosts that do not have it: its symbols, so that programs linked against it start.
//!
//! Under `rnic run`, programs use the librdmacm of the system. They get this one only if the system has none. Its calls
//! fail, and a program that then exits with a failure is told what to install.

#[path = "../../dropin/src/trampoline.rs"]
mod trampoline;

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::io::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use trampoline::{exports, jump};

/// Records that the program asked for the connection manager. Some programs only probe for it and do without it, so the
/// reason is printed only if the program exits with a failure.
fn refuse(errno: c_int) {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if !ASKED.swap(true, Ordering::Relaxed) {
        // SAFETY: `at_exit` is a function of this library, which is never unloaded. If registration fails for lack of
        // memory, no message is printed.
        unsafe { on_exit(at_exit, null_mut()) };
    }
    // SAFETY: `errno` belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
}

unsafe extern "C" {
    /// As declared in glibc's `stdlib.h`.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Runs when `main` returns or the program calls `exit`, with the exit status.
extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    if status != 0 {
        let text = "this program needs the RDMA connection manager, but librdmacm.so.1 is not installed; install it \
                    (librdmacm1 of Debian, librdmacm of Fedora), and rnic serves it";
        // Not `eprintln!`, which panics if the stream is closed.
        let _ = writeln!(std::io::stderr(), "rnic: {text}");
    }
}

/// Refuses a call that reports by -1.
extern "C" fn refuse_by_number() -> c_long {
    refuse(libc::EOPNOTSUPP);
    -1
}

/// `rdma_create_event_channel`, the first call of most programs. Its error is the one that a host without the kernel's
/// connection manager gives, which programs that only probe for it expect.
extern "C" fn refuse_channel() -> *mut c_void {
    refuse(libc::ENODEV);
    null_mut()
}

/// A call that releases what no other call has handed out.
extern "C" fn nothing() -> c_long {
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

/// Returns no devices. Some programs read the count whatever the list is, so the count is always stored.
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut c_void {
    if !count.is_null() {
        // SAFETY: the program provides the space.
        unsafe { *count = 0 };
    }
    refuse(libc::ENODEV);
    null_mut()
}

extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    EVENTS.get(event as usize).copied().unwrap_or(c"UNKNOWN EVENT").as_ptr()
}

exports! {
    "raccept" "@@RDMACM_1.0" => refuse_by_number;
    "rbind" "@@RDMACM_1.0" => refuse_by_number;
    "rclose" "@@RDMACM_1.0" => refuse_by_number;
    "rconnect" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_accept" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_ack_cm_event" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_bind_addr" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_connect" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_create_ep" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_create_event_channel" "@@RDMACM_1.0" => refuse_channel;
    "rdma_create_id" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_create_qp" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_create_qp_ex" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_create_srq" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_create_srq_ex" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_destroy_ep" "@@RDMACM_1.0" => nothing;
    "rdma_destroy_event_channel" "@@RDMACM_1.0" => nothing;
    "rdma_destroy_id" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_destroy_qp" "@@RDMACM_1.0" => nothing;
    "rdma_destroy_srq" "@@RDMACM_1.0" => nothing;
    "rdma_disconnect" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_establish" "@@RDMACM_1.2" => refuse_by_number;
    "rdma_event_str" "@@RDMACM_1.0" => rdma_event_str;
    "rdma_free_devices" "@@RDMACM_1.0" => nothing;
    "rdma_freeaddrinfo" "@@RDMACM_1.0" => nothing;
    "rdma_get_cm_event" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_get_devices" "@@RDMACM_1.0" => rdma_get_devices;
    "rdma_get_dst_port" "@@RDMACM_1.0" => nothing;
    "rdma_get_remote_ece" "@@RDMACM_1.3" => refuse_by_number;
    "rdma_get_request" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_get_src_port" "@@RDMACM_1.0" => nothing;
    "rdma_getaddrinfo" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_init_qp_attr" "@@RDMACM_1.2" => refuse_by_number;
    "rdma_join_multicast" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_join_multicast_ex" "@@RDMACM_1.1" => refuse_by_number;
    "rdma_leave_multicast" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_listen" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_migrate_id" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_notify" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_reject" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_reject_ece" "@@RDMACM_1.3" => refuse_by_number;
    "rdma_resolve_addr" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_resolve_route" "@@RDMACM_1.0" => refuse_by_number;
    "rdma_set_local_ece" "@@RDMACM_1.3" => refuse_by_number;
    "rdma_set_option" "@@RDMACM_1.0" => refuse_by_number;
    "rfcntl" "@@RDMACM_1.0" => refuse_by_number;
    "rgetpeername" "@@RDMACM_1.0" => refuse_by_number;
    "rgetsockname" "@@RDMACM_1.0" => refuse_by_number;
    "rgetsockopt" "@@RDMACM_1.0" => refuse_by_number;
    "riomap" "@@RDMACM_1.0" => refuse_by_number;
    "riounmap" "@@RDMACM_1.0" => refuse_by_number;
    "riowrite" "@@RDMACM_1.0" => refuse_by_number;
    "rlisten" "@@RDMACM_1.0" => refuse_by_number;
    "rpoll" "@@RDMACM_1.0" => refuse_by_number;
    "rread" "@@RDMACM_1.0" => refuse_by_number;
    "rreadv" "@@RDMACM_1.0" => refuse_by_number;
    "rrecv" "@@RDMACM_1.0" => refuse_by_number;
    "rrecvfrom" "@@RDMACM_1.0" => refuse_by_number;
    "rrecvmsg" "@@RDMACM_1.0" => refuse_by_number;
    "rselect" "@@RDMACM_1.0" => refuse_by_number;
    "rsend" "@@RDMACM_1.0" => refuse_by_number;
    "rsendmsg" "@@RDMACM_1.0" => refuse_by_number;
    "rsendto" "@@RDMACM_1.0" => refuse_by_number;
    "rsetsockopt" "@@RDMACM_1.0" => refuse_by_number;
    "rshutdown" "@@RDMACM_1.0" => refuse_by_number;
    "rsocket" "@@RDMACM_1.0" => refuse_by_number;
    "rwrite" "@@RDMACM_1.0" => refuse_by_number;
    "rwritev" "@@RDMACM_1.0" => refuse_by_number;
}
