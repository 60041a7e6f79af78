//! Errors of the API.

use crate::engine::{ModifyQpError, PKeyTableError, ResourceError};
use crate::link::LinkConfigError;
use qp::queue_pair::PostError;
use thiserror::Error;
use time::Duration;

mod connect;
mod sockets;

pub use connect::ConnectError;
pub use sockets::LOOPBACK_TRIES;
pub use sockets::{BindError, JoinError};

/// A misuse of the API, or something that this host or device cannot do. A failed work request is not an error but
/// the status of a completion.
#[derive(Debug, Error)]
pub enum Error {
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] BindError),
    /// A multicast group could not be joined.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// An object could not be created or destroyed.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// A queue pair could not be modified.
    #[error(transparent)]
    Modify(#[from] ModifyQpError),
    /// A connection was not made, or a service not resolved.
    #[error(transparent)]
    Connect(Box<ConnectError>),
    /// A work request was not accepted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The P_Key table is not valid.
    #[error(transparent)]
    PKeys(#[from] PKeyTableError),
    /// The settings of the link contradict each other.
    #[error("link: {0}")]
    Link(Box<LinkConfigError>),
    /// A configuration file cannot be used.
    #[error(transparent)]
    Config(Box<dyn std::error::Error + Send + Sync>),
    /// The daemon, which shares addresses out, does not serve the program.
    #[error(transparent)]
    Daemon(Box<dyn std::error::Error + Send + Sync>),
    /// A range of a memory region that does not exist.
    #[error("bytes {start}..{end} are not inside the region, which has {len}")]
    Range {
        /// First requested byte.
        start: u64,
        /// One past the last requested byte.
        end: u64,
        /// Length of the region.
        len: u64,
    },
    /// Memory could not be allocated, read or written.
    #[error(transparent)]
    Memory(#[from] crate::memory::BufferError),
    /// Registered memory cannot be used in this way.
    #[error(transparent)]
    Access(#[from] qp::AccessError),
    /// A fault rule cannot be parsed, or is invalid.
    #[error("{0}")]
    FaultRule(String),
    /// Nothing completed in time.
    #[error("no completion within {0:?}")]
    Timeout(Duration),
    /// Nothing completed, and in virtual time nothing ever will.
    #[error(
        "no completion, and nothing is under way any more: what was waited for was never posted, or failed without a report"
    )]
    Stalled,
    /// The completion queue is in error, and all earlier completions were polled.
    #[error("the completion queue overran: completions were lost, and it takes no more")]
    Overrun,
    /// The object was opened before a fork, by the parent.
    #[error("this device was opened by the parent process: open it again after the fork")]
    Forked,
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Os {
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        Self::Connect(Box::new(error))
    }
}

impl From<LinkConfigError> for Error {
    fn from(error: LinkConfigError) -> Self {
        Self::Link(Box::new(error))
    }
}

/// A result of the API.
pub type Result<T> = std::result::Result<T, Error>;
