//! The pipe behind a channel.
//!
//! The program holds the read end. It contains a byte for each event that waits, so the descriptor is readable exactly
//! while there is an event, and the program waits by reading: blocking or not, interrupted or not, as the program chose.
//! A pipe has an inode of its own, by which a descriptor is recognised that the program has duplicated or moved.

use crate::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::unistd::pipe2;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a pipe: its inode, which is not 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct PipeId(pub(super) u64);

/// The file system of pipes: one for all of a host. A named pipe is a file of another one.
static PIPES: AtomicU64 = AtomicU64::new(0);

/// Descriptors of the write ends start here, out of the way of the program's, whose numbers `select` bounds.
const HIGH: RawFd = 512;

/// Most bytes written or read at a time.
const STEP: usize = 256;

/// The write end of a pipe.
pub(super) struct Pipe {
    write: RawFd,
    pub(super) id: PipeId,
}

/// Identifies the pipe of a descriptor; `None` if it is no pipe.
pub(super) fn identify(fd: RawFd) -> Option<PipeId> {
    let (pipes, id) = pipe_of(fd)?;
    (pipes == PIPES.load(Ordering::Relaxed)).then_some(id)
}

/// The file system and the identity of a pipe. The system call is made here, because the hook for `fstat` asks this
/// module.
fn pipe_of(fd: RawFd) -> Option<(u64, PipeId)> {
    // SAFETY: the structure consists of numbers.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    let mask = libc::STATX_TYPE | libc::STATX_INO;
    // SAFETY: the path is a string, and the structure has room for the result. Any number may be passed for a descriptor.
    let failed = unsafe {
        libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), libc::AT_EMPTY_PATH, mask, &raw mut status)
    };
    let is_pipe = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFIFO;
    let pipes = u64::from(status.stx_dev_major) << 32 | u64::from(status.stx_dev_minor);
    (failed == 0 && is_pipe).then_some((pipes, PipeId(status.stx_ino)))
}

/// Closes a descriptor without the hook for `close`, which would look for a channel.
fn close(fd: RawFd) {
    // SAFETY: the descriptor is ours, and not used any more.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

impl Pipe {
    /// Makes a pipe, with the program's flags of `open` for the read end, which is returned.
    pub(super) fn new(flags: c_int) -> Result<(Self, RawFd), Errno> {
        let flags = OFlag::from_bits_truncate(flags);
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fcntl(&read, FcntlArg::F_SETFL(flags & OFlag::O_NONBLOCK))?;
        if !flags.contains(OFlag::O_CLOEXEC) {
            fcntl(&read, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        let (pipes, id) = pipe_of(write.as_raw_fd()).ok_or(Errno::IO)?;
        PIPES.store(pipes, Ordering::Relaxed);
        let write = match fcntl(&write, FcntlArg::F_DUPFD_CLOEXEC(HIGH)) {
            Ok(high) => {
                close(write.into_raw_fd());
                high
            }
            Err(_) => OwnedFd::into_raw_fd(write),
        };
        Ok((Self { write, id }, read.into_raw_fd()))
    }

    /// Makes the pipe contain this number of bytes, as far as it has room for them. So whatever has happened to a byte (a
    /// thread that was cancelled when it had read one; a pipe that was full), the next call corrects it.
    pub(super) fn hold(&self, wanted: usize) {
        let mut now: c_int = 0;
        // SAFETY: `now` has room for the number.
        if unsafe { libc::ioctl(self.write, libc::FIONREAD, &raw mut now) } != 0 {
            return;
        }
        let now = usize::try_from(now).unwrap_or(0);
        self.add(wanted.saturating_sub(now));
        self.remove(now.saturating_sub(wanted));
    }

    fn add(&self, mut count: usize) {
        let bytes = [0u8; STEP];
        while count > 0 {
            // SAFETY: the bytes are ours. The end does not block.
            let written = unsafe { libc::write(self.write, bytes.as_ptr().cast(), count.min(STEP)) };
            let Ok(written @ 1..) = usize::try_from(written) else { return };
            count -= written;
        }
    }

    /// Takes bytes out, by a read end of its own: that of the program may block.
    fn remove(&self, mut count: usize) {
        if count == 0 {
            return;
        }
        let Ok(path) = std::ffi::CString::new(format!("/proc/self/fd/{}", self.write)) else { return };
        // SAFETY: the path is a string.
        let read = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC) };
        if read < 0 {
            return;
        }
        let mut bytes = [0u8; STEP];
        while count > 0 {
            // SAFETY: the space is ours.
            let taken = unsafe { libc::read(read, bytes.as_mut_ptr().cast(), count.min(STEP)) };
            let Ok(taken @ 1..) = usize::try_from(taken) else { break };
            count -= taken;
        }
        close(read);
    }

    /// Whether no descriptor of the read end is left, and no thread waits in it.
    pub(super) fn is_closed(&self) -> bool {
        let mut list = libc::pollfd { fd: self.write, events: 0, revents: 0 };
        // SAFETY: the list has one element.
        let ready = unsafe { libc::poll(&raw mut list, 1, 0) };
        ready == 1 && list.revents & libc::POLLERR != 0
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        close(self.write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(fd: RawFd) -> c_int {
        let mut now = 0;
        // SAFETY: `now` has room for the number.
        assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut now) }, 0);
        now
    }

    #[test]
    fn a_pipe_holds_a_byte_for_each_event_whatever_happened_before() {
        let (pipe, read) = Pipe::new(libc::O_NONBLOCK).expect("a pipe");
        for count in [0, 1, 3, 2, 600, 0, 5] {
            pipe.hold(count);
            assert_eq!(waiting(read), c_int::try_from(count).expect("small"));
        }
        let mut byte = 0u8;
        // SAFETY: the space is that of this test.
        assert_eq!(unsafe { libc::read(read, (&raw mut byte).cast(), 1) }, 1);
        pipe.hold(5);
        assert_eq!(waiting(read), 5);
        // More than a pipe has room for: the rest comes later.
        pipe.hold(1 << 20);
        let full = waiting(read);
        assert!(full > 600);
        pipe.hold(0);
        assert_eq!(waiting(read), 0);
        close(read);
    }

    #[test]
    fn a_pipe_knows_its_descriptors_and_when_the_last_is_gone() {
        let (pipe, read) = Pipe::new(libc::O_CLOEXEC).expect("a pipe");
        // SAFETY: the descriptor is that of this test.
        let copy = unsafe { libc::dup(read) };
        assert_eq!((identify(read), identify(copy)), (Some(pipe.id), Some(pipe.id)));
        let (other, another) = Pipe::new(0).expect("another pipe");
        assert_ne!(other.id, pipe.id);
        assert_eq!(identify(0).filter(|id| *id == pipe.id), None);
        assert_eq!(identify(-1), None);
        close(read);
        assert!(!pipe.is_closed());
        close(copy);
        assert!(pipe.is_closed() && !other.is_closed());
        close(another);
    }

    #[test]
    fn the_flags_of_open_are_those_of_the_descriptor() {
        for (flags, nonblocking, closing) in
            [(libc::O_RDWR | libc::O_CLOEXEC, false, true), (libc::O_RDWR | libc::O_NONBLOCK, true, false)]
        {
            let (_pipe, read) = Pipe::new(flags).expect("a pipe");
            // SAFETY: `fcntl` accepts any descriptor.
            let (status, own) =
                unsafe { (libc::fcntl(read, libc::F_GETFL), libc::fcntl(read, libc::F_GETFD)) };
            assert_eq!((status & libc::O_NONBLOCK != 0, own & libc::FD_CLOEXEC != 0), (nonblocking, closing));
            close(read);
        }
    }
}
