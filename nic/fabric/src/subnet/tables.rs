//! What a subnet manager has written, by the names of nodes, so that a file of it can be read, compared and used again.
//!
//! For `rnic fabric serve`, which writes it, and for scenarios, whose switches forward by it
//! ([`Forwarding`](crate::network::Forwarding)).

use super::Subnet;
use super::node::{NO_PORT, Node, Port, info, state, switch_info};
use cc::ibcc;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The tables of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tables {
    /// By the name of the host.
    #[serde(rename = "host")]
    pub hosts: BTreeMap<String, HostTable>,
    /// By the name of the switch.
    #[serde(rename = "switch")]
    pub switches: BTreeMap<String, SwitchTable>,
    /// By the address of a multicast group: its LID, as in [`SwitchTable::mft`].
    #[serde(rename = "group", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<Ipv4Addr, String>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTable {
    /// Its first LID; 0 if it has none.
    pub lid: u16,
    /// It has two to the power of this many LIDs.
    pub lmc: u8,
    /// The lanes of its service levels, 0 to 15, with commas.
    pub sl2vl: String,
    /// Its port.
    pub port: PortTable,
    /// How it reacts to congestion, if congestion control management has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<HostCongestion>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchTable {
    /// Its LID; 0 if it has none.
    pub lid: u16,
    /// By LID: the port that leads there, from 1; 0 for the switch itself, and 255 for nowhere.
    pub lft: Vec<u8>,
    /// By LID of a group, in hexadecimal: the ports that lead to its members.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mft: BTreeMap<String, Vec<u8>>,
    /// The lanes of service levels between most ports.
    pub sl2vl: String,
    /// Those between other ports, such as `3>1` for packets that come in through port 3 and leave through port 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sl2vl_of: BTreeMap<String, String>,
    /// How it marks packets, if congestion control management has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<SwitchCongestion>,
    /// By the number of the port, from 1.
    pub port: BTreeMap<String, PortTable>,
}

/// How a switch or one of its ports marks packets (SwitchCongestionSetting, SwitchPortCongestionSetting).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchCongestion {
    /// 0 for no marks, and from 1, which needs the longest queue, to 15, which needs the shortest.
    pub threshold: u8,
    /// Packets of fewer blocks of 64 bytes are not marked.
    pub packet_size: u8,
    /// How many packets that would be marked are not, between two that are.
    pub marking_rate: u16,
}

/// How a host reacts to congestion (CACongestionSetting and CongestionControlTable).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostCongestion {
    /// Whether the queue pairs of a service level slow down together, or each for itself.
    pub by_level: bool,
    /// By index: the pause after a packet, as a shift to the right and a multiplier of the packet's time: `0:0,0:1,1:6`.
    pub cct: String,
    /// By service level. Those that are not here do not slow down.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sl: BTreeMap<String, ServiceLevel>,
}

/// How a host reacts at a service level (CACongestionEntry).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceLevel {
    /// How often the index falls by one, in units of 1.024 us.
    pub ccti_timer: u16,
    /// By how much the index rises with each congestion notification.
    pub ccti_increase: u8,
    /// From this index on a notification is logged; 0 for never.
    pub trigger_threshold: u8,
    /// The least index.
    pub ccti_min: u8,
}

impl HostCongestion {
    /// As settings of the algorithm. None if the text is no table, or names a service level that does not exist.
    pub(crate) fn reaction(&self) -> Option<ibcc::Reaction> {
        let pause = |entry: &str| {
            let (shift, multiplier) = entry.split_once(':')?;
            let shift = shift.trim().parse().ok().filter(|shift| *shift < 1 << 2)?;
            let multiplier = multiplier.trim().parse().ok().filter(|of| *of < 1 << 14)?;
            Some(ibcc::Reaction::pause(shift, multiplier))
        };
        let table: Box<[f64]> = self.cct.split(',').map(pause).collect::<Option<_>>()?;
        let mut levels = [ibcc::Level::default(); ibcc::LEVELS];
        for (number, of) in &self.sl {
            let ServiceLevel { ccti_timer, ccti_increase, trigger_threshold, ccti_min } = *of;
            *levels.get_mut(number.parse::<usize>().ok()?)? =
                ibcc::Level { ccti_timer, ccti_increase, trigger_threshold, ccti_min };
        }
        // The index has 16 bits.
        let has_index = table.len() <= 1 << 16;
        has_index.then_some(ibcc::Reaction { by_level: self.by_level, levels, table })
    }
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortTable {
    /// The state of the link at this end.
    pub state: LinkState,
    /// Turns of high priority: lane and weight of each, such as `0:4,1:0`.
    pub vlarb_high: String,
    /// Turns of low priority.
    pub vlarb_low: String,
    /// What high priority may send before low priority has a turn, in units of 4096 bytes; 255 for no limit.
    pub high_limit: u8,
    /// How packets are marked that leave a port of a switch, if not as the switch does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<SwitchCongestion>,
}

/// The state of a link at one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// The cable is cut, or the port disabled.
    Down,
    /// It carries subnet management.
    Init,
    /// It carries what comes in, too.
    Armed,
    /// It carries data.
    Active,
}

/// Why tables cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TablesError {
    /// The file cannot be read.
    #[error("cannot read {file}: {why}")]
    Read {
        /// The file.
        file: String,
        /// Why not.
        why: String,
    },
    /// A node of the tables that the topology does not have, or the other way round.
    #[error("`{name}` is not in {place} as a {kind}: the tables are those of another topology")]
    Node {
        /// The node.
        name: String,
        /// Where it is missing.
        place: &'static str,
        /// What it is.
        kind: &'static str,
    },
    /// A port that a node does not have.
    #[error("`{name}` has no port `{port}`")]
    Port {
        /// The node.
        name: String,
        /// The port, as it is written.
        port: String,
    },
    /// How a host reacts to congestion that cannot be.
    #[error(
        "`{name}` cannot react so to congestion: `cct` is a list such as `0:0,0:1,1:6`, of shifts up to 3 and multipliers up to 16383; \
             there are service levels 0 to 15"
    )]
    Congestion {
        /// The host.
        name: String,
    },
    /// Text that is no table.
    #[error("`{name}`: `{text}` is no table of lanes")]
    Lanes {
        /// The node.
        name: String,
        /// The text.
        text: String,
    },
}

impl Subnet {
    /// What has been written until now.
    #[must_use]
    pub fn tables(&self) -> Tables {
        let groups = self.groups().into_iter().map(|(group, lid)| (group, group_text(lid))).collect();
        let mut tables = Tables { groups, ..Tables::default() };
        for node in &self.nodes {
            if node.switch.is_some() {
                tables.switches.insert(node.name.clone(), switch_table(node));
            } else if let Some(port) = node.ports.get(1) {
                let lanes = port.lanes.first().copied().unwrap_or_default();
                let host = HostTable {
                    lid: port.lid(),
                    lmc: port.lmc(),
                    sl2vl: lanes_text(&lanes),
                    port: port_table(port),
                    congestion: node.control.reaction(),
                };
                tables.hosts.insert(node.name.clone(), host);
            }
        }
        tables
    }
}

fn group_text(lid: u16) -> String {
    format!("{lid:#06x}")
}

fn switch_table(node: &Node) -> SwitchTable {
    let mut table = SwitchTable {
        lid: node.ports.first().map_or(0, Port::lid),
        lft: Vec::new(),
        mft: BTreeMap::new(),
        sl2vl: String::new(),
        sl2vl_of: BTreeMap::new(),
        congestion: node.control.marking(),
        port: BTreeMap::new(),
    };
    if let Some(switch) = &node.switch {
        let top = switch_info::LINEAR_TOP.get(&switch.info) as usize;
        table.lft = switch.linear.iter().take(top + 1).copied().collect();
        let used = table.lft.iter().rposition(|port| *port != NO_PORT).map_or(0, |last| last + 1);
        table.lft.truncate(used);
        for (group, masks) in (0xC000u16..).zip(&switch.multicast) {
            let is_member = |port: &u8| masks[usize::from(port / 16)] >> (port % 16) & 1 == 1;
            let ports: Vec<u8> = (0..=node.port_count()).filter(is_member).collect();
            if !ports.is_empty() {
                table.mft.insert(group_text(group), ports);
            }
        }
    }
    let mut lanes = BTreeMap::<[u8; 8], Vec<(u8, u8)>>::new();
    for (entry, port) in (0u8..).zip(&node.ports).skip(1) {
        let congestion = node.control.marking_of(entry.into());
        table.port.insert(entry.to_string(), PortTable { congestion, ..port_table(port) });
        for (out, of) in (0u8..).zip(&port.lanes).skip(1) {
            lanes.entry(*of).or_default().push((entry, out));
        }
    }
    // Of equally many, the first.
    let most = lanes.iter().rev().max_by_key(|(_, ports)| ports.len()).map(|(of, _)| *of).unwrap_or_default();
    table.sl2vl = lanes_text(&most);
    for (of, ports) in lanes.into_iter().filter(|(of, _)| *of != most) {
        let text = lanes_text(&of);
        table.sl2vl_of.extend(ports.into_iter().map(|(entry, out)| (format!("{entry}>{out}"), text.clone())));
    }
    table
}

fn port_table(port: &Port) -> PortTable {
    let turns = |blocks: [usize; 2]| {
        let mut pairs: Vec<[u8; 2]> = blocks
            .iter()
            .flat_map(|block| port.arbitration[*block].chunks_exact(2).map(|pair| [pair[0] & 15, pair[1]]))
            .collect();
        let used = pairs.iter().rposition(|pair| *pair != [0, 0]).map_or(0, |last| last + 1);
        pairs.truncate(used);
        pairs.iter().map(|[lane, weight]| format!("{lane}:{weight}")).collect::<Vec<_>>().join(",")
    };
    PortTable {
        state: match port.state() {
            state::INIT => LinkState::Init,
            state::ARMED => LinkState::Armed,
            state::ACTIVE => LinkState::Active,
            _ => LinkState::Down,
        },
        vlarb_high: turns([2, 3]),
        vlarb_low: turns([0, 1]),
        high_limit: info::HIGH_LIMIT.get(&port.info) as u8,
        congestion: None,
    }
}

fn lanes_text(lanes: &[u8; 8]) -> String {
    let numbers = lanes.iter().flat_map(|pair| [pair >> 4, pair & 15]);
    numbers.map(|lane| lane.to_string()).collect::<Vec<_>>().join(",")
}
