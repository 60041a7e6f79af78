//! Ways by LID: the linear forwarding tables of switches, as a subnet manager writes them.
//!
//! A host has one LID or several in a row; each is a way of its own, and a sender chooses one by its flow.

use crate::topology::NodeId;

/// Forwarding tables by LID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LidTables {
    /// By host: its first LID, 0 if it has none, and the logarithm of their number.
    addresses: Vec<(u16, u8)>,
    /// By node and LID: a port, or none.
    entries: Vec<Vec<u16>>,
}

impl LidTables {
    /// An entry that leads nowhere.
    pub const NO_PORT: u16 = u16::MAX;

    /// The tables of all nodes. `addresses`: by host, its first LID and the logarithm of their number. `entries`: by node and
    /// LID, the port or [`NO_PORT`](Self::NO_PORT).
    #[must_use]
    pub const fn new(addresses: Vec<(u16, u8)>, entries: Vec<Vec<u16>>) -> Self {
        Self { addresses, entries }
    }

    /// The entries of a node for all LIDs of a host. A host sends all through its only port.
    pub(super) fn ports(&self, node: NodeId, host: usize) -> &[u16] {
        let Some((first, lmc)) = self.addresses.get(host).copied().filter(|(first, _)| *first != 0) else {
            return &[];
        };
        if node < self.addresses.len() {
            return if node == host { &[] } else { &[0] };
        }
        let entries = self.entries.get(node).map(Vec::as_slice).unwrap_or_default();
        let first = usize::from(first);
        let end = (first + (1usize << lmc.min(7))).min(entries.len());
        entries.get(first..end).unwrap_or_default()
    }

    /// The LID of a host by which packets of this flow come to a node.
    #[must_use]
    pub fn lid(&self, node: NodeId, host: usize, flow: u64) -> Option<u16> {
        let (first, _) = self.addresses.get(host).copied()?;
        let way = flow.checked_rem(self.ports(node, host).len() as u64)?;
        Some(first + way as u16)
    }

    /// The port of a node to a host, on the way of this flow.
    #[must_use]
    pub fn port(&self, node: NodeId, host: usize, flow: u64) -> Option<u16> {
        let ports = self.ports(node, host);
        let way = flow.checked_rem(ports.len() as u64)?;
        ports.get(way as usize).copied().filter(|port| *port != Self::NO_PORT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lid_of_a_host_is_a_way_of_its_own() {
        // Two hosts at node 2: LIDs 1, and 4 and 5.
        let none = LidTables::NO_PORT;
        let tables =
            LidTables::new(vec![(1, 0), (4, 1)], vec![vec![], vec![], vec![none, 0, none, none, 1, 2]]);
        assert_eq!((tables.ports(2, 0), tables.ports(2, 1)), (&[0][..], &[1, 2][..]));
        assert_eq!([0, 1, 2].map(|flow| tables.port(2, 1, flow)), [Some(1), Some(2), Some(1)]);
        assert_eq!((tables.ports(0, 1), tables.ports(0, 0)), (&[0][..], &[][..]));
        assert_eq!([0, 1, 2].map(|flow| tables.lid(2, 1, flow)), [Some(4), Some(5), Some(4)]);
        assert_eq!((tables.lid(2, 0, 7), tables.lid(2, 9, 0)), (Some(1), None));
    }

    #[test]
    fn what_no_table_knows_leads_nowhere() {
        let tables = LidTables::new(
            vec![(0, 0), (9, 3), (1, 0)],
            vec![Vec::new(), Vec::new(), Vec::new(), vec![7; 3]],
        );
        assert_eq!((tables.ports(3, 0), tables.ports(3, 1), tables.ports(3, 5)), (&[][..], &[][..], &[][..]));
        assert_eq!((tables.port(3, 1, 0), tables.port(3, 2, 0)), (None, Some(7)));
        let tables = LidTables::new(vec![(1, 0)], vec![Vec::new(), vec![0, LidTables::NO_PORT]]);
        assert_eq!(tables.port(1, 0, 0), None);
    }
}
