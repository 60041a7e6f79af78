//! Flags with a descriptor of the kernel's own kind, and threads that sleep on them.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rnic_core::port::Readiness;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use time::Duration;

/// A flag that is an eventfd.
struct EventFlag(EventFd);

/// A flag, lowered.
pub(super) fn new() -> io::Result<Box<dyn Readiness>> {
    Ok(Box::new(EventFlag(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?)))
}

/// Sleeps until a flag is raised, or for `timeout`, or less.
pub(super) fn sleep(flag: &dyn Readiness, timeout: Duration) {
    // Rounded up, because poll counts in milliseconds.
    let timeout = PollTimeout::try_from(timeout + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    // The result does not matter, nor does an interruption: the caller looks again.
    let _ = poll(&mut [PollFd::new(flag.as_fd(), PollFlags::POLLIN)], timeout);
}

impl AsFd for EventFlag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Readiness for EventFlag {
    fn raise(&self) {
        // The only possible error is a counter at its maximum, and then the descriptor is readable too.
        let _ = self.0.write(1);
    }

    fn lower(&self) {
        // Takes the whole count. Polled first, because a program may make the descriptor blocking.
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        if matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1)) {
            let _ = self.0.read();
        }
    }
}
