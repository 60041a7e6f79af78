//! Fills the tables.

use super::{Plan, Routes};
use crate::topology::{NodeId, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// No way.
const NONE: u32 = u32::MAX;

/// The cables that carry something, as the tables need them.
struct Graph {
    hosts: usize,
    /// By node: its ports, in order, each with the node at the other end, or none if the cable has failed.
    ports: Vec<Vec<Option<NodeId>>>,
    /// By node: the switches next to it, with the ports to them.
    switches: Vec<Vec<(u16, NodeId)>>,
    /// By node: the order in which cables lead down, from low to high; none if all ways are allowed.
    order: Option<Vec<(u32, NodeId)>>,
    /// Switches from the highest to the lowest.
    sorted: Vec<NodeId>,
}

impl Graph {
    fn new(topology: &Topology, plan: &Plan) -> Self {
        let alive = |(cable, node): &(usize, NodeId)| (!plan.failed.contains(cable)).then_some(*node);
        let of_node = |of: &Vec<(usize, NodeId)>| of.iter().map(alive).collect();
        let ports: Vec<Vec<_>> = topology.ports().iter().map(of_node).collect();
        let hosts = topology.hosts();
        let switches = |of: &Vec<Option<NodeId>>| {
            let alive = (0..=u16::MAX).zip(of).filter_map(|(port, next)| Some((port, (*next)?)));
            alive.filter(|(_, next)| *next >= hosts).collect()
        };
        let switches = ports.iter().map(switches).collect();
        let mut graph = Self { hosts, ports, switches, order: None, sorted: Vec::new() };
        if let Some(roots) = &plan.roots {
            let levels = graph.distances(roots.iter().copied(), |_, _| true);
            let order: Vec<_> = levels.into_iter().zip(0..).collect();
            graph.sorted = (graph.hosts..order.len()).collect();
            graph.sorted.sort_unstable_by_key(|node| order.get(*node));
            graph.order = Some(order);
        }
        graph
    }

    fn is_switch(&self, node: NodeId) -> bool {
        node >= self.hosts
    }

    /// The switches next to a node, with the ports to them.
    fn switches(&self, node: NodeId) -> impl Iterator<Item = (u16, NodeId)> {
        self.switches.get(node).map(Vec::as_slice).unwrap_or_default().iter().copied()
    }

    /// How many cables each switch is away from the nearest of `from`, along cables that may be followed backwards: from a
    /// switch to one nearer by.
    fn distances(
        &self,
        from: impl Iterator<Item = NodeId>,
        follow: impl Fn(NodeId, NodeId) -> bool,
    ) -> Vec<u32> {
        let mut distance = vec![NONE; self.ports.len()];
        let mut front: Vec<_> = from.filter(|node| self.is_switch(*node)).collect();
        for node in &front {
            distance[*node] = 0;
        }
        let mut away = 0;
        while !front.is_empty() {
            away += 1;
            let mut next = Vec::new();
            for node in front {
                for (_, other) in self.switches(node) {
                    if distance[other] == NONE && follow(other, node) {
                        distance[other] = away;
                        next.push(other);
                    }
                }
            }
            front = next;
        }
        distance
    }

    /// Whether the way from one switch to another leads down.
    fn is_down(&self, from: NodeId, to: NodeId) -> bool {
        self.order.as_ref().is_none_or(|order| order.get(from) < order.get(to))
    }

    /// The costs of the ways to those of `to` that are switches.
    fn costs(&self, to: &BTreeSet<NodeId>) -> Costs {
        let down = self.distances(to.iter().copied(), |from, to| self.is_down(from, to));
        let mut total = down.clone();
        for node in &self.sorted {
            if total[*node] == NONE {
                let above = self.switches(*node).filter(|(_, next)| self.is_down(*next, *node));
                let nearest = above.map(|(_, next)| total[next]).min().unwrap_or(NONE);
                total[*node] = nearest.saturating_add(1);
            }
        }
        Costs { down, total }
    }
}

/// How many cables each switch is away from a host's neighbours.
struct Costs {
    /// Along ways that only lead down; or along all ways if all are allowed.
    down: Vec<u32>,
    /// Along all allowed ways.
    total: Vec<u32>,
}

impl Costs {
    /// The ports of a switch that lead nearer.
    fn of_switch(&self, graph: &Graph, node: NodeId, ports: &mut Vec<u16>) {
        let (down, total) = (self.down[node], self.total[node]);
        if total == 0 || total == NONE {
            return;
        }
        let leads = |next: NodeId| {
            if down == NONE {
                graph.is_down(next, node) && self.total[next] == total - 1
            } else {
                graph.is_down(node, next) && self.down[next] == down - 1
            }
        };
        ports.extend(graph.switches(node).filter(|(_, next)| leads(*next)).map(|(port, _)| port));
    }

    /// The ports of a host to those of its switches that are nearest.
    fn of_host(&self, graph: &Graph, host: NodeId, ports: &mut Vec<u16>) {
        let nearest = graph.switches(host).map(|(_, next)| self.total[next]).min().unwrap_or(NONE);
        if nearest != NONE {
            let near = graph.switches(host).filter(|(_, next)| self.total[*next] == nearest);
            ports.extend(near.map(|(port, _)| port));
        }
    }
}

/// Lists of ports, each only once.
#[derive(Default)]
struct Lists {
    known: BTreeMap<Vec<u16>, u32>,
}

impl Lists {
    fn number(&mut self, ports: &[u16], routes: &mut Routes) -> u32 {
        if let Some(number) = self.known.get(ports) {
            return *number;
        }
        let number = small(routes.lists.len());
        routes.lists.push((small(routes.ports.len()), small(ports.len())));
        routes.ports.extend(ports);
        self.known.insert(ports.to_vec(), number);
        number
    }
}

/// An index as it is stored. The limits of topologies keep all of them far below 2^32.
fn small(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

impl Routes {
    pub(super) fn build(topology: &Topology, plan: Plan) -> Self {
        let graph = Graph::new(topology, &plan);
        let mut lists = Lists::default();
        let mut routes = Self::default();
        let places = routes.classify(&graph);
        routes.fill(&graph, &places, &mut lists);
        routes.fill_last(&graph, &mut lists);
        for ((node, host), ports) in &plan.fixed {
            let alive = |port: &u16| graph.ports[*node].get(usize::from(*port)).copied().flatten().is_some();
            let ports: Vec<_> = ports.iter().copied().filter(alive).collect();
            let list = lists.number(&ports, &mut routes);
            routes.fixed.insert((*node, *host), list);
        }
        routes.plan = plan;
        routes
    }

    /// Numbers the rows and the columns. Returns the neighbours of each column's hosts.
    fn classify(&mut self, graph: &Graph) -> Vec<BTreeSet<NodeId>> {
        // Ports matter for ways that begin at a host, and only the neighbours for ways that end there.
        let mut rows = BTreeMap::<&[Option<NodeId>], u32>::new();
        let mut columns = BTreeMap::<BTreeSet<NodeId>, u32>::new();
        let mut places = Vec::new();
        let switches = graph.ports.len() - graph.hosts;
        for ports in &graph.ports[..graph.hosts] {
            let next = small(switches + rows.len());
            self.rows.push(*rows.entry(ports).or_insert(next));
            let neighbours: BTreeSet<_> = ports.iter().flatten().copied().collect();
            let next = small(columns.len());
            let column = *columns.entry(neighbours).or_insert_with_key(|neighbours| {
                places.push(neighbours.clone());
                next
            });
            self.columns.push(column);
        }
        self.rows.extend(0..small(switches));
        self.width = places.len();
        self.table = vec![0; (switches + rows.len()) * self.width];
        places
    }

    /// Fills the entries of the hosts' neighbours.
    fn fill_last(&mut self, graph: &Graph, lists: &mut Lists) {
        let mut near = vec![BTreeMap::<NodeId, Vec<u16>>::new(); graph.hosts];
        for (node, of) in graph.ports.iter().enumerate() {
            for (port, next) in (0..=u16::MAX).zip(of) {
                if let Some(of_host) = next.and_then(|next| near.get_mut(next)) {
                    of_host.entry(node).or_default().push(port);
                }
            }
        }
        for of_host in near {
            self.last_of.push(small(self.last.len()));
            for (neighbour, ports) in of_host {
                let list = lists.number(&ports, self);
                self.last.push((small(neighbour), list));
            }
        }
        self.last_of.push(small(self.last.len()));
    }

    fn fill(&mut self, graph: &Graph, places: &[BTreeSet<NodeId>], lists: &mut Lists) {
        // One node of every row.
        let mut of_row = BTreeMap::new();
        for (node, row) in self.rows.iter().enumerate() {
            of_row.entry(*row).or_insert(node);
        }
        let of_row: Vec<NodeId> = of_row.into_values().collect();
        // A row has the same ports for most columns, so the last list is looked at first.
        let empty = lists.number(&[], self);
        let mut last = vec![empty; of_row.len()];
        let mut ports = Vec::new();
        for (column, place) in places.iter().enumerate() {
            let costs = graph.costs(place);
            for (row, (node, last)) in of_row.iter().zip(&mut last).enumerate() {
                ports.clear();
                if graph.is_switch(*node) {
                    costs.of_switch(graph, *node, &mut ports);
                } else {
                    costs.of_host(graph, *node, &mut ports);
                }
                if self.ports_of(*last) != Some(&ports) {
                    *last = lists.number(&ports, self);
                }
                self.table[row * self.width + column] = *last;
            }
        }
    }
}

/// The pairs of hosts, from one to the other, by the number of cables of the shortest way.
pub(super) fn lengths(topology: &Topology) -> BTreeMap<usize, u64> {
    let graph = Graph::new(topology, &Plan::default());
    let mut hosts_at = BTreeMap::<BTreeSet<NodeId>, Vec<NodeId>>::new();
    for (host, ports) in graph.ports.iter().enumerate().take(graph.hosts) {
        hosts_at.entry(ports.iter().flatten().copied().collect()).or_default().push(host);
    }
    let mut lengths = BTreeMap::new();
    for (place, to) in &hosts_at {
        let distance = graph.distances(place.iter().copied(), |_, _| true);
        for (from_place, from) in &hosts_at {
            let away =
                from_place.iter().filter(|node| graph.is_switch(**node)).map(|node| distance[*node]).min();
            // From each host to every other of the place.
            let same = if place == from_place { to.len() } else { 0 };
            let mut pairs = from.len() * to.len() - same;
            // Cables between hosts.
            let direct = from.iter().filter(|host| place.contains(host)).count() * to.len();
            if direct > 0 {
                *lengths.entry(1).or_default() += direct as u64;
                pairs -= direct;
            }
            if let Some(away) = away.filter(|away| *away != NONE && pairs > 0) {
                *lengths.entry(away as usize + 2).or_default() += pairs as u64;
            }
        }
    }
    lengths
}
