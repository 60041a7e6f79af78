//! The protocol between a test and its peers: one JSON line per command, and one per reply.

use rnic::{Access, ConnectOptions, DeviceConfig, Mtu, QpAddress, WorkCompletion};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The options with which a peer opens its device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Opening {
    /// The address.
    pub address: Option<IpAddr>,
    /// As [`DeviceConfig::offload`].
    pub offload: Option<bool>,
    /// As [`DeviceConfig::mtu`], in bytes.
    pub mtu: Option<u32>,
    /// As [`DeviceConfig::faults`].
    pub faults: Vec<String>,
    /// As [`DeviceConfig::fault_seed`].
    pub fault_seed: u64,
    /// As [`DeviceConfig::link`]; empty for a transparent link.
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
            address: self.address.map(Into::into),
            offload: self.offload,
            mtu: self.mtu.and_then(Mtu::from_bytes),
            faults: self.faults.clone(),
            fault_seed: self.fault_seed,
            link: self.link.parse()?,
            ..DeviceConfig::default()
        })
    }
}

/// The connection options that tests set.
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
    /// A connection that gives up on a dead peer quickly: after 4 times 16.8 ms.
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

/// The capacities of a queue pair.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sizes {
    /// Entries of the send queue.
    pub send_wr: u32,
    /// Entries of the receive queue.
    pub recv_wr: u32,
    /// Scatter/gather elements per work request, in both queues.
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
    /// Number of the region.
    pub region: usize,
    /// Offset in it.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// An address in the memory of the other endpoint.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The address.
    pub addr: u64,
    /// The remote key.
    pub rkey: u32,
}

impl Place {
    /// The address `offset` bytes further on.
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

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Verb {
    /// SEND, optionally with immediate data.
    Send(Option<u32>),
    /// RDMA WRITE, optionally with immediate data.
    Write(Place, Option<u32>),
    /// RDMA READ.
    Read(Place),
}

/// The local data of a send work request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Data {
    /// In regions.
    Pieces(Vec<Piece>),
    /// Inline: this many bytes of the pattern with this seed.
    Inline(u64, usize),
}

/// A stream of `count` messages of `size` bytes, with `depth` outstanding. Message `i` uses the bytes at `i % slots
/// * size`, on both sides.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// The operation; its address is that of slot 0.
    pub verb: Verb,
    /// The local region.
    pub region: usize,
    /// Length of a message in bytes.
    pub size: usize,
    /// Number of messages.
    pub count: u64,
    /// Number of messages outstanding.
    pub depth: u64,
    /// Number of slots used in turn.
    pub slots: u64,
}

/// A command to a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Open a device. This is the first command, and may follow a [`Command::Close`].
    Open(Opening),
    /// Destroy everything and close the device.
    Close,
    /// Create a queue pair with a completion queue.
    CreateQp(Sizes),
    /// Connect a queue pair.
    Connect(usize, QpAddress, Connection),
    /// Destroy a queue pair.
    DestroyQp(usize),
    /// Register memory of this length, with the pattern of this seed or zeroed.
    Register(usize, Option<u64>),
    /// Deregister memory.
    Deregister(usize),
    /// Unmap pages of a region behind the device's back.
    Unmap(Piece),
    /// Post a send work request: queue pair, ID, operation, local data.
    Post(usize, u64, Verb, Data),
    /// Post a receive.
    PostRecv(usize, u64, Vec<Piece>),
    /// Poll until this many completions have arrived, or this many milliseconds have passed.
    Wait(usize, usize, u64),
    /// Run traffic to its end or to the first failure.
    Run(usize, Traffic),
    /// Compare part of a region with the pattern of this seed from this offset.
    Check(Piece, u64, u64),
    /// Read all counters.
    Counters,
    /// Read the state of a queue pair.
    State(usize),
    /// Sleep until this many asynchronous events have arrived, or this many milliseconds have passed.
    Events(usize, u64),
    /// Query the port.
    Port,
    /// Close the receiving socket behind the device's back.
    CloseSocket,
    /// READ 8 bytes this many times, a millisecond apart; reports how long each took.
    Probe(usize, Place, usize, u64),
    /// Poll an empty completion queue for this many milliseconds.
    Poll(usize, u64),
    /// Report the processor time of the library's background threads.
    BackgroundTime,
    /// Fork; the child tries everything it inherited, and optionally stays afterwards.
    Fork(bool),
    /// Wait for the forked child to exit.
    Reap,
}

/// A peer's reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done, without further data.
    Done,
    /// The device is open at this address.
    Opened(IpAddr),
    /// A queue pair: its number in the peer, and what the other endpoint needs to connect.
    Qp(usize, QpAddress),
    /// A region: its number in the peer, and its address and key.
    Region(usize, Place),
    /// Completions, oldest first.
    Completions(Vec<Completion>),
    /// Traffic ended: the number of successful messages, and the completion that failed.
    Ran(u64, Option<Completion>),
    /// The first difference, if any.
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
    /// Problems that the forked child found; empty if there were none.
    Child(Vec<String>),
    /// How the forked child exited.
    Reaped(String),
    /// The command failed.
    Failed(String),
}

/// A work completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// The ID given in the work request.
    pub wr_id: u64,
    /// Name of the status.
    pub status: String,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Whether it completes a receive.
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

/// The access rights of all regions of a peer.
pub(crate) fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}
