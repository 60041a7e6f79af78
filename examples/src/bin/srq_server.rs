//! A server that receives from all of its clients through one shared receive queue.
//!
//! ```text
//! cargo run -p rnic-examples --bin srq_server          a server and three clients of different speed, each in its own process
//! srq_server client ADDRESS NAME REQUESTS DEPTH PAUSE  a client: DEPTH requests in flight, PAUSE microseconds between two
//! ```
//!
//! With one receive queue per connection, the server would have to post as many receives for the slow client as for
//! the fast one. With a shared queue, every client draws from the same receives. The server does not post a receive
//! for each message: it asks for an event when fewer receives than a limit are left, and then posts all buffers
//! that have been returned. Requests are numbers; replies are their squares.

use rnic::engine::AsyncEvent;
use rnic::{
    Access, CompletionQueue, ConnectOptions, Device, Gather, MemoryRegion, ProtectionDomain, QpAddress,
    QpInit, Qpn, QueuePair, RcEnd, SharedReceiveQueue, SrqInit, SrqModify, WcOpcode, WcStatus,
    WorkCompletion,
};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The server's receives for all clients together, and the limit below which it posts more.
const RECEIVES: u32 = 64;
const LIMIT: u32 = 16;
/// Length of a request and of a reply in bytes.
const MESSAGE: usize = 8;
/// Number of limit events to print.
const SHOWN: u64 = 3;
/// Timeout for any progress.
const PATIENCE: Duration = Duration::from_secs(20);

/// Name, number of requests, requests in flight, microseconds between two requests.
const CLIENTS: [[&str; 4]; 3] =
    [["fast", "2000", "24", "0"], ["steady", "400", "4", "0"], ["slow", "40", "1", "2000"]];

/// A client's message to the server.
#[derive(Serialize, Deserialize)]
struct Hello {
    name: String,
    requests: u64,
    qp: QpAddress,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => demonstrate(),
        ["client", at, name, requests, depth, pause] => {
            let pause = Duration::from_micros(pause.parse()?);
            ask(at, name, requests.parse()?, depth.parse()?, pause)
        }
        _ => Err("srq_server [client ADDRESS NAME REQUESTS DEPTH PAUSE]".into()),
    }
}

/// The server's state of a client.
struct Client {
    name: String,
    /// Number of requests that the client will send.
    requests: u64,
    /// Number of requests received, and of replies acknowledged.
    received: u64,
    replied: u64,
    qp: QueuePair,
    /// Closed when everything is done: until then the client acknowledges.
    _stream: TcpStream,
}

struct Server {
    clients: HashMap<Qpn, Client>,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    buffers: MemoryRegion,
    /// Buffers that are not posted.
    free: Vec<u64>,
    /// Whether the limit event has arrived.
    low: bool,
    refills: u64,
    pd: ProtectionDomain,
    device: Device,
}

impl Server {
    fn new() -> Outcome<Self> {
        let device = rnic::open()?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(1024)?;
        let srq = pd.create_srq(&SrqInit { max_wr: RECEIVES, max_sge: 1, limit: 0 })?;
        let buffers = pd.register(MESSAGE * RECEIVES as usize, Access::LOCAL_WRITE)?;
        let free = (0..u64::from(RECEIVES)).collect();
        let mut server =
            Self { clients: HashMap::new(), cq, srq, buffers, free, low: false, refills: 0, pd, device };
        server.refill()?;
        Ok(server)
    }

    /// Posts all free buffers, and rearms the limit event.
    fn refill(&mut self) -> Outcome<()> {
        for buffer in self.free.drain(..) {
            let start = usize::try_from(buffer)? * MESSAGE;
            self.srq.recv(buffer, self.buffers.slice(start..start + MESSAGE)?)?;
        }
        self.low = false;
        Ok(self.srq.modify(SrqModify::limit(LIMIT))?)
    }

    /// Connects a client.
    fn admit(&mut self, mut stream: TcpStream) -> Outcome<()> {
        let mut line = String::new();
        BufReader::new(stream.try_clone()?).read_line(&mut line)?;
        let Hello { name, requests, qp: peer } = serde_json::from_str(&line)?;
        let qp = self.pd.create_qp(&QpInit::rc(&self.cq, &self.cq).with_srq(&self.srq))?;
        qp.connect(&peer, &ConnectOptions::default())?;
        writeln!(stream, "{}", serde_json::to_string(&qp.address())?)?;
        let client = Client { name, requests, received: 0, replied: 0, qp, _stream: stream };
        self.clients.insert(client.qp.qpn(), client);
        Ok(())
    }

    /// Serves until every client has received all of its replies.
    fn serve(&mut self) -> Outcome<()> {
        while self.clients.values().any(|client| client.replied < client.requests) {
            let wc = self.cq.wait(PATIENCE)?;
            self.handle(&wc)?;
            while let Some(event) = self.device.poll_event()? {
                self.low |= event == AsyncEvent::SrqLimitReached(self.srq.srqn());
            }
            // A buffer is returned by the completion of its message. Posting fewer than this would put the queue
            // below the limit again at once.
            if self.low && self.free.len() > (RECEIVES - LIMIT) as usize {
                let (left, free) = (self.srq.outstanding(), self.free.len());
                self.refills += 1;
                if self.refills <= SHOWN {
                    println!("limit event: {left} receives left, {free} posted again");
                }
                self.refill()?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, wc: &WorkCompletion) -> Outcome<()> {
        let client = self.clients.get_mut(&wc.qpn).ok_or("a completion of an unknown queue pair")?;
        if wc.status != WcStatus::Success {
            return Err(format!("{}: {}", client.name, wc.status.explain()).into());
        }
        if wc.opcode != WcOpcode::Recv {
            client.replied += 1;
            return Ok(());
        }
        let mut request = [0; MESSAGE];
        self.buffers.read_at(usize::try_from(wc.wr_id)? * MESSAGE, &mut request)?;
        self.free.push(wc.wr_id);
        let number = u64::from_be_bytes(request);
        let reply = number.wrapping_mul(number).to_be_bytes();
        client.received += 1;
        Ok(client.qp.send(0, Gather::Inline(reply.into()))?)
    }
}

/// The client: sends its requests and checks the replies.
fn ask(at: &str, name: &str, requests: u64, depth: u64, pause: Duration) -> Outcome<()> {
    let device = rnic::open()?;
    let end = RcEnd::new(&device)?;
    let mut stream = TcpStream::connect(at)?;
    let hello = Hello { name: name.to_owned(), requests, qp: end.qp.address() };
    writeln!(stream, "{}", serde_json::to_string(&hello)?)?;
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let replies = end.register(&vec![0; MESSAGE * usize::try_from(depth)?])?;
    end.qp.connect(&serde_json::from_str(&line)?, &ConnectOptions::default())?;

    let (mut next, mut asked) = (0, VecDeque::new());
    let mut replied = 0;
    while replied < requests {
        while next < requests && (asked.len() as u64) < depth {
            // Post the buffer first: the reply may be quick.
            let slot = next % depth;
            let start = usize::try_from(slot)? * MESSAGE;
            end.qp.recv(slot, replies.slice(start..start + MESSAGE)?)?;
            end.qp.send(0, Gather::Inline(next.to_be_bytes().into()))?;
            asked.push_back(next);
            next += 1;
        }
        let wc = end.wait()?;
        if wc.status != WcStatus::Success {
            return Err(format!("{name}: {}", wc.status.explain()).into());
        }
        if wc.opcode != WcOpcode::Recv {
            continue;
        }
        let mut reply = [0; MESSAGE];
        replies.read_at(usize::try_from(wc.wr_id)? * MESSAGE, &mut reply)?;
        // Replies on a connection arrive in the order of the requests.
        let number: u64 = asked.pop_front().ok_or("a reply without a request")?;
        if u64::from_be_bytes(reply) != number.wrapping_mul(number) {
            return Err(format!("{name}: the reply to {number} is wrong").into());
        }
        replied += 1;
        std::thread::sleep(pause);
    }
    // The server closes the control connection at the end: nothing needs an acknowledgement any more.
    lines.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A child process that is killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if the process has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The next connection, if one arrives in time.
fn accept(listener: &TcpListener) -> Outcome<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            Err(_) if Instant::now() > deadline => return Err("a client did not start".into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn demonstrate() -> Outcome<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?.to_string();
    let mut server = Server::new()?;
    let program = std::env::current_exe()?;
    let mut processes = Vec::new();
    for arguments in CLIENTS {
        processes.push(Process(Command::new(&program).args(["client", &at]).args(arguments).spawn()?));
        server.admit(accept(&listener)?)?;
    }
    let start = Instant::now();
    server.serve()?;
    let took = start.elapsed();
    let not_ready = server.device.counters().qp.send_rnr_err;
    let mut clients: Vec<Client> = server.clients.drain().map(|(_, client)| client).collect();
    clients.sort_by_key(|client| std::cmp::Reverse(client.received));
    for client in &clients {
        println!("{:<6} {:>5} requests, all answered", client.name, client.received);
    }
    let total: u64 = clients.iter().map(|client| client.received).sum();
    drop(clients);
    for mut process in processes {
        if !process.0.wait()?.success() {
            return Err("a client failed".into());
        }
    }
    println!(
        "ok: {total} requests from {} clients through one queue of {RECEIVES} receives, refilled {} times on its limit \
         event, in {took:.1?}; RNR NAKs sent: {not_ready}",
        CLIENTS.len(),
        server.refills
    );
    Ok(())
}
