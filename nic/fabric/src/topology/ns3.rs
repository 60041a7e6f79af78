//! Reads the files of the ns-3 simulations of HPCC and ConWeave: topologies and flows.
//!
//! A topology has a line with the numbers of nodes, switches and cables, then the numbers of the switches, and then a line for
//! each cable: the nodes at its ends, its rate, its delay and the share of packets that it loses. A file of flows has a line with
//! their number, and then a line for each: source, destination, priority group, destination port, bytes and start in seconds.
//! What follows after as many lines as the first announces is not read: some files end with notes.

use super::lines::{Line, at_end, lines, read};
use super::link::Wire;
use super::traffic::{Start, Traffic, TrafficFlow};
use super::{Kind, MAX_DELAY, Node, NodeId, Topology, TopologyError};
use super::{builder::Builder, within_limits};
use cc::Rate;
use cc::quantity::{parse_duration, parse_seconds};
use std::collections::BTreeMap;
use std::path::Path;
use time::Duration;

/// The bits of a packet in these simulations: 1,000 bytes of payload and 48 of headers.
const PACKET_BITS: f64 = 8.0 * 1048.0;

/// Reads a topology from a file.
///
/// # Errors
/// The file cannot be read, or a line is not as expected.
pub fn topology(file: &Path) -> Result<Topology, TopologyError> {
    parse_topology(&read(file)?, file)
}

/// Reads a topology from the text of a file. `file` is its name in errors.
///
/// Nodes keep their numbers in their names: `host0`, `s320`. A switch's tier is its distance from the nearest host. Losses of
/// packets become errors of bits that lose as many packets of 1,048 bytes, the usual size in these files.
///
/// # Errors
/// A line is not as expected.
pub fn parse_topology(text: &str, file: &Path) -> Result<Topology, TopologyError> {
    let mut lines = lines(text, file);
    let mut counts =
        lines.next().ok_or_else(|| at_end(text, file, "the numbers of nodes, switches and cables"))?;
    let nodes: usize = counts.number("the number of nodes")?;
    let switches: usize = counts.number("the number of switches")?;
    let cables: usize = counts.number("the number of cables")?;
    counts.end()?;
    if switches > nodes {
        return Err(counts.expected(format!("at most as many switches as nodes, {nodes}")));
    }
    within_limits(nodes - switches, switches, cables)?;
    let mut is_switch = vec![false; nodes];
    let mut found = 0;
    while found < switches {
        let missing =
            || at_end(text, file, format!("the numbers of {switches} switches, and there are {found}"));
        let mut line = lines.next().ok_or_else(missing)?;
        while let Some(word) = line.next_word() {
            let number = word.parse::<usize>().ok();
            let place = number.and_then(|number| is_switch.get_mut(number)).filter(|known| !**known);
            let wrong =
                || line.expected(format!("the number of another switch, below {nodes}, instead of `{word}`"));
            *place.ok_or_else(wrong)? = true;
            found += 1;
        }
        if found > switches {
            return Err(line.expected(format!("{switches} switches")));
        }
    }
    let mut wires = Vec::with_capacity(cables);
    for mut line in lines.take(cables) {
        wires.push(cable(&mut line, nodes)?);
    }
    if wires.len() < cables {
        return Err(at_end(
            text,
            file,
            format!("{cables} cables, as the first line says, instead of {}", wires.len()),
        ));
    }
    build(&is_switch, &wires)
}

/// Puts the topology together: hosts first, in the order of their numbers.
fn build(is_switch: &[bool], wires: &[([usize; 2], Wire)]) -> Result<Topology, TopologyError> {
    let switches = is_switch.iter().filter(|is_switch| **is_switch).count();
    let mut builder = Builder::new(is_switch.len() - switches, switches, wires.len())?;
    let mut places: Vec<NodeId> = vec![0; is_switch.len()];
    for (kind, prefix, of_kind) in [(Kind::Host, "host", false), (Kind::Switch { tier: 1 }, "s", true)] {
        for (number, place) in places.iter_mut().enumerate() {
            if is_switch.get(number) == Some(&of_kind) {
                *place =
                    builder.node(Node { name: format!("{prefix}{number}"), kind, latency: Duration::ZERO });
            }
        }
    }
    for ([a, b], wire) in wires {
        if let (Some(a), Some(b)) = (places.get(*a), places.get(*b)) {
            builder.cable(*a, *b, *wire);
        }
    }
    let mut topology = builder.finish()?;
    set_tiers(&mut topology);
    Ok(topology)
}

/// Sets every switch's tier to its distance from the nearest host.
fn set_tiers(topology: &mut Topology) {
    let (ports, hosts) = (topology.ports(), topology.hosts());
    let mut known = vec![false; topology.nodes.len()];
    let mut front: Vec<NodeId> = (0..hosts).collect();
    for tier in 1..=u8::MAX {
        let mut next = Vec::new();
        for (_, node) in front.iter().filter_map(|node| ports.get(*node)).flatten() {
            if *node >= hosts && known.get(*node) == Some(&false) {
                known[*node] = true;
                topology.nodes[*node].kind = Kind::Switch { tier };
                next.push(*node);
            }
        }
        front = next;
    }
}

/// Reads the line of a cable.
fn cable(line: &mut Line<'_>, nodes: usize) -> Result<([usize; 2], Wire), TopologyError> {
    let mut end = || {
        let number: usize = line.number("the number of a node")?;
        if number < nodes {
            Ok(number)
        } else {
            Err(line.expected(format!("the number of a node, below {nodes}")))
        }
    };
    let ends = [end()?, end()?];
    let rate = line.word("a rate such as `100Gbps`")?;
    let rate: Rate =
        rate.parse().map_err(|why| line.expected(format!("a rate instead of `{rate}`: {why}")))?;
    if rate == Rate::default() {
        return Err(line.expected("a rate of more than 0"));
    }
    let delay = line.word("a delay such as `1000ns`")?;
    let delay =
        parse_duration(delay).map_err(|why| line.expected(format!("a delay instead of `{delay}`: {why}")))?;
    if delay > MAX_DELAY {
        return Err(line.expected(format!("a delay of at most {} s", MAX_DELAY.as_secs())));
    }
    let loss: f64 = line.number("the share of lost packets")?;
    if !(0.0..1.0).contains(&loss) {
        return Err(line.expected("a share of lost packets from 0 to less than 1"));
    }
    line.end()?;
    // A packet arrives if all its bits do.
    let bit_errors = -f64::exp_m1(f64::ln_1p(-loss) / PACKET_BITS);
    Ok((ends, Wire { rate, delay, bit_errors }))
}

/// Reads flows from a file, between the hosts of a topology that [`topology`] has read.
///
/// # Errors
/// The file cannot be read, or a line is not as expected.
pub fn flows(file: &Path, topology: &Topology) -> Result<Traffic, TopologyError> {
    parse_flows(&read(file)?, file, topology)
}

/// Reads flows from the text of a file. `file` is its name in errors.
///
/// # Errors
/// A line is not as expected.
pub fn parse_flows(text: &str, file: &Path, topology: &Topology) -> Result<Traffic, TopologyError> {
    let mut lines = lines(text, file);
    let mut first = lines.next().ok_or_else(|| at_end(text, file, "the number of flows"))?;
    let count: usize = first.number("the number of flows")?;
    first.end()?;
    let hosts = topology.nodes.iter().take(topology.hosts()).zip(0..);
    let hosts: BTreeMap<&str, usize> =
        hosts.filter_map(|(node, host)| Some((node.name.strip_prefix("host")?, host))).collect();
    let mut traffic = Traffic { hosts: hosts.len(), ..Traffic::default() };
    for mut line in lines.take(count) {
        traffic.flows.push(flow(&mut line, &hosts)?);
    }
    if traffic.flows.len() < count {
        let found = traffic.flows.len();
        return Err(at_end(text, file, format!("{count} flows, as the first line says, instead of {found}")));
    }
    Ok(traffic)
}

/// Reads the line of a flow.
fn flow(line: &mut Line<'_>, hosts: &BTreeMap<&str, usize>) -> Result<TrafficFlow, TopologyError> {
    const SECONDS: &str = "the start in seconds";
    let mut host = || {
        let word = line.word("the number of a host")?;
        hosts
            .get(word)
            .copied()
            .ok_or_else(|| line.expected(format!("the number of a host instead of `{word}`")))
    };
    let (from, to) = (host()?, host()?);
    if from == to {
        return Err(line.expected("two different hosts"));
    }
    let priority = Some(line.number("a priority group")?);
    let port = Some(line.number("a destination port")?);
    let bytes = line.number("a number of bytes")?;
    let word = line.word(SECONDS)?;
    let start =
        parse_seconds(word).map_err(|why| line.expected(format!("{SECONDS} instead of `{word}`: {why}")))?;
    let start = u64::try_from(start.as_nanos().saturating_mul(1000));
    let start = Start::At(start.map_err(|_| line.expected("a start within 213 days"))?);
    line.end()?;
    let (id, send_done, receive_done) = (None, None, None);
    Ok(TrafficFlow { from, to, bytes, start, id, send_done, receive_done, priority, port })
}
