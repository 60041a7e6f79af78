//! Writing a trace.

use super::{Header, Sample};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lines are collected up to this size before they are written, a page cache's worth of some hundred samples.
const BUFFER: usize = 64 << 10;

/// Lines are written after this time of the trace at the latest. A process that is killed loses no more than that.
const WRITE_AFTER: Duration = Duration::from_millis(100);

/// Shortest interval of a thread's samples: a sleep of Linux is 50 us late by default (`PR_SET_TIMERSLACK`).
pub const MIN_INTERVAL: Duration = Duration::from_micros(100);

/// How often a thread records that nothing has changed.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// A pause is at least this many times as long as the sample before it took. A sample holds the lock of the port, which
/// must be free for traffic for nine tenths of the time, however many queue pairs there are.
const IDLE: u32 = 9;

/// Writes samples. What is collected is written when the recorder is dropped; [`finish`](Self::finish) says whether that
/// worked.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    out: W,
    /// Whole lines that are not written yet.
    lines: Vec<u8>,
    /// The time of the trace at which lines were last written.
    written_at: Duration,
    began: Instant,
    samples: u64,
    /// The last sample that was recorded by a thread, and the last that was taken since, if it was no different.
    last: Option<Sample>,
    held: Option<Sample>,
}

impl Recorder<File> {
    /// Creates a file, and writes the header.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: impl AsRef<Path>, header: &Header) -> io::Result<Self> {
        Self::new(File::create(path)?, header)
    }
}

impl<W: Write> Recorder<W> {
    /// Writes the header. On the network this is the beginning of the trace: make the header just before.
    ///
    /// # Errors
    /// What the writer says.
    pub fn new(mut out: W, header: &Header) -> io::Result<Self> {
        let began = Instant::now();
        let mut line = serde_json::to_vec(header)?;
        line.push(b'\n');
        out.write_all(&line)?;
        let lines = Vec::with_capacity(BUFFER);
        Ok(Self { out, lines, written_at: Duration::ZERO, began, samples: 0, last: None, held: None })
    }

    /// Takes in a sample, whose time is that of the caller.
    ///
    /// # Errors
    /// What the writer says; the lines since the last that was written are lost then.
    pub fn record(&mut self, sample: &Sample) -> io::Result<()> {
        serde_json::to_writer(&mut self.lines, sample)?;
        self.lines.push(b'\n');
        self.samples += 1;
        if self.lines.len() >= BUFFER || sample.at.saturating_sub(self.written_at) >= WRITE_AFTER {
            self.written_at = sample.at;
            self.write()?;
        }
        Ok(())
    }

    /// Takes in a sample unless it only repeats the last one, so that an idle port does not fill the disk. Of repeated samples,
    /// one every [`IDLE_INTERVAL`] is recorded, and the one before a change, so that the change has the right time.
    pub(super) fn record_change(&mut self, sample: Sample) -> io::Result<()> {
        let (mut same, mut recent) = (false, false);
        if let Some(last) = &self.last {
            same = (&last.port, &last.qps, &last.lanes) == (&sample.port, &sample.qps, &sample.lanes);
            recent = sample.at.saturating_sub(last.at) < IDLE_INTERVAL;
        }
        if same && recent {
            self.held = Some(sample);
            return Ok(());
        }
        if let Some(held) = self.held.take().filter(|_| !same) {
            self.record(&held)?;
        }
        self.record(&sample)?;
        self.last = Some(sample);
        Ok(())
    }

    /// Samples taken in.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Writes what is collected, and says how many samples there were.
    ///
    /// # Errors
    /// What the writer says.
    pub fn finish(mut self) -> io::Result<u64> {
        self.write()?;
        Ok(self.samples)
    }

    fn write(&mut self) -> io::Result<()> {
        let result = self.out.write_all(&self.lines).and_then(|()| self.out.flush());
        self.lines.clear();
        result
    }
}

impl<W: Write> Drop for Recorder<W> {
    fn drop(&mut self) {
        // A program that wants to see errors calls `finish`.
        let _ = self.write();
    }
}

impl<W: Write + Send + 'static> Recorder<W> {
    /// Takes a sample every `interval`, but no more often than every [`MIN_INTERVAL`], in a thread of its own, until the
    /// thread is stopped or dropped. Each sample carries the time at which it was taken; the last is taken at the end.
    /// While nothing changes, one every 100 ms is recorded.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn every(
        self,
        interval: Duration,
        sample: impl FnMut() -> Sample + Send + 'static,
    ) -> io::Result<RecorderThread> {
        let (stop, stopped) = channel();
        let interval = interval.max(MIN_INTERVAL);
        let thread = std::thread::Builder::new()
            .name("trace".into())
            .spawn(move || self.run(interval, sample, &stopped))?;
        Ok(RecorderThread { stop: Some(stop), thread: Some(thread) })
    }

    fn run(
        mut self,
        interval: Duration,
        mut take: impl FnMut() -> Sample,
        stopped: &Receiver<()>,
    ) -> io::Result<u64> {
        let mut due = Duration::ZERO;
        loop {
            let now = self.began.elapsed();
            let sample = Sample { at: now, ..take() };
            let took = self.began.elapsed().saturating_sub(now);
            self.record_change(sample)?;
            // Missed intervals are skipped.
            due = (due + interval).max(self.began.elapsed() + IDLE * took);
            let end = stopped.recv_timeout(due.saturating_sub(self.began.elapsed()));
            if end != Err(RecvTimeoutError::Timeout) {
                self.record(&Sample { at: self.began.elapsed(), ..take() })?;
                return self.finish();
            }
        }
    }
}

/// A thread that records.
#[derive(Debug)]
pub struct RecorderThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl RecorderThread {
    /// Takes the last sample, ends the thread and says how many samples were written.
    ///
    /// # Errors
    /// An error of the writer, at any sample.
    pub fn stop(mut self) -> io::Result<u64> {
        self.end()
    }

    fn end(&mut self) -> io::Result<u64> {
        drop(self.stop.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the thread that took samples panicked")),
            None => Ok(0),
        }
    }
}

impl Drop for RecorderThread {
    fn drop(&mut self) {
        // A program that wants to see errors calls `stop`.
        let _ = self.end();
    }
}
