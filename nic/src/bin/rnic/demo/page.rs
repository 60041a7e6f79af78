//! What the reader sees.

use std::cell::RefCell;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

/// The output. Who reads no further than the start has seen enough: errors are nobody's concern.
pub(super) struct Page {
    out: RefCell<BufWriter<Stdout>>,
    color: bool,
}

impl Page {
    pub(super) fn to_stdout() -> Self {
        // See https://no-color.org: set and not empty.
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { out: RefCell::new(BufWriter::new(io::stdout())), color: wanted && io::stdout().is_terminal() }
    }

    /// Whether to use colours.
    pub(super) fn color(&self) -> bool {
        self.color
    }

    pub(super) fn flush(&self) {
        let _ = self.out.borrow_mut().flush();
    }

    fn write(&self, text: &str) {
        let _ = writeln!(self.out.borrow_mut(), "{text}");
    }

    /// Text with an SGR parameter of ECMA-48, where colours are wanted.
    fn toned(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn title(&self, text: &str) {
        self.write(&self.toned("1", text));
        self.flush();
    }

    /// A section begins.
    pub(super) fn section(&self, heading: &str, lesson: &str) {
        self.write("");
        self.write(&self.toned("1;34", heading));
        self.paragraph(lesson);
        self.flush();
    }

    /// One operation of a section.
    pub(super) fn operation(&self, name: &str, lesson: &str) {
        self.write("");
        self.write(&format!("  {}", self.toned("1", name)));
        self.paragraph(lesson);
    }

    /// A text of some sentences, two columns in.
    pub(super) fn paragraph(&self, text: &str) {
        /// As wide as a ladder.
        const WIDTH: usize = 98;
        let mut line = String::new();
        for word in text.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
                self.line(&line);
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        if !line.is_empty() {
            self.line(&line);
        }
    }

    /// Lines as they are, two columns in.
    pub(super) fn line(&self, text: &str) {
        for line in text.lines() {
            self.write(&format!("  {line}"));
        }
    }

    /// Something was checked.
    pub(super) fn proved(&self, what: &str) {
        self.line(&format!("{} {what}", self.toned("32", "ok")));
        self.flush();
    }
}
