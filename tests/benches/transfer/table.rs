//! The figures of all rounds, and the table of their medians.

use serde::Serialize;

/// What is compared with what.
pub(crate) const COLUMNS: [&str; 4] = ["raw UDP", "bare RC", "TCP peer", "rnic"];

/// The places of the columns.
pub(crate) const RAW: usize = 0;
pub(crate) const BARE: usize = 1;
pub(crate) const TCP: usize = 2;
pub(crate) const RNIC: usize = 3;

/// A line of the table: a figure in each column, of every round.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    /// Which TCP program is compared with.
    pub(crate) tcp_peer: String,
    /// By column and round. A column that was not measured is empty; a measurement that failed is not a number.
    pub(crate) columns: [Vec<f64>; COLUMNS.len()],
}

/// A median and its range.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// `None` without values.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        Some(Self { median: percentile(&values, 0.5)?, min: *values.first()?, max: *values.last()? })
    }

    pub(crate) const fn median(&self) -> f64 {
        self.median
    }

    fn show(spread: Option<Self>) -> String {
        let Some(Self { median, min, max }) = spread else { return "-".to_owned() };
        // Three digits, and two behind the point where that is not more.
        let digits = if max >= 100.0 {
            0
        } else if max >= 10.0 {
            1
        } else {
            2
        };
        format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
    }
}

/// A percentile of sorted values.
pub(crate) fn percentile(sorted: &[f64], quantile: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * quantile).round() as usize).copied()
}

impl Figure {
    /// The ratios of the last column to another one: of each round, because measurements close in time share the state of
    /// the machine.
    fn ratios(&self, column: usize) -> Vec<f64> {
        self.columns[RNIC].iter().zip(&self.columns[column]).map(|(own, other)| own / other).collect()
    }

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.name.clone(), self.unit.to_owned()];
        cells.extend(self.columns.iter().map(|values| Spread::show(Spread::of(values))));
        if !self.columns[TCP].is_empty() && !self.tcp_peer.is_empty() {
            cells[2 + TCP] = format!("{} {}", cells[2 + TCP], self.tcp_peer);
        }
        cells.extend([BARE, TCP, RAW].map(|column| Spread::show(Spread::of(&self.ratios(column)))));
        cells
    }
}

/// Prints all figures, with columns as wide as needed.
pub(crate) fn print(title: &str, figures: &[Figure]) {
    let mut head = vec![title.to_owned(), String::new()];
    head.extend(COLUMNS.map(str::to_owned));
    head.extend([BARE, TCP, RAW].map(|column| format!("rnic / {}", COLUMNS[column])));
    let lines: Vec<_> = std::iter::once(head).chain(figures.iter().map(Figure::cells)).collect();
    let width = |at: usize| lines.iter().map(|cells| cells[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..lines[0].len()).map(width).collect();
    for cells in &lines {
        let padded: Vec<_> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        println!("{}", padded.join("  ").trim_end());
    }
    println!("Medians and ranges. Ratios are computed per round; of times (ns, us), less is better.");
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a> {
    pub(crate) rounds: usize,
    pub(crate) slice_ms: u64,
    /// In the order of the numbers in `figures`.
    pub(crate) column_names: [&'static str; COLUMNS.len()],
    pub(crate) tcp_congestion_control: &'a str,
    pub(crate) figures: &'a [Figure],
    pub(crate) summary: Vec<Summary<'a>>,
}

/// Medians and ranges of a figure.
#[derive(Debug, Serialize)]
pub(crate) struct Summary<'a> {
    name: &'a str,
    unit: &'static str,
    columns: [Option<Spread>; COLUMNS.len()],
    rnic_to_bare: Option<Spread>,
    rnic_to_tcp: Option<Spread>,
    rnic_to_raw: Option<Spread>,
}

impl<'a> Summary<'a> {
    pub(crate) fn of(figure: &'a Figure) -> Self {
        let ratio = |column| Spread::of(&figure.ratios(column));
        Self {
            name: &figure.name,
            unit: figure.unit,
            columns: [RAW, BARE, TCP, RNIC].map(|column| Spread::of(&figure.columns[column])),
            rnic_to_bare: ratio(BARE),
            rnic_to_tcp: ratio(TCP),
            rnic_to_raw: ratio(RAW),
        }
    }
}
