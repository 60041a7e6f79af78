//! Tables and numbers as text.

use std::fmt;

/// A table: the first columns are aligned on the left, all others on the right.
#[derive(Clone, Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    /// Columns that are aligned on the left.
    left: usize,
}

impl Table {
    /// A table with these headings, of which the first `left` columns are aligned on the left.
    pub(super) fn new(left: usize, headings: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { rows: vec![headings.into_iter().map(Into::into).collect()], left }
    }

    /// A table without headings, of which the first `left` columns are aligned on the left.
    pub(super) const fn plain(left: usize) -> Self {
        Self { rows: Vec::new(), left }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether there is nothing but headings.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(|column| self.width(column)).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                line += "  ";
                let space = " ".repeat(width - cell.chars().count().min(*width));
                match column < self.left {
                    true => line.extend([cell.as_str(), &space]),
                    false => line.extend([&space, cell.as_str()]),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number rounded to `digits` significant digits, but never to less than a whole number, with commas between
/// thousands.
pub(super) fn digits(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return if value.is_nan() { "-".to_owned() } else { value.to_string() };
    }
    let whole = value.abs().max(1e-12).log10().floor() as i64 + 1;
    let decimals = usize::try_from(digits as i64 - whole).unwrap_or(0).min(9);
    let text = if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.decimals$}") };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    thousands(text)
}

/// A number for people.
pub(super) fn number(value: f64) -> String {
    digits(value, 4)
}

/// A number that may be missing.
pub(super) fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// Sets commas between thousands.
fn thousands(text: &str) -> String {
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, whole) = whole.split_at(whole.len() - whole.trim_start_matches('-').len());
    let mut out = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

/// Text in lines of at most `width` characters, after `indent`.
pub(super) fn wrapped(text: &str, width: usize, indent: &str) -> String {
    let mut out = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            out.push('\n');
            used = 0;
        }
        out += if used == 0 { indent } else { " " };
        used += length + usize::from(used > 0);
        out += word;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_commas() {
        for (value, text) in [
            (0.0, "0"),
            (15.0, "15"),
            (0.98765, "0.9877"),
            (2451.3, "2,451"),
            (1_234_567.0, "1,234,567"),
            (-1234.5, "-1,234"),
            (0.001_234_56, "0.001235"),
            (f64::NAN, "-"),
            (f64::INFINITY, "inf"),
            (1e300, &*thousands(&format!("{:.0}", 1e300))),
        ] {
            assert_eq!(number(value), text, "{value}");
        }
        assert_eq!(digits(2451.34, 6), "2,451.34");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(1, ["port", "load"]);
        table.row(["a>b", "5"]);
        assert_eq!(table.to_string(), "  port  load\n  a>b      5\n");
    }

    #[test]
    fn text_is_wrapped() {
        assert_eq!(wrapped("one two\nthree four", 9, "> "), "> one two\n> three\n> four");
        assert_eq!(wrapped("", 9, "> "), "");
    }
}
