//! Writing a trace.

use super::{Header, Sample};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use time::Duration;

/// Lines are collected up to this size before they are written, a page cache's worth of some hundred samples.
const BUFFER: usize = 64 << 10;

/// Lines are written after this time of the trace at the latest. A process that is killed loses no more than that.
const WRITE_AFTER: Duration = Duration::from_millis(100);

/// How often it is recorded that nothing has changed.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// Writes samples. What is collected is written when the recorder is dropped; [`finish`](Self::finish) says whether that
/// worked.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    out: W,
    /// Whole lines that are not written yet.
    lines: Vec<u8>,
    /// The time of the trace at which lines were last written.
    written_at: Duration,
    samples: u64,
    /// The last sample of [`record_change`](Self::record_change) that was recorded, and the last that was taken in since, if
    /// it was no different.
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
        let mut line = serde_json::to_vec(header)?;
        line.push(b'\n');
        out.write_all(&line)?;
        let lines = Vec::with_capacity(BUFFER);
        Ok(Self { out, lines, written_at: Duration::ZERO, samples: 0, last: None, held: None })
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
    /// one every 100 ms is recorded, and the one before a change, so that the change has the right time.
    ///
    /// # Errors
    /// Those of [`record`](Self::record).
    pub fn record_change(&mut self, sample: Sample) -> io::Result<()> {
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
