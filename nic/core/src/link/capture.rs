//! Captures: the packets of a link, as a pcapng file that Wireshark opens.
//!
//! A program above a UDP socket sees no IP header, so the capture builds one: addresses, ports, TOS, time to live and
//! identification are those of the packet on the wire, and the other fields follow from them. Packets are stored
//! without a link layer (LINKTYPE_RAW), because a socket does not see it. Notes of the layers become comments.

mod headers;
pub mod pcapng;
#[cfg(test)]
mod tests;

use crate::link::{Direction, Fate, FrameRef, Now, Observer};
use crate::platform;
use headers::IpUdp;
use pcapng::{PacketBlock, Way};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The note at the end of a capture that reached its limit.
const LIMIT_NOTE: &str = "capture ended at its size limit";

/// Options of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureOptions {
    /// Name of the interface in the file, for example the name of the device.
    pub interface: String,
    /// Largest size of the file in bytes; `None` for no limit. The capture ends with a note there.
    pub max_bytes: Option<u64>,
}

/// The state of a capture, which can be read while the capture belongs to a link.
#[derive(Debug, Default)]
pub struct CaptureStatus {
    packets: AtomicU64,
    missed: AtomicU64,
    bytes: AtomicU64,
    stopped: AtomicBool,
    error: Mutex<Option<String>>,
}

impl CaptureStatus {
    /// The number of packets in the file, including those that are still in the buffer.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// The number of packets that are not in the file, because they came after the limit or an error, or exceed the
    /// length that IP allows.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// The size of the file in bytes, including data in the buffer.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the capture has ended, at its limit or after an error.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// The error that ended the capture.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An observer that writes all packets to a file or another writer.
///
/// Packets reach the writer when the buffer is full, on [`Capture::flush`], and when the capture is dropped.
pub struct Capture {
    writer: BufWriter<Box<dyn Write + Send>>,
    options: CaptureOptions,
    status: Arc<CaptureStatus>,
    /// The comment of the current packet; kept to reuse its memory.
    comment: String,
    /// Whether each packet is handed to the writer at once.
    prompt: bool,
}

impl Capture {
    /// Starts a capture into a file. On Linux the capture is complete up to the last packet however the process ends: a
    /// regular file is complete at any moment; to any other target, such as a FIFO, packets are written one by one.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path, options: CaptureOptions) -> io::Result<Self> {
        let writer = platform::get().create_capture(path)?;
        let mut capture = Self::new(writer, options);
        capture.prompt = true;
        capture.flush();
        Ok(capture)
    }

    /// Starts a capture. An error of the writer appears in the status.
    #[must_use]
    pub fn new(writer: impl Write + Send + 'static, options: CaptureOptions) -> Self {
        let mut capture = Self {
            writer: BufWriter::new(Box::new(writer)),
            options,
            status: Arc::default(),
            comment: String::new(),
            prompt: false,
        };
        let application = concat!("rnic ", env!("CARGO_PKG_VERSION"));
        let result = pcapng::write_section(&mut capture.writer, application)
            .and_then(|a| Ok(a + pcapng::write_interface(&mut capture.writer, &capture.options.interface)?));
        capture.settle(result);
        capture
    }

    /// The status of this capture, which outlives it.
    #[must_use]
    pub fn status(&self) -> Arc<CaptureStatus> {
        self.status.clone()
    }

    /// Writes everything captured so far to the writer.
    pub fn flush(&mut self) {
        if !self.status.is_stopped() {
            let result = self.writer.flush().map(|()| 0);
            self.settle(result);
        }
    }

    /// Counts the bytes written. The first error ends the capture.
    fn settle(&mut self, result: io::Result<u64>) {
        match result {
            Ok(bytes) => {
                self.status.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::warn!(interface = self.options.interface, %error, "the capture ends");
                self.status.stopped.store(true, Ordering::Relaxed);
                *self.status.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
        }
    }

    /// Ends the file with a note if a block of `next` bytes no longer fits.
    fn is_full(&mut self, now: Now, next: u64) -> bool {
        let Some(limit) = self.options.max_bytes else { return false };
        let note = pcapng::statistics_len(LIMIT_NOTE);
        if self.status.bytes().saturating_add(next).saturating_add(note) <= limit {
            return false;
        }
        // A limit too small for the first blocks leaves no room for the note either.
        if self.status.bytes().saturating_add(note) <= limit {
            let result = pcapng::write_statistics(&mut self.writer, now.wall, LIMIT_NOTE);
            self.settle(result);
        }
        self.flush();
        self.status.stopped.store(true, Ordering::Relaxed);
        true
    }

    /// Writes one packet. `false` if it is not in the file.
    fn record(&mut self, now: Now, frame: &FrameRef<'_>) -> bool {
        if self.status.is_stopped() {
            return false;
        }
        let Some(headers) = IpUdp::of(frame) else { return false };
        let mut comment = std::mem::take(&mut self.comment);
        describe(frame, &mut comment);
        let block = PacketBlock {
            time: now.wall,
            headers: headers.bytes(),
            packet: frame.bytes,
            way: if frame.direction == Direction::Tx { Way::Outbound } else { Way::Inbound },
            comment: &comment,
        };
        let written = if self.is_full(now, block.len()) {
            false
        } else {
            let result = block.write(&mut self.writer);
            let written = result.is_ok();
            self.settle(result);
            if self.prompt {
                self.flush();
            }
            written
        };
        self.comment = comment;
        written
    }
}

/// The notes of the layers on a packet, as a comment; empty for a packet that simply passed.
fn describe(frame: &FrameRef<'_>, comment: &mut String) {
    comment.clear();
    for note in frame.notes {
        if !comment.is_empty() {
            comment.push_str("; ");
        }
        comment.push_str(note);
    }
    if let (Fate::Dropped { by }, true) = (frame.fate, frame.notes.is_empty()) {
        comment.push_str("dropped by ");
        comment.push_str(by);
    }
}

impl Observer for Capture {
    fn name(&self) -> &str {
        "capture"
    }

    fn observe(&mut self, now: Now, frame: &FrameRef<'_>) {
        let counter = if self.record(now, frame) { &self.status.packets } else { &self.status.missed };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.flush();
    }
}
