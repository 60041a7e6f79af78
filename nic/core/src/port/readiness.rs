//! Flags that programs wait for by descriptor.

use std::io;
#[cfg(unix)]
pub use std::os::fd::AsFd as Descriptor;
#[cfg(unix)]
use std::os::fd::BorrowedFd;

/// What a program waits on; where there are no descriptors, nothing.
#[cfg(not(unix))]
pub trait Descriptor {}

/// A flag with a descriptor, which is readable while the flag is raised. The program may poll the descriptor in any way,
/// and may make it blocking or not.
pub trait Readiness: Descriptor + Send + Sync {
    /// Raises the flag. Each call makes an edge for edge-triggered polling, also if the flag is raised already.
    fn raise(&self);

    /// Lowers the flag.
    fn lower(&self);

    /// Where a byte that was read from the descriptor is written back, if it is a pipe. So a thread can wait in a system call that
    /// a signal restarts, which is true of `read`, and not of `poll`.
    #[cfg(unix)]
    fn write_end(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A flag for ports that have no operating system at hand: a pair of sockets of the standard library.
///
/// # Errors
/// The process has no descriptor left.
#[cfg(unix)]
pub fn portable() -> io::Result<Box<dyn Readiness>> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    theirs.set_nonblocking(true)?;
    Ok(Box::new(unix::Pair { ours, theirs, unread: std::sync::Mutex::new(0) }))
}

/// A flag that only the program's own calls look at: there are no descriptors.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn portable() -> io::Result<Box<dyn Readiness>> {
    struct Unseen;
    impl Descriptor for Unseen {}
    impl Readiness for Unseen {
        fn raise(&self) {}

        fn lower(&self) {}
    }
    Ok(Box::new(Unseen))
}

#[cfg(unix)]
mod unix {
    use super::Readiness;
    use crate::queue::locked;
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    /// Two sockets: a byte waits in one of them while the flag is raised.
    pub(super) struct Pair {
        pub(super) ours: UnixStream,
        pub(super) theirs: UnixStream,
        /// Bytes that wait.
        pub(super) unread: Mutex<usize>,
    }

    impl AsFd for Pair {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.theirs.as_fd()
        }
    }

    impl Readiness for Pair {
        fn raise(&self) {
            // The one possible error is a full buffer, and then the descriptor is readable too.
            let mut unread = locked(&self.unread);
            *unread += (&self.ours).write(&[1]).unwrap_or(0);
        }

        fn lower(&self) {
            // Reads no more than was written: the program may have made the descriptor blocking.
            let mut unread = locked(&self.unread);
            let mut bytes = [0; 256];
            while *unread > 0 {
                let most = bytes.len().min(*unread);
                match (&self.theirs).read(&mut bytes[..most]) {
                    Ok(read @ 1..) => *unread -= read.min(*unread),
                    _ => break,
                }
            }
        }
    }
}
