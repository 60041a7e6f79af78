//! Where the daemon listens.

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The environment variable that names the daemon's socket: a path, or `off` to use no daemon.
pub const VARIABLE: &str = "RNIC_DAEMON";

/// The socket of the host's daemon.
pub const SYSTEM_SOCKET: &str = "/run/rnic/daemon.sock";

/// The name of the socket in a user's directory for sockets.
const USER_SOCKET: &str = "rnic/daemon.sock";

/// Where a daemon is looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Daemon {
    /// Nowhere: the program uses addresses of its own.
    Off,
    /// At this path. If no daemon is there, or it refuses, that is an error: somebody has asked for it.
    At(PathBuf),
    /// At this path, where a socket was found. If nothing listens there, or the daemon does not admit the user, the program
    /// uses addresses of its own.
    Found(PathBuf),
}

impl Daemon {
    /// Reads [`VARIABLE`]; without it, looks for the socket of the user's own daemon, then for that of the host.
    #[must_use]
    pub fn find() -> Self {
        Self::named(std::env::var_os(VARIABLE).as_deref())
    }

    /// The same with a given value of the variable.
    #[must_use]
    pub fn named(value: Option<&OsStr>) -> Self {
        match value {
            Some(value) if value == "off" || value == "0" => return Self::Off,
            Some(value) if !value.is_empty() => return Self::At(value.into()),
            _ => {}
        }
        let found =
            [user_socket(), Some(PathBuf::from(SYSTEM_SOCKET))].into_iter().flatten().find(|p| is_socket(p));
        found.map_or(Self::Off, Self::Found)
    }

    /// The path, if there is one, and whether somebody has asked for it.
    #[must_use]
    pub fn place(&self) -> Option<(&Path, bool)> {
        match self {
            Self::Off => None,
            Self::At(path) => Some((path, true)),
            Self::Found(path) => Some((path, false)),
        }
    }
}

/// The socket of the user's own daemon, in `$XDG_RUNTIME_DIR`.
#[must_use]
pub fn user_socket() -> Option<PathBuf> {
    let dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty())?;
    Some(PathBuf::from(dir).join(USER_SOCKET))
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}
