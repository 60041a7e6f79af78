//! In-network reduction: switches add up what hosts send to a group, and answer with the sum. Only for `network`.
//!
//! The switches that take part form a tree, a part of the tree along which packets to groups go. A switch has a slot for each
//! block under way. It waits for all of its children, adds their numbers, and sends one packet up; the root sends the sum down.
//! Slots keep the last sums: a child that asks again gets the answer at once, and nothing is added twice.
//!
//! Slots are bounded, and a group reserves its own when it joins: twice the window of its hosts, so that no block that
//! somebody still needs is overwritten (`rnic_collectives::InNetwork` says why). A packet for which there is no slot is
//! dropped, and counted as [`Drop::NoSlot`]; its host sends it again.
//!
//! Limits: sums of integers; a switch adds at the rate of its ports; a group has one tree, and what is lost when a switch or a
//! cable of it fails does not come back.

use super::{Drop, Fabric, Node, Role};
use crate::topology::{Kind, NodeId};
use qp::wire::icrc;
use rnic_collectives::block::{BlockHeader, BlockKind};
use rnic_core::sim::Packet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// The opcode of a datagram without immediate data.
const UD_SEND_ONLY: u8 = 0x64;

/// BTH and DETH.
const TRANSPORT: usize = 12 + 8;
const ICRC: usize = 4;
/// Where a BTH has its PSN.
const PSN: std::ops::Range<usize> = 9..12;

/// What a switch can add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReductionConfig {
    /// Blocks that it can hold.
    pub slots: u32,
}

/// Why a group cannot use the switches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReductionError {
    /// A switch of the tree does not take part.
    #[error("{switch} does not add: give it `reduction = {{ slots = 128 }}`")]
    NoReduction {
        /// The switch.
        switch: String,
    },
    /// A switch of the tree has not enough slots left.
    #[error("{switch} has {left} slots left, and the group needs {needed}: twice its window")]
    NoSlots {
        /// The switch.
        switch: String,
        /// Slots that no group has.
        left: u32,
        /// Slots that the group needs.
        needed: u32,
    },
    /// The hosts have no switch in common.
    #[error("no switch connects the hosts")]
    NoTree,
}

/// What switches have added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReductionStats {
    /// Blocks whose sum of all hosts was found, at roots.
    pub blocks: u64,
    /// Packets of a child that a sum already had.
    pub duplicates: u64,
    /// Of those: answered with the result, or with the sum going up again.
    pub answers: u64,
    /// Packets of blocks that are over, and packets that do not belong to their block.
    pub stale: u64,
}

/// A block.
#[derive(Clone, Debug, Default)]
struct Slot {
    header: Option<BlockHeader>,
    /// A bit for each child whose numbers are in the sums.
    came: Vec<u64>,
    missing: usize,
    /// The sums of our children, or of all once the result came by.
    sums: Vec<u8>,
    has_result: bool,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is in a sum, or already was.
    Taken,
    /// There is no slot for it.
    NoSlot,
    /// The sum goes up.
    Up,
    /// The sum goes to all children.
    Down,
    /// The result goes to the child that asked again.
    Answer,
}

/// A group at a switch.
#[derive(Clone, Debug)]
struct Part {
    number: u32,
    /// Ports behind which there are hosts of the group.
    children: Vec<u16>,
    /// `None` at the root.
    parent: Option<u16>,
    slots: Vec<Slot>,
}

/// The ports of a switch towards its children in the tree of a group, and that towards its parent; the root has none.
type Branch = (Vec<u16>, Option<u16>);

impl Part {
    fn slot(&mut self, block: u32) -> &mut Slot {
        let slots = self.slots.len();
        &mut self.slots[block as usize % slots]
    }

    /// The numbers of a child.
    fn add(&mut self, header: &BlockHeader, numbers: &[u8], port: u16, stats: &mut ReductionStats) -> Fate {
        let children = self.children.len();
        let is_root = self.parent.is_none();
        let Some(child) = self.children.iter().position(|child| *child == port) else { return Fate::Taken };
        let slot = self.slot(header.block);
        let age = slot.header.map_or(1, |there| header.block.wrapping_sub(there.block).cast_signed());
        if age > 0 {
            if slot.header.is_some() && slot.missing > 0 {
                return Fate::NoSlot;
            }
            slot.header = Some(*header);
            slot.came.clear();
            slot.came.resize(children.div_ceil(64), 0);
            (slot.missing, slot.has_result) = (children, false);
            slot.sums.clear();
            slot.sums.resize(numbers.len(), 0);
        } else if age < 0 || slot.header != Some(*header) {
            stats.stale += 1;
            return Fate::Taken;
        }
        let (word, bit) = (child / 64, 1 << (child % 64));
        if slot.came[word] & bit != 0 {
            stats.duplicates += 1;
            if slot.missing > 0 {
                return Fate::Taken;
            }
            stats.answers += 1;
            return if slot.has_result { Fate::Answer } else { Fate::Up };
        }
        slot.came[word] |= bit;
        slot.missing -= 1;
        header.element.add(&mut slot.sums, numbers);
        if slot.missing > 0 {
            return Fate::Taken;
        }
        slot.has_result = is_root;
        stats.blocks += u64::from(is_root);
        if is_root { Fate::Down } else { Fate::Up }
    }

    /// A result comes by on its way down.
    fn remember(&mut self, header: &BlockHeader, numbers: &[u8]) {
        let slot = self.slot(header.block);
        let is_same = slot.header.is_some_and(|there| there.block == header.block);
        if is_same && slot.missing == 0 && slot.sums.len() == numbers.len() {
            slot.sums.copy_from_slice(numbers);
            slot.has_result = true;
        }
    }
}

/// What a switch adds up.
#[derive(Clone, Debug)]
pub(super) struct Reducer {
    parts: BTreeMap<IpAddr, Part>,
    stats: ReductionStats,
    /// The source of its packets.
    address: IpAddr,
    psn: u32,
}

impl Reducer {
    fn new(node: NodeId) -> Self {
        // Hosts are 10.0.0.1 and so on; no simulated fabric has as many as that.
        let [.., high, low] = (node as u32).to_be_bytes();
        let address = Ipv4Addr::new(10, 255, high, low).into();
        Self { parts: BTreeMap::new(), stats: ReductionStats::default(), address, psn: 0 }
    }

    /// Turns a packet of a group into one that carries the sums of a slot.
    fn make(&mut self, from: &Packet, header: &BlockHeader, buffer: &mut Vec<u8>) -> Option<Packet> {
        let slot = self.parts.get_mut(&from.ip.dst)?.slot(header.block);
        let kind = if slot.has_result { BlockKind::Result } else { BlockKind::Contribution };
        buffer.truncate(TRANSPORT);
        self.psn = self.psn.wrapping_add(1) & 0x00ff_ffff;
        buffer.get_mut(PSN)?.copy_from_slice(&self.psn.to_be_bytes()[1..]);
        buffer.extend_from_slice(&BlockHeader { kind, ..*header }.emit());
        buffer.extend_from_slice(&slot.sums);
        let ip = qp::wire::IpHeader { src: self.address, hop_limit: 64, ident: 0, ..from.ip };
        let icrc = icrc::compute(&ip.flow(), 0, buffer);
        buffer.extend_from_slice(&icrc.to_le_bytes());
        Some(Packet::new(ip, buffer))
    }
}

/// The block that a packet carries, if it is a datagram with a right ICRC.
fn block_of<'a>(packet: &Packet, bytes: &'a [u8]) -> Option<(BlockHeader, &'a [u8])> {
    let (covered, sum) = bytes.split_at_checked(bytes.len().checked_sub(ICRC)?)?;
    let is_whole = icrc::compute(&packet.ip.flow(), packet.ip.ident, covered).to_le_bytes() == sum;
    if covered.first() != Some(&UD_SEND_ONLY) || !is_whole {
        return None;
    }
    BlockHeader::parse(covered.get(TRANSPORT..)?)
}

impl Fabric {
    /// Has switches add up what these hosts send to a group, in packets with this group number. Each switch reserves as many
    /// slots as said.
    ///
    /// # Errors
    /// A switch of the tree does not take part, or has no slots left: then nothing is reserved.
    pub fn join_reduction(
        &mut self,
        group: IpAddr,
        number: u32,
        hosts: &[usize],
        slots: u32,
    ) -> Result<(), ReductionError> {
        let parts = self.reduction_tree(group, hosts)?;
        for node in parts.keys() {
            let switch = self.topology.nodes[*node].name.clone();
            let Role::Switch(of) = &self.nodes[*node].role else { continue };
            let Some(config) = self.configs[of.config].reduction else {
                return Err(ReductionError::NoReduction { switch });
            };
            let taken = of.reducer.iter().flat_map(|reducer| reducer.parts.values());
            let taken: usize = taken.map(|part| part.slots.len()).sum();
            let left = config.slots.saturating_sub(taken as u32);
            if slots == 0 || slots > left {
                return Err(ReductionError::NoSlots { switch, left, needed: slots });
            }
        }
        for (node, (children, parent)) in parts {
            let Role::Switch(switch) = &mut self.nodes[node].role else { continue };
            let reducer = switch.reducer.get_or_insert_with(|| Box::new(Reducer::new(node)));
            let slots = vec![Slot::default(); slots as usize];
            reducer.parts.insert(group, Part { number, children, parent, slots });
        }
        Ok(())
    }

    /// For each switch that takes part: the ports to its children, and that to its parent.
    fn reduction_tree(
        &self,
        group: IpAddr,
        hosts: &[usize],
    ) -> Result<BTreeMap<NodeId, Branch>, ReductionError> {
        let mut parts: BTreeMap<NodeId, Branch> = BTreeMap::new();
        let tree = self.tree_of(group);
        let root = super::setup::root(&self.topology, |node| !tree[node].is_empty());
        let mut root = root.ok_or(ReductionError::NoTree)?;
        let parents = self.parents(tree, root);
        for host in hosts {
            let mut node = *host;
            while node != root {
                let up = parents.get(node).copied().flatten().ok_or(ReductionError::NoTree)?;
                if let Some((_, parent)) = parts.get_mut(&node) {
                    *parent = Some(up);
                }
                let (above, far) = self.nodes[node].ports[usize::from(up)].peer;
                let (children, _) = parts.entry(above).or_default();
                if children.contains(&far) {
                    // Its way up is known, but for its parent's port, which the first one has set.
                    break;
                }
                children.push(far);
                node = above;
            }
        }
        // A switch with a single child that is a switch adds nothing: the root is the first one that does.
        while let Some(([only], _)) = parts.get(&root).map(|(children, up)| (children.as_slice(), up)) {
            let (below, _) = self.nodes[root].ports[usize::from(*only)].peer;
            if self.topology.nodes[below].kind == Kind::Host {
                break;
            }
            parts.remove(&root);
            root = below;
            if let Some((_, parent)) = parts.get_mut(&root) {
                *parent = None;
            }
        }
        parts.values_mut().for_each(|(children, _)| children.sort_unstable());
        if parts.is_empty() { Err(ReductionError::NoTree) } else { Ok(parts) }
    }

    /// By node of a tree: the port that leads to the root.
    fn parents(&self, tree: &[Vec<u16>], root: NodeId) -> Vec<Option<u16>> {
        let mut parents = vec![None; tree.len()];
        let mut front = vec![root];
        while let Some(node) = front.pop() {
            for port in &tree[node] {
                let (peer, far) = self.nodes[node].ports[usize::from(*port)].peer;
                if peer != root && parents[peer].is_none() {
                    parents[peer] = Some(far);
                    front.push(peer);
                }
            }
        }
        parents
    }

    /// What all switches have added up. `None`: no group uses them.
    #[must_use]
    pub fn reductions(&self) -> Option<ReductionStats> {
        let all = self.nodes.iter().filter_map(|node| match &node.role {
            Role::Switch(switch) => switch.reducer.as_ref().map(|reducer| reducer.stats),
            Role::Host(_) => None,
        });
        all.reduce(|a, b| ReductionStats {
            blocks: a.blocks + b.blocks,
            duplicates: a.duplicates + b.duplicates,
            answers: a.answers + b.answers,
            stale: a.stale + b.stale,
        })
    }

    /// A packet to a group has come to a switch: whether the switch takes part, and has done with it what it does.
    pub(super) fn reduce(&mut self, node: NodeId, port: usize, packet: u32) -> bool {
        let Node { role: Role::Switch(switch), .. } = &mut self.nodes[node] else { return false };
        let Some(reducer) = &mut switch.reducer else { return false };
        let travelling = &mut self.packets[packet as usize];
        let Some(part) = reducer.parts.get_mut(&travelling.packet.ip.dst) else { return false };
        let mut bytes = Vec::new();
        travelling.packet.write_to(&mut bytes);
        let block = block_of(&travelling.packet, &bytes).filter(|_| !travelling.is_damaged);
        let Some((header, numbers)) = block.filter(|(header, _)| header.group == part.number) else {
            self.refuse(node, port, packet, Drop::Damaged);
            return true;
        };
        let (children, parent, from) = (part.children.clone(), part.parent, port as u16);
        if header.kind == BlockKind::Result {
            if parent == Some(from) {
                part.remember(&header, numbers);
                self.spread(node, port, packet, &children);
            } else {
                self.refuse(node, port, packet, Drop::NoRoute);
            }
            return true;
        }
        let fate = part.add(&header, numbers, from, &mut reducer.stats);
        if !matches!(fate, Fate::Taken | Fate::NoSlot)
            && let Some(made) = reducer.make(&travelling.packet, &header, &mut bytes)
        {
            travelling.packet = made;
        }
        match (fate, parent) {
            (Fate::Down, _) => self.spread(node, port, packet, &children),
            (Fate::Answer, _) => self.spread(node, port, packet, &[from]),
            (Fate::Up, Some(parent)) => self.spread(node, port, packet, &[parent]),
            (Fate::NoSlot, _) => self.refuse(node, port, packet, Drop::NoSlot),
            _ => self.absorb(node, port, packet),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic_collectives::Element;

    fn part(parent: Option<u16>) -> Part {
        Part { number: 1, children: vec![2, 5, 9], parent, slots: vec![Slot::default(); 4] }
    }

    fn header(block: u32) -> BlockHeader {
        BlockHeader { kind: BlockKind::Contribution, element: Element::U32, group: 1, block, count: 1 }
    }

    fn add(part: &mut Part, block: u32, port: u16, stats: &mut ReductionStats) -> Fate {
        part.add(&header(block), &u32::from(port).to_le_bytes(), port, stats)
    }

    #[test]
    fn a_block_is_complete_when_each_child_came_once() {
        let (mut part, mut stats) = (part(None), ReductionStats::default());
        let mut come = |port| add(&mut part, 7, port, &mut stats);
        assert_eq!([2, 2, 9, 4].map(&mut come), [Fate::Taken; 4], "port 4 is no child");
        assert_eq!(come(5), Fate::Down);
        assert_eq!(come(9), Fate::Answer);
        assert_eq!(part.slot(7).sums, 16_u32.to_le_bytes());
        assert_eq!((stats.blocks, stats.duplicates, stats.answers), (1, 2, 1));
    }

    #[test]
    fn below_the_root_the_sum_goes_up_again_until_the_result_came_by() {
        let (mut part, mut stats) = (part(Some(0)), ReductionStats::default());
        let mut fates = [2, 5, 9, 5].map(|port| add(&mut part, 3, port, &mut stats));
        assert_eq!(fates, [Fate::Taken, Fate::Taken, Fate::Up, Fate::Up]);
        part.remember(&header(2), &[1; 4]);
        fates[0] = add(&mut part, 3, 2, &mut stats);
        assert_eq!(fates[0], Fate::Up, "that was another block");
        part.remember(&header(3), &[1; 4]);
        assert_eq!(
            (add(&mut part, 3, 2, &mut stats), part.slot(3).sums.as_slice()),
            (Fate::Answer, &[1; 4][..])
        );
    }

    #[test]
    fn a_slot_is_free_when_its_block_is_complete() {
        let (mut part, mut stats) = (part(None), ReductionStats::default());
        // Four slots: block 4 needs that of block 0, and block 3 does not.
        assert_eq!(add(&mut part, 0, 2, &mut stats), Fate::Taken);
        assert_eq!(
            (add(&mut part, 3, 2, &mut stats), add(&mut part, 4, 2, &mut stats)),
            (Fate::Taken, Fate::NoSlot)
        );
        assert_eq!([5, 9].map(|port| add(&mut part, 0, port, &mut stats)), [Fate::Taken, Fate::Down]);
        assert_eq!(add(&mut part, 4, 2, &mut stats), Fate::Taken);
        assert_eq!((add(&mut part, 0, 2, &mut stats), stats.stale), (Fate::Taken, 1), "block 0 is over");
        let other = BlockHeader { element: Element::U64, ..header(4) };
        assert_eq!(
            (part.add(&other, &[0; 8], 5, &mut stats), stats.stale),
            (Fate::Taken, 2),
            "not the same block"
        );
    }
}
