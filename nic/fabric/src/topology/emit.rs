//! Writes topologies for other programs.

use super::{Kind, NodeId, Topology};
use cc::Rate;
use std::fmt::Write as _;

/// The rates of InfiniBand's ports in Mb/s: lanes, the name of the speed, and the rate of all lanes. Of equal rates the usual
/// one comes first.
const PORTS: [(u8, &str, u64); 21] = [
    (4, "SDR", 10_000),
    (4, "DDR", 20_000),
    (4, "QDR", 40_000),
    (4, "FDR", 56_250),
    (4, "EDR", 100_000),
    (4, "HDR", 200_000),
    (4, "NDR", 400_000),
    (8, "NDR", 800_000),
    (12, "NDR", 1_200_000),
    (1, "SDR", 2_500),
    (1, "DDR", 5_000),
    (1, "QDR", 10_000),
    (1, "FDR", 14_062),
    (1, "EDR", 25_000),
    (1, "HDR", 50_000),
    (1, "NDR", 100_000),
    (2, "HDR", 100_000),
    (2, "NDR", 200_000),
    (8, "EDR", 200_000),
    (8, "HDR", 400_000),
    (12, "HDR", 600_000),
];

/// The first globally unique identifier that is given away: the locally administered ones begin with 02.
const FIRST_GUID: u64 = 0x0200_0000_0000_0000;

/// The port that carries the most without carrying more than the rate, or else the slowest.
pub(crate) fn port_of(rate: Rate) -> (u8, &'static str) {
    let most = rate.bits_per_second() / 1_000_000;
    let fitting = PORTS.iter().filter(|(.., mbps)| *mbps <= most);
    // Of equal rates `reduce` keeps the first.
    let best = fitting.reduce(|best, next| if next.2 > best.2 { next } else { best });
    best.map_or((1, "SDR"), |(lanes, speed, _)| (*lanes, speed))
}

/// The globally unique identifier of a node. Those of the ports of a host follow it.
pub(crate) const fn guid(node: NodeId) -> u64 {
    FIRST_GUID | (node as u64 + 1) << 8
}

/// The topology as ibnetdiscover(8) prints it and ibsim reads it.
///
/// Ports are numbered from 1, as everywhere in InfiniBand. A node's GUID and LID follow from its position: node `n` has the
/// LID `n + 1`. InfiniBand has no more than 254 ports in a switch, and ibsim reads no more.
#[must_use]
pub fn ibnetdiscover(topology: &Topology) -> String {
    let ports = topology.ports();
    let far = far_ports(topology);
    let mut text = String::new();
    for (node, (this, of)) in topology.nodes.iter().zip(&ports).enumerate() {
        let (kind, key) = match this.kind {
            Kind::Host => ("Ca", "ca"),
            Kind::Switch { .. } => ("Switch", "switch"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{key}guid=0x{:016x}", guid(node));
        let _ = write!(text, "{kind}\t{} \"{}\"\t\t# \"{}\"", of.len(), this.name, this.name);
        let _ = match this.kind {
            Kind::Host => writeln!(text),
            Kind::Switch { .. } => writeln!(text, " base port 0 lid {} lmc 0", node + 1),
        };
        for (port, (cable, other)) in of.iter().enumerate() {
            let far = far
                .get(*cable)
                .map_or(0, |[a, b]| if topology.cables[*cable].ends[0] == node { *b } else { *a });
            let own_guid = if this.kind == Kind::Host {
                format!("({:x})", guid(node) + port as u64 + 1)
            } else {
                String::new()
            };
            let far_host = topology.nodes.get(*other).is_some_and(|other| other.kind == Kind::Host);
            let far_guid =
                if far_host { format!("({:x})", guid(*other) + far as u64 + 1) } else { String::new() };
            let own_lid =
                if this.kind == Kind::Host { format!("lid {} lmc 0 ", node + 1) } else { String::new() };
            let (lanes, speed) = topology.cables.get(*cable).map_or((1, "SDR"), |cable| port_of(cable.rate));
            let name = topology.name(*other);
            let _ = writeln!(
                text,
                "[{}]{own_guid}\t\"{name}\"[{}]{far_guid}\t\t# {own_lid}\"{name}\" lid {} {lanes}x{speed}",
                port + 1,
                far + 1,
                other + 1,
            );
        }
        text.push('\n');
    }
    text
}

/// The numbers of the ports at both ends of each cable.
fn far_ports(topology: &Topology) -> Vec<[usize; 2]> {
    let mut used = vec![0; topology.nodes.len()];
    let mut take = |node: NodeId| {
        let port = used.get(node).copied().unwrap_or_default();
        if let Some(used) = used.get_mut(node) {
            *used += 1;
        }
        port
    };
    topology.cables.iter().map(|cable| cable.ends.map(&mut take)).collect()
}

/// The topology for Graphviz: `dot -Tsvg` draws it, with the hosts below and each tier in a row.
#[must_use]
pub fn dot(topology: &Topology) -> String {
    let mut text = String::from("graph fabric {\n  rankdir = BT;\n  node [shape = box];\n");
    for tier in 0..=topology.tiers() {
        let row: Vec<_> = topology.nodes.iter().filter(|node| node.kind.tier() == tier).collect();
        if row.is_empty() {
            continue;
        }
        let shape = if tier == 0 { "ellipse" } else { "box" };
        let _ = write!(text, "  {{ rank = same; node [shape = {shape}];");
        for node in row {
            let _ = write!(text, " \"{}\";", node.name);
        }
        text.push_str(" }\n");
    }
    for cable in &topology.cables {
        let [a, b] = cable.ends.map(|end| topology.name(end));
        let _ = write!(text, "  \"{a}\" -- \"{b}\" [label = \"{}, {:?}", cable.rate, cable.delay);
        if cable.bit_errors > 0.0 {
            let _ = write!(text, ", {:e}", cable.bit_errors);
        }
        text.push_str("\"];\n");
    }
    text.push_str("}\n");
    text
}
