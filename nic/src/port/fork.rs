//! What a fork leaves to the child: nothing of ours.
//!
//! A child's copy of a socket keeps the address bound after the parent is gone, and steals packets if anybody reads
//! from it. So the child closes them, before anything else runs in it, and every object of the parent answers there
//! that it was opened by another process.

#![expect(
    unsafe_code,
    reason = "pthread_atfork and close in the child, where almost nothing else is allowed"
)]

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Descriptors that a child has to close. A fixed table, because the child may not take locks: the thread that
/// held them does not exist there. 10,240 are 400 ports of five sockets, and as many multicast groups as one port takes.
static INHERITED: [AtomicI32; 10_240] = [const { AtomicI32::new(-1) }; 10_240];

/// How many forks lie between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

static INSTALL: Once = Once::new();

/// Runs in the child, between fork and whatever the program does next: async-signal-safe calls only.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for slot in &INHERITED {
        let fd = slot.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor is the child's copy of a socket that only the parent uses; objects of the
            // parent never touch it here, because they are of another generation.
            unsafe { libc::close(fd) };
        }
    }
}

/// Which generation of forks this process is.
pub(crate) fn generation() -> u32 {
    INSTALL.call_once(|| {
        // SAFETY: `in_child` only stores to atomics and closes descriptors. If there is no memory for the
        // registration, children keep their copies: the program works, but the address stays bound in them.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
            tracing::warn!("cannot register a fork handler: forked children keep copies of the sockets");
        }
    });
    GENERATION.load(Ordering::Relaxed)
}

/// Has children close these.
pub(super) fn close_in_child(fds: impl Iterator<Item = RawFd>) {
    for fd in fds {
        let free = |slot: &&AtomicI32| swapped(slot, -1, fd);
        if INHERITED.iter().find(free).is_none() {
            tracing::warn!("more sockets than a fork handler can close: a forked child keeps a copy");
        }
    }
}

/// Has children close a file that stays open as long as the process lives, and holds a lock for it.
pub(crate) fn close_file_in_child(file: &File) {
    close_in_child(std::iter::once(file.as_raw_fd()));
}

/// Whether children close this descriptor.
#[cfg(test)]
pub(super) fn is_closed_in_child(fd: RawFd) -> bool {
    INHERITED.iter().any(|slot| slot.load(Ordering::Relaxed) == fd)
}

/// The descriptors are about to be closed here.
pub(super) fn forget(fds: impl Iterator<Item = RawFd>) {
    for fd in fds {
        for slot in &INHERITED {
            swapped(slot, fd, -1);
        }
    }
}

/// Replaces `from` by `to`. Most slots are another's: looking first is ten times faster.
fn swapped(slot: &AtomicI32, from: RawFd, to: RawFd) -> bool {
    slot.load(Ordering::Relaxed) == from
        && slot.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}
