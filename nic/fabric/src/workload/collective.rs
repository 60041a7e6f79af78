//! Collective operations in scenario files: hosts that compute one result together.

use super::config::{Common, WorkloadError};
use crate::words;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use rnic_collectives::{Algorithm, Collective, Element, Plan, Settings, peers};
use serde::{Deserialize, Serialize};
use time::Duration;

/// Which host is which rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// In the order of the topology: those of a leaf are neighbours.
    #[default]
    Leaf,
    /// By chance.
    Random,
}

/// An operation in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveConfig {
    /// What is computed: `all-reduce`, `all-gather`, `reduce-scatter` or `all-to-all`.
    pub collective: Collective,
    /// How: `ring`, `tree`, `recursive-doubling` or `halving-doubling`; an all-to-all is `pairwise`. With
    /// `in-network` the switches do it, if they have `reduction`; otherwise the hosts, by `halving-doubling`.
    pub algorithm: Algorithm,
    /// The bytes of the vector.
    #[serde(with = "words::size")]
    pub bytes: u64,
    /// The numbers.
    #[serde(default)]
    pub element: Element,
    /// How many hosts take part: the first ones. The default is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<usize>,
    /// Which host is which rank.
    #[serde(default)]
    pub placement: Placement,
    /// The most bytes of a message.
    #[serde(default = "piece", with = "words::size")]
    pub piece: u64,
    /// Messages that a neighbour may send ahead.
    #[serde(default = "slots")]
    pub slots: u16,
    /// Blocks that a host has under way, if switches add.
    #[serde(default = "window")]
    pub window: u16,
    /// After what time a host sends a block again, if switches add.
    #[serde(default = "retry_after", with = "words::duration")]
    pub retry_after: Duration,
    /// Its name in reports. The default is that of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

fn piece() -> u64 {
    Settings::default().piece as u64
}

fn slots() -> u16 {
    Settings::default().slots
}

/// 32 packets of 4 KiB are more than is on its way in 8 us at 100 Gb/s.
const fn window() -> u16 {
    32
}

/// Some ten times as long as a window takes.
const fn retry_after() -> Duration {
    Duration::from_micros(100)
}

/// Hosts that compute together.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name in reports.
    pub name: String,
    /// The hosts, by rank.
    pub hosts: Vec<usize>,
    /// What they compute.
    pub plan: Plan,
    /// How messages travel.
    pub settings: Settings,
    /// Blocks under way, and after what time one is sent again, if switches add.
    pub window: (u16, Duration),
    /// How they are carried. What is said there of messages and operations does not count.
    pub common: Common,
    /// From which the entropy for equal-cost paths follows.
    pub seed: u64,
}

impl CollectiveConfig {
    pub(super) fn group(
        &self,
        there: usize,
        common: &Common,
        lots: &mut ChaCha8Rng,
    ) -> Result<Group, WorkloadError> {
        let range = |what, value, ok, advice| {
            if ok { Ok(()) } else { Err(WorkloadError::Range { what, value, advice }) }
        };
        let count = self.hosts.unwrap_or(there);
        range(
            "hosts",
            count as u64,
            count <= there && count > 1,
            "write 2, or more, up to the hosts there are",
        )?;
        let size = self.element.size() as u64;
        range(
            "bytes",
            self.bytes,
            self.bytes.is_multiple_of(size),
            "write a multiple of the element's size",
        )?;
        range("bytes", self.bytes, self.bytes <= 1 << 30, "write up to 1 GiB")?;
        range("piece", self.piece, (8..=1 << 30).contains(&self.piece), "write 8 to 1 GiB")?;
        range("slots", self.slots.into(), (2..=1024).contains(&self.slots), "write 2 to 1024")?;
        let of = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let plan = Plan {
            collective: self.collective,
            algorithm: self.algorithm,
            element: self.element,
            count: of(self.bytes / size),
        };
        range("window", self.window.into(), (1..=4096).contains(&self.window), "write 1 to 4096")?;
        // Where switches do not add, hosts do.
        peers(&by_hosts(&plan), 0, count)?;
        let mut hosts: Vec<usize> = (0..count).collect();
        if self.placement == Placement::Random {
            // Fisher and Yates.
            for last in (1..count).rev() {
                hosts.swap(last, (lots.next_u64() % (last as u64 + 1)) as usize);
            }
        }
        Ok(Group {
            name: self.name.clone().unwrap_or_else(|| self.collective.name().to_owned()),
            hosts,
            plan,
            window: (self.window, self.retry_after),
            settings: Settings { piece: of(self.piece), slots: self.slots, ..Settings::default() },
            common: common.clone(),
            seed: lots.next_u64(),
        })
    }
}

/// The same by an algorithm that needs no help of switches.
pub(crate) const fn by_hosts(plan: &Plan) -> Plan {
    match plan.algorithm {
        Algorithm::InNetwork => Plan { algorithm: Algorithm::HalvingDoubling, ..*plan },
        _ => *plan,
    }
}
