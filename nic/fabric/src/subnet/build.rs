//! Agents from a topology.

use super::Subnet;
use super::congestion::Control;
use super::mad::SMP_DATA_LEN;
use super::node::{
    ARBITRATION, LINEAR_CAP, MULTICAST_CAP, Node, PKEYS, Port, Switch, info, physical, state, switch_info,
};
use super::performance::Counters;
use super::walk::Place;
use crate::topology::{Kind, NodeId, Topology, emit};
use cc::vl;
use rnic_core::sim::BEGINNING;

/// The most ports of a switch: port numbers have eight bits, of which 0 and 255 have other meanings.
const MOST_PORTS: usize = 254;

/// The prefix of GIDs of a subnet that has no other (IBTA volume 1, section 4.1.1).
const DEFAULT_PREFIX: u64 = 0xFE80_0000_0000_0000;

/// The P_Key of the default partition, for full members.
const DEFAULT_PKEY: u16 = 0xFFFF;

/// What ports are capable of: notices, traps, service levels, a GUID for the system, extended speeds, the second mask, notices
/// of changed capabilities, registering again (PortInfo.CapabilityMask, bits 2, 3, 6, 11, 14, 15, 22, 25).
const CAPABILITIES: u64 = 1 << 2 | 1 << 3 | 1 << 6 | 1 << 11 | 1 << 14 | 1 << 15 | 1 << 22 | 1 << 25;

/// Links of two lanes, HDR and NDR (PortInfo.CapabilityMask2, bits 4, 5 and 10; the last from memory).
const CAPABILITIES_2: u64 = 1 << 4 | 1 << 5 | 1 << 10;

/// 15 data lanes (PortInfo.VLCap).
const ALL_LANES: u64 = 5;

/// 4096 bytes (PortInfo.MTUCap).
const LARGEST_MTU: u64 = 5;

/// 4.096 us x 2^16: 268 ms, as agents in firmware say (from memory).
const RESPONSE_TIME: u64 = 16;

/// Why a topology cannot be a subnet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubnetError {
    /// A switch has too many ports.
    #[error("{name} has {ports} ports: InfiniBand's switches have {MOST_PORTS} at most")]
    Ports {
        /// The switch.
        name: String,
        /// Its ports.
        ports: usize,
    },
    /// A host with no cable, or several.
    #[error("{name} has {cables} cables: a host has one port")]
    Cables {
        /// The host.
        name: String,
        /// Its cables.
        cables: usize,
    },
    /// There are more nodes than LIDs.
    #[error("{nodes} nodes: {} LIDs are all there are", LINEAR_CAP - 1)]
    Nodes {
        /// The nodes.
        nodes: usize,
    },
}

impl Subnet {
    /// The agents of a topology whose cables are all connected: every link is up, and no port has been initialized.
    ///
    /// # Errors
    /// InfiniBand has no numbers for so many ports or nodes.
    pub fn new(topology: &Topology) -> Result<Self, SubnetError> {
        if topology.nodes.len() >= usize::from(LINEAR_CAP) {
            return Err(SubnetError::Nodes { nodes: topology.nodes.len() });
        }
        let neighbours = topology.ports();
        let mut ends = vec![[Place { node: 0, port: 0 }; 2]; topology.cables.len()];
        for (node, of) in neighbours.iter().enumerate() {
            let (name, is_host) = (topology.name(node), topology.nodes[node].kind == Kind::Host);
            if is_host && of.len() != 1 {
                return Err(SubnetError::Cables { name: name.to_owned(), cables: of.len() });
            }
            if of.len() > MOST_PORTS {
                return Err(SubnetError::Ports { name: name.to_owned(), ports: of.len() });
            }
            for (port, (cable, _)) in (1u8..).zip(of) {
                let end = usize::from(topology.cables[*cable].ends[0] != node);
                ends[*cable][end] = Place { node, port };
            }
        }
        let nodes: Vec<Node> =
            (0..topology.nodes.len()).map(|node| build(topology, node, &neighbours[node], &ends)).collect();
        let numbers = nodes.iter().enumerate().map(|(number, node)| (node.name.clone(), number)).collect();
        Ok(Self {
            nodes,
            numbers,
            ends,
            cut: std::collections::BTreeSet::new(),
            traps: Vec::new(),
            members: Vec::new(),
            told: std::collections::BTreeSet::new(),
            next_trap: 1,
            version: 0,
            now: BEGINNING,
        })
    }
}

/// The agent of a node.
fn build(topology: &Topology, number: NodeId, cables: &[(usize, NodeId)], ends: &[[Place; 2]]) -> Node {
    let of = &topology.nodes[number];
    let is_host = of.kind == Kind::Host;
    let count = cables.len() + 1;
    let lanes = if is_host { 1 } else { count };
    // Port 0 of a host is only there so that ports are found by their numbers.
    let mut ports = vec![port(lanes, !is_host)];
    for (cable, _) in cables {
        let [a, b] = ends[*cable];
        let far = if a.node == number { b } else { a };
        let mut port = port(lanes, is_host);
        port.cable = Some(*cable);
        port.peer = Some((far.node, far.port));
        let (width, speed, extended) = link_of(topology.cables[*cable].rate);
        let widths = u64::from(width | 1);
        info::WIDTH_ENABLED.set(&mut port.info, widths);
        info::WIDTH_SUPPORTED.set(&mut port.info, widths);
        info::WIDTH_ACTIVE.set(&mut port.info, width.into());
        info::SPEED_SUPPORTED.set(&mut port.info, 0b111);
        info::SPEED_ENABLED.set(&mut port.info, 0b111);
        info::SPEED_ACTIVE.set(&mut port.info, speed.into());
        // All speeds up to that of the cable.
        let extended_speeds = u64::from((extended << 1).saturating_sub(1));
        info::EXTENDED_SUPPORTED.set(&mut port.info, extended_speeds);
        info::EXTENDED_ENABLED.set(&mut port.info, extended_speeds);
        info::EXTENDED_ACTIVE.set(&mut port.info, extended.into());
        ports.push(port);
    }
    if let Some(management) = ports.first_mut().filter(|_| !is_host) {
        // It is always there; its rate is that of no cable.
        management.set_state(state::ACTIVE, physical::LINK_UP);
        info::WIDTH_ENABLED.set(&mut management.info, 3);
        info::WIDTH_SUPPORTED.set(&mut management.info, 3);
        info::WIDTH_ACTIVE.set(&mut management.info, 2);
        info::SPEED_SUPPORTED.set(&mut management.info, 1);
        info::SPEED_ENABLED.set(&mut management.info, 1);
        info::SPEED_ACTIVE.set(&mut management.info, 1);
    }
    let switch =
        (!is_host).then(|| Switch { info: switch_attribute(), linear: Vec::new(), multicast: Vec::new() });
    let (name, guid) = (of.name.clone(), emit::guid(number));
    let control = Control::new(ports.len());
    Node { name, guid, ports, switch, control }
}

/// A port whose link is up, and which nobody has initialized. `has_lid`: it is a host's or the management port of a switch.
fn port(lanes: usize, has_lid: bool) -> Port {
    let mut data = [0; SMP_DATA_LEN];
    if has_lid {
        info::GID_PREFIX.set(&mut data, DEFAULT_PREFIX);
        info::CAPABILITIES.set(&mut data, CAPABILITIES);
        info::CAPABILITIES_2.set(&mut data, CAPABILITIES_2);
        info::GUID_CAP.set(&mut data, 8);
        info::RESPONSE_TIME.set(&mut data, RESPONSE_TIME);
    }
    info::DOWN_DEFAULT.set(&mut data, physical::POLLING);
    info::NEIGHBOUR_MTU.set(&mut data, LARGEST_MTU);
    info::MTU_CAP.set(&mut data, LARGEST_MTU);
    info::VL_CAP.set(&mut data, ALL_LANES);
    info::OPERATIONAL_VLS.set(&mut data, ALL_LANES);
    info::ARBITRATION_HIGH.set(&mut data, ARBITRATION.into());
    info::ARBITRATION_LOW.set(&mut data, ARBITRATION.into());
    let mut pkeys = [0; PKEYS];
    pkeys[0] = DEFAULT_PKEY;
    let config = vl::Config::default();
    let mut port = Port {
        cable: None,
        peer: None,
        info: data,
        pkeys,
        lanes: vec![nibbles(&config.sl2vl); lanes],
        arbitration: [[0; 64]; 4],
        counters: Counters::default(),
    };
    for (block, table) in [(0, &config.vlarb_low), (2, &config.vlarb_high)] {
        for (pair, entry) in port.arbitration[block].chunks_exact_mut(2).zip(table) {
            pair.copy_from_slice(&[entry.vl, entry.weight]);
        }
    }
    port.set_state(state::INIT, physical::LINK_UP);
    port
}

/// The lanes of all service levels as in SLtoVLMappingTable: four bits each.
pub(super) fn nibbles(lanes: &[u8; 16]) -> [u8; 8] {
    std::array::from_fn(|pair| lanes[2 * pair] << 4 | lanes[2 * pair + 1] & 15)
}

/// SwitchInfo of a switch that nobody has initialized.
fn switch_attribute() -> [u8; SMP_DATA_LEN] {
    let mut data = [0; SMP_DATA_LEN];
    switch_info::LINEAR_CAP.set(&mut data, LINEAR_CAP.into());
    switch_info::MULTICAST_CAP.set(&mut data, MULTICAST_CAP.into());
    switch_info::ENFORCEMENT_CAP.set(&mut data, PKEYS as u64);
    data
}

/// The codes of a link: its width, its speed, and its extended speed; 0 for none of those.
fn link_of(rate: cc::Rate) -> (u8, u8, u8) {
    let (lanes, speed) = emit::port_of(rate);
    let width = match lanes {
        1 => 1,
        4 => 2,
        8 => 4,
        12 => 8,
        _ => 16,
    };
    let (speed, extended) = match speed {
        "SDR" => (1, 0),
        "DDR" => (2, 0),
        "QDR" => (4, 0),
        // Ports of extended speeds say that they are at the highest of the others.
        "FDR" => (4, 1),
        "EDR" => (4, 2),
        "HDR" => (4, 4),
        _ => (4, 8),
    };
    (width, speed, extended)
}
