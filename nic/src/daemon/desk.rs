//! What a program asks the daemon: ports, sockets of multicast groups, routes.
//!
//! The questions of all threads go over one connection, one after the other. If the daemon was away, the ports that the
//! program holds are claimed again before the next question.

use super::protocol::{PortBinding, PortClaim, Refusal, Reply, Request};
use super::slot::{PATIENCE, open_patiently, unexpected};
use super::{Daemon, DaemonError, channel::Channel};
use crate::os::fork;
use rnic_core::cm::{Binding, Claim, PortError, PortTable};
use rnic_core::queue::locked;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a question waits for a daemon that is away.
const AWAY: Duration = Duration::from_secs(5);

/// How often it is looked for meanwhile.
const RETRY: Duration = Duration::from_millis(20);

/// A port that the program holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// As the program knows it.
    binding: Binding,
    /// As the daemon knows it: a daemon that was restarted numbers holders anew.
    here: PortBinding,
    /// With the port.
    claim: Claim,
    listens: bool,
}

#[derive(Debug, Default)]
struct State {
    channel: Option<Channel>,
    held: Vec<Held>,
    next_holder: u64,
}

/// A program's desk at the daemon.
#[derive(Debug)]
pub struct Desk {
    path: PathBuf,
    /// The fork generation of its process. A child gets a desk of its own: in that of its parent the lock may be held by a thread
    /// that does not exist in the child.
    generation: u32,
    state: Mutex<State>,
}

/// The desks of this process.
static DESKS: Mutex<Vec<Arc<Desk>>> = Mutex::new(Vec::new());

impl Desk {
    /// The desk of this process at the daemon that listens there.
    #[must_use]
    pub fn at(path: &Path) -> Arc<Self> {
        let _whole = fork::hold_forks();
        let (mut desks, generation) = (locked(&DESKS), rnic_core::port::generation());
        if let Some(desk) = desks.iter().find(|desk| desk.path == path && desk.generation == generation) {
            return Arc::clone(desk);
        }
        let desk = Arc::new(Self { path: path.to_owned(), generation, state: Mutex::default() });
        desks.push(Arc::clone(&desk));
        desk
    }

    /// The desk at the daemon that this process finds, if a daemon answers there that admits its user.
    ///
    /// # Errors
    /// [`DaemonError`], if somebody has asked for the daemon.
    pub fn find() -> Result<Option<Arc<Self>>, DaemonError> {
        Self::of(&Daemon::find())
    }

    /// The same at a given daemon.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn of(daemon: &Daemon) -> Result<Option<Arc<Self>>, DaemonError> {
        let Some((path, is_asked_for)) = daemon.place() else { return Ok(None) };
        let desk = Self::at(path);
        match desk.addresses() {
            Ok(addresses) if addresses.is_empty() && is_asked_for => {
                Err(DaemonError::NoAddress { path: desk.path.clone() })
            }
            Ok(addresses) if addresses.is_empty() => Ok(None),
            Ok(_) => Ok(Some(desk)),
            Err(error) if is_asked_for => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the program uses addresses of its own, without the daemon");
                Ok(None)
            }
        }
    }

    /// The daemon's socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The addresses that this program may use.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub fn addresses(&self) -> Result<Vec<super::protocol::Address>, DaemonError> {
        let mut state = locked(&self.state);
        // Whether there is a daemon at all is known at once.
        match self.ask_now(&mut state, &Request::Addresses)? {
            Reply::Addresses(addresses) => Ok(addresses),
            other => Err(self.other(other)),
        }
    }

    /// A socket of a multicast group, which the daemon has joined on the interface of `address`.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub fn join(&self, address: IpAddr, group: IpAddr) -> Result<OwnedFd, DaemonError> {
        let mut state = locked(&self.state);
        let reply = self.ask(&mut state, &Request::Join { address, group })?;
        let sent = state.channel.as_mut().map(Channel::take_descriptors).unwrap_or_default();
        match (reply, sent.into_iter().next()) {
            (Reply::Done(_), Some(socket)) => Ok(socket),
            (other, _) => Err(self.other(other)),
        }
    }

    /// The address from which the daemon's host sends to `to`, or whether it can send there from `from`.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub fn route(&self, from: Option<IpAddr>, to: SocketAddr) -> Result<IpAddr, DaemonError> {
        let mut state = locked(&self.state);
        match self.ask(&mut state, &Request::Route { from, to })? {
            Reply::Source(ip) => Ok(ip),
            other => Err(self.other(other)),
        }
    }

    /// The daemon is back after it was away: it gets to know the ports that the program holds before somebody else claims them.
    pub(crate) fn return_to(&self) {
        let mut state = locked(&self.state);
        if state.held.is_empty() {
            return;
        }
        // A connection to the daemon before it is noticed by asking; the next one claims the ports.
        let asked = self.ask_now(&mut state, &Request::Addresses);
        if let Err(error) = asked.map(drop).or_else(|_| self.connect(&mut state)) {
            tracing::warn!(%error, "the ports of the program are not claimed");
        }
    }

    /// Asks, and waits for a daemon that is away.
    fn ask(&self, state: &mut State, request: &Request) -> Result<Reply, DaemonError> {
        let end = Instant::now() + AWAY;
        loop {
            match self.ask_now(state, request) {
                Err(DaemonError::Absent { .. } | DaemonError::Lost { .. }) if Instant::now() < end => {
                    std::thread::sleep(RETRY);
                }
                answered => return answered,
            }
        }
    }

    fn ask_now(&self, state: &mut State, request: &Request) -> Result<Reply, DaemonError> {
        self.connect(state)?;
        let Some(channel) = state.channel.as_mut() else {
            return Err(self.lost(io::ErrorKind::NotConnected.into()));
        };
        let exchanged = channel.send(request, PATIENCE).and_then(|()| channel.recv(PATIENCE));
        match exchanged {
            Ok(reply) => Ok(reply),
            Err(error) => {
                disconnect(state);
                Err(self.lost(error))
            }
        }
    }

    /// Opens the connection, if there is none, and claims the ports that the program holds.
    fn connect(&self, state: &mut State) -> Result<(), DaemonError> {
        if state.channel.is_some() {
            return Ok(());
        }
        let mut channel = open_patiently(&self.path)?;
        for held in &mut state.held {
            let request = Request::Hold { claim: PortClaim::from(&held.claim), listens: held.listens };
            let answer = channel.send(&request, PATIENCE).and_then(|()| channel.recv(PATIENCE));
            match answer.map_err(|error| self.lost(error))? {
                Reply::Bound(here) => held.here = here,
                refused => {
                    tracing::warn!(?refused, port = held.binding.port, "a port was lost to another program")
                }
            }
        }
        fork::close_in_child(std::iter::once(channel.raw_fd()));
        state.channel = Some(channel);
        Ok(())
    }

    fn lost(&self, source: io::Error) -> DaemonError {
        DaemonError::Lost { path: self.path.clone(), source }
    }

    fn other(&self, reply: Reply) -> DaemonError {
        match reply {
            Reply::Refused(refusal) => DaemonError::Refused(refusal),
            other => unexpected(&self.path, &other),
        }
    }
}

fn disconnect(state: &mut State) {
    if let Some(channel) = state.channel.take() {
        fork::forget(std::iter::once(channel.raw_fd()));
    }
}

/// Ports that the programs of the daemon share.
impl PortTable for Desk {
    fn bind(&self, claim: &Claim) -> Result<Binding, PortError> {
        let mut state = locked(&self.state);
        let here = match self.ask(&mut state, &Request::Bind(claim.into())) {
            Ok(Reply::Bound(here)) => here,
            Ok(Reply::Refused(Refusal::Port(fault))) => return Err(fault.into()),
            refused => {
                tracing::warn!(?refused, "no port from the daemon");
                return Err(PortError::Daemon);
            }
        };
        let granted = Binding::from(here);
        state.next_holder += 1;
        let binding = Binding { holder: state.next_holder, ..granted };
        let mut claim = *claim;
        claim.local.set_port(granted.port);
        state.held.push(Held { binding, here, claim, listens: false });
        Ok(binding)
    }

    fn listen(&self, binding: Binding) -> Result<(), PortError> {
        let mut state = locked(&self.state);
        // First, because a daemon that was restarted has another number for the holder.
        self.connect(&mut state).map_err(|_| PortError::Daemon)?;
        let held = state.held.iter().find(|held| held.binding == binding).ok_or(PortError::Unknown)?;
        let request = Request::Listen(held.here);
        let answer = self.ask(&mut state, &request);
        match answer {
            Ok(Reply::Done(_)) => {
                for held in state.held.iter_mut().filter(|held| held.binding == binding) {
                    (held.listens, held.claim.reuse) = (true, false);
                }
                Ok(())
            }
            Ok(Reply::Refused(Refusal::Port(fault))) => Err(fault.into()),
            _ => Err(PortError::Daemon),
        }
    }

    fn release(&self, binding: Binding) {
        let mut state = locked(&self.state);
        let Some(place) = state.held.iter().position(|held| held.binding == binding) else { return };
        let held = state.held.swap_remove(place);
        if state.channel.is_some() {
            // If the daemon is away, it does not know of the port.
            let _ = self.ask_now(&mut state, &Request::Release(held.here));
        }
    }
}
