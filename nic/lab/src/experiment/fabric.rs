//! A scenario of a fabric.

use super::{Picture, Ran};
use crate::definition::ExperimentConfig;
use crate::error::LabError;
use crate::value::{Value, Values};
use rnic_fabric::scenario::{Scenario, ScenarioError};
use std::path::Path;
use toml::Table;

pub(super) fn run(
    config: &ExperimentConfig,
    table: &Table,
    watch: &mut dyn FnMut(f64),
) -> Result<Ran, LabError> {
    let wrong = |why: ScenarioError| LabError::file(&config.file, why);
    let scenario = Scenario::from_table(table).map_err(wrong)?;
    let seed = scenario.seeds.first().copied().unwrap_or(1);
    let mut goes_on = |share| {
        watch(share);
        true
    };
    let outcome = scenario.run_all(Path::new("."), seed, &mut goes_on).map_err(wrong)?;
    let values = outcome.metrics.0.iter().map(|(name, metric)| (name.clone(), Value::Number(*metric)));
    Ok(Ran {
        values: Values(values.collect()),
        picture: Picture::Fabric(outcome.reports),
        text: String::new(),
    })
}
