//! A group of hosts that compute together: a communicator at each of them.

use super::RunError;
use super::host::HostEnd;
use crate::network::Shared;
use crate::workload::{Group, by_hosts};
use rnic_collectives::{
    Algorithm, Collective, CollectiveError, Communicator, Counts, Element, InNetwork, InNetworkSettings,
    Plan, peers,
};
use rnic_core::{ConnectOptions, Error, Gid, MemoryRegion};
use std::net::Ipv4Addr;
use time::Duration;

/// How often a host sends a block again: with every second packet lost, one block of a million is still without a result.
const RETRIES: u32 = 64;

/// What has become of a group.
#[derive(Clone, Debug)]
pub struct GroupState {
    /// The group.
    pub group: Group,
    /// When it began.
    pub started: Option<Duration>,
    /// When the last rank was done.
    pub finished: Option<Duration>,
    /// By rank: what was sent.
    pub sent: Vec<Counts>,
    /// Whether all ranks have the right result.
    pub verified: bool,
    /// Blocks that were sent again, if switches add.
    pub repeated: u64,
    /// Why hosts added, if switches should have.
    pub fell_back: Option<String>,
}

/// A rank: hosts compute, or switches.
enum Rank {
    Host(Communicator),
    Network(InNetwork),
}

impl Rank {
    const fn data(&self) -> &MemoryRegion {
        match self {
            Self::Host(rank) => rank.data(),
            Self::Network(rank) => rank.data(),
        }
    }

    const fn counts(&self) -> Counts {
        match self {
            Self::Host(rank) => rank.counts(),
            Self::Network(rank) => rank.counts(),
        }
    }

    fn start(&mut self, plan: &Plan, now: Duration) -> Result<(), CollectiveError> {
        match self {
            Self::Host(rank) => rank.start(plan, now),
            Self::Network(rank) => rank.start(plan, now),
        }
    }

    fn poll(&mut self, now: Duration) -> Result<bool, CollectiveError> {
        match self {
            Self::Host(rank) => rank.poll(now),
            Self::Network(rank) => rank.poll(now),
        }
    }

    const fn repeated(&self) -> u64 {
        match self {
            Self::Host(_) => 0,
            Self::Network(rank) => rank.repeated(),
        }
    }

    fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Host(rank) => rank.deadline(),
            Self::Network(rank) => rank.deadline(),
        }
    }
}

/// The communicators of a group.
pub(super) struct GroupEnds {
    group: Group,
    started: Option<Duration>,
    finished: Option<Duration>,
    ranks: Vec<Rank>,
    /// By rank: when it has to be polled at the latest.
    deadlines: Vec<Option<Duration>>,
    is_done: Vec<bool>,
    fell_back: Option<String>,
    left: usize,
    verified: bool,
}

/// A number of a rank's vector: all bits differ from rank to rank and place to place.
const fn input(rank: usize, index: usize) -> u64 {
    let mixed = (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index as u64;
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// The bytes of a number.
fn put(element: Element, value: u64, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&value.to_le_bytes()[..element.size()]);
}

/// What a rank begins with.
fn vector(plan: &Plan, rank: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(plan.vector());
    (0..plan.count).for_each(|index| put(plan.element, input(rank, index), &mut bytes));
    bytes
}

/// What all ranks have together in the end, computed directly: sums, or the parts of all. Nothing for an all-to-all, in which
/// each rank gets something else.
fn result(plan: &Plan, ranks: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(plan.vector());
    match plan.collective {
        Collective::AllReduce | Collective::ReduceScatter => {
            for index in 0..plan.count {
                let sum = (0..ranks).fold(0_u64, |sum, rank| sum.wrapping_add(input(rank, index)));
                // The lower bits of a sum follow from the lower bits of its terms.
                put(plan.element, sum, &mut bytes);
            }
        }
        Collective::AllGather => {
            for from in 0..ranks {
                let part = plan.count * from / ranks..plan.count * (from + 1) / ranks;
                part.for_each(|index| put(plan.element, input(from, index), &mut bytes));
            }
        }
        Collective::AllToAll => {}
    }
    bytes
}

impl GroupEnds {
    pub(super) const fn new(group: Group) -> Self {
        Self {
            group,
            started: None,
            finished: None,
            ranks: Vec::new(),
            deadlines: Vec::new(),
            is_done: Vec::new(),
            fell_back: None,
            left: 0,
            verified: false,
        }
    }

    fn failed(&self) -> impl Fn(CollectiveError) -> RunError + use<> {
        let name = self.group.name.clone();
        move |why| RunError::Collective { name: name.clone(), why }
    }

    pub(super) const fn has_begun(&self) -> bool {
        self.started.is_some()
    }

    /// When it has to be looked at, if no packet comes.
    pub(super) fn wakes(&self) -> Option<Duration> {
        if !self.has_begun() {
            return Some(self.group.common.start);
        }
        self.deadlines.iter().flatten().min().copied()
    }

    /// Polls the ranks whose time has come. Whether the last one is done now.
    pub(super) fn poll_due(&mut self, now: Duration) -> Result<bool, RunError> {
        let mut ends = false;
        for rank in 0..self.deadlines.len() {
            if self.deadlines[rank].is_some_and(|deadline| deadline <= now) {
                ends |= self.poll(rank, now)?;
            }
        }
        Ok(ends)
    }

    /// Begins, if its time has come: creates the queue pairs, connects them, and starts all ranks. Whether it did.
    pub(super) fn begin(
        &mut self,
        fabric: &Shared,
        hosts: &[HostEnd],
        number: u32,
        now: Duration,
    ) -> Result<bool, RunError> {
        if self.has_begun() || self.group.common.start > now {
            return Ok(false);
        }
        self.started = Some(now);
        let failed = self.failed();
        if self.group.plan.algorithm != Algorithm::InNetwork || !self.joins(fabric, number) {
            self.connect(hosts).map_err(&failed)?;
        } else {
            self.attach(hosts, number).map_err(&failed)?;
        }
        self.left = self.ranks.len();
        self.is_done = vec![false; self.left];
        let plan = by_whom(&self.group.plan, self.fell_back.is_some());
        for rank in &mut self.ranks {
            rank.start(&plan, now).map_err(&failed)?;
            self.deadlines.push(rank.deadline());
        }
        Ok(true)
    }

    /// Whether the switches add for the group. If not, the hosts do.
    fn joins(&mut self, fabric: &Shared, number: u32) -> bool {
        let slots = 2 * u32::from(self.group.window.0);
        let joined = fabric.lock().join_reduction(address(number).into(), number, &self.group.hosts, slots);
        self.fell_back = joined.err().map(|why| why.to_string());
        self.fell_back.is_none()
    }

    /// Creates the ranks of a group for which switches add.
    fn attach(&mut self, hosts: &[HostEnd], number: u32) -> Result<(), CollectiveError> {
        let Group { plan, common, window: (window, timeout), .. } = &self.group;
        for (rank, host) in self.group.hosts.iter().enumerate() {
            let Some(host) = hosts.get(*host) else { continue };
            let settings = InNetworkSettings {
                group: Gid::from(address(number)),
                number,
                packet: host.device.port_attr().active_mtu.bytes() as usize,
                window: *window,
                timeout: *timeout,
                retries: RETRIES,
                traffic_class: common.priority << 5,
            };
            let ours = InNetwork::new(&host.pd, plan.vector(), &settings)?;
            ours.data().write_at(0, &vector(plan, rank))?;
            self.ranks.push(Rank::Network(ours));
        }
        Ok(())
    }

    /// Creates the ranks of a group that computes by itself, and connects them.
    fn connect(&mut self, hosts: &[HostEnd]) -> Result<(), CollectiveError> {
        let Group { plan, common, settings, .. } = &self.group;
        let plan = &by_hosts(plan);
        let mut all = Vec::new();
        let ranks = self.group.hosts.len();
        let mut neighbours = Vec::with_capacity(ranks);
        for (rank, host) in self.group.hosts.iter().enumerate() {
            let Some(host) = hosts.get(*host) else { continue };
            let of = peers(plan, rank, ranks)?;
            let bytes = plan.bytes(rank, ranks);
            let ours = Communicator::in_domain(&host.pd, rank, ranks, &of, bytes, settings)?;
            ours.data().write_at(0, &vector(plan, rank))?;
            all.push(ours);
            neighbours.push(of);
        }
        for (rank, of) in neighbours.iter().enumerate() {
            let (timeout, retry_cnt) = hosts[self.group.hosts[rank]].options;
            for peer in of.iter().map(|peer| peer.rank) {
                let way = (rank as u64) << 32 | peer as u64;
                let options = ConnectOptions {
                    timeout,
                    retry_cnt,
                    traffic_class: common.priority << 5,
                    flow_label: label(self.group.seed, way),
                    hop_limit: common.hop_limit,
                    ..ConnectOptions::default()
                };
                let offer = all[peer].offer(rank)?;
                all[rank].connect(&offer, &options)?;
            }
        }
        self.ranks = all.into_iter().map(Rank::Host).collect();
        Ok(())
    }

    /// Something happened at the host of a rank. Whether the last rank is done now.
    pub(super) fn poll(&mut self, rank: usize, now: Duration) -> Result<bool, RunError> {
        let failed = self.failed();
        let Some(ours) = self.ranks.get_mut(rank) else { return Ok(false) };
        let is_done = ours.poll(now).map_err(&failed)?;
        self.deadlines[rank] = ours.deadline();
        if !is_done || std::mem::replace(&mut self.is_done[rank], true) {
            return Ok(false);
        }
        self.left -= 1;
        if self.left > 0 {
            return Ok(false);
        }
        self.finished = Some(now);
        self.verified = self.verify().map_err(|why| failed(why.into()))?;
        Ok(true)
    }

    /// Whether every rank has what it should have.
    fn verify(&self) -> Result<bool, Error> {
        let (plan, ranks) = (&self.group.plan, self.ranks.len());
        let all = result(plan, ranks);
        for (rank, ours) in self.ranks.iter().enumerate() {
            let own = plan.count * rank / ranks..plan.count * (rank + 1) / ranks;
            let size = plan.element.size();
            let part = own.start * size..own.end * size;
            let data = ours.data().to_vec()?;
            let is_right = match plan.collective {
                Collective::AllReduce | Collective::AllGather => data.get(..all.len()) == Some(&*all),
                Collective::ReduceScatter => data.get(part.clone()) == all.get(part),
                Collective::AllToAll => {
                    let mut expected = Vec::new();
                    for from in 0..ranks {
                        own.clone().for_each(|index| put(plan.element, input(from, index), &mut expected));
                    }
                    data.get(plan.vector()..) == Some(&*expected)
                }
            };
            if !is_right {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn state(&self) -> GroupState {
        GroupState {
            group: self.group.clone(),
            started: self.started,
            finished: self.finished,
            sent: self.ranks.iter().map(Rank::counts).collect(),
            verified: self.verified,
            repeated: self.ranks.iter().map(Rank::repeated).sum(),
            fell_back: self.fell_back.clone(),
        }
    }
}

/// The plan by which ranks compute, if switches do not add although they should.
const fn by_whom(plan: &Plan, fell_back: bool) -> Plan {
    if fell_back { by_hosts(plan) } else { *plan }
}

impl GroupEnds {
    /// The address of the group with this number, and its hosts, if packets go to all of them at once.
    pub(super) fn membership(&self, number: u32) -> Option<(Ipv4Addr, Vec<usize>)> {
        let is_sent_to = self.group.plan.algorithm == Algorithm::InNetwork;
        is_sent_to.then(|| (address(number), self.group.hosts.clone()))
    }
}

/// The address of a group: one of those that an organisation may use as it likes (RFC 2365).
fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(0xefc0_0001 + number)
}

/// 20 bits, and not 0, which means that the destination chooses.
fn label(seed: u64, way: u64) -> u32 {
    let mixed = (seed ^ way.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed >> 44) as u32).max(1)
}
