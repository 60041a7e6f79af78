//! The client: it controls the server and prints the demo.

use super::messages::{Ask, Opened, Piece, Reply, Service, Setup, difference, pattern};
use super::page::Page;
use super::{Args, Failure, Outcome, expect};
use rnic::ladder::Ladder;
use rnic::link::capture::CaptureStatus;
use rnic::{Device, DeviceConfig, MemoryRegion, QpAddress, RcEnd, Remote, WcStatus};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long to wait for an answer of the server. The server's own waits end after 10 s.
const PATIENCE: Duration = Duration::from_secs(15);

/// The most packets of a ladder; the longest of the demo has 20.
const RUNGS: usize = 200;

/// The server process.
struct Server {
    process: Child,
    asks: ChildStdin,
    replies: Receiver<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start(seed: u64) -> Outcome<Self> {
        let cannot = |error: std::io::Error| Failure::new(format!("cannot start the server: {error}"));
        let program = std::env::current_exe().map_err(cannot)?;
        let mut command = Command::new(program);
        command.args(["demo", "--server", "--seed", &seed.to_string()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
        let (Some(asks), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Failure::new("the server has no standard input and output"));
        };
        let (sender, replies) = channel();
        // Ends with the server's output.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { process, asks, replies })
    }

    fn reply(&self) -> Outcome<Reply> {
        let line = self.replies.recv_timeout(PATIENCE).map_err(|error| {
            Failure::new(match error {
                RecvTimeoutError::Timeout => "the server did not answer in time",
                RecvTimeoutError::Disconnected => "the server exited",
            })
        })?;
        match serde_json::from_str(&line) {
            Ok(Reply::Failed { what }) => Err(Failure::new(format!("at the server: {what}"))),
            Ok(reply) => Ok(reply),
            Err(error) => Err(Failure::new(format!("the server sent an invalid answer: {error}"))),
        }
    }
}

/// A connection between client and server, with a buffer at each end.
pub(super) struct Connection {
    number: usize,
    pub(super) end: RcEnd,
    pub(super) buffer: MemoryRegion,
    /// The server's buffer.
    pub(super) remote: Remote,
    pub(super) server: QpAddress,
}

/// The client.
pub(super) struct Client<'a> {
    pub(super) page: &'a Page,
    pub(super) device: Device,
    pub(super) server_process: u32,
    pub(super) capture: Arc<CaptureStatus>,
    ladder: Ladder,
    server: Server,
    seed: u64,
    connections: usize,
    patterns: u64,
}

impl<'a> Client<'a> {
    /// Opens the client's device, starts the server and the capture.
    pub(super) fn start(args: &Args, page: &'a Page) -> Outcome<Self> {
        let config = DeviceConfig { fault_seed: args.seed, ..DeviceConfig::default() };
        let device = config.open()?;
        let path = args.capture.display();
        let capture = device.capture(&args.capture).map_err(|error| {
            Failure::new(format!("{path}: {error}; choose another file with --capture FILE"))
        })?;
        let ladder = Ladder::attach(&device, "client", "server", RUNGS)?;
        let server = Server::start(args.server_seed.unwrap_or(args.seed))?;
        let Reply::Ready { process } = server.reply()? else { return Err(unexpected()) };
        for rule in &args.fault {
            device.add_fault(rule)?;
        }
        let (server_process, seed) = (process, args.seed);
        Ok(Self { page, device, server_process, capture, ladder, server, seed, connections: 0, patterns: 0 })
    }

    fn ask(&mut self, ask: &Ask) -> Outcome<Reply> {
        let line = serde_json::to_string(ask).map_err(|error| Failure::new(error.to_string()))?;
        writeln!(self.server.asks, "{line}").map_err(|_| Failure::new("the server exited"))?;
        self.server.reply()
    }

    fn command(&mut self, ask: &Ask) -> Outcome {
        match self.ask(ask)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Makes a connection to the server.
    pub(super) fn connect(&mut self, setup: Setup) -> Outcome<Connection> {
        let end = RcEnd::new(&self.device)?;
        let buffer = end.register(&vec![0; setup.buffer])?;
        let ask = Ask::Connect { peer: end.qp.address(), setup };
        let Reply::Connected { address, addr, rkey } = self.ask(&ask)? else { return Err(unexpected()) };
        end.qp.connect(&address, &setup.options())?;
        let number = self.connections;
        self.connections += 1;
        Ok(Connection { number, end, buffer, remote: Remote { addr, rkey }, server: address })
    }

    /// A new pattern: its number and its bytes.
    pub(super) fn fresh(&mut self, len: usize) -> (u64, Vec<u8>) {
        self.patterns += 1;
        (self.patterns, pattern(self.seed, self.patterns, len))
    }

    /// Puts a new pattern at the start of the client's buffer; returns its number.
    pub(super) fn load(&mut self, connection: &Connection, len: usize) -> Outcome<u64> {
        let (number, bytes) = self.fresh(len);
        connection.buffer.write_at(0, &bytes)?;
        Ok(number)
    }

    /// Puts a new pattern at the start of the server's buffer; returns its number and its bytes.
    pub(super) fn fill(&mut self, connection: &Connection, len: usize) -> Outcome<(u64, Vec<u8>)> {
        let (pattern, bytes) = self.fresh(len);
        let ask = Ask::Fill { connection: connection.number, piece: Piece { at: 0, len }, pattern };
        self.command(&ask)?;
        Ok((pattern, bytes))
    }

    /// Posts a receive at the server.
    pub(super) fn post_receive(&mut self, connection: &Connection, pieces: &[Piece]) -> Outcome {
        self.command(&Ask::Receive { connection: connection.number, pieces: pieces.to_vec() })
    }

    /// Has the server wait for a message and check its completion.
    pub(super) fn received(&mut self, connection: &Connection, len: usize, imm: Option<u32>) -> Outcome {
        let (found, _) = self.message(connection, len)?;
        expect(found == imm, || {
            format!("the server received the immediate data {found:?} instead of {imm:?}")
        })
    }

    /// As [`received`](Self::received), for a message that invalidates `rkey`.
    pub(super) fn received_and_closed(&mut self, connection: &Connection, len: usize, rkey: u32) -> Outcome {
        let (_, found) = self.message(connection, len)?;
        expect(found == Some(rkey), || format!("the message invalidated {found:x?} instead of {rkey:#x}"))
    }

    /// Has the server bind a memory window to a part of its buffer; returns the key.
    pub(super) fn open_window(&mut self, connection: &Connection, piece: Piece) -> Outcome<u32> {
        match self.ask(&Ask::Bind { connection: connection.number, piece })? {
            Reply::Key { rkey } => Ok(rkey),
            _ => Err(unexpected()),
        }
    }

    /// Has the server wait for a message of this length; returns its immediate data and the key that it invalidated.
    fn message(&mut self, connection: &Connection, len: usize) -> Outcome<(Option<u32>, Option<u32>)> {
        let Reply::Received { bytes, imm, invalidated } =
            self.ask(&Ask::Await { connection: connection.number })?
        else {
            return Err(unexpected());
        };
        expect(usize::try_from(bytes) == Ok(len), || {
            format!("the server received {bytes} bytes instead of {len}")
        })?;
        Ok((imm, invalidated))
    }

    /// Has the server compare a part of its buffer with a pattern from byte `from` on.
    pub(super) fn compare(
        &mut self,
        connection: &Connection,
        piece: Piece,
        pattern: u64,
        from: usize,
    ) -> Outcome {
        let ask = Ask::Compare { connection: connection.number, piece, pattern, from };
        self.compared(&ask, piece.len)
    }

    fn compared(&mut self, ask: &Ask, len: usize) -> Outcome {
        match self.ask(ask)? {
            Reply::Compared { difference: None } => Ok(()),
            Reply::Compared { difference: Some(at) } => {
                Err(Failure::new(format!("byte {at} of {len} at the server differs from what was sent")))
            }
            _ => Err(unexpected()),
        }
    }

    /// Has the server open its side of a service.
    pub(super) fn open(&mut self, service: Service, peer: QpAddress) -> Outcome<Opened> {
        match self.ask(&Ask::Open { service, peer })? {
            Reply::Opened { opened } => Ok(opened),
            _ => Err(unexpected()),
        }
    }

    /// Has the server wait for the message of that service and compare it with a pattern.
    pub(super) fn heard(&mut self, opened: &Opened, len: usize, pattern: u64) -> Outcome {
        self.compared(&Ask::Hear { number: opened.number, len, pattern }, len)
    }

    /// Has the server listen for connections; returns where.
    pub(super) fn listen(&mut self) -> Outcome<SocketAddr> {
        match self.ask(&Ask::Listen)? {
            Reply::Listening { at } => Ok(at),
            _ => Err(unexpected()),
        }
    }

    /// Has the server accept the next connection.
    pub(super) fn accept(&mut self) -> Outcome {
        self.command(&Ask::Accept)
    }

    /// Has the server refuse the next connection.
    pub(super) fn refuse(&mut self) -> Outcome {
        self.command(&Ask::Refuse)
    }

    /// Has the server wait for a message over the connection and compare it with a pattern.
    pub(super) fn caller_said(&mut self, len: usize, pattern: u64) -> Outcome {
        self.compared(&Ask::HearCaller { len, pattern }, len)
    }

    /// Compares the start of the client's buffer with `wanted`.
    pub(super) fn compare_here(&self, connection: &Connection, wanted: &[u8]) -> Outcome {
        let mut found = vec![0; wanted.len()];
        connection.buffer.read_at(0, &mut found)?;
        match difference(&found, wanted) {
            None => Ok(()),
            Some(at) => Err(Failure::new(format!(
                "byte {at} of {} at the client differs from what was read",
                found.len()
            ))),
        }
    }

    /// Stores 8 bytes at the start of the server's buffer.
    pub(super) fn store(&mut self, connection: &Connection, value: u64) -> Outcome {
        self.command(&Ask::Store { connection: connection.number, at: 0, value })
    }

    /// The first 8 bytes of the server's buffer.
    pub(super) fn stored(&mut self, connection: &Connection) -> Outcome<u64> {
        match self.ask(&Ask::Load { connection: connection.number, at: 0 })? {
            Reply::Value { value } => Ok(value),
            _ => Err(unexpected()),
        }
    }

    /// The counters of the server's queue pair.
    pub(super) fn server_counters(&mut self, connection: &Connection) -> Outcome<BTreeMap<String, u64>> {
        match self.ask(&Ask::Counters { connection: connection.number })? {
            Reply::Counters { counters } => Ok(counters),
            _ => Err(unexpected()),
        }
    }

    /// Draws the packets since the last call.
    pub(super) fn draw(&self) {
        self.page.line(&self.ladder.render(&self.page.ladder_style()));
        self.ladder.clear();
    }

    /// Waits for the completion of `wr_id`, which must be successful.
    pub(super) fn succeed(&self, connection: &Connection, wr_id: u64) -> Outcome {
        let wc = connection.end.wait()?;
        expect(wc.status == WcStatus::Success, || format!("{}: {}", wc.status, wc.status.explain()))?;
        expect(wc.wr_id == wr_id, || format!("work request {} completed instead of {wr_id}", wc.wr_id))
    }

    /// Ends the ladders.
    pub(super) fn stop_drawing(&self) {
        Ladder::detach(&self.device);
    }
}

fn unexpected() -> Failure {
    Failure::new("the server sent an unexpected answer")
}
