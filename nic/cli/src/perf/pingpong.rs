//! Latency: one message at a time.
//!
//! As perftest defines it: with WRITE, each side polls the last byte of its memory and writes back as soon as it
//! changes; with SEND and immediate data, each side sends as soon as it has received; half of a round trip counts. With
//! READ and atomics, the whole time from post to completion counts.
//!
//! Over unreliable services a message without a timely answer counts as lost, and the next one is sent.

use super::Failure;
use super::control::{Control, Message};
use super::endpoint::Endpoint;
use super::progress::Progress;
use crate::stop;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// The number of polls between two checks of the send completions, the control connection and the interrupt flag: 0.5 ms
/// at 400 ns per empty poll.
const LOOK: u32 = 1024;

/// The longest latency that is recorded exactly, in nanoseconds: 60 s.
const LONGEST: u64 = 60_000_000_000;

/// How long to wait for an answer that may have been lost.
const LOST_AFTER: Duration = Duration::from_millis(500);

/// The number of consecutive losses after which the test fails.
const LOST_IN_A_ROW: u32 = 4;

/// The queue pair in use.
const QP: usize = 0;

/// The outcome of a wait.
enum Waited {
    /// The message arrived.
    There,
    /// The user or the peer ends the test.
    Ended,
    /// The message is lost.
    Lost,
}

struct PingPong<'a> {
    end: &'a Endpoint,
    size: u32,
    posted: u64,
    received: u64,
    read: u64,
    /// WRITE: the last byte of the target when it last changed.
    seen: u8,
}

impl<'a> PingPong<'a> {
    fn new(end: &'a Endpoint, size: u32) -> Self {
        Self { end, size, posted: 0, received: 0, read: 0, seen: 0 }
    }

    /// The last byte of message `number`. It is never 0, the value of cleared memory, and neighbours differ.
    fn mark(number: u64) -> u8 {
        (number % 255 + 1) as u8
    }

    /// Sends the next message; `mark` becomes its last byte.
    fn send(&mut self, mark: u8) -> Result<(), Failure> {
        let number = self.posted;
        let params = &self.end.params;
        if params.polls_memory() {
            let last = self.end.source(QP) + self.size as usize - 1;
            self.end.region().write_at(last, &[mark])?;
        }
        // Only the completion shows that a response has arrived.
        let signalled = params.op.is_answered() || (number + 1).is_multiple_of(u64::from(params.cq_mod));
        self.end.post(QP, number, self.size, signalled)?;
        self.posted += 1;
        Ok(())
    }

    /// Takes completions.
    fn drain(&mut self) -> Result<(), Failure> {
        let end = self.end;
        let (received, read) = (&mut self.received, &mut self.read);
        let reads = end.params.op.is_answered();
        end.poll(|done| {
            if done.recv {
                *received += 1;
                return end.post_recv(done.qp);
            }
            *read += u64::from(reads);
            Ok(())
        })?;
        Ok(())
    }

    /// Whether a message or a response has arrived. When polling memory, whether the last byte is `wanted` or, without
    /// that, whether it has changed.
    fn arrived(&mut self, before: u64, wanted: Option<u8>) -> Result<bool, Failure> {
        if !self.end.params.polls_memory() {
            if self.received + self.read <= before {
                self.drain()?;
            }
            return Ok(self.received + self.read > before);
        }
        let last = self.end.target(QP) + self.size as usize - 1;
        let mut byte = [0];
        self.end.region().read_at(last, &mut byte)?;
        let there = wanted.map_or(byte[0] != self.seen, |mark| byte[0] == mark);
        if there {
            [self.seen] = byte;
        } else {
            self.end.device.progress();
        }
        Ok(there)
    }

    /// The number of messages and responses so far.
    fn so_far(&self) -> u64 {
        self.received + self.read
    }

    /// Waits for more than `before` messages and responses. Calls `ended` now and then.
    fn wait(
        &mut self,
        before: u64,
        wanted: Option<u8>,
        patience: Option<Duration>,
        ended: &mut dyn FnMut() -> Result<bool, Failure>,
    ) -> Result<Waited, Failure> {
        let mut polls = 0u32;
        let start = Instant::now();
        while !self.arrived(before, wanted)? {
            polls += 1;
            // With events, a poll may sleep.
            if polls.is_multiple_of(LOOK) || self.end.params.events {
                if self.end.params.polls_memory() {
                    self.drain()?;
                }
                if ended()? {
                    return Ok(Waited::Ended);
                }
                if patience.is_some_and(|patience| start.elapsed() >= patience) {
                    return Ok(Waited::Lost);
                }
            }
        }
        Ok(Waited::There)
    }
}

/// Plays until the limit; returns the latencies in nanoseconds and the number of messages without an answer.
pub(super) fn initiate(
    end: &Endpoint,
    size: u32,
    control: &mut Control,
    progress: &mut Progress,
) -> Result<(Histogram<u64>, u64), Failure> {
    let mut latencies = histogram()?;
    let mut game = PingPong::new(end, size);
    let params = &end.params;
    let divisor = if params.op.is_answered() { 1 } else { 2 };
    let drain_every = u64::from(params.cq_mod);
    let patience = (!params.service.is_reliable()).then_some(LOST_AFTER);
    let (mut lost, mut in_a_row) = (0, 0);
    let mut ended = || match control.try_receive()? {
        None => Ok(stop::requested()),
        Some(message) => Err(control.unexpected(&message)),
    };
    let start = Instant::now();
    let mut now = start;
    for number in 0.. {
        let elapsed = now.saturating_duration_since(start);
        if number > 0 && (stop::requested() || !params.limit.allows(number, elapsed)) {
            break;
        }
        let (before, mark) = (game.so_far(), PingPong::mark(number));
        let sent = Instant::now();
        game.send(mark)?;
        let waited = game.wait(before, Some(mark), patience, &mut ended)?;
        now = Instant::now();
        match waited {
            Waited::There => in_a_row = 0,
            Waited::Ended => break,
            Waited::Lost => {
                (lost, in_a_row) = (lost + 1, in_a_row + 1);
                if in_a_row == LOST_IN_A_ROW {
                    return Err(format!("{in_a_row} messages in a row were not answered").into());
                }
                // A late answer must not count for the next message.
                game.drain()?;
                continue;
            }
        }
        let latency = now.saturating_duration_since(sent).as_nanos() / divisor;
        latencies.saturating_record(u64::try_from(latency).unwrap_or(LONGEST));
        // Outside the measured time.
        if params.polls_memory() && (number + 1).is_multiple_of(drain_every) {
            game.drain()?;
        }
        progress.show(now, number + 1);
    }
    Ok((latencies, lost))
}

/// Answers until a message arrives on the control connection, and returns that.
pub(super) fn answer(end: &Endpoint, size: u32, control: &mut Control) -> Result<Message, Failure> {
    if end.params.op.is_answered() {
        return control.receive(Duration::MAX);
    }
    let mut game = PingPong::new(end, size);
    let mut heard = None;
    for number in 0.. {
        let waited = game.wait(number, None, None, &mut || {
            heard = control.try_receive()?;
            Ok(heard.is_some() || stop::requested())
        })?;
        if let Waited::Ended = waited {
            break;
        }
        game.send(game.seen)?;
        if end.params.polls_memory() && (number + 1).is_multiple_of(u64::from(end.params.cq_mod)) {
            game.drain()?;
        }
    }
    heard.ok_or_else(|| "interrupted".into())
}

/// An empty histogram of nanoseconds, with a precision of 1/1000.
fn histogram() -> Result<Histogram<u64>, Failure> {
    Ok(Histogram::new_with_bounds(1, LONGEST, 3)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_neighbours_differ_and_none_is_zero() {
        assert_ne!(PingPong::mark(0), 0);
        for number in 0..600 {
            assert_ne!(PingPong::mark(number), PingPong::mark(number + 1));
            assert_ne!(PingPong::mark(number), 0);
        }
    }
}
