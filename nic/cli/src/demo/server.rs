//! The server: it executes the requests of the client.

use super::inbox::Inbox;
use super::messages::{Ask, Opened, Piece, Reply, Setup, difference, pattern};
use super::{Failure, Outcome};
use rnic::cm::{End, Listener, Request};
use rnic::{
    Access, ConnectOptions, Device, Gather, MemoryRegion, MemoryWindow, Mtu, MwType, QpAddress, RcEnd, Sge,
    WcFlags, WcStatus, WorkCompletion,
};
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

struct Connection {
    end: RcEnd,
    buffer: MemoryRegion,
    windows: Vec<MemoryWindow>,
}

struct Server {
    device: Device,
    seed: u64,
    connections: Vec<Connection>,
    inboxes: Vec<Inbox>,
    listener: Option<Listener>,
    caller: Option<(End, MemoryRegion)>,
}

/// Serves until the client closes the pipe.
pub(super) fn run(seed: u64) -> ExitCode {
    match serve(seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rnic demo server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(seed: u64) -> io::Result<()> {
    let mut server = match rnic::open() {
        Ok(device) => Server {
            device,
            seed,
            connections: Vec::new(),
            inboxes: Vec::new(),
            listener: None,
            caller: None,
        },
        Err(error) => return answer(&Reply::Failed { what: error.to_string() }),
    };
    answer(&Reply::Ready { process: std::process::id() })?;
    for line in io::stdin().lock().lines() {
        let reply = match serde_json::from_str(&line?) {
            Ok(ask) => server.act(ask).unwrap_or_else(|Failure(what)| Reply::Failed { what }),
            Err(error) => Reply::Failed { what: format!("invalid request: {error}") },
        };
        answer(&reply)?;
    }
    Ok(())
}

fn answer(reply: &Reply) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, reply)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// The access rights of the peer.
const RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL);

/// Checks that a completion is successful.
fn succeeded(what: &str, wc: WorkCompletion) -> Outcome<WorkCompletion> {
    if wc.status == WcStatus::Success {
        return Ok(wc);
    }
    Err(Failure::new(format!("{what} ended with {}", wc.status)))
}

impl Setup {
    /// The options for the API.
    pub(super) fn options(self) -> ConnectOptions {
        ConnectOptions {
            access: RIGHTS,
            mtu: self.mtu.and_then(Mtu::from_bytes),
            min_rnr_timer: self.min_rnr_timer,
            ..ConnectOptions::default()
        }
    }
}

impl Server {
    fn connection(&self, number: usize) -> Outcome<&Connection> {
        self.connections.get(number).ok_or_else(|| Failure::new(format!("there is no connection {number}")))
    }

    fn act(&mut self, ask: Ask) -> Outcome<Reply> {
        Ok(match ask {
            Ask::Connect { peer, setup } => self.connect(&peer, setup)?,
            Ask::Fill { connection, piece, pattern: number } => {
                let bytes = pattern(self.seed, number, piece.len);
                self.connection(connection)?.buffer.write_at(piece.at, &bytes)?;
                Reply::Done
            }
            Ask::Compare { connection, piece, pattern: number, from } => {
                let mut found = vec![0; piece.len];
                self.connection(connection)?.buffer.read_at(piece.at, &mut found)?;
                let wanted = pattern(self.seed, number, from + piece.len);
                Reply::Compared { difference: difference(&found, &wanted[from..]) }
            }
            Ask::Store { connection, at, value } => {
                self.connection(connection)?.buffer.store_u64(at, value)?;
                Reply::Done
            }
            Ask::Load { connection, at } => {
                Reply::Value { value: self.connection(connection)?.buffer.load_u64(at)? }
            }
            Ask::Open { service, peer } => {
                let (inbox, opened) = Inbox::open(&self.device, service, &peer)?;
                let number = self.inboxes.len();
                self.inboxes.push(inbox);
                Reply::Opened { opened: Opened { number, ..opened } }
            }
            Ask::Hear { number, len, pattern: pattern_number } => {
                let nobody = || Failure::new(format!("there is no inbox {number}"));
                let inbox = self.inboxes.get(number).ok_or_else(nobody)?;
                let difference = inbox.heard(&pattern(self.seed, pattern_number, len))?;
                Reply::Compared { difference }
            }
            Ask::Listen => self.listen()?,
            Ask::Accept => self.accept()?,
            Ask::Refuse => {
                self.request()?.reject(b"not today")?;
                Reply::Done
            }
            Ask::HearCaller { len, pattern: number } => {
                let Some((end, message)) = &self.caller else {
                    return Err(Failure::new("nobody has called"));
                };
                succeeded("the receive", end.wait()?)?;
                let found = message.to_vec()?;
                Reply::Compared { difference: difference(&found[..len], &pattern(self.seed, number, len)) }
            }
            Ask::Bind { connection, piece } => self.bind(connection, piece)?,
            Ask::Receive { connection, pieces } => self.receive(connection, &pieces)?,
            Ask::Await { connection } => {
                let wc = succeeded("the receive", self.connection(connection)?.end.wait()?)?;
                let invalidated = wc.flags.contains(WcFlags::WITH_INV).then_some(wc.imm_or_rkey);
                Reply::Received { bytes: wc.byte_len, imm: wc.imm(), invalidated }
            }
            Ask::Counters { connection } => {
                let counters = self.connection(connection)?.end.qp.counters();
                Reply::Counters { counters: counters.iter().map(|(name, n)| (name.to_owned(), n)).collect() }
            }
        })
    }

    fn connect(&mut self, peer: &QpAddress, setup: Setup) -> Outcome<Reply> {
        let end = RcEnd::new(&self.device)?;
        let buffer = end.pd().register(setup.buffer, RIGHTS | Access::MW_BIND)?;
        end.qp.connect(peer, &setup.options())?;
        let remote = buffer.remote(0);
        let reply = Reply::Connected { address: end.qp.address(), addr: remote.addr, rkey: remote.rkey };
        self.connections.push(Connection { end, buffer, windows: Vec::new() });
        Ok(reply)
    }

    /// Listens, if it does not yet.
    fn listen(&mut self) -> Outcome<Reply> {
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => self.device.listen(0)?,
        };
        let at = self.listener.insert(listener).local();
        Ok(Reply::Listening { at })
    }

    /// The next request for a connection.
    fn request(&self) -> Outcome<Request> {
        let listener = self.listener.as_ref().ok_or_else(|| Failure::new("nobody listens"))?;
        let request = listener.accept_within(Duration::from_secs(10))?;
        request.ok_or_else(|| Failure::new("no connection was asked for"))
    }

    fn accept(&mut self) -> Outcome<Reply> {
        let end = RcEnd::new(&self.device)?;
        let message = end.register(&[0; 4096])?;
        let request = self.request()?;
        let connection = request.accept(&end.qp)?;
        end.qp.recv(0, message.all())?;
        self.caller = Some((End::new(end, connection), message));
        Ok(Reply::Done)
    }

    fn bind(&mut self, connection: usize, piece: Piece) -> Outcome<Reply> {
        let nobody = || Failure::new(format!("there is no connection {connection}"));
        let Connection { end, buffer, windows } = self.connections.get_mut(connection).ok_or_else(nobody)?;
        let window = end.pd().alloc_mw(MwType::Type2)?;
        let range = piece.at..piece.at.saturating_add(piece.len);
        end.qp.bind_mw(0, &window, buffer, range, Access::REMOTE_WRITE)?;
        succeeded("the bind", end.wait()?)?;
        let rkey = window.rkey();
        windows.push(window);
        Ok(Reply::Key { rkey })
    }

    fn receive(&self, connection: usize, pieces: &[Piece]) -> Outcome<Reply> {
        let Connection { end, buffer, .. } = self.connection(connection)?;
        let slice = |piece: &Piece| buffer.slice(piece.at..piece.at.saturating_add(piece.len));
        let list = pieces.iter().map(slice).collect::<rnic::Result<Vec<Sge>>>()?;
        end.qp.recv(0, Gather::from(&list[..]))?;
        Ok(Reply::Done)
    }
}
