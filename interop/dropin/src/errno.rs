//! Errors as the error numbers that verbs return.

use rnic::engine::{ModifyQpError, ResourceError};
use rnic::{AccessError, BufferError, Error, PostError, RegisterError};
use std::ffi::c_int;

/// An error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const NOT_FOUND: Self = Self(libc::ENOENT);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const IO: Self = Self(libc::EIO);
    pub(crate) const AGAIN: Self = Self(libc::EAGAIN);

    /// The error of the last system call.
    pub(crate) fn last() -> Self {
        nix::errno::Errno::last().into()
    }

    /// Stores the number in `errno`, where C programs look for it.
    pub(crate) fn set(self) {
        nix::errno::Errno::from_raw(self.0).set();
    }
}

impl From<nix::errno::Errno> for Errno {
    fn from(errno: nix::errno::Errno) -> Self {
        Self(errno as c_int)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        error.raw_os_error().map_or(Self::IO, Self)
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self::of(&error).because(&error)
    }
}

impl Errno {
    /// The number that the kernel or a driver of rdma-core returns for an error.
    fn of(error: &Error) -> Self {
        match error {
            Error::Resource(error) => resource(error),
            Error::Modify(ModifyQpError::DeviceFailed) => Self::IO,
            Error::Post(PostError::QueueFull { .. }) => Self::NO_MEMORY,
            Error::Os { source, .. } => source.raw_os_error().map_or(Self::IO, Self),
            Error::Memory(BufferError::Fault(_)) => Self(libc::EFAULT),
            Error::Access(AccessError::OutOfRange { .. } | AccessError::Fault { .. }) => Self(libc::EFAULT),
            Error::Access(AccessError::Denied { .. }) => Self(libc::EPERM),
            Error::Open(_) => Self(libc::EADDRNOTAVAIL),
            // The kernel's error for a context that another process opened.
            Error::Forked => Self(libc::EACCES),
            _ => Self::INVALID,
        }
    }
}

fn resource(error: &ResourceError) -> Errno {
    match error {
        ResourceError::Busy { .. } => Errno::BUSY,
        ResourceError::Exhausted { .. }
        | ResourceError::NoMemory { .. }
        | ResourceError::Register(RegisterError::Full { .. } | RegisterError::FullOfWindows { .. }) => {
            Errno::NO_MEMORY
        }
        ResourceError::DeviceFailed => Errno::IO,
        _ => Errno::INVALID,
    }
}
