//! A key-value store: a server with a counter and a value in registered memory, and clients that update and get them.
//!
//! All clients work at once, over a switch that sends one byte after the other: a long value is on its way for some time, and
//! others may look at it meanwhile.

use super::{Picture, Ran, duration, read, verb};
use crate::definition::ExperimentConfig;
use crate::error::LabError;
use crate::value::Values;
use qp::{Gather, Mtu, Operation, WorkCompletion};
use rnic_core::sim::{DeviceSetup, Net};
use rnic_core::{ConnectOptions, MemoryRegion, RcEnd};
use rnic_fabric::network::Shared;
use rnic_fabric::scenario::{Scenario, ScenarioError};
use serde::Deserialize;
use std::collections::VecDeque;
use std::path::Path;
use time::Duration;
use toml::Table;

/// The file of an experiment.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Clients. The first one also puts values.
    clients: usize,
    /// How often each updates the counter and gets the value.
    rounds: u32,
    /// Bytes of the value.
    value: usize,
    /// The rate of all cables.
    rate: String,
    /// How long the server's program works at a message.
    #[serde(deserialize_with = "duration")]
    server_time: Duration,
    update: Update,
    get: Get,
    #[serde(default)]
    guard: Guard,
}

/// How a client adds one to the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Update {
    /// It READs, adds, and WRITEs.
    ReadWrite,
    /// It asks the server's NIC to add.
    FetchAdd,
    /// It asks the server's program to add.
    Send,
}

/// How a client gets the value, and the first one puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Get {
    /// By READ and WRITE.
    Read,
    /// By asking the server's program.
    Send,
}

/// What tells a client that the bytes that it READ do not belong together: then it READs again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Guard {
    /// Nothing.
    #[default]
    None,
    /// A number in front of the value, which must be that of the READ before.
    Version,
    /// The same number in front of the value and behind it.
    TwoVersions,
    /// A checksum of the value.
    Checksum,
}

/// Where the value begins in the server's memory: behind the counter and the number in front.
const FRONT: usize = 16;

/// What is behind the value: a number, or a checksum.
const BEHIND: usize = 8;

/// An experiment that takes longer has stalled.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Put,
    Read,
    Write,
    Add,
    Get,
    Done,
}

struct Client {
    end: RcEnd,
    /// The other end of its connection.
    served: RcEnd,
    scratch: MemoryRegion,
    /// The server's answer: a copy of the value, which is sent while the value may change.
    reply: MemoryRegion,
    waiting: Waiting,
    since: Duration,
    round: u32,
    /// The version that it saw last, if it looks for one.
    version: Option<u64>,
}

/// A message at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Add,
    Get,
    Put(u32),
}

struct Store<'a> {
    setup: &'a Config,
    net: Net,
    memory: MemoryRegion,
    clients: Vec<Client>,
    /// Messages that the server's program has yet to work at, each with when it is done.
    work: VecDeque<(Duration, usize, Asked)>,
    busy_until: Duration,
    seen: Seen,
}

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    messages: u32,
    gets: u32,
    torn: u32,
    again: u32,
    get_time: Duration,
    update_time: Duration,
}

pub(super) fn run(config: &ExperimentConfig, table: &Table) -> Result<Ran, LabError> {
    let setup: Config = read(config, table)?;
    let wrong = |why: ScenarioError| LabError::file(&config.file, why);
    let text = format!(
        "name = \"store\"\nabout = \"a store\"\nuntil = \"1 s\"\n[topology]\nkind = \"star\"\nhosts = {}\nlink = {{ rate = \"{}\", delay = \"1 us\" }}\n",
        setup.clients + 1,
        setup.rate
    );
    let scenario = Scenario::read(&text).map_err(wrong)?;
    let fabric = Shared::new(scenario.fabric(Path::new("."), 1).map_err(wrong)?);
    let net = Net::joined_by(Box::new(fabric), 1);
    let ran = || {
        let mut store = Store::new(&setup, net)?;
        store.run()?;
        store.ran()
    };
    ran().map_err(verb(config))
}

/// The value of a round: all bytes are the same.
fn value(round: u32, len: usize) -> Vec<u8> {
    vec![round as u8 + 1; len]
}

/// FNV-1a, 64 bits: enough to notice bytes of two values.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

impl<'a> Store<'a> {
    fn new(setup: &'a Config, net: Net) -> rnic_core::Result<Self> {
        let device = |name: String| {
            let mut setup = DeviceSetup { name: Some(name), ..DeviceSetup::default() };
            setup.partner.is_foreign = true;
            net.device_with(&setup)
        };
        let server = device("server".to_owned())?;
        let pd = server.alloc_pd()?;
        let options = ConnectOptions { mtu: Some(Mtu::B1024), ..ConnectOptions::default() };
        let access = qp::Access::LOCAL_WRITE
            | qp::Access::REMOTE_WRITE
            | qp::Access::REMOTE_READ
            | qp::Access::REMOTE_ATOMIC;
        let len = FRONT + setup.value + BEHIND;
        let memory = pd.register(len, access)?;
        memory.write_at(FRONT, &value(0, setup.value))?;
        memory.store_u64(FRONT + setup.value, behind(setup.guard, 0, setup.value))?;
        let mut clients = Vec::new();
        for number in 0..setup.clients {
            let (end, served) = (RcEnd::new(&device(format!("client{number}"))?)?, RcEnd::in_domain(&pd)?);
            end.qp.connect(&served.qp.address(), &options)?;
            served.qp.connect(&end.qp.address(), &options)?;
            let scratch = end.register(&vec![0; len])?;
            let reply = pd.register_bytes(&vec![0; setup.value], qp::Access::LOCAL_WRITE)?;
            for id in 0..4 {
                served.qp.recv(id, Gather::default())?;
            }
            let version = None;
            let (waiting, since, round) = (Waiting::Done, Duration::ZERO, 0);
            clients.push(Client { end, served, scratch, reply, waiting, since, round, version });
        }
        let (work, busy_until, seen) = (VecDeque::new(), Duration::ZERO, Seen::default());
        Ok(Self { setup, net, memory, clients, work, busy_until, seen })
    }

    fn run(&mut self) -> rnic_core::Result<()> {
        for number in 0..self.clients.len() {
            self.begin(number)?;
        }
        let end = self.net.elapsed() + PATIENCE;
        while self.clients.iter().any(|client| client.waiting != Waiting::Done) && self.net.elapsed() < end {
            self.serve()?;
            for number in 0..self.clients.len() {
                self.go_on(number)?;
            }
            let now = self.net.elapsed();
            let next = self.work.front().map_or(end, |(at, ..)| *at);
            if next > now && !self.net.step_within(next - now) {
                self.net.run_for(next - now);
            }
        }
        Ok(())
    }

    /// Begins a client's round.
    fn begin(&mut self, number: usize) -> rnic_core::Result<()> {
        let client = &mut self.clients[number];
        client.since = self.net.elapsed();
        if number > 0 {
            return self.update(number);
        }
        client.waiting = Waiting::Put;
        let round = client.round + 1;
        match self.setup.get {
            Get::Send => self.ask(number, Asked::Put(round)),
            Get::Read => self.put(number, round),
        }
    }

    /// WRITEs a new value, and what guards it.
    fn put(&self, number: usize, round: u32) -> rnic_core::Result<()> {
        let client = &self.clients[number];
        let len = self.setup.value;
        client.scratch.store_u64(FRONT - 8, u64::from(round))?;
        client.scratch.write_at(FRONT, &value(round, len))?;
        client.scratch.store_u64(FRONT + len, behind(self.setup.guard, round, len))?;
        let all = client.scratch.slice(FRONT - 8..FRONT + len + BEHIND)?;
        client.end.qp.write(1, all, self.memory.remote(FRONT as u64 - 8))
    }

    fn update(&mut self, number: usize) -> rnic_core::Result<()> {
        let client = &mut self.clients[number];
        client.since = self.net.elapsed();
        let word = client.scratch.slice(0..8)?;
        match self.setup.update {
            Update::ReadWrite => {
                client.waiting = Waiting::Read;
                client.end.qp.read(2, word, self.memory.remote(0))
            }
            Update::FetchAdd => {
                client.waiting = Waiting::Add;
                let add = Operation::FetchAdd { remote: self.memory.remote(0), add: 1 };
                client.end.qp.post(3, add, word)
            }
            Update::Send => {
                client.waiting = Waiting::Add;
                self.ask(number, Asked::Add)
            }
        }
    }

    fn get(&mut self, number: usize) -> rnic_core::Result<()> {
        let client = &mut self.clients[number];
        client.waiting = Waiting::Get;
        match self.setup.get {
            Get::Send => self.ask(number, Asked::Get),
            Get::Read => {
                let all = client.scratch.slice(FRONT - 8..FRONT + self.setup.value + BEHIND)?;
                client.end.qp.read(4, all, self.memory.remote(FRONT as u64 - 8))
            }
        }
    }

    /// Sends a message to the server's program, and posts a receive for its answer.
    fn ask(&self, number: usize, what: Asked) -> rnic_core::Result<()> {
        let client = &self.clients[number];
        let (kind, round) = match what {
            Asked::Add => (0, 0),
            Asked::Get => (1, 0),
            Asked::Put(round) => (2, round),
        };
        client.end.qp.recv(5, client.scratch.slice(FRONT..FRONT + self.setup.value)?)?;
        // The message is so short that its content travels as immediate data.
        let imm = round << 8 | kind;
        client.end.qp.post(6, Operation::Send { imm: Some(imm), invalidate: None }, Gather::default())
    }

    /// The server's program: it takes messages, and answers those that it has worked at.
    fn serve(&mut self) -> rnic_core::Result<()> {
        let now = self.net.elapsed();
        let mut done = [WorkCompletion::default(); 8];
        for number in 0..self.clients.len() {
            let count = self.clients[number].served.cq().poll(&mut done);
            for wc in done[..count].iter().filter(|wc| wc.wr_id < 7) {
                self.clients[number].served.qp.recv(0, Gather::default())?;
                self.seen.messages += 1;
                self.busy_until = self.busy_until.max(now) + self.setup.server_time;
                let what = match wc.imm_or_rkey & 0xff {
                    0 => Asked::Add,
                    1 => Asked::Get,
                    _ => Asked::Put(wc.imm_or_rkey >> 8),
                };
                self.work.push_back((self.busy_until, number, what));
            }
        }
        while let Some((_, number, what)) = self.work.pop_front_if(|(at, ..)| *at <= now) {
            let reply = &self.clients[number].served.qp;
            match what {
                Asked::Add => {
                    self.memory.store_u64(0, self.memory.load_u64(0)? + 1)?;
                    reply.send(7, Gather::default())?;
                }
                Asked::Put(round) => {
                    self.memory.write_at(FRONT, &value(round, self.setup.value))?;
                    reply.send(7, Gather::default())?;
                }
                Asked::Get => {
                    let mut bytes = vec![0; self.setup.value];
                    self.memory.read_at(FRONT, &mut bytes)?;
                    self.clients[number].reply.write_at(0, &bytes)?;
                    reply.send(7, self.clients[number].reply.all())?;
                }
            }
        }
        Ok(())
    }

    /// What a client does when something is done.
    fn go_on(&mut self, number: usize) -> rnic_core::Result<()> {
        let mut done = [WorkCompletion::default(); 8];
        let count = self.clients[number].end.cq().poll(&mut done);
        for wc in &done[..count] {
            // What was sent tells nothing: the answer does.
            if wc.wr_id == 6 {
                continue;
            }
            self.next(number)?;
        }
        Ok(())
    }

    fn next(&mut self, number: usize) -> rnic_core::Result<()> {
        let now = self.net.elapsed();
        let is_refused = self.clients[number].waiting == Waiting::Get && !self.is_accepted(number)?;
        let client = &mut self.clients[number];
        match client.waiting {
            Waiting::Put => self.update(number),
            Waiting::Read => {
                client.scratch.store_u64(0, client.scratch.load_u64(0)? + 1)?;
                client.waiting = Waiting::Write;
                client.end.qp.write(8, client.scratch.slice(0..8)?, self.memory.remote(0))
            }
            Waiting::Write | Waiting::Add => {
                self.seen.update_time += now - client.since;
                client.since = now;
                self.get(number)
            }
            Waiting::Get if is_refused => {
                self.seen.again += 1;
                self.get(number)
            }
            Waiting::Get => {
                let client = &mut self.clients[number];
                self.seen.gets += 1;
                self.seen.get_time += now - client.since;
                let mut bytes = vec![0; self.setup.value];
                client.scratch.read_at(FRONT, &mut bytes)?;
                self.seen.torn += u32::from(bytes.iter().any(|byte| Some(byte) != bytes.first()));
                client.round += 1;
                client.version = None;
                if client.round == self.setup.rounds {
                    client.waiting = Waiting::Done;
                    return Ok(());
                }
                self.begin(number)
            }
            Waiting::Done => Ok(()),
        }
    }

    /// Whether the guard says that what a client READ belongs together.
    fn is_accepted(&mut self, number: usize) -> rnic_core::Result<bool> {
        if self.setup.get == Get::Send {
            return Ok(true);
        }
        let client = &mut self.clients[number];
        let (front, back) =
            (client.scratch.load_u64(FRONT - 8)?, client.scratch.load_u64(FRONT + self.setup.value)?);
        Ok(match self.setup.guard {
            Guard::None => true,
            Guard::Version => client.version.replace(front) == Some(front),
            Guard::TwoVersions => front == back,
            Guard::Checksum => {
                let mut bytes = vec![0; self.setup.value];
                client.scratch.read_at(FRONT, &mut bytes)?;
                back == checksum(&bytes)
            }
        })
    }

    fn ran(&self) -> rnic_core::Result<Ran> {
        let Seen { messages, gets, torn, again, get_time, update_time } = &self.seen;
        let wanted = self.clients.len() as u64 * u64::from(self.setup.rounds);
        let counter = self.memory.load_u64(0)?;
        let mean = |time: &Duration| time.as_nanos() as f64 / 1e3 / f64::from((*gets).max(1));
        let mut values = Values::default();
        for (name, number) in [
            ("updates", wanted as f64),
            ("counter", counter as f64),
            ("lost_updates", wanted as f64 - counter as f64),
            ("gets", f64::from(*gets)),
            ("torn_gets", f64::from(*torn)),
            ("gets_again", f64::from(*again)),
            ("server_messages", f64::from(*messages)),
            ("get_us", mean(get_time)),
            ("update_us", mean(update_time)),
        ] {
            values.set(name, number);
        }
        Ok(Ran { values, picture: Picture::None, text: String::new() })
    }
}

/// What stands behind a value.
fn behind(guard: Guard, round: u32, len: usize) -> u64 {
    if guard == Guard::Checksum { checksum(&value(round, len)) } else { u64::from(round) }
}
