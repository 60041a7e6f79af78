//! The daemon, from its programs' side: several programs share an address.
//!
//! Without a daemon, an address belongs to one process. `rnic daemon` shares addresses out: it owns a group of sockets
//! at each, steered by the top byte of the destination queue pair number, and hands a slot to each device of a program. No
//! packet of a queue pair passes through the daemon. What it keeps for all its programs is queue pair 1, and with it the
//! ports of connection management; multicast groups; and the state of the host's addresses and links, so that a program in
//! another network namespace needs nothing but the daemon's socket.
//!
//! ```text
//!        program (slot 1)      program (slot 2)           rnic daemon (slot 0)
//!       +----------------+    +----------------+    +-----------------------------+
//!       | engine         |    | engine         |    | QP1, ports, groups, host    |
//!       +-+----------^---+    +-+----------^---+    +---^--------------------^----+
//!         |          '..........|..........'............'  Unix socket       |
//!         v                     v                                           |
//!       ==+== UDP 4791 =========+===========================================+======
//! ```
//!
//! A program finds the daemon by itself ([`Daemon::find`]); [`DeviceConfig::open`](crate::DeviceConfig::open) asks it first.

mod channel;
mod desk;
mod find;
pub mod protocol;
mod slot;
mod watch;

pub use desk::Desk;
pub use find::{Daemon, SYSTEM_SOCKET, VARIABLE, user_socket};
pub use slot::KEEPER;
pub(crate) use slot::{News, Slot};
pub use watch::{WatchedProgram, programs};

use protocol::Refusal;
use std::io;
use std::path::PathBuf;

/// Why the daemon does not serve a program.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No daemon listens there, or the file rights of its socket keep this user out.
    #[error("no daemon answers at {}: {source}{}", path.display(), remedy(source))]
    Absent {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The daemon went away, or says nothing.
    #[error("the daemon at {} does not answer: {source}", path.display())]
    Lost {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The daemon has no address for this user, or not yet: an interface may get one.
    #[error("the daemon at {} shares no address with this user yet", path.display())]
    NoAddress {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon refuses.
    #[error("{0}")]
    Refused(Refusal),
}

impl From<DaemonError> for crate::Error {
    fn from(error: DaemonError) -> Self {
        Self::Daemon(Box::new(error))
    }
}

/// With the error number of the daemon's system, if it has one.
impl From<DaemonError> for io::Error {
    fn from(error: DaemonError) -> Self {
        match error {
            DaemonError::Refused(Refusal::Os { errno, .. }) => Self::from_raw_os_error(errno),
            other => Self::other(other),
        }
    }
}

fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "; its socket is for its own user and group: ask to be added to the group"
        }
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "; `rnic daemon` starts one",
        _ => "",
    }
}
