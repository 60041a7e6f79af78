//! Experiments: they run in virtual time, and give values by name.

mod fabric;
mod store;
mod transport;

pub use transport::{Step, Steps};

use crate::definition::{Definition, ExperimentConfig, Kind};
use crate::error::LabError;
use crate::template;
use crate::value::{Value, Values};
use rnic_fabric::report::Report;
use toml::Table;

/// What came out of an experiment.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What was measured, by name.
    pub values: Values,
    /// What can be drawn.
    pub picture: Picture,
    /// Text for people, such as a ladder.
    pub text: String,
}

/// What can be drawn of an experiment.
#[derive(Clone, Debug)]
pub enum Picture {
    /// Packets of two NICs over time.
    Steps(Steps),
    /// Samples of a fabric, of each variant by its name.
    Fabric(Vec<(String, Report)>),
    /// Nothing.
    None,
}

/// The table of an experiment's file, with the parameters filled in.
///
/// # Errors
/// It is no TOML, or names what is not known.
pub fn table(config: &ExperimentConfig, text: &str, parameters: &Values) -> Result<Table, LabError> {
    let filled = template::fill(text, parameters)?;
    toml::from_str(&filled).map_err(|why| LabError::file(&config.file, why))
}

/// Sets what the student chose.
///
/// # Errors
/// It cannot be chosen, or the lab sets a key that is not there, which is a mistake in the lab.
pub fn choose(
    definition: &Definition,
    config: &ExperimentConfig,
    table: &mut Table,
    chosen: &Values,
) -> Result<(), LabError> {
    for choice in definition.choices(config) {
        let Some(value) = chosen.get(&choice.key) else { continue };
        let value = choice.take(value).map_err(|why| LabError::Choice {
            key: choice.key.clone(),
            value: value.to_string(),
            why,
        })?;
        for target in &choice.sets {
            let Some((name, key)) = target.split_once('.') else { continue };
            if name != config.name {
                continue;
            }
            // A number stays one, unless the key wants a unit.
            let value = match &value {
                Value::Number(number) if choice.text == "{}" && number.fract() == 0.0 => {
                    toml::Value::Integer(*number as i64)
                }
                Value::Number(number) if choice.text == "{}" => toml::Value::Float(*number),
                value => toml::Value::String(choice.text.replace("{}", &value.to_string())),
            };
            rnic_fabric::scenario::set_key(table, key, value)
                .map_err(|why| LabError::file(&config.file, format!("{key}: {why}")))?;
        }
    }
    Ok(())
}

/// Runs an experiment.
///
/// # Errors
/// Its table is wrong.
pub fn run(config: &ExperimentConfig, table: &Table) -> Result<Ran, LabError> {
    run_watched(config, table, &mut |_| ())
}

/// Runs an experiment. If it is one that may take long, `watch` hears from time to time what share of it is done.
///
/// # Errors
/// Its table is wrong.
pub fn run_watched(
    config: &ExperimentConfig,
    table: &Table,
    watch: &mut dyn FnMut(f64),
) -> Result<Ran, LabError> {
    match config.kind {
        Kind::Fabric => fabric::run(config, table, watch),
        Kind::Transport => transport::run(config, table),
        Kind::Store => store::run(config, table),
    }
}

/// A table as the configuration of an experiment.
fn read<T: serde::de::DeserializeOwned>(config: &ExperimentConfig, table: &Table) -> Result<T, LabError> {
    table.clone().try_into().map_err(|why| LabError::file(&config.file, why))
}

/// A verb that failed.
fn verb(config: &ExperimentConfig) -> impl Fn(rnic_core::Error) -> LabError {
    let name = config.name.clone();
    move |why| LabError::Devices { name: name.clone(), why: Box::new(why) }
}

/// A time in text, such as `10 us`.
fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<time::Duration, D::Error> {
    let text = <String as serde::Deserialize>::deserialize(deserializer)?;
    cc::quantity::parse_duration(&text).map_err(serde::de::Error::custom)
}
