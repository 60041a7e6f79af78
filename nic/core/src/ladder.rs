//! Ladder diagrams as text: which side sent which packet when, and its fate.
//!
//! A [`Ladder`] is attached to a device and records the packets that pass its port, in both directions, up to a
//! bound. It then draws one rung for each packet: the label is at the sender's side, the arrow shows the direction,
//! and to the right are the bytes of payload and the ICRC with its verdict.
//!
//! ```
//! # use rnic_core as rnic;
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
//! A ladder shows what *one* port sees: a packet that is lost beyond the port appears as an arrow that arrives,
//! because the sender cannot tell. In virtual time the same program gives the same text.
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
use crate::error::Result;
use crate::link::{Direction, Fate, FrameRef, Now, Observer};
use crate::queue::locked;
use crate::verbs::device::Device;
use psn::Streams;
use qp::wire::mad::MAD_LEN;
use qp::wire::{Headers, IcrcVerdict, IdentSolver, Packet, WireError};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use time::Instant;

/// A packet of a ladder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// When it passed the port.
    pub at: Instant,
    /// Its direction, as seen from the port.
    pub direction: Direction,
    /// The address at the other end.
    pub peer: IpAddr,
    /// Its headers, or why the datagram is not a packet.
    pub content: std::result::Result<Headers, WireError>,
    /// Its PSN, counted from the first one seen in its sequence. An answer counts in the sequence of the requests
    /// that it answers. `None` if that is unknown.
    pub relative_psn: Option<i32>,
    /// Bytes of payload, without padding.
    pub payload_len: usize,
    /// The payload, if it is a management datagram.
    pub mad: Option<Box<[u8; MAD_LEN]>>,
    /// Its content, if it is a message between rnic ports.
    pub control: Option<Control>,
    /// The ICRC that it carries.
    pub icrc: u32,
    /// Whether that ICRC is correct.
    pub icrc_ok: bool,
    /// Whether its ECN field says "congestion experienced".
    pub ce: bool,
    /// Its fate.
    pub fate: Fate,
    /// The notes of the link's layers on it.
    pub notes: Vec<String>,
}

/// The recorded packets.
struct Book {
    capacity: usize,
    records: Vec<Record>,
    missed: u64,
    streams: Streams,
    solver: IdentSolver,
}

/// Records packets and draws them. Clones share one recording.
#[derive(Clone)]
pub struct Ladder {
    left: Arc<str>,
    right: Arc<str>,
    book: Arc<Mutex<Book>>,
}

impl Ladder {
    /// Creates a ladder that keeps the first `capacity` packets and counts the rest. `left` is the name of the
    /// watched end, `right` that of the peer.
    #[must_use]
    pub fn new(left: &str, right: &str, capacity: usize) -> Self {
        let book = Book {
            capacity,
            // Allocated now for a bound of ordinary size, so that recording does not wait for memory.
            records: Vec::with_capacity(capacity.min(4096)),
            missed: 0,
            streams: Streams::default(),
            solver: IdentSolver::new(),
        };
        Self { left: left.into(), right: right.into(), book: Arc::new(Mutex::new(book)) }
    }

    /// Creates a ladder that watches `device`: [`new`](Self::new) and [`observer`](Self::observer) in one call.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn attach(device: &Device, left: &str, right: &str, capacity: usize) -> Result<Self> {
        let ladder = Self::new(left, right, capacity);
        device.observe(ladder.observer())?;
        Ok(ladder)
    }

    /// Detaches all ladders from `device`. Their recordings can still be drawn.
    pub fn detach(device: &Device) {
        device.remove_observers(NAME);
    }

    /// The observer that records for this ladder.
    #[must_use]
    pub fn observer(&self) -> impl Observer + use<> {
        Recorder { book: Arc::clone(&self.book) }
    }

    /// The recorded packets, oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        locked(&self.book).records.clone()
    }

    /// The number of packets that were not recorded, because the bound was reached.
    #[must_use]
    pub fn missed(&self) -> u64 {
        locked(&self.book).missed
    }

    /// Removes the recorded packets, to draw those that follow. Relative PSNs still count from the first packet of each
    /// sequence.
    pub fn clear(&self) {
        let mut book = locked(&self.book);
        book.records.clear();
        book.missed = 0;
    }

    /// Draws the recorded packets with a heading, at most [`Style::WIDTH`] columns wide. Times are in microseconds
    /// since the first packet.
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

/// The ECN field value of "congestion experienced" (RFC 3168), and its mask in the TOS byte.
const CE: u8 = 3;

impl Book {
    fn take(&mut self, at: Instant, frame: &FrameRef<'_>) {
        let packet = Packet::parse(frame.bytes);
        // Packets past the bound count too: they are part of their sequences.
        let (src, dst) = (frame.ip.src, frame.ip.dst);
        let headers = packet.as_ref().map(Headers::of).map_err(|error| *error);
        let place = headers.as_ref().map(|headers| self.streams.place(src, dst, headers));
        let relative_psn = place.unwrap_or_default().relative_psn;
        if self.records.len() >= self.capacity {
            self.missed += 1;
            return;
        }
        let verdict = self.solver.verify(&frame.ip.flow(), frame.ip.ident, frame.bytes);
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
            ce: frame.ip.tos & CE == CE,
            fate: frame.fate.clone(),
            notes: frame.notes.to_vec(),
            content: headers,
        });
    }
}
