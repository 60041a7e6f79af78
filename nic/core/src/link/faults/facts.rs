//! A packet as rules see it, and matching it against their conditions.

use super::rule::{Action, Class, Corruption, Ecn, FaultRule, Match, Where};
use super::track::{QpFlow, Sighting};
use crate::link::{Direction, Frame};
use qp::Psn;
use qp::wire::mad::cm::{Attribute, Message};
use qp::wire::opcode::{Operation, Transport};
use qp::wire::packet::{ICRC_LEN, Packet};
use qp::wire::syndrome::Syndrome;
use std::net::IpAddr;
use std::ops::Range;

/// Where the parts of a packet lie, in bytes from the start of the BTH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) headers: Range<usize>,
    pub(super) payload: Range<usize>,
    pub(super) icrc: Range<usize>,
}

/// A packet with everything that conditions test.
pub(super) struct Facts<'a> {
    pub(super) frame: &'a Frame,
    pub(super) packet: Option<Packet<'a>>,
    pub(super) flow: QpFlow,
    pub(super) sighting: Option<Sighting>,
}

impl<'a> Facts<'a> {
    /// The parts of the packet. A packet that is not RoCEv2 is all payload, except for the last four bytes.
    pub(super) fn layout(&self) -> Layout {
        let len = self.frame.bytes.len();
        let end = len.saturating_sub(ICRC_LEN);
        let headers = self.packet.map_or(0, |p| usize::from(p.info().header_len)).min(end);
        let payload_len = self.packet.map_or(end - headers, |p| p.payload().len());
        Layout { headers: 0..headers, payload: headers..(headers + payload_len).min(end), icrc: end..len }
    }

    /// Whether the rule looks at this packet at all.
    pub(super) fn is_at(&self, place: Where) -> bool {
        let ip = &self.frame.ip;
        let is = |wanted: Option<IpAddr>, end: IpAddr| {
            wanted.is_none_or(|w| w.to_canonical() == end.to_canonical())
        };
        match place {
            Where::Any => true,
            Where::Tx { to } => self.frame.direction == Direction::Tx && is(to, ip.dst),
            Where::Rx { from } => self.frame.direction == Direction::Rx && is(from, ip.src),
            Where::Path { from, to, both_ways } => {
                (is(from, ip.src) && is(to, ip.dst)) || (both_ways && is(from, ip.dst) && is(to, ip.src))
            }
        }
    }

    /// Whether the packet has the part that the rule damages.
    pub(super) fn suits(&self, action: Action) -> bool {
        let layout = self.layout();
        match action {
            Action::Corrupt(Corruption::Payload) => !layout.payload.is_empty(),
            Action::Corrupt(Corruption::Header) => !layout.headers.is_empty(),
            Action::Corrupt(Corruption::Icrc) => !layout.icrc.is_empty(),
            Action::Corrupt(Corruption::Bit(n)) => (n / 8) < self.frame.bytes.len() as u32,
            Action::Drop
            | Action::Duplicate(_)
            | Action::Delay { .. }
            | Action::Reorder(_)
            | Action::MarkCe
            | Action::Pause(_) => true,
        }
    }

    /// Whether the packet meets a condition. The rule itself counts `Nth` and `Every`: here they are met.
    pub(super) fn meets(&self, condition: Match) -> bool {
        let packet = self.packet.as_ref();
        let sighting = self.sighting.as_ref();
        let len = self.frame.bytes.len() as u64;
        match condition {
            Match::Class(class) => packet.is_some_and(|p| is_of(class, p)),
            Match::Opcode(pattern) => packet.is_some_and(|p| pattern.covers(p.info())),
            Match::Qp(qpn) => packet.is_some_and(|p| p.dest_qpn() == qpn),
            Match::NthQp(n) => sighting.is_some_and(|s| s.nth_qp == Some(n)),
            Match::Psn(psn) => packet.is_some_and(|p| p.psn() == psn),
            Match::RelativePsn(n) => sighting.is_some_and(|s| i64::from(s.relative_psn) == relative(n)),
            Match::Try(n) => sighting.is_some_and(|s| s.attempt == n),
            Match::LargerThan(n) => len > u64::from(n),
            Match::SmallerThan(n) => len < u64::from(n),
            Match::Ecn(ecn) => self.frame.ip.tos & Ecn::MASK == ecn as u8,
            Match::Cm(attribute) => packet.and_then(message).is_some_and(|is| is == attribute),
            Match::Nth(_) | Match::Every(_) => true,
        }
    }

    /// How many of the rule's conditions the packet meets, and how many the rule has.
    pub(super) fn score(&self, rule: &FaultRule) -> (usize, usize) {
        let met = rule.matches.iter().filter(|m| self.meets(**m)).count();
        let others = [self.is_at(rule.place), self.suits(rule.action)];
        (met + others.iter().filter(|ok| **ok).count(), rule.matches.len() + others.len())
    }

    /// The conditions of the rule that the packet does not meet, with the packet's actual values.
    pub(super) fn differences(&self, rule: &FaultRule) -> Vec<String> {
        let mut list = Vec::new();
        if !self.is_at(rule.place) {
            let way = if self.frame.direction == Direction::Tx { "tx" } else { "rx" };
            list.push(format!("{}: it is {way}, {}>{}", rule.place, self.frame.ip.src, self.frame.ip.dst));
        }
        let unmet = rule.matches.iter().filter(|m| !self.meets(**m));
        list.extend(unmet.map(|m| format!("{m}: it has {}", self.actual(*m))));
        if !self.suits(rule.action) {
            list.push(format!("{}: it has no such bits", rule.action));
        }
        list
    }

    /// The packet's actual value for a condition that it does not meet.
    fn actual(&self, condition: Match) -> String {
        let Some(packet) = self.packet else {
            return format!("{} bytes that are no packet", self.frame.bytes.len());
        };
        let sighting = |show: fn(&Sighting) -> String| self.sighting.as_ref().map_or("none".to_owned(), show);
        match condition {
            Match::Class(_) | Match::Opcode(_) => packet.info().name.to_owned(),
            Match::Qp(_) => format!("qp={}", packet.dest_qpn()),
            Match::NthQp(_) => sighting(|s| s.nth_qp.map_or("none".to_owned(), |n| format!("qp=#{n}"))),
            Match::Psn(_) => format!("psn={}", packet.psn()),
            Match::RelativePsn(_) => sighting(|s| format!("psn=#{}", s.relative_psn)),
            Match::Try(_) => sighting(|s| format!("try={}", s.attempt)),
            Match::LargerThan(_) | Match::SmallerThan(_) => format!("{} bytes", self.frame.bytes.len()),
            Match::Ecn(_) => format!("tos={:#04x}", self.frame.ip.tos),
            Match::Cm(_) => message(&packet).map_or(packet.info().name, Attribute::name).to_owned(),
            Match::Nth(_) | Match::Every(_) => "another number".to_owned(),
        }
    }
}

/// A distance to the first PSN on the 24-bit circle: the upper half of the numbers is negative.
fn relative(n: u32) -> i64 {
    i64::from(Psn::new(n).distance_from(Psn::new(0)))
}

/// The connection management message in a packet.
fn message(packet: &Packet<'_>) -> Option<Attribute> {
    Message::parse(packet.mad()?).ok().map(|message| message.attribute())
}

fn is_of(class: Class, packet: &Packet<'_>) -> bool {
    let info = packet.info();
    let answers = |wanted: fn(Syndrome) -> bool| {
        info.operation == Operation::Acknowledge && packet.aeth().is_some_and(|a| wanted(a.kind()))
    };
    match class {
        // Messages of rnic have a payload too, but it is not application data.
        Class::Data => info.has_payload && info.transport != Transport::Rnic,
        Class::Ack => answers(|s| matches!(s, Syndrome::Ack { .. })),
        Class::Nak => answers(|s| matches!(s, Syndrome::Nak(_))),
        Class::Rnr => answers(|s| matches!(s, Syndrome::Rnr { .. })),
        Class::Cm => message(packet).is_some(),
        Class::Atomic => matches!(info.operation, Operation::CompareSwap | Operation::FetchAdd),
    }
}
