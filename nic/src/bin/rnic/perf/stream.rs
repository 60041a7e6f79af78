//! Bandwidth: as many messages as the queues take.

use super::Failure;
use super::control::{Control, Message};
use super::endpoint::{Completed, Endpoint};
use super::params::Op;
use super::progress::Progress;
use std::time::{Duration, Instant};

/// How often to look at what is not the data: the control connection, the user's wishes.
const HOUSEKEEPING: Duration = Duration::from_millis(1);

/// Length of the parts of a run, of which the best gives the peak: long enough for the clock and for a full queue.
const SLICE: Duration = Duration::from_millis(10);

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
    if end.params.op != Op::Send {
        // WRITEs and READs need nobody here; a device serves them by itself.
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
