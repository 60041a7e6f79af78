//! The datagrams of one receive call.

use super::sys::{self, MAX_SLOTS, Slot};
use qp::wire::IpHeader;
use rnic_core::datagram::Datagram;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use thiserror::Error;

/// The maximum length of a UDP datagram, merged or not.
const MAX_DATAGRAM: usize = 1 << 16;

/// Why the socket can no longer receive. Lost and damaged packets are not errors.
#[derive(Debug, Error)]
pub enum RecvError {
    /// The kernel refused the call itself: the descriptor was closed by other code, or a sandbox forbids the call.
    #[error("the receiving socket failed: {0}; it was closed from outside or a sandbox forbids recvmsg")]
    Os(#[from] io::Error),
}

/// Reusable buffers for the datagrams of one receive call.
///
/// A datagram may be a whole GSO train or a sequence of packets that the kernel merged (UDP GRO): see
/// [`Datagram::segments`]. One slot is reused while the receiver keeps up, so that its 64 KiB stay in the cache; the
/// other slots serve bursts of small datagrams.
///
/// A call that follows an empty one takes one datagram, so polling and the first arrival cost least (360 ns per empty
/// call against 430). From then on a call takes all that fit, until nothing is left: in bursts of single datagrams, 8
/// slots take 700 ns for each where one takes 820. Trains cost the same either way.
pub struct RecvBatch {
    slots: Box<[Slot]>,
    buffer: Box<[u8]>,
    stride: usize,
    /// The address of the socket that was read.
    dst: IpAddr,
    filled: usize,
    stamped: bool,
    pub(super) dropped: u64,
}

impl RecvBatch {
    /// Room for up to `slots` datagrams (1 to 32, else the nearest) of any length.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self::with_buffers(slots, MAX_DATAGRAM)
    }

    /// Room for up to `slots` datagrams of `stride` bytes; longer ones arrive truncated.
    #[must_use]
    pub fn with_buffers(slots: usize, stride: usize) -> Self {
        let (slots, stride) = (slots.clamp(1, MAX_SLOTS), stride.clamp(1, MAX_DATAGRAM));
        Self {
            slots: vec![Slot::EMPTY; slots].into(),
            buffer: vec![0; slots * stride].into(),
            stride,
            dst: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            filled: 0,
            stamped: false,
            dropped: 0,
        }
    }

    /// The datagrams that the last receive call brought, in order of arrival.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> {
        let parts = self.slots.iter().zip(self.buffer.chunks_exact(self.stride));
        parts.take(self.filled).map(|(slot, part)| describe(slot, part, self.dst))
    }

    /// The bytes of all datagrams.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slots.iter().take(self.filled).map(|slot| slot.len).sum()
    }

    /// The number of datagrams that the kernel dropped on this socket between the previous batch and this one,
    /// because the receive buffer was full or a checksum wrong.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether the kernel timestamps received datagrams.
    #[must_use]
    pub const fn is_stamped(&self) -> bool {
        self.stamped
    }

    /// Announces that timestamps are enabled on the sockets read into this batch.
    pub(crate) const fn expect_stamps(&mut self) {
        self.stamped = true;
    }

    /// Receives into the slots from the socket at `dst`; returns how many were filled.
    pub(super) fn fill(&mut self, fd: BorrowedFd<'_>, dst: IpAddr) -> io::Result<usize> {
        self.dst = dst;
        let take = if self.filled == 0 { 1 } else { self.slots.len() };
        self.filled = 0;
        self.dropped = 0;
        self.filled = sys::recv(fd, &mut self.slots[..take], &mut self.buffer, self.stride)?;
        Ok(self.filled)
    }

    /// The socket's drop count (modulo 2^32) at the arrival of the batch's last datagram, if there were drops.
    pub(super) fn drop_count(&self) -> Option<u32> {
        let last = self.slots[..self.filled].last()?;
        last.control.messages().find_map(|(level, kind, data)| {
            (level == libc::SOL_SOCKET && kind == libc::SO_RXQ_OVFL)
                .then(|| data.first_chunk().copied().map(u32::from_ne_bytes))?
        })
    }
}

/// Eight slots: half a megabyte, and most of what more of them would gain.
impl Default for RecvBatch {
    fn default() -> Self {
        Self::new(8)
    }
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvBatch({} of {} slots of {} bytes)", self.filled, self.slots.len(), self.stride)
    }
}

/// Reads an integer control message, of whatever width the kernel chose for it.
fn number(data: &[u8]) -> Option<u32> {
    match *data {
        [a, b, c, d, ..] => Some(u32::from_ne_bytes([a, b, c, d])),
        [a, b, ..] => Some(u16::from_ne_bytes([a, b]).into()),
        [a] => Some(a.into()),
        [] => None,
    }
}

/// Reads a `timespec` of 64 bits.
fn time(data: &[u8]) -> Option<Duration> {
    let (seconds, rest) = data.split_first_chunk::<8>()?;
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).ok()?;
    let nanos = u32::try_from(i64::from_ne_bytes(*rest.first_chunk()?)).ok()?;
    (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
}

fn describe<'a>(slot: &Slot, part: &'a [u8], dst: IpAddr) -> Datagram<'a> {
    let bytes = &part[..slot.len.min(part.len())];
    let source = slot.source.get();
    let (src, src_port) = (source.ip().to_canonical(), source.port());
    let mut ip = IpHeader { src, dst, src_port, tos: 0, hop_limit: 0, flow_label: 0, ident: 0 };
    let (mut segment, mut stamp) = (0, None);
    for (level, kind, data) in slot.control.messages() {
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            stamp = time(data);
            continue;
        }
        let Some(value) = number(data) else { continue };
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                ip.tos = value as u8
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                ip.hop_limit = value as u8
            }
            // In network order; the traffic class precedes the label.
            (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => ip.flow_label = u32::from_be(value) & 0xf_ffff,
            (libc::SOL_UDP, libc::UDP_GRO) => segment = value as usize,
            _ => {}
        }
    }
    let segment_size = if segment == 0 { bytes.len().max(1) } else { segment };
    Datagram { bytes, segment_size, ip, stamp, truncated: slot.truncated, telemetry: None }
}
