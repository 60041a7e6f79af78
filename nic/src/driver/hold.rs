//! When an acknowledgement is held for the program's reply.
//!
//! In a conversation each message is the reply to the one before. If its acknowledgement waits for the reply, both
//! leave in one system call, and the reply leaves a system call earlier. So a conversation takes one system call in
//! each direction. A peer that polls for the acknowledgement, and afterwards only polls its memory, finds the reply
//! there.
//!
//! This is a state machine without I/O and without a clock: the port reports what happens, with the time, and does what
//! the machine decides.
//!
//! ```text
//!                     a turn took in a lone message,
//!                     and its acknowledgement is sent
//!   +----------+ ------------------------------------> +------------+
//!   |          |                                       | Answerable |
//!   |          | <------------------------------------ +------------+
//!   |   Idle   |   the program sends: it *replies*            ^
//!   |          |   a turn without a lone message,             | the acknowledgement is sent
//!   |          |   or the end of ANSWER                       | for another reason
//!   |          |                                       +------------+
//!   |          | ------------------------------------> |    Held    |
//!   +----------+   a turn took in a lone message, and  +------------+
//!        ^         the program *replies* to those             |
//!        |                                                    |
//!        +----------------------------------------------------+
//!          the program sends: the acknowledgement leaves with it
//!          the program's next turn, or the background thread's first turn after ANSWER:
//!          the acknowledgement is sent, and the program *does not reply*
//! ```
//!
//! One bit is learned: whether the program replies to lone messages. At first it does not: the first acknowledgement of
//! a conversation is always sent at once. A reply while a lone message is answerable teaches that it does; a hold that
//! ends in a turn teaches that it does not.
//!
//! The states Idle and Answerable hold nothing. The state Held ends with the next turn of a program thread, and those of
//! a polling program are microseconds apart. If the program stops polling, the background thread ends it: it looks once
//! in a standby period (see `attend`).

use time::{Duration, Instant};

/// Acknowledgements of more datagrams than this are not held: they belong to a stream, whose sender waits. A message
/// may come with one other datagram, such as the acknowledgement of the message before it.
pub(super) const HELD_DATAGRAMS: u32 = 2;

/// The same for messages, of which a datagram that the kernel has put together from a train has many.
pub(super) const HELD_MESSAGES: u32 = 2;

/// How soon a program that polls memory continually replies: detection takes 1 us, and building the reply some more. For
/// this time an acknowledgement is held, and the background thread steps aside.
pub(super) const ANSWER: Duration = Duration::from_micros(20);

/// The same as a number of turns such as the one that took in the message, up to a time. A turn takes 2 to 4 us; where it takes
/// longer, on an emulated processor or a shared one, so does the reply. If the acknowledgement left before the reply there, the
/// peer, which polls for both, would find one of them and go on to wait for the other by polling memory, as the program does:
/// from then on all work of both hosts would be that of their background threads.
pub(super) const ANSWER_TURNS: u32 = 5;
pub(super) const LONGEST_ANSWER: Duration = Duration::from_micros(400);

/// The thread that takes a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Caller {
    /// A program thread that polls, while a background thread watches whether it goes on.
    Program,
    /// A program thread after which no turn is certain to come: it is about to sleep, or there is no background thread.
    LastTurn,
    /// The background thread. Its program may poll memory: it replies between two of the thread's many turns.
    Background,
}

/// Whether a turn is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begin {
    /// Take it.
    Turn,
    /// Do not: the program polled a moment ago, and is about to reply. The port counts as busy.
    Wait,
}

/// What a turn does with what is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Send it.
    Send,
    /// Send nothing: the acknowledgement is held.
    Hold,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    /// The last turn took in a lone message, and its acknowledgement was sent. In turns of the background thread, what
    /// the program sends until then counts as a reply.
    Answerable {
        until: Instant,
    },
    /// The acknowledgement of a lone message is held: until the program's next turn, or until the background thread's
    /// first one after `until`.
    Held {
        until: Instant,
    },
}

/// Decides whether an acknowledgement is held.
#[derive(Debug)]
pub(super) struct AckHold {
    state: State,
    /// Whether the program replies to lone messages.
    replies: bool,
}

impl AckHold {
    pub(super) fn new() -> Self {
        Self { state: State::Idle, replies: false }
    }

    /// Returns whether an acknowledgement is held.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.state, State::Held { .. })
    }

    /// Until when the program may reply to what the last turn took in.
    pub(super) fn answered_by(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Answerable { until } | State::Held { until } => Some(until),
        }
    }

    /// Until when the program is expected to reply to what the last turn took in; `None` for one that does not reply to lone
    /// messages. A stream has such messages too, and its sender waits for nobody's reply.
    pub(super) fn reply_by(&self) -> Option<Instant> {
        self.answered_by().filter(|_| self.replies)
    }

    /// A turn is about to be taken.
    pub(super) fn begin(&mut self, caller: Caller, now: Instant) -> Begin {
        if let State::Held { until } = self.state {
            if caller == Caller::Background && now < until {
                return Begin::Wait;
            }
            // Nothing was posted since: the program only receives.
            self.replies = false;
        }
        Begin::Turn
    }

    /// The turn has taken in this many datagrams. `only_acks`: there is something to send now, and all of it is
    /// acknowledgements. A packet that requests no acknowledgement is not part of a conversation; an acknowledgement,
    /// for example, is not. `now`: when the turn began; `clock`: says what time it is.
    pub(super) fn take_in(
        &mut self,
        caller: Caller,
        datagrams: u32,
        only_acks: bool,
        now: Instant,
        clock: impl FnOnce() -> Instant,
    ) -> Verdict {
        if only_acks && (1..=HELD_DATAGRAMS).contains(&datagrams) {
            let until = match caller {
                Caller::Background => {
                    let taken = clock();
                    taken + ((taken - now) * ANSWER_TURNS).clamp(ANSWER, LONGEST_ANSWER)
                }
                Caller::Program | Caller::LastTurn => now + ANSWER,
            };
            if self.replies && caller != Caller::LastTurn {
                self.state = State::Held { until };
                return Verdict::Hold;
            }
            self.state = State::Answerable { until };
            return Verdict::Send;
        }
        let goes_on = match self.state {
            // Nothing arrived between two of the thread's many turns.
            State::Answerable { until } => caller == Caller::Background && datagrams == 0 && now < until,
            State::Idle | State::Held { .. } => false,
        };
        if !goes_on {
            self.state = State::Idle;
        }
        Verdict::Send
    }

    /// The turn is over: it took in this many datagrams and sent this many trains.
    pub(super) fn end(&mut self, datagrams: u32, trains: u32) {
        if datagrams == 0 && trains > 0 {
            // What left was no acknowledgement of a message that arrived in this turn: the conversation is interrupted.
            self.state = State::Idle;
        }
    }

    /// Whatever is due is sent now, in a turn or outside of turns.
    pub(super) fn sent(&mut self) {
        if let State::Held { until } = self.state {
            self.state = State::Answerable { until };
        }
    }

    /// The program posted a send request. Returns whether to send at once, because its packet can carry a held
    /// acknowledgement.
    pub(super) fn posted(&mut self) -> bool {
        let state = std::mem::replace(&mut self.state, State::Idle);
        self.replies |= state != State::Idle;
        matches!(state, State::Held { .. })
    }
}

#[cfg(test)]
mod tests;
