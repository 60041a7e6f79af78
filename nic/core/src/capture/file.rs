//! The two file formats, read as a sequence of frames.

use super::CaptureError;
use super::dissect::Link;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{PcapError, TsResolution};
use std::borrow::Cow;
use std::io::{self, Chain, Cursor, ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use time::Duration;

/// A captured frame.
#[derive(Debug)]
pub(super) struct Record<'a> {
    /// Since 1970-01-01 UTC.
    pub(super) time: Duration,
    /// `None` if no IP packet can be found in this link layer.
    pub(super) link: Option<Link>,
    pub(super) data: Cow<'a, [u8]>,
    pub(super) comments: Vec<String>,
}

/// The reader, with the magic number, which was read already, put back in front.
type Rewound<R> = Chain<Cursor<[u8; 4]>, Counted<R>>;

/// The length of the header of a pcap file; that of a pcapng file is longer.
pub(super) const PCAP_HEADER_LEN: u64 = 24;

/// A reader that counts its bytes, to tell where a file ends.
pub(super) struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// The frames of a capture.
pub(super) struct Records<R: Read> {
    format: Format<R>,
    /// Bytes read so far, from the beginning of the file.
    bytes: Arc<AtomicU64>,
}

/// The two formats.
enum Format<R: Read> {
    Pcap { reader: PcapReader<Rewound<R>>, link: Link },
    PcapNg { reader: PcapNgReader<Rewound<R>>, interfaces: Vec<Interface> },
}

impl<R: Read> std::fmt::Debug for Records<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.format {
            Format::Pcap { .. } => "Records(pcap)",
            Format::PcapNg { .. } => "Records(pcapng)",
        })
    }
}

/// Block type of a pcapng section header, a palindrome: the same in both byte orders.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// pcap, with microseconds and nanoseconds, as a little-endian machine writes them.
const PCAP_MAGICS: [[u8; 4]; 2] = [[0xd4, 0xc3, 0xb2, 0xa1], [0x4d, 0x3c, 0xb2, 0xa1]];

impl<R: Read> Records<R> {
    pub(super) fn new(reader: R) -> Result<Self, CaptureError> {
        let bytes = Arc::<AtomicU64>::default();
        let read = || bytes.load(Ordering::Relaxed);
        let mut reader = Counted { inner: reader, bytes: Arc::clone(&bytes) };
        let mut magic = [0; 4];
        reader.read_exact(&mut magic).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof if read() == 0 => CaptureError::Empty,
            ErrorKind::UnexpectedEof => CaptureError::NotACapture,
            _ => CaptureError::Io(error),
        })?;
        let mut reversed = magic;
        reversed.reverse();
        let is_pcap = PCAP_MAGICS.contains(&magic) || PCAP_MAGICS.contains(&reversed);
        let rewound = Cursor::new(magic).chain(reader);
        let format = if magic == PCAPNG_MAGIC {
            let reader = PcapNgReader::new(rewound).map_err(|error| translate(error, 0, read()))?;
            Format::PcapNg { reader, interfaces: Vec::new() }
        } else if is_pcap {
            let reader = PcapReader::new(rewound).map_err(|error| translate(error, 0, read()))?;
            // Above the link type the field says whether frames end with a checksum.
            let number = u32::from(reader.header().datalink) & 0xffff;
            let link = Link::new(number.into()).ok_or(CaptureError::UnsupportedLink(number))?;
            Format::Pcap { reader, link }
        } else {
            return Err(CaptureError::NotACapture);
        };
        Ok(Self { format, bytes })
    }

    /// The next frame. `frames` is the number of frames before it, for errors.
    pub(super) fn next_record(&mut self, frames: u64) -> Option<Result<Record<'_>, CaptureError>> {
        let bytes = &self.bytes;
        let failed = |error| translate(error, frames, bytes.load(Ordering::Relaxed));
        match &mut self.format {
            Format::Pcap { reader, link } => {
                let nanoseconds = reader.header().ts_resolution == TsResolution::NanoSecond;
                // Not the checked form of the library: it rejects frames longer than the snap length.
                let packet = match reader.next_raw_packet()? {
                    Ok(packet) => packet,
                    Err(error) => return Some(Err(failed(error))),
                };
                let fraction = u64::from(packet.ts_frac);
                let fraction = if nanoseconds {
                    Duration::from_nanos(fraction)
                } else {
                    Duration::from_micros(fraction)
                };
                Some(Ok(Record {
                    time: Duration::from_secs(packet.ts_sec.into()) + fraction,
                    link: Some(*link),
                    data: packet.data,
                    comments: Vec::new(),
                }))
            }
            Format::PcapNg { reader, interfaces } => next_of_pcapng(reader, interfaces, frames, failed),
        }
    }
}

fn next_of_pcapng<'r, R: Read>(
    reader: &'r mut PcapNgReader<R>,
    interfaces: &mut Vec<Interface>,
    frames: u64,
    failed: impl Fn(PcapError) -> CaptureError,
) -> Option<Result<Record<'r>, CaptureError>> {
    // Blocks are copied out of the reader's buffer, because a loop cannot return what it has borrowed.
    loop {
        let block = match reader.next_block()? {
            Ok(block) => block,
            Err(error) => return Some(Err(failed(error))),
        };
        match block {
            Block::SectionHeader(_) => interfaces.clear(),
            Block::InterfaceDescription(description) => interfaces.push(Interface::new(&description)),
            Block::EnhancedPacket(packet) => {
                let record = usize::try_from(packet.interface_id)
                    .ok()
                    .and_then(|id| interfaces.get(id))
                    .map(|interface| interface.record(packet.into_owned()))
                    .ok_or_else(|| damaged(frames, "a packet of an interface that was not described"));
                return Some(record);
            }
            Block::SimplePacket(packet) => {
                // It belongs to the first interface, has no time, and gives its length but not its captured length.
                let length = packet.original_len as usize;
                let record = interfaces.first().map(|interface| Record {
                    time: Duration::ZERO,
                    link: interface.link,
                    data: packet.data[..packet.data.len().min(length)].to_vec().into(),
                    comments: Vec::new(),
                });
                return Some(
                    record.ok_or_else(|| damaged(frames, "a packet of an interface that was not described")),
                );
            }
            _ => {}
        }
    }
}

/// The description of an interface in a pcapng file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interface {
    link: Option<Link>,
    /// The unit of time: 10 to the power of minus this number or, if the top bit is set, 2 to the power of minus the rest.
    resolution: u8,
    /// Seconds to add to each time.
    offset: i64,
}

impl Interface {
    fn new(description: &InterfaceDescriptionBlock<'_>) -> Self {
        // The default is microseconds.
        let mut interface = Self { link: Link::new(description.linktype), resolution: 6, offset: 0 };
        for option in &description.options {
            match option {
                InterfaceDescriptionOption::IfTsResol(resolution) => interface.resolution = *resolution,
                InterfaceDescriptionOption::IfTsOffset(offset) => interface.offset = offset.cast_signed(),
                _ => {}
            }
        }
        interface
    }

    fn record(self, packet: EnhancedPacketBlock<'static>) -> Record<'static> {
        let comments = packet
            .options
            .iter()
            .filter_map(|option| match option {
                EnhancedPacketOption::Comment(text) => Some(text.to_string()),
                _ => None,
            })
            .collect();
        Record { time: self.time(packet.timestamp), link: self.link, data: packet.data, comments }
    }

    /// The time of a packet. The library returns the number of units as if they were nanoseconds.
    fn time(self, units: Duration) -> Duration {
        /// Nanoseconds per second.
        const NANOS: u128 = 1_000_000_000;
        let per_second = match self.resolution {
            binary if binary & 0x80 != 0 => 1u128.checked_shl(u32::from(binary & 0x7f)),
            decimal => 10u128.checked_pow(decimal.into()),
        };
        // Units are below 2^64 and a second has less than 2^30 nanoseconds: no overflow.
        let nanos = per_second.map_or(0, |per_second| units.as_nanos() * NANOS / per_second);
        let seconds = u64::try_from(nanos / NANOS).unwrap_or(u64::MAX);
        let seconds = seconds.checked_add_signed(self.offset).unwrap_or(0);
        Duration::new(seconds, (nanos % NANOS) as u32)
    }
}

fn damaged(frames: u64, reason: &str) -> CaptureError {
    CaptureError::Damaged { frames, reason: reason.to_owned() }
}

/// Our error for one of the library, with the number of whole frames and of bytes read before it.
fn translate(error: PcapError, frames: u64, bytes: u64) -> CaptureError {
    match error {
        PcapError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            CaptureError::CutOff { frames, bytes }
        }
        PcapError::IoError(error) => CaptureError::Io(error),
        PcapError::IncompleteBuffer => CaptureError::CutOff { frames, bytes },
        other => CaptureError::Damaged { frames, reason: other.to_string() },
    }
}
