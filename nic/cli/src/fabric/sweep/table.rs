//! The table of a sweep, as text and as CSV.

use super::super::csv::Rows;
use super::super::error::Problem;
use super::super::table::{Table, maybe};
use super::point::Row;
use rnic::cc;
use std::collections::{BTreeMap, BTreeSet};

/// What the text shows unless told otherwise.
const METRICS: [&str; 8] = [
    "flows.finished",
    "fct.p50_us",
    "fct.p99_us",
    "slowdown.p99",
    "goodput.total_gbps",
    "drops.total",
    "pauses.sent",
    "marked",
];

/// The points of one or several sweeps.
pub(super) struct Points(Vec<Row>);

/// A combination of parameters: the scenario and the values of all keys.
type Key<'r> = (&'r str, Vec<&'r str>);

impl Points {
    /// Sorts points by their places in the grid. Of points that are there twice, one stays: they are equal.
    pub(super) fn new(mut rows: Vec<Row>) -> Self {
        let key = |row: &Row| (row.number, row.scenario.clone(), row.parameters.clone(), row.seed);
        rows.sort_by_key(key);
        let mut seen = BTreeSet::new();
        rows.retain(|row| {
            seen.insert((row.fingerprint.clone(), row.scenario.clone(), row.parameters.clone(), row.seed))
        });
        Self(rows)
    }

    /// All keys that some point changes.
    fn keys(&self) -> Vec<&str> {
        let mut keys = Vec::new();
        for (key, _) in self.0.iter().flat_map(|row| &row.parameters) {
            if !keys.contains(&key.as_str()) {
                keys.push(key.as_str());
            }
        }
        keys
    }

    /// Whether there are several scenarios.
    fn is_mixed(&self) -> bool {
        self.0.iter().any(|row| Some(&row.scenario) != self.0.first().map(|first| &first.scenario))
    }

    /// The names of these metrics, or of the usual ones if none is chosen.
    pub(super) fn metrics(&self, chosen: &[String]) -> Result<Vec<String>, Problem> {
        let all: BTreeSet<&str> =
            self.0.iter().flat_map(|row| row.metrics.keys().map(String::as_str)).collect();
        if let Some(unknown) = chosen.iter().find(|name| !all.contains(name.as_str()) && !all.is_empty()) {
            let near = cc::nearest(unknown, all.iter().copied());
            let advice =
                near.map_or("choose one of table.csv".to_owned(), |near| format!("did you mean `{near}`?"));
            let why = format!("no point has `{unknown}`: {advice}");
            return Err(Problem::Option { option: "--metric", why });
        }
        if !chosen.is_empty() {
            return Ok(chosen.to_vec());
        }
        Ok(METRICS.into_iter().filter(|name| all.contains(name)).map(str::to_owned).collect())
    }

    /// One row per combination of parameters, with means over its seeds.
    pub(super) fn text(&self, metrics: &[String]) -> Table {
        let keys = self.keys();
        let scenario = self.is_mixed().then_some("scenario");
        let left = keys.len() + usize::from(scenario.is_some());
        let headings = scenario.into_iter().chain(keys.iter().copied()).chain(["seeds", "passed"]);
        let mut table = Table::new(left, headings.chain(metrics.iter().map(String::as_str)));
        for ((name, values), rows) in self.combinations(&keys) {
            let passed = rows.iter().filter(|row| row.passed).count();
            let mean = |metric: &String| {
                let values: Vec<f64> =
                    rows.iter().filter_map(|row| row.metrics.get(metric).copied().flatten()).collect();
                maybe((!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64))
            };
            let first =
                scenario.map(|_| name.to_owned()).into_iter().chain(values.into_iter().map(str::to_owned));
            let counts = [rows.len().to_string(), passed.to_string()];
            table.row(first.chain(counts).chain(metrics.iter().map(mean)));
        }
        table
    }

    /// The points of each combination, in the order in which they come first.
    fn combinations(&self, keys: &[&str]) -> Vec<(Key<'_>, Vec<&Row>)> {
        let mut places: BTreeMap<Key<'_>, usize> = BTreeMap::new();
        let mut combinations: Vec<(Key<'_>, Vec<&Row>)> = Vec::new();
        for row in &self.0 {
            let key = (row.scenario.as_str(), values(row, keys));
            let place = *places.entry(key.clone()).or_insert(combinations.len());
            match combinations.get_mut(place) {
                Some((_, rows)) => rows.push(row),
                None => combinations.push((key, vec![row])),
            }
        }
        combinations
    }

    /// One row per point, with all metrics.
    pub(super) fn csv(&self) -> String {
        let keys = self.keys();
        let metrics: BTreeSet<&str> =
            self.0.iter().flat_map(|row| row.metrics.keys().map(String::as_str)).collect();
        let headings = ["scenario"].into_iter().chain(keys.iter().copied()).chain(["seed", "passed"]);
        let mut rows = Rows::new(headings.chain(metrics.iter().copied()));
        for row in &self.0 {
            let value = |metric: &&str| {
                row.metrics.get(*metric).copied().flatten().map(|value| value.to_string()).unwrap_or_default()
            };
            let first = [row.scenario.as_str()].into_iter().chain(values(row, &keys)).map(str::to_owned);
            let passed = [row.seed.to_string(), u8::from(row.passed).to_string()];
            rows.add(first.chain(passed).chain(metrics.iter().map(value)));
        }
        rows.finish()
    }
}

/// The values of the keys at a point; empty where it leaves the scenario as it is.
fn values<'r>(row: &'r Row, keys: &[&str]) -> Vec<&'r str> {
    let value = |key: &&str| {
        let found = row.parameters.iter().find(|(own, _)| own == key);
        found.map_or("", |(_, value)| value.as_str())
    };
    keys.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: usize, mode: &str, seed: u64, fct: f64) -> Row {
        Row {
            scenario: "s".into(),
            fingerprint: "f".into(),
            number,
            parameters: vec![("mode".into(), mode.into())],
            seed,
            passed: fct < 10.0,
            metrics: [("fct.p99_us".to_owned(), Some(fct)), ("other".to_owned(), None)].into_iter().collect(),
        }
    }

    #[test]
    fn combinations_have_means_and_points_have_rows() {
        let rows = vec![row(2, "b", 1, 20.0), row(0, "a", 1, 4.0), row(1, "a", 2, 6.0), row(0, "a", 1, 4.0)];
        let points = Points::new(rows);
        let metrics = points.metrics(&[]).expect("the usual ones");
        let text = points.text(&metrics).to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["mode", "seeds", "passed", "fct.p99_us"]);
        assert_eq!(lines[1], ["a", "2", "2", "5"]);
        assert_eq!(lines[2], ["b", "1", "0", "20"]);
        assert_eq!(
            points.csv(),
            "scenario,mode,seed,passed,fct.p99_us,other\ns,a,1,1,4,\ns,a,2,1,6,\ns,b,1,0,20,\n"
        );
        let error = points.metrics(&["fct.p99".to_owned()]).expect_err("no such metric").to_string();
        assert!(error.contains("did you mean `fct.p99_us`?"), "{error}");
    }
}
