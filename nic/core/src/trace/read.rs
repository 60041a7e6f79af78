//! Reading a trace.

use super::{Header, Sample, VERSION};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use time::Duration;

/// Longest line that is read: a sample of [`MAX_QPS`](super::MAX_QPS) queue pairs and as many lanes takes a tenth of it.
const MAX_LINE: u64 = 1 << 20;

/// Why a file is not a trace, or where it stops being one.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("line {line} cannot be read: {source}")]
    Read {
        /// Where.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The first line is not the header.
    #[error("not a trace of `rnic perf --trace`: line 1 is not the header of one ({why})")]
    NotATrace {
        /// What the parser says.
        why: String,
    },
    /// The file was written by another version.
    #[error("line 1: the trace is of version {version}, this program reads version {VERSION}")]
    Version {
        /// Of the file.
        version: u32,
    },
    /// A line is longer than any sample.
    #[error("line {line} is longer than {MAX_LINE} bytes")]
    LongLine {
        /// Which.
        line: u64,
    },
    /// The file ends inside a line.
    #[error("line {line} ends in the middle of a sample: the file was cut short")]
    Cut {
        /// Which.
        line: u64,
    },
    /// A line is not a sample.
    #[error("line {line} is not a sample: {why}")]
    Line {
        /// Which.
        line: u64,
        /// What the parser says.
        why: String,
    },
    /// A sample is older than the one before.
    #[error("line {line} is of {at:?}, before the line above it, which is of {before:?}")]
    TimeGoesBack {
        /// Which.
        line: u64,
        /// Its time.
        at: Duration,
        /// The time of the line above.
        before: Duration,
    },
}

/// A trace, line by line: an iterator over its samples, which ends with the first error.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    buffer: Vec<u8>,
    /// Lines read.
    line: u64,
    last: Duration,
    ended: bool,
}

impl Reader<BufReader<File>> {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|source| TraceError::Open { path: path.to_owned(), source })?;
        Self::new(BufReader::new(file))
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn new(input: R) -> Result<Self, TraceError> {
        let mut reader = Self {
            input,
            header: Header::default(),
            buffer: Vec::new(),
            line: 0,
            last: Duration::ZERO,
            ended: false,
        };
        if !reader.next_line()? {
            return Err(TraceError::Empty);
        }
        let not = |error: serde_json::Error| TraceError::NotATrace { why: in_line(&error) };
        reader.header = serde_json::from_slice(&reader.buffer).map_err(not)?;
        match reader.header.rnic_trace {
            VERSION => Ok(reader),
            version => Err(TraceError::Version { version }),
        }
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Puts the next line into the buffer; false at the end of the file.
    fn next_line(&mut self) -> Result<bool, TraceError> {
        self.buffer.clear();
        self.line += 1;
        let line = self.line;
        (&mut self.input)
            .take(MAX_LINE + 1)
            .read_until(b'\n', &mut self.buffer)
            .map_err(|source| TraceError::Read { line, source })?;
        if self.buffer.len() as u64 > MAX_LINE {
            return Err(TraceError::LongLine { line });
        }
        Ok(!self.buffer.is_empty())
    }

    fn next_sample(&mut self) -> Result<Option<Sample>, TraceError> {
        if !self.next_line()? {
            return Ok(None);
        }
        let line = self.line;
        let whole = self.buffer.last() == Some(&b'\n');
        let sample: Sample = serde_json::from_slice(&self.buffer).map_err(|error| match error.is_eof() {
            true if !whole => TraceError::Cut { line },
            _ => TraceError::Line { line, why: in_line(&error) },
        })?;
        let (at, before) = (sample.at, self.last);
        if at < before {
            return Err(TraceError::TimeGoesBack { line, at, before });
        }
        self.last = at;
        Ok(Some(sample))
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Sample, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_sample().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// The message of the parser, without its line number, which starts over in each line.
fn in_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default();
    format!("{what} at column {}", error.column())
}

/// A whole trace in memory: for tests and short runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Its first line.
    pub header: Header,
    /// All others.
    pub samples: Vec<Sample>,
}

impl Trace {
    /// Reads a whole file.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        Self::collect(Reader::open(path)?)
    }

    /// Reads all there is.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn read(input: impl BufRead) -> Result<Self, TraceError> {
        Self::collect(Reader::new(input)?)
    }

    fn collect<R: BufRead>(reader: Reader<R>) -> Result<Self, TraceError> {
        let header = reader.header.clone();
        Ok(Self { header, samples: reader.collect::<Result<_, _>>()? })
    }
}
