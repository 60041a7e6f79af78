//! The golden captures: their packets, and the README's information about each.

use pcap_file::pcap::PcapReader;
use qp::wire::icrc::{self, Flow};
use qp::wire::{ICRC_LEN, IpHeader, Packet, Transport};
use qp::{Mtu, QpType, Qpn};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

/// A packet sent by Linux.
#[derive(Clone)]
pub(crate) struct Captured {
    /// Time since the start of the capture.
    pub(crate) at: Duration,
    pub(crate) flow: Flow,
    /// IPv4 identification; 0 for IPv6.
    pub(crate) ident: u16,
    /// The network header that a datagram's receiver sees: the IPv6 header, or 20 zero bytes and the IPv4 header.
    pub(crate) network: [u8; 40],
    /// BTH to ICRC.
    pub(crate) bytes: Vec<u8>,
}

/// A queue pair: the address of its port, and its number.
type End = (IpAddr, Qpn);

impl Captured {
    /// The queue pair that it is for.
    fn to(&self) -> End {
        (self.flow.dst, self.packet().dest_qpn())
    }

    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).unwrap()
    }

    /// The packet's network-layer properties.
    pub(crate) fn arrival(&self) -> IpHeader {
        let Flow { src, dst, src_port, .. } = self.flow;
        let (tos, hop_limit, flow_label) = match src {
            // TOS and TTL, after 20 bytes.
            IpAddr::V4(_) => (self.network[21], self.network[28], 0),
            IpAddr::V6(_) => {
                let word = u32::from_be_bytes(self.network[..4].try_into().unwrap());
                ((word >> 20) as u8, self.network[7], word & 0xf_ffff)
            }
        };
        IpHeader { src, dst, src_port, tos, hop_limit, flow_label, ident: self.ident }
    }

    /// Whether `ours`, a whole packet with an ICRC for any identification, equals this packet once its ICRC is
    /// recomputed for this packet's identification.
    pub(crate) fn equals(&self, ours: &[u8]) -> bool {
        let (covered, _) = ours.split_last_chunk::<ICRC_LEN>().unwrap();
        let icrc = icrc::compute(&self.flow, self.ident, covered);
        self.bytes == [covered, &icrc.to_le_bytes()].concat()
    }
}

/// A row of the README's table.
#[derive(Clone)]
pub(crate) struct Scenario {
    /// MTU of the interfaces.
    netdev: u32,
    /// The command of side A.
    server: String,
    /// The command of side B.
    client: String,
}

impl Scenario {
    /// The number that follows an option of the server's or the client's command.
    fn option(command: &str, name: &str) -> Option<u32> {
        let mut words = command.split_whitespace();
        words.find(|w| *w == name)?;
        words.next()?.parse().ok()
    }

    pub(crate) fn of_server(&self, name: &str) -> Option<u32> {
        Self::option(&self.server, name)
    }

    pub(crate) fn of_client(&self, name: &str) -> Option<u32> {
        Self::option(&self.client, name)
    }

    /// The path MTU: from the commands, or else the largest that the interfaces carry.
    pub(crate) fn mtu(&self) -> Mtu {
        let said = self.of_server("-m").and_then(Mtu::from_bytes);
        said.or_else(|| Mtu::for_interface(self.netdev)).unwrap()
    }
}

pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) packets: Vec<Captured>,
    pub(crate) scenario: Scenario,
}

impl Capture {
    /// The service of its queue pairs; all packets of one conversation have the same.
    pub(crate) fn qp_type(&self) -> QpType {
        let packet = self.packets[0].packet();
        match packet.info().transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud if packet.dest_qpn() == Qpn::GSI => QpType::Gsi,
            Transport::Ud => QpType::Ud,
            other => panic!("{other:?} is not in the captures"),
        }
    }

    /// Splits the capture by pairs of queue pairs. Datagrams name both. Of a connection, a packet only names the one that
    /// it is for: the other is the one whose requests the answers fit.
    pub(crate) fn conversations(self) -> Vec<Self> {
        let partners = self.partners();
        let mut parts: BTreeMap<[End; 2], Vec<Captured>> = BTreeMap::new();
        for packet in self.packets {
            let to = packet.to();
            let from = packet.packet().deth().map(|deth| (packet.flow.src, deth.src_qpn));
            let mut ends = [to, from.or_else(|| partners.get(&to).copied()).unwrap_or(to)];
            ends.sort_unstable();
            parts.entry(ends).or_default().push(packet);
        }
        let part = |packets| Self { name: self.name.clone(), packets, scenario: self.scenario.clone() };
        parts.into_values().map(part).collect()
    }

    /// The peer of each connected queue pair, as far as the packets show it.
    fn partners(&self) -> BTreeMap<End, End> {
        let connected = self.packets.iter().filter(|p| p.packet().deth().is_none());
        let ends: BTreeSet<End> = connected.clone().map(Captured::to).collect();
        // How many answers to one queue pair fit requests to another before them, by their PSNs.
        let fit = |one: End, other: End| {
            let answers = connected.clone().filter(|p| p.to() == one && !p.packet().info().is_request);
            let answered = |answer: &&Captured| {
                connected.clone().any(|request| {
                    let packet = request.packet();
                    let is_before =
                        request.to() == other && packet.info().is_request && request.at <= answer.at;
                    is_before && packet.psn() == answer.packet().psn()
                })
            };
            answers.filter(answered).count()
        };
        let mut pairs: Vec<(usize, End, End)> = Vec::new();
        for one in &ends {
            for other in ends.iter().filter(|other| other.0 != one.0 && *other > one) {
                pairs.push((fit(*one, *other) + fit(*other, *one), *one, *other));
            }
        }
        // The best fit first. Unreliable connections have no answers: where there is only one, it needs none.
        pairs.sort_unstable_by(|a, b| b.cmp(a));
        let is_only = ends.len() == 2;
        let mut partners = BTreeMap::new();
        for (count, one, other) in pairs {
            let is_free = !partners.contains_key(&one) && !partners.contains_key(&other);
            if is_free && (count > 0 || is_only) {
                partners.extend([(one, other), (other, one)]);
            }
        }
        partners
    }

    /// The two addresses, side A (the server, where the capture was taken) first.
    pub(crate) fn sides(&self) -> [IpAddr; 2] {
        // According to the README, A is 10.77.0.1 and fd77::1.
        let a = |ip: &IpAddr| match ip {
            IpAddr::V4(v4) => v4.octets()[3] == 1,
            IpAddr::V6(v6) => v6.octets()[15] == 1,
        };
        let flow = &self.packets[0].flow;
        if a(&flow.src) { [flow.src, flow.dst] } else { [flow.dst, flow.src] }
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

/// Parses an Ethernet frame with IPv4 or IPv6 and UDP.
fn from_frame(at: Duration, frame: &[u8]) -> Captured {
    let ip = &frame[14..];
    let mut network = [0; 40];
    let (src, dst, ident, udp): (IpAddr, IpAddr, u16, &[u8]) = match u16_at(frame, 12) {
        0x0800 => {
            let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
            let end = usize::from(u16_at(ip, 2));
            network[20..].copy_from_slice(&ip[..20]);
            (address(12), address(16), u16_at(ip, 4), &ip[20..end])
        }
        0x86dd => {
            let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap()).into();
            let end = 40 + usize::from(u16_at(ip, 4));
            network.copy_from_slice(&ip[..40]);
            (address(8), address(24), 0, &ip[40..end])
        }
        other => panic!("ethertype {other:#06x}"),
    };
    let flow = Flow { src, dst, src_port: u16_at(udp, 0), dst_port: u16_at(udp, 2) };
    Captured { at, flow, ident, network, bytes: udp[8..].to_vec() }
}

/// The table of the README, by name of the capture.
fn scenarios() -> BTreeMap<String, Scenario> {
    let text = fs::read_to_string(folder().join("README.md")).unwrap();
    text.lines()
        .filter_map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [name, _, netdev, server, client, _] = cells[..] else { return None };
            let command = |cell: &str| cell.replace('`', " ");
            let netdev = netdev.parse().ok()?;
            Some((name.to_owned(), Scenario { netdev, server: command(server), client: command(client) }))
        })
        .collect()
}

/// All captures.
pub(crate) fn captures() -> Vec<Capture> {
    let mut scenarios = scenarios();
    let mut all = Vec::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "pcap") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
        let mut packets: Vec<Captured> = Vec::new();
        let mut start = None;
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            let at = packet.timestamp - *start.get_or_insert(packet.timestamp);
            packets.push(from_frame(at, &packet.data));
        }
        let scenario = scenarios.remove(&name).unwrap_or_else(|| panic!("{name} is not in the README"));
        all.push(Capture { name, packets, scenario });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Connections between the same hosts at the same time, without a connection manager that says which queue pairs belong
/// together.
#[test]
fn several_connections_are_told_apart() {
    let names = ["rc_pp_64_m1024", "rc_pp_5001_m1024", "pt_write_1000", "pt_read_5000"];
    let chosen: Vec<_> = captures().into_iter().filter(|c| names.contains(&&*c.name)).collect();
    assert_eq!(chosen.len(), names.len());
    let scenario = chosen[0].scenario.clone();
    let lengths: BTreeSet<_> = chosen.iter().map(|c| c.packets.len()).collect();
    let mut packets: Vec<Captured> = Vec::new();
    for (number, mut capture) in (0_u8..).zip(chosen) {
        for packet in &mut capture.packets {
            // Their numbers may be the same: give each capture its own.
            packet.bytes[5] = number;
            let covered = packet.bytes.len() - ICRC_LEN;
            let icrc = icrc::compute(&packet.flow, packet.ident, &packet.bytes[..covered]);
            packet.bytes[covered..].copy_from_slice(&icrc.to_le_bytes());
        }
        packets.extend(capture.packets);
    }
    packets.sort_by_key(|p| p.at);
    let all = Capture { name: "merged".to_owned(), packets, scenario };
    let parts = all.conversations();
    assert_eq!(parts.iter().map(|part| part.packets.len()).collect::<BTreeSet<_>>(), lengths);
    for part in parts {
        let numbers: BTreeSet<_> = part.packets.iter().map(|p| p.bytes[5]).collect();
        assert_eq!(numbers.len(), 1, "packets of several captures");
    }
}
