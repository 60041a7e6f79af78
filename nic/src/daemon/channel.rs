//! A program's end of a connection to the daemon: frames, and the descriptors that come with them.

use super::protocol::{FrameError, MOST_DESCRIPTORS, read_frame, write_frame};
use bytes::BytesMut;
use nix::cmsg_space;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes that one call reads.
const READ: usize = 16 << 10;

/// A connection.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    incoming: BytesMut,
    descriptors: VecDeque<OwnedFd>,
}

impl Channel {
    /// Connects to the daemon that listens there.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, incoming: BytesMut::new(), descriptors: VecDeque::new() })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The daemon is gone, or has not read for `patience`.
    pub(crate) fn send(&mut self, message: &impl Serialize, patience: Duration) -> io::Result<()> {
        let mut frame = BytesMut::new();
        write_frame(message, &mut frame);
        let end = Instant::now() + patience;
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.await_ready(PollFlags::POLLOUT, end)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives the next message, or returns `None` if none has arrived. Never waits.
    ///
    /// # Errors
    /// The daemon has closed the connection, or says what is no message.
    pub(crate) fn try_recv<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        loop {
            if let Some(message) = read_frame(&mut self.incoming).map_err(invalid)? {
                return Ok(Some(message));
            }
            match self.read() {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives a message, and waits for it.
    ///
    /// # Errors
    /// As [`try_recv`](Self::try_recv); [`io::ErrorKind::TimedOut`] if none came.
    pub(crate) fn recv<M: DeserializeOwned>(&mut self, patience: Duration) -> io::Result<M> {
        let end = Instant::now() + patience;
        loop {
            if let Some(message) = self.try_recv()? {
                return Ok(message);
            }
            self.await_ready(PollFlags::POLLIN, end)?;
        }
    }

    /// The descriptors that came with the messages received so far.
    pub(crate) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        self.descriptors.drain(..).collect()
    }

    /// The first `N` of them: a message knows how many came with it, and those of the next may be here already. `None` if there
    /// are fewer.
    pub(crate) fn take_some<const N: usize>(&mut self) -> Option<[OwnedFd; N]> {
        let some = (self.descriptors.len() >= N).then(|| self.descriptors.drain(..N).collect::<Vec<_>>());
        some?.try_into().ok()
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    fn await_ready(&self, what: PollFlags, end: Instant) -> io::Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // At least a millisecond, so that the wait ends.
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.stream.as_fd(), what)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&mut self) -> io::Result<usize> {
        let start = self.incoming.len();
        self.incoming.resize(start + READ, 0);
        let mut space = cmsg_space!([RawFd; MOST_DESCRIPTORS]);
        let mut parts = [IoSliceMut::new(&mut self.incoming[start..])];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received = recvmsg::<()>(self.stream.as_raw_fd(), &mut parts, Some(&mut space), flags);
        let result = received.map(|message| {
            let controls = message.cmsgs().into_iter().flatten();
            let rights = controls.filter_map(|control| match control {
                ControlMessageOwned::ScmRights(fds) => Some(fds),
                _ => None,
            });
            self.descriptors.extend(rights.flatten().map(owned));
            message.bytes
        });
        let read = *result.as_ref().unwrap_or(&0);
        self.incoming.truncate(start + read);
        Ok(result?)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn invalid(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[expect(unsafe_code, reason = "the kernel hands descriptors over as numbers")]
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
