//! A peer in a separate process, as seen by the test.

use crate::protocol::{
    Command, Completion, Connection, Data, Opening, Piece, Place, Reply, Sizes, Traffic, Verb,
};
use rnic::{Access, Device, MemoryRegion, ProtectionDomain, QpAddress};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, Command as Program, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Time limit for one command of a peer. It is far longer than any command needs on a busy machine, and only ends
/// tests that hang.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A peer process, killed on drop.
///
/// All methods panic if the peer fails, exits or does not answer in time; for a test that is the right outcome.
pub struct Peer {
    child: Child,
    commands: Option<ChildStdin>,
    replies: Receiver<String>,
    address: IpAddr,
}

/// A memory region of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The peer's number for it.
    pub id: usize,
    /// Its address and key.
    pub place: Place,
    /// Its length in bytes.
    pub len: usize,
}

impl Region {
    /// The whole region.
    #[must_use]
    pub fn all(&self) -> Piece {
        self.part(0, self.len)
    }

    /// A part of the region.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Piece {
        Piece { region: self.id, offset, len }
    }
}

/// The program, which Cargo puts one directory above the tests.
fn program() -> std::path::PathBuf {
    let test = std::env::current_exe().expect("the path of this test program");
    let path = test.ancestors().nth(2).map(|dir| dir.join("rnic-peer")).expect("two directories above");
    assert!(path.exists(), "{} is missing: run the tests with cargo test -p rnic-tests", path.display());
    path
}

impl Peer {
    /// A peer with a device at a fresh address.
    #[must_use]
    pub fn start() -> Self {
        Self::open(&Opening::at(crate::fresh_address()))
    }

    /// A peer with a device opened with these options.
    #[must_use]
    pub fn open(opening: &Opening) -> Self {
        Self::open_by(Program::new(program()), opening)
    }

    /// A peer started through `launcher`: a program that finally executes the one in its arguments.
    #[must_use]
    pub fn open_through(mut launcher: Program, opening: &Opening) -> Self {
        launcher.arg(program());
        Self::open_by(launcher, opening)
    }

    fn open_by(mut program: Program, opening: &Opening) -> Self {
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {program:?}: {e}"));
        let commands = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (lines, replies) = channel();
        std::thread::spawn(move || {
            // Ends when the peer exits, or when the receiver of the replies is dropped.
            output.lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        let mut peer = Self { child, commands, replies, address: IpAddr::from([0, 0, 0, 0]) };
        peer.reopen(opening);
        peer
    }

    /// Opens a device, after [`Command::Close`].
    pub fn reopen(&mut self, opening: &Opening) {
        match self.ask(&Command::Open(opening.clone())) {
            Reply::Opened(address) => self.address = address,
            other => panic!("{other:?}"),
        }
    }

    /// The address of its device.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Its process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command to the peer without waiting for the answer.
    pub fn tell(&mut self, command: &Command) {
        let line = serde_json::to_string(command).expect("commands are plain data");
        let pipe = self.commands.as_mut().expect("a peer that is alive");
        writeln!(pipe, "{line}").unwrap_or_else(|e| panic!("the peer is gone: {e}"));
    }

    /// The answer to the oldest unanswered command.
    pub fn answer(&mut self) -> Reply {
        let line = self.replies.recv_timeout(LIMIT).unwrap_or_else(|e| {
            panic!("peer {} at {} gave no answer: {e}; {:?}", self.pid(), self.address, self.child.try_wait())
        });
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("not a reply: {line}: {e}"))
    }

    /// Sends a command to the peer and returns the answer, even if it is an error.
    pub fn try_ask(&mut self, command: &Command) -> Reply {
        self.tell(command);
        self.answer()
    }

    /// Sends a command to the peer and returns the answer; it must succeed.
    pub fn ask(&mut self, command: &Command) -> Reply {
        match self.try_ask(command) {
            Reply::Failed(why) => panic!("peer at {}: {command:?}: {why}", self.address),
            reply => reply,
        }
    }

    /// Creates a queue pair.
    pub fn qp(&mut self) -> (usize, QpAddress) {
        self.qp_of(Sizes::default())
    }

    /// Creates a queue pair with these capacities.
    pub fn qp_of(&mut self, sizes: Sizes) -> (usize, QpAddress) {
        match self.ask(&Command::CreateQp(sizes)) {
            Reply::Qp(id, address) => (id, address),
            other => panic!("{other:?}"),
        }
    }

    /// Connects a queue pair.
    pub fn connect(&mut self, qp: usize, to: &QpAddress, options: Connection) {
        self.ask(&Command::Connect(qp, *to, options));
    }

    /// Registers memory that contains a pattern.
    pub fn register(&mut self, len: usize, seed: u64) -> Region {
        self.region(len, Some(seed))
    }

    /// Registers zeroed memory.
    pub fn register_zeroes(&mut self, len: usize) -> Region {
        self.region(len, None)
    }

    fn region(&mut self, len: usize, seed: Option<u64>) -> Region {
        match self.ask(&Command::Register(len, seed)) {
            Reply::Region(id, place) => Region { id, place, len },
            other => panic!("{other:?}"),
        }
    }

    /// Posts a send work request.
    pub fn post(&mut self, qp: usize, wr_id: u64, verb: Verb, pieces: &[Piece]) {
        self.ask(&Command::Post(qp, wr_id, verb, Data::Pieces(pieces.to_vec())));
    }

    /// Posts a receive.
    pub fn recv(&mut self, qp: usize, wr_id: u64, pieces: &[Piece]) {
        self.ask(&Command::PostRecv(qp, wr_id, pieces.to_vec()));
    }

    /// Polls for `count` completions, for at most half of [`LIMIT`].
    pub fn wait(&mut self, qp: usize, count: usize) -> Vec<Completion> {
        let completions = self.wait_within(qp, count, LIMIT / 2);
        assert_eq!(completions.len(), count, "peer at {}: {completions:?}", self.address);
        completions
    }

    /// Polls for `count` completions; returns those that arrive in time.
    pub fn wait_within(&mut self, qp: usize, count: usize, limit: Duration) -> Vec<Completion> {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        match self.ask(&Command::Wait(qp, count, millis)) {
            Reply::Completions(completions) => completions,
            other => panic!("{other:?}"),
        }
    }

    /// Polls for `count` completions, all of which must be successful.
    pub fn succeed(&mut self, qp: usize, count: usize) -> Vec<Completion> {
        let completions = self.wait(qp, count);
        for wc in &completions {
            assert_eq!(wc.status, "SUCCESS", "peer at {}: {wc:?}", self.address);
        }
        completions
    }

    /// Runs traffic to its end; every message must succeed.
    pub fn run(&mut self, qp: usize, traffic: Traffic) {
        self.tell(&Command::Run(qp, traffic));
        self.ran(traffic.count);
    }

    /// Receives the result of traffic that was started: `count` messages must have succeeded.
    pub fn ran(&mut self, count: u64) {
        match self.answer() {
            Reply::Ran(done, None) => assert_eq!(done, count),
            other => panic!("peer at {}: traffic of {count} messages: {other:?}", self.address),
        }
    }

    /// Checks that the bytes match the pattern starting at `from`.
    pub fn check(&mut self, piece: Piece, seed: u64, from: u64) {
        match self.ask(&Command::Check(piece, seed, from)) {
            Reply::Mismatch(None) => {}
            other => panic!("peer at {}: {piece:?}, pattern {seed}: {other:?}", self.address),
        }
    }

    /// Its counters.
    pub fn counters(&mut self) -> BTreeMap<String, u64> {
        match self.ask(&Command::Counters) {
            Reply::Counters(counters) => counters,
            other => panic!("{other:?}"),
        }
    }

    /// One of its counters.
    pub fn counter(&mut self, name: &str) -> u64 {
        *self.counters().get(name).unwrap_or_else(|| panic!("there is no counter {name}"))
    }

    /// The state of a queue pair.
    pub fn state(&mut self, qp: usize) -> String {
        match self.ask(&Command::State(qp)) {
            Reply::State(state) => state,
            other => panic!("{other:?}"),
        }
    }

    /// Its next `count` events, by name. Fewer only if they do not arrive in time.
    pub fn events(&mut self, count: usize) -> Vec<String> {
        self.events_within(count, LIMIT / 2)
    }

    /// Its next events, by name: at most `count`, and only those that arrive in time.
    pub fn events_within(&mut self, count: usize, limit: Duration) -> Vec<String> {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        match self.ask(&Command::Events(count, millis)) {
            Reply::Events(names) => names,
            other => panic!("{other:?}"),
        }
    }

    /// Kills it with SIGKILL and waits until it has exited.
    pub fn kill(&mut self) {
        // An error means that it has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Creates a queue pair in each of two peers, and connects them.
pub fn connect(a: &mut Peer, b: &mut Peer, options: Connection) -> (usize, usize) {
    let ((left, here), (right, there)) = (a.qp(), b.qp());
    a.connect(left, &there, options);
    b.connect(right, &here, options);
    (left, right)
}

/// Connects an endpoint in this process to a queue pair in a peer.
///
/// # Panics
///
/// Panics if anything fails.
pub fn connect_local(device: &Device, peer: &mut Peer, options: Connection) -> (rnic::RcEnd, usize) {
    let end = rnic::RcEnd::new(device).expect("an end");
    let (qp, address) = peer.qp();
    peer.connect(qp, &end.qp.address(), options);
    end.qp.connect(&address, &options.into()).expect("connects");
    (end, qp)
}

/// A region of this process with all access rights that contains a pattern.
///
/// # Panics
///
/// Panics if it cannot be registered.
#[must_use]
pub fn register_pattern(pd: &ProtectionDomain, len: usize, seed: u64) -> MemoryRegion {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    pd.register_bytes(&crate::pattern::bytes(seed, len), access).expect("memory")
}
