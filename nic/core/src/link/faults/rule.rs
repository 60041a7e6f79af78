//! A fault rule as a value, and its builder.

use super::words;
use crate::link::Direction;
use qp::wire::mad::cm::Attribute;
use qp::wire::opcode::{Extra, HeaderSet, Opcode, OpcodeInfo, Operation, Position, Transport};
use qp::{Psn, Qpn};
use std::net::IpAddr;
use thiserror::Error;
use time::Duration;

/// Which packets the rule looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Where {
    /// All.
    #[default]
    Any,
    /// Packets that the port sends, optionally to one peer only.
    Tx {
        /// The peer.
        to: Option<IpAddr>,
    },
    /// Packets that the port receives, optionally from one peer only.
    Rx {
        /// The peer.
        from: Option<IpAddr>,
    },
    /// Packets from one address to another, whichever end the port is. If both ends have a fault layer, as in a
    /// simulation, put the rule into one of them, or it acts twice.
    Path {
        /// The source; `None` for any.
        from: Option<IpAddr>,
        /// The destination; `None` for any.
        to: Option<IpAddr>,
        /// Whether the reverse direction counts as well.
        both_ways: bool,
    },
}

impl Where {
    /// Whether the rule can match packets of this direction.
    pub(super) const fn allows(self, direction: Direction) -> bool {
        match self {
            Self::Any | Self::Path { .. } => true,
            Self::Tx { .. } => matches!(direction, Direction::Tx),
            Self::Rx { .. } => matches!(direction, Direction::Rx),
        }
    }
}

/// Kinds of packets that no single opcode names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// May carry payload: SEND, WRITE, READ response, atomic write.
    Data,
    /// A positive acknowledgement.
    Ack,
    /// A negative acknowledgement.
    Nak,
    /// "Receiver not ready".
    Rnr,
    /// A request for an atomic operation on 8 bytes.
    Atomic,
    /// A connection management message.
    Cm,
}

/// An opcode, or several with something in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodePattern {
    /// The transport service; `None` for any.
    pub transport: Option<Transport>,
    /// The operation.
    pub operation: Operation,
    /// Position in the message and additional headers; `None` for any.
    pub shape: Option<(Position, Extra)>,
}

impl OpcodePattern {
    /// Whether the pattern matches this opcode.
    #[must_use]
    pub fn covers(&self, info: &OpcodeInfo) -> bool {
        self.operation == info.operation
            && self.transport.is_none_or(|t| t == info.transport)
            && self.shape.is_none_or(|s| s == (info.position, extra_of(info)))
    }
}

impl From<Opcode> for OpcodePattern {
    /// Exactly this opcode, in the shortest spelling.
    fn from(opcode: Opcode) -> Self {
        let info = opcode.info();
        let operation = info.operation;
        let has_shapes = matches!(operation, Operation::Send | Operation::Write | Operation::ReadResponse);
        Self {
            transport: (!matches!(info.transport, Transport::Cnp | Transport::Rnic))
                .then_some(info.transport),
            operation,
            shape: has_shapes.then(|| (info.position, extra_of(&info))),
        }
    }
}

fn extra_of(info: &OpcodeInfo) -> Extra {
    if info.headers.contains(HeaderSet::IMM_DT) {
        Extra::Imm
    } else if info.headers.contains(HeaderSet::IETH) {
        Extra::Inv
    } else {
        Extra::None
    }
}

/// The ECN field of the IP header (RFC 3168, section 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not react to marks.
    Not = 0,
    /// ECN capable, code point ECT(1).
    Ect1 = 1,
    /// ECN capable, code point ECT(0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// The mask of the ECN field in a TOS or traffic class byte.
    pub(super) const MASK: u8 = 3;
}

/// One condition on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    /// The packet is of this kind.
    Class(Class),
    /// It has such an opcode.
    Opcode(OpcodePattern),
    /// It is for this queue pair.
    Qp(Qpn),
    /// It is for the n-th queue pair to appear in this direction, from 0. QP1 is not counted.
    NthQp(u32),
    /// It has this PSN.
    Psn(Psn),
    /// Its PSN is at this distance from the first one seen in this direction for its queue pair. Requests and
    /// responses are counted separately: their PSNs number different things.
    RelativePsn(u32),
    /// It is the n-th transmission of its PSN, from 1.
    Try(u32),
    /// It is the n-th packet that meets all other conditions, from 1.
    Nth(u64),
    /// It is every n-th packet that meets all other conditions.
    Every(u64),
    /// It is longer than this, in bytes from BTH to ICRC.
    LargerThan(u32),
    /// It is shorter than this, in bytes from BTH to ICRC.
    SmallerThan(u32),
    /// It has this ECN field.
    Ecn(Ecn),
    /// It is this connection management message.
    Cm(Attribute),
}

/// Which bits to damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corruption {
    /// One bit of the ICRC.
    Icrc,
    /// One bit of the payload. Packets without payload do not match.
    Payload,
    /// One bit of the headers that the ICRC covers, so that the receiver can notice.
    Header,
    /// This bit, from 0 at the start of the BTH, most significant bit of a byte first. Shorter packets do not match.
    /// Bits 32 to 39 of the BTH are not under the ICRC.
    Bit(u32),
}

/// What the rule does to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It is lost.
    Drop,
    /// This many copies follow it.
    Duplicate(u32),
    /// It arrives later; others overtake it.
    Delay {
        /// How much later.
        by: Duration,
        /// The delay varies by up to this much either way, uniformly.
        jitter: Duration,
    },
    /// It is held until this many packets for the same queue pair have overtaken it, for 10 ms at most. A
    /// rule holds one packet of a queue pair at a time.
    Reorder(u32),
    /// A bit of it is flipped.
    Corrupt(Corruption),
    /// Its ECN field becomes "congestion experienced".
    MarkCe,
    /// Its peer is told to pause: bit i is priority i. Once for each packet if the budget is a number, otherwise
    /// without a break while the window of the rule lasts.
    Pause(u8),
}

/// How often a rule acts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Budget {
    /// On every packet that matches.
    Always,
    /// On the first packets that match, up to this number.
    Times(u64),
    /// On each with this probability, 0 to 1.
    Probability(f64),
}

/// An invalid value in a rule.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RuleError {
    /// A number outside its range.
    #[error("{what} can be {min} to {max}, not {value}")]
    Range {
        /// Which number.
        what: &'static str,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
        /// The value.
        value: u64,
    },
    /// A probability outside 0 to 1.
    #[error("p can be 0 to 1, not {0}")]
    Probability(String),
    /// A time that is too long.
    #[error("{what} can be an hour at most")]
    TooLong {
        /// Which time.
        what: &'static str,
    },
    /// A pause without priorities.
    #[error("a pause needs a priority, 0 to 7, such as pause=3 or pause=3,4")]
    NoPriority,
    /// A name that the grammar cannot spell.
    #[error("a name has letters, digits, '_', '-' and '.', not {0:?}")]
    Name(String),
    /// An opcode that no transport has.
    #[error("there is no packet {0}")]
    NoSuchOpcode(String),
}

/// Copies that one rule may make of one packet.
const MAX_COPIES: u64 = 100;
/// Packets that may overtake a held one.
const MAX_OVERTAKERS: u64 = 1000;
/// The longest time in a rule: beyond, it is a mistake, and instants could overflow.
const MAX_TIME: Duration = Duration::from_secs(3600);

/// One fault rule.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::link::faults::FaultRule;
/// use qp::wire::Opcode;
///
/// let built = FaultRule::drop().tx().opcode(Opcode::RcWriteFirst).psn(3).once();
/// let parsed: FaultRule = "tx rc.write.first psn=#3 drop once".parse()?;
/// assert_eq!(built, parsed);
/// # Ok::<(), rnic::link::faults::ParseError>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct FaultRule {
    pub(super) name: Option<String>,
    pub(super) place: Where,
    pub(super) matches: Vec<Match>,
    pub(super) action: Action,
    pub(super) budget: Option<Budget>,
    pub(super) from: Option<Duration>,
    pub(super) lasting: Option<Duration>,
}

impl FaultRule {
    /// A rule that does this to every packet.
    #[must_use]
    pub const fn new(action: Action) -> Self {
        Self {
            name: None,
            place: Where::Any,
            matches: Vec::new(),
            action,
            budget: None,
            from: None,
            lasting: None,
        }
    }

    /// Loses packets.
    #[must_use]
    pub const fn drop() -> Self {
        Self::new(Action::Drop)
    }

    /// Makes this many copies of each packet.
    #[must_use]
    pub const fn duplicate(copies: u32) -> Self {
        Self::new(Action::Duplicate(copies))
    }

    /// Delays packets; see also [`FaultRule::jitter`].
    #[must_use]
    pub const fn delay(by: Duration) -> Self {
        Self::new(Action::Delay { by, jitter: Duration::ZERO })
    }

    /// Lets this many packets overtake each packet.
    #[must_use]
    pub const fn reorder(overtakers: u32) -> Self {
        Self::new(Action::Reorder(overtakers))
    }

    /// Damages packets.
    #[must_use]
    pub const fn corrupt(what: Corruption) -> Self {
        Self::new(Action::Corrupt(what))
    }

    /// Marks packets as having met congestion.
    #[must_use]
    pub const fn mark_ce() -> Self {
        Self::new(Action::MarkCe)
    }

    /// Makes peers pause these priorities; those above 7 are ignored.
    #[must_use]
    pub fn pause(priorities: &[u8]) -> Self {
        let bit = |priority: &u8| 1_u8.checked_shl(u32::from(*priority)).unwrap_or(0);
        Self::new(Action::Pause(priorities.iter().map(bit).fold(0, |all, bit| all | bit)))
    }

    /// Lets a delay vary by up to `jitter` either way. Other actions are unaffected.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        if let Action::Delay { by, .. } = self.action {
            self.action = Action::Delay { by, jitter };
        }
        self
    }

    /// Names the rule.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets where the rule looks.
    #[must_use]
    pub const fn at(mut self, place: Where) -> Self {
        self.place = place;
        self
    }

    /// Only packets that the port sends.
    #[must_use]
    pub const fn tx(self) -> Self {
        self.at(Where::Tx { to: None })
    }

    /// Only packets that the port receives.
    #[must_use]
    pub const fn rx(self) -> Self {
        self.at(Where::Rx { from: None })
    }

    /// Only packets from one address to another.
    #[must_use]
    pub fn path(self, from: IpAddr, to: IpAddr) -> Self {
        let (from, to) = (Some(from.to_canonical()), Some(to.to_canonical()));
        self.at(Where::Path { from, to, both_ways: false })
    }

    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, condition: Match) -> Self {
        self.matches.push(condition);
        self
    }

    /// Only packets of a kind.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        self.when(Match::Class(class))
    }

    /// Only packets with this opcode, or one of these opcodes.
    #[must_use]
    pub fn opcode(self, opcode: impl Into<OpcodePattern>) -> Self {
        self.when(Match::Opcode(opcode.into()))
    }

    /// Only packets for this queue pair.
    #[must_use]
    pub fn qp(self, qpn: Qpn) -> Self {
        self.when(Match::Qp(qpn))
    }

    /// Only packets whose PSN is `offset` behind the first one seen.
    #[must_use]
    pub fn psn(self, offset: u32) -> Self {
        self.when(Match::RelativePsn(offset))
    }

    /// Only this connection management message.
    #[must_use]
    pub fn cm(self, message: Attribute) -> Self {
        self.when(Match::Cm(message))
    }

    /// Only the n-th transmission of a PSN, from 1.
    #[must_use]
    pub fn attempt(self, n: u32) -> Self {
        self.when(Match::Try(n))
    }

    /// Only the n-th packet that meets the other conditions, from 1.
    #[must_use]
    pub fn nth(self, n: u64) -> Self {
        self.when(Match::Nth(n))
    }

    /// Only every n-th packet that meets the other conditions.
    #[must_use]
    pub fn every(self, n: u64) -> Self {
        self.when(Match::Every(n))
    }

    /// Acts on one packet only.
    #[must_use]
    pub const fn once(self) -> Self {
        self.times(1)
    }

    /// Acts on the first `n` packets that match.
    #[must_use]
    pub const fn times(mut self, n: u64) -> Self {
        self.budget = Some(Budget::Times(n));
        self
    }

    /// Acts on each packet that matches with probability `p`.
    #[must_use]
    pub const fn probability(mut self, p: f64) -> Self {
        self.budget = Some(Budget::Probability(p));
        self
    }

    /// Acts on every packet that matches.
    #[must_use]
    pub const fn always(mut self) -> Self {
        self.budget = Some(Budget::Always);
        self
    }

    /// Sleeps this long at first.
    #[must_use]
    pub const fn starting(mut self, after: Duration) -> Self {
        self.from = Some(after);
        self
    }

    /// Ends this long after its start.
    #[must_use]
    pub const fn lasting(mut self, time: Duration) -> Self {
        self.lasting = Some(time);
        self
    }

    /// The effective budget: without an explicit one, a rule that singles out a packet acts once.
    pub(super) fn effective_budget(&self) -> Budget {
        let singles_out = |m: &Match| matches!(m, Match::Psn(_) | Match::RelativePsn(_) | Match::Nth(_));
        let default = if self.matches.iter().any(singles_out) { Budget::Times(1) } else { Budget::Always };
        self.budget.unwrap_or(default)
    }

    /// Checks all numbers.
    pub(super) fn validate(&self) -> Result<(), RuleError> {
        if let Some(name) = &self.name
            && !words::is_name(name)
        {
            return Err(RuleError::Name(name.clone()));
        }
        match self.action {
            Action::Duplicate(n) => in_range("copies", u64::from(n), 1, MAX_COPIES)?,
            Action::Reorder(n) => in_range("reorder", u64::from(n), 1, MAX_OVERTAKERS)?,
            Action::Delay { by, jitter } => {
                not_too_long("a delay", Some(by))?;
                not_too_long("a jitter", Some(jitter))?;
            }
            Action::Pause(0) => return Err(RuleError::NoPriority),
            Action::Drop | Action::Corrupt(_) | Action::MarkCe | Action::Pause(_) => {}
        }
        for condition in &self.matches {
            match *condition {
                Match::Try(n) => in_range("try", u64::from(n), 1, u64::from(u32::MAX))?,
                Match::Nth(n) => in_range("nth", n, 1, u64::MAX)?,
                Match::Every(n) => in_range("every", n, 1, u64::MAX)?,
                Match::RelativePsn(n) => in_range("psn", u64::from(n), 0, u64::from(Psn::MAX.value()))?,
                Match::Opcode(pattern) if !Opcode::ALL.iter().any(|o| pattern.covers(&o.info())) => {
                    return Err(RuleError::NoSuchOpcode(pattern.to_string()));
                }
                _ => {}
            }
        }
        match self.budget {
            Some(Budget::Probability(p)) if !(0.0..=1.0).contains(&p) => {
                return Err(RuleError::Probability(p.to_string()));
            }
            Some(Budget::Times(n)) => in_range("the number of times", n, 1, u64::MAX)?,
            _ => {}
        }
        not_too_long("'from'", self.from)?;
        not_too_long("'for'", self.lasting)
    }
}

const fn in_range(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), RuleError> {
    if value < min || value > max { Err(RuleError::Range { what, min, max, value }) } else { Ok(()) }
}

fn not_too_long(what: &'static str, time: Option<Duration>) -> Result<(), RuleError> {
    if time.is_some_and(|t| t > MAX_TIME) { Err(RuleError::TooLong { what }) } else { Ok(()) }
}
