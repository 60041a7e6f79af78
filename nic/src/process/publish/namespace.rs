//! The network namespace that a device belongs to.

use nix::sys::stat::stat;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// The kernel's file for the namespace of the calling thread, which need not be that of the process.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace of this host.
///
/// Two values are equal if they are of the same namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NetNamespace {
    /// The inode number, as `lsns -t net` and `ls -l /proc/PID/ns/net` show it; 0 where there is no `/proc`.
    pub inode: u64,
    /// The kernel's cookie (`SO_NETNS_COOKIE`, Linux 5.14); 0 if the kernel has none. Inode numbers of removed
    /// namespaces are reused; cookies are not.
    pub cookie: u64,
}

impl NetNamespace {
    /// The namespace of the calling thread.
    #[must_use]
    pub fn current() -> Self {
        Self {
            inode: stat(OWN).map_or(0, |stat| stat.st_ino),
            cookie: crate::net::namespace_cookie().unwrap_or(0),
        }
    }
}

/// The form in files: both numbers, with a dot between.
impl fmt::Display for NetNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.inode, self.cookie)
    }
}

impl FromStr for NetNamespace {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let (inode, cookie) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Self { inode: inode.parse()?, cookie: cookie.parse()? })
    }
}
