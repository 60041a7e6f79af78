//! Connections as programs of the Rust API see them.

use super::desk::Mailbox;
use super::office::Office;
use crate::error::{ConnectError, Error, Result};
use crate::port::Readiness;
use ::cm::{ConnectionId, DisconnectCause, FailCause, Rejection};
use std::net::SocketAddr;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use time::Duration;

/// A step of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// Both sides may send.
    Established,
    /// The connection is not made: refused, given up, or not answered.
    Failed(ConnectError),
    /// The connection is over. Its queue pair is in ERR, and flushes what was posted.
    Disconnected(DisconnectCause),
}

/// How far a connection is.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// The peer's private data, once it is established.
    established: Option<Box<[u8]>>,
    end: Option<End>,
    /// How many of these two the program has been told of.
    told: u8,
}

#[derive(Clone, Debug)]
enum End {
    Rejected(Box<Rejection>),
    Failed(FailCause),
    Disconnected(DisconnectCause),
}

impl Progress {
    pub(super) fn established(private_data: Box<[u8]>) -> Self {
        Self { established: Some(private_data), ..Self::default() }
    }

    pub(super) fn rejected(rejection: Box<Rejection>) -> Self {
        Self { end: Some(End::Rejected(rejection)), ..Self::default() }
    }

    pub(super) fn failed(cause: FailCause) -> Self {
        Self { end: Some(End::Failed(cause)), ..Self::default() }
    }

    pub(super) fn disconnected(cause: DisconnectCause) -> Self {
        Self { end: Some(End::Disconnected(cause)), ..Self::default() }
    }

    /// Adds a step.
    pub(super) fn advance(&mut self, step: Self) {
        if self.established.is_none() {
            self.established = step.established;
        }
        if self.end.is_none() {
            self.end = step.end;
        }
    }

    const fn steps(&self) -> u8 {
        self.established.is_some() as u8 + self.end.is_some() as u8
    }

    pub(super) const fn has_news(&self) -> bool {
        self.told < self.steps()
    }

    fn next(&mut self, peer: SocketAddr) -> Option<ConnectionEvent> {
        if !self.has_news() {
            return None;
        }
        self.told += 1;
        if self.told == 1 && self.established.is_some() {
            return Some(ConnectionEvent::Established);
        }
        self.end.clone().map(|end| match end {
            End::Rejected(rejection) => ConnectionEvent::Failed(ConnectError::rejected(peer, rejection)),
            End::Failed(cause) => ConnectionEvent::Failed(ConnectError::failed(peer, cause)),
            End::Disconnected(cause) => ConnectionEvent::Disconnected(cause),
        })
    }

    /// Whether both sides may send; `None` while that is open.
    fn outcome(&self, peer: SocketAddr) -> Option<std::result::Result<(), ConnectError>> {
        match &self.end {
            Some(End::Rejected(rejection)) => Some(Err(ConnectError::rejected(peer, rejection.clone()))),
            Some(End::Failed(cause)) => Some(Err(ConnectError::failed(peer, *cause))),
            Some(End::Disconnected(cause)) => Some(Err(ConnectError::Over { to: peer, cause: *cause })),
            None => self.established.is_some().then_some(Ok(())),
        }
    }
}

/// A connection of a queue pair, being made or made. Dropping it closes it: the peer is told, and the queue pair goes to
/// ERR.
///
/// The device leads the queue pair, also while the program sleeps: to RTS as soon as the peer has answered, and to ERR
/// when the connection ends. The other way round, the connection ends with the queue pair: when that fails or is
/// destroyed, the peer is told.
pub struct Connection {
    pub(super) office: Office,
    pub(super) id: ConnectionId,
    pub(super) mailbox: Arc<Mailbox<Progress>>,
    pub(super) peer: SocketAddr,
}

impl Connection {
    /// The peer: its address, and its port in the port space of connections.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Waits until both sides may send. Without an answer that takes some ten seconds to fail.
    ///
    /// # Errors
    /// [`Error::Connect`] says why the connection was not made, or that it is over; in virtual time
    /// [`Error::Stalled`] if it will never be made because nobody accepts it.
    pub fn wait(&self) -> Result<()> {
        // Longer than all repetitions of a message.
        let timeout = Duration::from_secs(600);
        let outcome = self.mailbox.wait(self.office.device(), timeout, Progress::has_news, |progress| {
            (progress.outcome(self.peer), true)
        })?;
        Ok(outcome.ok_or(Error::Stalled)??)
    }

    /// Awaits that both sides may send: [`wait`](Self::wait) for tasks.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn established(&self) -> Result<()> {
        let take = |progress: &mut Progress| (progress.outcome(self.peer), true);
        Ok(self.mailbox.listen(self.office.device(), take).await??)
    }

    /// The private data with which the peer accepted the connection, padded with zeros; `None` before it is established.
    #[must_use]
    pub fn private_data(&self) -> Option<Box<[u8]>> {
        self.mailbox.take(|progress| (progress.established.clone(), true))
    }

    /// The next event, if there is one. Never waits: the descriptor of [`events`](Self::events) is readable while there are events.
    #[must_use]
    pub fn poll_event(&self) -> Option<ConnectionEvent> {
        self.mailbox.take(|progress| {
            let event = progress.next(self.peer);
            (event, progress.has_news())
        })
    }

    /// Waits for the next event, for up to `timeout`; `None` if none came, in virtual time also as soon as nothing is
    /// under way any more.
    ///
    /// # Errors
    /// [`Error::Os`] if the process has no descriptor left; [`Error::Forked`].
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<ConnectionEvent>> {
        self.mailbox.wait(self.office.device(), timeout, Progress::has_news, |progress| {
            let event = progress.next(self.peer);
            (event, progress.has_news())
        })
    }

    /// Awaits the next event: [`wait_event`](Self::wait_event) for tasks.
    ///
    /// # Errors
    /// [`Error::Forked`]; in virtual time [`Error::Stalled`] when nothing is under way and no other task changes that.
    pub async fn next_event(&self) -> Result<ConnectionEvent> {
        let take = |progress: &mut Progress| {
            let event = progress.next(self.peer);
            (event, progress.has_news())
        };
        self.mailbox.listen(self.office.device(), take).await
    }

    /// An object with a descriptor that is readable while there are events.
    ///
    /// # Errors
    /// [`Error::Os`] if the process has no descriptor left; [`Error::Forked`].
    pub fn events(&self) -> Result<Ready> {
        Ok(Ready(self.mailbox.flag(self.office.device(), Progress::has_news)?))
    }

    /// Closes the connection: the queue pair goes to ERR, and the peer is told. The peer's confirmation is an event.
    ///
    /// # Errors
    /// [`Error::Connect`] if the connection is not established, or over; [`Error::Forked`].
    pub fn disconnect(&self) -> Result<()> {
        let (port, now) = self.office.port()?;
        Ok(port.control(|engine| engine.disconnect_qp(now, self.id))?)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Ok((port, now)) = self.office.port() else { return };
        port.control(|engine| {
            engine.give_up_qp(now, self.id);
            self.office.desk().connections.remove(&self.id);
        });
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection(to {})", self.peer)
    }
}

/// A descriptor that is readable while its owner has news. It may be polled in any way, but must not be read.
#[derive(Clone)]
pub struct Ready(pub(super) Arc<dyn Readiness>);

#[cfg(unix)]
impl AsFd for Ready {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ready")
    }
}
