//! Forwarding as a subnet manager has written it: LIDs, forwarding tables, lanes of service levels, turns of lanes, and which
//! links are active.

use super::port::Thinning;
use super::{Fabric, Role, Travelling};
use crate::routing::{LidTables, Routes};
use crate::subnet::{
    CongestionLog, LinkState, LoggedEvent, LoggedKind, PortTable, SwitchCongestion, Tables, TablesError,
};
use crate::switch::queues::Selection;
use crate::topology::{Kind, NodeId, Topology};
use cc::dcqcn::{CongestionPoint, Red};
use cc::ibcc::Reaction;
use cc::vl;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use time::Instant;

/// The unit of the least packet that is marked: bytes for which there is one credit (IBTA volume 1, section 7.9.4).
const BLOCK: u32 = 64;

/// The marks that a switch remembers: as many as CongestionLog has room for (IBTA volume 1, annex A10.4.3.5).
const LATEST_MARKS: usize = 15;

/// The lanes of the service levels of a packet that leaves a port, by the port through which it came in. A host has one such
/// table.
pub(super) type Lanes = Box<[[u8; 16]]>;

/// What the tables say of a port.
#[derive(Clone, Debug)]
struct PortRules {
    lanes: Lanes,
    arbitration: vl::Config,
    /// How packets are marked that leave, if the tables say so.
    congestion: Option<SwitchCongestion>,
}

/// Tables in the numbers of a topology.
#[derive(Clone, Debug)]
pub struct Forwarding {
    lids: Arc<LidTables>,
    /// By node and port.
    ports: Vec<Vec<PortRules>>,
    /// By cable: whether both of its ends are active.
    active: Vec<bool>,
    /// By the address of a group: the ports of each node that belong to its tree.
    groups: BTreeMap<IpAddr, Arc<[Vec<u16>]>>,
    /// By host: how it reacts to congestion, if the tables say so.
    reactions: Vec<Option<Arc<Reaction>>>,
}

impl Forwarding {
    /// Reads tables from a file: JSON if its name ends so, or else TOML.
    ///
    /// # Errors
    /// The file cannot be read, does not hold tables, or holds those of another topology.
    pub fn read(path: &Path, topology: &Topology) -> Result<Self, TablesError> {
        let wrong = |why: String| TablesError::Read { file: path.display().to_string(), why };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let is_json = path.extension().is_some_and(|end| end == "json");
        let tables: Tables = if is_json {
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?
        } else {
            toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?
        };
        Self::new(&tables, topology)
    }

    /// The tables of the nodes of this topology.
    ///
    /// # Errors
    /// They name what the topology does not have, or lack some of it.
    pub fn new(tables: &Tables, topology: &Topology) -> Result<Self, TablesError> {
        for (name, is_host) in tables
            .hosts
            .keys()
            .map(|name| (name, true))
            .chain(tables.switches.keys().map(|name| (name, false)))
        {
            let found = topology.nodes.iter().find(|node| node.name == *name);
            if found.is_none_or(|node| (node.kind == Kind::Host) != is_host) {
                return Err(missing(name, "the topology", is_host));
            }
        }
        let neighbours = topology.ports();
        let mut active = vec![true; topology.cables.len()];
        let (mut addresses, mut entries, mut ports) = (Vec::new(), Vec::new(), Vec::new());
        let mut reactions = Vec::new();
        for (node, cables) in topology.nodes.iter().zip(&neighbours) {
            let name = &node.name;
            let mut note = |port: usize, state: LinkState| {
                if let Some(active) = cables.get(port).and_then(|(cable, _)| active.get_mut(*cable)) {
                    *active &= state == LinkState::Active;
                }
            };
            if node.kind == Kind::Host {
                let host = tables.hosts.get(name).ok_or_else(|| missing(name, "the tables", true))?;
                note(0, host.port.state);
                let wrong = || TablesError::Congestion { name: name.clone() };
                let reaction =
                    host.congestion.as_ref().map(|of| of.reaction().ok_or_else(wrong)).transpose()?;
                reactions.push(reaction.map(Arc::new));
                addresses.push((host.lid, host.lmc.min(7)));
                entries.push(Vec::new());
                let lanes = vec![lanes_of(name, &host.sl2vl)?].into_boxed_slice();
                let arbitration = arbitration(name, &host.port)?;
                ports.push(vec![PortRules { lanes, arbitration, congestion: None }]);
                continue;
            }
            let switch = tables.switches.get(name).ok_or_else(|| missing(name, "the tables", false))?;
            entries.push(switch.lft.iter().map(|port| fabric_port(*port)).collect());
            let between = lanes_between(name, switch, cables.len())?;
            let mut rules = Vec::new();
            for (port, lanes) in between.into_iter().enumerate() {
                let number = (port + 1).to_string();
                let of =
                    switch.port.get(&number).ok_or(TablesError::Port { name: name.clone(), port: number })?;
                note(port, of.state);
                let (arbitration, congestion) = (arbitration(name, of)?, of.congestion.or(switch.congestion));
                rules.push(PortRules { lanes, arbitration, congestion });
            }
            ports.push(rules);
        }
        let groups = tables.groups.iter().map(|(group, lid)| {
            let tree = group_tree(tables, topology, lid);
            (IpAddr::from(*group), tree.into())
        });
        let groups = groups.collect();
        Ok(Self { lids: Arc::new(LidTables::new(addresses, entries)), ports, active, groups, reactions })
    }

    /// The routes that these tables are.
    #[must_use]
    pub fn routes(&self, topology: &Topology) -> Routes {
        Routes::by_lid(topology, Arc::clone(&self.lids))
    }
}

/// The number that a port of InfiniBand has in the fabric. The management port has none.
const fn fabric_port(port: u8) -> u16 {
    match port {
        0 | 0xFF => LidTables::NO_PORT,
        port => port as u16 - 1,
    }
}

/// The ports of each node that belong to the tree of a group. Nothing belongs to it if the tables lead in a circle: packets would
/// multiply in it.
fn group_tree(tables: &Tables, topology: &Topology, lid: &str) -> Vec<Vec<u16>> {
    let neighbours = topology.ports();
    // By node and port: whether the table of the node names the port. Hosts have none, and take what comes.
    let mut named: Vec<Vec<bool>> = neighbours.iter().map(|ports| vec![true; ports.len()]).collect();
    for (node, of) in topology.nodes.iter().enumerate().filter(|(_, of)| of.kind != Kind::Host) {
        let ports = tables.switches.get(&of.name).and_then(|switch| switch.mft.get(lid));
        for (port, is_named) in (1..).zip(&mut named[node]) {
            *is_named = ports.is_some_and(|ports| ports.iter().any(|of| usize::from(*of) == port));
        }
    }
    let mut tree = vec![Vec::new(); neighbours.len()];
    // By node: another one of the same part of the tree, or itself.
    let mut parts: Vec<NodeId> = (0..neighbours.len()).collect();
    for (node, ports) in neighbours.iter().enumerate() {
        for (port, (cable, peer)) in ports.iter().enumerate() {
            let far = neighbours[*peer].iter().position(|(other, _)| other == cable).unwrap_or(0);
            if !named[node][port] || !named[*peer].get(far).copied().unwrap_or(false) {
                continue;
            }
            tree[node].push(port as u16);
            // Each cable once.
            if topology.cables[*cable].ends[0] == node && !join(&mut parts, node, *peer) {
                return vec![Vec::new(); neighbours.len()];
            }
        }
    }
    tree
}

/// Joins the parts of two nodes. False if they are in the same one already.
fn join(parts: &mut [NodeId], a: NodeId, b: NodeId) -> bool {
    let first = |mut node: NodeId| {
        while parts[node] != node {
            node = parts[node];
        }
        node
    };
    let (a, b) = (first(a), first(b));
    parts[a] = b;
    a != b
}

fn missing(name: &str, place: &'static str, is_host: bool) -> TablesError {
    TablesError::Node { name: name.to_owned(), place, kind: if is_host { "host" } else { "switch" } }
}

fn lanes_of(name: &str, text: &str) -> Result<[u8; 16], TablesError> {
    let wrong = || TablesError::Lanes { name: name.to_owned(), text: text.to_owned() };
    let lanes: Result<Vec<u8>, _> = text.split(',').map(|lane| lane.trim().parse()).collect();
    let lanes: [u8; 16] = lanes.map_err(|_| wrong())?.try_into().map_err(|_| wrong())?;
    if lanes.iter().any(|lane| *lane > 15) { Err(wrong()) } else { Ok(lanes) }
}

/// By the port through which packets leave: the lanes by the port through which they came in.
fn lanes_between(
    name: &str,
    switch: &crate::subnet::SwitchTable,
    count: usize,
) -> Result<Vec<Lanes>, TablesError> {
    let most = lanes_of(name, &switch.sl2vl)?;
    let mut between = vec![vec![most; count].into_boxed_slice(); count];
    for (ports, text) in &switch.sl2vl_of {
        let wrong = || TablesError::Port { name: name.to_owned(), port: ports.clone() };
        let (entry, out) = ports.split_once('>').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<usize>().ok().and_then(|port| port.checked_sub(1));
        let place = number(out).and_then(|out| between.get_mut(out));
        let place = place.and_then(|of| of.get_mut(number(entry)?)).ok_or_else(wrong)?;
        *place = lanes_of(name, text)?;
    }
    Ok(between)
}

/// How a threshold of congestion control marks with lanes of this many bytes: from 15 sixteenths of a lane on with 1, and from one
/// sixteenth on with 15. (IBTA volume 1, annex A10.2.1: the thresholds between no marks and the most aggressive are equally spaced; of
/// what, a vendor says.)
fn threshold(threshold: u8, lane: u64) -> Option<Red> {
    let queue = lane * u64::from(16 - threshold.min(15)) / 16;
    (threshold > 0).then_some(Red { kmin: queue, kmax: queue, pmax: 1.0 })
}

fn arbitration(name: &str, port: &PortTable) -> Result<vl::Config, TablesError> {
    let table = |text: &str| {
        let wrong = || TablesError::Lanes { name: name.to_owned(), text: text.to_owned() };
        let entry = |pair: &str| {
            let (vl, weight) = pair.split_once(':')?;
            Some(vl::Entry { vl: vl.trim().parse().ok()?, weight: weight.trim().parse().ok()? })
        };
        let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
        let entries: Vec<vl::Entry> = pairs.map(entry).collect::<Option<_>>().ok_or_else(wrong)?;
        // An entry of VL15 is skipped (IBTA volume 1, section 7.6.9).
        Ok(entries.into_iter().filter(|entry| entry.vl < 15).collect::<Vec<_>>())
    };
    let config = vl::Config {
        vlarb_low: table(&port.vlarb_low)?,
        vlarb_high: table(&port.vlarb_high)?,
        high_limit: port.high_limit,
        ..vl::Config::default()
    };
    let wrong = |why: vl::ConfigError| TablesError::Lanes { name: name.to_owned(), text: why.to_string() };
    vl::Arbiter::new(&config).map_err(wrong)?;
    Ok(config)
}

impl Fabric {
    /// Forwards by these tables from this time on, up to which everything has happened. What begins at the same time finds them.
    pub(crate) fn forward_from(&mut self, now: Instant, tables: &Forwarding) {
        self.now = now;
        self.forward_by(tables);
    }

    /// Forwards by these tables from now on. Links whose ends are not both active carry nothing, like cables that are cut.
    /// Lanes and turns have a meaning in InfiniBand's model only.
    pub fn forward_by(&mut self, tables: &Forwarding) {
        self.routes = Arc::new(tables.routes(&self.topology));
        self.trees.clone_from(&tables.groups);
        self.reactions.clone_from(&tables.reactions);
        for (node, rules) in tables.ports.iter().enumerate() {
            for (port, rules) in rules.iter().enumerate() {
                self.set_rules(node, port, rules);
            }
        }
        let mut changes = BTreeMap::new();
        for (node, cables) in self.nodes.iter().zip(self.topology.ports()) {
            for (port, (cable, _)) in node.ports.iter().zip(cables) {
                let is_active = tables.active.get(cable).copied().unwrap_or(true);
                if port.is_up != is_active {
                    changes.insert(cable, is_active);
                }
            }
        }
        changes.into_iter().for_each(|(cable, is_up)| self.cut(cable, is_up));
    }

    /// The packets that each port of a switch has marked, and those that were marked last, if there are LIDs.
    pub(crate) fn marks(&self, node: NodeId) -> CongestionLog {
        let Some(node) = self.nodes.get(node) else { return CongestionLog::default() };
        let latest = match &node.role {
            Role::Switch(switch) => switch.marks.iter().rev().cloned().collect(),
            Role::Host(_) => Vec::new(),
        };
        CongestionLog { counts: node.ports.iter().map(|port| port.stats.marked).collect(), latest }
    }

    /// Notes that a switch has marked a packet.
    pub(super) fn note_mark(&mut self, node: NodeId, packet: u32) {
        let Some(lids) = self.routes.lid_tables() else { return };
        let Role::Switch(switch) = &mut self.nodes[node].role else { return };
        let Travelling { src, dst, flow, packet, .. } = &self.packets[packet as usize];
        let [slid, dlid] =
            [(*src, 0), (*dst, *flow)].map(|(host, flow)| lids.lid(node, host, flow).unwrap_or(0));
        if switch.marks.len() >= LATEST_MARKS {
            switch.marks.pop_front();
        }
        let (at, level) = (self.now, packet.ip.tos >> 5);
        switch.marks.push_back(LoggedEvent { at, level, what: LoggedKind::Marked { slid, dlid } });
    }

    /// How a host reacts to congestion, if the tables say so.
    pub(crate) fn reaction(&self, host: NodeId) -> Option<&Arc<Reaction>> {
        self.reactions.get(host)?.as_ref()
    }

    /// The tree of a group: by node, the ports that belong to it.
    pub(super) fn tree_of(&self, group: IpAddr) -> &[Vec<u16>] {
        self.trees.get(&group).map_or(&*self.tree, |tree| &**tree)
    }

    fn set_rules(&mut self, node: NodeId, port: usize, rules: &PortRules) {
        let Some(of) = self.nodes.get_mut(node) else { return };
        let lane = match &of.role {
            Role::Switch(switch) => self.configs[switch.config].buffer.lane,
            Role::Host(_) => self.host.lane,
        };
        let number = port;
        let Some(port) = of.ports.get_mut(port) else { return };
        if port.credit.is_none() {
            return;
        }
        if let Some(congestion) = rules.congestion {
            // Marks do not depend on chance.
            let seed = (node as u64) << 16 | number as u64;
            port.marking = threshold(congestion.threshold, lane).map(|red| CongestionPoint::new(red, seed));
            let least = u32::from(congestion.packet_size) * BLOCK;
            port.thinning = Some(Thinning::new(least, congestion.marking_rate));
        }
        port.sl2vl = Some(rules.lanes.clone());
        let has_changed = port.arbitration.as_ref() != Some(&rules.arbitration);
        // The turn of a port goes on unless its tables are others.
        if has_changed && let Ok(selection) = Selection::lanes(&rules.arbitration) {
            port.queues.select_by(selection);
            port.arbitration = Some(rules.arbitration.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subnet::Subnet;
    use crate::topology::config::Config;
    use std::path::Path;

    /// Two hosts at one switch, with the tables of a subnet that nobody has initialized.
    fn star() -> (Topology, Tables) {
        let config: Config = toml::from_str("kind = \"star\"\nhosts = 2\n").expect("a topology");
        let topology = config.build(Path::new(".")).expect("it can be built");
        let tables = Subnet::new(&topology).expect("it fits").tables();
        (topology, tables)
    }

    fn switch(tables: &mut Tables) -> &mut crate::subnet::SwitchTable {
        tables.switches.values_mut().next().expect("a switch")
    }

    /// The states of ports forbid data at either end (IBTA volume 1, section 7.2.7).
    #[test]
    fn a_link_carries_data_if_both_ends_are_active() {
        let (topology, mut tables) = star();
        let active = |tables: &Tables| Forwarding::new(tables, &topology).expect("tables").active;
        assert_eq!(active(&tables), [false, false]);
        tables.hosts.values_mut().for_each(|host| host.port.state = LinkState::Active);
        assert_eq!(active(&tables), [false, false], "the switch is not");
        switch(&mut tables).port.values_mut().for_each(|port| port.state = LinkState::Active);
        assert_eq!(active(&tables), [true, true]);
        let first = tables.hosts.values_mut().next().expect("a host");
        first.port.state = LinkState::Armed;
        assert_eq!(active(&tables), [false, true], "the host is not");
    }

    /// Two leaves and two spines, with tables in which a group leads over the spines of these numbers.
    fn leaves(spines: &[u8]) -> (Topology, Tables) {
        let config: Config =
            toml::from_str("kind = \"leaf-spine\"\nleaves = 2\nspines = 2\nhosts_per_leaf = 2\n")
                .expect("a topology");
        let topology = config.build(Path::new(".")).expect("it can be built");
        let mut tables = Subnet::new(&topology).expect("it fits").tables();
        tables.groups.insert(GROUP, "0xc003".to_owned());
        for (name, switch) in &mut tables.switches {
            // Hosts are at ports 1 and 2 of leaves, spines at 3 and 4, and leaves at 1 and 2 of spines.
            let ports = match name.as_str() {
                "spine0" | "spine1" => {
                    let is_in = spines.iter().any(|spine| name.ends_with(&spine.to_string()));
                    if is_in { vec![1, 2] } else { vec![] }
                }
                _ => [1, 2].into_iter().chain(spines.iter().map(|spine| 3 + spine)).collect(),
            };
            switch.mft.insert("0xc003".to_owned(), ports);
        }
        (topology, tables)
    }

    const GROUP: std::net::Ipv4Addr = std::net::Ipv4Addr::new(239, 192, 0, 1);

    fn tree(topology: &Topology, tables: &Tables) -> Vec<Vec<u16>> {
        let forwarding = Forwarding::new(tables, topology).expect("tables");
        forwarding.groups[&IpAddr::from(GROUP)].to_vec()
    }

    #[test]
    fn a_group_has_the_tree_of_its_tables() {
        let (topology, tables) = leaves(&[1]);
        let [leaf, spine] = [vec![0, 1, 3], vec![0, 1]];
        let host = vec![0];
        let all = [&host, &host, &host, &host, &leaf, &leaf, &vec![], &spine].map(Clone::clone);
        assert_eq!(tree(&topology, &tables), all);
    }

    /// A switch sends a packet to all ports of its table but the one by which it came.
    #[test]
    fn tables_that_lead_a_group_in_a_circle_lead_nowhere() {
        let (topology, tables) = leaves(&[0, 1]);
        assert_eq!(tree(&topology, &tables), vec![Vec::<u16>::new(); 8]);
    }

    /// A cable belongs to a tree if the tables at both of its ends name it: one alone may be part of an older tree.
    #[test]
    fn both_ends_of_a_cable_belong_to_a_tree_or_neither() {
        let (topology, mut tables) = leaves(&[1]);
        let leaf =
            tables.switches.get_mut("leaf0").and_then(|leaf| leaf.mft.get_mut("0xc003")).expect("a table");
        leaf.retain(|port| *port != 4 && *port != 2);
        let tree = tree(&topology, &tables);
        assert_eq!(
            (&tree[1], &tree[4], &tree[7]),
            (&vec![], &vec![0], &vec![1]),
            "a member less, and no way up"
        );
    }

    #[test]
    fn thresholds_are_shares_of_a_lane() {
        let from = |of| threshold(of, 65_536).map(|red| (red.kmin, red.kmax));
        let all = [0, 1, 8, 15].map(from);
        assert_eq!(all, [None, Some((61_440, 61_440)), Some((32_768, 32_768)), Some((4_096, 4_096))]);
    }

    /// `2>1` is for what comes in through port 2 and leaves through port 1.
    #[test]
    fn lanes_between_ports_have_a_direction() {
        let (topology, mut tables) = star();
        let other = "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1";
        switch(&mut tables).sl2vl_of.insert("2>1".to_owned(), other.to_owned());
        let forwarding = Forwarding::new(&tables, &topology).expect("tables");
        let of = topology.nodes.iter().position(|node| node.kind != Kind::Host).expect("a switch");
        // By the port through which packets leave, and that through which they came in; both from 0.
        let lanes = |out: usize, entry: usize| forwarding.ports[of][out].lanes[entry];
        assert_eq!(lanes(0, 1), [1; 16]);
        assert_ne!(lanes(1, 0), [1; 16]);
    }
}
