//! The output of the demo, 80 columns wide.

use rnic::ladder::Style;
use std::cell::RefCell;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::time::Duration;

/// The widest line.
pub(super) const WIDTH: usize = 80;

/// The indentation of everything below a heading.
const INDENT: usize = 2;

/// The output. Errors are ignored: a reader that closed the pipe has seen enough.
pub(super) struct Page {
    out: RefCell<BufWriter<Stdout>>,
    color: bool,
}

impl Page {
    pub(super) fn to_stdout() -> Self {
        // See https://no-color.org: the variable must be set and not empty.
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { out: RefCell::new(BufWriter::new(io::stdout())), color: wanted && io::stdout().is_terminal() }
    }

    /// The style of ladders. Half a millisecond without a packet is no pause on a busy host; the demo's timers are 10
    /// ms and longer.
    pub(super) fn ladder_style(&self) -> Style {
        Style {
            color: self.color,
            pause: Duration::from_millis(5),
            icrc_values: false,
            arrow: WIDTH - INDENT - 27,
            ..Style::default()
        }
    }

    pub(super) fn flush(&self) {
        let _ = self.out.borrow_mut().flush();
    }

    fn write(&self, text: &str) {
        let _ = writeln!(self.out.borrow_mut(), "{text}");
    }

    /// Text with an SGR parameter of ECMA-48, if the output has colours.
    fn toned(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn title(&self, text: &str) {
        self.write(&self.toned("1", text));
        self.flush();
    }

    /// Begins a section.
    pub(super) fn section(&self, heading: &str, lesson: &str) {
        self.write("");
        self.write(&self.toned("1;34", heading));
        self.paragraph(lesson);
        self.flush();
    }

    /// Begins an operation within a section.
    pub(super) fn operation(&self, name: &str, lesson: &str) {
        self.write("");
        self.write(&format!("  {}", self.toned("1", name)));
        self.paragraph(lesson);
    }

    /// Prints sentences, wrapped and indented.
    pub(super) fn paragraph(&self, text: &str) {
        for line in wrapped(text, WIDTH - INDENT) {
            self.line(&line);
        }
    }

    /// Prints a name and a text, wrapped in a column of its own.
    pub(super) fn row(&self, name: &str, text: &str) {
        let column = name.chars().count();
        for (index, line) in wrapped(text, WIDTH - INDENT - column).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            self.line(&format!("{name:<column$}{line}"));
        }
    }

    /// Prints lines as they are, indented.
    pub(super) fn line(&self, text: &str) {
        for line in text.lines() {
            self.write(&format!("  {line}"));
        }
    }

    /// Reports a check that passed.
    pub(super) fn proved(&self, what: &str) {
        for (index, line) in wrapped(what, WIDTH - INDENT - "ok ".len()).iter().enumerate() {
            let ok = if index == 0 { self.toned("32", "ok") } else { "  ".to_owned() };
            self.line(&format!("{ok} {line}"));
        }
        self.flush();
    }
}

/// Breaks a text into lines of at most `width` columns.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}
