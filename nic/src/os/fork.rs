//! What a child process inherits after a fork: nothing of ours.
//!
//! A child's copy of a socket keeps the address bound after the parent has exited, and takes packets if the child reads
//! from it. So the child closes these copies before anything else runs in it, and every object of the parent reports
//! there that it was opened by another process.
//!
//! State of the process as a whole, such as the list of its open devices, exists in the child too, and must be
//! consistent there: a lock that another thread held at the fork would never be released. So a fork waits until no
//! thread works on such state ([`hold_forks`]).

#![expect(
    unsafe_code,
    reason = "pthread_atfork, and close in the child, where almost nothing else is allowed"
)]

use rnic_core::port::note_fork;
use std::cell::{Cell, UnsafeCell};
use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Descriptors that a child has to close. The table is fixed, because the child must not take locks: the thread that
/// held them does not exist there. 10,240 are enough for 400 ports of five sockets, and as many multicast groups as one
/// port takes.
static INHERITED: [AtomicI32; 10_240] = [const { AtomicI32::new(-1) }; 10_240];

/// Locked for reading while a thread works on state of the process, and for writing by a thread that forks.
static FORKS: RwLock<()> = RwLock::new(());

/// The forking thread's hold on [`FORKS`], from before the fork until after it.
struct Forking(UnsafeCell<Option<RwLockWriteGuard<'static, ()>>>);

// SAFETY: only the thread that holds the lock for writing accesses it: between the handler that takes the lock and the
// one that releases it.
unsafe impl Sync for Forking {}

static FORKING: Forking = Forking(UnsafeCell::new(None));

thread_local! {
    /// Number of [`ForksHeld`] of this thread. Only the first takes the lock: a second lock would wait for a fork that
    /// waits for the first.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// While this exists, no thread of the process forks.
pub struct ForksHeld {
    _first: Option<RwLockReadGuard<'static, ()>>,
    /// The count belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

/// Prevents all threads from forking (`fork`, not `posix_spawn` or `vfork`) while this one works on state of the
/// process as a whole. Calls may be nested. Under it, a thread must not run anything that forks, and must not hold a
/// lock that another thread takes under it.
#[must_use = "forks are held as long as it lives"]
pub fn hold_forks() -> ForksHeld {
    let held = HELD.get();
    HELD.set(held + 1);
    let first = (held == 0).then(|| FORKS.read().unwrap_or_else(PoisonError::into_inner));
    ForksHeld { _first: first, _not_send: PhantomData }
}

/// As [`hold_forks`], without waiting for a fork in progress: for threads that hold a lock.
pub(crate) fn try_hold_forks() -> Option<ForksHeld> {
    let held = HELD.get();
    let first = match FORKS.try_read() {
        _ if held > 0 => None,
        Ok(first) => Some(first),
        Err(TryLockError::Poisoned(first)) => Some(first.into_inner()),
        Err(TryLockError::WouldBlock) => return None,
    };
    HELD.set(held + 1);
    Some(ForksHeld { _first: first, _not_send: PhantomData })
}

impl Drop for ForksHeld {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

/// Runs in a thread that is about to fork.
extern "C" fn before() {
    // A thread that forks under its own hold would wait for itself. Its child finds the state as that thread left it.
    if HELD.get() == 0 {
        let forking = FORKS.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: this thread holds the lock for writing.
        unsafe { *FORKING.0.get() = Some(forking) };
    }
}

/// Runs in the thread that has forked.
extern "C" fn after() {
    if HELD.get() == 0 {
        // SAFETY: this thread holds the lock for writing since `before`.
        drop(unsafe { (*FORKING.0.get()).take() });
    }
}

/// Runs in the child right after the fork, before the program continues: async-signal-safe calls only.
extern "C" fn in_child() {
    after();
    note_fork();
    for slot in &INHERITED {
        let fd = slot.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor is the child's copy of a socket that only the parent uses; objects of the
            // parent never touch it here, because they are of another generation.
            unsafe { libc::close(fd) };
        }
    }
}

/// Registers the handlers when the program or library is loaded: later, a thread could fork during the registration.
extern "C" fn install() {
    // SAFETY: functions of this program or library, which is not unloaded. `in_child` only stores to atomics, releases
    // a lock and closes descriptors. If there is no memory for the registration, which a starting process does have,
    // children keep copies of the sockets.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
}

#[used]
// SAFETY: the section holds functions that are called when the object is loaded, with arguments that this one ignores.
#[unsafe(link_section = ".init_array")]
static INSTALL: extern "C" fn() = install;

/// Makes children close these.
pub(crate) fn close_in_child(fds: impl Iterator<Item = RawFd>) {
    for fd in fds {
        let free = |slot: &&AtomicI32| swapped(slot, -1, fd);
        if INHERITED.iter().find(free).is_none() {
            tracing::warn!("more sockets than a fork handler can close: a forked child keeps a copy");
        }
    }
}

/// Makes children close a file that stays open for the life of the process, and holds a lock for it.
pub(crate) fn close_file_in_child(file: &File) {
    close_in_child(std::iter::once(file.as_raw_fd()));
}

/// Returns whether children close this descriptor.
#[cfg(test)]
pub(crate) fn is_closed_in_child(fd: RawFd) -> bool {
    INHERITED.iter().any(|slot| slot.load(Ordering::Relaxed) == fd)
}

/// The descriptors are about to be closed here.
pub(crate) fn forget(fds: impl Iterator<Item = RawFd>) {
    for fd in fds {
        for slot in &INHERITED {
            swapped(slot, fd, -1);
        }
    }
}

/// Replaces `from` by `to`. Most slots hold another value: checking first is ten times faster.
fn swapped(slot: &AtomicI32, from: RawFd, to: RawFd) -> bool {
    slot.load(Ordering::Relaxed) == from
        && slot.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}
