//! Where descriptors survive the daemon.
//!
//! A shared address lives as long as its sockets, all of them and in their order. So somebody else holds a duplicate of
//! each: the keeper, a small process that the daemon starts. It holds descriptors by name, and gives them all to the next
//! daemon. It knows nothing of what they are. If no daemon comes within [`PATIENCE`], it ends, and with it the addresses.
//!
//! Daemon and keeper talk over a `SOCK_SEQPACKET` socket next to that of the daemon, which only their own user may open: each
//! message is one packet, with one descriptor or none.

use nix::cmsg_space;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, socket, sockopt,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the keeper waits for the next daemon.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// How long a keeper that was just started may take to listen.
const START: Duration = Duration::from_secs(10);

/// The longest message.
const MOST: usize = 512;

/// What the daemon says to the keeper, and the keeper to the daemon.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Message {
    /// Holds the descriptor that comes with this, in place of one of the same name.
    Hold(String),
    /// Closes one.
    Drop(String),
    /// Asks for all: each comes as a `Hold`, and then comes `Done`.
    All,
    /// There are no more.
    Done,
    /// The daemon ends for good: the keeper ends too.
    End,
}

/// The daemon's line to the keeper.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    line: OwnedFd,
}

/// The keeper's socket, next to the daemon's.
#[must_use]
pub fn keeper_socket(daemon: &Path) -> PathBuf {
    let mut name = daemon.as_os_str().to_owned();
    name.push(".keeper");
    name.into()
}

impl Store {
    /// Finds the keeper of an earlier daemon, or starts one by running `program` with the arguments `keeper PATH`. Returns what
    /// it holds.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub fn open(path: &Path, program: &Path) -> io::Result<(Self, BTreeMap<String, OwnedFd>)> {
        let line = match dial(path) {
            Ok(line) => line,
            Err(_) => start(path, program)?,
        };
        let store = Self { path: path.to_owned(), line };
        let held = store.all()?;
        Ok((store, held))
    }

    /// Hands a duplicate of a descriptor to the keeper.
    ///
    /// # Errors
    /// The keeper is gone.
    pub fn hold(&self, name: &str, fd: impl AsFd) -> io::Result<()> {
        send(&self.line, &Message::Hold(name.to_owned()), Some(fd.as_fd().as_raw_fd()))
    }

    /// Makes the keeper close a descriptor.
    ///
    /// # Errors
    /// The keeper is gone.
    pub fn drop_one(&self, name: &str) -> io::Result<()> {
        send(&self.line, &Message::Drop(name.to_owned()), None)
    }

    /// Ends the keeper.
    ///
    /// # Errors
    /// It is gone already.
    pub fn end(&self) -> io::Result<()> {
        send(&self.line, &Message::End, None)
    }

    /// Whether the keeper is still there.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let mut fds = [PollFd::new(self.line.as_fd(), PollFlags::empty())];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready == 0)
    }

    /// The keeper's socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn all(&self) -> io::Result<BTreeMap<String, OwnedFd>> {
        send(&self.line, &Message::All, None)?;
        let mut held = BTreeMap::new();
        loop {
            match receive(&self.line)? {
                Some((Message::Hold(name), Some(fd))) => {
                    held.insert(name, fd);
                }
                Some((Message::Done, _)) => return Ok(held),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}

/// Runs the keeper: listens at `path`, until it is told to end or waits in vain.
///
/// # Errors
/// It cannot listen there.
pub fn keep(path: &Path) -> io::Result<()> {
    let listener = seqpacket()?;
    // What is left of an earlier keeper. A living one would have been found.
    let _ = std::fs::remove_file(path);
    bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listen(&listener, Backlog::new(1)?)?;
    let mut held = BTreeMap::new();
    let mut deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) if Instant::now() >= deadline => break,
            Ok(0) | Err(nix::Error::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let Ok(fd) = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) else { continue };
        let daemon = owned(fd);
        let own = nix::unistd::geteuid().as_raw();
        if getsockopt(&daemon, sockopt::PeerCredentials).is_ok_and(|peer| peer.uid() == own)
            && serve(&daemon, &mut held)
        {
            break;
        }
        deadline = Instant::now() + PATIENCE;
    }
    let _ = std::fs::remove_file(path);
    Ok(())
}

/// Serves a daemon until it is gone; returns whether the keeper is to end.
fn serve(daemon: &OwnedFd, held: &mut BTreeMap<String, OwnedFd>) -> bool {
    while let Ok(Some((message, fd))) = receive(daemon) {
        match (message, fd) {
            (Message::Hold(name), Some(fd)) => {
                held.insert(name, fd);
            }
            (Message::Drop(name), _) => {
                held.remove(&name);
            }
            (Message::All, _) => {
                for (name, fd) in &*held {
                    if send(daemon, &Message::Hold(name.clone()), Some(fd.as_raw_fd())).is_err() {
                        return false;
                    }
                }
                if send(daemon, &Message::Done, None).is_err() {
                    return false;
                }
            }
            (Message::End, _) => return true,
            (Message::Hold(_) | Message::Done, _) => return false,
        }
    }
    false
}

fn seqpacket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?)
}

fn dial(path: &Path) -> io::Result<OwnedFd> {
    let line = seqpacket()?;
    connect(line.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(line)
}

/// Starts a keeper. It is a process group of its own, so that a signal to the daemon's terminal does not reach it.
fn start(path: &Path, program: &Path) -> io::Result<OwnedFd> {
    let mut child = Command::new(program)
        .arg("keeper")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()?;
    let end = Instant::now() + START;
    loop {
        match dial(path) {
            Ok(line) => return Ok(line),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => {}
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("the keeper of the sockets ended at once: {status}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn send(line: &OwnedFd, message: &Message, fd: Option<RawFd>) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let fds: Vec<RawFd> = fd.into_iter().collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights: &[_] = if fds.is_empty() { &[] } else { &rights };
    loop {
        match sendmsg::<()>(line.as_raw_fd(), &[IoSlice::new(&bytes)], rights, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The next message; `None` at the end of the line.
fn receive(line: &OwnedFd) -> io::Result<Option<(Message, Option<OwnedFd>)>> {
    let mut bytes = [0; MOST];
    let mut space = cmsg_space!([RawFd; 1]);
    let (len, fd) = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg::<()>(line.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Ok(message) => {
                let rights = message.cmsgs().into_iter().flatten().find_map(|control| match control {
                    ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
                    _ => None,
                });
                break (message.bytes, rights.map(owned));
            }
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    if len == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(&bytes[..len]).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Some((message, fd)))
}

#[expect(unsafe_code, reason = "the kernel hands descriptors over as numbers")]
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
