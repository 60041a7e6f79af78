//! Reads files of other simulators line by line.

use super::TopologyError;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::str::{FromStr, SplitAsciiWhitespace};

/// The most bytes of a file that are read. A topology of the most cables needs 40 bytes for each, a matrix of all flows between
/// 1,024 hosts 80 for each.
const MAX_BYTES: u64 = 128 << 20;

/// Reads a whole file.
pub(super) fn read(file: &Path) -> Result<String, TopologyError> {
    let failed = |source| TopologyError::File { file: file.to_owned(), source };
    let mut text = String::new();
    // One byte more, to notice that there is one.
    File::open(file).map_err(failed)?.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(TopologyError::LongFile { file: file.to_owned(), most: MAX_BYTES });
    }
    Ok(text)
}

/// A line that is neither empty nor a comment, cut into words.
#[derive(Clone, Debug)]
pub(super) struct Line<'t> {
    file: &'t Path,
    /// Its number, counted from 1.
    pub(super) number: usize,
    words: SplitAsciiWhitespace<'t>,
}

/// The lines of a text that are neither empty nor comments.
pub(super) fn lines<'t>(text: &'t str, file: &'t Path) -> impl Iterator<Item = Line<'t>> {
    let all = text.lines().zip(1..).map(move |(line, number)| {
        let line = line.split_once('#').map_or(line, |(before, _)| before);
        Line { file, number, words: line.split_ascii_whitespace() }
    });
    all.filter(|line| line.words.clone().next().is_some())
}

/// The error that something is missing at the end of a file.
pub(super) fn at_end(text: &str, file: &Path, expected: impl Into<String>) -> TopologyError {
    let line = text.lines().count().max(1);
    TopologyError::Syntax { file: file.to_owned(), line, expected: expected.into() }
}

impl<'t> Line<'t> {
    /// The error that something else was expected.
    pub(super) fn expected(&self, expected: impl Into<String>) -> TopologyError {
        syntax(self.file, self.number, expected)
    }

    /// The next word, if there is one.
    pub(super) fn next_word(&mut self) -> Option<&'t str> {
        self.words.next()
    }

    /// The next word. `expected` says in errors what it should be.
    pub(super) fn word(&mut self, expected: &str) -> Result<&'t str, TopologyError> {
        self.words.next().ok_or_else(|| self.expected(expected))
    }

    /// The next word as a number. `expected` says in errors what it should be.
    pub(super) fn number<T: FromStr>(&mut self, expected: &str) -> Result<T, TopologyError> {
        let word = self.word(expected)?;
        word.parse().map_err(|_| self.expected(format!("{expected} instead of `{word}`")))
    }

    /// Refuses further words.
    pub(super) fn end(&mut self) -> Result<(), TopologyError> {
        match self.words.next() {
            Some(word) => Err(self.expected(format!("the end of the line instead of `{word}`"))),
            None => Ok(()),
        }
    }
}

/// An error in a line.
pub(super) fn syntax(file: &Path, line: usize, expected: impl Into<String>) -> TopologyError {
    TopologyError::Syntax { file: file.to_owned(), line, expected: expected.into() }
}
