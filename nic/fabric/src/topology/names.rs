//! Names of directions.

use super::Topology;
use std::collections::BTreeMap;

impl Topology {
    /// For every node the names of its ports: the direction of the cable that each sends into, such as `leaf3>spine1`, or
    /// `leaf3>spine1.2` for the second of several.
    #[must_use]
    pub fn port_names(&self) -> Vec<Vec<String>> {
        let mut seen: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let all = self.ports();
        let name = |from: usize, to: usize, number: usize| match number {
            1 => format!("{}>{}", self.name(from), self.name(to)),
            _ => format!("{}>{}.{number}", self.name(from), self.name(to)),
        };
        let mut names = Vec::new();
        for (from, ports) in all.iter().enumerate() {
            let mut of_node = Vec::new();
            for (_, to) in ports {
                let number = seen.entry((from, *to)).or_default();
                *number += 1;
                of_node.push(name(from, *to, *number));
            }
            names.push(of_node);
        }
        names
    }
}
