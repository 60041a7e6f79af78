//! Bandwidth: as many messages as the queues take.

use super::Failure;
use super::control::{Control, Message};
use super::endpoint::{Completed, Endpoint};
use super::progress::Progress;
use std::time::{Duration, Instant};

/// How often to look at what is not the data: the control connection, the user's wishes.
const HOUSEKEEPING: Duration = Duration::from_millis(1);

/// Length of the parts of a run, of which the best gives the peak: long enough for the clock and for a full queue.
const SLICE: Duration = Duration::from_millis(10);

/// After the sender is done, how long nothing may come before nothing is expected any more: longer than what stands in
/// a socket takes.
const QUIET: Duration = Duration::from_millis(50);

/// What one side sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) messages: u64,
    pub(super) seconds: f64,
    /// Messages a second in the best part of the run.
    pub(super) peak: f64,
}

/// The messages of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    posted: u64,
    completed: u64,
    /// Behind the last message that was signalled.
    signalled: u64,
}

/// The best rate over the slices of a run.
struct Meter {
    since: Instant,
    counted: u64,
    best: f64,
}

impl Meter {
    fn note(&mut self, now: Instant, messages: u64) {
        let slice = now.saturating_duration_since(self.since);
        if slice >= SLICE {
            self.best = self.best.max((messages - self.counted) as f64 / slice.as_secs_f64());
            (self.since, self.counted) = (now, messages);
        }
    }
}

struct Stream<'a> {
    end: &'a Endpoint,
    size: u32,
    lanes: Vec<Lane>,
}

impl Stream<'_> {
    /// Posts what there is room for. Returns whether there will be no more.
    fn fill(&mut self, elapsed: Duration, stop: bool) -> Result<bool, Failure> {
        let params = &self.end.params;
        let depth = u64::from(params.depth);
        let mut all_posted = true;
        for (qp, lane) in self.lanes.iter_mut().enumerate() {
            loop {
                // At least one, so that there is something to verify.
                let more = lane.posted == 0 || (!stop && params.limit.allows(lane.posted, elapsed));
                // Where the end came unforeseen, one more tells when those before it are done.
                if !more && lane.signalled == lane.posted {
                    break;
                }
                if lane.posted - lane.completed >= depth {
                    all_posted = false;
                    break;
                }
                let last = !more || !params.limit.allows(lane.posted + 1, elapsed);
                let signalled = last || (lane.posted + 1).is_multiple_of(u64::from(params.cq_mod));
                self.end.post(qp, lane.posted, self.size, signalled)?;
                lane.posted += 1;
                if signalled {
                    lane.signalled = lane.posted;
                }
            }
        }
        Ok(all_posted)
    }

    /// Takes what completed.
    fn drain(&mut self) -> Result<(), Failure> {
        let (end, lanes) = (self.end, &mut self.lanes);
        end.poll(|done| {
            if done.recv {
                return end.post_recv(done.qp);
            }
            if let Some(lane) = lanes.get_mut(done.qp) {
                lane.completed = done.number + 1;
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Sends messages of `size` bytes until the limit, or until `stop` says so, and sees them completed.
pub(super) fn send(
    end: &Endpoint,
    size: u32,
    progress: &mut Progress,
    stop: &mut dyn FnMut() -> Result<bool, Failure>,
) -> Result<Sent, Failure> {
    let mut stream = Stream { end, size, lanes: vec![Lane::default(); end.qp_count()] };
    let start = Instant::now();
    let mut now = start;
    let mut meter = Meter { since: start, counted: 0, best: 0.0 };
    let mut looked = start;
    let mut stopped = false;
    loop {
        let all_posted = stream.fill(now.saturating_duration_since(start), stopped)?;
        stream.drain()?;
        let messages = stream.lanes.iter().map(|lane| lane.completed).sum();
        now = Instant::now();
        meter.note(now, messages);
        if all_posted && stream.lanes.iter().all(|lane| lane.completed == lane.posted) {
            let seconds = now.saturating_duration_since(start).as_secs_f64();
            let average = messages as f64 / seconds;
            return Ok(Sent { messages, seconds, peak: meter.best.max(average) });
        }
        if now.saturating_duration_since(looked) >= HOUSEKEEPING {
            looked = now;
            progress.show(now, messages);
            stopped |= stop()?;
        }
    }
}

/// Serves the peer until it says something on the control connection, and returns that.
pub(super) fn serve(end: &Endpoint, control: &mut Control) -> Result<Message, Failure> {
    if !end.params.takes_receives() {
        // What needs no receive needs nobody here; a device serves it by itself.
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
            // What the peer saw acknowledged has completed here.
            while end.poll_now(repost)? > 0 {}
            return Ok(message);
        }
    }
}

/// The messages of a service that loses some, as they arrive.
pub(super) struct Arrivals<'a> {
    end: &'a Endpoint,
    before: u64,
    messages: u64,
    /// When the first was about to come, and when the last was there.
    span: Option<(Instant, Instant)>,
    looked: Instant,
    meter: Meter,
}

impl<'a> Arrivals<'a> {
    /// From now on.
    pub(super) fn new(end: &'a Endpoint) -> Self {
        let now = Instant::now();
        let meter = Meter { since: now, counted: 0, best: 0.0 };
        Self { end, before: end.arrived(), messages: 0, span: None, looked: now, meter }
    }

    fn look(&mut self, now: Instant) {
        let messages = self.end.arrived().saturating_sub(self.before);
        if messages > self.messages {
            let first = self.span.map_or(self.looked, |(first, _)| first);
            (self.messages, self.span) = (messages, Some((first, now)));
        }
        self.meter.note(now, messages);
        self.looked = now;
    }

    /// As [`serve`]; goes on until nothing more comes.
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

    /// How many came, in which time, and how fast in the best part of it.
    pub(super) fn sum(&self) -> Sent {
        let seconds = self.span.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        Sent { messages: self.messages, seconds, peak: self.meter.best }
    }
}
