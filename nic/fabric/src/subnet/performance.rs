//! Performance management: the counters of ports (IBTA volume 1, section 16.1).
//!
//! A port counts datagrams of management here, and what the fabric has counted of data comes from
//! [`Fabric::port_traffic`](crate::network::Fabric::port_traffic). Data are counted in words of four bytes, from LRH to ICRC.

use super::Subnet;
use super::mad::{Field, Mad, Refusal, class, method};
use super::walk::Place;
use crate::topology::NodeId;

/// The numbers of attributes.
mod attribute {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const PORT_COUNTERS: u16 = 0x12;
    pub(super) const RCV_ERROR_DETAILS: u16 = 0x15;
    pub(super) const XMIT_DISCARD_DETAILS: u16 = 0x16;
    pub(super) const VL_OP_PACKETS: u16 = 0x19;
    pub(super) const VL_OP_DATA: u16 = 0x1A;
    pub(super) const VL_XMIT_WAIT: u16 = 0x1C;
    pub(super) const PORT_COUNTERS_EXTENDED: u16 = 0x1D;
}

/// Data lanes and the lane of management.
const LANES: usize = 16;

/// All ports of a switch together.
const ALL_PORTS: u8 = 0xFF;

/// Selecting all ports, 64-bit counters without those of unicast and multicast, and PortXmitWait
/// (ClassPortInfo.CapabilityMask, bits 8, 10 and 12).
const ALL_PORT_SELECT: u64 = 1 << 8;
const EXTENDED: u64 = 1 << 10;
const XMIT_WAIT: u64 = 1 << 12;

/// 4.096 us x 2^18: a second, as ibsim says.
const RESPONSE_TIME: u64 = 18;

/// What a port has counted in all its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortTraffic {
    /// Words of data that left, and that came in.
    pub xmit_words: u64,
    /// See `xmit_words`.
    pub rcv_words: u64,
    /// Packets that left, and that came in.
    pub xmit_packets: u64,
    /// See `xmit_packets`.
    pub rcv_packets: u64,
    /// For how long packets waited that no lane had credit for, in the times of a word on the wire.
    pub xmit_wait: u64,
    /// Packets that came in damaged.
    pub damaged: u64,
    /// Packets that came in without room for them.
    pub overruns: u64,
    /// Packets to which no port leads.
    pub no_route: u64,
    /// Packets whose service level has no lane.
    pub no_lane: u64,
    /// Packets whose time to live was used up.
    pub looping: u64,
    /// Packets that were dropped because the link was not active.
    pub inactive: u64,
    /// Packets that were in the switch for too long.
    pub lifetime: u64,
    /// Packets that were the first of their queue for too long.
    pub head_of_queue: u64,
    /// Packets that were dropped because a buffer was full.
    pub full: u64,
    /// How often the link went down.
    pub link_downed: u64,
    /// By lane: packets that left.
    pub lane_packets: [u64; LANES],
    /// By lane: words that left.
    pub lane_words: [u64; LANES],
    /// By lane: as `xmit_wait`.
    pub lane_wait: [u64; LANES],
}

impl PortTraffic {
    fn plus(&self, other: &Self) -> Self {
        let lanes =
            |a: &[u64; LANES], b: &[u64; LANES]| std::array::from_fn(|lane| a[lane].saturating_add(b[lane]));
        Self {
            xmit_words: self.xmit_words.saturating_add(other.xmit_words),
            rcv_words: self.rcv_words.saturating_add(other.rcv_words),
            xmit_packets: self.xmit_packets.saturating_add(other.xmit_packets),
            rcv_packets: self.rcv_packets.saturating_add(other.rcv_packets),
            xmit_wait: self.xmit_wait.saturating_add(other.xmit_wait),
            damaged: self.damaged.saturating_add(other.damaged),
            overruns: self.overruns.saturating_add(other.overruns),
            no_route: self.no_route.saturating_add(other.no_route),
            no_lane: self.no_lane.saturating_add(other.no_lane),
            looping: self.looping.saturating_add(other.looping),
            inactive: self.inactive.saturating_add(other.inactive),
            lifetime: self.lifetime.saturating_add(other.lifetime),
            head_of_queue: self.head_of_queue.saturating_add(other.head_of_queue),
            full: self.full.saturating_add(other.full),
            link_downed: self.link_downed.saturating_add(other.link_downed),
            lane_packets: lanes(&self.lane_packets, &other.lane_packets),
            lane_words: lanes(&self.lane_words, &other.lane_words),
            lane_wait: lanes(&self.lane_wait, &other.lane_wait),
        }
    }
}

/// A counter in an attribute.
struct Counter {
    /// Where it is.
    field: Field,
    /// Its bit in CounterSelect; 16 is the first of CounterSelect2.
    select: u32,
    /// What it counts.
    of: fn(&PortTraffic) -> u64,
}

const fn counter(at: usize, bits: usize, select: u32, of: fn(&PortTraffic) -> u64) -> Counter {
    Counter { field: Field(at, bits), select, of }
}

/// Section 16.1.3.5. What is not listed is always 0: the fabric has no symbols, and no links that recover.
const PORT_COUNTERS: [Counter; 10] = [
    counter(56, 8, 2, |port| port.link_downed),
    counter(64, 16, 3, |port| port.damaged),
    counter(96, 16, 5, |port| port.no_route + port.no_lane + port.looping),
    counter(112, 16, 6, |port| port.inactive + port.lifetime + port.head_of_queue + port.full),
    counter(156, 4, 10, |port| port.overruns),
    counter(192, 32, 12, |port| port.xmit_words),
    counter(224, 32, 13, |port| port.rcv_words),
    counter(256, 32, 14, |port| port.xmit_packets),
    counter(288, 32, 15, |port| port.rcv_packets),
    counter(320, 32, 16, |port| port.xmit_wait),
];

/// Section 16.1.4.11.
const EXTENDED_COUNTERS: [Counter; 4] = [
    counter(64, 64, 0, |port| port.xmit_words),
    counter(128, 64, 1, |port| port.rcv_words),
    counter(192, 64, 2, |port| port.xmit_packets),
    counter(256, 64, 3, |port| port.rcv_packets),
];

/// Section 16.1.4.1: damaged, without room, to no port, of no lane, going round.
const ERROR_DETAILS: [Counter; 5] = [
    counter(32, 16, 0, |port| port.damaged),
    counter(64, 16, 2, |port| port.overruns),
    counter(80, 16, 3, |port| port.no_route),
    counter(96, 16, 4, |port| port.no_lane),
    counter(112, 16, 5, |port| port.looping),
];

/// Section 16.1.4.2: inactive, in the switch for too long, the first for too long.
const DISCARD_DETAILS: [Counter; 3] = [
    counter(32, 16, 0, |port| port.inactive),
    counter(64, 16, 2, |port| port.lifetime),
    counter(80, 16, 3, |port| port.head_of_queue),
];

/// The attributes with counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Plain,
    Extended,
    Errors,
    Discards,
    LanePackets,
    LaneWords,
    LaneWaits,
}

/// Attributes, and the most counters of one.
const SETS: usize = 7;

impl Set {
    fn of(attribute: u16) -> Option<Self> {
        match attribute {
            attribute::PORT_COUNTERS => Some(Self::Plain),
            attribute::PORT_COUNTERS_EXTENDED => Some(Self::Extended),
            attribute::RCV_ERROR_DETAILS => Some(Self::Errors),
            attribute::XMIT_DISCARD_DETAILS => Some(Self::Discards),
            attribute::VL_OP_PACKETS => Some(Self::LanePackets),
            attribute::VL_OP_DATA => Some(Self::LaneWords),
            attribute::VL_XMIT_WAIT => Some(Self::LaneWaits),
            _ => None,
        }
    }

    /// Its counters: where each is, its bit in the selection, and its value.
    fn counters(self, port: &PortTraffic) -> Vec<(Field, u32, u64)> {
        let table: &[Counter] = match self {
            Self::Plain => &PORT_COUNTERS,
            Self::Extended => &EXTENDED_COUNTERS,
            Self::Errors => &ERROR_DETAILS,
            Self::Discards => &DISCARD_DETAILS,
            Self::LanePackets => return lanes(16, &port.lane_packets),
            Self::LaneWords => return lanes(32, &port.lane_words),
            Self::LaneWaits => return lanes(16, &port.lane_wait),
        };
        table.iter().map(|counter| (counter.field, counter.select, (counter.of)(port))).collect()
    }
}

/// The counters of all lanes, one after the other.
fn lanes(bits: usize, values: &[u64; LANES]) -> Vec<(Field, u32, u64)> {
    let field = |lane: usize| Field(32 + bits * lane, bits);
    values.iter().enumerate().map(|(lane, value)| (field(lane), lane as u32, *value)).collect()
}

/// The counters of a port.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    /// What management has counted.
    pub(super) tally: PortTraffic,
    /// What the fabric has counted.
    data: PortTraffic,
    /// By attribute and counter: what was counted when the counter was 0. Below 0 if it was set to more.
    since: [Vec<i128>; SETS],
}

impl Counters {
    fn total(&self) -> PortTraffic {
        self.tally.plus(&self.data)
    }

    /// The counters of an attribute.
    fn read(&self, set: Set) -> Vec<(Field, u32, u64)> {
        let since = &self.since[set as usize];
        let mut counters = set.counters(&self.total());
        for (number, (_, _, value)) in counters.iter_mut().enumerate() {
            let shown = i128::from(*value) - since.get(number).copied().unwrap_or(0);
            *value = u64::try_from(shown.max(0)).unwrap_or(u64::MAX);
        }
        counters
    }

    /// Writes those that are selected.
    fn write(&mut self, set: Set, selected: u32, data: &[u8]) {
        let counters = set.counters(&self.total());
        let since = &mut self.since[set as usize];
        since.resize(counters.len(), 0);
        for (since, (field, select, value)) in since.iter_mut().zip(counters) {
            if selected >> select & 1 == 1 {
                *since = i128::from(value) - i128::from(field.get(data));
            }
        }
    }
}

impl Subnet {
    /// The agent of a node answers a request of performance management.
    pub(super) fn serve_performance(&mut self, at: Place, mad: &mut Mad) -> Result<(), Refusal> {
        if mad.base_version() != 1 || mad.class() != class::PERFORMANCE || mad.class_version() != 1 {
            return Err(Refusal::Class);
        }
        let is_set = match mad.method() {
            method::GET => false,
            method::SET => true,
            _ => return Err(Refusal::Method),
        };
        if mad.attribute() == attribute::CLASS_PORT_INFO {
            return if is_set { Err(Refusal::Attribute) } else { self.class_port_info(at, mad) };
        }
        let set = Set::of(mad.attribute()).ok_or(Refusal::Attribute)?;
        let ports = self.selected(at, mad.data()[1])?;
        let data = mad.data();
        let mut selected = u32::from(u16::from_be_bytes([data[2], data[3]]));
        if set == Set::Plain && data[18] & 1 == 1 {
            selected |= 1 << 16;
        }
        let request = *mad.bytes();
        let request = &request[super::mad::DATA..];
        let mut sums: Vec<(Field, u64)> = Vec::new();
        for port in ports {
            let Some(port) = self.port_mut(Place { node: at.node, port }) else { continue };
            if is_set {
                port.counters.write(set, selected, request);
            }
            for (number, (field, _, value)) in port.counters.read(set).into_iter().enumerate() {
                match sums.get_mut(number) {
                    Some((_, sum)) => *sum = sum.saturating_add(value),
                    None => sums.push((field, value)),
                }
            }
        }
        let head = [data[1], data[2], data[3]];
        mad.data_mut().fill(0);
        mad.data_mut()[1..4].copy_from_slice(&head);
        sums.iter().for_each(|(field, value)| field.saturate(mad.data_mut(), *value));
        Ok(())
    }

    /// The ports that a request selects. A host knows its own, and a switch also all together.
    fn selected(&self, at: Place, port: u8) -> Result<std::ops::RangeInclusive<u8>, Refusal> {
        let node = self.nodes.get(at.node).ok_or(Refusal::Field)?;
        let count = node.port_count();
        match port {
            ALL_PORTS if node.switch.is_some() => Ok(0..=count),
            _ if node.switch.is_some() && port <= count || port == 1 && count == 1 => Ok(port..=port),
            _ => Err(Refusal::Field),
        }
    }

    /// Section 16.1.3.1.
    fn class_port_info(&self, at: Place, mad: &mut Mad) -> Result<(), Refusal> {
        let is_switch = self.nodes.get(at.node).is_some_and(|node| node.switch.is_some());
        let data = mad.data_mut();
        data.fill(0);
        Field(0, 8).set(data, 1);
        Field(8, 8).set(data, 1);
        Field(16, 16).set(data, if is_switch { ALL_PORT_SELECT } else { 0 } | EXTENDED | XMIT_WAIT);
        Field(59, 5).set(data, RESPONSE_TIME);
        Ok(())
    }

    /// Takes over what the fabric has counted at a port of data, numbered as there.
    pub fn set_traffic(&mut self, node: NodeId, port: usize, traffic: PortTraffic) {
        // InfiniBand's ports are numbered from 1.
        let Ok(port) = u8::try_from(port + 1) else { return };
        if let Some(port) = self.port_mut(Place { node, port }) {
            port.counters.data = traffic;
        }
    }
}
