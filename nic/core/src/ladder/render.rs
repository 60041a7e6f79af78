//! The drawing.
//!
//! ```text
//!   time/us  client                                              server   bytes  icrc
//!       0.0  |-- WRITE_FIRST psn #0 ----------------------------------->|    1024  1a2b3c4d ok
//! |--------|  |----------------------- ARROW ------------------------|  |------|  |---------|
//! ```

use super::{Record, mad};
use crate::link::{Direction, Fate};
use qp::wire::{AethFields, HeaderSet, Headers, Operation, Syndrome, decode_credits, rnr_delay};
use std::collections::BTreeSet;
use std::fmt::Write;
use time::Duration;

/// How PSNs are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PsnForm {
    /// Counted from the first one of the queue pair: `#3`, as fault rules have it (`psn=#3`).
    #[default]
    Relative,
    /// As on the wire.
    Absolute,
}

/// How a ladder is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Style {
    /// How PSNs are shown.
    pub psn: PsnForm,
    /// Whether to show the ICRC itself besides the verdict. It covers addresses and keys of registered memory, so on real
    /// sockets most values differ from run to run.
    pub icrc_values: bool,
    /// Whether to use terminal colours (ECMA-48).
    pub color: bool,
    /// Pauses of at least this length get a line of their own.
    pub pause: Duration,
    /// Columns between the two rails, at least [`Style::NARROWEST`]. A line has 35 more, or 27 without ICRC values.
    pub arrow: usize,
}

impl Style {
    /// The widest line with the default arrow, without colours.
    pub const WIDTH: usize = MARGIN + 1 + ARROW + 1 + 2 + BYTES + 2 + ICRC;

    /// The shortest arrow: it has room for a packet's name and PSN. What does not fit behind them goes to a line below.
    pub const NARROWEST: usize = 40;

    /// The style for terminals of 80 columns: without ICRC values, and with the longest arrow that fits.
    #[must_use]
    pub fn narrow() -> Self {
        // The heading of the last column is longer than the verdicts in it.
        let icrc = "icrc".len();
        Self { icrc_values: false, arrow: 80 - (MARGIN + 1 + 1 + 2 + BYTES + 2 + icrc), ..Self::default() }
    }
}

impl Default for Style {
    fn default() -> Self {
        // Half a millisecond: longer than any exchange takes, shorter than any timer that retransmits.
        Self {
            psn: PsnForm::Relative,
            icrc_values: true,
            color: false,
            pause: Duration::from_micros(500),
            arrow: ARROW,
        }
    }
}

/// Columns of the time.
const TIME: usize = 10;
/// Columns left of the left rail.
const MARGIN: usize = TIME + 2;
/// The default number of columns between the rails: the longest label of a packet fits.
const ARROW: usize = 64;
/// Columns of the payload length.
const BYTES: usize = 5;
/// Columns of the ICRC and its verdict.
const ICRC: usize = "00000000 BAD".len();
/// Dashes before a label, and behind one whose packet is lost.
const STUB: &str = "--";
const BROKEN: &str = "------";

/// How many records back to look for a repetition.
const MEMORY: usize = 256;

/// The kind of a line, which decides its colour.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Quiet,
    Answer,
    Refusal,
    Loss,
}

impl Tone {
    /// The SGR parameter.
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Quiet => "2",
            Self::Answer => "36",
            Self::Refusal => "33",
            Self::Loss => "31",
        }
    }
}

struct Drawing<'a> {
    style: &'a Style,
    /// Columns between the rails.
    arrow: usize,
    /// Whether labels have to name the queue pair, and the peer.
    many_qps: bool,
    many_peers: bool,
    out: String,
}

/// Draws records between two rails.
pub(super) fn draw(names: [&str; 2], records: &[Record], missed: u64, style: &Style) -> String {
    let distinct = |direction| {
        // Datagrams to queue pair 1 and messages between ports have labels of their own.
        let of =
            records.iter().filter(|r| r.direction == direction && r.mad.is_none() && r.control.is_none());
        of.filter_map(|r| r.content.as_ref().ok().map(|h| h.dest_qpn)).collect::<BTreeSet<_>>().len()
    };
    let peers: BTreeSet<_> = records.iter().map(|r| r.peer).collect();
    let mut drawing = Drawing {
        style,
        arrow: style.arrow.max(Style::NARROWEST),
        many_qps: distinct(Direction::Tx) > 1 || distinct(Direction::Rx) > 1,
        many_peers: peers.len() > 1,
        out: String::new(),
    };
    drawing.heading(names);
    for (index, record) in records.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|i| records.get(i));
        if let Some(before) = before {
            drawing.pause(record.at.saturating_duration_since(before.at));
        }
        let passed = record.at.saturating_duration_since(records[0].at);
        let recent = &records[index.saturating_sub(MEMORY)..index];
        drawing.rung(record, passed, recent.iter().any(|r| repeats(record, r)));
    }
    if missed > 0 {
        let _ = writeln!(drawing.out, "{:MARGIN$}({missed} more packets were not recorded)", "");
    }
    drawing.out
}

/// Whether a packet repeats an earlier one.
fn repeats(record: &Record, earlier: &Record) -> bool {
    let (Ok(now), Ok(then)) = (&record.content, &earlier.content) else { return false };
    let operation = now.opcode.info().operation;
    // Acknowledgements repeat PSNs all the time.
    let says_something = operation != Operation::Acknowledge && operation.has_psn();
    says_something
        && (record.direction, record.peer) == (earlier.direction, earlier.peer)
        && (now.dest_qpn, now.psn) == (then.dest_qpn, then.psn)
        && now.opcode.info().is_request == then.opcode.info().is_request
}

/// The label of a packet: the part that must fit, and the parts that may go to the next line.
pub(super) struct Label {
    pub(super) main: String,
    pub(super) more: Vec<String>,
    pub(super) tone: Tone,
}

impl Drawing<'_> {
    fn heading(&mut self, [left, right]: [&str; 2]) {
        // One name leaves room for the other.
        let half = self.arrow / 2;
        let (left, right) = (cut(left, half), cut(right, half));
        let gap = (self.arrow + 2).saturating_sub(left.chars().count() + right.chars().count());
        let time = format!("{:>TIME$}  ", "time/us");
        let names = format!("{left}{:gap$}{right}", "");
        let rest = format!("  {:>BYTES$}  icrc", "bytes");
        self.paint(Tone::Quiet, &time);
        self.out.push_str(&names);
        self.paint(Tone::Quiet, &rest);
        self.out.push('\n');
    }

    /// A pause, if it is long.
    fn pause(&mut self, length: Duration) {
        if length < self.style.pause {
            return;
        }
        let words = format!("~ {} later ~", human(length));
        let line = format!("{:MARGIN$}:{words:^width$}:", "", width = self.arrow);
        self.paint(Tone::Quiet, &line);
        self.out.push('\n');
    }

    fn rung(&mut self, record: &Record, passed: Duration, again: bool) {
        let Label { mut main, more, mut tone } = self.label(record, again);
        let loss = loss(record);
        if loss.is_some() || !record.icrc_ok {
            tone = Tone::Loss;
        }
        // Around the label: a stub, two blanks and either an arrow or the end of a lost packet.
        let end = if loss.is_some() { BROKEN.len() + "x".len() } else { STUB.len() + ">".len() };
        let mut room = self.arrow.saturating_sub(STUB.len() + 2 + end);
        let width = |text: &str| text.chars().count();
        let mut below = Vec::new();
        while width(&main) > room
            && let Some(at) = main.rfind(' ')
        {
            below.insert(0, main.split_off(at).trim_start().to_owned());
        }
        // What became of a packet comes before the rest of what it says.
        let beside = loss.as_deref().filter(|words| width(&main) + 1 + width(words) <= room);
        room -= beside.map_or(0, |words| 1 + width(words));
        for part in more {
            if width(&main) + 1 + width(&part) <= room && below.is_empty() {
                let _ = write!(main, " {part}");
            } else {
                below.push(part);
            }
        }
        let broken = loss.as_ref().map(|_| beside.unwrap_or_default());
        let arrow = arrow(record.direction, &cut(&main, room), broken, self.arrow);
        let tenths = (passed.as_nanos() + 50) / 100;
        let time = format!("{:>TIME$}  ", format!("{}.{}", tenths / 10, tenths % 10));
        self.paint(Tone::Quiet, &time);
        self.out.push('|');
        self.paint(tone, &arrow);
        self.out.push('|');
        let _ = write!(self.out, "  {:>BYTES$}  ", record.payload_len);
        if self.style.icrc_values {
            let icrc = format!("{:08x} ", record.icrc);
            self.paint(Tone::Quiet, &icrc);
        }
        self.paint(
            if record.icrc_ok { Tone::Plain } else { Tone::Loss },
            if record.icrc_ok { "ok" } else { "BAD" },
        );
        self.out.push('\n');
        if let Some(words) = loss.as_deref().filter(|_| beside.is_none()) {
            self.below(record.direction, words, tone);
        }
        if !below.is_empty() {
            self.below(record.direction, &below.join(" "), tone);
        }
        for note in &record.notes {
            // The rung says already that it was dropped.
            if loss.is_none() || !note.ends_with(DROPPED) {
                self.below(record.direction, note, Tone::Quiet);
            }
        }
    }

    /// Lines under a rung, at the sender's side.
    fn below(&mut self, direction: Direction, text: &str, tone: Tone) {
        let room = self.arrow - 2 * (STUB.len() + 1);
        let mut lines = vec![String::new()];
        for word in text.split(' ') {
            match lines.last_mut() {
                Some(line) if line.is_empty() => line.push_str(word),
                Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                    let _ = write!(line, " {word}");
                }
                _ => lines.push(word.to_owned()),
            }
        }
        for text in lines {
            let text = cut(&text, room);
            let line = match direction {
                Direction::Tx => format!("{:w$}{text:<room$}{:w$}", "", "", w = STUB.len() + 1),
                Direction::Rx => format!("{:w$}{text:>room$}{:w$}", "", "", w = STUB.len() + 1),
            };
            let _ = write!(self.out, "{:MARGIN$}|", "");
            self.paint(tone, &line);
            self.out.push_str("|\n");
        }
    }

    fn label(&self, record: &Record, again: bool) -> Label {
        if let Some(mad) = &record.mad {
            let mut label = mad::label(mad);
            label.main.push_str(if record.ce { " ce" } else { "" });
            label.more.extend(self.many_peers.then(|| format!("peer {}", record.peer)));
            return label;
        }
        if let (Some(control), Ok(headers)) = (&record.control, &record.content) {
            let mut main = headers.opcode.info().name.to_owned();
            if let Some(message) = headers.port_message() {
                let _ = write!(main, " {message}");
            }
            main.push_str(if record.ce { " ce" } else { "" });
            let mut more = control.words();
            more.extend(self.many_peers.then(|| format!("peer {}", record.peer)));
            return Label { main, more, tone: Tone::Quiet };
        }
        let headers = match &record.content {
            Ok(headers) => headers,
            Err(error) => {
                return Label { main: format!("malformed: {error}"), more: Vec::new(), tone: Tone::Loss };
            }
        };
        let info = headers.opcode.info();
        let name = info.name.strip_prefix("RC ").unwrap_or(info.name);
        let is_ack = info.operation == Operation::Acknowledge;
        let (mut main, tone) = match headers.aeth.kind() {
            Syndrome::Nak(code) if is_ack => (format!("NAK {}", code.name()), Tone::Refusal),
            Syndrome::Rnr { timer } if is_ack => {
                (format!("RNR NAK wait {}", human(rnr_delay(timer))), Tone::Refusal)
            }
            _ if info.is_request => (name.to_owned(), Tone::Plain),
            _ => (name.to_owned(), Tone::Answer),
        };
        match record.relative_psn {
            _ if !info.operation.has_psn() => {}
            Some(psn) if self.style.psn == PsnForm::Relative => {
                let _ = write!(main, " psn #{psn}");
            }
            _ => {
                let _ = write!(main, " psn {}", headers.psn);
            }
        }
        let flags = [
            (again, " again"),
            (headers.ack_req, " ackreq"),
            (headers.solicited, " se"),
            (headers.fecn, " fecn"),
            (headers.becn, " becn"),
            (record.ce, " ce"),
        ];
        for (set, word) in flags {
            main.push_str(if set { word } else { "" });
        }
        let mut more = details(headers);
        if self.many_qps {
            more.push(format!("to qp {}", headers.dest_qpn));
        }
        if self.many_peers {
            more.push(format!("peer {}", record.peer));
        }
        Label { main, more, tone }
    }

    fn paint(&mut self, tone: Tone, text: &str) {
        if self.style.color && tone != Tone::Plain {
            let _ = write!(self.out, "\x1b[{}m{text}\x1b[0m", tone.code());
        } else {
            self.out.push_str(text);
        }
    }
}

/// The content of the extension headers.
fn details(headers: &Headers) -> Vec<String> {
    let info = headers.opcode.info();
    let has = |header| info.headers.contains(header);
    let mut more = Vec::new();
    if has(HeaderSet::AETH) {
        more.extend(acknowledged(headers.aeth));
    }
    if has(HeaderSet::ATOMIC_ACK_ETH) {
        more.push(format!("was {:#x}", headers.atomic_ack));
    }
    if has(HeaderSet::RETH) {
        more.push(format!("len {}", headers.reth.length));
    }
    if has(HeaderSet::ATOMIC_ETH) {
        let atomic = headers.atomic;
        if info.operation == Operation::CompareSwap {
            more.push(format!("compare {:#x}", atomic.compare));
            more.push(format!("swap {:#x}", atomic.swap_add));
        } else {
            more.push(format!("add {:#x}", atomic.swap_add));
        }
    }
    if has(HeaderSet::IMM_DT) {
        more.push(format!("imm {:#010x}", headers.imm));
    }
    if has(HeaderSet::IETH) {
        more.push(format!("inv {:#010x}", headers.ieth));
    }
    if has(HeaderSet::DETH) {
        more.push(format!("from qp {}", headers.deth.src_qpn));
    }
    more
}

/// The content of an AETH, except for the NAK code.
fn acknowledged(aeth: AethFields) -> Vec<String> {
    let mut more = vec![format!("msn {}", aeth.msn)];
    match aeth.kind() {
        Syndrome::Ack { credits } => more.extend(decode_credits(credits).map(|n| format!("credits {n}"))),
        Syndrome::Reserved(byte) => more.push(format!("syndrome {byte:#04x}")),
        Syndrome::Rnr { .. } | Syndrome::Nak(_) => {}
    }
    more
}

/// The end of the fault layer's note on a packet that it dropped.
pub(super) const DROPPED: &str = ": dropped";

/// The words for a packet that was taken away.
fn loss(record: &Record) -> Option<String> {
    let Fate::Dropped { by } = &record.fate else { return None };
    let culprit = record.notes.iter().find_map(|note| note.strip_suffix(DROPPED)).unwrap_or(by);
    Some(cut(&format!("dropped by {culprit}"), usize::MAX))
}

/// The arrow between the rails, its label at the sender's side.
fn arrow(direction: Direction, label: &str, loss: Option<&str>, width: usize) -> String {
    let tail = width.saturating_sub(STUB.len() + 3 + label.chars().count());
    match (direction, loss) {
        (Direction::Tx, None) => format!("{STUB} {label} {}>", "-".repeat(tail)),
        (Direction::Rx, None) => format!("<{} {label} {STUB}", "-".repeat(tail)),
        (Direction::Tx, Some(words)) => format!("{:<width$}", format!("{STUB} {label} {BROKEN}x {words}")),
        (Direction::Rx, Some(words)) => format!("{:>width$}", format!("{words} x{BROKEN} {label} {STUB}")),
    }
}

/// The beginning of a text that fits, without control characters.
fn cut(text: &str, room: usize) -> String {
    let clean = text.chars().map(|c| if c.is_control() { '?' } else { c });
    if text.chars().count() <= room {
        return clean.collect();
    }
    clean.take(room.saturating_sub(2)).chain("..".chars().take(room)).collect()
}

/// A duration with three significant digits.
pub(super) fn human(length: Duration) -> String {
    /// The nanoseconds of the last digit, the digits behind the point, and the unit.
    const FORMS: [(u128, usize, &str); 6] = [
        (1_000, 0, "us"),
        (10_000, 2, "ms"),
        (100_000, 1, "ms"),
        (1_000_000, 0, "ms"),
        (10_000_000, 2, "s"),
        (100_000_000, 1, "s"),
    ];
    let rounded = |last: u128| (length.as_nanos() + last / 2) / last;
    let form = FORMS.into_iter().find(|(last, ..)| rounded(*last) < 1000);
    let (last, digits, unit) = form.unwrap_or((1_000_000_000, 0, "s"));
    let (count, whole) = (rounded(last), 10_u128.pow(digits as u32));
    match digits {
        0 => format!("{count} {unit}"),
        _ => format!("{}.{:0digits$} {unit}", count / whole, count % whole),
    }
}
