//! Results as JSON.

use super::error::Problem;
use super::jobs::Outcome;
use super::set::{Assignment, plain};
use rnic_fabric::report::Report;
use rnic_fabric::scenario::{Scenario, Verdict};
use serde::Serialize;
use std::collections::BTreeMap;

/// Changes whenever a field of the document is removed or changes its meaning.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// The JSON document of a command. It has no times of day, so that the same command writes the same bytes.
#[derive(Debug, Serialize)]
struct Document<'a> {
    schema_version: u32,
    rnic_version: &'static str,
    scenario: &'a str,
    about: &'a str,
    /// What the command line changed.
    settings: BTreeMap<&'a str, String>,
    interrupted: bool,
    runs: Vec<Run<'a>>,
}

/// One seed.
#[derive(Debug, Serialize)]
struct Run<'a> {
    passed: bool,
    expectations: &'a [Verdict],
    #[serde(flatten)]
    report: &'a Report,
    /// The reports of all variants, if there are several; `report` is the first then.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    variants: BTreeMap<&'a str, &'a Report>,
}

/// The document of these runs.
pub(super) fn write(
    scenario: &Scenario,
    settings: &[Assignment],
    outcomes: &[Outcome],
    is_interrupted: bool,
) -> Result<String, Problem> {
    let run = |outcome: &'_ Outcome| outcome.verdicts.iter().all(|verdict| verdict.passed);
    let document = Document {
        schema_version: SCHEMA_VERSION,
        rnic_version: env!("CARGO_PKG_VERSION"),
        scenario: &scenario.name,
        about: scenario.about.trim(),
        settings: settings.iter().map(|of| (of.key.as_str(), plain(&of.value))).collect(),
        interrupted: is_interrupted,
        runs: outcomes
            .iter()
            .map(|outcome| Run {
                passed: run(outcome),
                expectations: &outcome.verdicts,
                report: &outcome.report,
                variants: outcome.variants.iter().map(|(name, report)| (name.as_str(), report)).collect(),
            })
            .collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
