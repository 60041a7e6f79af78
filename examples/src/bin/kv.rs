//! A key-value store that its server never touches: clients work on its memory with READ, WRITE and atomics.
//!
//! ```text
//! cargo run -p rnic-examples --bin kv                  a server and three clients, each a process, that race
//! kv server                                            serves until it is killed; says where
//! kv client ADDRESS put KEY VALUE | get KEY | count KEY
//! ```
//!
//! The table is an array of slots. A client finds the slot of a key by its hash, and the next ones if that is taken. Each
//! slot begins and ends with a version. To change a slot a client makes its first version odd by compare and swap, which
//! only one can succeed in; writes the rest; and last writes the new version. To read one it READs the slot: if both
//! versions are the same and even, nobody changed it meanwhile. Requests of a connection take effect in their order, so
//! one WRITE after another needs no waiting between them.

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
/// Longest key and longest value.
const TEXT: usize = 56;
const KEY: usize = 16;
const VALUE: usize = KEY + TEXT;
const TAIL: usize = VALUE + TEXT;

/// What the server tells each client.
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

/// The server: lends its memory, and connects whoever asks.
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
    /// A slot as it was read, or is to be written.
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

    /// Waits for the completion of the one signalled request that is under way.
    fn done(&self) -> Outcome<()> {
        let wc = self.end.wait()?;
        if wc.status == WcStatus::Success {
            return Ok(());
        }
        Err(self.end.qp.failure().map_or(wc.status.to_string(), |failure| failure.to_string()).into())
    }

    /// READs a slot until nobody changes it meanwhile.
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

    /// The slot of a key with what it holds, or the first free one.
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
            return Err(format!("keys have 1 to {TEXT} bytes, values at most {TEXT}").into());
        }
        loop {
            let (slot, bytes) = self.find(key)?;
            let version = number(&bytes, 0);
            let (compare, swap) = (version, version + 1);
            let lock = Operation::CompareSwap { remote: self.remote(slot, 0), compare, swap };
            self.end.qp.post(0, lock, self.word.all())?;
            self.done()?;
            if number(&self.word.to_vec()?, 0) != version {
                // Somebody else was faster, perhaps with another key.
                continue;
            }
            // The slot is ours. Everything but the first version and the counter, then that version.
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

    /// Adds 1 to the counter of a key, which has to exist; returns what it was.
    fn count(&self, key: &str) -> Outcome<u64> {
        let (slot, bytes) = self.find(key)?;
        if text(&bytes[KEY..VALUE]) != key {
            return Err(format!("there is no key {key:?}").into());
        }
        let add = Operation::FetchAdd { remote: self.remote(slot, 8), add: 1 };
        self.end.qp.post(0, add, self.word.all())?;
        self.done()?;
        Ok(number(&self.word.to_vec()?, 0))
    }

    /// What each client of the race does.
    fn race(&self, who: &str) -> Outcome<()> {
        for round in 0..ROUNDS {
            self.put("last", &format!("round {round} of {who}"))?;
            self.put(&format!("{who}-{round}"), who)?;
            self.count("last")?;
        }
        for round in 0..ROUNDS {
            if self.get(&format!("{who}-{round}"))?.as_deref() != Some(who) {
                return Err(format!("{who}-{round} was lost").into());
            }
        }
        Ok(())
    }
}

/// Rounds of each client of the race.
const ROUNDS: u64 = 100;

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |chunk| u64::from_ne_bytes(*chunk))
}

fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or("")
}

/// A child process that ends with the program.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn race() -> Outcome<()> {
    let program = std::env::current_exe()?;
    let mut server = Process(Command::new(&program).arg("server").stdout(Stdio::piped()).spawn()?);
    let mut at = String::new();
    BufReader::new(server.0.stdout.take().ok_or("no pipe from the server")?).read_line(&mut at)?;
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
    assert_eq!(counted, count * ROUNDS, "each addition took effect once");
    let last = client.get("last")?.unwrap_or_default();
    println!(
        "{count} clients, {} puts: the counter says {counted}, the last put was {last:?}",
        count * ROUNDS * 2
    );
    println!("the server took no part in it: it handled {} connections and nothing else", count + 1);
    Ok(())
}
