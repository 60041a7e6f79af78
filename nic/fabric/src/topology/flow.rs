//! The most that a network can carry from one node to another, by Dinic's algorithm.

/// Nodes and edges with capacities.
#[derive(Debug)]
pub(super) struct Network {
    /// By node: its edges, as indices in `edges`.
    of: Vec<Vec<u32>>,
    /// Where each edge leads, and what it can still carry. The other direction of edge `e` is edge `e ^ 1`.
    edges: Vec<(usize, u64)>,
}

impl Network {
    pub(super) fn new(nodes: usize) -> Self {
        Self { of: vec![Vec::new(); nodes], edges: Vec::new() }
    }

    /// Adds an edge, with its capacity in both directions.
    pub(super) fn edge(&mut self, from: usize, to: usize, forth: u64, back: u64) {
        for (from, to, capacity) in [(from, to, forth), (to, from, back)] {
            // A topology has at most 2^20 cables.
            let number = u32::try_from(self.edges.len()).unwrap_or(u32::MAX);
            if let Some(of) = self.of.get_mut(from) {
                of.push(number);
            }
            self.edges.push((to, capacity));
        }
    }

    /// The most that all edges together can carry from `source` to `sink`.
    pub(super) fn max_flow(&mut self, source: usize, sink: usize) -> u64 {
        let mut flow: u64 = 0;
        loop {
            let level = self.levels(source);
            if level.get(sink).is_none_or(|level| *level == usize::MAX) {
                return flow;
            }
            // The first edge of each node that may still lead to the sink.
            let mut first = vec![0; self.of.len()];
            while let Some(more) = self.path(source, sink, &level, &mut first) {
                flow = flow.saturating_add(more);
            }
        }
    }

    /// How many edges with capacity each node is away from the source.
    fn levels(&self, source: usize) -> Vec<usize> {
        let mut level = vec![usize::MAX; self.of.len()];
        level[source] = 0;
        let mut front = vec![source];
        while !front.is_empty() {
            let mut next = Vec::new();
            for node in front {
                for (to, capacity) in self.of[node].iter().filter_map(|edge| self.edges.get(*edge as usize)) {
                    if *capacity > 0 && level[*to] == usize::MAX {
                        level[*to] = level[node] + 1;
                        next.push(*to);
                    }
                }
            }
            front = next;
        }
        level
    }

    /// Fills a path that leads away from the source with every edge. Returns what it carries.
    fn path(&mut self, source: usize, sink: usize, level: &[usize], first: &mut [usize]) -> Option<u64> {
        let mut path: Vec<usize> = Vec::new();
        let mut node = source;
        while node != sink {
            let edge = self.of[node].get(first[node]).map(|edge| *edge as usize);
            let Some(edge) = edge else {
                // A dead end: its last edge leads nowhere.
                node = self.edges[path.pop()? ^ 1].0;
                first[node] += 1;
                continue;
            };
            let (to, capacity) = self.edges[edge];
            if capacity > 0 && level[to] == level[node].saturating_add(1) {
                path.push(edge);
                node = to;
            } else {
                first[node] += 1;
            }
        }
        let least = path.iter().map(|edge| self.edges[*edge].1).min()?;
        for edge in path {
            self.edges[edge].1 -= least;
            self.edges[edge ^ 1].1 = self.edges[edge ^ 1].1.saturating_add(least);
        }
        Some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_cut_limits_the_flow() {
        // Two ways of 3 and 2, with a cable of 1 between them, and 4 behind the first.
        let mut network = Network::new(4);
        for (from, to, rate) in [(0, 1, 3), (0, 2, 2), (1, 2, 1), (1, 3, 2), (2, 3, 4)] {
            network.edge(from, to, rate, rate);
        }
        assert_eq!(network.max_flow(0, 3), 5);
        assert_eq!(Network::new(2).max_flow(0, 1), 0);
    }

    #[test]
    fn a_flow_is_moved_aside_when_that_makes_room() {
        // The shortest path takes the middle edge, which both others need.
        let mut network = Network::new(6);
        for (from, to) in [(0, 1), (0, 2), (1, 3), (2, 3), (1, 4), (3, 5), (4, 5)] {
            network.edge(from, to, 1, 0);
        }
        assert_eq!(network.max_flow(0, 5), 2);
    }
}
