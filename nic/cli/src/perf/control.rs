//! The control connection between client and server: JSON over TCP, one message per line.

use super::endpoint::PeerEnd;
use super::params::Params;
use super::{Counters, Failure};
use crate::stop;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The TCP port: that of perftest, which firewalls of RDMA hosts often have open.
pub(super) const PORT: u16 = 18515;

/// Identifies the protocol.
const PROTOCOL: &str = "rnic-perf";

/// Changes whenever the messages or their order change.
const VERSION: u32 = 4;

/// How long to wait for an immediate answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How often to check for an interrupt while waiting, in milliseconds.
const TICK: u16 = 100;

/// The longest line, in bytes: it holds the addresses of the most queue pairs.
const MAX_LINE: usize = 1 << 20;

/// The result of a run of one size on one side.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SideReport {
    /// Messages sent and completed on all queue pairs.
    pub(super) messages: u64,
    /// The time from the first post to the last completion.
    pub(super) seconds: f64,
    /// The highest rate over a part of the run, in messages per second.
    pub(super) peak: f64,
    /// The device's counters during the run. They include other clients of a server.
    pub(super) counters: Counters,
    /// The counters of this client's queue pairs during the run.
    pub(super) qp_counters: Counters,
    /// Messages that arrived over an unreliable service, and the time between the first and the last.
    pub(super) arrived: u64,
    pub(super) arrival_seconds: f64,
    /// The sum that FETCH_ADD added to the memory of this side.
    pub(super) added: u64,
    /// The first difference between the data that arrived and the data sent.
    pub(super) corruption: Option<String>,
}

/// A message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Message {
    /// Client: the measurement that it requests.
    Request { params: Params },
    /// Both: the addresses of their queue pairs.
    End { end: PeerEnd },
    /// Server: its queue pairs are connected.
    Connected,
    /// Client: the next size.
    Begin { size: u32 },
    /// Server: its memory is prepared.
    Ready,
    /// Client: all its messages are complete, this many, or the user interrupted it.
    Finish { interrupted: bool, messages: u64 },
    /// Server: its result, the last message of a run.
    Report { report: SideReport },
    /// Either: the measurement failed.
    Failed { reason: String },
}

/// The first line in both directions, common to all versions.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    protocol: String,
    version: u32,
}

/// A control connection.
pub(super) struct Control {
    stream: TcpStream,
    peer: SocketAddr,
    buffer: Vec<u8>,
    /// Whether an interrupt ends waiting. A server has nothing to report; a client still wants the result.
    heeds_stop: bool,
}

impl Control {
    /// Exchanges greetings on a new connection.
    pub(super) fn new(stream: TcpStream, heeds_stop: bool) -> Result<Self, Failure> {
        let peer = stream.peer_addr().map_err(|error| format!("the control connection failed: {error}"))?;
        let broken = |error| format!("the control connection to {peer} failed: {error}");
        stream.set_nodelay(true).map_err(broken)?;
        stream.set_nonblocking(true).map_err(broken)?;
        let mut control = Self { stream, peer, buffer: Vec::new(), heeds_stop };
        control.send_line(&Greeting { protocol: PROTOCOL.into(), version: VERSION })?;
        let line = control.receive_line(PATIENCE)?;
        let Some(greeting) =
            serde_json::from_slice::<Greeting>(&line).ok().filter(|greeting| greeting.protocol == PROTOCOL)
        else {
            return Err(format!("the service at {peer} is not rnic perf").into());
        };
        if greeting.version != VERSION {
            let theirs = greeting.version;
            return Err(format!(
                "rnic perf at {peer} uses version {theirs} of the control protocol, this side uses {VERSION}; \
                 run the same version of rnic on both sides"
            )
            .into());
        }
        Ok(control)
    }

    /// The TCP address of the other side.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), Failure> {
        self.send_line(message)
    }

    /// Waits up to `patience` for the next message.
    pub(super) fn receive(&mut self, patience: Duration) -> Result<Message, Failure> {
        let line = self.receive_line(patience)?;
        self.understand(&line)
    }

    /// The next message, if it has arrived.
    pub(super) fn try_receive(&mut self) -> Result<Option<Message>, Failure> {
        self.try_line()?.map(|line| self.understand(&line)).transpose()
    }

    /// The reason that the peer reports for giving up, if it does so at once: it knows more than this side.
    pub(super) fn last_words(&mut self) -> Option<Failure> {
        /// Longer than a server takes to clean up.
        const MOMENT: Duration = Duration::from_millis(500);
        let line = self.receive_line(MOMENT).ok()?;
        matches!(serde_json::from_slice(&line), Ok(Message::Failed { .. }))
            .then(|| self.understand(&line).err())?
    }

    /// The error for a message that is out of order.
    pub(super) fn unexpected(&self, message: &Message) -> Failure {
        format!("{} sent an unexpected message: {message:?}", self.other()).into()
    }

    fn understand(&self, line: &[u8]) -> Result<Message, Failure> {
        match serde_json::from_slice(line) {
            Ok(Message::Failed { reason }) => Err(format!("{} reports: {reason}", self.peer.ip()).into()),
            Ok(message) => Ok(message),
            Err(error) => Err(format!("{} sent an invalid message: {error}", self.other()).into()),
        }
    }

    fn send_line(&mut self, message: &impl Serialize) -> Result<(), Failure> {
        let mut line =
            serde_json::to_vec(message).map_err(|error| format!("cannot encode a message: {error}"))?;
        line.push(b'\n');
        let mut rest = line.as_slice();
        let deadline = Instant::now() + PATIENCE;
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(self.gone()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() >= deadline {
                        return Err(self.silent(PATIENCE));
                    }
                    self.wait(PollFlags::POLLOUT);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(self.gone()),
            }
        }
        Ok(())
    }

    fn receive_line(&mut self, patience: Duration) -> Result<Vec<u8>, Failure> {
        let start = Instant::now();
        loop {
            if let Some(line) = self.try_line()? {
                return Ok(line);
            }
            if start.elapsed() >= patience {
                return Err(self.silent(patience));
            }
            if self.heeds_stop && stop::requested() {
                return Err("interrupted".into());
            }
            self.wait(PollFlags::POLLIN);
        }
    }

    fn try_line(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(format!("{} sent a line that is too long", self.other()).into());
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(self.gone()),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(self.gone()),
            }
        }
    }

    fn wait(&self, events: PollFlags) {
        let mut fds = [PollFd::new(self.stream.as_fd(), events)];
        // The caller looks again in any case.
        let _ = poll(&mut fds, PollTimeout::from(TICK));
    }

    /// The role of the other side.
    fn other(&self) -> &'static str {
        if self.heeds_stop { "the client" } else { "the server" }
    }

    fn gone(&self) -> Failure {
        format!("{} closed the control connection", self.other()).into()
    }

    fn silent(&self, patience: Duration) -> Failure {
        let seconds = patience.as_secs();
        format!("{} did not answer within {seconds} s on the control connection", self.other()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Both ends of a connection. The first has not exchanged greetings yet.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// The error of a client whose server begins with this line.
    fn met_by(line: &str) -> String {
        let (client, mut server) = pair();
        server.write_all(line.as_bytes()).unwrap();
        Control::new(client, false).err().unwrap().to_string()
    }

    #[test]
    fn messages_arrive_in_order() {
        let (client, server) = pair();
        let server = thread::spawn(move || Control::new(server, false).unwrap());
        let mut client = Control::new(client, false).unwrap();
        let mut server = server.join().unwrap();
        assert!(server.try_receive().unwrap().is_none());
        client.send(&Message::Begin { size: 7 }).unwrap();
        client.send(&Message::Finish { interrupted: false, messages: 7 }).unwrap();
        assert!(matches!(server.receive(PATIENCE).unwrap(), Message::Begin { size: 7 }));
        assert!(matches!(server.receive(PATIENCE).unwrap(), Message::Finish { .. }));
        server.send(&Message::Failed { reason: "no memory".into() }).unwrap();
        let error = client.receive(PATIENCE).unwrap_err().to_string();
        assert_eq!(error, "127.0.0.1 reports: no memory");
        drop(client);
        assert!(server.receive(PATIENCE).unwrap_err().to_string().contains("closed"));
    }

    #[test]
    fn strangers_are_recognised() {
        assert!(met_by("SSH-2.0-OpenSSH_9.2p1\r\n").contains("is not rnic perf"));
        assert!(met_by("{\"protocol\":\"other\",\"version\":1}\n").contains("is not rnic perf"));
        let error = met_by("{\"protocol\":\"rnic-perf\",\"version\":99,\"news\":[]}\n");
        assert!(error.contains("uses version 99"), "{error}");
    }

    #[test]
    fn lines_are_bounded() {
        let (client, server) = pair();
        let server = thread::spawn(move || Control::new(server, false).unwrap());
        let mut client = Control::new(client, false).unwrap();
        let mut server = server.join().unwrap();
        let flood = thread::spawn(move || client.send_line(&"x".repeat(2 * MAX_LINE)).is_ok());
        assert!(server.receive(PATIENCE).unwrap_err().to_string().contains("too long"));
        drop(server);
        // It does not matter here whether all of it was sent.
        let _ = flood.join().unwrap();
    }
}
