//! `rnic decode`: the packets of a capture file.

use rnic::capture::{DecodedPacket, Decoder, Ecn, Report, Summary};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Show the RoCEv2 packets of a capture file and check their ICRC.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "One line for each packet: frame number, seconds since the first packet, addresses, the packet, \
                        and whether its ICRC is right.\n\
                        Exit code: 0 if every ICRC is right, 1 if one is wrong, 2 if the file cannot be read."
)]
pub(crate) struct Args {
    /// A pcap or pcapng file.
    file: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let name = args.file.display();
    let file = File::open(&args.file).map_err(|error| format!("{name}: {error}"))?;
    let decoder = Decoder::new(file).map_err(|error| format!("{name}: {error}"))?;
    let out = BufWriter::new(io::stdout().lock());
    let outcome = if args.json { print_json(decoder, out) } else { print_lines(decoder, out) };
    match outcome {
        Ok(summary) => Ok(ExitCode::from(u8::from(summary.bad_icrc > 0))),
        // Whoever reads our output has seen enough, as in `rnic decode FILE | head`.
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(Failure::Output(error)) => Err(format!("cannot write: {error}").into()),
        Err(Failure::Capture(error)) => Err(format!("{name}: {error}").into()),
    }
}

enum Failure {
    Output(io::Error),
    Capture(rnic::capture::CaptureError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn print_lines(mut decoder: Decoder<File>, mut out: impl Write) -> Result<Summary, Failure> {
    let mut first = None;
    let mut failure = None;
    for packet in decoder.by_ref() {
        match packet {
            Ok(packet) => {
                let start = *first.get_or_insert(packet.time);
                print_line(&mut out, &packet, packet.time.saturating_sub(start))?;
            }
            Err(error) => failure = Some(error),
        }
    }
    writeln!(out, "{}", decoder.summary())?;
    out.flush()?;
    failure.map_or(Ok(decoder.summary()), |error| Err(Failure::Capture(error)))
}

fn print_line(out: &mut impl Write, packet: &DecodedPacket, time: Duration) -> io::Result<()> {
    let number = match packet.segment {
        Some(segment) => format!("{}.{segment}", packet.frame),
        None => packet.frame.to_string(),
    };
    write!(out, "{number:>6} {:>4}.{:06}", time.as_secs(), time.subsec_micros())?;
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
        // A comment may hold anything, also what would move a terminal's cursor.
        write!(out, " # {}", comment.escape_debug())?;
    }
    writeln!(out)
}

fn print_json(mut decoder: Decoder<File>, mut out: impl Write) -> Result<Summary, Failure> {
    let packets = decoder.by_ref().collect::<Result<Vec<_>, _>>().map_err(Failure::Capture)?;
    let summary = decoder.summary();
    serde_json::to_writer_pretty(&mut out, &Report::new(&packets, summary)).map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(summary)
}
