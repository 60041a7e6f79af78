//! When the background thread attends to a port, and what it does next.
//!
//! This is a state machine without I/O and without a clock: the thread reports what it sees, with the time, and does
//! what the machine decides. The machine tells three kinds of programs apart by the number of polls, and by what a
//! program announces:
//!
//! ```text
//!                  many polls                              many polls
//!   +---------+ ---------------> +---------+ <---------------------------------- +-----------+
//!   | Sleeps  |                  |  Polls  |                                     | Elsewhere |
//!   +---------+ <--------------- +---------+ ----------------------------------> +-----------+
//!        ^       it hands over                few polls in a standby period            |
//!        |                                                                             |
//!        +-----------------------------------------------------------------------------+
//!                                        it hands over
//! ```
//!
//! - *Polls*: the program drives the engine itself. The thread stands by: it sends what was left undone, and looks again a
//!   standby period later, unless the program [puts that off](PutOff) by polling. A thread that looked in every period
//!   would take the program's core 2,000 times a second for some 20 us, which one in a hundred round trips would feel.
//! - *Sleeps*: the program announced that it sleeps, on a completion channel for example, or it never polled. The thread
//!   drives.
//! - *Elsewhere*: the program polled, stopped, and did not announce that it sleeps. It may have ended its conversation,
//!   or it may poll the memory that its peer writes to. The thread drives, and steps aside after each turn that the
//!   program is expected to reply to: the program may need this very core for its reply.
//!
//! A thread that drives goes from turn to turn:
//!
//! ```text
//!             something happened
//!           +--------------------+         nothing happened for SPIN
//!           v                    |      +-----------------------------> block until a packet, a timer or a request
//!        a turn -----------------+------+
//!           ^                    |
//!           |    ANSWER passes     |      something happened that the program is to reply to,
//!           +--------------------+----- and the program is elsewhere: step aside
//! ```
//!
//! A program that stops polling without a word is noticed in at most two standby periods, because its last polls may
//! fall into the first of them. What it left undone is sent in the first. The first is longer for a program that has polled
//! [for a while](STEADY).

use time::{Duration, Instant};

/// How long after the program's polls the thread checks whether it still polls: half of the millisecond within which it
/// must have taken over from a program that has just begun to poll.
pub(super) const STANDBY: Duration = Duration::from_micros(500);

/// The same for a program that polls memory in between, if it was seen to do so within [`MEMORY`]: only this thread
/// brings it the data that it waits for.
pub(super) const STANDBY_FOR_MEMORY: Duration = Duration::from_micros(100);

/// How long a program counts as one that polls memory. It is a hundred standby periods: such a program polls a
/// completion queue from time to time, for the completions of its own requests.
pub(super) const MEMORY: Duration = Duration::from_millis(50);

/// A program that polls steadily puts off the thread's look by the share 1/`STEADY` of the time for which it has done so. So
/// if it stops without a word, its messages wait longer by at most an eighth of that time. In its first 150 ms it sets the timer
/// some 55 times; with half the share it was 84 times. Where a round trip takes 10 us, 84 on each side disturb more than one in a
/// hundred, and 55 do not.
pub(super) const STEADY: u32 = 8;

/// The most by which a look is put off, in periods: 8 ms, after 64 ms. A peer whose packets are not read for 8 ms sends none
/// again, because the default timeout is 67 ms, and nobody notices 125 looks a second.
pub(super) const LONGEST: u32 = 16;

/// How long the thread spins after activity before it blocks: a wake-up takes 12 to 30 us, so the thread is still awake
/// for a packet of the same conversation that arrives within this time.
pub(super) const SPIN: Duration = Duration::from_micros(50);

/// A program with this many polls between two checks counts as polling. Programs that sleep on a completion channel
/// poll once or twice per event.
pub(super) const POLLING: u32 = 16;

/// What the program does, as far as the thread can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Program {
    Sleeps,
    Polls,
    Elsewhere,
}

/// What the thread does first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stance {
    /// It sends what the program left undone, and then rests for this time after the program's latest polls, or until the
    /// program hands over.
    StandBy { period: Duration },
    /// It takes a turn.
    Drive,
}

/// What the thread does after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It takes the next turn at once.
    Spin,
    /// It rests until the instant, or until the program hands over.
    StepAside { until: Instant },
    /// It blocks until there is a packet, a timer is due, or the port needs it.
    Block,
}

/// Decides what the background thread does.
#[derive(Debug)]
pub(super) struct Attendance {
    program: Program,
    /// The number of polls when they were last evaluated, and when that was.
    seen: u32,
    since: Instant,
    /// Until when the thread spins.
    spins_until: Instant,
    /// Until when the program counts as one that polls memory.
    memory_until: Instant,
    /// Whether the period of a standby goes on.
    rests: bool,
}

impl Attendance {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            program: Program::Sleeps,
            seen: 0,
            since: now,
            spins_until: now,
            memory_until: now,
            rests: false,
        }
    }

    /// The thread is awake. `polls`: the number of polls ever, wrapping around; `handed_over`: whether the program has
    /// announced since the last call that it sleeps.
    pub(super) fn look(&mut self, now: Instant, polls: u32, handed_over: bool) -> Stance {
        let period = if now < self.memory_until { STANDBY_FOR_MEMORY } else { STANDBY };
        let many = polls.wrapping_sub(self.seen) >= POLLING;
        if many || now.saturating_duration_since(self.since) >= period {
            (self.seen, self.since) = (polls, now);
            self.program = match self.program {
                _ if many => Program::Polls,
                Program::Polls => Program::Elsewhere,
                other => other,
            };
        }
        if handed_over {
            // Earlier polls do not count.
            self.program = Program::Sleeps;
        }
        match self.program {
            Program::Polls => Stance::StandBy { period },
            Program::Sleeps | Program::Elsewhere => {
                self.rests = false;
                Stance::Drive
            }
        }
    }

    /// The thread stands by. Returns whether the period begins now: if the thread was awake for another reason, such as to
    /// publish counters, the period goes on, which the program may have put off.
    pub(super) fn begins_period(&mut self) -> bool {
        !std::mem::replace(&mut self.rests, true)
    }

    /// The period of the standby has ended.
    pub(super) fn period_ended(&mut self) {
        self.rests = false;
    }

    /// The thread has taken a turn. `busy`: whether anything happened; `reply_by`: until when the program is expected to reply.
    pub(super) fn turned(&mut self, now: Instant, busy: bool, reply_by: Option<Instant>) -> Next {
        if busy {
            self.spins_until = now + SPIN;
        }
        if let (true, Some(until), Program::Elsewhere) = (busy, reply_by, self.program) {
            self.memory_until = now + MEMORY;
            Next::StepAside { until }
        } else if now < self.spins_until {
            Next::Spin
        } else {
            Next::Block
        }
    }
}

/// The program's part of a standby: its polls put off the thread's next look.
///
/// To set the thread's timer is a system call, and on a virtual machine an exit to the host or two: 12 us were measured,
/// which a round trip of a ping-pong feels. So a program that polls steadily puts the look off further and sets the timer
/// less often.
#[derive(Debug)]
pub(super) struct PutOff {
    /// The number of polls when they were last evaluated, and when that was.
    seen: u32,
    since: Instant,
    /// How long the thread rests from then on, if it was told.
    told: Duration,
    /// Since when the program polls steadily: it has told the thread in time ever since.
    steady_since: Instant,
}

impl PutOff {
    pub(super) const fn new(now: Instant) -> Self {
        Self { seen: 0, since: now, told: Duration::ZERO, steady_since: now }
    }

    /// The program has polled. `polls`: as for [`Attendance::look`]; `period`: that of the standby. Returns for how long from
    /// `now` on the thread need not look, if it has to be told that: once in three quarters of the time that it was last told.
    #[inline]
    pub(super) fn polled(&mut self, now: Instant, polls: u32, period: Duration) -> Option<Duration> {
        let rests = self.told.max(period);
        let passed = now.saturating_duration_since(self.since);
        if passed < rests * 3 / 4 {
            return None;
        }
        // Later the thread has looked meanwhile, or is about to. A program that posts to hundreds of queue pairs between two
        // polls is late by less than a period, and each look would make it later. More is a pause.
        let goes_on = polls.wrapping_sub(self.seen) >= POLLING && passed < rests + period;
        (self.seen, self.since) = (polls, now);
        if !goes_on {
            (self.told, self.steady_since) = (Duration::ZERO, now);
            return None;
        }
        let steady = now.saturating_duration_since(self.steady_since);
        self.told = (steady / STEADY).clamp(period, period * LONGEST);
        Some(self.told)
    }
}

#[cfg(test)]
mod tests;
