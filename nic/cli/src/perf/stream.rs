//! Bandwidth: as many messages in flight as the queues hold.

use super::Failure;
use super::control::{Control, Message};
use super::endpoint::{Completed, Endpoint};
use super::progress::Progress;
use std::time::{Duration, Instant};

/// How often to check the control connection and for an interrupt.
const HOUSEKEEPING: Duration = Duration::from_millis(1);

/// The shortest interval between two marks of a run.
const INTERVAL: Duration = Duration::from_millis(10);

/// The most marks of a run. When this number is reached, every other one is removed and the interval doubles.
const MAX_MARKS: usize = 512;

/// How long a receiver waits for messages that are missing after the sender has finished: longer than a slow receiver takes
/// to read what other clients have in front of them in the socket (8 MiB at 200 Mb/s take 340 ms).
const QUIET: Duration = Duration::from_millis(500);

/// What one side sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) messages: u64,
    pub(super) seconds: f64,
    /// The peak rate in messages per second; 0 if it was not measured.
    pub(super) peak: f64,
}

/// The messages of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct QpCounts {
    posted: u64,
    completed: u64,
    /// The number of messages up to the last that was signalled.
    signalled: u64,
}

/// The progress of a run at some time.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    seconds: f64,
    posted: u64,
    completed: u64,
}

/// Marks over a run, from which the peak rate is computed as perftest does: the highest rate over any part of the run,
/// from posting the first message of the part to completing its last. Completions alone would show rates that never
/// occurred, because a thread that was not scheduled for a while then finds many of them at once.
struct Meter {
    marks: Vec<Mark>,
    interval: Duration,
    next: Duration,
}

impl Meter {
    fn new() -> Self {
        Self { marks: vec![Mark::default()], interval: INTERVAL, next: INTERVAL }
    }

    fn note(&mut self, elapsed: Duration, posted: u64, completed: u64) {
        if elapsed < self.next {
            return;
        }
        self.marks.push(Mark { seconds: elapsed.as_secs_f64(), posted, completed });
        if self.marks.len() == MAX_MARKS {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
            self.interval *= 2;
        }
        self.next = elapsed + self.interval;
    }

    /// The peak rate in messages per second of a run that ends now.
    fn peak(mut self, elapsed: Duration, completed: u64) -> f64 {
        self.marks.push(Mark { seconds: elapsed.as_secs_f64(), posted: completed, completed });
        let mut peak = 0.0_f64;
        for (index, end) in self.marks.iter().enumerate() {
            for start in &self.marks[..index] {
                // Messages posted before the part began are not counted.
                let messages = end.completed.saturating_sub(start.posted);
                let seconds = end.seconds - start.seconds;
                if seconds > 0.0 {
                    peak = peak.max(messages as f64 / seconds);
                }
            }
        }
        peak
    }
}

struct Stream<'a> {
    end: &'a Endpoint,
    size: u32,
    counts: Vec<QpCounts>,
    /// Messages of all queue pairs. Adding up hundreds of them between two polls would take a part of what is measured.
    posted: u64,
    completed: u64,
}

impl Stream<'_> {
    /// Posts messages while there is room. Returns whether all are posted.
    fn fill(&mut self, elapsed: Duration, stop: bool) -> Result<bool, Failure> {
        let params = &self.end.params;
        let depth = u64::from(params.depth);
        let mut all_posted = true;
        for (qp, count) in self.counts.iter_mut().enumerate() {
            loop {
                // Post at least one, so that there is data to verify.
                let more = count.posted == 0 || (!stop && params.limit.allows(count.posted, elapsed));
                // If the end was not foreseen, one more signalled message shows when the messages before it are
                // complete.
                if !more && count.signalled == count.posted {
                    break;
                }
                if count.posted - count.completed >= depth {
                    all_posted = false;
                    break;
                }
                let last = !more || !params.limit.allows(count.posted + 1, elapsed);
                let signalled = last || (count.posted + 1).is_multiple_of(u64::from(params.cq_mod));
                self.end.post(qp, count.posted, self.size, signalled)?;
                count.posted += 1;
                self.posted += 1;
                if signalled {
                    count.signalled = count.posted;
                }
            }
        }
        Ok(all_posted)
    }

    /// Takes completions.
    fn drain(&mut self) -> Result<(), Failure> {
        let (end, counts, completed) = (self.end, &mut self.counts, &mut self.completed);
        end.poll(|done| {
            if done.recv {
                return end.post_recv(done.qp);
            }
            if let Some(count) = counts.get_mut(done.qp) {
                *completed += done.number + 1 - count.completed;
                count.completed = done.number + 1;
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Sends messages of `size` bytes until the limit is reached or `stop` returns true, and waits for their completions.
pub(super) fn send(
    end: &Endpoint,
    size: u32,
    progress: &mut Progress,
    stop: &mut dyn FnMut() -> Result<bool, Failure>,
) -> Result<Sent, Failure> {
    let mut stream =
        Stream { end, size, counts: vec![QpCounts::default(); end.qp_count()], posted: 0, completed: 0 };
    let start = Instant::now();
    let mut now = start;
    let mut meter = Meter::new();
    let mut looked = start;
    let mut stopped = false;
    loop {
        let all_posted = stream.fill(now.saturating_duration_since(start), stopped)?;
        stream.drain()?;
        let (posted, messages) = (stream.posted, stream.completed);
        now = Instant::now();
        let elapsed = now.saturating_duration_since(start);
        meter.note(elapsed, posted, messages);
        if all_posted && messages == posted {
            return Ok(Sent {
                messages,
                seconds: elapsed.as_secs_f64(),
                peak: meter.peak(elapsed, messages),
            });
        }
        if now.saturating_duration_since(looked) >= HOUSEKEEPING {
            looked = now;
            progress.show(now, messages);
            stopped |= stop()?;
        }
    }
}

/// Serves the peer until a message arrives on the control connection, and returns that.
pub(super) fn serve(end: &Endpoint, control: &mut Control) -> Result<Message, Failure> {
    if !end.params.takes_receives() {
        // Without receives there is nothing to do: the device serves requests by itself.
        return control.receive(Duration::MAX);
    }
    let repost = |done: Completed| if done.recv { end.post_recv(done.qp) } else { Ok(()) };
    let mut looked = Instant::now();
    loop {
        end.poll(repost)?;
        let now = Instant::now();
        if now.saturating_duration_since(looked) < HOUSEKEEPING {
            continue;
        }
        looked = now;
        if let Some(message) = control.try_receive()? {
            // All messages that the peer has seen acknowledged have completed here.
            while end.poll_now(repost)? > 0 {}
            return Ok(message);
        }
    }
}

/// Counts the messages that arrive over an unreliable service.
pub(super) struct Arrivals<'a> {
    end: &'a Endpoint,
    before: u64,
    messages: u64,
    /// The time of the last check before the first message, and the time at which the last message was seen.
    span: Option<(Instant, Instant)>,
    looked: Instant,
}

impl<'a> Arrivals<'a> {
    /// Starts to count.
    pub(super) fn new(end: &'a Endpoint) -> Self {
        Self { end, before: end.arrived(), messages: 0, span: None, looked: Instant::now() }
    }

    fn look(&mut self, now: Instant) {
        let messages = self.end.arrived().saturating_sub(self.before);
        if messages > self.messages {
            let first = self.span.map_or(self.looked, |(first, _)| first);
            (self.messages, self.span) = (messages, Some((first, now)));
        }
        self.looked = now;
    }

    /// As [`serve`], but continues until all messages have arrived, or no more do.
    pub(super) fn serve(&mut self, control: &mut Control) -> Result<Message, Failure> {
        let end = self.end;
        let repost = |done: Completed| if done.recv { end.post_recv(done.qp) } else { Ok(()) };
        let mut heard: Option<(Message, Instant)> = None;
        loop {
            if self.end.params.takes_receives() {
                self.end.poll(repost)?;
            } else {
                self.end.device.progress();
            }
            let now = Instant::now();
            if now.saturating_duration_since(self.looked) < HOUSEKEEPING {
                continue;
            }
            self.look(now);
            match heard.take() {
                None => heard = control.try_receive()?.map(|message| (message, now)),
                Some((message @ Message::Finish { messages, .. }, _)) if self.messages >= messages => {
                    return Ok(message);
                }
                Some((message, then)) => {
                    let last = self.span.map_or(then, |(_, last)| last.max(then));
                    if now.saturating_duration_since(last) >= QUIET {
                        return Ok(message);
                    }
                    heard = Some((message, then));
                }
            }
        }
    }

    /// The number of messages, and the time between the first and the last. The receiver does not know when they were
    /// posted, so there is no peak.
    pub(super) fn sum(&self) -> Sent {
        let seconds = self.span.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        Sent { messages: self.messages, seconds, peak: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Completions that are found late, all at once, do not make a peak.
    #[test]
    fn a_peak_is_a_rate_that_was_reached_from_post_to_completion() {
        let at = Duration::from_millis;
        let mut meter = Meter::new();
        // 1000 messages in flight throughout, 1000 completions per second. Those of the second second are found late.
        meter.note(at(1000), 2000, 1000);
        meter.note(at(2000), 2000, 1000);
        meter.note(at(2010), 3000, 2000);
        let average = 3000.0 / 3.0;
        let peak = meter.peak(at(3000), 3000);
        assert!((average..1.1 * average).contains(&peak), "{peak}");
    }

    #[test]
    fn a_burst_that_lasts_is_a_peak() {
        let at = Duration::from_millis;
        let mut meter = Meter::new();
        meter.note(at(1000), 110, 100);
        meter.note(at(2000), 5010, 5000);
        let peak = meter.peak(at(10_000), 5100);
        assert!((4800.0..5000.0).contains(&peak), "{peak}");
    }

    #[test]
    fn the_marks_of_a_long_run_are_bounded() {
        let mut meter = Meter::new();
        for tick in 1..100_000u64 {
            meter.note(Duration::from_millis(10 * tick), tick, tick);
        }
        assert!(meter.marks.len() < MAX_MARKS);
        let peak = meter.peak(Duration::from_secs(1000), 100_000);
        assert!((99.0..101.0).contains(&peak), "{peak}");
    }
}
