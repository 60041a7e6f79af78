//! Latency: one message at a time.
//!
//! As perftest defines it: with WRITE, each side polls the last byte of its memory and writes back as soon as it
//! changes; with SEND, each side sends as soon as it has received; half of a round trip counts. With READ, the whole
//! time from post to completion counts.

use super::Failure;
use super::control::{Control, Message};
use super::endpoint::Endpoint;
use super::params::Op;
use super::progress::Progress;
use super::stop;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Polls between two looks at completions of sends, at the control connection and at the user's wishes: 0.5 ms, at
/// the 400 ns that an empty poll takes.
const LOOK: u32 = 1024;

/// Longest latency that is recorded as it is: 60 s, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// The queue pair in use.
const QP: usize = 0;

/// What a wait came to.
enum Waited {
    /// What was waited for.
    There,
    /// The user, or the peer, wants to end it.
    Ended,
}

struct PingPong<'a> {
    end: &'a Endpoint,
    size: u32,
    posted: u64,
    received: u64,
    read: u64,
}

impl<'a> PingPong<'a> {
    fn new(end: &'a Endpoint, size: u32) -> Self {
        Self { end, size, posted: 0, received: 0, read: 0 }
    }

    /// The value of the last byte of message `number`. The first differs from the 0 of cleared memory, and neighbours
    /// from each other.
    fn mark(number: u64) -> u8 {
        (number % 255 + 1) as u8
    }

    /// Sends the next message.
    fn send(&mut self) -> Result<(), Failure> {
        let number = self.posted;
        if self.end.params.op == Op::Write {
            let last = self.end.source(QP) + self.size as usize - 1;
            self.end.region().write_at(last, &[Self::mark(number)])?;
        }
        // A READ is known to be done by its completion only.
        let signalled =
            self.end.params.op == Op::Read || (number + 1).is_multiple_of(u64::from(self.end.params.cq_mod));
        self.end.post(QP, number, self.size, signalled)?;
        self.posted += 1;
        Ok(())
    }

    /// Takes what completed.
    fn drain(&mut self) -> Result<(), Failure> {
        let end = self.end;
        let (received, read) = (&mut self.received, &mut self.read);
        let reads = end.params.op == Op::Read;
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

    /// Whether the peer's message `number` is there (for READ: whether the answer to ours is).
    fn arrived(&mut self, number: u64) -> Result<bool, Failure> {
        match self.end.params.op {
            Op::Write => {
                let last = self.end.target(QP) + self.size as usize - 1;
                let mut byte = [0];
                self.end.region().read_at(last, &mut byte)?;
                let there = byte[0] == Self::mark(number);
                if !there {
                    self.end.device.progress();
                }
                Ok(there)
            }
            Op::Send if self.received > number => Ok(true),
            Op::Read if self.read > number => Ok(true),
            Op::Send | Op::Read => {
                self.drain()?;
                Ok(self.received > number || self.read > number)
            }
        }
    }

    /// Waits for the peer's message `number`; `ended` is asked now and then.
    fn wait(
        &mut self,
        number: u64,
        ended: &mut dyn FnMut() -> Result<bool, Failure>,
    ) -> Result<Waited, Failure> {
        let mut polls = 0u32;
        while !self.arrived(number)? {
            polls += 1;
            // With events a poll may take long.
            if polls.is_multiple_of(LOOK) || self.end.params.events {
                if self.end.params.op == Op::Write {
                    self.drain()?;
                }
                if ended()? {
                    return Ok(Waited::Ended);
                }
            }
        }
        Ok(Waited::There)
    }
}

/// Plays until the limit; returns the latencies in nanoseconds.
pub(super) fn initiate(
    end: &Endpoint,
    size: u32,
    control: &mut Control,
    progress: &mut Progress,
) -> Result<Histogram<u64>, Failure> {
    let mut latencies = histogram()?;
    let mut game = PingPong::new(end, size);
    let divisor = if end.params.op == Op::Read { 1 } else { 2 };
    let drain_every = u64::from(end.params.cq_mod);
    let mut ended = || match control.try_receive()? {
        None => Ok(stop::requested()),
        Some(message) => Err(control.unexpected(&message)),
    };
    let start = Instant::now();
    let mut now = start;
    for number in 0.. {
        let elapsed = now.saturating_duration_since(start);
        if number > 0 && (stop::requested() || !end.params.limit.allows(number, elapsed)) {
            break;
        }
        let sent = Instant::now();
        game.send()?;
        if let Waited::Ended = game.wait(number, &mut ended)? {
            break;
        }
        now = Instant::now();
        let latency = now.saturating_duration_since(sent).as_nanos() / divisor;
        latencies.saturating_record(u64::try_from(latency).unwrap_or(LONGEST));
        // Outside of the measured time.
        if end.params.op == Op::Write && (number + 1).is_multiple_of(drain_every) {
            game.drain()?;
        }
        progress.show(now, number + 1);
    }
    Ok(latencies)
}

/// Answers until the client says something on the control connection, and returns that.
pub(super) fn answer(end: &Endpoint, size: u32, control: &mut Control) -> Result<Message, Failure> {
    if end.params.op == Op::Read {
        return control.receive(Duration::MAX);
    }
    let mut game = PingPong::new(end, size);
    let mut heard = None;
    for number in 0.. {
        let waited = game.wait(number, &mut || {
            heard = control.try_receive()?;
            Ok(heard.is_some() || stop::requested())
        })?;
        if let Waited::Ended = waited {
            break;
        }
        game.send()?;
        if end.params.op == Op::Write && (number + 1).is_multiple_of(u64::from(end.params.cq_mod)) {
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
