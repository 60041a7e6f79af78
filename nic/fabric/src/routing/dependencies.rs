//! Whether buffers can wait for each other in a circle.

use super::Routes;
use crate::topology::{NodeId, Topology};
use std::fmt;

/// A direction of a cable, with the buffer at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Channel {
    /// The number of the cable.
    pub cable: usize,
    /// The node that sends.
    pub from: NodeId,
    /// The node that receives.
    pub to: NodeId,
}

/// Which channels packets hold while they wait for which others.
///
/// A packet that has come through one channel waits in its buffer until the next has room. In a lossless network, a cycle of such
/// dependencies can fill up and never move again; without a cycle it cannot. Channels to hosts are not in the graph: hosts
/// take packets in, and wait for no other channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// The channels on which packets travel, apart from those to hosts.
    pub channels: Vec<Channel>,
    /// By channel: those that packets may take after it, by their indices in `channels`.
    pub next: Vec<Vec<usize>>,
    cycle: Vec<Channel>,
}

impl Routes {
    /// Which channels wait for which others, if every host sends to every other.
    #[must_use]
    pub fn dependencies(&self, topology: &Topology) -> Dependencies {
        let (ports, hosts) = (topology.ports(), topology.hosts());
        let destinations = self.destinations(hosts);
        let reached: Vec<_> = destinations.iter().map(|host| self.reached(&ports, *host, hosts)).collect();
        // By node: the index of the channel of its first port, as if every port had one.
        let mut first = Vec::with_capacity(ports.len());
        let mut number = 0;
        for of in &ports {
            first.push(number);
            number += of.len();
        }
        let mut edges: Vec<Option<Vec<usize>>> = vec![None; number];
        for (node, of) in ports.iter().enumerate() {
            for (port, (_, next)) in (0..=u16::MAX).zip(of).filter(|(_, (_, next))| *next >= hosts) {
                let mut after = None;
                for (host, reached) in destinations.iter().zip(&reached) {
                    if reached[node] && self.ports(node, *host).contains(&port) {
                        let taken = self.ports(*next, *host).iter().map(|port| usize::from(*port));
                        let on =
                            taken.filter(|port| ports[*next].get(*port).is_some_and(|(_, to)| *to >= hosts));
                        after.get_or_insert_with(Vec::new).extend(on.map(|port| first[*next] + port));
                    }
                }
                if let Some(after) = &mut after {
                    after.sort_unstable();
                    after.dedup();
                }
                edges[first[node] + usize::from(port)] = after;
            }
        }
        Dependencies::new(&ports, edges)
    }

    /// One host for each column, and those with entries of their own.
    fn destinations(&self, hosts: usize) -> Vec<usize> {
        let mut known = vec![false; self.width];
        let mut own = vec![false; hosts];
        for (_, host) in self.fixed.keys() {
            own[*host] = true;
        }
        let mut take = |host: &usize| {
            let column = self.columns.get(*host).and_then(|column| known.get_mut(*column as usize));
            self.lid_tables().is_some()
                || own[*host]
                || column.is_some_and(|known| !std::mem::replace(known, true))
        };
        (0..hosts).filter(|host| take(host)).collect()
    }

    /// The nodes at which packets to a host come by.
    fn reached(&self, ports: &[Vec<(usize, NodeId)>], host: usize, hosts: usize) -> Vec<bool> {
        let mut reached = vec![false; ports.len()];
        let mut stack: Vec<_> = (0..hosts).collect();
        while let Some(node) = stack.pop() {
            if std::mem::replace(&mut reached[node], true) {
                continue;
            }
            let taken = self.ports(node, host).iter().filter_map(|port| ports[node].get(usize::from(*port)));
            stack.extend(taken.map(|(_, next)| *next).filter(|next| *next >= hosts && !reached[*next]));
        }
        reached
    }
}

impl Dependencies {
    /// The graph, from the channels of all ports: of those that are used, the channels that follow.
    fn new(ports: &[Vec<(usize, NodeId)>], edges: Vec<Option<Vec<usize>>>) -> Self {
        let all = ports.iter().enumerate().flat_map(|(from, of)| {
            of.iter().map(move |(cable, to)| Channel { cable: *cable, from, to: *to })
        });
        let mut new = vec![usize::MAX; edges.len()];
        let mut graph = Self::default();
        for ((channel, after), new) in all.zip(&edges).zip(&mut new) {
            if after.is_some() {
                *new = graph.channels.len();
                graph.channels.push(channel);
            }
        }
        // Whatever follows a used channel is used.
        let renumber =
            |after: Vec<usize>| after.into_iter().filter_map(|old| new.get(old).copied()).collect();
        graph.next = edges.into_iter().flatten().map(renumber).collect();
        let cycle = find_cycle(&graph.next).into_iter();
        graph.cycle = cycle.filter_map(|channel| graph.channels.get(channel).copied()).collect();
        graph
    }

    /// A cycle, if there is one: each channel waits for the next, and the last for the first.
    #[must_use]
    pub fn cycle(&self) -> Option<&[Channel]> {
        (!self.cycle.is_empty()).then_some(&*self.cycle)
    }

    /// Describes the cycle, if there is one, by the names of its nodes.
    #[must_use]
    pub fn describe_cycle(&self, topology: &Topology) -> Option<String> {
        let cycle = self.cycle()?;
        let names = cycle.iter().map(|channel| topology.name(channel.from));
        let first = cycle.first().map(|channel| topology.name(channel.from));
        Some(names.chain(first).collect::<Vec<_>>().join(" > "))
    }
}

impl fmt::Display for Dependencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let edges: usize = self.next.iter().map(Vec::len).sum();
        write!(f, "{} channels, {edges} dependencies", self.channels.len())?;
        match self.cycle.len() {
            0 => write!(f, ", no cycle"),
            length => write!(f, ", a cycle of {length}"),
        }
    }
}

/// The first cycle, or nothing: the shortest through the first vertex of the first strongly connected component that has one.
fn find_cycle(next: &[Vec<usize>]) -> Vec<usize> {
    let component = components(next);
    let same = |one: usize, other: usize| component.get(one) == component.get(other);
    // A vertex is on a cycle if an edge from it stays in its component.
    let start = (0..next.len()).find(|vertex| next[*vertex].iter().any(|to| same(*vertex, *to)));
    let Some(start) = start else { return Vec::new() };
    let mut before = vec![None; next.len()];
    let mut front = std::collections::VecDeque::from([start]);
    while let Some(vertex) = front.pop_front() {
        for to in next[vertex].iter().copied().filter(|to| same(start, *to)) {
            if before[to].is_none() {
                before[to] = Some(vertex);
                front.push_back(to);
            }
        }
        if before[start].is_some() {
            break;
        }
    }
    let mut cycle = vec![start];
    let mut at = before[start];
    while let Some(vertex) = at.filter(|vertex| *vertex != start) {
        cycle.push(vertex);
        at = before[vertex];
    }
    // Found from the end.
    cycle[1..].reverse();
    cycle
}

/// The strongly connected component of every vertex, by Tarjan's algorithm, without recursion.
fn components(next: &[Vec<usize>]) -> Vec<usize> {
    const UNSEEN: usize = usize::MAX;
    let mut index = vec![UNSEEN; next.len()];
    let mut low = vec![UNSEEN; next.len()];
    let mut component = vec![UNSEEN; next.len()];
    let (mut seen, mut open, mut found) = (0, Vec::new(), 0);
    for root in 0..next.len() {
        let mut calls = if index[root] == UNSEEN { vec![(root, 0)] } else { Vec::new() };
        while let Some((vertex, edge)) = calls.pop() {
            if edge == 0 {
                (index[vertex], low[vertex]) = (seen, seen);
                seen += 1;
                open.push(vertex);
            }
            if let Some(to) = next[vertex].get(edge).copied() {
                calls.push((vertex, edge + 1));
                if index[to] == UNSEEN {
                    calls.push((to, 0));
                } else if component[to] == UNSEEN {
                    low[vertex] = low[vertex].min(index[to]);
                }
                continue;
            }
            if low[vertex] == index[vertex] {
                while let Some(member) = open.pop() {
                    component[member] = found;
                    if member == vertex {
                        break;
                    }
                }
                found += 1;
            }
            if let Some((parent, _)) = calls.last() {
                low[*parent] = low[*parent].min(low[vertex]);
            }
        }
    }
    component
}
