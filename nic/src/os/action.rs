//! What happens on a signal.

#![expect(unsafe_code, reason = "sigaction takes pointers")]

use libc::{c_int, sigaction};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// The action of a signal. That of a number that is no signal is the default.
pub(super) fn query(signal: c_int) -> sigaction {
    let mut action = MaybeUninit::<sigaction>::zeroed();
    // SAFETY: a null action changes nothing; `action` takes the current one.
    unsafe { sigaction(signal, null(), action.as_mut_ptr()) };
    // SAFETY: all zeroes is a valid sigaction (the default action), should the call have failed.
    unsafe { action.assume_init() }
}

/// Sets the action of a signal.
///
/// # Safety
/// A handler has the type that the flags of the action require, and may run wherever the signal interrupts a thread.
pub(super) unsafe fn set(signal: c_int, action: &sigaction) {
    // SAFETY: guaranteed by the caller.
    unsafe { sigaction(signal, action, null_mut()) };
}
