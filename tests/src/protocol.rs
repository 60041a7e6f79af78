//! What a test and its peers say to each other: one JSON line a command, one a reply.

use rnic::{Access, ConnectOptions, DeviceConfig, Mtu, QpAddress, WorkCompletion};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// How a peer opens its device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Opening {
    /// Where.
    pub address: Option<IpAddr>,
    /// As [`DeviceConfig::offload`].
    pub offload: Option<bool>,
    /// As [`DeviceConfig::mtu`], in bytes.
    pub mtu: Option<u32>,
    /// As [`DeviceConfig::faults`].
    pub faults: Vec<String>,
    /// As [`DeviceConfig::fault_seed`].
    pub fault_seed: u64,
    /// As [`DeviceConfig::link`]; nothing for a link that does nothing.
    #[serde(default)]
    pub link: String,
}

impl Opening {
    /// A device at this address.
    #[must_use]
    pub fn at(address: IpAddr) -> Self {
        Self { address: Some(address), ..Self::default() }
    }

    pub(crate) fn config(&self) -> Result<DeviceConfig, rnic::link::LinkConfigError> {
        Ok(DeviceConfig {
            address: self.address,
            offload: self.offload,
            mtu: self.mtu.and_then(Mtu::from_bytes),
            faults: self.faults.clone(),
            fault_seed: self.fault_seed,
            link: self.link.parse()?,
            ..DeviceConfig::default()
        })
    }
}

/// The options of a connection that tests choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Path MTU in bytes; `None` for the largest.
    pub mtu: Option<u32>,
    /// As [`ConnectOptions::timeout`].
    pub timeout: u8,
    /// As [`ConnectOptions::retry_cnt`].
    pub retry_cnt: u8,
}

impl Connection {
    /// A connection that gives up on a dead peer soon: after 4 times 16.8 ms.
    #[must_use]
    pub fn brief() -> Self {
        Self { timeout: 12, retry_cnt: 3, ..Self::default() }
    }

    /// How long after its last answer a peer is given up: `retry_cnt` + 1 timeouts of 4.096 us x 2^timeout (IBTA
    /// 9.7.6.1.3).
    #[must_use]
    pub fn patience(&self) -> Duration {
        Duration::from_nanos(4096 << self.timeout) * (u32::from(self.retry_cnt) + 1)
    }
}

impl Default for Connection {
    fn default() -> Self {
        let options = ConnectOptions::default();
        Self { mtu: None, timeout: options.timeout, retry_cnt: options.retry_cnt }
    }
}

impl From<Connection> for ConnectOptions {
    fn from(c: Connection) -> Self {
        Self {
            mtu: c.mtu.and_then(Mtu::from_bytes),
            timeout: c.timeout,
            retry_cnt: c.retry_cnt,
            ..Self::default()
        }
    }
}

/// The sizes of a queue pair.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sizes {
    /// Entries of the send queue.
    pub send_wr: u32,
    /// Entries of the receive queue.
    pub recv_wr: u32,
    /// Scatter/gather elements of either.
    pub sge: u32,
    /// Entries of its completion queue.
    pub cqe: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { send_wr: 128, recv_wr: 128, sge: 16, cqe: 1024 }
    }
}

/// A part of one of the peer's regions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Piece {
    /// Which region.
    pub region: usize,
    /// Where in it.
    pub offset: usize,
    /// How much.
    pub len: usize,
}

/// A place in the memory of the other end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Address there.
    pub addr: u64,
    /// Key there.
    pub rkey: u32,
}

impl Place {
    /// The place `offset` bytes further on.
    #[must_use]
    pub fn plus(self, offset: u64) -> Self {
        Self { addr: self.addr + offset, ..self }
    }
}

impl From<Place> for rnic::Remote {
    fn from(p: Place) -> Self {
        Self { addr: p.addr, rkey: p.rkey }
    }
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Verb {
    /// SEND, with immediate data or not.
    Send(Option<u32>),
    /// RDMA WRITE, with immediate data or not.
    Write(Place, Option<u32>),
    /// RDMA READ.
    Read(Place),
}

/// Where the bytes of a send work request are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Data {
    /// In regions.
    Pieces(Vec<Piece>),
    /// In the request: so many bytes of the pattern with this seed.
    Inline(u64, usize),
}

/// Many messages, one after the other: `count` of `size` bytes, `depth` outstanding. Message `i` takes the bytes at
/// `i % slots * size`, here and there.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// What they do; a place is that of slot 0.
    pub verb: Verb,
    /// The region here.
    pub region: usize,
    /// Bytes of a message.
    pub size: usize,
    /// Messages.
    pub count: u64,
    /// Outstanding at a time.
    pub depth: u64,
    /// Places to take turns with.
    pub slots: u64,
}

/// What a peer is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Open a device. Said first, and again after a [`Command::Close`].
    Open(Opening),
    /// Destroy everything and close the device.
    Close,
    /// Create a queue pair with a completion queue.
    CreateQp(Sizes),
    /// Connect a queue pair.
    Connect(usize, QpAddress, Connection),
    /// Destroy a queue pair.
    DestroyQp(usize),
    /// Register memory: so many bytes of the pattern with this seed, or zeroes.
    Register(usize, Option<u64>),
    /// Take memory away from its keys.
    Deregister(usize),
    /// Take pages of a region away behind the device's back.
    Unmap(Piece),
    /// Post a send work request: queue pair, number, what, from or to where.
    Post(usize, u64, Verb, Data),
    /// Post a receive.
    PostRecv(usize, u64, Vec<Piece>),
    /// Poll until there are so many completions, or so many milliseconds have passed.
    Wait(usize, usize, u64),
    /// Run traffic to its end or to the first failure.
    Run(usize, Traffic),
    /// Compare part of a region with the pattern of this seed from this offset.
    Check(Piece, u64, u64),
    /// Read all counters.
    Counters,
    /// Read the state of a queue pair.
    State(usize),
    /// Sleep until so many asynchronous events came, or so many milliseconds have passed.
    Events(usize, u64),
    /// Look at the port.
    Port,
    /// Close the receiving socket behind the device's back.
    CloseSocket,
    /// READ 8 bytes again and again for so many milliseconds, a millisecond apart; tells how long each took.
    Probe(usize, Place, usize, u64),
    /// Poll an empty completion queue for so many milliseconds.
    Poll(usize, u64),
    /// Tell how much processor time the library's background threads took.
    BackgroundTime,
    /// Fork; the child tries what it inherited, and stays after that or not.
    Fork(bool),
    /// Wait for the forked child to end.
    Reap,
}

/// What a peer answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done; nothing to tell.
    Done,
    /// The device is open at this address.
    Opened(IpAddr),
    /// A queue pair: its number in the peer, and what the other end has to know.
    Qp(usize, QpAddress),
    /// A region: its number in the peer, and its place.
    Region(usize, Place),
    /// Completions, oldest first.
    Completions(Vec<Completion>),
    /// Traffic ended: messages that succeeded, and the completion that did not.
    Ran(u64, Option<Completion>),
    /// Where the bytes differ, if they do.
    Mismatch(Option<usize>),
    /// All counters by name.
    Counters(BTreeMap<String, u64>),
    /// The state of a queue pair.
    State(String),
    /// Asynchronous events by name, oldest first.
    Events(Vec<String>),
    /// The port: whether it is active, its path MTU in bytes, and its GIDs with the names of their interfaces.
    Port(bool, u32, Vec<(String, Option<String>)>),
    /// How long each READ took, in microseconds.
    Probed(Vec<u64>),
    /// Processor time in milliseconds.
    Time(u64),
    /// What the forked child found; empty if all was as it should be.
    Child(Vec<String>),
    /// How the forked child ended.
    Reaped(String),
    /// It did not work.
    Failed(String),
}

/// A work completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// As posted.
    pub wr_id: u64,
    /// Name of the status.
    pub status: String,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Whether it is of a receive.
    pub is_recv: bool,
}

impl From<WorkCompletion> for Completion {
    fn from(wc: WorkCompletion) -> Self {
        Self {
            wr_id: wc.wr_id,
            status: wc.status.name().to_owned(),
            byte_len: wc.byte_len,
            imm: wc.imm(),
            is_recv: wc.opcode as u8 >= rnic::WcOpcode::Recv as u8,
        }
    }
}

/// The rights that all regions of a peer give.
pub(crate) fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}
