//! A program's slot at a shared address: its line to the daemon.
//!
//! Packets do not pass through the daemon, so the port works without it. While the daemon is away, the line is down: the
//! port looks for it [again and again](RETRY), and then resumes the slot, and tells anew who listens and what is connected.

use super::DaemonError;
use super::channel::Channel;
use super::protocol::{
    Attached, Datagram, Hello, Host, LEDGER_AT_ONCE, LedgerEntry, REPORT_FILES, Refusal, Reply, Request,
    VERSION,
};
use crate::net::SlotSockets;
use crate::os::fork;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic_core::queue::locked;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use time::Instant;

/// How long the daemon may take to answer. It answers in a fraction of a millisecond; this is for a host under load.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How long a program that starts waits for a daemon that is expected back, and how often it looks meanwhile.
const AWAY: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What the name of the keeper's socket adds to that of the daemon's.
pub const KEEPER: &str = ".keeper";

/// How often a daemon that is away is looked for.
const RETRY: Duration = Duration::from_millis(50);

/// What the daemon has to say.
#[derive(Debug)]
pub(crate) enum News {
    /// The host has changed.
    Host(Host),
    /// A datagram for queue pair 1.
    Datagram(Datagram),
    /// The daemon is back, and has to be told everything.
    Back,
    /// The address is gone, for this reason.
    Over(String),
}

/// The line to the daemon.
#[derive(Debug)]
struct Line {
    /// `None` while the daemon is away.
    channel: Option<Channel>,
    /// What came while something else was awaited.
    parked: VecDeque<Reply>,
    /// When a daemon that is away is looked for next.
    next_try: Option<Instant>,
    /// The number of the last ledger that asked for an answer.
    number: u32,
}

/// The files in which a device publishes for the daemon.
pub(crate) type ReportFiles = [OwnedFd; REPORT_FILES];

/// A slot.
#[derive(Debug)]
pub(crate) struct Slot {
    path: PathBuf,
    /// The name of the device.
    device: String,
    attached: Attached,
    line: Mutex<Line>,
    /// The thread that tells the daemon something, by a number of its own; 0 for none.
    teller: AtomicU64,
    /// Ends with the daemon and its keeper.
    life: OwnedFd,
    /// The slot is gone, and the port knows.
    over: AtomicBool,
    /// The latest state of the host.
    host: Mutex<Host>,
    /// Files to publish in that the port has not taken yet.
    report: Mutex<Option<ReportFiles>>,
}

impl Slot {
    /// Asks the daemon for a slot at an address, or at one of its choice. `device`: the name of the device there.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub(crate) fn attach(
        path: &Path,
        address: Option<IpAddr>,
        device: &str,
    ) -> Result<(Self, SlotSockets), DaemonError> {
        let mut channel = open_patiently(path)?;
        let lost = |source| DaemonError::Lost { path: path.to_owned(), source };
        channel.send(&Request::Attach { address }, PATIENCE).map_err(lost)?;
        let attached = match channel.recv(PATIENCE).map_err(lost)? {
            Reply::Attached(attached) => *attached,
            Reply::Refused(refusal) => return Err(DaemonError::Refused(refusal)),
            other => return Err(unexpected(path, &other)),
        };
        let (Some([receiver, life]), Some(report)) = (channel.take_some(), channel.take_some()) else {
            return Err(lost(io::Error::other("it sent no sockets")));
        };
        let senders = channel.take_descriptors();
        let sockets = SlotSockets { receiver, senders, capabilities: attached.offers.into() };
        fork::close_in_child([channel.raw_fd(), life.as_raw_fd()].into_iter());
        let line = Line { channel: Some(channel), parked: VecDeque::new(), next_try: None, number: 0 };
        let slot = Self {
            path: path.to_owned(),
            device: device.to_owned(),
            line: Mutex::new(line),
            teller: AtomicU64::new(0),
            life,
            over: AtomicBool::new(false),
            host: Mutex::new(attached.host.clone()),
            report: Mutex::new(Some(report)),
            attached,
        };
        Ok((slot, sockets))
    }

    /// What the daemon said when it gave the slot.
    pub(crate) const fn attached(&self) -> &Attached {
        &self.attached
    }

    /// The name of the device.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// The daemon's socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The files to publish in, if there are new ones.
    pub(crate) fn take_report(&self) -> Option<ReportFiles> {
        locked(&self.report).take()
    }

    /// The latest state of the host.
    pub(crate) fn host(&self) -> Host {
        locked(&self.host).clone()
    }

    /// The descriptors that are readable when there is news: of the line (-1 while it is down), and of the pipe.
    pub(crate) fn raw_fds(&self) -> [RawFd; 2] {
        if self.over.load(Ordering::Relaxed) {
            return [-1; 2];
        }
        let line = locked(&self.line).channel.as_ref().map_or(-1, Channel::raw_fd);
        [line, self.life.as_raw_fd()]
    }

    /// When to [look](Self::look) although no descriptor is readable: the daemon is away.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        if self.over.load(Ordering::Relaxed) { None } else { locked(&self.line).next_try }
    }

    /// Takes in what the daemon has said. Never waits, except for a daemon that has just come back.
    pub(crate) fn look(&self, now: Instant) -> Vec<News> {
        let mut news = Vec::new();
        if self.over.load(Ordering::Relaxed) {
            return news;
        }
        if self.is_over() {
            self.over.store(true, Ordering::Relaxed);
            return vec![News::Over("the daemon and the keeper of its sockets have ended".to_owned())];
        }
        // Whoever tells the daemon something looks afterwards.
        let Ok(mut line) = self.line.try_lock() else { return news };
        if line.next_try.is_some_and(|at| at <= now) {
            match self.resume() {
                Ok((channel, host, report)) => {
                    *locked(&self.report) = report;
                    line.parked.push_back(Reply::Host(host));
                    fork::close_in_child(std::iter::once(channel.raw_fd()));
                    (line.channel, line.next_try) = (Some(channel), None);
                    news.push(News::Back);
                    tracing::info!(daemon = %self.path.display(), "the daemon is back");
                }
                Err(DaemonError::Refused(refusal)) => news.push(News::Over(refusal.to_string())),
                Err(_) => line.next_try = Some(now + RETRY),
            }
        }
        loop {
            let reply = match line.parked.pop_front() {
                Some(reply) => reply,
                None => match line.channel.as_mut().map(Channel::try_recv) {
                    None | Some(Ok(None)) => break,
                    Some(Ok(Some(reply))) => reply,
                    Some(Err(error)) => {
                        self.lose(&mut line, now, &error);
                        break;
                    }
                },
            };
            news.extend(self.heard(reply));
        }
        if news.iter().any(|news| matches!(news, News::Over(_))) {
            self.over.store(true, Ordering::Relaxed);
        }
        news
    }

    /// Tells the daemon what changed, in order, until `entries` returns nothing more. If somebody listens from now on, waits
    /// until the daemon knows: a request that comes next must not be refused. Returns whether to [look](Self::look) next.
    pub(crate) fn tell(&self, now: Instant, mut entries: impl FnMut() -> Vec<LedgerEntry>) -> bool {
        let me = thread_number();
        if self.teller.load(Ordering::Relaxed) == me {
            // This thread is telling already, and asks for entries until there are none.
            return false;
        }
        let mut line = locked(&self.line);
        self.teller.store(me, Ordering::Relaxed);
        loop {
            let all = entries();
            if all.is_empty() {
                break;
            }
            for part in all.chunks(LEDGER_AT_ONCE) {
                if let Err(error) = send(&mut line, part) {
                    // It is told everything when it is back.
                    self.lose(&mut line, now, &error);
                }
            }
        }
        self.teller.store(0, Ordering::Relaxed);
        !line.parked.is_empty() || line.channel.is_none()
    }

    /// Called before the slot is dropped.
    pub(crate) fn close(&self) {
        let line = locked(&self.line).channel.as_ref().map(Channel::raw_fd);
        fork::forget(line.into_iter().chain([self.life.as_raw_fd()]));
    }

    fn heard(&self, reply: Reply) -> Option<News> {
        match reply {
            Reply::Datagram(datagram) => Some(News::Datagram(datagram)),
            Reply::Host(host) => {
                locked(&self.host).clone_from(&host);
                Some(News::Host(host))
            }
            Reply::Ends { why } => Some(News::Over(why)),
            // The answer to a ledger that nobody waits for any more.
            Reply::Done(_) => None,
            other => {
                tracing::warn!(?other, "the daemon says what means nothing here");
                None
            }
        }
    }

    fn lose(&self, line: &mut Line, now: Instant, error: &io::Error) {
        let Some(channel) = line.channel.take() else { return };
        tracing::warn!(%error, daemon = %self.path.display(), "the daemon is away: connections go on, new ones wait for it");
        fork::forget(std::iter::once(channel.raw_fd()));
        line.next_try = Some(now + RETRY);
    }

    fn resume(&self) -> Result<(Channel, Host, Option<ReportFiles>), DaemonError> {
        let mut channel = open(&self.path)?;
        let Attached { address, slot, token, .. } = &self.attached;
        let lost = |source| DaemonError::Lost { path: self.path.clone(), source };
        let request = Request::Resume { address: address.ip, slot: *slot, token: *token };
        channel.send(&request, PATIENCE).map_err(lost)?;
        match channel.recv(PATIENCE).map_err(lost)? {
            Reply::Host(host) => {
                let report = channel.take_some();
                Ok((channel, host, report))
            }
            Reply::Refused(refusal) => Err(DaemonError::Refused(refusal)),
            other => Err(unexpected(&self.path, &other)),
        }
    }

    /// Whether nobody holds the other end of the pipe any more.
    fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(self.life.as_fd(), PollFlags::empty())];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

fn send(line: &mut Line, entries: &[LedgerEntry]) -> io::Result<()> {
    let Line { channel: Some(channel), parked, number, .. } = line else { return Ok(()) };
    let awaited = entries.iter().any(|entry| matches!(entry, LedgerEntry::Listens(_)));
    let asked = awaited.then(|| {
        *number = number.wrapping_add(1);
        *number
    });
    channel.send(&Request::Ledger { entries: entries.to_vec(), number: asked }, PATIENCE)?;
    while let Some(asked) = asked {
        match channel.recv(PATIENCE)? {
            Reply::Done(Some(done)) if done == asked => break,
            other => parked.push_back(other),
        }
    }
    Ok(())
}

/// Opens a connection to the daemon, and waits for one that is expected back.
pub(super) fn open_patiently(path: &Path) -> Result<Channel, DaemonError> {
    let end = std::time::Instant::now() + AWAY;
    loop {
        match open(path) {
            Err(DaemonError::Absent { .. }) if is_expected(path) && std::time::Instant::now() < end => {
                std::thread::sleep(LOOK_AGAIN);
            }
            opened => return opened,
        }
    }
}

/// Whether a daemon is about to listen: it is starting, or it has left without a word and may come back. Then the keeper of its
/// sockets is there.
fn is_expected(path: &Path) -> bool {
    let mut keeper = path.as_os_str().to_owned();
    keeper.push(KEEPER);
    Path::new(&keeper).exists()
}

/// Opens a connection to the daemon.
pub(super) fn open(path: &Path) -> Result<Channel, DaemonError> {
    let absent = |source| DaemonError::Absent { path: path.to_owned(), source };
    let mut channel = Channel::connect(path).map_err(absent)?;
    let program = std::env::current_exe().ok();
    let name = program.as_deref().and_then(Path::file_name).unwrap_or_default();
    let hello =
        Hello { version: VERSION, pid: std::process::id(), program: name.to_string_lossy().into_owned() };
    channel.send(&Request::Hello(hello), PATIENCE).map_err(absent)?;
    Ok(channel)
}

pub(super) fn unexpected(path: &Path, reply: &Reply) -> DaemonError {
    let refusal = Refusal::Malformed(format!("{reply:?}"));
    DaemonError::Lost { path: path.to_owned(), source: io::Error::other(refusal) }
}

/// A number of this thread, from 1.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}
