//! Flags with a descriptor that polls like the kernel's own, and threads that sleep on them.

use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::{pipe2, read, write};
use rnic_core::port::Readiness;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use time::Duration;

/// A flag that is a pipe, of which a program sees the read end.
///
/// The kernel's descriptors of channels and contexts are never writable, and programs rely on it: one that waits for both
/// readiness and room, as event loops of connections do, would find an eventfd ready at all times. A read end is never writable
/// either, and does all else that programs ask of the kernel's: `EPOLLEXCLUSIVE` and signals (`O_ASYNC`).
struct PipeFlag {
    shown: OwnedFd,
    /// The same pipe, opened for reading and writing, and non-blocking whatever the program makes of its own descriptor. It is a
    /// reader, so that writing never raises SIGPIPE, even if the program has closed its descriptor.
    own: OwnedFd,
}

/// A flag, lowered. Its descriptor is non-blocking.
///
/// # Errors
/// The process has no descriptors left, or no /proc.
pub fn new() -> io::Result<Box<dyn Readiness>> {
    Ok(Box::new(PipeFlag::new()?))
}

impl PipeFlag {
    fn new() -> io::Result<Self> {
        let (shown, _write_end) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let path = format!("/proc/self/fd/{}", shown.as_raw_fd());
        let own = open(&*path, OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self { shown, own })
    }
}

/// Sleeps until a flag is raised, or for `timeout`, or less.
pub(super) fn sleep(flag: &dyn Readiness, timeout: Duration) {
    // Rounded up, because poll counts in milliseconds.
    let timeout = PollTimeout::try_from(timeout + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    // The result does not matter, nor does an interruption: the caller looks again.
    let _ = poll(&mut [PollFd::new(flag.as_fd(), PollFlags::POLLIN)], timeout);
}

impl AsFd for PipeFlag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shown.as_fd()
    }
}

impl Readiness for PipeFlag {
    fn raise(&self) {
        // The only possible error is a full pipe, and then the descriptor is readable too.
        let _ = write(&self.own, &[1]);
    }

    fn lower(&self) {
        let mut bytes = [0; 256];
        while read(&self.own, &mut bytes) == Ok(bytes.len()) {}
    }

    fn write_end(&self) -> Option<BorrowedFd<'_>> {
        Some(self.own.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

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
        // More often than a pipe has room.
        (0..100_000).for_each(|_| flag.raise());
        assert_eq!(ready(&*flag), PollFlags::POLLIN);
        flag.lower();
        assert_eq!(ready(&*flag), PollFlags::empty());
    }

    #[test]
    fn a_flag_whose_descriptor_the_program_has_closed_raises_no_signal() {
        let PipeFlag { shown, own } = PipeFlag::new().expect("a flag");
        drop(shown);
        assert_eq!(write(&own, &[1]), Ok(1), "not EPIPE");
    }

    #[test]
    fn a_flag_can_be_watched_exclusively() {
        let (flag, program) = (new().expect("a flag"), Epoll::new(EpollCreateFlags::empty()).expect("epoll"));
        let wanted = EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE;
        program.add(flag.as_fd(), EpollEvent::new(wanted, 7)).expect("a watch");
        flag.raise();
        assert_eq!(program.wait(&mut [EpollEvent::empty(); 2], PollTimeout::ZERO), Ok(1));
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
