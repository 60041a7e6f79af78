//! `rnic decode`: the packets of a capture file.

mod filter;

use filter::{Filter, Partners};
use rnic::capture::{CaptureError, DecodedPacket, Decoder, Ecn, Report, Summary};
use rnic::ladder::{Ladder, Style};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Show the RoCEv2 packets of a capture file and check their ICRC.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Prints one line per packet: frame number, seconds since the first packet, addresses, the packet, and whether \
                        its ICRC is right. A frame that holds a segmentation-offloaded train is split: 7.0 and 7.1 are the \
                        first two packets of frame 7.\n\
                        Exit code: 0 if every ICRC is right, 1 if one is wrong, 2 if the file cannot be read to its end. \
                        With filters, only packets that are shown count."
)]
pub(crate) struct Args {
    /// A pcap or pcapng file.
    file: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    /// Draw a ladder diagram for each pair of hosts instead of lines.
    #[arg(long, conflicts_with = "json")]
    ladder: bool,
    #[command(flatten)]
    filter: Filter,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let name = args.file.display();
    let mut shown = Shown::open(args).map_err(|error| format!("{name}: {error}"))?;
    let out = BufWriter::new(io::stdout().lock());
    let printed = match (args.json, args.ladder) {
        (true, _) => print_json(&mut shown, out),
        (_, true) => print_ladders(&mut shown, out),
        _ => print_lines(&mut shown, out),
    };
    match printed {
        // The reader of the output has seen enough, as in `rnic decode FILE | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        printed => printed.map_err(|error| format!("cannot write: {error}"))?,
    }
    match shown.failure {
        Some(error) => Err(format!("{name}: {error}").into()),
        None => Ok(ExitCode::from(u8::from(shown.summary.bad_icrc > 0))),
    }
}

/// A packet to show.
struct Packet {
    /// The time since the first packet of the capture.
    time: Duration,
    packet: DecodedPacket,
}

/// The packets of a capture that pass the filter.
struct Shown<'a> {
    decoder: Decoder<File>,
    filter: &'a Filter,
    partners: Partners,
    /// The time of the first packet.
    start: Option<Duration>,
    /// The packets shown so far.
    summary: Summary,
    /// The error that ended the capture.
    failure: Option<CaptureError>,
}

impl<'a> Shown<'a> {
    fn open(args: &'a Args) -> Result<Self, CaptureError> {
        let filter = &args.filter;
        let partners = if filter.needs_partners() {
            // Ignore errors of a damaged file here: they are reported when the packets are shown.
            Partners::of(decoder(&args.file)?.flatten())
        } else {
            Partners::default()
        };
        let decoder = decoder(&args.file)?;
        Ok(Self { decoder, filter, partners, start: None, summary: Summary::default(), failure: None })
    }

    /// The summary of the packets shown, and the total number of packets.
    fn summary(&self) -> String {
        let all = self.decoder.summary();
        if self.filter.is_empty() { all.to_string() } else { format!("{} of {}", self.summary, all.packets) }
    }
}

fn decoder(path: &Path) -> Result<Decoder<File>, CaptureError> {
    Decoder::new(File::open(path).map_err(CaptureError::Io)?)
}

impl Iterator for Shown<'_> {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        loop {
            let packet = match self.decoder.next()? {
                Ok(packet) => packet,
                Err(error) => {
                    self.failure = Some(error);
                    return None;
                }
            };
            let time = packet.time.saturating_sub(*self.start.get_or_insert(packet.time));
            if self.filter.takes(&packet, time, &self.partners) {
                self.summary.add(&packet);
                return Some(Packet { time, packet });
            }
        }
    }
}

fn print_lines(shown: &mut Shown<'_>, mut out: impl Write) -> io::Result<()> {
    for packet in shown.by_ref() {
        print_line(&mut out, &packet)?;
    }
    writeln!(out, "{}", shown.summary())?;
    out.flush()
}

fn print_line(out: &mut impl Write, Packet { time, packet }: &Packet) -> io::Result<()> {
    write!(out, "{:>6} {:>4}.{:06}", number(packet), time.as_secs(), time.subsec_micros())?;
    write!(out, " {} > {}  {}", packet.src, packet.dst, packet.content)?;
    if packet.ecn() == Ecn::Ce {
        write!(out, " ce")?;
    }
    match packet.icrc {
        Some(icrc) if icrc.is_ok() => write!(out, " icrc ok")?,
        Some(icrc) => write!(out, " icrc BAD computed {:#010x} found {:#010x}", icrc.computed, icrc.found)?,
        None => write!(out, " icrc not checked")?,
    }
    for comment in &packet.comments {
        // A comment may contain anything, even escape sequences that move the cursor of a terminal.
        write!(out, " # {}", comment.escape_debug())?;
    }
    writeln!(out)
}

/// The number of the frame, and of the segment in it.
fn number(packet: &DecodedPacket) -> String {
    match packet.segment {
        Some(segment) => format!("{}.{segment}", packet.frame),
        None => packet.frame.to_string(),
    }
}

fn print_json(shown: &mut Shown<'_>, mut out: impl Write) -> io::Result<()> {
    let packets: Vec<_> = shown.map(|packet| packet.packet).collect();
    let summary = if shown.filter.is_empty() { shown.decoder.summary() } else { shown.summary };
    serde_json::to_writer_pretty(&mut out, &Report::new(&packets, summary))?;
    writeln!(out)?;
    out.flush()
}

fn print_ladders(shown: &mut Shown<'_>, mut out: impl Write) -> io::Result<()> {
    let packets: Vec<_> = shown.collect();
    // See https://no-color.org: the variable must be set and not empty.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let style = Style { color: !plain && io::stdout().is_terminal(), ..Style::default() };
    if let Some(Packet { time, packet }) = packets.first() {
        // The ladders count time from the first packet shown.
        let (secs, micros) = (time.as_secs(), time.subsec_micros());
        writeln!(out, "from frame {}, {secs}.{micros:06} s after the first packet\n", number(packet))?;
    }
    for ladder in Ladder::of_capture(packets.iter().map(|packet| &packet.packet)) {
        writeln!(out, "{}", ladder.render(&style))?;
    }
    writeln!(out, "{}", shown.summary())?;
    out.flush()
}
