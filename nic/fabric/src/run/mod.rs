//! A run: devices at the hosts of a fabric, and flows between their queue pairs.
//!
//! A run uses the public verbs, as a program does: it registers memory, creates and connects queue pairs, posts work
//! requests, and polls for completions. Only time is virtual.

mod flow;
mod group;
mod host;
mod ideal;

pub use flow::{FlowOutcome, FlowState};
pub use group::GroupState;
pub use host::{NicConfig, address};
pub use ideal::ideal;

use crate::network::{Change, Fabric, Shared};
use crate::workload::{Flow, Group, Start};
use cc::Rate;
use flow::Ends;
use group::GroupEnds;
use host::{HostEnd, Sinks};
use qp::WorkCompletion;
use rnic_core::sim::{BEGINNING, Net};
use rnic_core::{Error, WcStatus};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use time::Duration;

/// Completions that are taken at once.
const POLL: usize = 64;

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A verb failed.
    #[error("{what}: {why}")]
    Verbs {
        /// What was tried.
        what: String,
        /// The error.
        why: Error,
    },
    /// Hosts that compute together cannot.
    #[error("{name}: {why}")]
    Collective {
        /// The name of the group.
        name: String,
        /// The error.
        why: rnic_collectives::CollectiveError,
    },
    /// The congestion control of the NICs is not valid.
    #[error("the congestion control of the hosts: {0}")]
    Control(#[from] cc::SettingError),
}

/// Hosts and flows on a fabric.
pub struct Run {
    net: Net,
    fabric: Shared,
    hosts: Vec<HostEnd>,
    flows: Vec<FlowState>,
    ends: Vec<Option<Ends>>,
    /// Flows that wait for their time.
    starts: BinaryHeap<Reverse<(Duration, usize)>>,
    /// By flow: those that wait for it.
    followers: Vec<Vec<(usize, Duration)>>,
    /// By flow: how many others it still waits for.
    waits: Vec<u32>,
    /// Flows and groups that have begun and not ended.
    going_on: usize,
    groups: Vec<GroupEnds>,
    /// By host: the groups and the ranks in them that are there.
    ranks: Vec<Vec<(usize, usize)>>,
    /// Steps until now.
    steps: u32,
    visited: Vec<usize>,
    completions: Vec<WorkCompletion>,
}

impl Run {
    /// A run of these flows on a fabric. Everything random at the hosts follows from `seed`.
    ///
    /// # Errors
    /// A device cannot be made from its settings.
    pub fn new(fabric: Fabric, nic: &NicConfig, flows: Vec<Flow>, seed: u64) -> Result<Self, RunError> {
        Self::with_groups(fabric, nic, flows, Vec::new(), seed)
    }

    /// A run of flows, and of groups of hosts that compute together.
    ///
    /// # Errors
    /// A device cannot be made from its settings.
    pub fn with_groups(
        fabric: Fabric,
        nic: &NicConfig,
        flows: Vec<Flow>,
        groups: Vec<Group>,
        seed: u64,
    ) -> Result<Self, RunError> {
        let topology = fabric.topology().clone();
        let shared = Shared::new(fabric);
        let net = Net::joined_by(Box::new(shared.clone()), seed);
        // The NIC in front of the wire is the only limit of datagrams.
        net.set_unacked_rate(Some(0));
        let mut at_host = vec![0; topology.hosts()];
        for flow in &flows {
            let outstanding = 2 * flow.common.depth as usize;
            [flow.src, flow.dst].into_iter().for_each(|host| at_host[host] += outstanding);
        }
        let (mut hosts, sinks) = (Vec::new(), Arc::new(Sinks::default()));
        // Those of the first cable of each host.
        let mut rates = vec![Rate::default(); topology.hosts()];
        for cable in topology.cables.iter().rev() {
            for end in cable.ends {
                if let Some(rate) = rates.get_mut(end) {
                    *rate = cable.rate;
                }
            }
        }
        for (host, outstanding) in at_host.into_iter().enumerate() {
            let (name, sinks) = (&topology.nodes[host].name, Arc::clone(&sinks));
            hosts.push(HostEnd::new(&net, name, host, rates[host], nic, outstanding, sinks)?);
        }
        let mut followers = vec![Vec::new(); flows.len()];
        let needed = |flow: &Flow| if let Start::After { needed, .. } = flow.start { needed } else { 0 };
        let waits = flows.iter().map(needed).collect();
        let mut starts = BinaryHeap::new();
        for (number, flow) in flows.iter().enumerate() {
            match &flow.start {
                Start::At(at) => starts.push(Reverse((*at, number))),
                Start::After { flows, delay, .. } => {
                    for before in flows {
                        if let Some(followers) = followers.get_mut(*before) {
                            followers.push((number, *delay));
                        }
                    }
                }
            }
        }
        let mut ranks = vec![Vec::new(); topology.hosts()];
        for (number, group) in groups.iter().enumerate() {
            group.hosts.iter().enumerate().for_each(|(rank, host)| ranks[*host].push((number, rank)));
        }
        let mut run = Self {
            net,
            groups: groups.into_iter().map(GroupEnds::new).collect(),
            ranks,
            fabric: shared,
            hosts,
            ends: flows.iter().map(|_| None).collect(),
            going_on: 0,
            flows: flows.into_iter().map(FlowState::new).collect(),
            starts,
            followers,
            waits,
            steps: 0,
            visited: Vec::new(),
            completions: vec![WorkCompletion::default(); POLL],
        };
        run.follow()?;
        Ok(run)
    }

    /// Has the hosts react to congestion as the tables say by which the fabric forwards.
    pub(crate) fn follow(&mut self) -> Result<(), RunError> {
        let fabric = self.fabric.clone();
        for (host, end) in self.hosts.iter_mut().enumerate() {
            let Some(reaction) = fabric.lock().reaction(host).cloned() else { continue };
            let followed = end.follow(&reaction);
            let what = || format!("{}: congestion control", end.device.name());
            followed.map_err(|why| RunError::Verbs { what: what(), why })?;
        }
        Ok(())
    }

    /// Plans changes of the fabric, at times since the beginning.
    pub fn plan(&mut self, changes: impl IntoIterator<Item = (Duration, Change)>) {
        let mut fabric = self.fabric.lock();
        changes.into_iter().for_each(|(at, change)| fabric.plan(BEGINNING + at, change));
    }

    /// Runs until `until`, or, if no flow goes on for ever, until all are completed. Whatever happens first. Stops earlier
    /// if `goes_on` says so, which is asked from time to time.
    ///
    /// # Errors
    /// A verb fails that should not.
    pub fn run(&mut self, until: Duration, goes_on: &mut dyn FnMut(&Self) -> bool) -> Result<bool, RunError> {
        /// How many steps there are between two questions.
        const STEPS: u32 = 4096;
        while self.net.elapsed() < until {
            self.start_due()?;
            if self.is_complete() {
                return Ok(true);
            }
            let next = self.starts.peek().map_or(until, |Reverse((at, _))| (*at).min(until));
            let next = self.groups.iter().filter_map(GroupEnds::wakes).fold(next, Duration::min);
            let now = self.net.elapsed();
            if !self.net.step_within(next.saturating_sub(now)) {
                // Nothing happens until then: flows that are stuck stay so.
                self.net.run_for(next.saturating_sub(now));
            }
            self.take_completions()?;
            let now = self.net.elapsed();
            for group in &mut self.groups {
                if group.poll_due(now)? {
                    self.going_on -= 1;
                }
            }
            self.steps = self.steps.wrapping_add(1);
            if self.steps.is_multiple_of(STEPS) && !goes_on(self) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether no flow goes on, and none will begin.
    fn is_complete(&self) -> bool {
        self.starts.is_empty() && self.going_on == 0 && self.groups.iter().all(GroupEnds::has_begun)
    }

    /// Begins the flows whose time has come.
    fn start_due(&mut self) -> Result<(), RunError> {
        let now = self.net.elapsed();
        for (number, group) in (0..).zip(&mut self.groups) {
            if group.begin(&self.fabric, &self.hosts, number, now)? {
                self.going_on += 1;
            }
        }
        while let Some(Reverse((at, number))) = self.starts.peek().copied()
            && at <= now
        {
            self.starts.pop();
            let state = &mut self.flows[number];
            state.started = Some(now);
            self.going_on += 1;
            let flow = &state.flow;
            // A host never sends to itself.
            let Ok([src, dst]) = self.hosts.get_disjoint_mut([flow.src, flow.dst]) else { continue };
            let ends = Ends::new(number, flow, src, dst)?;
            self.ends[number] = Some(ends);
            self.go_on(number)?;
        }
        Ok(())
    }

    /// Posts what a flow may post.
    fn go_on(&mut self, number: usize) -> Result<(), RunError> {
        match &mut self.ends[number] {
            Some(ends) => ends.post(number, &mut self.flows[number]),
            None => Ok(()),
        }
    }

    /// Takes the completions of the devices at which something happened.
    fn take_completions(&mut self) -> Result<(), RunError> {
        let mut visited = std::mem::take(&mut self.visited);
        self.net.visited(&mut visited);
        for host in &visited {
            loop {
                let mut completions = std::mem::take(&mut self.completions);
                let count = self.hosts.get(*host).map_or(0, |end| end.cq.poll(&mut completions));
                for completion in &completions[..count] {
                    self.take_completion(completion)?;
                }
                self.completions = completions;
                if count < POLL {
                    break;
                }
            }
            for (group, rank) in self.ranks.get(*host).into_iter().flatten() {
                if self.groups[*group].poll(*rank, self.net.elapsed())? {
                    self.going_on -= 1;
                }
            }
        }
        self.visited = visited;
        Ok(())
    }

    fn take_completion(&mut self, completion: &WorkCompletion) -> Result<(), RunError> {
        let (number, is_recv) = flow::read_id(completion.wr_id);
        let now = self.net.elapsed();
        let (Some(state), Some(ends)) =
            (self.flows.get_mut(number), self.ends.get_mut(number).and_then(Option::as_mut))
        else {
            return Ok(());
        };
        if completion.status != WcStatus::Success {
            state.failed = Some((now, completion.status));
            return self.finish(number);
        }
        if is_recv {
            ends.received(number, state, completion)?;
        } else {
            ends.sent(state);
        }
        if state.is_done() {
            state.finished = Some(now);
            return self.finish(number);
        }
        self.go_on(number)
    }

    /// A flow has ended: its queue pairs go, and those that wait for it begin.
    fn finish(&mut self, number: usize) -> Result<(), RunError> {
        let Some(ends) = self.ends[number].take() else { return Ok(()) };
        let state = &mut self.flows[number];
        state.note(&ends);
        drop(ends);
        self.going_on -= 1;
        let now = self.net.elapsed();
        let has_failed = state.failed.is_some();
        for (follower, delay) in std::mem::take(&mut self.followers[number]) {
            let waits = &mut self.waits[follower];
            // One that has begun, or that waits for a flow that failed, does not wait any more.
            if has_failed || *waits == 0 {
                continue;
            }
            *waits -= 1;
            if *waits == 0 {
                self.starts.push(Reverse((now + delay, follower)));
            }
        }
        Ok(())
    }

    /// The virtual time since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.net.elapsed()
    }

    /// The fabric.
    #[must_use]
    pub const fn fabric(&self) -> &Shared {
        &self.fabric
    }

    /// The flows, with what has become of them until now.
    pub fn flows(&mut self) -> &[FlowState] {
        for (state, ends) in self.flows.iter_mut().zip(&self.ends) {
            if let Some(ends) = ends {
                state.note(ends);
            }
        }
        &self.flows
    }

    /// The groups of hosts that compute together, with what has become of them until now.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupState> {
        self.groups.iter().map(GroupEnds::state).collect()
    }

    /// The multicast groups to which hosts will send: their addresses and members.
    #[must_use]
    pub fn memberships(&self) -> Vec<(Ipv4Addr, Vec<usize>)> {
        (0..).zip(&self.groups).filter_map(|(number, group)| group.membership(number)).collect()
    }

    /// Measuring begins now: goodputs count from here.
    pub fn mark(&mut self) {
        let now = self.elapsed();
        self.flows();
        self.flows.iter_mut().for_each(|flow| flow.mark(now));
        self.fabric.lock().begin_measuring(now);
    }

    /// The device of a host.
    #[must_use]
    pub fn device(&self, host: usize) -> Option<&rnic_core::Device> {
        self.hosts.get(host).map(|end| &end.device)
    }

    /// The simulation.
    #[must_use]
    pub const fn net(&self) -> &Net {
        &self.net
    }
}
