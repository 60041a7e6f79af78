//! The points of a sweep: one file for each.

use super::super::document::SCHEMA_VERSION;
use super::super::error::Problem;
use super::super::jobs::Outcome;
use super::super::set::{Assignment, plain};
use rnic_fabric::report::Report;
use rnic_fabric::scenario::Verdict;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// The longest name of a file without its end. Most file systems allow 255 bytes.
const LONGEST: usize = 200;

/// A combination of parameters, with a seed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    /// Its place in the grid.
    pub(super) number: usize,
    /// What it changes.
    pub(super) assignments: Vec<Assignment>,
    /// The seed.
    pub(super) seed: u64,
}

impl Point {
    /// Its parameters as text.
    pub(super) fn parameters(&self) -> Vec<(String, String)> {
        self.assignments.iter().map(|of| (of.key.clone(), plain(&of.value))).collect()
    }

    /// What it is called in errors.
    pub(super) fn title(&self) -> String {
        let words: Vec<String> =
            self.parameters().into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        [words, vec![format!("seed={}", self.seed)]].concat().join(",")
    }

    /// The name of its file. No two points have the same.
    pub(super) fn file(&self) -> String {
        let title = self.title();
        let keep = |letter: char| letter.is_ascii_alphanumeric() || "._-+=,:".contains(letter);
        let mut name: String = title.chars().map(|letter| if keep(letter) { letter } else { '_' }).collect();
        if name != title || name.len() > LONGEST {
            // Only ASCII is left.
            name.truncate(LONGEST);
            name += &format!("~{:016x}", fingerprint([&*title]));
        }
        name + ".json"
    }
}

/// A number that tells texts apart (FNV-1a, which has no version).
pub(super) fn fingerprint(texts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> u64 {
    let byte = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let text = |hash: u64, text: &[u8]| byte(text.iter().copied().fold(hash, byte), 0xff);
    texts.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, of| text(hash, of.as_ref()))
}

/// The file of a point, as it is written.
#[derive(Debug, Serialize)]
struct Written<'a> {
    schema_version: u32,
    rnic_version: &'static str,
    fingerprint: String,
    number: usize,
    parameters: Vec<(String, String)>,
    passed: bool,
    expectations: &'a [Verdict],
    #[serde(flatten)]
    report: &'a Report,
}

/// What is read of it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Row {
    /// The scenario.
    pub(super) scenario: String,
    /// The scenario's text, what was changed in all points, and the files that it names.
    pub(super) fingerprint: String,
    /// The place in the grid.
    pub(super) number: usize,
    /// What the point changes.
    pub(super) parameters: Vec<(String, String)>,
    /// The seed.
    pub(super) seed: u64,
    /// Whether all expectations are met.
    pub(super) passed: bool,
    /// The numbers. JSON knows neither infinity nor NaN.
    pub(super) metrics: BTreeMap<String, Option<f64>>,
}

impl Row {
    /// Reads a file of a sweep. `None`: there is no such file.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, Problem> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|why| Problem::Read { path: path.to_owned(), why })?,
        };
        let failed =
            |why: serde_json::Error| Problem::NoPoint { path: path.to_owned(), why: why.to_string() };
        serde_json::from_slice(&text).map(Some).map_err(failed)
    }

    /// What came out at a point.
    pub(super) fn of(point: &Point, fingerprint: &str, outcome: &Outcome) -> Self {
        let Outcome { report, verdicts, .. } = outcome;
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        Self {
            scenario: report.scenario.clone(),
            fingerprint: fingerprint.to_owned(),
            number: point.number,
            parameters: point.parameters(),
            seed: point.seed,
            passed: verdicts.iter().all(|verdict| verdict.passed),
            metrics: report.metrics.0.iter().map(|(name, value)| (name.clone(), finite(*value))).collect(),
        }
    }
}

/// Writes the file of a point. It appears as a whole or not at all, so that an interrupted sweep can go on.
pub(super) fn write(
    folder: &Path,
    point: &Point,
    fingerprint: &str,
    outcome: &Outcome,
) -> Result<(), Problem> {
    let written = Written {
        schema_version: SCHEMA_VERSION,
        rnic_version: env!("CARGO_PKG_VERSION"),
        fingerprint: fingerprint.to_owned(),
        number: point.number,
        parameters: point.parameters(),
        passed: outcome.verdicts.iter().all(|verdict| verdict.passed),
        expectations: &outcome.verdicts,
        report: &outcome.report,
    };
    let text = serde_json::to_string(&written)? + "\n";
    let (path, draft) = (folder.join(point.file()), folder.join(draft(point)));
    fs::write(&draft, text).map_err(Problem::write(&draft))?;
    fs::rename(&draft, &path).map_err(Problem::write(&path))
}

/// The name of the file while it is written, which another machine on the same file system does not use.
fn draft(point: &Point) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let title = point.title();
    format!(".{:016x}-{:016x}-{}.tmp", fingerprint([&*title]), fingerprint([&*host]), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::super::super::set::{Vary, grid};
    use super::*;

    fn points(vary: &str) -> Vec<Point> {
        let grid = grid(&[Vary::parse(vary).expect("a list")]);
        let new = |(number, assignments)| Point { number, assignments, seed: 3 };
        grid.into_iter().enumerate().map(new).collect()
    }

    #[test]
    fn files_are_named_by_their_parameters() {
        let names: Vec<String> = points("switch.balance.mode=ecmp,spray").iter().map(Point::file).collect();
        assert_eq!(names, ["switch.balance.mode=ecmp,seed=3.json", "switch.balance.mode=spray,seed=3.json"]);
    }

    #[test]
    fn no_two_points_have_the_same_file() {
        let long = "x".repeat(300);
        let names: Vec<String> =
            points(&format!("a=1 MB,1/MB,1_MB,{long}a,{long}b")).iter().map(Point::file).collect();
        let different: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| name.len() < 255 && !name.contains('/')), "{names:?}");
    }
}
