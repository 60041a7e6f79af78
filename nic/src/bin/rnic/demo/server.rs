//! The server: does what the client asks, and is otherwise the passive end of everything.

use super::messages::{Ask, Piece, Reply, Setup, difference, pattern};
use super::{Failure, Outcome};
use rnic::{ConnectOptions, Device, Gather, MemoryRegion, Mtu, QpAddress, RcEnd, Sge, WcStatus};
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

struct Connection {
    end: RcEnd,
    buffer: MemoryRegion,
}

struct Server {
    device: Device,
    seed: u64,
    connections: Vec<Connection>,
}

/// Serves until the client closes its end.
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
        Ok(device) => Server { device, seed, connections: Vec::new() },
        Err(error) => return answer(&Reply::Failed { what: error.to_string() }),
    };
    answer(&Reply::Ready { process: std::process::id() })?;
    for line in io::stdin().lock().lines() {
        let reply = match serde_json::from_str(&line?) {
            Ok(ask) => server.act(ask).unwrap_or_else(|Failure(what)| Reply::Failed { what }),
            Err(error) => Reply::Failed { what: format!("a request that makes no sense: {error}") },
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

impl Setup {
    /// As the API has it.
    pub(super) fn options(self) -> ConnectOptions {
        ConnectOptions {
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
            Ask::Receive { connection, pieces } => self.receive(connection, &pieces)?,
            Ask::Await { connection } => {
                let wc = self.connection(connection)?.end.wait()?;
                if wc.status != WcStatus::Success {
                    return Err(Failure::new(format!("the receive ended with {}", wc.status)));
                }
                Reply::Received { bytes: wc.byte_len, imm: wc.imm() }
            }
            Ask::Counters { connection } => {
                let counters = self.connection(connection)?.end.qp.counters();
                Reply::Counters { counters: counters.iter().map(|(name, n)| (name.to_owned(), n)).collect() }
            }
        })
    }

    fn connect(&mut self, peer: &QpAddress, setup: Setup) -> Outcome<Reply> {
        let end = RcEnd::new(&self.device)?;
        let buffer = end.register_remote(setup.buffer)?;
        end.qp.connect(peer, &setup.options())?;
        let remote = buffer.remote(0);
        let reply = Reply::Connected { address: end.qp.address(), addr: remote.addr, rkey: remote.rkey };
        self.connections.push(Connection { end, buffer });
        Ok(reply)
    }

    fn receive(&self, connection: usize, pieces: &[Piece]) -> Outcome<Reply> {
        let Connection { end, buffer } = self.connection(connection)?;
        let slice = |piece: &Piece| buffer.slice(piece.at..piece.at.saturating_add(piece.len));
        let list = pieces.iter().map(slice).collect::<rnic::Result<Vec<Sge>>>()?;
        end.qp.recv(0, Gather::from(&list[..]))?;
        Ok(Reply::Done)
    }
}
