//! The variants of a scenario, and all of its runs.

use super::{Scenario, ScenarioError, Verdict};
use crate::report::{Metrics, Report};
use crate::switch::Preset;
use serde::Deserialize as _;
use std::path::Path;

/// What came out of all runs of a scenario.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Outcome {
    /// The report of each variant, by its name: empty if there is one only. Of a scenario that is repeated, the report of the
    /// first run.
    pub reports: Vec<(String, Report)>,
    /// The metrics of all, those of variants with their name in front. Means, if a scenario is repeated.
    pub metrics: Metrics,
    /// What was expected, and what came out.
    pub verdicts: Vec<Verdict>,
}

impl Outcome {
    /// Whether no run was interrupted.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.reports.iter().all(|(_, report)| report.is_whole)
    }
}

/// Lays a table over another. Tables within are laid over one another, everything else takes the place of what was there.
fn lay(over: &toml::Table, base: &mut toml::Table) {
    for (key, value) in over {
        match (value, base.get_mut(key)) {
            (toml::Value::Table(over), Some(toml::Value::Table(base))) => lay(over, base),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Lays the settings of all switches of a scenario over their presets.
fn lay_over_presets(scenario: &mut toml::Table) -> Result<(), ScenarioError> {
    let lay_one = |setting: &str, switch: &mut toml::Value| -> Result<(), ScenarioError> {
        let Some(name) = switch.get("preset").and_then(toml::Value::as_str) else { return Ok(()) };
        let unknown = |advice| ScenarioError::Unknown { setting: format!("{setting}.preset"), advice };
        let mut table = Preset::find(name).map_err(unknown)?.table();
        if let toml::Value::Table(over) = &*switch {
            lay(over, &mut table);
        }
        *switch = toml::Value::Table(table);
        Ok(())
    };
    if let Some(switch) = scenario.get_mut("switch") {
        lay_one("switch", switch)?;
    }
    if let Some(toml::Value::Table(switches)) = scenario.get_mut("switches") {
        for (name, switch) in switches.iter_mut() {
            lay_one(&format!("switches.{name}"), switch)?;
        }
    }
    Ok(())
}

/// The variants in the table of a scenario, each with its name.
fn variants(base: &toml::Table, over: &[toml::Table]) -> Result<Vec<(String, Scenario)>, ScenarioError> {
    let mut base = base.clone();
    base.remove("variant");
    let mut variants = Vec::new();
    for (number, over) in over.iter().enumerate() {
        let mut over = over.clone();
        let Some(toml::Value::String(name)) = over.remove("name") else {
            let setting = format!("variant {}", number + 1);
            return Err(ScenarioError::Unknown { setting, advice: "give it a `name`".to_owned() });
        };
        let mut table = base.clone();
        lay(&over, &mut table);
        lay_over_presets(&mut table)?;
        let scenario = Scenario::deserialize(toml::Value::Table(table));
        let scenario = scenario.map_err(|why| ScenarioError::Variant { name: name.clone(), why })?;
        variants.push((name, scenario));
    }
    Ok(variants)
}

impl Scenario {
    /// Reads a scenario from the table of a file, and its variants.
    ///
    /// # Errors
    /// Says what to write instead.
    pub fn from_table(table: &toml::Table) -> Result<Self, ScenarioError> {
        let mut whole = table.clone();
        lay_over_presets(&mut whole)?;
        let mut scenario = Self::deserialize(toml::Value::Table(whole))?;
        scenario.variants = variants(table, &scenario.variant)?;
        Ok(scenario)
    }

    /// Runs all variants with a seed, or the scenario itself if it has none. `goes_on` is asked from time to time, with the
    /// share of all that is done.
    ///
    /// # Errors
    /// Something in it does not fit together, or a verb fails that should not.
    pub fn run_all(
        &self,
        base: &Path,
        seed: u64,
        goes_on: &mut dyn FnMut(f64) -> bool,
    ) -> Result<Outcome, ScenarioError> {
        let only = [(String::new(), self)];
        let variants: Vec<(String, &Self)> = match self.variants.as_slice() {
            [] => only.into(),
            several => several.iter().map(|(name, scenario)| (name.clone(), scenario)).collect(),
        };
        let count = variants.len() as f64;
        let (mut reports, mut all) = (Vec::new(), Metrics::default());
        for (number, (name, scenario)) in variants.into_iter().enumerate() {
            let mut share = |done: f64| goes_on((number as f64 + done) / count);
            let (report, metrics) = scenario.run_repeatedly(base, seed, &mut share)?;
            let is_whole = report.is_whole;
            all.join(&name, &metrics);
            reports.push((name, report));
            if !is_whole {
                break;
            }
        }
        let verdicts = self.expect.iter().map(|expect| expect.judge(&all)).collect();
        Ok(Outcome { reports, metrics: all, verdicts })
    }

    /// Runs it as often as it says. The metrics are means; a metric that not all runs have is the mean of those that have it.
    fn run_repeatedly(
        &self,
        base: &Path,
        seed: u64,
        goes_on: &mut dyn FnMut(f64) -> bool,
    ) -> Result<(Report, Metrics), ScenarioError> {
        let times = self.repeat.max(1);
        let mut first = None;
        let mut runs = Vec::new();
        let again = Self { captures: Vec::new(), ..self.clone() };
        for turn in 0..times {
            let mut share = |done: f64| goes_on((f64::from(turn) + done) / f64::from(times));
            // The first has the seed itself; the others are far from those of neighbouring seeds.
            let own = seed.wrapping_add(u64::from(turn) << 32);
            let scenario = if turn == 0 { self } else { &again };
            let report = scenario.run(base, own, &mut share)?;
            let is_whole = report.is_whole;
            runs.push(report.metrics.clone());
            first.get_or_insert(report);
            if !is_whole {
                break;
            }
        }
        let metrics = Metrics::mean(&runs);
        let report = match first {
            Some(report) => report,
            None => self.run(base, seed, goes_on)?,
        };
        Ok((report, metrics))
    }
}
