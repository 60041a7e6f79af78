//! `rnic plot`: draws the traces of `rnic perf --trace`; and files of pictures, for all commands that draw.
//!
//! Each file is read twice: for its time span (`gather::Survey`), then for its data (`gather::Gathered`), whose size does
//! not depend on the length of the trace. The data becomes panels (`panels`), which `rnic_plot` draws.

mod gather;
mod panels;
#[cfg(test)]
mod tests;

use gather::Survey;
use panels::Source;
use rnic::cc::quantity::parse_seconds;
use rnic::trace::Header;
use rnic_plot::figure::Figure;
use rnic_plot::series::{self, Span};
use rnic_plot::{WIDTH, height, units};
use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// An error, in one line.
type Failure = Box<dyn std::error::Error>;

/// The range of sizes in pixels: smaller pictures have no room for text, larger ones take over a gigabyte of memory.
const SIZES: std::ops::RangeInclusive<i64> = 320..=6000;

/// The most traces that can be told apart in one picture.
const MAX_FILES: usize = 16;

/// Draw traces of `rnic perf --trace` as SVG or PNG.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Several traces of one run, such as those of two clients and their server, share one time axis.\n\n\
                        Each quantity in the traces has a panel: goodput and the rate that congestion control allows, \
                        the queue of an emulated port, alpha, congestion notifications, credits and pauses, losses. \
                        Goodput and event rates are averages over windows, whose length the subtitle states. All other \
                        quantities keep their peaks.\n\n\
                        Example:\n  rnic plot server.trace client.trace --output run.png\n\n\
                        Exit code: 0 if the picture was drawn, 2 if not."
)]
pub(crate) struct Args {
    /// The traces.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write the picture to this file, which ends in .svg or .png. [default: the first FILE with the ending .svg]
    #[arg(long, short = 'o', value_name = "OUT")]
    output: Option<PathBuf>,
    /// Use this title. [default: that of the first trace]
    #[arg(long)]
    title: Option<String>,
    /// Start at this time, such as 0.5s or 20ms. [default: when the first value changes]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    from: Option<Duration>,
    /// End at this time. [default: when the last value changes]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    to: Option<Duration>,
    /// Average rates over this time. [default: a fraction of the picture, at least two samples]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    window: Option<Duration>,
    /// The width of the picture.
    #[arg(long, value_name = "PIXELS", default_value_t = WIDTH, value_parser = clap::value_parser!(u32).range(SIZES))]
    width: u32,
    /// The height of the picture. [default: 720, and more for more panels or longer legends]
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(SIZES))]
    height: Option<u32>,
}

/// The file format of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Svg,
    Png,
}

impl Format {
    fn of(path: &Path) -> Result<Self, Failure> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "svg" => Ok(Self::Svg),
            "png" => Ok(Self::Png),
            _ => Err(format!("{}: use a file name that ends in .svg or .png", path.display()).into()),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Some(first) = args.files.first() else { return Err("no trace was given".into()) };
    let output = args.output.clone().unwrap_or_else(|| first.with_extension("svg"));
    let format = Format::of(&output)?;
    if args.files.contains(&output) {
        return Err(format!(
            "{}: the picture would overwrite the trace; choose another file with --output",
            output.display()
        )
        .into());
    }
    let figure = figure(args)?;
    let size = (args.width, args.height.unwrap_or_else(|| height(&figure, args.width)));
    write(&figure, size, format, &output)?;
    let drawn: Vec<_> = figure.panels.iter().map(|panel| panel.name).collect();
    writeln!(stdout(), "{}: {}", output.display(), drawn.join(", "))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a picture.
fn write(figure: &Figure, size: (u32, u32), format: Format, output: &Path) -> Result<(), Failure> {
    let file = match format {
        Format::Svg => rnic_plot::svg(figure, size)?.into_bytes(),
        Format::Png => rnic_plot::png(figure, size)?,
    };
    Ok(std::fs::write(output, file).map_err(|error| format!("cannot write {}: {error}", output.display()))?)
}

/// Whether a file can be a picture.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    Format::of(path).map(|_| ())
}

/// Writes a picture in its usual size. Returns what is drawn.
pub(crate) fn save(figure: &Figure, path: &Path) -> Result<Vec<&'static str>, Failure> {
    write(figure, (WIDTH, height(figure, WIDTH)), Format::of(path)?, path)?;
    let mut names: Vec<_> = figure.panels.iter().map(|panel| panel.name).collect();
    names.dedup();
    Ok(names)
}

/// Reads the traces.
fn figure(args: &Args) -> Result<Figure, Failure> {
    if args.files.len() > MAX_FILES {
        return Err(
            format!("{} traces are too many; a picture shows at most {MAX_FILES}", args.files.len()).into()
        );
    }
    let surveys = args.files.iter().map(|path| Survey::of(path)).collect::<Result<Vec<_>, _>>()?;
    let zero = surveys.iter().map(|survey| survey.header.started).min().unwrap_or_default();
    // The start of each trace, in seconds of the time axis.
    let begin = |survey: &Survey| (survey.header.started - zero).as_secs_f64();
    let span = span(args, &surveys, begin)?;
    let names = names(&surveys);
    let mut sources = Vec::new();
    let subtitle = subtitle(&surveys, &names, &span);
    for (survey, name) in surveys.iter().zip(names) {
        let data = survey.gather(&span, -begin(survey))?;
        sources.push(Source { name, header: survey.header.clone(), data });
    }
    let panels = panels::all(sources, &span);
    if panels.is_empty() {
        let last = panels::NAMES.len() - 1;
        let missing = panels::NAMES[..last].join(", no ");
        return Err(format!(
            "nothing to draw in this time span: no {missing} and no {}",
            panels::NAMES[last]
        )
        .into());
    }
    let title = args.title.clone().unwrap_or_else(|| title(&surveys));
    Ok(Figure { title, subtitle, span, columns: Vec::new(), panels })
}

/// The time span that is drawn.
fn span(args: &Args, surveys: &[Survey], begin: impl Fn(&Survey) -> f64) -> Result<Span, Failure> {
    let first = surveys.iter().map(|s| begin(s) + s.first).fold(f64::INFINITY, f64::min);
    let last = surveys.iter().map(|s| begin(s) + s.last).fold(0.0, f64::max);
    // Leave out the time in which a server waits for clients.
    let busy = |survey: &Survey| survey.busy.map(|(from, to)| (begin(survey) + from, begin(survey) + to));
    let all = surveys.iter().filter_map(busy).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let (busy_first, busy_last) = all.map_or((first, last), |(from, to)| rounded(from, to));
    let from = args.from.map_or(busy_first, |from| from.as_secs_f64());
    let to = args.to.map_or(if from < busy_last { busy_last } else { last }, |to| to.as_secs_f64());
    let from = if args.from.is_none() && from >= to { first } else { from };
    if from >= to && (args.from.is_some() || args.to.is_some()) && from < last {
        return Err(format!("--from {from}s must be before --to {to}s").into());
    }
    if from >= last || to <= first {
        return Err(format!(
            "there is nothing between {from} s and {to} s; the samples are from {first} s to {last} s"
        )
        .into());
    }
    let length = to - from;
    let interval = surveys.iter().map(Survey::interval).fold(0.0, f64::max);
    let window = match args.window {
        None => series::window(length, interval),
        Some(window) if window.is_zero() => return Err("--window must be longer than 0".into()),
        // Windows narrower than a pixel cannot be seen.
        Some(window) => window.as_secs_f64().clamp(length / f64::from(args.width), length),
    };
    Ok(Span { from, to, columns: args.width as usize, window })
}

/// Rounds a time span outwards to round numbers.
fn rounded(first: f64, last: f64) -> (f64, f64) {
    let grain = 10_f64.powf((last - first).log10().floor()) / 50.0;
    // Without the tolerance, 2.000000001 would become 2.02.
    let (from, to) = ((first / grain + 1e-6).floor() * grain, (last / grain - 1e-6).ceil() * grain);
    if from < to { (from.max(0.0), to) } else { (first, last) }
}

/// The name of each file in legends: the device, with the file if several traces have the same device.
fn names(surveys: &[Survey]) -> Vec<String> {
    let file = |survey: &Survey| {
        survey.path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    };
    let same = |device: &str| surveys.iter().filter(|other| other.header.device == device).count();
    let name = |survey: &Survey| match survey.header.device.as_str() {
        "" => file(survey),
        device if same(device) > 1 => format!("{device} ({})", file(survey)),
        device => device.to_owned(),
    };
    surveys.iter().map(name).collect()
}

fn title(surveys: &[Survey]) -> String {
    let mut titles =
        surveys.iter().map(|survey| survey.header.title.as_str()).filter(|title| !title.is_empty());
    titles.next().unwrap_or("Port activity").to_owned()
}

/// A property of the headers: once if they agree, otherwise with the names of the traces.
fn described(
    what: &str,
    surveys: &[Survey],
    names: &[String],
    pick: impl Fn(&Header) -> Option<String>,
) -> Vec<String> {
    let mut values: Vec<(String, Vec<&str>)> = Vec::new();
    for (survey, name) in surveys.iter().zip(names) {
        let Some(value) = pick(&survey.header) else { continue };
        match values.iter_mut().find(|(known, _)| *known == value) {
            Some((_, of)) => of.push(name),
            None => values.push((value, vec![name])),
        }
    }
    let alone = values.len() == 1;
    let describe = |(value, of): (String, Vec<&str>)| match alone {
        true => format!("{what}: {value}"),
        false => format!("{what} of {}: {value}", of.join(" and ")),
    };
    values.into_iter().map(describe).collect()
}

/// The configuration in the headers, and the window of averages.
fn subtitle(surveys: &[Survey], names: &[String], span: &Span) -> String {
    let link =
        |header: &Header| header.link.as_ref().map(|link| link.name.clone()).filter(|name| !name.is_empty());
    let (factor, unit) = units::time_unit(span.window * 0.999);
    let window = (span.window * factor * 100.0).round() / 100.0;
    let mut parts = described("congestion control", surveys, names, |header| header.cc.clone());
    parts.push(format!("averages over {window} {unit}"));
    // The longest part comes last, because it may be cut.
    parts.extend(described("link", surveys, names, link));
    parts.join("  ·  ")
}
