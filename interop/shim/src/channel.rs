//! The device of the connection manager, `/dev/infiniband/rdma_cm`.
//!
//! The descriptor that the drop-in library gives for it is the read end of a pipe, so that programs can poll it,
//! duplicate it and inherit it. A program writes commands to it, which the kernel refuses with EBADF before anything
//! else: only then is the drop-in library asked. So a write to any other file costs nothing here, and a copy of a
//! channel's descriptor, or one whose number was reused, needs no table. In a program that never opened a channel, the
//! hooks cost the load of one number.

use crate::{errno, of_dropin, set_errno};
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the program has opened a channel.
static ANY: AtomicBool = AtomicBool::new(false);

/// `rnic_cm_open` of the drop-in library: opens a channel with the flags of `open`. Returns its descriptor, or -1 with
/// `errno`.
type Open = unsafe extern "C-unwind" fn(flags: c_int) -> c_int;

/// `rnic_cm_write`: carries out a command, and stores what `write` returns, with `errno`. Returns 0 if the descriptor is
/// not that of a channel. A cancellation point while it waits for an event.
type Write =
    unsafe extern "C-unwind" fn(file: c_int, from: *const c_void, len: usize, result: *mut c_long) -> c_int;

/// `rnic_cm_find`: a number other than 0 if the descriptor is that of a channel. `rnic_cm_closing`: the same, when this thread
/// is about to close it.
type Find = unsafe extern "C-unwind" fn(file: c_int) -> u64;

/// `rnic_cm_closed`: a descriptor of the channel with this number was closed.
type Closed = unsafe extern "C-unwind" fn(channel: u64);

of_dropin! {
    cm_open, c"rnic_cm_open": Open;
    cm_write, c"rnic_cm_write": Write;
    cm_find, c"rnic_cm_find": Find;
    cm_closing, c"rnic_cm_closing": Find;
    cm_closed, c"rnic_cm_closed": Closed;
}

/// Whether the program may have a channel open.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Opens a channel if `path` is that of the device: its descriptor, or -1 with `errno`.
///
/// # Safety
/// `path` is a string.
#[cold]
#[inline(never)]
pub(crate) unsafe fn opened(path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    if !crate::path::is_connection_manager(unsafe { CStr::from_ptr(path) }.to_bytes()) {
        return None;
    }
    let open = cm_open()?;
    // SAFETY: the function accepts any number.
    let file = unsafe { open(flags) };
    ANY.store(true, Ordering::Relaxed);
    Some(file)
}

/// A write has failed, with `errno` set: carries out the command, if the descriptor is that of a channel. Returns what
/// `write` returns.
///
/// # Safety
/// As for `write`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn command(file: c_int, from: *const c_void, len: usize) -> c_long {
    if !any() || errno() != libc::EBADF {
        return -1;
    }
    let mut result = -1;
    // SAFETY: guaranteed by the caller.
    let taken = cm_write().map_or(0, |write| unsafe { write(file, from, len, &raw mut result) });
    if taken == 0 {
        set_errno(libc::EBADF);
        return -1;
    }
    result
}

/// The number of the channel that a descriptor belongs to, or 0. Leaves `errno` as it is.
#[cold]
#[inline(never)]
pub(crate) fn find(file: c_int) -> u64 {
    number(cm_find(), file)
}

/// The same, before this thread closes the descriptor.
#[cold]
#[inline(never)]
pub(crate) fn closing(file: c_int) -> u64 {
    number(cm_closing(), file)
}

fn number(find: Option<Find>, file: c_int) -> u64 {
    let before = errno();
    // SAFETY: these functions accept any number.
    let found = find.map_or(0, |find| unsafe { find(file) });
    set_errno(before);
    found
}

/// A descriptor of this channel was closed. Leaves `errno` as it is.
#[cold]
#[inline(never)]
pub(crate) fn closed(channel: u64) {
    let before = errno();
    if let Some(closed) = cm_closed() {
        // SAFETY: the function accepts any number.
        unsafe { closed(channel) };
    }
    set_errno(before);
}
