//! Answers to tools that ask the kernel about RDMA devices by netlink, as `rdma` of iproute2 does.
//!
//! The socket of such a tool is one at which no kernel answers: `rnic-shim` opened it, and passes messages here that the
//! kernel has refused there. An answer goes to the port ID of the socket, so the tool receives it as it would one of the
//! kernel. Messages, answers and errors are those of Linux (`nldev.c`), and what is not known here is refused with
//! EOPNOTSUPP.
//!
//! - `answer`: requests, and the answer to each. `message`: how both are written. `resources`: queue pairs.
//! - `shown`: the devices, as the files below `/sys/class/infiniband` show them.

mod answer;
mod message;
mod resources;
mod shown;

use crate::cancel;
use crate::errno::Errno;
use rnic::process::hold_forks;
use std::ffi::{c_int, c_long};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::catch_unwind;

/// The protocol of the sockets: messages between programs.
const PROTOCOL: c_int = libc::NETLINK_USERSOCK;

/// Answers a message to the kernel, which has refused it with ECONNREFUSED: sends the answer to the socket that it came
/// from, and returns what `sendmsg` returns. For all other messages, returns -1 with ECONNREFUSED.
///
/// # Safety
/// The message is one that `sendmsg` has read.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rnic_nldev(file: c_int, message: *const libc::msghdr) -> c_long {
    let before = cancel::disable();
    // SAFETY: guaranteed by the caller.
    let sent = unsafe { sent(file, message) };
    cancel::restore(before);
    sent
}

/// [`rnic_nldev`], with cancellation of the thread disabled.
#[inline(never)]
unsafe extern "C" fn sent(file: c_int, message: *const libc::msghdr) -> c_long {
    // SAFETY: guaranteed by the caller.
    let sent = catch_unwind(|| unsafe { answered(file, &*message) }).unwrap_or(Err(Errno::IO));
    match sent {
        Ok(len) => c_long::try_from(len).unwrap_or(c_long::MAX),
        Err(errno) => {
            errno.set();
            -1
        }
    }
}

/// Answers a message, and returns its length. The first steps take no lock: the drop-in library itself may be in the middle
/// of its work when a message of its own, on another kind of socket, is refused.
///
/// # Safety
/// As for [`rnic_nldev`].
unsafe fn answered(file: c_int, message: &libc::msghdr) -> Result<usize, Errno> {
    // SAFETY: guaranteed by the caller.
    let is_to_kernel = unsafe { is_to_kernel(file, message) };
    let port = is_to_kernel.then(|| name(file, libc::getsockname)).flatten().map_or(0, |own| own.nl_pid);
    // A socket has its port ID since the kernel refused the message, if not before.
    if port == 0 {
        return Err(Errno(libc::ECONNREFUSED));
    }
    // SAFETY: guaranteed by the caller.
    let request = unsafe { gathered(message) };
    let parts = answer::answer(&request, port, &shown::Own).ok_or(Errno::INVALID)?;
    deliver(&parts, port)?;
    Ok(request.len())
}

/// Whether a message is one to the kernel, on a socket of the right kind.
///
/// # Safety
/// As for [`rnic_nldev`].
unsafe fn is_to_kernel(file: c_int, message: &libc::msghdr) -> bool {
    let is = |what, value| option(file, what) == Some(value);
    if !is(libc::SO_DOMAIN, libc::AF_NETLINK) || !is(libc::SO_PROTOCOL, PROTOCOL) {
        return false;
    }
    let to = if message.msg_name.is_null() {
        name(file, libc::getpeername)
    } else {
        let is_whole = message.msg_namelen as usize >= size_of::<libc::sockaddr_nl>();
        // SAFETY: the caller's name has this length, and the kernel has read it.
        is_whole.then(|| unsafe { message.msg_name.cast::<libc::sockaddr_nl>().read_unaligned() })
    };
    to.is_some_and(|to| to.nl_pid == 0)
}

/// An option of a socket.
fn option(file: c_int, what: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the value has this length. Any number may be passed for a descriptor.
    let failed =
        unsafe { libc::getsockopt(file, libc::SOL_SOCKET, what, (&raw mut value).cast(), &raw mut len) };
    (failed == 0).then_some(value)
}

/// `getsockname` or `getpeername`.
type Name = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

/// The address of a netlink socket, or of its peer.
fn name(file: c_int, of: Name) -> Option<libc::sockaddr_nl> {
    let mut name = address(0);
    let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the structure has this length.
    let failed = unsafe { of(file, (&raw mut name).cast(), &raw mut len) };
    (failed == 0).then_some(name)
}

/// The address of the socket with this port ID.
fn address(port: u32) -> libc::sockaddr_nl {
    // SAFETY: the structure consists of numbers.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    (address.nl_family, address.nl_pid) = (libc::AF_NETLINK as libc::sa_family_t, port);
    address
}

/// The bytes of a message.
///
/// # Safety
/// As for [`rnic_nldev`].
unsafe fn gathered(message: &libc::msghdr) -> Vec<u8> {
    let mut all = Vec::new();
    for number in 0..message.msg_iovlen {
        // SAFETY: the message has this number of pieces.
        let piece = unsafe { message.msg_iov.add(number).read() };
        if piece.iov_len > 0 {
            // SAFETY: the piece has this length, and the kernel has read it.
            all.extend_from_slice(unsafe {
                std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
            });
        }
    }
    all
}

/// Sends the parts of an answer. A tool that does not receive them is not waited for.
fn deliver(parts: &[Vec<u8>], port: u32) -> Result<(), Errno> {
    // A forked child would keep the socket.
    let _whole = hold_forks();
    // SAFETY: the function accepts any numbers.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, PROTOCOL) };
    if socket < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the descriptor was just opened.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let to = address(port);
    for part in parts {
        // SAFETY: the part and the address have these lengths.
        let sent = unsafe {
            libc::sendto(
                socket.as_raw_fd(),
                part.as_ptr().cast(),
                part.len(),
                libc::MSG_DONTWAIT,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_nl>() as libc::socklen_t,
            )
        };
        if sent < 0 {
            // What the kernel says when a socket has no room for an answer.
            let full = Errno::last() == Errno::AGAIN;
            return Err(if full { Errno(libc::ENOBUFS) } else { Errno::last() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
