//! Traces of a port over time: samples of its counters and of its queue pairs, and what limits them.
//!
//! [`Device::sample`](crate::Device::sample) takes one sample. A [`Recorder`] writes samples to a file: in virtual
//! time the samples passed to it, on the network one per interval, from its own thread. A [`Reader`] reads the file,
//! and `rnic plot` draws it.
//!
//! # The file
//!
//! JSON lines. The first is the [`Header`]:
//!
//! ```json
//! {"rnic_trace":1,"title":"RC RDMA WRITE bandwidth","device":"127.0.0.1","started":1767225600000000,"cc":"dcqcn paper"}
//! ```
//!
//! Each further line is a [`Sample`]: `t` in nanoseconds since `started`, then `port`, `qps` and `lanes`, whose keys
//! are the names of the fields here.
//!
//! ```json
//! {"t":1000000,"port":{"tx_bytes":4096,"tx_packets":1},"qps":[{"qpn":17,"label":"127.0.0.2","sent_bytes":4096}]}
//! ```
//!
//! All counters are totals since the device was opened, so a lost line costs only resolution; subtract consecutive
//! samples to get a rate. Values that are 0, empty or unknown are omitted. Unknown keys are ignored, so that later
//! versions can add keys. For tables in Python: `pandas.read_json(FILE, lines=True)`, then `pandas.json_normalize` of
//! a column.

mod read;
mod recorder;
pub(crate) mod sample;
mod setup;
#[cfg(test)]
mod tests;

pub use read::{Reader, Trace, TraceError};
pub use recorder::Recorder;

use serde::{Deserialize, Serialize};
use time::Duration;

/// The version of the format, the value of the key `rnic_trace`.
pub const VERSION: u32 = 1;

/// The most lanes in a sample.
pub const MAX_LANES: usize = 64;

/// The most queue pairs in a sample: the first ones of the table. The counters of the port cover all queue pairs.
pub const MAX_QPS: usize = 256;

/// The first line of a trace, which describes the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format; [`VERSION`] for what this library writes.
    pub rnic_trace: u32,
    /// A short description of the experiment.
    #[serde(default, skip_serializing_if = "is_default")]
    pub title: String,
    /// The device, by address or name.
    #[serde(default, skip_serializing_if = "is_default")]
    pub device: String,
    /// When the trace began, since 1970-01-01 UTC on the network and since the simulation began in virtual time; in
    /// microseconds in the file. It aligns the traces of one run.
    #[serde(default, with = "micros")]
    pub started: Duration,
    /// The link that the port emulates, if any.
    #[serde(default, skip_serializing_if = "is_default")]
    pub link: Option<LinkHeader>,
    /// Congestion control, in short: the algorithm and its preset.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cc: Option<String>,
    /// The command line.
    #[serde(default, skip_serializing_if = "is_default")]
    pub command: Option<String>,
}

impl Header {
    /// An empty header of this version.
    #[must_use]
    pub fn new() -> Self {
        Self { rnic_trace: VERSION, ..Self::default() }
    }

    /// A header of a trace that begins at this time, since 1970-01-01 UTC or since the simulation began.
    #[must_use]
    pub fn at(started: Duration) -> Self {
        Self { started, ..Self::new() }
    }
}

/// The link, in the header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkHeader {
    /// A short description for people.
    #[serde(default, skip_serializing_if = "is_default")]
    pub name: String,
    /// Bits per second.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rate: Option<u64>,
    /// Bytes of the port's buffer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub buffer: Option<u64>,
    /// Bytes of queue above which packets are marked with some probability.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kmin: Option<u64>,
    /// Bytes of queue above which all packets are marked.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kmax: Option<u64>,
}

/// The counters and the state of a port at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Since the trace began; `t`, in nanoseconds, in the file.
    #[serde(rename = "t", with = "nanos")]
    pub at: Duration,
    /// The port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub port: PortSample,
    /// Its queue pairs, at most [`MAX_QPS`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub qps: Vec<QpSample>,
    /// Virtual lanes, or priorities that were paused, towards each peer; at most [`MAX_LANES`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub lanes: Vec<LaneSample>,
}

/// Counters of a port, all of them totals, and its queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortSample {
    /// Bytes sent, BTH to ICRC.
    #[serde(skip_serializing_if = "is_default")]
    pub tx_bytes: u64,
    /// Bytes received, BTH to ICRC.
    #[serde(skip_serializing_if = "is_default")]
    pub rx_bytes: u64,
    /// Packets sent.
    #[serde(skip_serializing_if = "is_default")]
    pub tx_packets: u64,
    /// Packets received, including those that were dropped later.
    #[serde(skip_serializing_if = "is_default")]
    pub rx_packets: u64,
    /// Packets that arrived marked "congestion experienced" (mlx5: `np_ecn_marked_roce_packets`).
    #[serde(skip_serializing_if = "is_default")]
    pub rx_ce_packets: u64,
    /// Congestion notification packets sent.
    #[serde(skip_serializing_if = "is_default")]
    pub np_cnp_sent: u64,
    /// Congestion notification packets received that slowed a queue pair down.
    #[serde(skip_serializing_if = "is_default")]
    pub rp_cnp_handled: u64,
    /// Congestion notification packets received that had no effect.
    #[serde(skip_serializing_if = "is_default")]
    pub rp_cnp_ignored: u64,
    /// Retransmitted packets of all queue pairs.
    #[serde(skip_serializing_if = "is_default")]
    pub retransmitted_packets: u64,
    /// Packets received and dropped for any reason, by the port or before it by the kernel.
    #[serde(skip_serializing_if = "is_default")]
    pub dropped_packets: u64,
    /// Bytes that wait in the emulated port now.
    #[serde(skip_serializing_if = "is_default")]
    pub queue_bytes: Option<u64>,
    /// The most bytes that waited in the emulated port since the previous sample.
    #[serde(skip_serializing_if = "is_default")]
    pub queue_max: Option<u64>,
    /// Packets that the emulated port marked "congestion experienced".
    #[serde(skip_serializing_if = "is_default")]
    pub link_marked: u64,
    /// Packets that the emulated port dropped because its buffer was full.
    #[serde(skip_serializing_if = "is_default")]
    pub link_dropped: u64,
}

/// One queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QpSample {
    /// Its number.
    pub qpn: u32,
    /// The peer, if it is connected.
    #[serde(skip_serializing_if = "is_default")]
    pub label: Option<String>,
    /// The rate that congestion control allows, in bits per second.
    #[serde(skip_serializing_if = "is_default")]
    pub rate: Option<u64>,
    /// The rate to which congestion control returns, in bits per second.
    #[serde(skip_serializing_if = "is_default")]
    pub target_rate: Option<u64>,
    /// The estimate of congestion, 0 to 1.
    #[serde(skip_serializing_if = "is_default")]
    pub alpha: Option<f64>,
    /// Payload bytes sent for the first time, without retransmissions.
    #[serde(skip_serializing_if = "is_default")]
    pub sent_bytes: u64,
    /// Payload bytes received, as the queue pair counts them (`rcvd_bytes`), including duplicates.
    #[serde(skip_serializing_if = "is_default")]
    pub received_bytes: u64,
}

/// A virtual lane, or a priority, towards one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneSample {
    /// The peer's address.
    pub peer: String,
    /// The virtual lane or the priority.
    #[serde(skip_serializing_if = "is_default")]
    pub vl: u8,
    /// Remaining credit in blocks, of the size that the ends agreed on; `None` if the link has no credits.
    #[serde(skip_serializing_if = "is_default")]
    pub credits: Option<u64>,
    /// How often a packet had to wait for credits.
    #[serde(skip_serializing_if = "is_default")]
    pub stalls: u64,
    /// The total time of these waits, including a current one; `stalled`, in nanoseconds, in the file.
    #[serde(with = "nanos", skip_serializing_if = "is_default")]
    pub stalled: Duration,
    /// The total time for which the peer paused the lane, including a current pause; in nanoseconds in the file.
    #[serde(with = "nanos", skip_serializing_if = "is_default")]
    pub paused: Duration,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Durations as whole nanoseconds.
mod nanos {
    use serde::{Deserialize, Deserializer, Serializer};
    use time::Duration;

    pub(super) fn serialize<S: Serializer>(value: &Duration, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_u64(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }
}

/// Durations as whole microseconds: those since 1970 fit the 53 bits that most JSON readers keep.
mod micros {
    use serde::{Deserialize, Deserializer, Serializer};
    use time::Duration;

    pub(super) fn serialize<S: Serializer>(value: &Duration, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_u64(u64::try_from(value.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_micros)
    }
}
