//! Ladder diagrams: who sent which packet when, and what became of it, as text.
//!
//! A [`Ladder`] is attached to a device and records what passes its port, in both directions, up to a bound. It then
//! draws one rung for each packet: the sender's side has the label, the arrow shows the direction, and behind the
//! right rail stand the bytes of payload and the ICRC with its verdict.
//!
//! ```
//! use rnic::RcEnd;
//! use rnic::ladder::{Ladder, Style};
//!
//! let net = rnic::sim::Net::new();
//! let (a, b) = (net.device(), net.device());
//! let ladder = Ladder::attach(&a, "client", "server", 100)?;
//! let (left, right) = RcEnd::pair(&a, &b)?;
//! let (source, target) = (left.register(&[7; 10_000])?, right.register_remote(10_000)?);
//! a.add_fault("tx data psn=#1 drop")?;
//! left.qp.write(1, source.all(), target.remote(0))?;
//! left.wait()?;
//! let text = ladder.render(&Style::default());
//! assert!(text.contains("x dropped by fault f1"), "{text}");
//! assert!(text.contains("NAK psn-sequence-error"), "{text}");
//! # Ok::<(), rnic::Error>(())
//! ```
//!
//! A ladder shows what *one* port sees: a packet that is lost behind the port is an arrow that arrives, as it is for the
//! sender. In virtual time the same program gives the same text.
//!
//! [`Ladder::of_capture`] draws the packets of a capture file in the same way.

mod mad;
pub(crate) mod psn;
mod render;
mod replay;
#[cfg(test)]
mod tests;

pub use render::{PsnForm, Style};

use crate::capture::Control;
use crate::device::Device;
use crate::error::Result;
use crate::link::{Direction, Fate, FrameRef, Now, Observer};
use crate::queue::locked;
use psn::Streams;
use qp::wire::mad::MAD_LEN;
use qp::wire::{Headers, IcrcVerdict, IdentSolver, Packet, WireError};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A packet as the ladder remembers it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// When it passed the port.
    pub at: Instant,
    /// Which way it went, as seen from the port.
    pub direction: Direction,
    /// The address at the other end.
    pub peer: IpAddr,
    /// Its headers, or why it is no packet.
    pub content: std::result::Result<Headers, WireError>,
    /// Its PSN, counted from the first one that was seen of its sequence. An answer counts in the sequence of the
    /// requests that it answers. `None` where that is not known.
    pub relative_psn: Option<i32>,
    /// Bytes of payload, without padding.
    pub payload_len: usize,
    /// The payload, if it is a management datagram.
    pub mad: Option<Box<[u8; MAD_LEN]>>,
    /// What it says, if it is a message between rnic ports.
    pub control: Option<Control>,
    /// The ICRC that it carries.
    pub icrc: u32,
    /// Whether that is right.
    pub icrc_ok: bool,
    /// Whether its ECN field says "congestion experienced".
    pub ce: bool,
    /// What became of it.
    pub fate: Fate,
    /// What the layers of the link did to it.
    pub notes: Vec<String>,
}

/// What was recorded.
struct Book {
    capacity: usize,
    records: Vec<Record>,
    missed: u64,
    streams: Streams,
    solver: IdentSolver,
}

/// Records packets and draws them. Clones share one record.
#[derive(Clone)]
pub struct Ladder {
    left: Arc<str>,
    right: Arc<str>,
    book: Arc<Mutex<Book>>,
}

impl Ladder {
    /// A ladder that keeps the first `capacity` packets and counts the rest. `left` is the name of the end that it
    /// will watch, `right` that of its peer.
    #[must_use]
    pub fn new(left: &str, right: &str, capacity: usize) -> Self {
        let book = Book {
            capacity,
            // Without a pause for more memory where the bound is a sensible one.
            records: Vec::with_capacity(capacity.min(4096)),
            missed: 0,
            streams: Streams::default(),
            solver: IdentSolver::new(),
        };
        Self { left: left.into(), right: right.into(), book: Arc::new(Mutex::new(book)) }
    }

    /// A ladder that watches `device`, as [`new`](Self::new) and [`observer`](Self::observer).
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn attach(device: &Device, left: &str, right: &str, capacity: usize) -> Result<Self> {
        let ladder = Self::new(left, right, capacity);
        device.observe(ladder.observer())?;
        Ok(ladder)
    }

    /// Stops watching: takes the ladders of `device` away. What they recorded can still be drawn.
    pub fn detach(device: &Device) {
        device.remove_observers(NAME);
    }

    /// The observer that records for this ladder.
    #[must_use]
    pub fn observer(&self) -> impl Observer + use<> {
        Recorder { book: Arc::clone(&self.book) }
    }

    /// What was recorded, oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        locked(&self.book).records.clone()
    }

    /// Packets that came after the buffer was full.
    #[must_use]
    pub fn missed(&self) -> u64 {
        locked(&self.book).missed
    }

    /// Forgets the packets, to draw what comes next. Sequences go on: relative PSNs still count from their first.
    pub fn clear(&self) {
        let mut book = locked(&self.book);
        book.records.clear();
        book.missed = 0;
    }

    /// Draws what was recorded, with a heading, no wider than [`Style::WIDTH`] columns. Times are microseconds since
    /// the first packet.
    #[must_use]
    pub fn render(&self, style: &Style) -> String {
        let book = locked(&self.book);
        render::draw([&self.left, &self.right], &book.records, book.missed, style)
    }
}

impl std::fmt::Debug for Ladder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let packets = locked(&self.book).records.len();
        write!(f, "Ladder({} to {}, {packets} packets)", self.left, self.right)
    }
}

/// The name of the observers.
const NAME: &str = "ladder";

struct Recorder {
    book: Arc<Mutex<Book>>,
}

impl Observer for Recorder {
    fn name(&self) -> &str {
        NAME
    }

    fn observe(&mut self, now: Now, frame: &FrameRef<'_>) {
        locked(&self.book).take(now.instant, frame);
    }
}

/// The ECN field of "congestion experienced" (RFC 3168), and its place in the TOS byte.
const CE: u8 = 3;

impl Book {
    fn take(&mut self, at: Instant, frame: &FrameRef<'_>) {
        let packet = Packet::parse(frame.bytes);
        // Also of packets without a place: the sequences go on.
        let (src, dst) = (frame.flow.src, frame.flow.dst);
        let headers = packet.as_ref().map(Headers::of).map_err(|error| *error);
        let place = headers.as_ref().map(|headers| self.streams.place(src, dst, headers));
        let relative_psn = place.unwrap_or_default().relative_psn;
        if self.records.len() >= self.capacity {
            self.missed += 1;
            return;
        }
        let verdict = self.solver.verify(frame.flow, frame.ident, frame.bytes);
        self.records.push(Record {
            at,
            direction: frame.direction,
            peer: if frame.direction == Direction::Tx { dst } else { src },
            relative_psn,
            payload_len: packet.as_ref().map_or(0, |p| p.payload().len()),
            mad: packet.as_ref().ok().and_then(Packet::mad).map(|mad| Box::new(*mad)),
            control: packet.as_ref().ok().and_then(Control::of),
            icrc: frame.bytes.last_chunk().map_or(0, |icrc| u32::from_le_bytes(*icrc)),
            icrc_ok: verdict != IcrcVerdict::Bad,
            ce: frame.tos & CE == CE,
            fate: frame.fate.clone(),
            notes: frame.notes.to_vec(),
            content: headers,
        });
    }
}
