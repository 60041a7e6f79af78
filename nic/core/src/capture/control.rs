//! The messages that rnic ports exchange about their link, in readable form.

use cc::credits::{CreditMessage, Kind, MalformedMessage};
use qp::wire::{Operation, Packet, PauseTimes};
use std::fmt;

/// The payload of a message between rnic ports ([`qp::wire::control`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// Link credits, lane by lane.
    FlowControl(Vec<Result<CreditMessage, MalformedMessage>>),
    /// A pause, by priority.
    Pause(PauseTimes),
    /// A payload whose length fits neither.
    Malformed,
}

impl Control {
    /// The content of a packet, if it is a message between ports.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        let said = match packet.info().operation {
            Operation::FlowControl => packet
                .flow_controls()
                .map(|lanes| Self::FlowControl(lanes.iter().map(|l| CreditMessage::decode(*l)).collect())),
            Operation::Pause => packet.pause_times().map(Self::Pause),
            _ => return None,
        };
        Some(said.unwrap_or(Self::Malformed))
    }

    /// One text for each lane or priority: `vl0 ask=66 sent=12 limit=12`, `vl0 grant received=12 limit=2060`, `prio3 pause=65535`, `prio4 go`.
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
            Self::Malformed => vec!["(of a length that it cannot have)".to_owned()],
        }
    }
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
