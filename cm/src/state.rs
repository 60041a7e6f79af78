//! The states of a connection, and every transition between them.

use qp::wire::mad::cm::CmTimeout;
use std::fmt;
use time::Duration;

/// The state of a connection (IBTA 12.9), by the names of the specification where it has one.
///
/// The specification also has states for "an MRA was sent" and "an MRA was received"; here those are data of the
/// state that waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConnectionState {
    /// Active: REQ is sent, REP awaited.
    ReqSent,
    /// Active: REP has arrived; the program sets up its queue pair.
    RepReceived,
    /// Passive: REQ has arrived; the program decides.
    ReqReceived,
    /// Passive: REP is sent, RTU awaited.
    RepSent,
    /// Both sides may send.
    Established,
    /// DREQ is sent, DREP awaited.
    DreqSent,
    /// DREQ has arrived; the program stops its queue pair.
    DreqReceived,
    /// REJ is sent, and repeated if the rejected message arrives again. Not a state of the specification, where a
    /// lost REJ makes the request new.
    Refused,
    /// Closed; packets of the connection may still be in the network.
    TimeWait,
    /// There is no connection.
    Closed,
}

impl ConnectionState {
    /// All states.
    pub const ALL: [Self; 10] = [
        Self::ReqSent,
        Self::RepReceived,
        Self::ReqReceived,
        Self::RepSent,
        Self::Established,
        Self::DreqSent,
        Self::DreqReceived,
        Self::Refused,
        Self::TimeWait,
        Self::Closed,
    ];
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReqSent => "REQ sent",
            Self::RepReceived => "REP received",
            Self::ReqReceived => "REQ received",
            Self::RepSent => "REP sent",
            Self::Established => "established",
            Self::DreqSent => "DREQ sent",
            Self::DreqReceived => "DREQ received",
            Self::Refused => "refused",
            Self::TimeWait => "TIMEWAIT",
            Self::Closed => "closed",
        })
    }
}

/// What moves a connection from one state to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    /// The program accepts.
    Accept,
    /// The program rejects.
    Reject,
    /// The program is ready to use the connection.
    Establish,
    /// The program disconnects.
    Disconnect,
    /// The program destroys the connection.
    Destroy,
    /// REP arrives.
    Rep,
    /// RTU arrives.
    Rtu,
    /// A packet of the peer arrives on the queue pair, which says as much as an RTU (IBTA 12.9).
    Packet,
    /// REJ arrives.
    Rej,
    /// REJ with reason 10 arrives.
    RejStale,
    /// DREQ arrives.
    Dreq,
    /// DREP arrives.
    Drep,
    /// The time of the state is over, with all retries.
    Expire,
    /// Another half-open connection needs the place.
    Evict,
}

#[cfg(test)]
impl Input {
    pub(crate) const ALL: [Self; 14] = [
        Self::Accept,
        Self::Reject,
        Self::Establish,
        Self::Disconnect,
        Self::Destroy,
        Self::Rep,
        Self::Rtu,
        Self::Packet,
        Self::Rej,
        Self::RejStale,
        Self::Dreq,
        Self::Drep,
        Self::Expire,
        Self::Evict,
    ];
}

/// The state that follows; `None` if the input means nothing in this state. This table is the only place that knows.
/// It does not contain what leaves the state as it is: duplicates, which are answered again, and MRAs. A connection
/// begins in [`ConnectionState::ReqSent`] or [`ConnectionState::ReqReceived`].
pub(crate) const fn next(state: ConnectionState, input: Input) -> Option<ConnectionState> {
    use ConnectionState::{
        Closed, DreqReceived, DreqSent, Established, Refused, RepReceived, RepSent, ReqReceived, ReqSent,
        TimeWait,
    };
    Some(match (state, input) {
        (ReqSent, Input::Rep) => RepReceived,
        (ReqSent, Input::RejStale) => TimeWait,
        (ReqSent, Input::Rej | Input::Expire | Input::Destroy) => Closed,

        (RepReceived, Input::Establish) => Established,
        (RepReceived, Input::Reject | Input::Destroy) => Refused,
        (RepReceived, Input::Rej | Input::RejStale) => TimeWait,

        (ReqReceived, Input::Accept) => RepSent,
        (ReqReceived, Input::Reject | Input::Destroy | Input::Expire) => Refused,
        // A REQ that the REJ has overtaken must not look new.
        (ReqReceived, Input::Rej | Input::RejStale) => TimeWait,
        (ReqReceived, Input::Evict) => Closed,

        (RepSent, Input::Rtu | Input::Packet) => Established,
        (RepSent, Input::Dreq) => DreqReceived,
        (RepSent, Input::Reject | Input::Destroy | Input::Expire) => Refused,
        (RepSent, Input::Rej | Input::RejStale) => TimeWait,
        (RepSent, Input::Evict) => Closed,

        // The peer took it for established: it has not heard the REJ, and will not repeat anything.
        (Refused, Input::Rtu) => DreqSent,
        (Established, Input::Disconnect | Input::Destroy) => DreqSent,
        (Established, Input::Dreq) => DreqReceived,
        (Established, Input::Rej | Input::RejStale) => TimeWait,

        (DreqSent, Input::Drep | Input::Dreq | Input::Rej | Input::RejStale | Input::Expire) => TimeWait,
        (DreqReceived, Input::Disconnect | Input::Destroy | Input::Drep) => TimeWait,

        (Refused | TimeWait, Input::Expire | Input::Evict) => Closed,
        _ => return None,
    })
}

/// The repetitions of a message that waits for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retry {
    /// How often the time may still run out before the message is given up.
    pub(crate) left: u8,
    /// How many of those are silent: the message is not repeated. See `Limits::unproven_retries`.
    pub(crate) silent: u8,
    /// The time between repetitions.
    pub(crate) interval: Duration,
    /// Whether an MRA has extended the current wait. Another one is ignored until the message is repeated, so that
    /// the retries bound the wait.
    pub(crate) extended: bool,
}

/// The state of a connection with its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    ReqSent(Retry),
    /// With the service timeout of the MRA that the program asked for.
    RepReceived(Option<CmTimeout>),
    /// As above.
    ReqReceived(Option<CmTimeout>),
    RepSent(Retry),
    Established,
    DreqSent(Retry),
    /// With the transaction ID of the DREQ, which the DREP repeats.
    DreqReceived(u64),
    Refused,
    TimeWait,
}

impl State {
    pub(crate) const fn name(&self) -> ConnectionState {
        match self {
            Self::ReqSent(_) => ConnectionState::ReqSent,
            Self::RepReceived(_) => ConnectionState::RepReceived,
            Self::ReqReceived(_) => ConnectionState::ReqReceived,
            Self::RepSent(_) => ConnectionState::RepSent,
            Self::Established => ConnectionState::Established,
            Self::DreqSent(_) => ConnectionState::DreqSent,
            Self::DreqReceived(_) => ConnectionState::DreqReceived,
            Self::Refused => ConnectionState::Refused,
            Self::TimeWait => ConnectionState::TimeWait,
        }
    }

    pub(crate) const fn retry(&mut self) -> Option<&mut Retry> {
        match self {
            Self::ReqSent(retry) | Self::RepSent(retry) | Self::DreqSent(retry) => Some(retry),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From every state a connection can be closed, and it stays closed.
    #[test]
    fn every_state_leads_to_closed() {
        use ConnectionState::Closed;
        for start in ConnectionState::ALL {
            let mut reached = vec![start];
            let mut at = 0;
            while let Some(&state) = reached.get(at) {
                at += 1;
                let after = Input::ALL.into_iter().filter_map(|input| next(state, input));
                let new: Vec<_> = after.filter(|state| !reached.contains(state)).collect();
                reached.extend(new);
            }
            assert!(reached.contains(&Closed), "{start}");
        }
        assert!(Input::ALL.into_iter().all(|input| next(Closed, input).is_none()));
    }

    /// Nothing returns to a state in which less was known: the program is told of each once.
    #[test]
    fn no_state_is_entered_twice() {
        let rank = |state| match state {
            ConnectionState::ReqSent | ConnectionState::ReqReceived => 1,
            ConnectionState::RepReceived | ConnectionState::RepSent => 2,
            ConnectionState::Established | ConnectionState::Refused => 3,
            ConnectionState::DreqSent | ConnectionState::DreqReceived => 4,
            ConnectionState::TimeWait => 5,
            ConnectionState::Closed => 6,
        };
        let mut transitions = 0;
        for state in ConnectionState::ALL.into_iter().filter(|state| *state != ConnectionState::Closed) {
            for input in Input::ALL {
                if let Some(after) = next(state, input) {
                    assert!(rank(after) > rank(state), "{state}, {input:?}: {after}");
                    transitions += 1;
                }
            }
        }
        assert_eq!(transitions, 44);
    }
}
