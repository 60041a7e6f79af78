//! A train: packets that are sent with one system call.

use crate::memory::SUMMED_COPY;
use crate::wire::icrc::{self, Flow, FlowCrc};
use crate::wire::packet::{Headers, ICRC_LEN, pad_len};

/// The transmit buffer of one burst: packets back to back, for UDP segmentation offload (`UDP_SEGMENT`).
///
/// All packets have the same destination, source port and TOS. They have the same size, except the last, which may
/// be shorter: the kernel cuts the buffer at multiples of the first packet's size. Segment *i* of a train carries
/// the IPv4 identification *i*, which the ICRC covers, so each packet is finished with its own index.
#[derive(Debug)]
pub struct Train<'b> {
    buf: &'b mut [u8],
    crc: FlowCrc,
    max_packets: u32,
    /// Limit on the bytes of a train with more than one packet, and the overhead that each packet adds to its own
    /// length.
    max_bytes: usize,
    overhead: usize,
    used: usize,
    segment_size: usize,
    packets: u32,
    closed: bool,
}

impl<'b> Train<'b> {
    /// An empty train for at most `max_packets` packets that together fit into `buf`.
    pub fn new(buf: &'b mut [u8], flow: Flow, max_packets: u32) -> Self {
        Self {
            buf,
            crc: FlowCrc::new(flow),
            max_packets,
            max_bytes: usize::MAX,
            overhead: 0,
            used: 0,
            segment_size: 0,
            packets: 0,
            closed: false,
        }
    }

    /// The number of packets.
    #[must_use]
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Size in bytes of every packet except possibly the last, from BTH to ICRC; 0 while the train is empty.
    #[must_use]
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// The packets, back to back.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buf[..self.used]
    }

    /// Whether the train accepts no more packets.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed || self.packets >= self.max_packets
    }

    /// The number of packets as long as the first that it accepts; 0 while it is empty.
    #[must_use]
    pub fn room(&self) -> u32 {
        if self.is_closed() || self.segment_size == 0 {
            return 0;
        }
        let fit = (self.buf.len() - self.used) / self.segment_size;
        u32::try_from(fit).unwrap_or(u32::MAX).min(self.max_packets - self.packets)
    }

    /// Limits the train to the packets it has plus `more`.
    pub fn limit(&mut self, more: u32) {
        self.max_packets = self.max_packets.min(self.packets.saturating_add(more));
    }

    /// Limits the train to `max` bytes, counting each packet as `overhead` bytes longer than it is. The first
    /// packet may exceed the limit.
    pub fn limit_bytes(&mut self, max: usize, overhead: usize) {
        (self.max_bytes, self.overhead) = (max, overhead);
    }

    /// Whether a packet with these headers and this payload fits.
    #[must_use]
    pub fn has_room(&self, headers: &Headers, payload_len: usize) -> bool {
        let size = Self::packet_size(headers, payload_len);
        !self.is_closed()
            && self.used + size <= self.buf.len()
            && (self.packets == 0 || (size <= self.segment_size && self.fits(size)))
    }

    fn fits(&self, size: usize) -> bool {
        let packets = self.packets as usize + 1;
        (self.used + size).saturating_add(packets.saturating_mul(self.overhead)) <= self.max_bytes
    }

    /// Adds a packet: writes the headers, lets `fill` write the payload in place, then pads and adds the ICRC. If
    /// `fill` fails, the train is unchanged.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is too short, in debug builds also if there is no room for another reason: call
    /// [`has_room`](Self::has_room) first.
    pub fn push<E>(
        &mut self,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.add(headers, payload_len, false, |out, _| fill(out))
    }

    /// Like [`push`](Self::push), for a payload whose CRC is computed while it is copied, if it is long: `fill` then gets
    /// the CRC of everything before the payload, and must [extend](icrc::extend) it by the payload.
    ///
    /// # Panics
    ///
    /// As [`push`](Self::push).
    pub fn push_summed<E>(
        &mut self,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8], Option<&mut u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.add(headers, payload_len, payload_len >= SUMMED_COPY, fill)
    }

    /// Adds a packet. If `summed`, `fill` extends the CRC that it gets by the payload.
    fn add<E>(
        &mut self,
        headers: &Headers,
        payload_len: usize,
        summed: bool,
        fill: impl FnOnce(&mut [u8], Option<&mut u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        debug_assert!(self.has_room(headers, payload_len), "pushed a packet into a train without room");
        let size = Self::packet_size(headers, payload_len);
        let packet = &mut self.buf[self.used..self.used + size];
        let header_len = headers.emit(packet, payload_len);
        let ident = u16::try_from(self.packets).unwrap_or(u16::MAX);
        let (covered, end) = (size - ICRC_LEN, header_len + payload_len);
        let crc = if summed {
            let mut crc = self.crc.begin(ident, covered, &packet[..header_len]);
            fill(&mut packet[header_len..end], Some(&mut crc))?;
            let padding = &mut packet[end..covered];
            if !padding.is_empty() {
                padding.fill(0);
                crc = icrc::extend(crc, padding);
            }
            crc
        } else {
            fill(&mut packet[header_len..end], None)?;
            if end < covered {
                packet[end..covered].fill(0);
            }
            self.crc.compute(ident, &packet[..covered])
        };
        if let Some(icrc) = packet.last_chunk_mut() {
            *icrc = crc.to_le_bytes();
        }
        if self.packets == 0 {
            self.segment_size = size;
        } else if size < self.segment_size {
            self.closed = true;
        }
        self.used += size;
        self.packets += 1;
        Ok(())
    }

    fn packet_size(headers: &Headers, payload_len: usize) -> usize {
        headers.wire_len() + payload_len + pad_len(payload_len) + ICRC_LEN
    }
}
