//! `librdmacm.so.1`: its symbols, so that programs which link it start.
//!
//! Connections are made over verbs alone; a program that asks for the connection manager is told that there is none.

use crate::abi::*;
use crate::call::{Handle, Out, Value, verbs};
use crate::errno::Errno;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::Once;

/// Says so once: programs try many calls.
fn refuse() -> Errno {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| eprintln!("rnic: there is no RDMA connection manager (librdmacm); connect without it"));
    Errno::UNSUPPORTED.set();
    Errno::UNSUPPORTED
}

/// A call that reports by -1.
pub(crate) extern "C" fn refuse_by_number() -> c_long {
    refuse();
    -1
}

/// A call that reports by NULL.
pub(crate) extern "C" fn refuse_by_pointer() -> *mut c_void {
    refuse();
    null_mut()
}

/// A call that gives back what no other call gave.
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
    /// None. Some programs look at the number whatever the list is, so it is stored in any case.
    fn rdma_get_devices(count: Option<Out<c_int>>) -> Handle<*mut ibv_context> {
        if let Some(count) = count {
            count.put(0);
        }
        Err(refuse())
    }

    fn rdma_free_devices(_list: *mut c_void) -> Value<()> {
        Ok(Value(()))
    }

    fn rdma_event_str(event: u32) -> Handle<c_char> {
        let name = EVENTS.get(event as usize).copied().unwrap_or(c"UNKNOWN EVENT");
        Ok(Handle(name.as_ptr().cast_mut()))
    }
}
