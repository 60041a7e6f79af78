//! The messages that rnic ports exchange about their link, in readable form.

use cc::credits::{FlowControlPacket, MalformedUpdate, Op};
use qp::wire::{Operation, Packet, PauseTimes};
use std::fmt;

/// The payload of a message between rnic ports ([`qp::wire::control`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// Link credits, lane by lane.
    FlowControl(Vec<Result<FlowControlPacket, MalformedUpdate>>),
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
            Operation::FlowControl => packet.flow_controls().map(|lanes| {
                Self::FlowControl(lanes.iter().map(|l| FlowControlPacket::decode(*l)).collect())
            }),
            Operation::Pause => packet.pause_times().map(Self::Pause),
            _ => return None,
        };
        Some(said.unwrap_or(Self::Malformed))
    }

    /// One text for each lane or priority: `vl0 sent=12 limit=2060`, `prio3 pause=65535`, `prio4 go`.
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

/// The name of the purpose of an update.
pub(super) const fn op_name(op: Op) -> &'static str {
    match op {
        Op::Normal => "normal",
        Op::Init => "init",
        Op::Stalled => "stalled",
        Op::Yielded => "yielded",
    }
}

fn lane(lane: &Result<FlowControlPacket, MalformedUpdate>) -> String {
    match lane {
        Ok(FlowControlPacket { op, vl, fctbs, fccl }) => {
            let op = if *op == Op::Normal { String::new() } else { format!(" {}", op_name(*op)) };
            format!("vl{}{op} sent={fctbs} limit={fccl}", vl.number())
        }
        Err(error) => format!("({error})"),
    }
}
