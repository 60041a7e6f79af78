//! Reads the files of htsim: its topologies (`.topo`) and its traffic (`.cm`).
//!
//! A `.topo` file has a header (`Nodes`, `Tiers`, `Podsize`) and a block for each tier of switches from below. The cables of a
//! tier are those below its switches. Keys may be written in any case.

use super::builder::Builder;
use super::lines::{Line, at_end, lines, read, syntax};
use super::link::Wire;
use super::traffic::{Start, Traffic, TrafficFlow, Trigger, TriggerKind};
use super::{MAX_HOSTS, Topology, TopologyError};
use cc::Rate;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use time::Duration;

/// Reads a topology from a file.
///
/// # Errors
/// The file cannot be read, or a line is not as expected.
pub fn topology(file: &Path) -> Result<Topology, TopologyError> {
    parse_topology(&read(file)?, file)
}

/// Reads a topology from the text of a file. `file` is its name in errors.
///
/// # Errors
/// A line is not as expected.
pub fn parse_topology(text: &str, file: &Path) -> Result<Topology, TopologyError> {
    let mut header = Header::default();
    let mut tiers: [Option<Tier>; 3] = [None; 3];
    let mut current = None;
    for mut line in lines(text, file) {
        let key = line.word("a key")?.to_ascii_lowercase();
        if key == "tier" {
            let number: usize = line.number("the number of a tier, 0 to 2")?;
            let tier = tiers.get_mut(number).ok_or_else(|| line.expected("the number of a tier, 0 to 2"))?;
            if tier.is_some() {
                return Err(line.expected(format!("each tier once; tier {number} is already there")));
            }
            *tier = Some(Tier { line: line.number, ..Tier::default() });
            current = Some(number);
        } else if let Some(tier) = current.and_then(|number| tiers.get_mut(number)?.as_mut()) {
            tier.set(&key, &mut line)?;
        } else {
            header.set(&key, &mut line)?;
        }
        line.end()?;
    }
    let header = header.finish(text, file)?;
    let tier = |number: usize| {
        let missing = || at_end(text, file, format!("a block `Tier {number}`"));
        tiers.get(number).copied().flatten().ok_or_else(missing)?.finish(file, number + 1 == header.tiers)
    };
    let tiers = (0..header.tiers).map(tier).collect::<Result<Vec<_>, _>>()?;
    Plan::new(header, &tiers, file)?.build()
}

/// The lines before the first tier.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    nodes: usize,
    tiers: usize,
    pod: usize,
}

impl Header {
    fn set(&mut self, key: &str, line: &mut Line<'_>) -> Result<(), TopologyError> {
        let (place, what) = match key {
            "nodes" => (&mut self.nodes, "the number of hosts"),
            "tiers" => (&mut self.tiers, "the number of tiers, 2 or 3"),
            "podsize" => (&mut self.pod, "the number of hosts in a pod"),
            _ => return Err(line.expected("`Nodes`, `Tiers`, `Podsize` or `Tier`")),
        };
        if *place != 0 {
            return Err(line.expected("each key once"));
        }
        *place = line.number(what)?;
        if *place == 0 { Err(line.expected(format!("{what} instead of 0"))) } else { Ok(()) }
    }

    fn finish(self, text: &str, file: &Path) -> Result<Self, TopologyError> {
        let missing = |what: &str| Err(at_end(text, file, what));
        match self {
            Self { nodes: 0, .. } => missing("a line `Nodes`"),
            Self { tiers: 0, .. } => missing("a line `Tiers`"),
            Self { pod: 0, .. } => missing("a line `Podsize`"),
            Self { tiers: 2..=3, .. } => Ok(self),
            _ => missing("`Tiers` of 2 or 3"),
        }
    }
}

/// The block of a tier. What is 0 is not said.
#[derive(Clone, Copy, Debug, Default)]
struct Tier {
    /// The line with its number.
    line: usize,
    gbps: u64,
    radix_down: usize,
    radix_up: usize,
    /// In nanoseconds.
    delay: Option<u64>,
    /// In nanoseconds.
    latency: u64,
    oversubscribed: usize,
    bundle: usize,
}

impl Tier {
    fn set(&mut self, key: &str, line: &mut Line<'_>) -> Result<(), TopologyError> {
        const NUMBER: &str = "a whole number of at least 1";
        match key {
            "downlink_speed_gbps" => self.gbps = line.number(NUMBER)?,
            "radix_down" => self.radix_down = line.number(NUMBER)?,
            "radix_up" => self.radix_up = line.number(NUMBER)?,
            "oversubscribed" => self.oversubscribed = line.number(NUMBER)?,
            "bundle" => self.bundle = line.number(NUMBER)?,
            "downlink_latency_ns" => self.delay = Some(line.number("a whole number of nanoseconds")?),
            "switch_latency_ns" => self.latency = line.number("a whole number of nanoseconds")?,
            // The sizes of queues belong to switches, not to the topology.
            "queue_up" | "queue_down" => _ = line.number::<u64>("a whole number of bytes")?,
            _ => {
                return Err(line.expected(
                    "`Downlink_speed_Gbps`, `Radix_Down`, `Radix_Up`, `Downlink_Latency_ns`, \
                     `Switch_Latency_ns`, `Oversubscribed`, `Bundle`, `Queue_Up`, `Queue_Down` or `Tier`",
                ));
            }
        }
        Ok(())
    }

    fn finish(mut self, file: &Path, top: bool) -> Result<Self, TopologyError> {
        let missing =
            |what: &str| Err(syntax(file, self.line, format!("`{what}` in the block of this tier")));
        if self.gbps == 0 {
            return missing("Downlink_speed_Gbps");
        }
        if self.radix_down == 0 {
            return missing("Radix_Down");
        }
        if self.radix_up == 0 && !top {
            return missing("Radix_Up");
        }
        if self.delay.is_none() {
            return missing("Downlink_Latency_ns");
        }
        (self.bundle, self.oversubscribed) = (self.bundle.max(1), self.oversubscribed.max(1));
        Ok(self)
    }

    /// The cables below it.
    const fn wire(self) -> Wire {
        let delay = match self.delay {
            Some(nanos) => Duration::from_nanos(nanos),
            None => Duration::ZERO,
        };
        Wire { rate: Rate::from_gbps(self.gbps), delay, bit_errors: 0.0 }
    }
}

/// The numbers of switches that follow from a file, which says most things twice.
#[derive(Clone, Debug)]
struct Plan<'t> {
    hosts: usize,
    pods: usize,
    /// Switches of the lowest tier in each pod.
    leaves: usize,
    /// Switches of the next tier in each pod.
    aggs: usize,
    /// Switches above all pods.
    cores: usize,
    tiers: &'t [Tier],
}

impl<'t> Plan<'t> {
    fn new(header: Header, tiers: &'t [Tier], file: &Path) -> Result<Self, TopologyError> {
        let Header { nodes, pod, .. } = header;
        let [low, middle, top @ ..] = tiers else { return Err(syntax(file, 1, "2 or 3 tiers")) };
        let wrong = |tier: &Tier, expected: String| Err(syntax(file, tier.line, expected));
        if nodes > MAX_HOSTS {
            return Err(TopologyError::TooMany { what: "hosts", number: nodes, most: MAX_HOSTS });
        }
        if low.bundle != 1 {
            return wrong(low, "a tier 0 without `Bundle`, because a host has one cable".to_owned());
        }
        if !nodes.is_multiple_of(pod) || !pod.is_multiple_of(low.radix_down) {
            let expected =
                "`Podsize` that divides `Nodes`, and `Radix_Down` of tier 0 that divides `Podsize`";
            return wrong(low, expected.to_owned());
        }
        let (pods, leaves) = (nodes / pod, pod / low.radix_down);
        if top.is_empty() && pods != 1 {
            return wrong(
                low,
                "`Podsize` equal to `Nodes`, because 2 tiers have nothing between pods".to_owned(),
            );
        }
        let aggs = low.share(middle, leaves, file)?;
        let cores = match top {
            // The switches at one place of every pod have their cores in common.
            [top] => middle.share(top, pods, file)?.saturating_mul(aggs),
            _ => 0,
        };
        Ok(Self { hosts: nodes, pods, leaves, aggs, cores, tiers })
    }

    fn build(&self) -> Result<Topology, TopologyError> {
        let Self { hosts, pods, leaves, aggs, cores, tiers } = self;
        let [low, middle, ..] = tiers else { return Err(TopologyError::NoHosts) };
        let names = if tiers.len() == 2 { ["leaf", "spine"] } else { ["edge", "agg"] };
        let (all_leaves, all_aggs) = (pods.saturating_mul(*leaves), pods.saturating_mul(*aggs));
        let up = |number: usize, tier: &Tier| number.saturating_mul(tier.radix_up);
        let cables = [*hosts, up(all_leaves, low), up(all_aggs, middle)]
            .iter()
            .fold(0, |a: usize, b| a.saturating_add(*b));
        let switches = all_leaves.saturating_add(all_aggs).saturating_add(*cores);
        let mut builder = Builder::new(*hosts, switches, cables)?;
        let hosts = builder.hosts(*hosts);
        let [leaf, agg] = [(names[0], 1, all_leaves), (names[1], 2, all_aggs)]
            .map(|(name, tier, number)| builder.switches(name, tier, number));
        let core = builder.switches("core", 3, *cores);
        builder.spread(hosts, leaf.clone(), low.wire());
        for pod in 0..*pods {
            let of_pod =
                |all: &Range<usize>, each: usize| all.start + pod * each..all.start + (pod + 1) * each;
            builder.mesh(of_pod(&leaf, *leaves), of_pod(&agg, *aggs), middle.bundle, middle.wire());
        }
        if let Some(top) = tiers.get(2) {
            for (number, one) in agg.enumerate() {
                // Every `aggs`-th core, beginning with the number of the switch in its pod.
                for core in core.clone().skip(number % aggs).step_by(*aggs) {
                    builder.mesh(one..one + 1, core..core + 1, top.bundle, top.wire());
                }
            }
        }
        let mut topology = builder.finish()?;
        for node in &mut topology.nodes {
            let tier = usize::from(node.kind.tier()).checked_sub(1).and_then(|tier| tiers.get(tier));
            node.latency = tier.map_or(Duration::ZERO, |tier| Duration::from_nanos(tier.latency));
        }
        topology.check()?;
        Ok(topology)
    }
}

impl Tier {
    /// The switches of the tier above to which each of this tier is connected. Those have cables to `below` switches of this
    /// tier each.
    fn share(&self, above: &Self, below: usize, file: &Path) -> Result<usize, TopologyError> {
        let wrong = |tier: &Self, expected: String| Err(syntax(file, tier.line, expected));
        if !self.radix_up.is_multiple_of(above.bundle) {
            return wrong(
                self,
                format!("`Radix_Up` that is a multiple of the `Bundle` of the next tier, {}", above.bundle),
            );
        }
        let radix = below.saturating_mul(above.bundle);
        if above.radix_down != radix {
            return wrong(
                above,
                format!("`Radix_Down {radix}`, for {below} switches below with `Bundle {}`", above.bundle),
            );
        }
        let down = self.gbps as f64 * self.radix_down as f64;
        let up = above.gbps as f64 * self.radix_up as f64;
        if down != up * self.oversubscribed as f64 {
            return wrong(self, format!("`Oversubscribed {}`, the rates down by the rates up", down / up));
        }
        Ok(self.radix_up / above.bundle)
    }
}

/// Reads traffic from a file.
///
/// # Errors
/// The file cannot be read, or a line is not as expected.
pub fn traffic(file: &Path) -> Result<Traffic, TopologyError> {
    parse_traffic(&read(file)?, file)
}

/// Reads traffic from the text of a file. `file` is its name in errors.
///
/// # Errors
/// A line is not as expected.
pub fn parse_traffic(text: &str, file: &Path) -> Result<Traffic, TopologyError> {
    let mut traffic = Traffic::default();
    let (mut connections, mut triggers) = (None, None);
    for mut line in lines(text, file) {
        match line.word("a key")? {
            "Nodes" => traffic.hosts = line.number("the number of hosts")?,
            "Connections" => connections = Some(line.number::<usize>("the number of flows")?),
            "Triggers" => triggers = Some(line.number::<usize>("the number of triggers")?),
            "trigger" => traffic.triggers.push(trigger(&mut line)?),
            "failure" | "Failures" => {
                return Err(line.expected("no failures; slow cables down with `[[topology.change]]` instead"));
            }
            ends => traffic.flows.push(flow(ends, &mut line, traffic.hosts)?),
        }
        line.end()?;
    }
    if traffic.hosts == 0 {
        return Err(at_end(text, file, "a line `Nodes`"));
    }
    let flows = traffic.flows.len();
    if connections != Some(flows) {
        let announced = connections.map_or("none".to_owned(), |number| number.to_string());
        return Err(at_end(
            text,
            file,
            format!("as many flows as `Connections` says ({announced}) instead of {flows}"),
        ));
    }
    let found = traffic.triggers.len();
    if triggers.unwrap_or_default() != found {
        return Err(at_end(text, file, format!("as many triggers as `Triggers` says instead of {found}")));
    }
    check_triggers(&traffic).map_err(|expected| at_end(text, file, expected))?;
    Ok(traffic)
}

/// Whether every trigger is there once, and every trigger of a flow is there.
fn check_triggers(traffic: &Traffic) -> Result<(), String> {
    let mut known = BTreeSet::new();
    if let Some(Trigger { id, .. }) = traffic.triggers.iter().find(|trigger| !known.insert(trigger.id)) {
        return Err(format!("each trigger once; `trigger id {id}` is there twice"));
    }
    for flow in &traffic.flows {
        let start = if let Start::Trigger(id) = flow.start { Some(id) } else { None };
        for id in [start, flow.send_done, flow.receive_done].into_iter().flatten() {
            if !known.contains(&id) {
                return Err(format!("a line `trigger id {id}`, because a flow names it"));
            }
        }
    }
    Ok(())
}

/// Reads the rest of a line about a flow, of which `ends` is the first word, such as `3->5`.
fn flow(ends: &str, line: &mut Line<'_>, hosts: usize) -> Result<TrafficFlow, TopologyError> {
    let form = "`Nodes`, `Connections`, `Triggers`, `trigger` or a flow such as `3->5`";
    let numbers = ends.split_once("->").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let (from, to): (usize, usize) = numbers.ok_or_else(|| line.expected(form))?;
    if from == to || from.max(to) >= hosts {
        return Err(line.expected(format!("two different hosts below `Nodes`, {hosts}")));
    }
    let (mut start, mut bytes) = (None, None);
    let none = None;
    let mut flow = TrafficFlow {
        from,
        to,
        bytes: 0,
        start: Start::At(0),
        id: none,
        send_done: none,
        receive_done: none,
        priority: none,
        port: None,
    };
    while let Some(word) = line.next_word() {
        match word {
            "start" if start.is_none() => start = Some(Start::At(picoseconds(line)?)),
            "trigger" if start.is_none() => start = Some(Start::Trigger(line.number(TRIGGER)?)),
            "start" | "trigger" => return Err(line.expected("either `start` or `trigger`, once")),
            "size" => bytes = Some(line.number("a number of bytes")?),
            "id" => flow.id = Some(line.number("the number of the flow")?),
            "send_done_trigger" => flow.send_done = Some(line.number(TRIGGER)?),
            "recv_done_trigger" => flow.receive_done = Some(line.number(TRIGGER)?),
            "prio" => flow.priority = Some(line.number("a priority")?),
            _ => {
                return Err(line.expected(format!(
                    "`start`, `trigger`, `size`, `id`, `send_done_trigger`, `recv_done_trigger` or `prio` instead of `{word}`"
                )));
            }
        }
    }
    flow.start = start.ok_or_else(|| line.expected("`start` with a time in picoseconds, or `trigger`"))?;
    flow.bytes = bytes.ok_or_else(|| line.expected("`size` with a number of bytes"))?;
    Ok(flow)
}

const TRIGGER: &str = "the number of a trigger";

/// A time. htsim writes some of them with a fraction.
fn picoseconds(line: &mut Line<'_>) -> Result<u64, TopologyError> {
    const TIME: &str = "a time in picoseconds";
    let word = line.word(TIME)?;
    let whole = word.split_once('.').map_or(word, |(whole, _)| whole);
    whole.parse().map_err(|_| line.expected(format!("{TIME} instead of `{word}`")))
}

/// Reads the rest of a line about a trigger.
fn trigger(line: &mut Line<'_>) -> Result<Trigger, TopologyError> {
    let (mut id, mut count, mut kind) = (None, None, None);
    while let Some(word) = line.next_word() {
        match word {
            "id" => id = Some(line.number(TRIGGER)?),
            "count" => count = Some(line.number("a number of activations")?),
            "oneshot" => kind = Some(TriggerKind::OneShot),
            "multishot" => kind = Some(TriggerKind::MultiShot),
            "barrier" => kind = Some(TriggerKind::Barrier { count: 0 }),
            _ => {
                let kinds = "`id`, `oneshot`, `multishot`, `barrier` or `count`";
                return Err(line.expected(format!("{kinds} instead of `{word}`")));
            }
        }
    }
    let mut kind = kind.ok_or_else(|| line.expected("`oneshot`, `multishot` or `barrier`"))?;
    if let TriggerKind::Barrier { count: of } = &mut kind {
        *of = count.ok_or_else(|| line.expected("`count` with the activations of the barrier"))?;
    }
    Ok(Trigger { id: id.ok_or_else(|| line.expected("`id` with the number of the trigger"))?, kind })
}
