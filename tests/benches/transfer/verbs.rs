//! Transfers by rnic: verbs, default configuration.

use super::Outcome;
use super::bare::Op;
use rnic::{
    Access, CompletionChannel, CompletionQueue, ConnectOptions, Device, MemoryRegion, Operation, QpAddress,
    QpInit, QueuePair, Remote, SendFlags, SendWr, WcStatus, WorkCompletion,
};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How long a sleeping side waits before it looks whether to stop, in milliseconds.
const TICK: Duration = Duration::from_millis(10);

/// How many polls without a message pass between two looks whether to stop.
const LOOK: u32 = 1024;

/// How long a ping waits for its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The receives posted on each queue pair, as a multiple of the messages in flight: a receiver that is slightly late
/// delays no sender.
const RECEIVES: usize = 2;

/// Work request numbers of receives; those of sends are below.
const RECV: u64 = 1 << 63;

/// Where the number of the queue pair begins in the number of a work request.
const QP: u32 = 40;

/// A transfer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) op: Op,
    pub(crate) size: usize,
    pub(crate) qps: usize,
    /// Messages in flight on each queue pair.
    pub(crate) depth: u64,
    /// One message at a time, back and forth.
    pub(crate) trips: bool,
    /// Sleep on a completion channel.
    pub(crate) asleep: bool,
}

impl Work {
    /// Signal one send in this number.
    fn signal_every(&self) -> u64 {
        (self.depth / 4).max(1)
    }
}

/// What the other side needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    qps: Vec<QpAddress>,
    addr: u64,
    rkey: u32,
}

/// The resources of a side for one transfer.
pub(crate) struct End {
    work: Work,
    device: Device,
    cq: CompletionQueue,
    channel: Option<CompletionChannel>,
    qps: Vec<QueuePair>,
    source: MemoryRegion,
    target: MemoryRegion,
    peer: Option<Place>,
}

/// Messages of one queue pair.
#[derive(Clone, Copy, Default)]
struct Count {
    posted: u64,
    completed: u64,
}

impl End {
    pub(crate) fn new(device: &Device, work: Work) -> Outcome<Self> {
        let pd = device.alloc_pd()?;
        let receives = if work.op == Op::Send { RECEIVES as u64 * work.depth } else { 0 };
        let cqe = u32::try_from(work.qps as u64 * (work.depth + receives))?;
        let channel = work.asleep.then(|| device.create_comp_channel()).transpose()?;
        let cq = match &channel {
            Some(channel) => device.create_cq_with_channel(cqe, channel)?,
            None => device.create_cq(cqe)?,
        };
        let mut init = QpInit::rc(&cq, &cq);
        init.cap.max_send_wr = u32::try_from(work.depth)?;
        init.cap.max_recv_wr = u32::try_from(receives)?;
        let qps = (0..work.qps).map(|_| pd.create_qp(&init)).collect::<rnic::Result<_>>()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let (source, target) = (pd.register(work.size, access)?, pd.register(work.size, access)?);
        source.write_at(0, &super::pattern(work.size))?;
        target.write_at(0, &vec![0; work.size])?;
        Ok(Self { work, device: device.clone(), cq, channel, qps, source, target, peer: None })
    }

    pub(crate) fn place(&self) -> Place {
        // A READ reads what a WRITE would send.
        let region = if self.work.op == Op::Read { &self.source } else { &self.target };
        Place {
            qps: self.qps.iter().map(QueuePair::address).collect(),
            addr: region.addr(),
            rkey: region.rkey(),
        }
    }

    pub(crate) fn connect(&mut self, peer: Place) -> Outcome<()> {
        for (qp, address) in self.qps.iter().zip(&peer.qps) {
            qp.connect(address, &ConnectOptions::default())?;
        }
        self.peer = Some(peer);
        if self.work.op == Op::Send {
            for qp in 0..self.qps.len() {
                for _ in 0..RECEIVES as u64 * self.work.depth {
                    self.post_recv(qp)?;
                }
            }
        }
        Ok(())
    }

    fn post_recv(&self, qp: usize) -> Outcome<()> {
        Ok(self.qps[qp].recv(RECV | (qp as u64) << QP, self.target.all())?)
    }

    fn post(&self, qp: usize, number: u64, signalled: bool) -> Outcome<()> {
        let peer = self.peer.as_ref().ok_or("not connected")?;
        let remote = Remote { addr: peer.addr, rkey: peer.rkey };
        let (operation, data) = match self.work.op {
            Op::Write => (Operation::Write { remote, imm: None }, self.source.all()),
            Op::Read => (Operation::Read { remote }, self.target.all()),
            Op::Send => (Operation::Send { imm: None, invalidate: None }, self.source.all()),
        };
        let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        Ok(self.qps[qp].post_send(SendWr::new((qp as u64) << QP | number, operation, data).flags(flags))?)
    }

    /// Takes completions: each send is counted, each receive posted again. Returns how many receives there were. Sleeps
    /// for up to a tick if there is nothing and a channel.
    fn poll(&self, counts: &mut [Count]) -> Outcome<u64> {
        let mut completions = [WorkCompletion::default(); 32];
        let mut taken = self.cq.poll(&mut completions);
        if taken == 0
            && let Some(channel) = &self.channel
        {
            self.cq.arm(false)?;
            taken = self.cq.poll(&mut completions);
            if taken == 0 {
                // A caller whose time is up calls again.
                let _ = channel.wait(TICK);
                taken = self.cq.poll(&mut completions);
            }
        }
        let mut received = 0;
        for completion in &completions[..taken] {
            let qp = ((completion.wr_id & !RECV) >> QP) as usize;
            if completion.status != WcStatus::Success {
                let why = self.qps[qp].failure().map(|failure| failure.to_string()).unwrap_or_default();
                return Err(format!("{}: {} {why}", completion.status, completion.status.explain()).into());
            }
            if completion.wr_id & RECV != 0 {
                self.post_recv(qp)?;
                received += 1;
            } else if let Some(count) = counts.get_mut(qp) {
                count.completed = (completion.wr_id & ((1 << QP) - 1)) + 1;
            }
        }
        Ok(received)
    }

    /// Streams for a while; returns messages per second, from the first post to the last completion.
    pub(crate) fn stream(&self, time: Duration) -> Outcome<f64> {
        let (depth, every) = (self.work.depth, self.work.signal_every());
        let mut counts = vec![Count::default(); self.qps.len()];
        let start = Instant::now();
        let mut open = true;
        while open || counts.iter().any(|count| count.completed < count.posted) {
            for (qp, count) in counts.iter_mut().enumerate() {
                // The last message of all is signalled.
                while count.posted - count.completed < depth && (open || !count.posted.is_multiple_of(every))
                {
                    self.post(qp, count.posted, (count.posted + 1).is_multiple_of(every))?;
                    count.posted += 1;
                }
            }
            self.poll(&mut counts)?;
            open = start.elapsed() < time;
        }
        let messages: u64 = counts.iter().map(|count| count.completed).sum();
        Ok(messages as f64 / start.elapsed().as_secs_f64())
    }

    /// Receives SENDs while `go`.
    fn absorb(&self, go: impl Fn() -> bool) -> Outcome<()> {
        while go() {
            self.poll(&mut [])?;
        }
        Ok(())
    }

    /// Sends message `number` of a ping-pong.
    fn play(&self, number: u64) -> Outcome<()> {
        if self.work.op == Op::Write {
            self.source.write_at(self.work.size - 1, &[mark(number)])?;
        }
        let reads = self.work.op == Op::Read;
        self.post(0, number, reads || (number + 1).is_multiple_of(self.work.signal_every()))
    }

    /// Whether message `number` of the other side, or the data of a READ, has arrived.
    fn arrived(&self, number: u64, counts: &mut [Count], received: &mut u64) -> Outcome<bool> {
        match self.work.op {
            Op::Write => {
                let mut last = [0];
                self.target.read_at(self.work.size - 1, &mut last)?;
                if last[0] != mark(number) {
                    self.device.progress();
                    return Ok(false);
                }
                Ok(true)
            }
            Op::Read => self.poll(counts).map(|_| counts[0].completed > number),
            Op::Send => {
                *received += self.poll(counts)?;
                Ok(*received > number)
            }
        }
    }

    /// Waits for message `number`; false if `go` ends it.
    fn wait(
        &self,
        number: u64,
        counts: &mut [Count],
        received: &mut u64,
        go: impl Fn() -> bool,
    ) -> Outcome<bool> {
        let mut polls = 0u32;
        while !self.arrived(number, counts, received)? {
            polls += 1;
            if (self.work.asleep || polls.is_multiple_of(LOOK)) && !go() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the completions of WRITEs, which nothing else takes. Not part of a measured trip.
    fn tidy(&self, number: u64, counts: &mut [Count]) -> Outcome<()> {
        if self.work.op == Op::Write && (number + 1).is_multiple_of(self.work.signal_every()) {
            self.poll(counts)?;
        }
        Ok(())
    }

    /// Round trips for a while, in nanoseconds.
    pub(crate) fn trips(&self, time: Duration) -> Outcome<Vec<f64>> {
        let (mut counts, mut received, mut trips) = ([Count::default()], 0, Vec::new());
        let begin = Instant::now();
        for number in 0.. {
            let start = Instant::now();
            if start - begin >= time {
                break;
            }
            self.play(number)?;
            if !self.wait(number, &mut counts, &mut received, || start.elapsed() < PATIENCE)? {
                return Err("rnic has no answer".into());
            }
            trips.push(start.elapsed().as_nanos() as f64);
            self.tidy(number, &mut counts)?;
        }
        Ok(trips)
    }

    /// The far side, while `go`.
    pub(crate) fn serve(&self, go: impl Fn() -> bool) -> Outcome<()> {
        match (self.work.op, self.work.trips) {
            (Op::Read, _) | (Op::Write, false) => {
                while go() {
                    std::thread::sleep(TICK);
                }
            }
            (Op::Send, false) => self.absorb(go)?,
            (Op::Write | Op::Send, true) => {
                let (mut counts, mut received) = ([Count::default()], 0);
                for number in 0.. {
                    if !self.wait(number, &mut counts, &mut received, &go)? {
                        break;
                    }
                    self.play(number)?;
                    self.tidy(number, &mut counts)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the data that was transferred is right.
    pub(crate) fn check(&self) -> Outcome<()> {
        let mut found = vec![0; self.work.size];
        self.target.read_at(0, &mut found)?;
        super::check(&found, self.work.size, "rnic")
    }
}

/// The last byte of message `number` of a ping-pong: never 0, and never that of its neighbour.
fn mark(number: u64) -> u8 {
    (number % 255 + 1) as u8
}
