//! A connection of a program: the bytes of its [session](crate::session), and the descriptors.

use crate::nic::Outgoing;
use crate::server::Server;
use crate::session::{Answer, Peer, Session, no_descriptor};
use bytes::BytesMut;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use rnic::daemon::protocol::{Host, Reply, write_frame};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

/// Datagrams that wait for a program. One that does not read loses more.
const LINE: usize = 1024;

/// The most memory of unread messages with which more descriptors are sent: about 20 messages.
const MOST_UNREAD: libc::c_int = 16 << 10;

/// How long a program may take from the beginning of its connection to its first message.
const GREETING: Duration = Duration::from_secs(10);

/// A connection.
pub(crate) struct Program {
    session: Session,
    stream: UnixStream,
    incoming: BytesMut,
    outgoing: mpsc::Receiver<Outgoing>,
}

impl Program {
    pub(crate) fn new(server: Arc<Server>, stream: UnixStream, peer: Peer) -> Self {
        let (line, outgoing) = mpsc::channel(LINE);
        Self { session: Session::new(server, peer, line), stream, incoming: BytesMut::new(), outgoing }
    }

    /// Serves the program until it is gone.
    pub(crate) async fn run(mut self) {
        let ended = self.serve().await;
        if let Err(error) = ended {
            tracing::debug!(%error, pid = self.session.peer().pid, "a connection of a program ends");
        }
        self.session.leave();
    }

    async fn serve(&mut self) -> io::Result<()> {
        let begin = tokio::time::Instant::now();
        let mut end = self.session.server().end.subscribe();
        loop {
            while let Some(answer) = self.session.take(&mut self.incoming).map_err(io::Error::other)? {
                match answer {
                    Answer::Reply((reply, descriptors)) => self.send(&reply, &descriptors).await?,
                    Answer::Programs => self.send_programs().await?,
                    Answer::Silence => {}
                }
                if !self.session.has_greeted() {
                    return Err(io::Error::other("it does not say who it is"));
                }
            }
            let is_late = !self.session.has_greeted();
            let host = self.session.host();
            tokio::select! {
                ready = self.stream.readable() => {
                    ready?;
                    match self.stream.try_read_buf(&mut self.incoming) {
                        Ok(0) => return Ok(()),
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
                Some((reply, descriptors)) = self.outgoing.recv() => self.send(&reply, &descriptors).await?,
                Some(host) = changed(host) => self.send(&Reply::Host(host), &[]).await?,
                why = ended(&mut end) => {
                    self.send(&Reply::Ends { why }, &[]).await?;
                    return Ok(());
                }
                () = tokio::time::sleep_until(begin + GREETING), if is_late => {
                    return Err(io::Error::other("it does not say who it is"));
                }
            }
        }
    }

    /// Sends a message; its descriptors go with the first byte. What a program does not read keeps descriptors, of which the
    /// kernel allows a process only so many: nobody gets more of them before it has read most of what it was sent.
    async fn send(&self, reply: &Reply, descriptors: &[OwnedFd]) -> io::Result<()> {
        while !descriptors.is_empty() && unread(&self.stream)? > MOST_UNREAD {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut frame = BytesMut::new();
        write_frame(reply, &mut frame);
        let mut fds: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let mut rest = &frame[..];
        while !rest.is_empty() {
            self.stream.writable().await?;
            let sent = self.stream.try_io(Interest::WRITABLE, || {
                let rights = [ControlMessage::ScmRights(&fds)];
                let rights: &[_] = if fds.is_empty() { &[] } else { &rights };
                let to = self.stream.as_raw_fd();
                Ok(sendmsg::<()>(to, &[IoSlice::new(rest)], rights, MsgFlags::MSG_NOSIGNAL, None)?)
            });
            match sent {
                Ok(sent) => {
                    rest = &rest[sent..];
                    fds.clear();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends the programs that this one may see, one after the other: descriptors are opened when there is room for them.
    async fn send_programs(&self) -> io::Result<()> {
        let seen = match self.session.seen() {
            Ok(seen) => seen,
            Err(refusal) => return self.send(&Reply::Refused(refusal), &[]).await,
        };
        for (nic, number) in seen {
            let opened = nic.programs().open(number);
            match opened {
                None => {}
                Some(Ok((program, files))) => self.send(&Reply::Program(program), &files).await?,
                Some(Err(error)) => return self.send(&Reply::Refused(no_descriptor(&error)), &[]).await,
            }
        }
        self.send(&Reply::Done(None), &[]).await
    }
}

nix::ioctl_read_bad!(
    /// The memory of what was sent over a socket and not read yet.
    queued,
    libc::TIOCOUTQ,
    libc::c_int
);

fn unread(stream: &UnixStream) -> io::Result<libc::c_int> {
    let mut bytes = 0;
    #[expect(unsafe_code, reason = "nix leaves the check of an ioctl's argument to its caller")]
    // SAFETY: the kernel writes an int to the pointer, which is valid.
    unsafe { queued(stream.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes)
}

/// Why the daemon ends, once it does.
async fn ended(end: &mut watch::Receiver<Option<String>>) -> String {
    let why = end.wait_for(Option::is_some).await;
    why.map(|why| why.clone().unwrap_or_default()).unwrap_or_default()
}

/// The next change of the host; never without one.
async fn changed(host: Option<&mut watch::Receiver<Host>>) -> Option<Host> {
    let host = host?;
    host.changed().await.ok()?;
    Some(host.borrow_and_update().clone())
}
