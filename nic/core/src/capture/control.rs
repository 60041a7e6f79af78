//! The messages that rnic ports exchange about their link and about their packets, in readable form.

use cc::credits::{CreditMessage, Kind, MalformedMessage};
use cc::hpcc::Hop;
use qp::wire::selective::SelectiveAck;
use qp::wire::{Operation, Packet, PauseTimes};
use std::fmt;

/// The payload of a message between rnic ports ([`qp::wire::control`], [`qp::wire::telemetry`], [`qp::wire::selective`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// Link credits, lane by lane.
    FlowControl(Vec<Result<CreditMessage, MalformedMessage>>),
    /// A pause, by priority.
    Pause(PauseTimes),
    /// Telemetry, hop by hop: a word as it is, if no rate has its code.
    Telemetry(Vec<Result<Hop, u64>>),
    /// What a responder holds beyond a gap.
    SelectiveAck(Box<SelectiveAck>),
    /// A payload whose length fits none of them.
    Malformed,
}

impl Control {
    /// The content of a packet, if it is a message of rnic.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        let said = match packet.info().operation {
            Operation::FlowControl => packet
                .flow_controls()
                .map(|lanes| Self::FlowControl(lanes.iter().map(|l| CreditMessage::decode(*l)).collect())),
            Operation::Pause => packet.pause_times().map(Self::Pause),
            Operation::Telemetry => packet
                .telemetry()
                .map(|words| Self::Telemetry(words.map(|word| Hop::from_word(word).ok_or(word)).collect())),
            Operation::SelectiveAck => packet.selective_ack().map(|ack| Self::SelectiveAck(Box::new(ack))),
            _ => return None,
        };
        Some(said.unwrap_or(Self::Malformed))
    }

    /// One text for each lane, priority or hop: `vl0 ask=66 sent=12 limit=12`, `vl0 grant received=12 limit=2060`,
    /// `prio3 pause=65535`, `prio4 go`, `hop1 100 Gb/s t=3000ns sent=5120 queue=960`.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        match self {
            Self::FlowControl(lanes) => lanes.iter().map(lane).collect(),
            Self::Pause(PauseTimes(quanta)) => {
                let word = |(priority, quanta): (usize, &Option<u16>)| match quanta {
                    None => None,
                    Some(0) => Some(format!("prio{priority} go")),
                    Some(quanta) => Some(format!("prio{priority} pause={quanta}")),
                };
                quanta.iter().enumerate().filter_map(word).collect()
            }
            Self::SelectiveAck(ack) => {
                let range = |(first, last): (usize, usize)| match last - first {
                    0 => format!("holds +{first}"),
                    _ => format!("holds +{first}..+{last}"),
                };
                let expects = [format!("expects {}", ack.expected), format!("duplicates={}", ack.duplicates)];
                expects.into_iter().chain(ranges(ack).into_iter().map(range)).collect()
            }
            Self::Telemetry(hops) => hops.iter().zip(1..).map(|(hop, n)| hop_words(n, hop)).collect(),
            Self::Malformed => vec!["(of a length that it cannot have)".to_owned()],
        }
    }
}

/// What a selective acknowledgement tells of, as ranges of distances from the expected PSN, their ends included.
pub(super) fn ranges(ack: &SelectiveAck) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for ahead in ack.held() {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == ahead => *last = ahead,
            _ => ranges.push((ahead, ahead)),
        }
    }
    ranges
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(" "))
    }
}

/// The name of a kind of message.
pub(super) const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Ask => "ask",
        Kind::Grant => "grant",
    }
}

fn hop_words(number: u32, hop: &Result<Hop, u64>) -> String {
    match hop {
        Ok(hop) => format!("hop{number} {hop}"),
        Err(word) => format!("(hop{number} has an unknown rate: {word:#018x})"),
    }
}

fn lane(lane: &Result<CreditMessage, MalformedMessage>) -> String {
    match lane {
        Ok(CreditMessage { kind: Kind::Ask, vl, want, count, limit, .. }) => {
            format!("vl{} ask={want} sent={count} limit={limit}", vl.number())
        }
        Ok(CreditMessage { kind: Kind::Grant, vl, count, limit, .. }) => {
            format!("vl{} grant received={count} limit={limit}", vl.number())
        }
        Err(error) => format!("({error})"),
    }
}
