//! Signals that end a process, put off until it has told its peers.
//!
//! The kernel closes the connections of a process that uses its RDMA devices, however the process ends: the peers are told at
//! once. Here the process has to tell them itself. If it leaves the default action of a signal that users and scripts send
//! (SIGINT, SIGTERM, SIGHUP), a handler wakes a thread that tells the peers, restores the default action and repeats the
//! signal: so the process ends as it would have, a moment later. A second signal ends it at once. A program's own handler
//! is left alone, whether it was there before or comes later, and also if it calls ours: the process does not end by the
//! signal then. Nothing can be done about SIGKILL: the peers of such a process
//! find out by their timeouts.

#![expect(unsafe_code, reason = "signal handling")]

use super::action::{query, set};
use super::fork::hold_forks;
use libc::{c_int, c_void, sigaction};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::{io, process};

const SIGNALS: [Signal; 3] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM];

/// The process whose thread waits for signals; 0 before the first.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The descriptor by which the handler wakes that thread.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// The signal that ends the process; 0 before it came.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// Runs `tell` before one of the signals ends this process.
///
/// # Errors
/// The thread, or its descriptor, could not be created.
pub(crate) fn tell_before(tell: fn()) -> io::Result<()> {
    let _whole = hold_forks();
    let own = own_pid();
    // The kernel does not end the first process of a container by signals that it has no handler for.
    if own == 1 || OWNER.load(Ordering::Acquire) == own {
        return Ok(());
    }
    let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
    WAKE.store(wake.as_fd().as_raw_fd(), Ordering::Release);
    RECEIVED.store(0, Ordering::Release);
    // Signals belong to the program: they must not be delivered to a thread that it does not know.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let started = std::thread::Builder::new().name("rnic-end".into()).spawn(move || wait(&wake, tell));
    before.thread_set_mask()?;
    started?;
    OWNER.store(own, Ordering::Release);
    // In a child of such a process the handler is there already.
    for signal in SIGNALS.iter().filter(|signal| action_of(**signal) == libc::SIG_DFL) {
        act(*signal, handler(), libc::SA_RESTART);
    }
    Ok(())
}

/// Waits for a signal, and ends the process.
fn wait(wake: &EventFd, tell: fn()) {
    while let Err(error) = wake.read() {
        if error != Errno::EINTR {
            return;
        }
    }
    tell();
    let Ok(signal) = Signal::try_from(RECEIVED.load(Ordering::Acquire)) else { return };
    end_by(signal);
}

/// Lets a signal take its course: its default action, unless the program has installed a handler meanwhile.
fn end_by(signal: Signal) {
    if action_of(signal) == handler() {
        act(signal, libc::SIG_DFL, 0);
    }
    let mut only = SigSet::empty();
    only.add(signal);
    // This thread blocks all signals, or runs the handler of this one.
    let _ = only.thread_unblock();
    // SAFETY: the call takes a number.
    unsafe { libc::raise(signal as c_int) };
}

/// The handler. It may interrupt anything, so it does no more than to wake the thread.
extern "C" fn handle(number: c_int) {
    let errno = Errno::last_raw();
    if Signal::try_from(number).is_ok_and(|signal| action_of(signal) != handler()) {
        // The program's handler calls this one, which was there before it.
        Errno::set_raw(errno);
        return;
    }
    let is_first = RECEIVED.swap(number, Ordering::AcqRel) == 0;
    // A child that was forked has no such thread.
    let is_waited_for = OWNER.load(Ordering::Acquire) == own_pid();
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the buffer has eight bytes.
    let woken = is_first
        && is_waited_for
        && unsafe { libc::write(WAKE.load(Ordering::Acquire), one.as_ptr().cast::<c_void>(), one.len()) }
            == 8;
    if !woken && let Ok(signal) = Signal::try_from(number) {
        end_by(signal);
    }
    Errno::set_raw(errno);
}

fn handler() -> usize {
    handle as extern "C" fn(c_int) as usize
}

fn own_pid() -> i32 {
    i32::try_from(process::id()).unwrap_or(0)
}

/// What happens on a signal: the address of a handler, or `SIG_DFL` or `SIG_IGN`.
fn action_of(signal: Signal) -> usize {
    query(signal as c_int).sa_sigaction
}

/// Sets what happens on a signal: the default action, or our handler.
fn act(signal: Signal, handler: usize, flags: c_int) {
    // The mask is that of the default action, or of our handler: empty.
    let action = sigaction { sa_sigaction: handler, sa_flags: flags, ..query(signal as c_int) };
    // SAFETY: without SA_SIGINFO a handler takes a number, and ours only calls what may be called in a handler.
    unsafe { set(signal as c_int, &action) };
}
