//! Who sends what to whom, and when.

mod collective;
mod config;
mod sizes;
mod trace;

pub(crate) use collective::by_hosts;
pub use collective::{CollectiveConfig, Group, Placement};
pub use config::{Common, FlowConfig, MOST_FLOWS, Pattern, Workload, WorkloadError};
pub use sizes::{Sizes, UnknownSizes};
pub use trace::Format;

use serde::{Deserialize, Serialize};
use time::Duration;

/// The operation by which the bytes of a flow travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// RDMA WRITE.
    #[default]
    Write,
    /// SEND, into receives that the other side has posted.
    Send,
    /// RDMA READ: the data flow from `dst` to `src`.
    Read,
}

/// The service of the queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// When a flow begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// At this time.
    At(Duration),
    /// So long after some of other flows were completed.
    After {
        /// The numbers of the other flows.
        flows: Vec<usize>,
        /// How many of them.
        needed: u32,
        /// The time between.
        delay: Duration,
    },
}

/// A flow: a number of bytes from one queue pair to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Its name in reports; several flows may share one.
    pub name: String,
    /// The host that posts the work requests.
    pub src: usize,
    /// The other host.
    pub dst: usize,
    /// Its bytes. `None`: it goes on until the run ends.
    pub bytes: Option<u64>,
    /// When it begins.
    pub start: Start,
    /// How it is carried.
    pub common: Common,
    /// Entropy for equal-cost paths.
    pub label: u32,
}
