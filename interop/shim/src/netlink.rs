//! The sockets by which tools ask the kernel about RDMA devices (`NETLINK_RDMA`).
//!
//! The kernel knows nothing of the devices here, so the descriptor that the program gets is that of a socket of another
//! netlink protocol, NETLINK_USERSOCK, at which no kernel answers: the program can bind it, poll it and receive from it.
//! What the program sends to the kernel is refused there with ECONNREFUSED: only then is the drop-in library asked, which
//! sends its answer to the port ID of the socket. So a call on any other socket costs nothing here, and a copy of a
//! descriptor, or one whose number was reused, needs no table. In a program that never opened such a socket, the hooks cost
//! the load of one number.

use crate::{errno, of_dropin, set_errno};
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the program has opened such a socket.
static ANY: AtomicBool = AtomicBool::new(false);

/// `rnic_nldev` of the drop-in library: answers a message that the kernel has refused. Returns what `sendmsg` returns, with
/// `errno`; ECONNREFUSED if the message is not for the kernel.
type Answer = unsafe extern "C-unwind" fn(file: c_int, message: *const libc::msghdr) -> c_long;

of_dropin! {
    answer, c"rnic_nldev": Answer;
}

/// Opens such a socket with `socket` of the C library: its descriptor, or -1 with EPROTONOSUPPORT, which is also what a
/// kernel without RDMA says.
#[cold]
#[inline(never)]
pub(crate) fn opened(
    socket: unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int,
    kind: c_int,
) -> c_int {
    let file = match answer() {
        // SAFETY: the function accepts any numbers.
        Some(_) => unsafe { socket(libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) },
        None => -1,
    };
    if file < 0 {
        set_errno(libc::EPROTONOSUPPORT);
    } else {
        ANY.store(true, Ordering::Relaxed);
    }
    file
}

/// Whether a call that has just failed may be a message to the kernel from such a socket.
pub(crate) fn refused() -> bool {
    ANY.load(Ordering::Relaxed) && errno() == libc::ECONNREFUSED
}

/// A message was [refused]: has it answered, if it was for the kernel. Returns what `sendmsg` returns.
///
/// # Safety
/// The message is one that `sendmsg` has read.
#[cold]
#[inline(never)]
pub(crate) unsafe fn sent(file: c_int, message: *const libc::msghdr) -> c_long {
    let Some(answer) = answer() else { return -1 };
    // SAFETY: guaranteed by the caller.
    unsafe { answer(file, message) }
}

/// The same for a message in one piece, to an address or, if that is NULL, to where the socket is connected to.
///
/// # Safety
/// The arguments are those of a `sendto` that has read the message.
#[cold]
#[inline(never)]
pub(crate) unsafe fn sent_to(
    file: c_int,
    from: *const c_void,
    len: usize,
    to: *const libc::sockaddr,
    to_len: libc::socklen_t,
) -> c_long {
    let mut piece = libc::iovec { iov_base: from.cast_mut(), iov_len: len };
    // SAFETY: the structure consists of numbers and pointers, for which zero and NULL are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_name, message.msg_namelen) = (to.cast_mut().cast(), to_len);
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    // SAFETY: guaranteed by the caller.
    unsafe { sent(file, &raw const message) }
}
