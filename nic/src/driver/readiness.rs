//! Flags with a descriptor that polls like the kernel's own, and threads that sleep on them.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rnic_core::port::Readiness;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use time::Duration;

/// A flag that is an eventfd, which a program sees through an epoll descriptor.
///
/// The kernel's descriptors of channels and contexts are never writable, and programs rely on it: one that waits for both
/// readiness and room, as event loops of connections do, would find an eventfd ready at all times. An epoll descriptor is never
/// writable, and passes on each edge of what it watches.
struct EventFlag {
    counter: EventFd,
    shown: Epoll,
}

/// A flag, lowered. Its descriptor is non-blocking.
///
/// # Errors
/// The process has no descriptors left.
pub fn new() -> io::Result<Box<dyn Readiness>> {
    // Blocking, for whoever waits by reading it.
    let counter = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
    let shown = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    shown.add(&counter, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    fcntl(&shown.0, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(Box::new(EventFlag { counter, shown }))
}

/// Sleeps until a flag is raised, or for `timeout`, or less.
pub(super) fn sleep(flag: &dyn Readiness, timeout: Duration) {
    // Rounded up, because poll counts in milliseconds.
    let timeout = PollTimeout::try_from(timeout + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    // The result does not matter, nor does an interruption: the caller looks again.
    let _ = poll(&mut [PollFd::new(flag.counter().unwrap_or(flag.as_fd()), PollFlags::POLLIN)], timeout);
}

impl AsFd for EventFlag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shown.0.as_fd()
    }
}

impl Readiness for EventFlag {
    fn raise(&self) {
        // The only possible error is a counter at its maximum, and then the descriptor is readable too.
        let _ = self.counter.write(1);
    }

    fn lower(&self) {
        // Takes the whole count. Polled first, because the counter is blocking.
        let mut fds = [PollFd::new(self.counter.as_fd(), PollFlags::POLLIN)];
        if matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1)) {
            let _ = self.counter.read();
        }
    }

    fn counter(&self) -> Option<BorrowedFd<'_>> {
        Some(self.counter.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `poll` says of a descriptor that is watched for everything.
    fn ready(flag: &dyn Readiness) -> PollFlags {
        let mut fds = [PollFd::new(flag.as_fd(), PollFlags::POLLIN | PollFlags::POLLOUT)];
        poll(&mut fds, PollTimeout::ZERO).expect("poll");
        fds[0].revents().expect("known flags")
    }

    #[test]
    fn a_flag_is_readable_while_it_is_raised_and_never_writable() {
        let flag = new().expect("a flag");
        assert_eq!(ready(&*flag), PollFlags::empty());
        flag.raise();
        flag.raise();
        assert_eq!(ready(&*flag), PollFlags::POLLIN);
        flag.lower();
        assert_eq!(ready(&*flag), PollFlags::empty());
        flag.lower();
    }

    #[test]
    fn each_time_a_flag_is_raised_makes_an_edge() {
        let (flag, program) = (new().expect("a flag"), Epoll::new(EpollCreateFlags::empty()).expect("epoll"));
        let wanted = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        program.add(flag.as_fd(), EpollEvent::new(wanted, 7)).expect("a watch");
        let edges = || program.wait(&mut [EpollEvent::empty(); 2], PollTimeout::ZERO).expect("epoll");
        assert_eq!(edges(), 0);
        for _ in 0..3 {
            flag.raise();
            assert_eq!(edges(), 1);
            assert_eq!(edges(), 0, "the same edge again");
        }
    }
}
