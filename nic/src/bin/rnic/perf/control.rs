//! What client and server say to each other beside the measurement: JSON, one message a line, over TCP.

use super::endpoint::PeerEnd;
use super::params::Params;
use super::{Counters, Failure, stop};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The TCP port of perftest, which people have open in their firewalls.
pub(super) const PORT: u16 = 18515;

/// Says what kind of server this is.
const PROTOCOL: &str = "rnic-perf";

/// Moves whenever messages, or their order, change.
const VERSION: u32 = 2;

/// How long a peer may take to answer what it answers at once.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait before looking whether the user wants to stop, in milliseconds.
const TICK: u16 = 100;

/// Longest line: the addresses of all queue pairs that there may be.
const MAX_LINE: usize = 1 << 20;

/// How a run of one size went on one side.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SideReport {
    /// Messages sent and completed, of all queue pairs.
    pub(super) messages: u64,
    /// From the first post to the last completion.
    pub(super) seconds: f64,
    /// The best messages a second over a part of the run.
    pub(super) peak: f64,
    /// What the device counted meanwhile.
    pub(super) counters: Counters,
    /// Messages that arrived here, over services that lose some; the time between the first and the last, and the best
    /// messages a second.
    pub(super) arrived: u64,
    pub(super) arrival_seconds: f64,
    pub(super) arrival_peak: f64,
    /// What was added to this side's memory by FETCH_ADD.
    pub(super) added: u64,
    /// What the data that arrived here had wrong, if anything.
    pub(super) corruption: Option<String>,
}

/// What is said.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Message {
    /// Client: what it wants to measure.
    Request { params: Params },
    /// Both: their end of the connections.
    End { end: PeerEnd },
    /// Server: its queue pairs are connected.
    Connected,
    /// Client: the next size.
    Begin { size: u32 },
    /// Server: its memory is prepared.
    Ready,
    /// Client: it has sent all, or seen all answers. Where it was interrupted, nobody has to finish anything.
    Finish { interrupted: bool },
    /// Server: how it went there. Nothing is sent any more.
    Report { report: SideReport },
    /// Either: why it goes no further.
    Failed { reason: String },
}

/// The first line in both directions: readable by all versions.
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
    /// Whether waiting ends when the user wants to stop: that of a server, which has nothing to report.
    heeds_stop: bool,
}

impl Control {
    /// A connection on which the greetings are exchanged.
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
            return Err(format!("what answers at {peer} is not rnic perf").into());
        };
        if greeting.version != VERSION {
            let theirs = greeting.version;
            return Err(format!(
                "rnic perf at {peer} speaks version {theirs} of its control protocol, this one version \
                 {VERSION}: use the same rnic on both sides"
            )
            .into());
        }
        Ok(control)
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), Failure> {
        self.send_line(message)
    }

    /// The next message, if it comes within `patience`.
    pub(super) fn receive(&mut self, patience: Duration) -> Result<Message, Failure> {
        let line = self.receive_line(patience)?;
        self.understand(&line)
    }

    /// The next message, if it is there.
    pub(super) fn try_receive(&mut self) -> Result<Option<Message>, Failure> {
        self.try_line()?.map(|line| self.understand(&line)).transpose()
    }

    /// Why the peer gave up, if it says so within a moment: it knows better than what its silence looks like here.
    pub(super) fn last_words(&mut self) -> Option<Failure> {
        /// Longer than a server takes to clear up.
        const MOMENT: Duration = Duration::from_millis(500);
        let line = self.receive_line(MOMENT).ok()?;
        matches!(serde_json::from_slice(&line), Ok(Message::Failed { .. }))
            .then(|| self.understand(&line).err())?
    }

    /// What a message that does not fit the order of things means.
    pub(super) fn unexpected(&self, message: &Message) -> Failure {
        format!("{} says something unexpected: {message:?}", self.peer).into()
    }

    fn understand(&self, line: &[u8]) -> Result<Message, Failure> {
        match serde_json::from_slice(line) {
            Ok(Message::Failed { reason }) => Err(format!("{} reports: {reason}", self.peer.ip()).into()),
            Ok(message) => Ok(message),
            Err(error) => Err(format!("{} sent a message that is none: {error}", self.peer).into()),
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
                return Err(format!("{} sends a line without end", self.peer).into());
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
        // Whatever comes of it, the caller looks again.
        let _ = poll(&mut fds, PollTimeout::from(TICK));
    }

    fn gone(&self) -> Failure {
        format!("{} closed the control connection", self.peer).into()
    }

    fn silent(&self, patience: Duration) -> Failure {
        format!("{} keeps silent for {} s on the control connection", self.peer, patience.as_secs()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Both ends of a connection; the first is still without greetings.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// What a client makes of a server whose first line is this.
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
        client.send(&Message::Finish { interrupted: false }).unwrap();
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
        assert!(error.contains("speaks version 99"), "{error}");
    }

    #[test]
    fn lines_are_bounded() {
        let (client, server) = pair();
        let server = thread::spawn(move || Control::new(server, false).unwrap());
        let mut client = Control::new(client, false).unwrap();
        let mut server = server.join().unwrap();
        let flood = thread::spawn(move || client.send_line(&"x".repeat(2 * MAX_LINE)).is_ok());
        assert!(server.receive(PATIENCE).unwrap_err().to_string().contains("without end"));
        drop(server);
        // Whether the flood was taken in or cut off does not matter here.
        let _ = flood.join().unwrap();
    }
}
