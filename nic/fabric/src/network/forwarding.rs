//! Forwarding as a subnet manager has written it: LIDs, forwarding tables, lanes of service levels, turns of lanes, and which
//! links are active.

use super::Fabric;
use crate::routing::{LidTables, Routes};
use crate::subnet::{LinkState, PortTable, Tables, TablesError};
use crate::switch::queues::Selection;
use crate::topology::{Kind, NodeId, Topology};
use cc::vl;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The lanes of the service levels of a packet that leaves a port, by the port through which it came in. A host has one such
/// table.
pub(super) type Lanes = Box<[[u8; 16]]>;

/// What the tables say of a port.
#[derive(Clone, Debug)]
struct PortRules {
    lanes: Lanes,
    arbitration: vl::Config,
}

/// Tables in the numbers of a topology.
#[derive(Clone, Debug)]
pub struct Forwarding {
    lids: Arc<LidTables>,
    /// By node and port.
    ports: Vec<Vec<PortRules>>,
    /// By cable: whether both of its ends are active.
    active: Vec<bool>,
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
                addresses.push((host.lid, host.lmc.min(7)));
                entries.push(Vec::new());
                let lanes = vec![lanes_of(name, &host.sl2vl)?].into_boxed_slice();
                ports.push(vec![PortRules { lanes, arbitration: arbitration(name, &host.port)? }]);
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
                rules.push(PortRules { lanes, arbitration: arbitration(name, of)? });
            }
            ports.push(rules);
        }
        Ok(Self { lids: Arc::new(LidTables::new(addresses, entries)), ports, active })
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
    /// Forwards by these tables from now on. Links whose ends are not both active carry nothing, like cables that are cut.
    /// Lanes and turns have a meaning in InfiniBand's model only.
    pub fn forward_by(&mut self, tables: &Forwarding) {
        self.routes = Arc::new(tables.routes(&self.topology));
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

    fn set_rules(&mut self, node: NodeId, port: usize, rules: &PortRules) {
        let Some(of) = self.nodes.get_mut(node) else { return };
        let Some(port) = of.ports.get_mut(port) else { return };
        if port.credit.is_none() {
            return;
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
