//! Where descriptors survive the daemon.
//!
//! A shared address lives as long as its sockets, all of them and in their order. So somebody else holds a duplicate of
//! each: the keeper, a small process that the daemon starts. It holds descriptors by name, and gives them all to the next
//! daemon. It knows nothing of what they are. If no daemon comes within [`PATIENCE`], it ends, and with it the addresses.
//!
//! Where systemd runs the daemon, its store of descriptors (`FileDescriptorStoreMax=`) takes the place of the keeper: systemd
//! would end a keeper together with a daemon that has crashed.
//!
//! Daemon and keeper talk over a `SOCK_SEQPACKET` socket next to that of the daemon, which only their own user may open: each
//! message is one packet, with one descriptor or none.

use nix::cmsg_space;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, socket, sockopt,
};
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
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

/// The process that holds the descriptors.
#[derive(Debug)]
enum Holder {
    Keeper {
        path: PathBuf,
        line: OwnedFd,
    },
    /// With the number of the latest descriptor of each name: systemd may have several of one name, so each gets one of its
    /// own, and the one before is dropped after it.
    Systemd(Mutex<BTreeMap<String, u64>>),
    /// Nobody: a daemon that is tried out leaves nothing.
    Nobody,
}

/// The daemon's line to whoever holds its descriptors.
#[derive(Debug)]
pub struct Store {
    holder: Holder,
}

/// The keeper's socket, next to the daemon's.
#[must_use]
pub fn keeper_socket(daemon: &Path) -> PathBuf {
    let mut name = daemon.as_os_str().to_owned();
    name.push(rnic::daemon::KEEPER);
    name.into()
}

impl Store {
    /// Finds the keeper of an earlier daemon, or starts one by running `program` with the arguments `keeper PATH`. Under systemd,
    /// if it says that it keeps descriptors (`$FDSTORE`, since systemd 254) or `with_systemd` says so, its store is used. Returns
    /// what is held.
    ///
    /// # Errors
    /// The keeper cannot be started, or does not answer; systemd does not answer.
    pub fn open(
        path: &Path,
        program: &Path,
        with_systemd: bool,
    ) -> io::Result<(Self, BTreeMap<String, OwnedFd>)> {
        if with_systemd || std::env::var_os("FDSTORE").is_some() {
            return Self::of_systemd();
        }
        let line = match dial(path) {
            Ok(line) => line,
            Err(_) => start(path, program)?,
        };
        let held = all_of(&line)?;
        Ok((Self { holder: Holder::Keeper { path: path.to_owned(), line } }, held))
    }

    /// One that holds nothing.
    #[must_use]
    pub(crate) const fn of_nobody() -> Self {
        Self { holder: Holder::Nobody }
    }

    fn of_systemd() -> io::Result<(Self, BTreeMap<String, OwnedFd>)> {
        let (mut numbers, mut held) = (BTreeMap::new(), BTreeMap::new());
        for (fd, name) in sd_notify::listen_fds_with_names()? {
            let fd = owned(fd);
            let Some((name, number)) = of_stored_name(&name) else { continue };
            if numbers.get(&name).is_none_or(|known| *known < number) {
                numbers.insert(name.clone(), number);
                held.insert(name, fd);
            }
        }
        Ok((Self { holder: Holder::Systemd(Mutex::new(numbers)) }, held))
    }

    /// Hands a duplicate of a descriptor over.
    ///
    /// # Errors
    /// The keeper, or systemd, is gone.
    pub fn hold(&self, name: &str, fd: impl AsFd) -> io::Result<()> {
        match &self.holder {
            Holder::Keeper { line, .. } => {
                send(line, &Message::Hold(name.to_owned()), Some(fd.as_fd().as_raw_fd()))
            }
            Holder::Systemd(numbers) => {
                let mut numbers = numbers.lock().unwrap_or_else(PoisonError::into_inner);
                let before = numbers.get(name).copied();
                let number = before.map_or(0, |before| before + 1);
                let stored = stored_name(name, number);
                let store = [NotifyState::FdStore, NotifyState::FdName(&stored)];
                sd_notify::notify_with_fds(&store, &[fd.as_fd()])?;
                numbers.insert(name.to_owned(), number);
                before.map_or(Ok(()), |before| remove_stored(name, before))
            }
            Holder::Nobody => Ok(()),
        }
    }

    /// Drops a descriptor.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub fn drop_one(&self, name: &str) -> io::Result<()> {
        match &self.holder {
            Holder::Keeper { line, .. } => send(line, &Message::Drop(name.to_owned()), None),
            Holder::Systemd(numbers) => {
                let number = numbers.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
                number.map_or(Ok(()), |number| remove_stored(name, number))
            }
            Holder::Nobody => Ok(()),
        }
    }

    /// Drops all, and ends the keeper.
    ///
    /// # Errors
    /// It is gone already.
    pub fn end(&self) -> io::Result<()> {
        match &self.holder {
            Holder::Keeper { line, .. } => send(line, &Message::End, None),
            Holder::Systemd(numbers) => {
                let numbers = std::mem::take(&mut *numbers.lock().unwrap_or_else(PoisonError::into_inner));
                numbers.iter().try_for_each(|(name, number)| remove_stored(name, *number))
            }
            Holder::Nobody => Ok(()),
        }
    }

    /// Whether the keeper is still there. Without systemd, there would be no daemon either.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let Holder::Keeper { line, .. } = &self.holder else { return true };
        let mut fds = [PollFd::new(line.as_fd(), PollFlags::empty())];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready == 0)
    }

    /// Starts another keeper in place of one that is gone.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn restart(&mut self, program: &Path) -> io::Result<()> {
        if let Holder::Keeper { path, .. } = &self.holder {
            *self = Self::open(&path.clone(), program, false)?.0;
        }
        Ok(())
    }
}

/// The name of a descriptor in the store of systemd, which allows no colons.
fn stored_name(name: &str, number: u64) -> String {
    format!("{}@{number}", name.replace(':', "_"))
}

fn of_stored_name(stored: &str) -> Option<(String, u64)> {
    let (name, number) = stored.rsplit_once('@')?;
    Some((name.replace('_', ":"), number.parse().ok()?))
}

fn remove_stored(name: &str, number: u64) -> io::Result<()> {
    let stored = stored_name(name, number);
    sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(&stored)])
}

/// Everything that the keeper holds.
fn all_of(line: &OwnedFd) -> io::Result<BTreeMap<String, OwnedFd>> {
    send(line, &Message::All, None)?;
    let mut held = BTreeMap::new();
    loop {
        match receive(line)? {
            Some((Message::Hold(name), Some(fd))) => {
                held.insert(name, fd);
            }
            Some((Message::Done, _)) => return Ok(held),
            _ => return Err(io::ErrorKind::InvalidData.into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_store_of_systemd() {
        for name in ["10.0.0.1/254", "fe80::1/0", "state", "life/read"] {
            let stored = stored_name(name, 7);
            assert!(!stored.contains(':'), "{stored}");
            assert_eq!(of_stored_name(&stored), Some((name.to_owned(), 7)));
        }
        assert_eq!(of_stored_name("stored"), None, "what somebody else has stored");
    }

    #[test]
    fn a_keeper_gives_back_what_it_was_given_and_ends_when_told() {
        let path = std::env::temp_dir().join(format!("rnic-keeper-{}", std::process::id()));
        let keeper = std::thread::spawn({
            let path = path.clone();
            move || keep(&path)
        });
        let begin = Instant::now();
        let line = loop {
            match dial(&path) {
                Ok(line) => break line,
                Err(error) => assert!(begin.elapsed() < START, "{error}"),
            }
        };
        let first = Store { holder: Holder::Keeper { path: path.clone(), line } };
        let file = std::fs::File::open("/proc/self/status").expect("a file");
        for name in ["a", "b", "b"] {
            first.hold(name, &file).expect("it listens");
        }
        first.drop_one("a").expect("it listens");
        drop(first);
        let (second, held) = Store::open(&path, Path::new("/nowhere"), false).expect("the same keeper");
        assert_eq!(held.keys().collect::<Vec<_>>(), ["b"]);
        assert!(second.is_there());
        second.end().expect("it listens");
        keeper.join().expect("no panic").expect("it ends");
        assert!(!second.is_there() && !path.exists());
    }
}
