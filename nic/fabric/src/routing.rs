//! The ports of each switch that lead to a host.

use crate::topology::{NodeId, Topology};

/// For each node and each host, the ports through which the shortest ways to the host lead.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    hosts: usize,
    /// By node and host: where its ports are.
    ranges: Vec<(u32, u16)>,
    ports: Vec<u16>,
}

impl Routes {
    /// The shortest ways, by the number of cables.
    #[must_use]
    pub fn shortest(topology: &Topology) -> Self {
        let (neighbours, hosts) = (topology.ports(), topology.hosts());
        let nodes = topology.nodes.len();
        let mut ways = vec![Vec::new(); nodes * hosts];
        for host in 0..hosts {
            let distance = distances(&neighbours, host, hosts);
            for (node, of) in neighbours.iter().enumerate() {
                let Some(here) = distance[node].filter(|d| *d > 0) else { continue };
                let nearer = (0u16..).zip(of).filter(|(_, (_, next))| distance[*next] == Some(here - 1));
                ways[node * hosts + host] = nearer.map(|(port, _)| port).collect();
            }
        }
        Self::from_ways(hosts, &ways)
    }

    fn from_ways(hosts: usize, ways: &[Vec<u16>]) -> Self {
        let mut routes = Self { hosts, ..Self::default() };
        for ports in ways {
            let start = u32::try_from(routes.ports.len()).unwrap_or(u32::MAX);
            routes.ranges.push((start, u16::try_from(ports.len()).unwrap_or(u16::MAX)));
            routes.ports.extend(ports);
        }
        routes
    }

    /// The ports of `node` that lead to `host`; empty if none does.
    #[must_use]
    pub fn ports(&self, node: NodeId, host: usize) -> &[u16] {
        let range = self.ranges.get(node * self.hosts + host);
        let slice = range.and_then(|(start, len)| {
            let start = usize::try_from(*start).ok()?;
            self.ports.get(start..start + usize::from(*len))
        });
        slice.unwrap_or_default()
    }
}

/// How many cables every node is away from a host. Hosts pass nothing on.
fn distances(neighbours: &[Vec<(usize, NodeId)>], host: usize, hosts: usize) -> Vec<Option<u32>> {
    let mut distance = vec![None; neighbours.len()];
    distance[host] = Some(0);
    let mut front = vec![host];
    for away in 1.. {
        let mut next = Vec::new();
        for node in front.drain(..).filter(|node| *node == host || *node >= hosts) {
            for (_, to) in &neighbours[node] {
                if distance[*to].is_none() {
                    distance[*to] = Some(away);
                    next.push(*to);
                }
            }
        }
        if next.is_empty() {
            break;
        }
        front = next;
    }
    distance
}
