//! The vocabulary of the rule grammar: names of opcodes and kinds, times, and rules as text.

use super::rule::{Action, Budget, Class, Corruption, Ecn, FaultRule, Match, OpcodePattern, Where};
use qp::wire::opcode::{Extra, Operation, Position, Transport};
use std::fmt;
use std::net::IpAddr;
use time::Duration;

/// Kinds of packets.
pub(super) const CLASSES: [(&str, Class); 6] = [
    ("data", Class::Data),
    ("ack", Class::Ack),
    ("nak", Class::Nak),
    ("rnr", Class::Rnr),
    ("atomic", Class::Atomic),
    ("cm", Class::Cm),
];

/// Transports, as written before an opcode. Opcodes that belong to no queue pair's service have none.
pub(super) const TRANSPORTS: [(&str, Transport); 4] =
    [("rc.", Transport::Rc), ("uc.", Transport::Uc), ("ud.", Transport::Ud), ("xrc.", Transport::Xrc)];

/// An operation, and the position of its packet in the message.
type Shaped = (Operation, Option<(Position, Extra)>);

/// Opcodes without their transport. Operations that always take one packet have no shape.
pub(super) const OPCODES: [(&str, Shaped); 25] = {
    use Extra::{Imm, Inv, None as Plain};
    use Operation as Op;
    use Position::{First, Last, Middle, Only};
    [
        ("send", (Op::Send, None)),
        ("send.first", (Op::Send, Some((First, Plain)))),
        ("send.middle", (Op::Send, Some((Middle, Plain)))),
        ("send.last", (Op::Send, Some((Last, Plain)))),
        ("send.last_imm", (Op::Send, Some((Last, Imm)))),
        ("send.last_inv", (Op::Send, Some((Last, Inv)))),
        ("send.only", (Op::Send, Some((Only, Plain)))),
        ("send.only_imm", (Op::Send, Some((Only, Imm)))),
        ("send.only_inv", (Op::Send, Some((Only, Inv)))),
        ("write", (Op::Write, None)),
        ("write.first", (Op::Write, Some((First, Plain)))),
        ("write.middle", (Op::Write, Some((Middle, Plain)))),
        ("write.last", (Op::Write, Some((Last, Plain)))),
        ("write.last_imm", (Op::Write, Some((Last, Imm)))),
        ("write.only", (Op::Write, Some((Only, Plain)))),
        ("write.only_imm", (Op::Write, Some((Only, Imm)))),
        ("read.req", (Op::ReadRequest, None)),
        ("read.resp", (Op::ReadResponse, None)),
        ("read.resp.first", (Op::ReadResponse, Some((First, Plain)))),
        ("read.resp.middle", (Op::ReadResponse, Some((Middle, Plain)))),
        ("read.resp.last", (Op::ReadResponse, Some((Last, Plain)))),
        ("read.resp.only", (Op::ReadResponse, Some((Only, Plain)))),
        ("cmp_swap", (Op::CompareSwap, None)),
        ("fetch_add", (Op::FetchAdd, None)),
        ("cnp", (Op::Cnp, None)),
    ]
};

/// Opcodes whose names would be mistaken for kinds, and rarely used ones.
pub(super) const RARE_OPCODES: [(&str, Shaped); 8] = [
    ("acknowledge", (Operation::Acknowledge, None)),
    ("atomic.ack", (Operation::AtomicAcknowledge, None)),
    ("atomic_write", (Operation::AtomicWrite, None)),
    ("flush", (Operation::Flush, None)),
    ("flow_control", (Operation::FlowControl, None)),
    ("pause", (Operation::Pause, None)),
    ("selective_ack", (Operation::SelectiveAck, None)),
    ("telemetry", (Operation::Telemetry, None)),
];

/// ECN fields.
pub(super) const ECNS: [(&str, Ecn); 4] =
    [("ce", Ecn::Ce), ("ect0", Ecn::Ect0), ("ect1", Ecn::Ect1), ("not", Ecn::Not)];

/// What `corrupt` takes besides `bit=N`.
pub(super) const CORRUPTIONS: [(&str, Corruption); 3] =
    [("icrc", Corruption::Icrc), ("payload", Corruption::Payload), ("header", Corruption::Header)];

/// Words of the grammar that stand in no table above.
pub(super) const KEYWORDS: [&str; 27] = [
    "tx", "rx", "drop", "dup", "delay", "reorder", "corrupt", "mark", "once", "times", "always", "from",
    "for", "qp=", "psn=", "try=", "nth=", "every=", "size>", "size<", "ecn=", "cm=", "p=", "bit=", "rc.",
    "ud.", "pause=",
];

/// The word for a value of a table.
fn word_for<T: PartialEq>(table: &'static [(&'static str, T)], value: &T) -> Option<&'static str> {
    table.iter().find(|(_, v)| v == value).map(|(word, _)| *word)
}

/// The value for a word of a table.
pub(super) fn lookup<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
    table.iter().find(|(w, _)| *w == word).map(|(_, v)| *v)
}

/// The opcode pattern that a word names.
pub(super) fn opcode_pattern(word: &str) -> Option<OpcodePattern> {
    let (transport, rest) = TRANSPORTS
        .into_iter()
        .find_map(|(prefix, t)| word.strip_prefix(prefix).map(|rest| (Some(t), rest)))
        .unwrap_or((None, word));
    let (operation, shape) = lookup(&OPCODES, rest).or_else(|| lookup(&RARE_OPCODES, rest))?;
    Some(OpcodePattern { transport, operation, shape })
}

/// Whether the grammar can spell this name of a rule.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

/// Units of time in nanoseconds, longest first.
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// A time in the grammar: a whole number of the longest unit that fits.
pub(super) struct Time(pub(super) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        match UNITS.into_iter().find(|(_, unit)| nanos.is_multiple_of(u128::from(*unit))) {
            Some((name, unit)) => write!(f, "{}{name}", nanos / u128::from(unit)),
            None => write!(f, "{nanos}ns"),
        }
    }
}

/// An end of a path in the grammar.
struct End(Option<IpAddr>);

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ip) => ip.fmt(f),
            None => f.write_str("*"),
        }
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Any => f.write_str("*"),
            Self::Tx { to: None } => f.write_str("tx"),
            Self::Tx { to } => write!(f, "tx>{}", End(to)),
            Self::Rx { from: None } => f.write_str("rx"),
            Self::Rx { from } => write!(f, "rx<{}", End(from)),
            Self::Path { from, to, both_ways: false } => write!(f, "{}>{}", End(from), End(to)),
            Self::Path { from, to, both_ways: true } => write!(f, "{}<>{}", End(from), End(to)),
        }
    }
}

impl fmt::Display for OpcodePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.transport.as_ref().and_then(|t| word_for(&TRANSPORTS, t)).unwrap_or(""))?;
        let shaped = (self.operation, self.shape);
        let word = word_for(&OPCODES, &shaped).or_else(|| word_for(&RARE_OPCODES, &shaped));
        match word {
            Some(word) => f.write_str(word),
            // Only a hand-made pattern that matches no opcode can get here.
            None => write!(f, "{:?} {:?}", self.operation, self.shape),
        }
    }
}

impl fmt::Display for Ecn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word_for(&ECNS, self).unwrap_or(""))
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(class) => f.write_str(word_for(&CLASSES, class).unwrap_or("")),
            Self::Opcode(pattern) => pattern.fmt(f),
            Self::Qp(qpn) => write!(f, "qp={qpn}"),
            Self::NthQp(n) => write!(f, "qp=#{n}"),
            Self::Psn(psn) => write!(f, "psn={psn}"),
            Self::RelativePsn(n) => write!(f, "psn=#{n}"),
            Self::Try(n) => write!(f, "try={n}"),
            Self::Nth(n) => write!(f, "nth={n}"),
            Self::Every(n) => write!(f, "every={n}"),
            Self::LargerThan(n) => write!(f, "size>{n}"),
            Self::SmallerThan(n) => write!(f, "size<{n}"),
            Self::Ecn(ecn) => write!(f, "ecn={ecn}"),
            Self::Cm(attribute) => write!(f, "cm={}", attribute.name()),
        }
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bit(n) => write!(f, "bit={n}"),
            other => f.write_str(word_for(&CORRUPTIONS, other).unwrap_or("")),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Drop => f.write_str("drop"),
            Self::Duplicate(1) => f.write_str("dup"),
            Self::Duplicate(n) => write!(f, "dup {n}"),
            Self::Delay { by, jitter: Duration::ZERO } => write!(f, "delay {}", Time(by)),
            Self::Delay { by, jitter } => write!(f, "delay {} +-{}", Time(by), Time(jitter)),
            Self::Reorder(n) => write!(f, "reorder {n}"),
            Self::Corrupt(what) => write!(f, "corrupt {what}"),
            Self::MarkCe => f.write_str("mark ce"),
            Self::Pause(priorities) => {
                f.write_str("pause=")?;
                let named = (0..8).filter(|priority| priorities >> priority & 1 == 1);
                for (place, priority) in named.enumerate() {
                    write!(f, "{}{priority}", if place == 0 { "" } else { "," })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Always => f.write_str("always"),
            Self::Times(1) => f.write_str("once"),
            Self::Times(n) => write!(f, "{n} times"),
            Self::Probability(p) => write!(f, "p={p}"),
        }
    }
}

/// The rule as text, in the grammar that it is read from.
impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}: ")?;
        }
        write!(f, "{}", self.place)?;
        for condition in &self.matches {
            write!(f, " {condition}")?;
        }
        write!(f, " {}", self.action)?;
        if let Some(budget) = self.budget {
            write!(f, " {budget}")?;
        }
        if let Some(from) = self.from {
            write!(f, " from {}", Time(from))?;
        }
        if let Some(lasting) = self.lasting {
            write!(f, " for {}", Time(lasting))?;
        }
        Ok(())
    }
}
