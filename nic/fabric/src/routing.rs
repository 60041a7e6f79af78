//! The ports of each switch that lead to a host.
//!
//! Hosts at the same switch have all but the last cable of their ways in common, so the tables hold ports for each switch and
//! leaf, not for each host.

mod build;
mod dependencies;
mod lid;
#[cfg(test)]
mod tests;

pub use dependencies::{Channel, Dependencies};
pub use lid::LidTables;

use crate::topology::{Kind, NodeId, Topology, TopologyError};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which ways packets may take, as it is written in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which ways there are at all.
    pub ways: Ways,
    /// The switches from which up and down are seen. Without any, those of the highest tier.
    pub roots: Vec<String>,
    /// The names of cables that carry nothing.
    pub failed: Vec<String>,
    /// Ways that are as they are written.
    pub fixed: Vec<Fixed>,
}

/// Which ways packets may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ways {
    /// All of the fewest cables.
    #[default]
    Shortest,
    /// Never up again after down, as seen from the roots: buffers cannot wait for each other in a circle. The ways may be longer
    /// than the shortest.
    UpDown,
}

/// One entry of a switch's table, whatever the ways are. Such entries can make loops.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixed {
    /// The name of the switch.
    pub switch: String,
    /// The name of the host to which packets go.
    pub host: String,
    /// The name of the node to which the switch sends them.
    pub to: Option<String>,
    /// The port through which it sends them, instead of a node.
    pub port: Option<u16>,
}

/// Why there are no routes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// A node or a cable that there is not.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A root that is a host.
    #[error("`{name}` is a host, and hosts pass nothing on; write the name of a switch")]
    Host {
        /// The host.
        name: String,
    },
    /// A destination that is a switch.
    #[error("`{name}` is a switch, and packets go to hosts; write the name of a host")]
    Switch {
        /// The switch.
        name: String,
    },
    /// A port that there is not.
    #[error("`{switch}` has no port {port}; it has ports 0 to {last}")]
    Port {
        /// The switch.
        switch: String,
        /// The port.
        port: u16,
        /// The highest port.
        last: usize,
    },
    /// No cable leads there.
    #[error("no cable leads from `{switch}` to `{to}`; write the name of a neighbour")]
    Neighbour {
        /// The switch.
        switch: String,
        /// The node that is no neighbour.
        to: String,
    },
    /// An entry without a port, or with two.
    #[error("the entry of `{switch}` for `{host}` has neither or both of `to` and `port`; write one of them")]
    Entry {
        /// The switch.
        switch: String,
        /// The host.
        host: String,
    },
}

/// What routes are made from, in numbers.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// The roots of ways that go up and down; none for the shortest ways.
    roots: Option<Vec<NodeId>>,
    failed: BTreeSet<usize>,
    /// By node and host.
    fixed: BTreeMap<(NodeId, usize), Vec<u16>>,
    /// Tables by LID, which take the place of all else.
    by_lid: Option<Arc<LidTables>>,
}

/// For each node and each host, the ports that lead to the host.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    plan: Plan,
    /// By node: its row in the table. Hosts with the same neighbours share one.
    rows: Vec<u32>,
    /// By host: its column in the table. Hosts with the same neighbours share one.
    columns: Vec<u32>,
    /// The number of columns.
    width: usize,
    /// By row and column: an index in `lists`.
    table: Vec<u32>,
    /// By host: where its entries in `last` begin; and where those of the last host end.
    last_of: Vec<u32>,
    /// The neighbours of hosts, with their ports to the host: indices in `lists`.
    last: Vec<(u32, u32)>,
    /// Entries that differ from the table.
    fixed: BTreeMap<(NodeId, usize), u32>,
    /// Parts of `ports`: where each begins, and how long it is.
    lists: Vec<(u32, u32)>,
    ports: Vec<u16>,
}

impl Routes {
    /// The shortest ways, by the number of cables.
    #[must_use]
    pub fn shortest(topology: &Topology) -> Self {
        Self::build(topology, Plan::default())
    }

    /// Ways that never go up after they have gone down: cables lead down away from the roots. Among those, a switch takes the
    /// shortest way that only goes down if there is one, and the shortest other way if not.
    #[must_use]
    pub fn up_down(topology: &Topology, roots: &[NodeId]) -> Self {
        Self::build(topology, Plan { roots: Some(roots.to_vec()), ..Plan::default() })
    }

    /// The ways of a file.
    ///
    /// # Errors
    /// It names what the topology does not have.
    pub fn new(topology: &Topology, config: &Config) -> Result<Self, RoutingError> {
        let roots = match config.ways {
            Ways::Shortest => None,
            Ways::UpDown if config.roots.is_empty() => Some(highest(topology)),
            Ways::UpDown => {
                let switch = |name: &String| switch(topology, name);
                Some(config.roots.iter().map(switch).collect::<Result<_, _>>()?)
            }
        };
        let mut failed = BTreeSet::new();
        for name in &config.failed {
            failed.extend(topology.cables_named(name)?);
        }
        let fixed = resolve(topology, &config.fixed)?;
        Ok(Self::build(topology, Plan { roots, failed, fixed, by_lid: None }))
    }

    /// The ways of tables by LID, as a subnet manager writes them.
    #[must_use]
    pub fn by_lid(topology: &Topology, tables: Arc<LidTables>) -> Self {
        Self::build(topology, Plan { by_lid: Some(tables), ..Plan::default() })
    }

    /// The tables by LID, if these are the ways of such.
    #[must_use]
    pub fn lid_tables(&self) -> Option<&LidTables> {
        self.plan.by_lid.as_deref()
    }

    /// These routes with entries that are as they are written.
    ///
    /// # Errors
    /// An entry names what the topology does not have.
    pub fn fixed(mut self, topology: &Topology, entries: &[Fixed]) -> Result<Self, RoutingError> {
        self.plan.fixed.extend(resolve(topology, entries)?);
        Ok(Self::build(topology, self.plan))
    }

    /// The routes after a cable has failed.
    pub fn down(&mut self, topology: &Topology, cable: usize) {
        self.plan.failed.insert(cable);
        *self = Self::build(topology, std::mem::take(&mut self.plan));
    }

    /// The routes after a cable has been repaired.
    pub fn up(&mut self, topology: &Topology, cable: usize) {
        self.plan.failed.remove(&cable);
        *self = Self::build(topology, std::mem::take(&mut self.plan));
    }

    /// The cables that carry nothing.
    #[must_use]
    pub fn failed(&self) -> &BTreeSet<usize> {
        &self.plan.failed
    }

    /// The ports of `node` that lead to `host`; empty if none does.
    #[must_use]
    pub fn ports(&self, node: NodeId, host: usize) -> &[u16] {
        if let Some(tables) = &self.plan.by_lid {
            return tables.ports(node, host);
        }
        self.list(node, host).and_then(|list| self.ports_of(list)).unwrap_or_default()
    }

    fn list(&self, node: NodeId, host: usize) -> Option<u32> {
        if !self.fixed.is_empty()
            && let Some(list) = self.fixed.get(&(node, host))
        {
            return Some(*list);
        }
        if node == host {
            return None;
        }
        let [start, end] = [self.last_of.get(host)?, self.last_of.get(host + 1)?].map(|at| *at as usize);
        let last = self.last.get(start..end)?.iter().find(|(neighbour, _)| *neighbour as usize == node);
        if let Some((_, list)) = last {
            return Some(*list);
        }
        let (row, column) = (*self.rows.get(node)? as usize, *self.columns.get(host)? as usize);
        self.table.get(row * self.width + column).copied()
    }

    fn ports_of(&self, list: u32) -> Option<&[u16]> {
        let (start, len) = *self.lists.get(list as usize)?;
        self.ports.get(start as usize..(start + len) as usize)
    }

    /// The bytes of memory that the tables take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let words = self.rows.len() + self.columns.len() + self.table.len() + self.last_of.len();
        4 * words + 8 * (self.last.len() + self.lists.len()) + 2 * self.ports.len() + 20 * self.fixed.len()
    }

    /// All ways from a host to another.
    #[must_use]
    pub fn paths(&self, topology: &Topology, from: usize, to: usize) -> Paths {
        let ports = topology.ports();
        let mut known = vec![None; ports.len()];
        self.paths_from(&ports, from, to, &mut known)
    }

    /// All ways from every node that is reached, each node once. Ways that are still being followed count as loops.
    pub(crate) fn paths_from(
        &self,
        ports: &[Vec<(usize, NodeId)>],
        from: NodeId,
        to: usize,
        known: &mut [Option<Paths>],
    ) -> Paths {
        let nowhere = Paths { count: 0, shortest: 0, longest: 0, complete: false };
        // Nodes that are being followed, and the number of their ports of which the ways are known.
        let mut stack = vec![(from, 0)];
        while let Some((node, next)) = stack.pop() {
            if node == to {
                known[node] = Some(Paths { count: 1, complete: true, ..nowhere });
                continue;
            }
            // Hosts pass nothing on.
            let is_end = node != from && node < self.columns.len();
            let here = if is_end { &[] } else { self.ports(node, to) };
            let neighbours = ports.get(node).map(Vec::as_slice).unwrap_or_default();
            let neighbour = |port: &u16| neighbours.get(usize::from(*port)).map(|(_, node)| *node);
            if next == 0 {
                known[node] = Some(nowhere);
            }
            if let Some(port) = here.get(next) {
                stack.push((node, next + 1));
                if let Some(neighbour) = neighbour(port)
                    && known[neighbour].is_none()
                {
                    stack.push((neighbour, 0));
                }
                continue;
            }
            let ways =
                here.iter().map(|port| neighbour(port).and_then(|node| known[node]).unwrap_or(nowhere));
            known[node] = Some(ways.reduce(Paths::or).map_or(nowhere, Paths::after_a_cable));
        }
        known[from].unwrap_or(nowhere)
    }
}

/// The ways from one node to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paths {
    /// How many there are.
    pub count: u64,
    /// The number of cables of the shortest.
    pub shortest: usize,
    /// The number of cables of the longest.
    pub longest: usize,
    /// Whether all ways arrive: none is a loop, and none ends elsewhere.
    pub complete: bool,
}

impl Paths {
    fn or(self, other: Self) -> Self {
        let complete = self.complete && other.complete;
        match (self.count, other.count) {
            (_, 0) => Self { complete, ..self },
            (0, _) => Self { complete, ..other },
            (one, two) => Self {
                count: one.saturating_add(two),
                shortest: self.shortest.min(other.shortest),
                longest: self.longest.max(other.longest),
                complete,
            },
        }
    }

    const fn after_a_cable(self) -> Self {
        if self.count == 0 {
            return self;
        }
        Self { shortest: self.shortest + 1, longest: self.longest + 1, ..self }
    }
}

/// The pairs of hosts, from one to the other, by the number of cables of the shortest way.
#[must_use]
pub fn lengths(topology: &Topology) -> BTreeMap<usize, u64> {
    build::lengths(topology)
}

/// The switches of the highest tier.
fn highest(topology: &Topology) -> Vec<NodeId> {
    let top = topology.tiers().max(1);
    (0..topology.nodes.len())
        .filter(|node| topology.nodes[*node].kind == Kind::Switch { tier: top })
        .collect()
}

/// The switch of this name.
fn switch(topology: &Topology, name: &str) -> Result<NodeId, RoutingError> {
    let node = topology.node(name)?;
    if node < topology.hosts() { Err(RoutingError::Host { name: name.to_owned() }) } else { Ok(node) }
}

/// The entries in numbers.
fn resolve(
    topology: &Topology,
    entries: &[Fixed],
) -> Result<BTreeMap<(NodeId, usize), Vec<u16>>, RoutingError> {
    let ports = topology.ports();
    let mut fixed = BTreeMap::new();
    for Fixed { switch: name, host, to, port } in entries {
        let node = switch(topology, name)?;
        let to_host = topology.node(host)?;
        if to_host >= topology.hosts() {
            return Err(RoutingError::Switch { name: host.clone() });
        }
        let of = ports.get(node).map(Vec::as_slice).unwrap_or_default();
        let found: Vec<u16> = match (to, port) {
            (None, Some(port)) if usize::from(*port) < of.len() => vec![*port],
            (None, Some(port)) => {
                let last = of.len().saturating_sub(1);
                return Err(RoutingError::Port { switch: name.clone(), port: *port, last });
            }
            (Some(to), None) => {
                let to = topology.node(to)?;
                (0..=u16::MAX).zip(of).filter(|(_, (_, next))| *next == to).map(|(port, _)| port).collect()
            }
            _ => return Err(RoutingError::Entry { switch: name.clone(), host: host.clone() }),
        };
        if found.is_empty() {
            let to = to.clone().unwrap_or_default();
            return Err(RoutingError::Neighbour { switch: name.clone(), to });
        }
        fixed.insert((node, to_host), found);
    }
    Ok(fixed)
}
