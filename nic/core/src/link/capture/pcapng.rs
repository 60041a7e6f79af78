//! The blocks of a pcapng file that a capture needs (draft-ietf-opsawg-pcapng), written in pieces.
//!
//! The crates that write pcapng take a packet in one piece and its options in a `Vec`. That costs a copy and an
//! allocation per packet, while a capture watches a link at full speed. The four kinds of blocks needed here take
//! little code; the tests read them back with such a crate.

use std::io::{self, Write};
use time::Duration;

/// Block types (section 4 and 11.1 of the draft).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

/// Tells readers the byte order, which is little-endian here.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// IPv4 and IPv6 packets without a link layer (tcpdump's list of link types).
const LINKTYPE_RAW: u16 = 101;

/// Option codes. Each block type has its own, except for the first two.
const OPT_COMMENT: u16 = 1;
const OPT_END: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// Time stamps are in units of 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// Type, two lengths.
const FRAMING: u64 = 12;

const fn padded(len: usize) -> u64 {
    (len as u64).next_multiple_of(4)
}

/// Length of an option with its header. An empty text is left out.
const fn text_option_len(text: &str) -> u64 {
    if text.is_empty() { 0 } else { 4 + padded(text.len()) }
}

/// Length of the option that ends a list of options.
const END_LEN: u64 = 4;

/// Writes the start of a block and returns the length that its end repeats.
fn begin(out: &mut impl Write, kind: u32, body: u64) -> io::Result<u32> {
    let total = u32::try_from(FRAMING + body).map_err(|_| io::ErrorKind::InvalidInput)?;
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&total.to_le_bytes())?;
    Ok(total)
}

fn end(out: &mut impl Write, total: u32) -> io::Result<u64> {
    out.write_all(&total.to_le_bytes())?;
    Ok(u64::from(total))
}

fn pad(out: &mut impl Write, len: usize) -> io::Result<()> {
    out.write_all(&[0; 3][..len.wrapping_neg() & 3])
}

/// Writes an option. The caller truncates values that are too long for one.
fn option(out: &mut impl Write, code: u16, value: &[u8]) -> io::Result<()> {
    let len = u16::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    out.write_all(&code.to_le_bytes())?;
    out.write_all(&len.to_le_bytes())?;
    out.write_all(value)?;
    pad(out, value.len())
}

fn text_option(out: &mut impl Write, code: u16, text: &str) -> io::Result<()> {
    if text.is_empty() { Ok(()) } else { option(out, code, text.as_bytes()) }
}

/// The longest prefix of a text that an option can hold.
fn clipped(text: &str) -> &str {
    let longest = text.len().min(usize::from(u16::MAX));
    (0..=longest).rev().find_map(|end| text.get(..end)).unwrap_or_default()
}

fn timestamp(out: &mut impl Write, time: Duration) -> io::Result<()> {
    // 2^64 ns are 584 years.
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    out.write_all(&((nanos >> 32) as u32).to_le_bytes())?;
    out.write_all(&(nanos as u32).to_le_bytes())
}

/// Writes the section header, the first block of a file, and returns its length.
pub fn write_section(out: &mut impl Write, application: &str) -> io::Result<u64> {
    let application = clipped(application);
    let total = begin(out, SECTION_HEADER, 16 + text_option_len(application) + END_LEN)?;
    out.write_all(&BYTE_ORDER_MAGIC.to_le_bytes())?;
    // Version 1.0.
    out.write_all(&1_u16.to_le_bytes())?;
    out.write_all(&0_u16.to_le_bytes())?;
    // The length of the section is unknown.
    out.write_all(&u64::MAX.to_le_bytes())?;
    text_option(out, SHB_USERAPPL, application)?;
    option(out, OPT_END, &[])?;
    end(out, total)
}

/// Writes the description of interface 0 and returns its length.
pub fn write_interface(out: &mut impl Write, name: &str) -> io::Result<u64> {
    let name = clipped(name);
    let total = begin(out, INTERFACE_DESCRIPTION, 8 + text_option_len(name) + 8 + END_LEN)?;
    out.write_all(&LINKTYPE_RAW.to_le_bytes())?;
    out.write_all(&0_u16.to_le_bytes())?;
    // No limit to the length of packets.
    out.write_all(&0_u32.to_le_bytes())?;
    text_option(out, IF_NAME, name)?;
    option(out, IF_TSRESOL, &[NANOSECONDS])?;
    option(out, OPT_END, &[])?;
    end(out, total)
}

/// Length of the block that [`write_statistics`] writes.
pub(crate) const fn statistics_len(comment: &str) -> u64 {
    FRAMING + 12 + text_option_len(comment) + END_LEN
}

/// Writes interface statistics with a comment and no numbers, for a note that belongs to no packet, and returns the
/// length of the block.
pub(crate) fn write_statistics(out: &mut impl Write, time: Duration, comment: &str) -> io::Result<u64> {
    let comment = clipped(comment);
    let total = begin(out, INTERFACE_STATISTICS, statistics_len(comment) - FRAMING)?;
    out.write_all(&0_u32.to_le_bytes())?;
    timestamp(out, time)?;
    text_option(out, OPT_COMMENT, comment)?;
    option(out, OPT_END, &[])?;
    end(out, total)
}

/// The direction of a packet. The values are those of the flags word.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Way {
    /// Received.
    Inbound = 1,
    /// Sent.
    Outbound = 2,
}

/// A packet with everything that its block contains.
pub struct PacketBlock<'a> {
    /// When, since the Unix epoch.
    pub time: Duration,
    /// The headers in front of the packet.
    pub headers: &'a [u8],
    /// The packet.
    pub packet: &'a [u8],
    /// Whether it was sent or received.
    pub way: Way,
    /// A comment; empty for none.
    pub comment: &'a str,
}

impl PacketBlock<'_> {
    /// Length of the packet with the headers.
    const fn packet_len(&self) -> usize {
        self.headers.len() + self.packet.len()
    }

    /// Length of the whole block.
    pub(crate) fn len(&self) -> u64 {
        FRAMING + 20 + padded(self.packet_len()) + text_option_len(clipped(self.comment)) + 8 + END_LEN
    }

    /// Writes the block and returns its length.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<u64> {
        let total = begin(out, ENHANCED_PACKET, self.len() - FRAMING)?;
        let captured = u32::try_from(self.packet_len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        out.write_all(&0_u32.to_le_bytes())?;
        timestamp(out, self.time)?;
        // Captured and original length.
        out.write_all(&captured.to_le_bytes())?;
        out.write_all(&captured.to_le_bytes())?;
        out.write_all(self.headers)?;
        out.write_all(self.packet)?;
        pad(out, self.packet_len())?;
        text_option(out, OPT_COMMENT, clipped(self.comment))?;
        option(out, EPB_FLAGS, &(self.way as u32).to_le_bytes())?;
        option(out, OPT_END, &[])?;
        end(out, total)
    }
}
