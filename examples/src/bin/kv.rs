//! A key-value store whose server does no work: clients access its memory with READ, WRITE and atomics.
//!
//! ```text
//! cargo run -p rnic-examples --bin kv                  a server and three competing clients, each in its own process
//! kv server                                            serves until it is killed; prints its address
//! kv client ADDRESS put KEY VALUE | get KEY | count KEY
//! ```
//!
//! The table is an array of slots. A client finds the slot of a key by hashing, and probes the next slots if that
//! one is taken. Each slot starts and ends with a version. To change a slot, a client makes its first version odd
//! with a compare and swap, which only one client can win; then it writes the rest, and the new version last. To
//! read a slot, a client READs it: if both versions are equal and even, nobody changed it meanwhile. Requests of a
//! connection take effect in order, so consecutive WRITEs need no waiting in between.

use rnic::{Access, ConnectOptions, Device, MemoryRegion, Operation, QpAddress, RcEnd, Remote, WcStatus};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const SLOTS: u64 = 1024;
/// Version, counter, key, value, version.
const SLOT: usize = 8 + 8 + TEXT + TEXT + 8;
/// Maximum length of a key and of a value.
const TEXT: usize = 56;
const KEY: usize = 16;
const VALUE: usize = KEY + TEXT;
const TAIL: usize = VALUE + TEXT;

/// The server's message to each client.
#[derive(Serialize, Deserialize)]
struct Table {
    qp: QpAddress,
    addr: u64,
    rkey: u32,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => race(),
        ["server"] => serve(),
        ["client", at, "put", key, value] => Client::connect(at)?.put(key, value),
        ["client", at, "get", key] => {
            println!("{}", Client::connect(at)?.get(key)?.unwrap_or_else(|| "(nothing)".into()));
            Ok(())
        }
        ["client", at, "count", key] => {
            println!("{}", Client::connect(at)?.count(key)?);
            Ok(())
        }
        ["client", at, "race", who] => Client::connect(at)?.race(who),
        _ => Err("kv [server | client ADDRESS put KEY VALUE | get KEY | count KEY]".into()),
    }
}

/// The server: shares its memory, and connects every client that asks.
fn serve() -> Outcome<()> {
    let device = rnic::open()?;
    let pd = device.alloc_pd()?;
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let table = pd.register(SLOT * SLOTS as usize, Access::LOCAL_WRITE | remote)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let mut clients = Vec::new();
    for stream in listener.incoming() {
        let mut stream = stream?;
        let end = RcEnd::in_domain(&pd)?;
        let ours = Table { qp: end.qp.address(), addr: table.addr(), rkey: table.rkey() };
        let mut line = String::new();
        BufReader::new(stream.try_clone()?).read_line(&mut line)?;
        end.qp.connect(&serde_json::from_str(&line)?, &ConnectOptions::default())?;
        writeln!(stream, "{}", serde_json::to_string(&ours)?)?;
        clients.push(end);
    }
    Ok(())
}

struct Client {
    end: RcEnd,
    table: Table,
    /// A slot after a read, or before a write.
    slot: MemoryRegion,
    /// The result of an atomic operation.
    word: MemoryRegion,
    _device: Device,
}

impl Client {
    fn connect(server: &str) -> Outcome<Self> {
        let device = rnic::open()?;
        let end = RcEnd::new(&device)?;
        let mut stream = TcpStream::connect(server)?;
        writeln!(stream, "{}", serde_json::to_string(&end.qp.address())?)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        let table: Table = serde_json::from_str(&line)?;
        end.qp.connect(&table.qp, &ConnectOptions::default())?;
        let (slot, word) = (end.register(&[0; SLOT])?, end.register(&[0; 8])?);
        Ok(Self { end, table, slot, word, _device: device })
    }

    fn remote(&self, slot: u64, offset: usize) -> Remote {
        Remote { addr: self.table.addr + slot * SLOT as u64 + offset as u64, rkey: self.table.rkey }
    }

    /// Waits for the completion of the one signalled request in flight.
    fn done(&self) -> Outcome<()> {
        let wc = self.end.wait()?;
        if wc.status == WcStatus::Success {
            return Ok(());
        }
        Err(self.end.qp.failure().map_or(wc.status.to_string(), |failure| failure.to_string()).into())
    }

    /// READs a slot until it gets a consistent copy.
    fn read(&self, slot: u64) -> Outcome<Vec<u8>> {
        loop {
            self.end.qp.read(0, self.slot.all(), self.remote(slot, 0))?;
            self.done()?;
            let bytes = self.slot.to_vec()?;
            let (head, tail) = (number(&bytes, 0), number(&bytes, TAIL));
            if head == tail && head % 2 == 0 {
                return Ok(bytes);
            }
        }
    }

    /// The slot of a key and its content, or the first free slot.
    fn find(&self, key: &str) -> Outcome<(u64, Vec<u8>)> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let start = hasher.finish();
        for step in 0..SLOTS {
            let slot = start.wrapping_add(step) % SLOTS;
            let bytes = self.read(slot)?;
            let there = text(&bytes[KEY..VALUE]);
            if there.is_empty() || there == key {
                return Ok((slot, bytes));
            }
        }
        Err("the table is full".into())
    }

    fn get(&self, key: &str) -> Outcome<Option<String>> {
        let (_, bytes) = self.find(key)?;
        let value = text(&bytes[VALUE..TAIL]);
        Ok((text(&bytes[KEY..VALUE]) == key && !value.is_empty()).then(|| value.to_owned()))
    }

    fn put(&self, key: &str, value: &str) -> Outcome<()> {
        if key.is_empty() || key.len() > TEXT || value.len() > TEXT {
            return Err(format!("keys must have 1 to {TEXT} bytes, values at most {TEXT}").into());
        }
        loop {
            let (slot, bytes) = self.find(key)?;
            let version = number(&bytes, 0);
            let (compare, swap) = (version, version + 1);
            let lock = Operation::CompareSwap { remote: self.remote(slot, 0), compare, swap };
            self.end.qp.post(0, lock, self.word.all())?;
            self.done()?;
            if number(&self.word.to_vec()?, 0) != version {
                // Another client won the slot, perhaps for another key.
                continue;
            }
            // The slot is ours. Write everything but the first version and the counter, then that version.
            let mut text = [0; 2 * TEXT];
            text[..key.len()].copy_from_slice(key.as_bytes());
            text[TEXT..TEXT + value.len()].copy_from_slice(value.as_bytes());
            self.slot.write_at(KEY, &text)?;
            let unlocked = (version + 2).to_ne_bytes();
            self.slot.write_at(TAIL, &unlocked)?;
            self.slot.write_at(0, &unlocked)?;
            self.end.qp.write(0, self.slot.slice(KEY..SLOT)?, self.remote(slot, KEY))?;
            self.end.qp.write(1, self.slot.slice(0..8)?, self.remote(slot, 0))?;
            self.done()?;
            return self.done();
        }
    }

    /// Adds 1 to the counter of an existing key; returns the previous value.
    fn count(&self, key: &str) -> Outcome<u64> {
        let (slot, bytes) = self.find(key)?;
        if text(&bytes[KEY..VALUE]) != key {
            return Err(format!("key {key:?} does not exist").into());
        }
        let add = Operation::FetchAdd { remote: self.remote(slot, 8), add: 1 };
        self.end.qp.post(0, add, self.word.all())?;
        self.done()?;
        Ok(number(&self.word.to_vec()?, 0))
    }

    /// The work of each client in the race.
    fn race(&self, who: &str) -> Outcome<()> {
        for round in 0..ROUNDS {
            self.put("last", &format!("round {round} of {who}"))?;
            self.put(&format!("{who}-{round}"), who)?;
            self.count("last")?;
        }
        for round in 0..ROUNDS {
            if self.get(&format!("{who}-{round}"))?.as_deref() != Some(who) {
                return Err(format!("the value {who}-{round} was lost").into());
            }
        }
        Ok(())
    }
}

/// Rounds per client in the race.
const ROUNDS: u64 = 100;

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |chunk| u64::from_ne_bytes(*chunk))
}

fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or("")
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

fn race() -> Outcome<()> {
    let program = std::env::current_exe()?;
    let mut server = Process(Command::new(&program).arg("server").stdout(Stdio::piped()).spawn()?);
    let mut at = String::new();
    BufReader::new(server.0.stdout.take().ok_or("the server has no stdout pipe")?).read_line(&mut at)?;
    let at = at.trim();
    let client = Client::connect(at)?;
    client.put("last", "nothing yet")?;
    let racers: Vec<_> = ["ada", "bob", "eve"]
        .into_iter()
        .map(|who| Command::new(&program).args(["client", at, "race", who]).spawn().map(Process))
        .collect::<Result<_, _>>()?;
    let count = racers.len() as u64;
    for mut racer in racers {
        if !racer.0.wait()?.success() {
            return Err("a client failed".into());
        }
    }
    let counted = client.count("last")?;
    assert_eq!(counted, count * ROUNDS, "each addition takes effect once");
    let last = client.get("last")?.unwrap_or_default();
    println!(
        "{count} clients, {} puts: the counter says {counted}, the last put was {last:?}",
        count * ROUNDS * 2
    );
    println!("the server did not take part: it handled {} connections and nothing else", count + 1);
    Ok(())
}
