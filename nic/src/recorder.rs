//! Traces of ports on the network: samples by the clock of the host, from a thread of their own.

use rnic_core::trace::{Header, Recorder, Sample};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Shortest interval of a thread's samples: a sleep of Linux is 50 us late by default (`PR_SET_TIMERSLACK`).
pub const MIN_INTERVAL: Duration = Duration::from_micros(100);

/// A pause is at least this many times as long as the sample before it took. A sample holds the lock of the port, which
/// must be free for traffic for nine tenths of the time, however many queue pairs there are.
const IDLE: u32 = 9;

/// The header of a trace that begins now, by the clock of the host.
#[must_use]
pub fn header_now() -> Header {
    Header::at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A thread that samples a port and records what it finds.
#[derive(Debug)]
pub struct RecorderThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl RecorderThread {
    /// Takes a sample every `interval`, but no more often than every [`MIN_INTERVAL`], until the thread is stopped or dropped.
    /// The trace begins now: make the header just before. Each sample carries the time at which it was taken; the last is
    /// taken at the end. While nothing changes, one every 100 ms is recorded.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start<W: Write + Send + 'static>(
        recorder: Recorder<W>,
        interval: Duration,
        sample: impl FnMut() -> Sample + Send + 'static,
    ) -> io::Result<Self> {
        let began = Instant::now();
        let (stop, stopped) = channel();
        let interval = interval.max(MIN_INTERVAL);
        let thread = std::thread::Builder::new()
            .name("trace".into())
            .spawn(move || run(recorder, began, interval, sample, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

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

fn run<W: Write>(
    mut recorder: Recorder<W>,
    began: Instant,
    interval: Duration,
    mut take: impl FnMut() -> Sample,
    stopped: &Receiver<()>,
) -> io::Result<u64> {
    let mut due = Duration::ZERO;
    loop {
        let now = began.elapsed();
        let sample = Sample { at: now, ..take() };
        let took = began.elapsed().saturating_sub(now);
        recorder.record_change(sample)?;
        // Missed intervals are skipped.
        due = (due + interval).max(began.elapsed() + IDLE * took);
        let end = stopped.recv_timeout(due.saturating_sub(began.elapsed()));
        if end != Err(RecvTimeoutError::Timeout) {
            recorder.record(&Sample { at: began.elapsed(), ..take() })?;
            return recorder.finish();
        }
    }
}

#[cfg(test)]
mod tests;
